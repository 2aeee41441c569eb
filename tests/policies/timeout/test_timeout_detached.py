"""A detached timeout returns at once and leaves the body behind."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import pytest

from everkeel import TimeoutExceededError, WorkersExhaustedError, deadline, events, timeout


def test_it_returns_at_once_and_the_body_goes_on(called, clock):
    ended = []

    async def stubborn() -> None:
        try:
            await asyncio.sleep(5)
        finally:
            ended.append(clock.monotonic())

    async def main() -> float:
        with pytest.raises(TimeoutExceededError):
            await called(timeout(1, "report", detached=True), stubborn)()
        returned = clock.monotonic()
        await asyncio.sleep(10)
        return returned

    assert clock.run(main) == 1.0
    assert ended == [5.0]


def test_a_body_in_time_gives_its_answer(called, clock):
    policy = timeout(1, "report", detached=True)
    assert clock.run(called(policy, asyncio.sleep)(0.5, "answer")) == "answer"
    assert policy.snapshot()["success"] == 1


def test_a_body_that_fails_in_time_raises_its_own_error(called, clock):
    policy = timeout(1, "report", detached=True)

    async def fail() -> None:
        await asyncio.sleep(0.5)
        raise ValueError("no such report")

    with pytest.raises(ValueError, match="no such report"):
        clock.run(called(policy, fail)())
    assert policy.snapshot()["ignored"] == 1


def test_a_late_completion_is_told_and_counted(called, clock, heard):
    policy = timeout(1, "report", detached=True)

    async def main() -> int:
        with pytest.raises(TimeoutExceededError):
            await called(policy, asyncio.sleep)(5)
        left = policy.snapshot()["abandoned"]
        await asyncio.sleep(10)
        return left

    assert clock.run(main) == 1
    late = events.LateCompletion(policy="report", policy_type="timeout", late_by=4.0, error=None)
    assert heard.of(events.LateCompletion) == [late]
    snapshot = policy.snapshot()
    assert (snapshot["late"], snapshot["abandoned"], snapshot["expired"]) == (1, 0, 1)


def test_a_late_failure_is_told_with_its_error_and_logged_by_nobody(called, clock, heard, caplog):
    async def fail() -> None:
        await asyncio.sleep(5)
        raise ValueError("too late to matter")

    async def main() -> None:
        with pytest.raises(TimeoutExceededError):
            await called(timeout(1, "report", detached=True), fail)()
        await asyncio.sleep(10)

    clock.run(main)
    assert str(heard.of(events.LateCompletion)[0].error) == "too late to matter"
    assert caplog.text == ""


def test_too_many_left_behind_refuse_another(called, clock, heard):
    policy = timeout(1, "report", detached=True, max_abandoned=2)
    call = called(policy, asyncio.sleep)

    async def main() -> str:
        for _ in range(2):
            with pytest.raises(TimeoutExceededError):
                await call(10)
        with pytest.raises(WorkersExhaustedError) as raised:
            await call(0)
        assert raised.value.abandoned == 2
        await asyncio.sleep(10)  # they end
        return await call(0, "answer")

    assert clock.run(main) == "answer"
    assert policy.snapshot()["rejected"] == 1
    assert [type(event.error) for event in heard.of(events.CallRejected)] == [WorkersExhaustedError]


def test_a_caller_who_is_cancelled_takes_the_body_along(called, clock):
    ended = []

    async def body() -> None:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    async def main() -> bool:
        task = asyncio.create_task(called(timeout(2, "report", detached=True), body)())
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(0)
        return task.cancelled()

    assert clock.run(main)
    assert ended == ["cancelled"]


def test_the_body_sees_its_callers_context_variables(called, clock):
    tenant: ContextVar[str] = ContextVar("tenant")

    async def body() -> str:
        return tenant.get()

    async def main() -> str:
        tenant.set("acme")
        return await called(timeout(1, "report", detached=True), body)()

    assert clock.run(main) == "acme"


def test_a_deadline_shortens_it(called, clock):
    async def main() -> float:
        with deadline(0.5), pytest.raises(TimeoutExceededError) as raised:
            await called(timeout(1, "report", detached=True), asyncio.sleep)(5)
        return raised.value.seconds

    assert clock.run(main) == 0.5


def test_a_body_that_ends_in_the_very_moment_is_not_left_behind(called, clock):
    policy = timeout(1, "report", detached=True)

    async def main() -> None:
        gate = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(1, gate.set_exception, ValueError("just now"))
        with pytest.raises((TimeoutExceededError, ValueError)):
            await called(policy, asyncio.wait_for)(gate, None)
        await asyncio.sleep(1)

    clock.run(main)
    assert policy.snapshot()["abandoned"] == 0


def test_it_cannot_be_a_block(clock):
    async def main() -> None:
        async with timeout(1, "report", detached=True):
            pass  # pragma: no cover - never entered

    with pytest.raises(TypeError) as raised:
        clock.run(main)
    assert str(raised.value) == (
        "timeout 'report' cannot be a block: it is detached, and a block cannot be left behind"
    )
