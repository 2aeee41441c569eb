"""Cancelled at every await, nothing is left behind: no attempt, no deadline, no request to cancel."""

from __future__ import annotations

import asyncio

import pytest

from everkeel import TimeoutExceededError, current_attempt, current_deadline, deadline, fallback, pipeline, retry
from everkeel.policies.retry.nesting import BLOCK
from everkeel.testing import Flaky, cancel_at_every_await


def check_every_await(make, expected: object) -> int:
    """Cancel `make()()` at each of its awaits; left alone it gives `expected`, a value or an error class."""
    left: list[object] = []

    async def observed() -> object:
        try:
            return await make()()
        finally:
            task = asyncio.current_task()
            assert task is not None
            left[:] = [current_attempt(), current_deadline(), BLOCK.get(), task.cancelling()]

    def check(outcome) -> None:
        if outcome.number is None:
            assert outcome.value == expected or isinstance(outcome.error, expected)
            assert left == [None, None, None, 0]
        else:
            assert outcome.cancelled, "the cancellation was swallowed"
            assert left == [None, None, None, 1], "something is left behind"

    return cancel_at_every_await(observed, check)


def flaky(*outcomes: object, takes: float = 1.0):
    return lambda: Flaky(*outcomes, takes=takes).async_()


def test_cancelled_anywhere_a_retry_leaves_nothing_behind(awaited):
    policy, script = retry("fetch", backoff=1, jitter=None), flaky(OSError, OSError, "answer")
    awaits = check_every_await(lambda: awaited.guarded(policy, script()), "answer")
    assert awaits == 5  # three attempts and two waits
    snapshot = policy.snapshot()
    assert (snapshot["failure"], snapshot["ignored"]) == (0, 0)


def test_cancelled_anywhere_a_retry_that_gives_up_leaves_nothing_behind(awaited):
    policy = retry("fetch", backoff=1, jitter=None)
    assert check_every_await(lambda: awaited.guarded(policy, flaky(OSError)()), OSError) == 5


def test_cancelled_anywhere_a_bounded_attempt_leaves_nothing_behind(awaited):
    policy = retry("fetch", attempts=2, backoff=1, jitter=None, attempt_timeout=0.5)
    assert check_every_await(lambda: awaited.guarded(policy, flaky("late")()), TimeoutExceededError) == 3


def test_cancelled_anywhere_a_bounded_call_leaves_nothing_behind(awaited):
    policy = retry("fetch", attempts=9, backoff=0.25, jitter=None, max_duration=2.75)
    assert check_every_await(lambda: awaited.guarded(policy, flaky(OSError)()), TimeoutExceededError) == 5


def test_cancelled_in_the_moment_of_its_expiry_a_call_is_cancelled(awaited):
    # the attempt ends, the alarm rings and the caller gives up, all at the same instant
    policy = retry("fetch", attempts=1, attempt_timeout=1.0)
    check_every_await(lambda: awaited.guarded(policy, flaky("just in time", takes=1.0)()), TimeoutExceededError)


def test_cancelled_anywhere_nested_limits_leave_nothing_behind(awaited):
    inner = retry("inner", attempts=2, backoff=0.1, jitter=None, attempt_timeout=0.7)
    outer = retry("outer", attempts=2, backoff=0.1, jitter=None, max_duration=2.0)
    check_every_await(
        lambda: awaited.guarded(outer, awaited.guarded(inner, flaky("late")())), (TimeoutExceededError, OSError)
    )


def test_cancelled_anywhere_under_a_deadline_nothing_is_left_behind(awaited):
    policy = retry("fetch", backoff=1, jitter=None)

    def make():
        call = awaited.guarded(policy, flaky(OSError, "answer")())

        async def under_a_deadline() -> object:
            with deadline(10):
                return await call()

        return under_a_deadline

    assert check_every_await(make, "answer") == 3


def test_cancelled_anywhere_a_fallback_leaves_nothing_behind(awaited):
    async def other(error: Exception) -> str:
        await asyncio.sleep(1)
        return "other"

    policy = pipeline(fallback(other, name="other"), retry("fetch", attempts=2, backoff=1, jitter=None))
    assert check_every_await(lambda: awaited.guarded(policy, flaky(OSError)()), "other") == 4
    assert policy.policies[0].snapshot()["used"] == 1  # by the one run that was left alone


@pytest.mark.parametrize("settings", [{}, {"attempt_timeout": 5}, {"max_duration": 50}], ids=str)
def test_cancelled_anywhere_an_async_block_leaves_nothing_behind(clock, settings):
    policy = retry("block", backoff=1, jitter=None, **settings)

    def make():
        fetch = flaky(OSError, OSError, "answer")()

        async def block() -> object:
            async for attempt in policy.attempts():
                async with attempt:
                    answer = await fetch()
            return answer

        return block

    assert check_every_await(make, "answer") == 5


def test_cancelled_anywhere_a_stream_is_closed(clock):
    policy, opened, closed = retry("feed", backoff=1, jitter=None), [], []

    def make():
        calls = []

        @policy
        async def feed():
            opened.append(1)
            calls.append(1)
            try:
                await asyncio.sleep(1)
                if len(calls) < 2:
                    raise OSError
                yield "first"
                await asyncio.sleep(1)
                yield "second"
            finally:
                closed.append(1)

        async def consume() -> list[str]:
            items = feed()
            try:
                return [item async for item in items]
            finally:
                await items.aclose()

        return consume

    assert check_every_await(make, ["first", "second"]) == 4
    assert len(opened) == len(closed)


def test_a_task_cancelled_during_the_wait_makes_no_further_attempt(awaited):
    policy, fetch = retry("fetch", backoff=10, jitter=None), Flaky(ConnectionError)
    call = awaited.guarded(policy, fetch.async_())

    async def main() -> None:
        task = asyncio.create_task(call())
        await asyncio.sleep(5)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    awaited.clock.run(main)
    assert fetch.calls == 1


def test_a_body_that_turns_our_cancellation_into_an_error_of_its_own_is_believed(awaited):
    async def stubborn() -> None:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            raise ValueError("was cancelled") from None

    call = awaited.guarded(retry("fetch", attempts=1, attempt_timeout=1), stubborn)

    async def main() -> int:
        with pytest.raises(ValueError, match="was cancelled"):
            await call()
        task = asyncio.current_task()
        assert task is not None
        return task.cancelling()

    assert awaited.clock.run(main) == 0


def test_a_task_group_around_a_timed_out_call_goes_on(awaited):
    call = awaited.guarded(retry("fetch", attempts=2, backoff=0, attempt_timeout=0.5), flaky("late")())

    async def main() -> str:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            with pytest.raises(TimeoutExceededError):
                await call()
            other = group.create_task(asyncio.sleep(1, "fine"))
        return other.result()

    assert awaited.clock.run(main) == "fine"
