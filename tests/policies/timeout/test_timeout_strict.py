"""A strict timeout: when time is up it is the timeout's error, at once, and whatever the body makes of its end."""

from __future__ import annotations

import asyncio

import pytest

from everkeel import (
    ConfigError,
    TimeoutExceededError,
    WorkersExhaustedError,
    bulkhead,
    current_cancellation,
    events,
    pipeline,
    timeout,
)
from everkeel.testing import CancelledRun, cancel_at_every_await


async def stubborn(seconds: float = 5.0) -> str:
    """Swallows its cancellation and goes on."""
    until = asyncio.get_running_loop().time() + seconds
    while (left := until - asyncio.get_running_loop().time()) > 0:
        try:
            await asyncio.sleep(left)
        except asyncio.CancelledError:
            continue
    return "late"


def test_it_ends_at_once_though_the_body_swallows_its_cancellation(called, clock):
    policy = timeout(1, "report", strict=True)

    async def main() -> float:
        with pytest.raises(TimeoutExceededError):
            await called(policy, stubborn)()
        returned = clock.monotonic()
        assert policy.snapshot()["abandoned"] == 1
        await asyncio.sleep(10)
        return returned

    assert clock.run(main) == 1.0
    assert policy.snapshot()["late"] == 1


def test_the_body_is_cancelled(called, clock):
    ended = []

    async def body() -> None:
        try:
            await asyncio.sleep(5)
        finally:
            ended.append(clock.monotonic())

    with pytest.raises(TimeoutExceededError):
        clock.run(called(timeout(1, "report", strict=True), body)())
    assert ended == [1.0]


def test_an_error_the_body_makes_of_its_cancellation_is_dropped(called, clock):
    async def body() -> None:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            raise ValueError("half done") from None

    with pytest.raises(TimeoutExceededError):
        clock.run(called(timeout(1, "report", strict=True), body)())


def test_an_answer_or_an_error_in_time_is_the_bodys_own(called, clock):
    policy = timeout(1, "report", strict=True)

    async def fail() -> None:
        raise ValueError("no such report")

    assert clock.run(called(policy, asyncio.sleep)(0.5, "answer")) == "answer"
    with pytest.raises(ValueError, match="no such report"):
        clock.run(called(policy, fail)())
    assert (policy.snapshot()["success"], policy.snapshot()["ignored"]) == (1, 1)


def test_a_place_in_a_queue_is_free_before_the_caller_goes_on(called, clock):
    places = bulkhead(1, "orders", queue=1)
    guarded = pipeline(timeout(1, "orders", strict=True), places)(asyncio.sleep)

    async def main() -> None:
        first = asyncio.ensure_future(places.acall(asyncio.sleep, 5))
        await asyncio.sleep(0)
        with pytest.raises(TimeoutExceededError):
            await guarded(0)
        assert places.snapshot()["waiting"] == 0
        await first

    clock.run(main)


def test_what_was_running_keeps_its_place_until_it_has_ended(clock):
    places = bulkhead(1, "orders")
    guarded = pipeline(timeout(1, "orders", strict=True), places)(stubborn)

    async def main() -> None:
        with pytest.raises(TimeoutExceededError):
            await guarded()
        assert places.snapshot()["running"] == 1
        await asyncio.sleep(10)
        assert places.snapshot()["running"] == 0

    clock.run(main)


def test_a_caller_who_is_cancelled_waits_for_the_body_as_without_a_timeout(called, clock):
    ended = []

    async def body() -> None:
        try:
            await asyncio.sleep(5)
        finally:
            await asyncio.sleep(0)
            ended.append("body")

    async def main() -> None:
        task = asyncio.ensure_future(called(timeout(9, "report", strict=True), body)())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended == ["body"]

    clock.run(main)


def test_cancelled_anywhere_it_leaves_nothing_behind(clock):
    policy = timeout(9, "report", strict=True)

    async def two_steps() -> str:
        await asyncio.sleep(1)
        await asyncio.sleep(1)
        return "done"

    def check(run: CancelledRun) -> None:
        assert policy.snapshot()["abandoned"] == 0

    cancel_at_every_await(lambda: policy.acall(two_steps), check)


def test_the_body_can_see_when_its_time_is_up(called, clock):
    left = []

    async def body() -> None:
        cancellation = current_cancellation()
        assert cancellation is not None
        left.append(cancellation.remaining())

    clock.run(called(timeout(3, "report", strict=True), body)())
    assert left == [3.0]


def test_a_late_error_of_an_inline_body_is_replaced(called, clock):
    def body() -> None:
        clock.sleep(5)
        raise ValueError("too late to matter")

    with pytest.raises(TimeoutExceededError) as raised:
        called(timeout(1, "report", runs="inline", strict=True), body)()
    assert isinstance(raised.value.__cause__, ValueError)


def test_without_it_a_late_error_of_an_inline_body_is_its_own(called, clock):
    def body() -> None:
        clock.sleep(5)
        raise ValueError("late")

    with pytest.raises(ValueError, match="late"):
        called(timeout(1, "report", runs="inline"), body)()


def test_so_many_may_be_left_behind_and_no_more(called, clock):
    guarded = called(timeout(1, "report", strict=True, max_abandoned=1), stubborn)

    async def main() -> None:
        with pytest.raises(TimeoutExceededError):
            await guarded()
        with pytest.raises(WorkersExhaustedError):
            await guarded()
        await asyncio.sleep(10)

    clock.run(main)


class TooSlowError(TimeoutExceededError):
    pass


@pytest.mark.parametrize("strict", [False, True])
def test_the_error_may_be_of_another_class(called, clock, strict):
    with pytest.raises(TooSlowError) as raised:
        clock.run(called(timeout(1, "report", strict=strict, expired_error=TooSlowError), asyncio.sleep)(5))
    assert (raised.value.policy, raised.value.seconds) == ("report", 1.0)


def test_it_is_told_as_any_other_expiry(called, clock):
    policy = timeout(1, "report", strict=True)
    heard: list[events.Event] = []
    policy.subscribe(heard.append, events.TimedOut)
    with pytest.raises(TimeoutExceededError):
        clock.run(called(policy, asyncio.sleep)(5))
    assert [type(event) for event in heard] == [events.TimedOut]


def test_it_cannot_be_a_block(clock):
    with pytest.raises(TypeError, match="cannot be a block: it is strict"):
        timeout(1, "report", runs="inline", strict=True).__enter__()


def test_strict_and_detached_contradict_each_other(clock):
    with pytest.raises(ConfigError, match="strict must not be set together with detached"):
        timeout(1, "report", strict=True, detached=True)


def test_the_class_of_the_error_must_be_one(clock):
    with pytest.raises(ConfigError, match="expired_error must be TimeoutExceededError or a class derived from it"):
        timeout(1, "report", expired_error=ValueError)
