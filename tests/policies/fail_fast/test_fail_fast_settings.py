"""What a fail fast may be set to, its modes, live changes, keys, blocks, and what everybody sees of it."""

from __future__ import annotations

import pickle
from datetime import timedelta
from typing import Any

import pytest

import everkeel
from everkeel import (
    ConfigError,
    FailFastError,
    events,
    explain,
    fail_fast,
    guard,
    pipeline,
    policies_of,
    registry,
    retry,
)
from everkeel.testing import Flaky

REFUSED = ConnectionError("refused")
pytestmark = pytest.mark.usefixtures("clock")


def failing(call: Any, times: int) -> None:
    for _ in range(times):
        with pytest.raises(ConnectionError):
            call()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"failures": 0}, "failures must be at least 1, or None (only the check opens it) (got 0)"),
        (
            {"failures": 1.5},
            "failures must be a whole number of at least 1, or None (only the check opens it) (got 1.5)",
        ),
        ({"failures": None}, "failures must be set, unless check says when to open (got None)"),
        ({"check": 1}, "check must be a function that answers whether all is well, or None (no check) (got 1)"),
        ({"check_every": 0}, "check_every must be more than 0 seconds (got 0)"),
        (
            {"open_for": "30s"},
            "open_for must be seconds as a number, or a timedelta, or None (until it is reset, or the check passes) "
            "(got '30s')",
        ),
        ({"on": 1}, "on must be exception classes or predicates on an exception, not 1 (got 1)"),
        (
            {"ignore": "x"},
            "ignore must be exception classes or predicates on an exception, not 'x', or None (nothing) (got 'x')",
        ),
        ({"on_result": 1}, "on_result must be a function of the result, or None (every result is fine) (got 1)"),
        ({"causes": 1}, "causes must be True or False (got 1)"),
        ({"key": 1}, "key must be a function of the call's arguments (got 1)"),
        ({"key": str, "max_keys": 0}, "max_keys must be a whole number of at least 1 (got 0)"),
        ({"mode": "on"}, "mode must be 'enforce' or 'shadow' or 'off' (got 'on')"),
    ],
)
def test_a_wrong_setting_says_whose_it_is_what_it_got_and_what_it_allows(settings, message):
    with pytest.raises(ConfigError) as raised:
        fail_fast("ledger", **settings)
    assert str(raised.value) == f"fail fast 'ledger': {message}"


def test_without_parentheses_it_says_so():
    with pytest.raises(ConfigError) as raised:
        fail_fast(lambda: None)  # type: ignore[arg-type]
    assert str(raised.value) == "fail fast: is used with parentheses: @fail_fast()"


def test_times_may_be_timedeltas():
    config = fail_fast(check=lambda: True, check_every=timedelta(minutes=1), open_for=timedelta(hours=1)).config
    assert (config.check_every, config.open_for) == (60.0, 3600.0)


# ------------------------------------------------------------------ modes


def test_a_shadow_counts_what_it_would_have_rejected_and_touches_nothing(guarded, heard):
    policy, fetch = fail_fast("ledger", failures=2, mode="shadow"), Flaky(REFUSED)
    failing(guarded(policy, fetch), 5)
    snapshot = policy.snapshot()
    assert (snapshot["would"], snapshot["rejected"], snapshot["state"], fetch.calls) == ({"reject": 3}, 0, "open", 5)
    assert [event.action for event in heard.of(events.WouldHave)] == ["reject"] * 3
    assert not heard.of(events.CallRejected)


def test_a_shadow_asks_the_check_too(guarded, clock):
    healthy = [False]

    async def acheck() -> bool:
        return healthy[0]

    policy = fail_fast("ledger", check=acheck if guarded.awaited else lambda: healthy[0], mode="shadow")
    call = guarded(policy, Flaky("ok"))
    call()
    healthy[0] = True
    clock.advance(5)
    call()
    assert (policy.snapshot()["would"], policy.snapshot()["state"]) == ({"reject": 1}, "closed")


def test_off_does_nothing_at_all(guarded):
    policy = fail_fast("ledger", failures=1, mode="off")
    failing(guarded(policy, Flaky(REFUSED)), 3)
    assert policy.snapshot()["failure"] == 0


def test_a_disabled_everkeel_lets_everything_pass(guarded):
    policy = fail_fast("ledger", failures=1)
    call = guarded(policy, Flaky(REFUSED))
    failing(call, 1)
    everkeel.disable()
    failing(call, 1)
    everkeel.enable()
    with pytest.raises(FailFastError):
        call()


# ------------------------------------------------------------------ live changes


def test_a_change_keeps_what_was_seen(guarded):
    policy = fail_fast("ledger", failures=5)
    call = guarded(policy, Flaky(REFUSED))
    failing(call, 2)
    policy.reconfigure(failures=3)
    failing(call, 1)
    with pytest.raises(FailFastError):
        call()


def test_a_change_of_open_for_applies_to_what_is_open(guarded, clock):
    policy = fail_fast("ledger", failures=1)
    call = guarded(policy, Flaky(REFUSED, "ok"))
    failing(call, 1)
    clock.advance(60)
    policy.reconfigure(open_for=61)
    with pytest.raises(FailFastError) as raised:
        call()
    assert raised.value.retry_after == 1
    clock.advance(1)
    assert call() == "ok"


def test_a_check_that_is_set_later_is_asked_by_the_next_call(guarded):
    async def acheck() -> bool:
        return False

    policy = fail_fast("ledger")
    call = guarded(policy, Flaky("ok"))
    call()
    policy.reconfigure(check=acheck if guarded.awaited else lambda: False)
    with pytest.raises(FailFastError):
        call()


def test_a_shorter_check_every_applies_at_once(guarded, clock):
    asked = Flaky(True)

    async def acheck() -> object:
        return asked()

    policy = fail_fast("ledger", check=acheck if guarded.awaited else asked, check_every=3600)
    call = guarded(policy, Flaky("ok"))
    call()
    policy.reconfigure(check_every=1)
    clock.advance(1)
    call()
    assert asked.calls == 2


def test_a_derived_one_has_a_state_of_its_own(guarded):
    first = fail_fast("ledger", failures=1)
    first.force_open()
    second = first.derive("other", failures=2)
    call = guarded(second, Flaky(REFUSED))
    failing(call, 2)
    with pytest.raises(FailFastError):
        call()


def test_starting_over_forgets_everything(guarded):
    policy = fail_fast("ledger", failures=1)
    call = guarded(policy, Flaky(REFUSED, "ok"))
    failing(call, 1)
    policy.start_over()
    assert call() == "ok"
    snapshot = policy.snapshot()
    assert (snapshot["opened"], snapshot["failure"], snapshot["success"]) == (0, 0, 1)


# ------------------------------------------------------------------ keys


def test_each_key_is_on_its_own(guarded):
    def charge(tenant: str) -> str:
        if tenant == "bad":
            raise REFUSED
        return tenant

    policy = fail_fast("ledger", failures=1, key=lambda tenant: tenant)
    call = guarded(policy, charge)
    failing(lambda: call("bad"), 1)
    with pytest.raises(FailFastError):
        call("bad")
    assert call("good") == "good"
    assert policy.snapshot()["states"] == {"closed": 1, "open": 1}  # type: ignore[typeddict-item]
    policy.reset(key="bad")
    failing(lambda: call("bad"), 1)


def test_a_key_is_forgotten_only_when_that_changes_nothing(guarded, clock):
    def charge(tenant: str) -> str:
        if tenant.startswith("bad"):
            raise REFUSED
        return tenant

    policy = fail_fast("ledger", failures=2, key=lambda tenant: tenant, max_keys=2)
    call = guarded(policy, charge)
    failing(lambda: call("bad"), 1)
    for number in range(5):
        call(f"good{number}")
    failing(lambda: call("bad"), 1)
    with pytest.raises(FailFastError):
        call("bad")


# ------------------------------------------------------------------ blocks


def test_a_block_counts_and_is_rejected():
    policy = fail_fast("ledger", failures=1)
    with pytest.raises(ConnectionError), policy:
        raise REFUSED
    with pytest.raises(FailFastError), policy:
        pytest.fail("the block was entered")


def test_an_async_block_asks_an_async_check(clock):
    async def check() -> bool:
        return False

    async def main() -> None:
        with pytest.raises(FailFastError):
            async with fail_fast("ledger", check=check):
                pytest.fail("the block was entered")

    clock.run(main)


def test_an_entry_reports_its_result():
    policy = fail_fast("ledger", failures=1, on_result=lambda answer: answer == "revoked")
    with policy.entry() as entry:
        entry.result("revoked")
    assert policy.snapshot()["state"] == "open"


def test_an_entry_of_a_key_is_that_key_s():
    policy = fail_fast("ledger", failures=1, key=lambda tenant: tenant)
    with pytest.raises(ConnectionError), policy.entry(key="bad"):
        raise REFUSED
    with policy.entry(key="good"):
        pass
    with pytest.raises(FailFastError), policy.entry(key="bad"):
        pytest.fail("the block was entered")


# ------------------------------------------------------------------ being seen


def test_its_snapshot_says_everything(guarded):
    policy = fail_fast("ledger", failures=2)
    call = guarded(policy, Flaky("ok", "ok", REFUSED, REFUSED))
    call(), call()
    failing(call, 2)
    with pytest.raises(FailFastError):
        call()
    assert policy.snapshot() == {
        "name": "ledger",
        "type": "fail_fast",
        "mode": "enforce",
        "success": 2,
        "failure": 2,
        "ignored": 0,
        "rejected": 1,
        "would": {},
        "state": "open",
        "reason": "2 failures in a row: ConnectionError: refused",
        "in_a_row": 0,
        "retry_after": None,
        "opened": 1,
        "checks": 0,
        "check_failed": 0,
    }


def test_its_events_tell_what_opened_and_what_closed_it(guarded, heard):
    policy = fail_fast("ledger", failures=1, open_for=30)
    call = guarded(policy, Flaky(REFUSED, "ok"))
    failing(call, 1)
    with pytest.raises(FailFastError):
        call()
    policy.reset()
    assert heard.of(events.FailFastOpened) == [
        events.FailFastOpened(
            policy="ledger",
            policy_type="fail_fast",
            reason="1 failure: ConnectionError: refused",
            open_for=30.0,
            error=REFUSED,
        )
    ]
    assert len(heard.of(events.CallRejected)) == 1
    assert heard.of(events.FailFastClosed) == [
        events.FailFastClosed(policy="ledger", policy_type="fail_fast", reason="reset")
    ]


def test_its_events_tell_that_time_or_the_check_closed_it(guarded, heard, clock):
    policy = fail_fast("ledger", failures=1, open_for=1)
    call = guarded(policy, Flaky(REFUSED, "ok"))
    failing(call, 1)
    clock.advance(1)
    call()
    assert [event.reason for event in heard.of(events.FailFastClosed)] == ["time"]


def test_a_rejection_explains_itself():
    policy = fail_fast("ledger")
    policy.force_open("the disk is full")
    with pytest.raises(FailFastError) as raised:
        policy.call(str)
    (decision,) = explain(raised.value).decisions
    assert (decision.policy, decision.policy_type, decision.action) == ("ledger", "fail_fast", "rejected")


def test_its_error_survives_pickling():
    error = FailFastError("ledger", 3.0, "its check failed")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.reason, again.retry_after) == (str(error), "its check failed", 3.0)


def test_a_retry_outside_does_not_try_what_is_known_to_be_bad(guarded):
    policy, fetch = fail_fast("ledger", failures=2), Flaky(REFUSED)
    call = guarded(pipeline(retry(attempts=10, backoff=0), policy), fetch)
    with pytest.raises(FailFastError):
        call()
    assert fetch.calls == 2


def test_guard_puts_it_inside_the_breaker():
    @guard(bulkhead=5, fail_fast=4, circuit_breaker=True, retry=3)
    def charge() -> None: ...

    types = [policy.type for policy in policies_of(charge)]
    assert types == ["retry", "circuit_breaker", "fail_fast", "bulkhead"]
    assert policies_of(charge)[2].config.failures == 4


def test_it_is_registered_by_its_name():
    policy = fail_fast("ledger")
    assert registry.get("fail_fast", "ledger") is policy


def test_closed_it_costs_one_look_and_one_tick():
    from everkeel.compose import source

    @fail_fast()
    def charge(amount: int) -> int:
        return amount

    charge(1)
    assert source(charge) == (
        "def charge(amount):\n"
        "    permit = gate.quick\n"
        "    if permit is None:\n"
        "        permit = gate.enter()\n"
        "    try:\n"
        "        result = fn(amount)\n"
        "    except Exception as error:\n"
        "        gate.failed(permit, error)\n"
        "        raise\n"
        "    tick(permit)\n"
        "    return result\n"
    )
