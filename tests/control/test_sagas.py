"""Sagas over HTTP and on the command line: who may, what is checked, who was faster."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest

from everkeel import NotRetryable, events
from everkeel.cli import main
from everkeel.control import sagas_section
from everkeel.engines.memory.engine import MemoryEngine
from everkeel.errors import ConfigError, SagaCompensatedError, SagaStoppedError
from everkeel.messaging import DeadLetters, Event
from everkeel.sagas import NOTHING, Choreography, Orchestrator, Reaction, Saga, Sagas, Step
from everkeel.sagas.happenings import Done
from everkeel.sagas.performing import Report

ACTIONS = ("retry-compensation", "skip-step", "mark-done", "cancel", "resume", "fail")


class World:
    """The services behind the steps, and an orchestrator that can be run for a while."""

    def __init__(self) -> None:
        self.engine = MemoryEngine()
        self.bank_is_down = True
        self.refunds = 0
        quick: dict[str, Any] = {"backoff": 0.01, "jitter": None}
        self.order: Saga[Any, Any, Any] = Saga(
            "order",
            Step("reserve", lambda context: {"shelf": 4}, lambda context: None, **quick),
            Step("charge", lambda context: {"card": "4111-1111"}, self.refund, undo_attempts=1, **quick),
            Step("ship", self.ship, NOTHING, **quick),
        )
        self.payout: Saga[Any, Any, Any] = Saga(
            "payout", Step("pay", lambda context: 1, pivot=True), Step("tell", self.ship)
        )

    def refund(self, context: Any) -> None:
        if self.bank_is_down:
            raise ConnectionError(f"the bank is down for {context.input['card']}\x1b[2J")
        self.refunds += 1

    def ship(self, context: Any) -> None:
        raise NotRetryable("nobody lives there")

    def run(self, saga: Saga[Any, Any, Any] | None = None, id: str = "order-7", **more: Any) -> str:
        """Start one, and run until it ends or stops."""
        return asyncio.run(self._run(saga or self.order, id, **more))

    async def _run(self, saga: Saga[Any, Any, Any], id: str, **more: Any) -> str:
        async with Orchestrator(self.engine, self.order, self.payout, poll=0.05) as orchestrator:
            handle = await orchestrator.start(saga, {"card": "4111-1111", "items": 2}, id=id, **more)
            try:
                await handle.result(10)
            except (SagaStoppedError, SagaCompensatedError):
                pass
        return id

    def leave(self, id: str = "order-8", **more: Any) -> str:
        """Start one that nobody works on."""

        async def starting() -> None:
            await Orchestrator(self.engine, self.order).start(self.order, {"card": "4111-1111"}, id=id, **more)

        asyncio.run(starting())
        return id

    def late(self, id: str = "order-late") -> str:
        """One that was undone when its payment came to light, which cannot be undone."""
        self.leave(id)

        async def working() -> None:
            async with Orchestrator(self.engine, self.order, poll=0.05) as orchestrator:
                await orchestrator.sagas.cancel(id)
                await orchestrator.wait(id, 10)
                blocked = asyncio.Event()
                orchestrator.subscribe(lambda event: blocked.set(), events.CompensationBlocked)
                orchestrator.report_late(id, Report(Done("charge")))
                await blocked.wait()

        asyncio.run(working())
        return id

    def carry_on(self, id: str) -> str:
        """Work on what is due, until this one ends or stops; answers its state."""

        async def working() -> str:
            async with Orchestrator(self.engine, self.order, poll=0.05) as orchestrator:
                return (await orchestrator.wait(id, 10)).state.value

        return asyncio.run(working())


@pytest.fixture
def world():
    return World()


@pytest.fixture
def letters(world):
    return DeadLetters(world.engine)


@pytest.fixture
def plane(make_plane, world, letters):
    plane = make_plane()
    plane.add_section(sagas_section(Sagas(world.engine), dead_letters=letters, redact=["card"]))
    return plane


def test_sagas_are_listed_filtered_and_counted(admin, world):
    blocked, pending = world.run(correlation_id="c-1"), world.leave(correlation_id="c-2")
    page = admin.get("/sagas").json()
    assert [one["id"] for one in page["sagas"]] == [pending, blocked]  # the newest first
    assert page["next"] is None
    first = page["sagas"][1]
    assert (first["type"], first["state"], first["step"], first["cause"]) == (
        "order", "compensation_blocked", "charge", "rejected",
    )  # fmt: skip
    assert first["created_at"].endswith("Z")

    def ids(**wanted):
        found = [one["id"] for one in admin.get("/sagas", params=wanted).json()["sagas"]]
        assert admin.get("/sagas/count", params=wanted).json() == {"count": len(found)}
        return found

    assert ids(state="pending") == [pending]
    assert ids(correlation="c-1") == [blocked]
    assert ids(type="payout") == []
    assert ids(attention="true") == [blocked]
    assert ids(attention="false") == [pending]
    assert ids(attention="true", state="running") == []
    assert ids(active="false") == []
    assert ids(step="charge", cause="rejected") == [blocked]
    began = world.engine.clock.time()
    assert ids(until=str(int(began) - 1000)) == []
    assert len(ids(**{"from": str(int(began) - 1000)})) == 2
    assert admin.get("/sagas", params={"state": "lost"}).status_code == 400
    assert admin.get("/sagas", params={"from": "yesterday"}).status_code == 400


def test_pages_are_stable_while_sagas_come(admin, world):
    ids = [world.leave(f"order-{number}") for number in range(5)]
    seen, cursor = [], None
    while True:
        page = admin.get("/sagas", params={"limit": 2, **({"cursor": cursor} if cursor else {})}).json()
        seen += [one["id"] for one in page["sagas"]]
        world.leave(f"late-{len(seen)}")
        if (cursor := page["next"]) is None:
            break
    assert sorted(seen) == ids
    assert admin.get("/sagas", params={"cursor": "nonsense"}).status_code == 400


def test_one_saga_is_shown_whole_and_without_secrets(admin, world, letters):
    id = world.run(correlation_id="c-1")
    event = Event("order.charged", {"order": 7}, source="/orders").changed(sagaid=id)
    error = ValueError("who?")
    asyncio.run(letters.bury(event, consumer="mail", topic="orders", reason="attempts", error=error, attempts=3))
    answer = admin.get(f"/sagas/{id}")
    saga = answer.json()
    assert answer.headers["etag"] == f'"{saga["revision"]}"'
    assert [(step["name"], step["status"]) for step in saga["steps"]] == [
        ("reserve", "done"), ("charge", "undo_failed"), ("ship", "rejected"),
    ]  # fmt: skip
    assert saga["steps"][1]["undo_attempts"] == 1
    happened = [(entry["what"], entry["step"]) for entry in saga["timeline"]]
    assert happened[0] == ("started", None)
    assert happened[-1] == ("blocked", "charge")
    assert ("step_rejected", "ship") in happened
    assert (saga["cause"], saga["failed_step"], saga["version"]) == ("rejected", "ship", 1)
    assert "nobody lives there" in saga["error"]
    (letter,) = saga["dead_letters"]
    assert (letter["event_type"], letter["consumer"], letter["status"]) == ("order.charged", "mail", "pending")
    assert saga["untrusted"]["input"] == {"card": "***", "items": 2}
    assert saga["untrusted"]["results"] == {"reserve": {"shelf": 4}, "charge": {"card": "***"}}
    assert "4111" not in answer.text  # the error of the bank repeats it
    assert "the bank is down for ***" in saga["steps"][1]["error"]


def test_ids_may_be_any_text(admin, world):
    id = world.leave("orders/7 ü?")
    from urllib.parse import quote

    path = f"/sagas/{quote(id, safe='')}"
    assert admin.get(path).json()["id"] == id
    assert admin.post(f"{path}/cancel").json()["state"] == "compensating"


def test_a_late_undo_that_failed_is_found_and_dealt_with_although_the_saga_has_ended(admin, world):
    id = world.late()
    world.leave()
    [found] = admin.get("/sagas", params={"attention": "true"}).json()["sagas"]
    assert (found["id"], found["state"], found["step"], found["attention"]) == (id, "compensated", "charge", True)
    assert admin.get("/sagas/count", params={"attention": "false"}).json() == {"count": 1}
    assert admin.get("/sagas", params={"attention": "true", "state": "running"}).json()["sagas"] == []
    whole = admin.get(f"/sagas/{id}").json()
    assert [action["action"] for action in whole["actions"]] == ["retry-compensation", "mark-done", "skip-step"]
    body = {"step": "charge", "reason": "undone by hand"}
    answer = admin.post(f"/sagas/{id}/mark-done", json=body, headers={"If-Match": f'"{whole["revision"]}"'})
    assert (answer.status_code, answer.json()["state"], answer.json()["attention"]) == (200, "compensated", False)
    assert admin.get("/sagas/count", params={"attention": "true"}).json() == {"count": 0}


def test_what_can_be_done_is_said(admin, world):
    def actions(id):
        return {one["action"]: (one["reason"], one.get("steps")) for one in admin.get(f"/sagas/{id}").json()["actions"]}

    assert actions(world.run()) == {
        "retry-compensation": ("optional", ["charge"]),
        "skip-step": ("required", ["charge"]),
        "mark-done": ("required", ["charge"]),
        "fail": ("required", None),
    }
    assert actions(world.leave()) == {"cancel": ("optional", None)}
    past_its_pivot = actions(world.run(world.payout, "p-1"))
    assert past_its_pivot == {"resume": ("optional", None), "fail": ("required", None)}


def test_a_failed_compensation_is_tried_again(admin, plane, world):
    id = world.run()
    world.bank_is_down = False
    answer = admin.post(f"/sagas/{id}/retry-compensation", json={"step": "charge", "reason": "the bank is back"})
    assert answer.status_code == 200
    assert answer.json()["state"] == "compensating"
    assert answer.headers["etag"] == f'"{answer.json()["revision"]}"'
    assert world.carry_on(id) == "compensated"
    assert world.refunds == 1
    told = [entry for entry in admin.get(f"/sagas/{id}").json()["timeline"] if entry["what"] == "retry"]
    assert [(entry["actor"], entry["detail"]) for entry in told] == [("admin", "the bank is back")]
    entry = plane.audit.entries()[-1].plain()
    assert (entry["action"], entry["type"], entry["name"], entry["who"]) == ("retry-compensation", "saga", id, "admin")
    assert entry["before"] == {"state": "compensation_blocked"}
    assert entry["after"] == {"state": "compensating", "step": "charge", "reason": "the bank is back"}


@pytest.mark.parametrize(("action", "status"), [("skip-step", "undo_skipped"), ("mark-done", "undone")])
def test_a_step_is_skipped_or_marked_with_a_reason(admin, world, action, status):
    id = world.run()
    path = f"/sagas/{id}/{action}"
    for body in (None, {}, {"step": "charge"}, {"step": "charge", "reason": "  "}, {"reason": "by hand"}):
        assert admin.post(path, json=body).status_code == 400
    answer = admin.post(path, json={"step": "charge", "reason": "refunded by hand"})
    assert {step["name"]: step["status"] for step in answer.json()["steps"]}["charge"] == status
    assert world.carry_on(id) == "compensated"
    assert world.refunds == 0


def test_a_saga_is_cancelled_and_cancelling_twice_is_no_error(admin, world):
    id = world.leave()
    assert admin.post(f"/sagas/{id}/cancel").json()["state"] == "compensating"
    assert admin.post(f"/sagas/{id}/cancel", json={"reason": "again"}).status_code == 200
    assert world.carry_on(id) == "compensated"


def test_a_blocked_saga_is_given_up_with_a_reason(admin, world):
    id = world.run()
    assert admin.post(f"/sagas/{id}/fail", json={}).status_code == 400
    saga = admin.post(f"/sagas/{id}/fail", json={"reason": "settled in court"}).json()
    assert (saga["state"], saga["actions"]) == ("failed", [])
    assert saga["timeline"][-1]["detail"] == "settled in court"


def test_a_parked_saga_is_resumed(admin, world):
    async def strand() -> None:
        stranger = Saga[Any, Any, Any]("order", Step("go", lambda context: 1, NOTHING), version=2)
        await Orchestrator(world.engine, stranger).start(stranger, id="s-1")
        async with Orchestrator(world.engine, world.order, poll=0.02, park_after=0) as orchestrator:
            await orchestrator.wait("s-1", 10)

    asyncio.run(strand())
    saga = admin.get("/sagas/s-1").json()
    assert (saga["state"], saga["cause"]) == ("parked", "unknown_definition")
    assert [one["action"] for one in saga["actions"]] == ["resume", "cancel", "fail"]
    resumed = admin.post("/sagas/s-1/resume", json={"reason": "it is deployed now"})
    assert resumed.json()["state"] != "parked"
    assert admin.post("/sagas/s-1/resume").status_code == 409


def test_what_cannot_be_done_is_a_409_and_changes_nothing(admin, world):
    id = world.leave()
    before = admin.get(f"/sagas/{id}").json()["revision"]
    for action in ACTIONS:
        if action == "cancel":
            continue
        body = {"reason": "because"} | ({"step": "charge"} if action in ACTIONS[:3] else {})
        answer = admin.post(f"/sagas/{id}/{action}", json=body)
        assert answer.status_code == 409
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["type"].endswith("illegal-transition")
    assert admin.get(f"/sagas/{id}").json()["revision"] == before
    blocked = world.run()
    nowhere = admin.post(f"/sagas/{blocked}/retry-compensation", json={"step": "nowhere"})
    assert nowhere.status_code == 409
    assert "there is no such step" in nowhere.json()["detail"]


def test_what_is_not_there_is_a_404(admin):
    answers = [admin.get("/sagas/nobody")]
    for action in ACTIONS:
        body = {"reason": "because"} | ({"step": "charge"} if action in ACTIONS[:3] else {})
        answers.append(admin.post(f"/sagas/nobody/{action}", json=body))
        answers.append(admin.post(f"/sagas/nobody/{action}", json=body, headers={"If-Match": '"1"'}))
    for answer in answers:
        assert answer.status_code == 404
        assert answer.json()["type"].endswith("no-such-saga")


def test_a_choreographed_saga_is_seen_and_cancelled_like_any_other(admin, world):
    room = Reaction("room", done="RoomHeld", compensation="FreeRoom", undone="RoomFreed", by="hotel")
    trip = Choreography(
        "trip", room, Reaction("pay", done="Paid", compensation="Refund", undone="Refunded"), starts="TripBooked"
    )

    async def follow(*types: str) -> None:
        orchestrator = Orchestrator(world.engine, trip)
        for type in types:
            await orchestrator.observe(trip.mark(Event(type, {"trip": 1}, source="/trips"), "trip-1"))

    asyncio.run(follow("TripBooked", "RoomHeld"))
    saga = admin.get("/sagas/trip-1").json()
    assert (saga["kind"], saga["state"], saga["untrusted"]["input"]) == ("choreographed", "running", {"trip": 1})
    assert [(step["name"], step["status"]) for step in saga["steps"]] == [("room", "done"), ("pay", "running")]
    assert admin.post("/sagas/trip-1/cancel", json={"reason": "ill"}).json()["state"] == "compensating"


# ------------------------------------------------------------------ two at once


def test_a_stale_revision_changes_nothing(admin, world, plane):
    id = world.run()
    revision = admin.get(f"/sagas/{id}").json()["revision"]
    body = {"step": "charge", "reason": "x"}
    for tag in (f'"{revision - 1}"', f'"{revision + 1}"', "nonsense"):
        answer = admin.post(f"/sagas/{id}/skip-step", json=body, headers={"If-Match": tag})
        assert answer.status_code == 412
        assert answer.json()["type"].endswith("version-conflict")
    assert admin.get(f"/sagas/{id}").json()["revision"] == revision
    assert plane.audit.entries() == []
    assert admin.post(f"/sagas/{id}/skip-step", json=body, headers={"If-Match": f'"{revision}"'}).status_code == 200


def test_of_two_operators_at_once_one_acts_and_the_other_is_told(plane, client_of, world, monkeypatch):
    """Both have read the same revision; the second saves after the first has."""
    id = world.run()
    store = world.engine.sagas
    barrier, load = threading.Barrier(2, timeout=10), store.load
    reads = threading.local()

    async def together(id, *, tx=None):
        row = await load(id, tx=tx)
        reads.count = getattr(reads, "count", 0) + 1
        if reads.count == 2:  # the first is for the audit log, the second is the one that is acted on
            await asyncio.to_thread(barrier.wait)
        return row

    monkeypatch.setattr(store, "load", together)
    seen = {"If-Match": f'"{asyncio.run(load(id)).revision}"'}
    answers = {}

    def act(action):
        client = client_of(plane, "operator")
        answers[action] = client.post(f"/sagas/{id}/{action}", json={"step": "charge", "reason": action}, headers=seen)

    threads = [threading.Thread(target=act, args=(action,)) for action in ("retry-compensation", "skip-step")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    monkeypatch.undo()
    assert sorted(answer.status_code for answer in answers.values()) == [200, 412]
    (done,) = [action for action, answer in answers.items() if answer.status_code == 200]
    timeline = asyncio.run(Sagas(world.engine).timeline(id))
    assert [entry.detail for entry in timeline if entry.actor == "operator"] == [done]
    assert [entry.action for entry in plane.audit.entries()] == [done]


# ------------------------------------------------------------------ who may


def test_every_route_per_role(plane, client_of, world):
    blocked, pending = world.run(), world.leave()
    reads = ["/sagas", "/sagas/count", f"/sagas/{blocked}"]
    for role, status in ((None, 401), ("viewer", 200), ("operator", 200), ("admin", 200)):
        for path in reads:
            assert client_of(plane, role).get(path).status_code == status
    for action in ACTIONS:
        id = pending if action == "cancel" else blocked
        body = {"reason": "because"} | ({"step": "charge"} if action in ACTIONS[:3] else {})
        for role, status in ((None, 401), ("viewer", 403)):
            assert client_of(plane, role).post(f"/sagas/{id}/{action}", json=body).status_code == status
        assert client_of(plane, "operator").post(f"/sagas/{id}/{action}", json=body).status_code in (200, 409)
    assert plane.audit.entries()[0].who == "operator"


def test_a_plane_without_control_has_only_the_looking(make_plane, client_of, world):
    plane = make_plane(enable_control=False)
    plane.add_section(sagas_section(world.engine))
    client = client_of(plane)
    id = world.leave()
    assert client.get(f"/sagas/{id}").status_code == 200
    assert client.post(f"/sagas/{id}/cancel").status_code == 405


def test_a_section_is_made_of_an_orchestrator_a_service_or_an_engine(make_plane, client_of, world):
    id = world.leave()
    for where in (world.engine, Sagas(world.engine), Orchestrator(world.engine, world.order)):
        plane = make_plane()
        plane.add_section(sagas_section(where))
        assert client_of(plane).get(f"/sagas/{id}").json()["dead_letters"] is None
        assert (
            client_of(plane).get("/openapi.json").json()["paths"]["/sagas/{name}/cancel"]["post"]["x-role"]
            == "operator"
        )
    with pytest.raises(ConfigError, match="must be an Orchestrator"):
        sagas_section("order")


@pytest.mark.asyncio
async def test_a_saga_in_this_process_hands_turns_back_at_once(make_plane, world, secrets):
    import httpx2

    begun = asyncio.Event()

    async def slow(context: Any) -> None:
        begun.set()
        await asyncio.sleep(60)

    saga: Saga[Any, Any, Any] = Saga("slow", Step("wait", slow, NOTHING))
    async with Orchestrator(world.engine, saga) as orchestrator:
        plane = make_plane()
        plane.add_section(sagas_section(orchestrator))
        handle = await orchestrator.start(saga, id="slow-1")
        await begun.wait()
        headers = {"Authorization": f"Bearer {secrets['operator']}"}
        transport = httpx2.ASGITransport(app=plane)
        async with httpx2.AsyncClient(transport=transport, base_url="http://plane/everkeel", headers=headers) as client:
            answer = await client.post("/sagas/slow-1/cancel", json={"reason": "too slow"})
        assert answer.status_code == 200
        with pytest.raises(SagaCompensatedError):
            await handle.result(10)


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


def test_sagas_on_the_command_line(run, world):
    assert run("saga") == (0, "no sagas\n", "")
    blocked, pending = world.run(), world.leave("order-9")
    code, out, _ = run("saga", "list")
    assert code == 0
    lines = out.splitlines()
    assert lines[1].startswith("compensation_blocked  order  order-7")  # older, and first: it needs somebody
    assert "pending" in run("saga", "--state", "pending")[1]
    assert run("saga", "--type", "payout")[1] == "no sagas fit\n"
    assert run("saga", "count", "--state", "pending")[1] == "1\n"
    shown = run("saga", "show", blocked)[1]
    assert "order order-7: compensation_blocked (rejected)" in shown
    assert "undo_failed" in shown
    assert "the bank is down for ***" in shown
    assert "4111" not in shown
    assert "\x1b" not in shown  # what others wrote does nothing to a terminal
    assert "everkeel saga retry-compensation order-7 charge\n" in shown
    assert "everkeel saga fail order-7 --reason ..." in shown
    whole = json.loads(run("saga", "show", blocked, "--json")[1])
    assert whole["steps"][1]["name"] == "charge"
    assert run("saga", "cancel", pending)[1].endswith(": compensating\n")
    assert run("saga", "show", "nobody")[::2] == (1, "everkeel: there is no saga 'nobody'\n")


def test_a_late_undo_that_failed_is_on_the_command_line(run, world):
    id = world.late()
    world.leave()
    lines = run("saga", "--attention")[1].splitlines()
    assert [line.split("  ")[0] for line in lines] == ["STATE", "compensated, undo failed"]
    assert run("saga", "count", "--attention")[1] == "1\n"
    assert f"order {id}: compensated, undo failed (cancelled)" in run("saga", "show", id)[1]
    assert run("saga", "skip-step", id, "charge", "--reason", "agreed")[1] == f"{id}: compensated\n"
    assert run("saga", "--attention")[1] == "no sagas fit\n"


def test_operators_act_on_the_command_line(run, world):
    id = world.run()
    assert run("saga", "skip-step", id, "charge")[0] == 2
    assert run("saga", "retry-compensation", id)[0] == 2
    assert run("saga", "cancel", id, "charge")[0] == 2
    assert run("saga", "fail", id)[0] == 2
    assert run("saga", "resume", id)[0] == 1
    assert run("saga", "retry-compensation", id, "charge", "--revision", "1")[0] == 1
    world.bank_is_down = False
    assert run("saga", "retry-compensation", id, "charge", "--reason", "it is back")[1] == f"{id}: compensating\n"
    assert world.carry_on(id) == "compensated"
    world.bank_is_down = True
    for number, action in enumerate(("skip-step", "mark-done")):
        other = world.run(id=f"other-{number}")
        answer = json.loads(run("saga", action, other, "charge", "--reason", "by hand", "--json")[1])
        assert answer["state"] == "compensating"
    last = world.run(id="last")
    assert run("saga", "fail", last, "--reason", "settled")[1] == "last: failed\n"
