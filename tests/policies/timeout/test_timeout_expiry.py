"""An async call whose time is up, and whose cancellation it is."""

from __future__ import annotations

import asyncio
import copy
import pickle

import pytest

from everkeel import TimeoutExceededError, deadline, events, timeout


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


def test_a_call_in_time_gives_its_answer(timed, clock):
    policy = timeout(2, "quote")
    assert clock.run(timed(policy, asyncio.sleep)(1.9, "answer")) == "answer"
    assert policy.snapshot()["success"] == 1


def test_a_call_that_does_not_suspend_arms_nothing_that_could_hurt_later(timed, clock):
    policy = timeout(2, "quote")

    async def answer() -> str:
        return "answer"

    async def main() -> str:
        await timed(policy, answer)()
        return await asyncio.sleep(10, "still here")

    assert clock.run(main) == "still here"


def test_a_call_whose_time_is_up_raises_a_timeout_from_the_cancellation(timed, clock):
    with pytest.raises(TimeoutExceededError) as raised:
        clock.run(timed(timeout(2, "quote"), forever)())
    assert isinstance(raised.value.__cause__, asyncio.CancelledError)
    assert clock.monotonic() == 2.0


def test_the_task_is_not_left_cancelling(timed, clock):
    async def main() -> int:
        with pytest.raises(TimeoutExceededError):
            await timed(timeout(2, "quote"), forever)()
        await asyncio.sleep(1)  # a cancellation left behind would surface here
        return asyncio.current_task().cancelling()

    assert clock.run(main) == 0


def test_the_error_says_who_and_how_long(timed, clock):
    with pytest.raises(TimeoutExceededError) as raised:
        clock.run(timed(timeout(0.5, "quote"), forever)())
    error = raised.value
    assert (error.policy, error.seconds, error.limit, error.retry_after) == ("quote", 0.5, "timeout", None)
    assert str(error) == "timeout 'quote': no answer within 0.5 s"


@pytest.mark.parametrize("duplicate", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_the_error_survives_copying_and_pickling(duplicate):
    again = duplicate(TimeoutExceededError("quote", 0.5))
    assert (again.policy, again.seconds, again.limit) == ("quote", 0.5, "timeout")


def test_handlers_of_the_builtin_timeout_error_keep_working(timed, clock):
    with pytest.raises(TimeoutError):
        clock.run(timed(timeout(2, "quote"), forever)())


def test_the_snapshot_counts_what_expired_and_what_passed(timed, clock):
    policy = timeout(2, "quote")

    async def fail() -> None:
        raise ValueError("no such item")

    async def main() -> None:
        await timed(policy, asyncio.sleep)(1)
        with pytest.raises(TimeoutExceededError):
            await timed(policy, forever)()
        with pytest.raises(ValueError, match="no such item"):
            await timed(policy, fail)()

    clock.run(main)
    assert policy.snapshot() == {
        "name": "quote",
        "type": "timeout",
        "mode": "enforce",
        "success": 1,
        "failure": 1,
        "ignored": 1,
        "rejected": 0,
        "would": {},
        "expired": 1,
        "late": 0,
        "abandoned": 0,
        "running": 0,
    }


def test_the_snapshot_shows_who_is_in_flight(timed, clock):
    policy = timeout(2, "quote")

    async def main() -> int:
        tasks = [asyncio.create_task(timed(policy, asyncio.sleep)(1)) for _ in range(3)]
        await asyncio.sleep(0)
        running = policy.snapshot()["running"]
        await asyncio.gather(*tasks)
        return running

    assert clock.run(main) == 3


def test_the_events_tell_that_it_timed_out_and_failed(timed, clock, heard):
    with pytest.raises(TimeoutExceededError) as raised:
        clock.run(timed(timeout(2, "quote"), forever)())
    assert heard.of(events.TimedOut) == [events.TimedOut(policy="quote", policy_type="timeout", seconds=2.0)]
    assert heard.of(events.Failed)[0].error is raised.value


def test_an_error_of_the_body_is_told_as_ignored_which_is_how_it_is_counted(timed, clock, heard):
    async def fail() -> None:
        raise ValueError("no such item")

    policy = timeout(2, "quote")
    with pytest.raises(ValueError):
        clock.run(timed(policy, fail)())
    assert heard.names() == ["PolicyAdded", "Ignored"]
    assert policy.snapshot()["ignored"] == 1


# ------------------------------------------------------------------ the caller's own cancellation


def test_the_callers_cancellation_passes(timed, clock):
    policy = timeout(2, "quote")

    async def main() -> bool:
        task = asyncio.create_task(timed(policy, forever)())
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert clock.run(main)
    snapshot = policy.snapshot()
    assert (snapshot["success"], snapshot["failure"], snapshot["ignored"], snapshot["running"]) == (0, 0, 0, 0)


def test_the_callers_cancellation_before_ours_in_the_same_tick_wins(timed, clock):
    policy = timeout(1, "quote")

    async def main() -> bool:
        task = asyncio.create_task(timed(policy, forever)())
        asyncio.get_running_loop().call_later(1, task.cancel)  # armed before the call begins: goes off before ours
        await asyncio.wait([task])
        return task.cancelled()

    assert clock.run(main)
    assert policy.snapshot()["expired"] == 0


def test_the_callers_cancellation_after_ours_in_the_same_tick_wins(timed, clock):
    policy = timeout(1, "quote")

    async def main() -> bool:
        task = asyncio.create_task(timed(policy, forever)())
        await asyncio.sleep(0)  # the call has begun: what is armed now goes off after our timer
        asyncio.get_running_loop().call_later(1, task.cancel)
        await asyncio.wait([task])
        return task.cancelled()

    assert clock.run(main)
    assert policy.snapshot()["expired"] == 0


def test_the_callers_cancellation_while_the_body_cleans_up_after_ours_wins(timed, clock):
    policy = timeout(1, "quote")

    async def tidy() -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(5)

    async def main() -> bool:
        task = asyncio.create_task(timed(policy, tidy)())
        await asyncio.sleep(2)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert clock.run(main)
    assert policy.snapshot()["expired"] == 0


def test_a_cancelled_call_is_not_counted_even_if_its_time_was_nearly_up(timed, clock):
    policy = timeout(1, "quote")

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(timed(policy, forever)(), 0.999)

    clock.run(main)
    assert policy.snapshot()["failure"] == 0


def test_expiry_inside_a_handler_of_a_cancellation_that_is_still_pending(timed, clock):
    policy, seen = timeout(1, "clean-up"), []

    async def work() -> None:
        try:
            await forever()
        finally:
            try:
                await timed(policy, forever)()
            except TimeoutExceededError:
                seen.append(asyncio.current_task().cancelling())

    async def main() -> bool:
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert clock.run(main)
    assert seen == [1]


# ------------------------------------------------------------------ what the body does with it


def test_a_body_that_swallows_the_cancellation_still_times_out_however_late(timed, clock):
    # asyncio.timeout() would hand out the late value.
    policy = timeout(1, "stubborn")

    async def stubborn() -> str:
        try:
            await forever()
        except asyncio.CancelledError:
            await asyncio.sleep(4)
        return "late"

    async def main() -> int:
        with pytest.raises(TimeoutExceededError) as raised:
            await timed(policy, stubborn)()
        assert raised.value.__cause__ is None
        return asyncio.current_task().cancelling()

    assert clock.run(main) == 0
    assert clock.monotonic() == 5.0
    assert policy.snapshot()["success"] == 0


def test_a_body_that_turns_the_cancellation_into_its_own_error_raises_that(timed, clock):
    policy = timeout(1, "translated")

    async def translating() -> None:
        try:
            await forever()
        except asyncio.CancelledError:
            raise ConnectionError("gave up") from None

    async def main() -> int:
        with pytest.raises(ConnectionError, match="gave up"):
            await timed(policy, translating)()
        return asyncio.current_task().cancelling()

    assert clock.run(main) == 0
    assert policy.snapshot()["expired"] == 0


def test_a_cancelled_task_that_the_body_awaits_is_not_taken_for_a_timeout(timed, clock):
    async def waits_for_a_cancelled_one() -> None:
        other = asyncio.create_task(forever())
        await asyncio.sleep(0)
        other.cancel()
        await other

    async def main() -> None:
        with pytest.raises(asyncio.CancelledError):
            await timed(timeout(1, "quote"), waits_for_a_cancelled_one)()

    clock.run(main)


# ------------------------------------------------------------------ one inside another


@pytest.mark.parametrize(("outer", "inner", "reports"), [(1, 2, "outer"), (2, 1, "inner"), (1, 1, "outer")])
def test_of_two_the_first_reports_and_the_outer_one_if_both_expire_at_once(timed, clock, outer, inner, reports):
    call = timed(timeout(outer, "outer"), timed(timeout(inner, "inner"), forever))

    async def main() -> tuple[str, int]:
        with pytest.raises(TimeoutExceededError) as raised:
            await call()
        await asyncio.sleep(5)
        return raised.value.policy, asyncio.current_task().cancelling()

    assert clock.run(main) == (reports, 0)


@pytest.mark.parametrize("pause", [0, 0.4])
def test_recursion_in_one_timeout(timed, clock, pause):
    policy = timeout(1, "recursive")

    async def descend(depth: int) -> None:
        await asyncio.sleep(pause)
        if depth:
            await again(depth - 1)
        else:
            await forever()

    again = timed(policy, descend)

    async def main() -> int:
        with pytest.raises(TimeoutExceededError):
            await again(4)
        return asyncio.current_task().cancelling()

    assert clock.run(main) == 0
    assert clock.monotonic() == 1.0
    snapshot = policy.snapshot()
    assert (snapshot["expired"], snapshot["running"]) == (1, 0)


def test_a_task_that_recursed_is_timed_as_usual_afterwards(timed, clock):
    policy = timeout(1, "recursive")

    async def descend(depth: int) -> None:
        if depth:
            await again(depth - 1)

    again = timed(policy, descend)

    async def main() -> None:
        await again(3)
        with pytest.raises(TimeoutExceededError):
            await timed(policy, forever)()

    clock.run(main)
    assert clock.monotonic() == 1.0


def test_asyncios_timeout_outside_is_not_ours(timed, clock):
    policy = timeout(2, "inner")

    async def main() -> int:
        with pytest.raises(TimeoutError) as raised:
            async with asyncio.timeout(1):
                await timed(policy, forever)()
        assert not isinstance(raised.value, TimeoutExceededError)
        return asyncio.current_task().cancelling()

    assert clock.run(main) == 0
    assert policy.snapshot()["expired"] == 0


def test_asyncios_timeout_outside_lets_ours_through(timed, clock):
    async def main() -> int:
        with pytest.raises(TimeoutExceededError):
            async with asyncio.timeout(2):
                await timed(timeout(1, "inner"), forever)()
        return asyncio.current_task().cancelling()

    assert clock.run(main) == 0


def test_asyncios_timeout_outside_in_the_same_tick_reports(timed, clock):
    async def main() -> int:
        with pytest.raises(TimeoutError) as raised:
            async with asyncio.timeout(1):
                await timed(timeout(1, "inner"), forever)()
        assert not isinstance(raised.value, TimeoutExceededError)
        return asyncio.current_task().cancelling()

    assert clock.run(main) == 0


@pytest.mark.parametrize(("ours", "theirs", "is_ours"), [(1, 2, True), (2, 1, False), (1, 1, True)])
def test_asyncios_timeout_inside(timed, clock, ours, theirs, is_ours):
    async def body() -> None:
        async with asyncio.timeout(theirs):
            await forever()

    async def main() -> tuple[bool, int]:
        with pytest.raises(TimeoutError) as raised:
            await timed(timeout(ours, "outer"), body)()
        return isinstance(raised.value, TimeoutExceededError), asyncio.current_task().cancelling()

    assert clock.run(main) == (is_ours, 0)


def test_a_task_group_inside_is_cancelled_as_a_whole(timed, clock):
    ended = []

    async def child() -> None:
        try:
            await forever()
        finally:
            ended.append("child")

    async def family() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(child())
            group.create_task(child())

    async def main() -> int:
        with pytest.raises(TimeoutExceededError):
            await timed(timeout(1, "family"), family)()
        return asyncio.current_task().cancelling()

    assert clock.run(main) == 0
    assert ended == ["child", "child"]


def test_a_task_group_outside_gets_the_timeout_as_a_childs_error(timed, clock):
    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(timed(timeout(1, "child"), forever)())
            group.create_task(forever())

    with pytest.raises(ExceptionGroup) as raised:
        clock.run(main)
    assert [type(error) for error in raised.value.exceptions] == [TimeoutExceededError]


def test_gathered_calls_each_have_their_own_time(timed, clock):
    call = timed(timeout(1, "quote"), asyncio.sleep)

    async def main() -> list[object]:
        return await asyncio.gather(call(0.5, "a"), call(5), call(0.9, "b"), return_exceptions=True)

    came = clock.run(main)
    assert (came[0], type(came[1]), came[2]) == ("a", TimeoutExceededError, "b")


# ------------------------------------------------------------------ the deadline that travels with the call


def test_a_deadline_shortens_it(timed, clock):
    policy = timeout(5, "quote")

    async def main() -> float:
        with deadline(2), pytest.raises(TimeoutExceededError) as raised:
            await timed(policy, forever)()
        return raised.value.seconds

    assert clock.run(main) == 2.0
    assert clock.monotonic() == 2.0
    assert policy.snapshot()["expired"] == 1


def test_a_later_deadline_does_not_lengthen_it(timed, clock):
    async def main() -> float:
        with deadline(9), pytest.raises(TimeoutExceededError) as raised:
            await timed(timeout(5, "quote"), forever)()
        return raised.value.seconds

    assert clock.run(main) == 5.0


def test_under_a_deadline_that_has_passed_a_call_ends_at_its_first_wait(timed, clock):
    async def main() -> None:
        with deadline(1):
            await asyncio.sleep(2)
            with pytest.raises(TimeoutExceededError):
                await timed(timeout(5, "quote"), forever)()

    clock.run(main)
    assert clock.monotonic() == 2.0


def test_a_call_under_a_deadline_is_counted_like_any_other(timed, clock):
    policy = timeout(5, "quote")

    async def main() -> None:
        with deadline(3):
            await timed(policy, asyncio.sleep)(1)

    clock.run(main)
    assert policy.snapshot()["success"] == 1


def test_a_coroutine_that_no_task_runs_cannot_be_timed(clock):
    coroutine = timeout(1, "quote").acall(asyncio.sleep, 0)

    async def main() -> None:
        asyncio.get_running_loop().call_soon(step, coroutine)
        await asyncio.sleep(0)

    def step(coroutine) -> None:
        with pytest.raises(RuntimeError, match="timeout 'quote' needs a running task to cancel"):
            coroutine.send(None)

    clock.run(main)


def test_a_coroutine_closed_while_suspended_is_no_longer_in_flight(timed, clock):
    policy = timeout(1, "quote")

    async def main() -> int:
        coroutine = timed(policy, forever)()
        coroutine.send(None)
        assert policy.snapshot()["running"] == 1
        coroutine.close()
        await asyncio.sleep(5)  # its time passes, and nobody is cancelled
        return policy.snapshot()["running"]

    assert clock.run(main) == 0
