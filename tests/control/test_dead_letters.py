"""Dead letters and the outbox over HTTP and on the command line: who may, what is checked, who was faster."""

from __future__ import annotations

import asyncio
import json

import pytest

from everkeel.cli import main
from everkeel.control import dead_letters_section, inbox_section, outbox_section
from everkeel.engines.memory.engine import MemoryEngine
from everkeel.messaging import DeadLetters, Event, Inbox, MemoryTransport, Outbox


@pytest.fixture
def engine():
    return MemoryEngine()


@pytest.fixture
def letters(engine):
    return DeadLetters(engine, max_replays=1, redact=["card"])


@pytest.fixture
def relay(engine):
    return Outbox(engine, transport=MemoryTransport()).relay()


@pytest.fixture
def plane(make_plane, letters, engine, relay):
    plane = make_plane()
    plane.add_section(dead_letters_section(letters))
    plane.add_section(outbox_section(Outbox(engine), relay))
    return plane


@pytest.fixture
def bury(letters):
    """Buries an event; answers the letter's id."""

    def burying(type="order.placed", consumer="payments", **data):
        event = Event(type, data or {"order": 7, "card": "4111"}, source="/orders", key="o-7")
        error = ValueError("no such account")
        return asyncio.run(
            letters.bury(event, consumer=consumer, topic="orders", reason="attempts", error=error, attempts=3)
        ).id

    return burying


def test_letters_are_listed_filtered_counted_and_shown(admin, bury):
    first, second = bury(), bury("order.cancelled", consumer="stock")
    page = admin.get("/dlq").json()
    assert {one["id"] for one in page["letters"]} == {first, second}
    assert page["next"] is None
    assert admin.get("/dlq", params={"consumer": "stock"}).json()["letters"][0]["event"]["type"] == "order.cancelled"
    assert admin.get("/dlq/count", params={"status": "pending"}).json() == {"count": 2}
    assert admin.get("/dlq/count", params={"type": "nothing"}).json() == {"count": 0}
    whole = admin.get(f"/dlq/{first}")
    assert whole.headers["etag"] == '"1"'
    told = whole.json()
    assert told["error_type"] == "ValueError"
    assert told["untrusted"]["data"]["order"] == 7
    assert "4111" not in whole.text  # redacted
    assert told["failed_at"].endswith("Z")
    (entry,) = admin.get(f"/dlq/{first}/audit").json()["entries"]
    assert entry["after"] == "pending"


def test_pages_are_stable(admin, bury):
    ids = [bury() for _ in range(5)]
    seen, cursor = [], None
    while True:
        page = admin.get("/dlq", params={"limit": 2, **({"cursor": cursor} if cursor else {})}).json()
        seen += [one["id"] for one in page["letters"]]
        if (cursor := page["next"]) is None:
            break
    assert sorted(seen) == sorted(ids)
    assert admin.get("/dlq", params={"cursor": "nonsense"}).status_code in (400, 422)


def test_a_letter_is_replayed_once_and_the_second_operator_is_told(admin, plane, bury, engine):
    id = bury()
    done = admin.post(f"/dlq/{id}/replay", json={"reason": "account fixed"}, headers={"If-Match": '"1"'})
    assert done.status_code == 200
    assert done.json()["status"] == "replayed"
    assert asyncio.run(engine.outbox.stats()).depth == 1
    late = admin.post(f"/dlq/{id}/replay", json={}, headers={"If-Match": '"1"'})
    assert late.status_code in (409, 412)
    assert late.headers["content-type"] == "application/problem+json"
    assert asyncio.run(engine.outbox.stats()).depth == 1
    entry = plane.audit.entries()[-1].plain()
    assert (entry["action"], entry["name"], entry["who"]) == ("replay", id, "admin")
    assert [one["reason"] for one in admin.get(f"/dlq/{id}/audit").json()["entries"]][-1] == "account fixed"


def test_a_letter_is_replayed_with_corrected_data(admin, bury, letters):
    id = bury()
    assert admin.post(f"/dlq/{id}/replay", json={"edit": {"order": 8}}).status_code == 200
    assert asyncio.run(letters.get(id)).replays == 1


def test_what_is_hidden_stays_as_it_was_when_the_rest_is_corrected(admin, bury, engine):
    id = bury()
    shown = admin.get(f"/dlq/{id}").json()["untrusted"]
    assert json.loads(shown["text"]) == shown["data"] == {"order": 7, "card": "***"}
    assert admin.post(f"/dlq/{id}/replay", json={"edit": {**shown["data"], "order": 2**60 + 1}}).status_code == 200
    (sent,) = asyncio.run(engine.outbox.claim("relay", 10, 30))
    assert json.loads(sent.row.payload) == {"order": 2**60 + 1, "card": "4111"}


def test_corrections_that_cannot_be_are_refused_and_the_letter_waits_on(admin, bury):
    id = bury()
    wrong = [{"edit": None}, {"edit": {"other": {"card": "***"}}}, {"key": ""}, {"key": "k" * 600}, {"key": " "}]
    for body in wrong:
        answer = admin.post(f"/dlq/{id}/replay", json=body)
        assert answer.status_code in (400, 422), body
        assert answer.headers["content-type"] == "application/problem+json"
    assert admin.get(f"/dlq/{id}").json()["status"] == "pending"


def test_a_letter_is_replayed_with_another_key(admin, plane, bury, engine):
    id = bury()
    assert admin.post(f"/dlq/{id}/replay", json={"key": "o-8", "reason": "a typo"}).json()["key"] == "o-8"
    (sent,) = asyncio.run(engine.outbox.claim("relay", 10, 30))
    assert sent.row.key == "o-8"
    assert plane.audit.entries()[-1].plain()["after"] == {"edited": False, "key": "o-8"}


def test_a_letter_whose_replay_got_lost_waits_again(admin, bury):
    id = bury()
    assert admin.post(f"/dlq/{id}/reopen", json={"reason": "lost"}).status_code == 409
    admin.post(f"/dlq/{id}/replay", json={})
    assert admin.post(f"/dlq/{id}/reopen", json={}).status_code == 400
    assert admin.post(f"/dlq/{id}/reopen", json={"reason": "the broker lost it"}).json()["status"] == "pending"
    assert admin.get(f"/dlq/{id}/audit").json()["entries"][-1]["reason"] == "the broker lost it"


def test_a_letter_tells_what_came_behind_it_in_its_key_and_so_does_the_dry_run(admin, bury):
    first, _ = bury(), bury()
    assert admin.get(f"/dlq/{first}").json()["newer"] == {"handled": 0, "waiting": 1, "exact": False}
    assert "newer" not in admin.get("/dlq").json()["letters"][0]  # too dear for a whole list
    plan = admin.post("/dlq/replay", json={}).json()
    assert plan["newer"] == {"letters": 0, "handled": 0, "waiting": 1, "exact": False}


def test_a_list_of_large_events_is_not_large(admin, bury):
    id = bury(text="x" * 100_000)
    (one,) = admin.get("/dlq").json()["letters"]
    assert one["untrusted"]["data"] == "(100011 bytes: look at the letter itself)"
    assert len(admin.get(f"/dlq/{id}").json()["untrusted"]["data"]["text"]) == 100_000
    assert len(admin.post("/dlq/replay", json={}).content) < 10_000


def test_letters_of_one_event_are_found_by_its_id(admin, bury):
    first, _ = bury(), bury()
    event = admin.get(f"/dlq/{first}").json()["event"]["id"]
    (one,) = admin.get("/dlq", params={"event_id": event}).json()["letters"]
    assert one["id"] == first


def test_a_stale_version_changes_nothing(admin, bury):
    id = bury()
    answer = admin.post(f"/dlq/{id}/replay", json={}, headers={"If-Match": '"99"'})
    assert answer.status_code == 412
    assert answer.json()["type"].endswith("version-conflict")
    assert admin.get(f"/dlq/{id}").json()["status"] == "pending"
    assert admin.post(f"/dlq/{id}/replay", json={}, headers={"If-Match": "nonsense"}).status_code == 412


def test_discarding_needs_a_reason_and_ends_it(admin, bury):
    id = bury()
    assert admin.delete(f"/dlq/{id}").status_code == 400
    gone = admin.delete(f"/dlq/{id}", params={"reason": "a test order"})
    assert gone.json()["status"] == "discarded"
    again = admin.post(f"/dlq/{id}/replay", json={})
    assert again.status_code == 409
    assert "discarded" in again.json()["detail"]


def test_many_are_planned_before_they_are_replayed(admin, bury, engine):
    for _ in range(3):
        bury()
    bury("other")
    plan = admin.post("/dlq/replay", json={"filter": {"type": "order.placed"}}).json()
    assert (plan["count"], plan["dry_run"], plan["by_type"]) == (3, True, {"order.placed": 3})
    assert asyncio.run(engine.outbox.stats()).depth == 0


@pytest.mark.asyncio
async def test_many_are_replayed_in_the_background(plane, bury, engine, secrets):
    import httpx2

    for _ in range(3):
        await asyncio.to_thread(bury)
    transport = httpx2.ASGITransport(app=plane)
    headers = {"Authorization": f"Bearer {secrets['operator']}"}
    async with httpx2.AsyncClient(transport=transport, base_url="http://plane/everkeel", headers=headers) as client:
        answer = await client.post("/dlq/replay", json={"dry_run": False, "rate": 1000})
        assert (answer.status_code, answer.json()["dry_run"]) == (200, False)
        for _ in range(200):
            if (await engine.outbox.stats()).depth == 3:
                break
            await asyncio.sleep(0.01)
    assert (await engine.outbox.stats()).depth == 3


def test_what_is_not_there_is_a_404(admin):
    for answer in (admin.get("/dlq/nobody"), admin.get("/dlq/nobody/audit"), admin.post("/dlq/nobody/replay", json={})):
        assert answer.status_code == 404
        assert answer.json()["type"].endswith("no-such-letter")


def test_a_viewer_reads_and_does_not_act(plane, client_of, bury):
    id, viewer = bury(), client_of(plane, "viewer")
    assert viewer.get(f"/dlq/{id}").status_code == 200
    assert viewer.post(f"/dlq/{id}/replay", json={}).status_code == 403
    assert viewer.delete(f"/dlq/{id}", params={"reason": "x"}).status_code == 403
    assert viewer.post("/outbox/pause").status_code == 403
    assert client_of(plane, None).get("/dlq").status_code == 401


def test_the_outbox_is_seen_and_paused(admin, engine, relay):
    asyncio.run(Outbox(engine).write(Event("a", source="/orders")))
    stats = admin.get("/outbox/stats").json()
    assert (stats["depth"], stats["relay"]) == (1, {"paused": False})
    assert admin.post("/outbox/pause").json() == {"paused": True}
    assert relay.paused
    assert admin.post("/outbox/resume").json() == {"paused": False}
    assert not relay.paused


def test_what_a_consumer_knows_about_an_event_can_be_asked(admin, plane, engine):
    plane.add_section(inbox_section(engine.inbox))
    assert admin.get("/inbox/billing/e-2", params={"source": "/orders"}).status_code == 404
    assert admin.get("/inbox/billing/e-2").status_code == 400
    for odd in ("%00", "e-2%0A", "x" * 600):  # no event could be called that, so none was seen
        assert admin.get(f"/inbox/billing/{odd}", params={"source": "/orders"}).status_code == 404
    assert admin.get("/inbox/bill%00ing/e-2", params={"source": "/orders"}).status_code == 404
    plain = Event("a", source="/orders", id="e-2")

    async def handle_plain():
        async with Inbox("billing", engine).once(plain) as claim:
            assert claim.fresh

    asyncio.run(handle_plain())
    told = admin.get("/inbox/billing/e-2", params={"source": "/orders"}).json()
    assert (told["state"], told["claims"], told["epoch"]) == ("completed", 1, 0)


# ------------------------------------------------------------------ the command line


@pytest.fixture
def run(plane, serve, secrets, monkeypatch, capsys):
    with serve(plane) as url:
        monkeypatch.setenv("EVERKEEL_URL", url + "/everkeel")
        monkeypatch.setenv("EVERKEEL_TOKEN", secrets["operator"])

        def running(*words):
            code = main(words)
            told = capsys.readouterr()
            return code, told.out, told.err

        yield running


def test_dead_letters_on_the_command_line(run, bury, engine):
    assert run("dlq") == (0, "no dead letters\n", "")
    first, second = bury(), bury("order.cancelled", consumer="stock")
    code, out, _ = run("dlq", "list", "--consumer", "stock")
    assert code == 0
    assert second in out
    assert first not in out
    assert run("dlq", "count")[1] == "2\n"
    shown = run("dlq", "show", first)[1]
    assert "no such account" in shown
    assert '"order": 7' in shown
    assert "new -> pending" in shown
    assert "newer events of its key\n  it is not known whether any was handled since\n" in shown
    assert json.loads(run("dlq", "show", first, "--json")[1])["history"][0]["after"] == "pending"
    assert (
        run("dlq", "replay", first, "--reason", "fixed", "--edit", '{"order": 8}')[1]
        == f"{first}: replayed, replay 1\n"
    )
    assert run("dlq", "replay", first)[0] == 1
    assert run("dlq", "replay", second, "--edit", "{")[0] == 2
    told = run("dlq", "replay")[1]
    assert "1 would be replayed" in told
    assert "newer events on the same keys: it is not known whether any was handled since" in told
    assert run("dlq", "reopen", first)[0] == 2
    assert run("dlq", "reopen", first, "--reason", "lost")[1] == f"{first}: pending\n"
    claimed = asyncio.run(engine.outbox.claim("relay", 10, 30))
    asyncio.run(engine.outbox.ack([one.lease for one in claimed]))
    assert run("dlq", "replay", first, "--force", "--to-key", "o-9")[1] == f"{first}: replayed, replay 1\n"
    third = bury()
    assert len(json.loads(run("dlq", "--limit", "2", "--json")[1])["letters"]) == 2
    event = json.loads(run("dlq", "show", third, "--json")[1])["event"]["id"]
    assert first not in run("dlq", "list", "--event-id", event)[1]
    assert run("dlq", "discard", second)[0] == 2
    assert run("dlq", "discard", second, "--reason", "a test order")[1] == f"{second}: discarded\n"
    assert "nothing" not in run("dlq", "replay", "--yes")[2]


def test_the_outbox_on_the_command_line(run, engine):
    asyncio.run(Outbox(engine).write(Event("a", source="/orders", key="k"), topic="orders"))
    out = run("outbox")[1]
    assert "depth" in out
    assert "topic orders" in out
    assert "relay: running" in out
    assert run("outbox", "pause")[1] == "paused\n"
    assert json.loads(run("outbox", "--json")[1])["relay"] == {"paused": True}
    assert run("outbox", "resume")[1] == "running\n"
