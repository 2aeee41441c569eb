"""Settings over HTTP: validated, all or none, and one of two writers loses; the audit log, and the way back."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextlib import suppress

import httpx2
import pytest

from everkeel import Retry, bulkhead, circuit_breaker, retry
from everkeel.control import configuration
from everkeel.engines import MemoryEngine
from everkeel.messaging import Outbox


def test_settings_are_shown_with_their_version(admin, fetch):
    answer = admin.get("/config/retry/fetch")
    body = answer.json()
    assert (body["type"], body["name"], body["settings"]["attempts"]) == ("retry", "fetch", 3)
    assert answer.headers["etag"] == f'"{body["version"]}"'


def test_all_settings_are_listed_and_filtered(admin, fetch, payments):
    assert len(admin.get("/config").json()["policies"]) == 2
    (one,) = admin.get("/config", params={"name": "pay*"}).json()["policies"]
    assert one["settings"]["failure_rate"] == 0.5


def test_a_change_names_what_it_changes_and_keeps_the_rest_and_the_state(admin, payments):
    payments.force_open()
    answer = admin.put("/config/circuit_breaker/payments", json={"failure_rate": 0.8, "probes": 5})
    assert answer.status_code == 200
    assert (payments.config.failure_rate, payments.config.probes, payments.config.window) == (0.8, 5, 10)
    assert payments.snapshot()["state"] == "open"
    assert answer.headers["etag"] != ""


@pytest.mark.parametrize(
    ("settings", "pointer", "words"),
    [
        ({"attempts": 0}, "/attempts", "attempts must be at least 1"),
        ({"attempts": 5, "max_duration": -1}, "/max_duration", "more than 0 seconds"),
        ({"attempts": 5, "tries": 1}, "/tries", "is no setting of retry"),
        ({"attempts": 5, "name": "x"}, None, "no setting 'name'"),
        ({"attempts": 5, "policy_type": "x", "self": 1}, None, "no setting"),
        ({"attempts": "many"}, "/attempts", "whole number"),
        ({"attempts": 5, "mode": "on"}, "/mode", "'enforce' or 'shadow' or 'off'"),
    ],
)
def test_one_wrong_setting_and_none_is_changed(admin, fetch, settings, pointer, words):
    before = fetch.config
    answer = admin.put("/config/retry/fetch", json=settings)
    assert answer.status_code == 422
    assert words in answer.json()["detail"]
    assert answer.json()["errors"][0].get("pointer") == pointer
    assert fetch.config is before
    assert admin.get("/audit").json()["entries"] == []


def test_of_two_writers_with_the_same_version_one_is_told_to_read_again(plane, fetch, secrets, monkeypatch):
    """Both have read the same version; whoever has been found right waits for the other to be found right as well.

    Nobody comes where one change is made at a time, so that the wait ends by itself.
    """
    found_right = threading.Barrier(2)
    must_be_in = configuration._must_be_in

    def together(*args):
        must_be_in(*args)
        with suppress(threading.BrokenBarrierError):
            found_right.wait(0.3)

    monkeypatch.setattr(configuration, "_must_be_in", together)

    async def both() -> list[httpx2.Response]:
        headers = {"Authorization": f"Bearer {secrets['admin']}"}
        transport = httpx2.ASGITransport(app=plane)
        async with httpx2.AsyncClient(transport=transport, base_url="http://t/everkeel", headers=headers) as client:
            tag = (await client.get("/config/retry/fetch")).headers["etag"]
            return await asyncio.gather(
                *(client.put("/config/retry/fetch", json={"attempts": n}, headers={"If-Match": tag}) for n in (5, 7))
            )

    answers = asyncio.run(both())
    assert sorted(one.status_code for one in answers) == [200, 412]
    (won,) = [one for one in answers if one.status_code == 200]
    (lost,) = [one for one in answers if one.status_code == 412]
    assert fetch.config.attempts == won.json()["settings"]["attempts"]
    assert lost.headers["etag"] == won.headers["etag"]
    assert len(plane.audit.entries()) == 1


def test_if_match_takes_a_star_a_list_and_a_bare_version(admin, fetch):
    version = admin.get("/config/retry/fetch").json()["version"]
    for attempts, tag in ((4, version), (5, "*"), (3, f'"x", "{version}"')):
        if attempts == 3:
            admin.put("/config/retry/fetch", json={"attempts": 3})
        answer = admin.put("/config/retry/fetch", json={"attempts": attempts}, headers={"If-Match": tag})
        assert answer.status_code == 200
    assert admin.put("/config/retry/fetch", json={"attempts": 9}, headers={"If-Match": '"x"'}).status_code == 412


def test_a_name_may_have_slashes_and_anything_else(admin):
    names = ["orders/v2/fetch", "ünï cödé", "a.<locals>.b#2", "x/enable", "100%"]
    kept = [retry(name) for name in names]
    for policy in kept:
        from urllib.parse import quote

        for path in (quote(policy.name, safe=""), quote(policy.name)):
            assert admin.put(f"/config/retry/{path}", json={"attempts": 4}).status_code == 200
            assert admin.get(f"/policies/retry/{path}").json()["name"] == policy.name
            assert admin.post(f"/control/retry/{path}/shadow").json()["mode"] == "shadow"


@pytest.mark.parametrize("path", ["/config/retry/nobody", "/config/nothing/fetch", "/policies/retry/", "/nothing"])
def test_what_is_not_there_is_a_problem(admin, fetch, path):
    answer = admin.get(path)
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"


# ------------------------------------------------------------------ the audit log


def test_the_audit_log_says_who_changed_what_from_what_to_what(plane, client_of, fetch, payments, caplog):
    caplog.set_level(logging.INFO, "everkeel.control.audit")
    admin, operator = client_of(plane), client_of(plane, "operator")
    admin.put("/config/retry/fetch", json={"attempts": 5})
    operator.post("/control/circuit_breaker/payments/force_open")
    second, first = admin.get("/audit").json()["entries"]
    assert (first["who"], first["action"], first["type"], first["name"]) == ("admin", "config", "retry", "fetch")
    assert (first["before"], first["after"], first["can_roll_back"]) == ({"attempts": 3}, {"attempts": 5}, True)
    assert (second["who"], second["action"]) == ("operator", "force_open")
    assert (second["before"], second["after"]) == ({"state": "closed"}, {"state": "open"})
    assert "admin: config on retry 'fetch': {'attempts': 3} -> {'attempts': 5}" in caplog.text
    assert [one["who"] for one in admin.get("/audit", params={"who": "operator"}).json()["entries"]] == ["operator"]


def test_the_application_hears_of_every_change_and_may_fail_at_it(make_plane, client_of, fetch, caplog):
    heard = []

    def keep(entry):
        heard.append(entry)
        raise OSError("disk full")

    client = client_of(make_plane(on_audit=keep))
    assert client.put("/config/retry/fetch", json={"attempts": 5}).status_code == 200
    assert heard[0]["after"] == {"attempts": 5}
    assert "on_audit raised" in caplog.text


def test_the_audit_log_is_bounded(plane, admin, fetch):
    for _ in range(1005):
        plane.audit.record(0.0, "x", "config", "retry", "fetch", {}, {})
    entries = admin.get("/audit", params={"limit": 1000}).json()["entries"]
    assert (len(entries), entries[0]["id"], entries[-1]["id"]) == (1000, 1005, 6)
    assert admin.post("/audit/1/rollback").status_code == 404


def test_a_change_can_be_taken_back_and_that_too(admin, fetch):
    admin.put("/config/retry/fetch", json={"attempts": 5, "max_duration": 9})
    undone = admin.post("/audit/1/rollback").json()
    assert (fetch.config.attempts, fetch.config.max_duration) == (3, None)
    assert undone["action"] == "rollback of 1"
    admin.post(f"/audit/{undone['id']}/rollback")
    assert (fetch.config.attempts, fetch.config.max_duration) == (5, 9)


def test_a_setting_that_json_cannot_say_comes_back_as_it_was(admin):
    policy = retry("fetch", backoff=lambda attempt: 7.0)
    backoff = policy.config.backoff
    admin.put("/config/retry/fetch", json={"backoff": 1})
    assert policy.config.backoff is not backoff
    assert admin.post("/audit/1/rollback").status_code == 200
    assert policy.config.backoff is backoff


def test_a_change_on_top_of_it_is_not_overwritten_by_accident(admin, fetch):
    admin.put("/config/retry/fetch", json={"attempts": 5})
    admin.put("/config/retry/fetch", json={"attempts": 8})
    refused = admin.post("/audit/1/rollback")
    assert (refused.status_code, fetch.config.attempts) == (409, 8)
    assert admin.post("/audit/1/rollback", json={"force": True}).status_code == 200
    assert fetch.config.attempts == 3


@pytest.mark.parametrize("number", ["0", "99", "x", "-1", "٣", "9" * 50])
def test_an_entry_that_is_not_there_cannot_be_taken_back(admin, number):
    assert admin.post(f"/audit/{number}/rollback").status_code == 404


def test_what_changed_no_settings_cannot_be_taken_back(admin, payments):
    admin.post("/control/circuit_breaker/payments/force_open")
    assert admin.post("/audit/1/rollback").status_code == 409


def test_a_policy_that_is_gone_cannot_be_changed_back(admin):
    policy = bulkhead(3, "gone")
    admin.put("/config/bulkhead/gone", json={"limit": 5})
    from everkeel import registry

    registry.remove("bulkhead", "gone")
    assert admin.post("/audit/1/rollback").status_code == 404
    assert policy.config.limit == 5


def test_what_is_not_changed_through_it_is_shown_as_it_is(admin):
    policy = circuit_breaker("payments")
    before = admin.get("/config/circuit_breaker/payments").json()["version"]
    policy.reconfigure(probes=9)
    after = admin.get("/config/circuit_breaker/payments").json()
    assert (after["settings"]["probes"], after["version"] != before) == (9, True)


def test_values_are_what_a_file_would_say(admin, fetch):
    settings = {"max_duration": "500ms", "on": ["ConnectionError", "TimeoutError"], "backoff": {"constant": 2}}
    answer = admin.put("/config/retry/fetch", json=settings)
    assert (fetch.config.max_duration, fetch.config.on) == (0.5, (ConnectionError, TimeoutError))
    assert answer.json()["settings"]["on"] == ["ConnectionError", "TimeoutError"]
    assert answer.json()["sources"]["on"] == "live"
    assert answer.json()["sources"]["attempts"] == "default"


def test_nothing_can_be_imported_or_called_over_http(admin, fetch):
    import sys

    for settings in ({"on": "antigravity.Error"}, {"on_result": {"function": "os.system"}}, {"on_result": "os.system"}):
        assert admin.put("/config/retry/fetch", json=settings).status_code == 422
    assert "antigravity" not in sys.modules
    assert fetch.config.on_result is None


def test_a_change_is_a_version_of_the_configuration_and_holds_for_a_successor(admin, fetch):
    from everkeel import config

    admin.put("/config/retry/fetch", json={"attempts": 6})
    assert [one.cause for one in config.current().history()] == ["change"]
    assert retry("fetch", replace=True).config.attempts == 6


def test_a_change_reaches_that_policy_and_nobody_below_its_name(admin):
    above, below = retry("orders"), retry("orders.fetch")
    assert admin.put("/config/retry/orders", json={"attempts": 9, "max_duration": "2s"}).status_code == 200
    assert admin.post("/control/retry/orders/disable").status_code == 200
    assert (above.config.attempts, above.config.max_duration, above.mode) == (9, 2.0, "off")
    assert (below.config.attempts, below.config.max_duration, below.mode) == (3, None, "enforce")
    assert admin.put("/config/retry/orders", json={"max_duration": "soon"}).status_code == 422


# ------------------------------------------------------------------ several at once


def test_several_policies_are_changed_at_once_and_each_can_be_taken_back(admin, fetch, payments):
    body = {"retry": {"fetch": {"attempts": 6}}, "circuit_breaker": {"payments": {"probes": 7, "open_for": "5s"}}}
    tag = admin.get("/config").headers["etag"]
    answer = admin.put("/config", json=body, headers={"If-Match": tag})
    assert [one["name"] for one in answer.json()["policies"]] == ["fetch", "payments"]
    assert (fetch.config.attempts, payments.config.probes) == (6, 7)
    assert admin.put("/config", json=body, headers={"If-Match": tag}).status_code == 412
    assert [one["name"] for one in admin.get("/audit").json()["entries"]] == ["payments", "fetch"]
    assert admin.post("/audit/1/rollback").status_code == 200
    assert (fetch.config.attempts, payments.config.probes) == (3, 7)


@pytest.mark.parametrize(
    ("second", "status"),
    [
        ({"circuit_breaker": {"payments": {"probes": 0}}}, 422),
        ({"circuit_breaker": {"nobody": {"probes": 1}}}, 404),
        ({"circuit_breaker": {"payments": {}}}, 400),
        ({"circuit_breaker": []}, 400),
    ],
)
def test_where_one_of_several_is_wrong_none_is_changed(admin, fetch, payments, second, status):
    before = admin.get("/config").headers["etag"]
    answer = admin.put("/config", json={"retry": {"fetch": {"attempts": 6, "backoff": 1}}, **second})
    assert answer.status_code == status
    assert admin.get("/config").headers["etag"] == before
    assert admin.get("/audit").json()["entries"] == []


def test_enabled_is_another_word_for_the_mode(admin):
    above, below = retry("orders"), retry("orders.fetch")
    for name, policy in (("orders", above), ("orders.fetch", below)):
        assert admin.put(f"/config/retry/{name}", json={"enabled": False}).json()["settings"]["mode"] == "off"
        assert policy.mode == "off"


def test_a_policy_of_a_type_of_the_applications_own_is_changed_too(admin):
    class Patience(Retry):
        type = "patience"

    policy = Patience("fetch", retry(attempts=3).config)
    assert admin.put("/config/patience/fetch", json={"attempts": 5, "max_duration": "2s"}).status_code == 200
    assert admin.post("/control/patience/fetch/shadow").status_code == 200
    assert (policy.config.attempts, policy.config.max_duration, policy.mode) == (5, 2.0, "shadow")
    assert admin.post("/audit/1/rollback").status_code == 200
    assert policy.config.attempts == 3


def test_outboxes_relays_and_consumers_are_changed_in_the_same_way_and_taken_back(admin, fetch):
    outbox = Outbox(MemoryEngine(), name="orders")
    relays = [outbox.relay(), outbox.relay()]
    listed = admin.get("/config", params={"name": "orders"}).json()["policies"]
    assert [(one["type"], one["name"]) for one in listed] == [("outbox", "orders"), ("relay", "orders")]
    assert admin.get("/config", params={"mode": "off"}).json()["policies"] == []

    answer = admin.put("/config/relay/orders", json={"enabled": False, "poll": "250ms"})
    assert (answer.status_code, answer.json()["settings"]["poll"]) == (200, 0.25)
    assert [(one.paused, one.config.poll) for one in relays] == [(True, 0.25)] * 2
    assert admin.put("/config/relay/orders", json={"mode": "shadow"}).status_code == 422
    assert admin.put("/config", json={"outbox": {"orders": {"max_size": 9}}}).status_code == 200
    assert outbox.config.max_size == 9

    (entry,) = admin.get("/audit", params={"type": "relay"}).json()["entries"]
    assert admin.post(f"/audit/{entry['id']}/rollback").status_code == 200
    assert [(one.paused, one.config.poll) for one in relays] == [(False, 1.0)] * 2
    assert admin.get("/config/relay/nobody").status_code == 404
