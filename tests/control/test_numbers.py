"""Metrics, resets and snapshots over HTTP, also of very many policies."""

from __future__ import annotations

import asyncio
import time

import pytest

from everkeel import circuit_breaker, rate_limit, registry, retry


def test_the_numbers_of_one_policy_say_when_they_last_changed(admin, fetch, virtual_time):
    first = admin.get("/metrics/retry/fetch").json()
    assert set(first) == {"type", "name", "metrics", "last_updated", "timestamp"}
    virtual_time.advance(10)
    fetch.call(int)
    changed = admin.get("/metrics/retry/fetch").json()
    virtual_time.advance(10)
    quiet = admin.get("/metrics/retry/fetch").json()
    assert changed["metrics"]["success"] == 1
    assert first["last_updated"] < changed["last_updated"] == quiet["last_updated"] < quiet["timestamp"]


def test_the_numbers_of_all_policies_are_filtered(admin, fetch, payments):
    assert {one["type"] for one in admin.get("/metrics").json()["policies"]} == {"retry", "circuit_breaker"}
    (one,) = admin.get("/metrics", params={"type": "retry"}).json()["policies"]
    assert one["name"] == "fetch"


def test_a_reset_touches_neither_the_state_nor_what_exporters_count(plane, client_of, payments):
    operator = client_of(plane, "operator")
    payments.call(int)
    payments.force_open()
    answer = operator.delete("/metrics/circuit_breaker/payments").json()
    assert (answer["metrics"]["success"], answer["metrics"]["state"]) == (0, "open")
    assert (payments.snapshot()["success"], payments.snapshot()["state"]) == (1, "open")
    payments.reset()
    payments.call(int)
    assert operator.get("/metrics/circuit_breaker/payments").json()["metrics"]["success"] == 1
    (entry,) = operator.get("/audit").json()["entries"]
    assert (entry["action"], entry["before"]["success"]) == ("reset_metrics", 1)


def test_a_snapshot_gives_everything_and_then_only_what_changed(admin, virtual_time):
    policies = [retry(f"p{number}") for number in range(1000)]
    whole = admin.get("/snapshot").json()
    assert (whole["complete"], len(whole["policies"])) == (True, 1000)
    virtual_time.advance(1)
    for _ in range(5):
        policies[17].call(int)
    registry.remove("retry", "p500")
    news = admin.get("/snapshot", params={"since": whole["version"]}).json()
    assert news["complete"] is False
    assert [(one["name"], one["rates"]["success"]) for one in news["policies"]] == [("p17", 5.0)]
    assert news["gone"] == [{"type": "retry", "name": "p500"}]
    virtual_time.advance(0.3)
    quiet = admin.get("/snapshot", params={"since": news["version"]}).json()
    assert (quiet["policies"], quiet["gone"]) == ([], [])


def test_a_version_of_another_process_gets_everything(admin, fetch):
    answer = admin.get("/snapshot", params={"since": 10**9}).json()
    assert (answer["complete"], len(answer["policies"])) == (True, 1)


def test_a_policy_that_cannot_be_read_does_not_spoil_the_others(admin, fetch, monkeypatch, caplog):
    broken = rate_limit(5, "broken")

    def snapshot(self):
        raise ZeroDivisionError

    monkeypatch.setattr(type(broken), "snapshot", snapshot)
    assert [one["name"] for one in admin.get("/snapshot").json()["policies"]] == ["fetch"]
    assert admin.get("/metrics/rate_limit/broken").status_code == 500
    assert "its snapshot could not be read" in caplog.text


def test_numbers_that_json_does_not_have_are_null(admin, monkeypatch):
    policy = circuit_breaker("odd")
    monkeypatch.setattr(
        type(policy.state), "details", lambda self: {"state": "closed", "x": float("inf"), "y": {1: object}}
    )
    metrics = admin.get("/metrics/circuit_breaker/odd").json()["metrics"]
    assert metrics["x"] is None
    assert metrics["y"]["1"] == "<class 'object'>"


@pytest.mark.parametrize("path", ["/snapshot", "/metrics", "/config"])
def test_reading_a_thousand_policies_lets_others_run_in_between(plane, path, secrets):
    """The turns of the event loop during one request are counted, not timed."""
    policies = [circuit_breaker(f"p{number}") for number in range(1000)]
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def ask() -> int:
        import httpx2

        headers = {"Authorization": f"Bearer {secrets['viewer']}"}
        other = asyncio.ensure_future(count())
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=plane), headers=headers) as client:
            answer = await client.get(f"http://t/everkeel{path}")
        other.cancel()
        return answer.status_code

    assert asyncio.run(ask()) == 200
    assert turns >= 1000 / 50
    assert len(policies) == 1000


def test_nothing_that_is_asked_blocks_the_event_loop(plane, secrets, fetch, payments):
    """`blockbuster` makes a blocking call on the event loop an error, which would be a 500 here."""
    from blockbuster import blockbuster_ctx

    def slow(request) -> None:
        time.sleep(0.001)

    plane.admission._authenticate = slow

    async def ask() -> list[int]:
        import httpx2

        headers = {"Authorization": f"Bearer {secrets['admin']}"}
        found = []
        async with httpx2.AsyncClient(
            transport=httpx2.ASGITransport(app=plane), base_url="http://t/everkeel"
        ) as client:
            await client.get("/liveness")  # what httpx2 itself reads from disk at first
            with blockbuster_ctx():
                for path in ("/health", "/policies", "/config", "/snapshot", "/metrics", "/audit", "/openapi.json"):
                    found.append((await client.get(path, headers=headers)).status_code)
                    found.append((await client.get(path)).status_code)
                put = client.put("/config/retry/fetch", json={"attempts": 5}, headers=headers)
                found.append((await put).status_code)
                act = client.post("/control/circuit_breaker/payments/force_open", headers=headers)
                found.append((await act).status_code)
        return found

    assert asyncio.run(ask()) == [200, 401] * 7 + [200, 200]
