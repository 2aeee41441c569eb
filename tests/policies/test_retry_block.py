"""The retried block: `for attempt in policy.attempts(): with attempt: ...`."""

from __future__ import annotations

import asyncio

import pytest

import everkeel
from everkeel import ConfigError, TimeoutExceededError, current_attempt, retry


def failing(policy, fails: int, error: BaseException | None = None) -> list[int]:
    """The numbers of the attempts of a block that fails so many times."""
    numbers = []
    for attempt in policy.attempts():
        with attempt:
            numbers.append(attempt.number)
            if len(numbers) <= fails:
                raise error or ConnectionError
    return numbers


def test_a_block_is_run_again_until_it_succeeds(clock):
    assert failing(retry("block"), 2) == [1, 2, 3]


def test_the_current_attempt_has_the_same_number(clock):
    seen = []
    for attempt in retry("block", backoff=0).attempts():
        with attempt:
            seen.append((attempt.number, current_attempt() and current_attempt().number))
            if attempt.number < 3:
                raise ConnectionError
    assert seen == [(1, None), (2, 2), (3, 3)]
    assert current_attempt() is None


def test_returning_from_inside_the_block_is_a_success(clock):
    policy = retry("block", backoff=0)

    def fetch() -> str:
        for attempt in policy.attempts():
            with attempt:
                if attempt.number == 1:
                    raise ConnectionError
                return "answer"
        raise AssertionError("unreachable")

    assert fetch() == "answer"
    assert current_attempt() is None
    assert policy.snapshot()["recovered"] == 1


def test_breaking_out_of_the_block_is_a_success(clock):
    policy = retry("block")
    for attempt in policy.attempts():
        with attempt:
            break
    assert policy.snapshot()["success"] == 1


def test_returning_from_inside_an_async_block_is_a_success(clock):
    policy = retry("block", backoff=0)

    async def fetch() -> str:
        async for attempt in policy.attempts():
            async with attempt:
                await asyncio.sleep(1)
                if attempt.number == 1:
                    raise ConnectionError
                return "answer"
        raise AssertionError("unreachable")

    assert clock.run(fetch) == "answer"
    assert policy.snapshot()["recovered"] == 1


def test_an_async_loop_takes_a_sync_with_too(clock):
    async def fetch() -> int:
        async for attempt in retry("block", backoff=1, jitter=None).attempts():
            with attempt:
                if attempt.number == 1:
                    raise ConnectionError
        return attempt.number

    assert clock.run(fetch) == 2
    assert clock.sleeps == [1.0]


def test_result_hands_back_what_it_is_told(clock):
    for attempt in retry("block").attempts():
        with attempt:
            assert attempt.result("answer") == "answer"


def test_a_block_that_reports_nothing_is_not_judged_by_on_result(clock):
    policy = retry("block", on_result=lambda result: result is None)
    for attempt in policy.attempts():
        with attempt:
            pass
    assert policy.snapshot()["success"] == 1


def test_attempts_can_be_iterated_over_once(clock):
    blocks = retry("block").attempts()
    for attempt in blocks:
        with attempt:
            pass
    with pytest.raises(RuntimeError, match="can be iterated over once"):
        next(iter(blocks))


def test_an_attempt_that_is_not_entered_is_a_mistake_worth_saying(clock):
    with pytest.raises(RuntimeError, match="each attempt must be entered"):
        for _ in retry("block").attempts():
            pass


def test_an_async_attempt_that_is_not_entered_is_a_mistake_worth_saying(clock):
    async def main() -> None:
        async for _ in retry("block").attempts():
            pass

    with pytest.raises(RuntimeError, match="each attempt must be entered"):
        clock.run(main)


def test_two_blocks_of_one_policy_do_not_mix(clock):
    policy, seen = retry("block", backoff=0), []
    one, two = iter(policy.attempts()), iter(policy.attempts())
    for blocks in (one, two, one, two, one, two):
        with next(blocks) as attempt:
            seen.append(attempt.number)
            if attempt.number < 3:
                raise ConnectionError
    assert seen == [1, 1, 2, 2, 3, 3]


def test_a_retry_itself_cannot_be_a_block(clock):
    with pytest.raises(TypeError, match=r"^retry 'block' cannot be a block: its body could not run again; write `for"):
        with retry("block"):
            pass


def test_a_retry_itself_cannot_be_an_async_block(clock):
    async def main() -> None:
        async with retry("block"):
            pass

    with pytest.raises(TypeError, match="cannot be a block"):
        clock.run(main)


def test_a_block_of_a_policy_that_is_off_runs_once(clock):
    policy = retry("block", mode="off")
    with pytest.raises(ConnectionError):
        failing(policy, 2)
    assert policy.snapshot()["failure"] == 0


def test_a_block_of_a_shadow_runs_once_and_is_counted(clock):
    policy = retry("block", mode="shadow")
    with pytest.raises(ConnectionError):
        failing(policy, 2)
    assert policy.snapshot()["would"] == {"retry": 1}


def test_a_block_runs_once_while_everkeel_is_disabled(clock):
    everkeel.disable()
    with pytest.raises(ConnectionError):
        failing(retry("block"), 2)


def test_an_interruption_leaves_the_block_at_once(clock):
    policy = retry("block")
    with pytest.raises(KeyboardInterrupt):
        failing(policy, 1, KeyboardInterrupt())
    assert policy.snapshot()["failure"] == 0


def test_a_mapper_is_asked_when_a_block_runs_out_of_attempts(clock):
    asked = []
    assert failing(retry("block", attempts=2, backoff=0, exhausted=asked.append), 9) == [1, 2]
    assert asked[0].attempts == 2


def test_a_block_with_neither_attempts_nor_time_is_refused(clock):
    with pytest.raises(ConfigError):
        failing(retry("block", attempts=None), 1)


def test_a_sync_block_is_checked_against_its_limit_between_attempts(clock):
    begun = []

    def slow() -> None:
        for attempt in retry("block", backoff=0, max_duration=3).attempts():
            with attempt:
                begun.append(clock.monotonic())
                clock.sleep(2)
                raise ConnectionError

    with pytest.raises(ConnectionError):
        slow()
    assert begun == [0.0, 2.0]


def test_an_async_block_reports_an_outside_cancellation_as_one(clock):
    policy = retry("block", max_duration=9)

    async def work() -> None:
        async for attempt in policy.attempts():
            async with attempt:
                await asyncio.sleep(5)

    async def main() -> None:
        task = asyncio.create_task(work())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    clock.run(main)
    assert policy.snapshot()["failure"] == 0


def test_the_expiry_of_an_attempt_of_a_block_may_be_ignored(clock):
    begun = []

    async def main() -> None:
        async for attempt in retry("block", attempt_timeout=1, ignore=TimeoutError).attempts():
            async with attempt:
                begun.append(attempt.number)
                await asyncio.sleep(5)

    with pytest.raises(TimeoutExceededError):
        clock.run(main)
    assert begun == [1]
