"""What opens a fail fast, what closes it, and what is no evidence."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from everkeel import FailFastError, NotRetryable, RejectedError, fail_fast
from everkeel.testing import Flaky

REFUSED = ConnectionError("refused")


def feed(call: Any, times: int) -> list[str]:
    """So many calls, and how each ended."""
    ended = []
    for _ in range(times):
        try:
            ended.append(str(call()))
        except Exception as error:
            ended.append(type(error).__name__)
    return ended


def test_the_third_failure_in_a_row_opens_it(guarded):
    policy, fetch = fail_fast("ledger"), Flaky(REFUSED)
    assert feed(guarded(policy, fetch), 5) == ["ConnectionError"] * 3 + ["FailFastError"] * 2
    assert fetch.calls == 3


def test_a_success_between_failures_starts_the_count_anew(guarded):
    policy, fetch = fail_fast("ledger"), Flaky(REFUSED, REFUSED, "ok", REFUSED, REFUSED, "ok")
    feed(guarded(policy, fetch), 5)
    assert policy.snapshot()["in_a_row"] == 2
    assert policy.snapshot()["state"] == "closed"


def test_one_failure_may_be_enough(guarded):
    policy = fail_fast("ledger", failures=1)
    assert feed(guarded(policy, Flaky(REFUSED)), 2) == ["ConnectionError", "FailFastError"]


def test_the_error_says_what_is_bad_and_that_only_a_reset_helps(guarded):
    policy = fail_fast("ledger")
    call = guarded(policy, Flaky(REFUSED))
    feed(call, 3)
    with pytest.raises(FailFastError) as raised:
        call()
    assert str(raised.value) == (
        "fail fast 'ledger' is open (3 failures in a row: ConnectionError: refused) until it is reset"
    )
    assert (raised.value.policy, raised.value.retry_after) == ("ledger", None)


def test_it_stays_open_however_long_it_takes(guarded, clock):
    policy = fail_fast("ledger", failures=1)
    call = guarded(policy, Flaky(REFUSED, "ok"))
    feed(call, 1)
    clock.advance(1e9)
    assert feed(call, 1) == ["FailFastError"]


def test_a_reset_lets_calls_pass_and_forgets_the_failures(guarded):
    policy = fail_fast("ledger", failures=2)
    call = guarded(policy, Flaky(REFUSED, REFUSED, REFUSED, "ok"))
    feed(call, 2)
    policy.reset()
    assert feed(call, 2) == ["ConnectionError", "ok"]


def test_a_reset_of_a_closed_one_forgets_the_failures_too(guarded, heard):
    policy = fail_fast("ledger", failures=2)
    call = guarded(policy, Flaky(REFUSED))
    feed(call, 1)
    policy.reset()
    feed(call, 1)
    assert policy.snapshot()["state"] == "closed"
    assert "FailFastClosed" not in heard.names()


def test_after_its_time_it_closes_by_itself(guarded, clock):
    policy = fail_fast("ledger", failures=2, open_for=30)
    call = guarded(policy, Flaky(REFUSED, REFUSED, REFUSED, "ok"))
    feed(call, 2)
    clock.advance(20)
    with pytest.raises(FailFastError) as raised:
        call()
    assert raised.value.retry_after == 10
    assert str(raised.value).endswith("; try again in 10 s")
    clock.advance(10)
    assert feed(call, 2) == ["ConnectionError", "ok"]


def test_a_hand_opens_it_before_anything_has_failed_and_no_time_closes_it(guarded, clock):
    policy, fetch = fail_fast("ledger", open_for=1), Flaky("ok")
    call = guarded(policy, fetch)
    policy.force_open("the disk is full")
    clock.advance(100)
    with pytest.raises(FailFastError) as raised:
        call()
    assert str(raised.value) == "fail fast 'ledger' is open (the disk is full) until it is reset"
    assert fetch.calls == 0
    policy.reset()
    assert call() == "ok"


# ------------------------------------------------------------------ what counts


def test_an_exception_that_on_does_not_name_is_a_sign_of_life(guarded):
    policy = fail_fast("ledger", failures=2, on=OSError)
    call = guarded(policy, Flaky(REFUSED, KeyError("id"), REFUSED, "ok"))
    assert feed(call, 4) == ["ConnectionError", "KeyError", "ConnectionError", "ok"]


@pytest.mark.parametrize(
    "error", [KeyError("id"), RejectedError("payments", 1.0), NotRetryable("out of stock")], ids=lambda e: str(type(e))
)
def test_what_is_ignored_or_rejected_is_no_evidence(guarded, error):
    policy = fail_fast("ledger", failures=2, ignore=KeyError)
    call = guarded(policy, Flaky(REFUSED, error, REFUSED, "ok"))
    feed(call, 3)
    assert policy.snapshot()["state"] == "open"  # the two failures are in a row: nothing was learned between them
    assert policy.snapshot()["ignored"] == 1


def test_a_cancelled_call_is_no_evidence(awaited, clock):
    policy = fail_fast("ledger", failures=1)

    async def hang() -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        task = asyncio.create_task(awaited.guarded(policy, hang)())
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait([task])

    clock.run(main)
    snapshot = policy.snapshot()
    assert (snapshot["state"], snapshot["failure"], snapshot["success"]) == ("closed", 0, 0)


def test_an_interrupt_is_no_evidence(threaded):
    policy = fail_fast("ledger", failures=1)
    with pytest.raises(KeyboardInterrupt):
        threaded(policy, Flaky(KeyboardInterrupt))()
    assert policy.snapshot()["state"] == "closed"


def test_a_result_may_count_as_a_failure(guarded):
    policy = fail_fast("ledger", failures=2, on_result=lambda answer: answer == "revoked")
    call = guarded(policy, Flaky("revoked", "fine", "revoked"))
    assert feed(call, 5) == ["revoked", "fine", "revoked", "revoked", "FailFastError"]
    assert policy.snapshot()["reason"] == "2 failures in a row: a result that counts as a failure"


def test_causes_are_looked_at_when_asked(guarded):
    def fail() -> None:
        raise RuntimeError("wrapped") from REFUSED

    policy = fail_fast("ledger", failures=1, on=OSError, causes=True)
    assert feed(guarded(policy, fail), 2) == ["RuntimeError", "FailFastError"]


# ------------------------------------------------------------------ what comes late


def test_what_a_call_from_before_the_opening_reports_is_ignored(awaited, clock):
    policy = fail_fast("ledger", failures=1)

    async def after(seconds: float, outcome: Any) -> Any:
        await asyncio.sleep(seconds)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    async def main() -> None:
        call = awaited.guarded(policy, after)
        late = asyncio.create_task(call(5, REFUSED))
        await asyncio.wait([asyncio.create_task(call(1, REFUSED))])
        assert policy.snapshot()["state"] == "open"
        policy.reset()
        await asyncio.wait([late])
        assert policy.snapshot()["state"] == "closed"  # it began before the reset: known already

    clock.run(main)


def test_a_late_success_does_not_break_a_new_row_of_failures(awaited, clock):
    policy = fail_fast("ledger", failures=2)
    failing = Flaky(REFUSED).async_()

    async def slow() -> str:
        await asyncio.sleep(5)
        return "ok"

    async def main() -> None:
        call = awaited.guarded(policy, failing)
        late = asyncio.create_task(awaited.guarded(policy, slow)())
        await asyncio.sleep(0)
        policy.reset()
        for wait in (10, 0):
            with pytest.raises(ConnectionError):
                await call()
            await asyncio.sleep(wait)
        await late
        assert policy.snapshot()["state"] == "open"

    clock.run(main)


# ------------------------------------------------------------------ streams


def test_a_stream_that_fails_counts_and_one_that_is_open_never_begins(streamed):
    policy, begun = fail_fast("ledger", failures=1), []

    def rows() -> Any:
        begun.append(1)
        yield "first"
        raise REFUSED

    into: list[str] = []
    call = streamed(policy, rows)
    with pytest.raises(ConnectionError):
        call(into=into)
    with pytest.raises(FailFastError):
        call(into=into)
    assert (into, begun) == (["first"], [1])
