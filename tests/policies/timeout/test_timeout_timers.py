"""One timer for all calls of a policy on an event loop; several loops; changes while calls are in flight."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref

import pytest

from everkeel import TimeoutExceededError, timeout
from everkeel.testing import VirtualClock


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


async def briefly() -> str:
    await asyncio.sleep(0)
    return "answer"


def count_timers() -> list[float]:
    """From now on, the length of every timer armed on the running loop."""
    loop, armed = asyncio.get_running_loop(), []
    original = loop.call_later

    def call_later(delay, *args, **kwargs):
        armed.append(delay)
        return original(delay, *args, **kwargs)

    loop.call_later = call_later  # type: ignore[method-assign]
    return armed


def test_calls_that_run_at_once_share_one_timer(timed, clock):
    call = timed(timeout(1, "quote"), briefly)

    async def main() -> int:
        armed = count_timers()
        await asyncio.gather(*(call() for _ in range(100)))
        return len(armed)

    assert clock.run(main) == 1


def test_calls_one_after_another_share_one_timer(timed, clock):
    call = timed(timeout(1, "quote"), briefly)

    async def main() -> int:
        armed = count_timers()
        for _ in range(100):
            await call()
        return len(armed)

    assert clock.run(main) == 1


def test_the_timer_is_armed_anew_only_for_whoever_is_next(timed, clock):
    call = timed(timeout(1, "quote"), asyncio.sleep)

    async def main() -> list[float]:
        first = asyncio.create_task(call(0.25))
        await asyncio.sleep(0.5)
        armed = count_timers()
        with pytest.raises(TimeoutExceededError):
            await call(60)
        await first
        return [delay for delay in armed if delay != 60]

    assert clock.run(main) == [0.5]
    assert clock.monotonic() == 1.5


def test_an_idle_policy_leaves_no_timer_running_for_ever(timed, clock):
    call = timed(timeout(1, "quote"), briefly)

    async def main() -> list[float]:
        await call()
        await asyncio.sleep(5)
        armed = count_timers()
        await asyncio.sleep(60)
        return armed

    assert clock.run(main) == [60]


def test_each_of_many_staggered_calls_expires_at_its_own_time(timed, clock):
    call, ends = timed(timeout(1, "quote"), forever), []

    async def one(begins: float) -> None:
        await asyncio.sleep(begins)
        with pytest.raises(TimeoutExceededError):
            await call()
        ends.append((begins, clock.monotonic()))

    async def main() -> None:
        await asyncio.gather(*(one(i / 64) for i in range(50)))

    clock.run(main)
    assert ends == [(i / 64, i / 64 + 1) for i in range(50)]


def test_a_timer_that_goes_off_early_ends_nobody_early(timed):
    class Hasty(VirtualClock):
        """Its timers go off early, as those of some event loops do."""

        def later(self, loop, seconds, act):
            return super().later(loop, seconds * 0.9, act)

    hasty = Hasty()
    with pytest.raises(TimeoutExceededError):
        hasty.run(timed(timeout(1, clock=hasty), forever)())
    assert hasty.monotonic() >= 1.0


def test_nobody_is_ended_early_in_real_time(timed):
    seconds, taken = 0.005, []

    async def one(call) -> None:
        began = time.monotonic()
        with pytest.raises(TimeoutExceededError):
            await call()
        taken.append(time.monotonic() - began)

    async def main() -> None:
        call = timed(timeout(seconds), forever)
        for _ in range(3):
            await asyncio.gather(*(one(call) for _ in range(20)))

    asyncio.run(main())
    assert len(taken) == 60
    assert min(taken) >= seconds


def test_a_clock_that_refuses_a_timer_does_not_leave_later_calls_without_one(timed, clock):
    policy = timeout(1, clock=clock)
    call = timed(policy, forever)

    async def refused() -> None:
        with pytest.raises(RuntimeError, match="needs an event loop that runs on it"):
            await call()
        with pytest.raises(RuntimeError, match="needs an event loop that runs on it"):
            await call()

    asyncio.run(refused())
    assert policy.snapshot()["running"] == 0


# ------------------------------------------------------------------ several event loops


def test_loops_one_after_another(timed):
    call = timed(timeout(0.01), asyncio.sleep)
    for _ in range(3):
        assert asyncio.run(call(0, "answer")) == "answer"
        with pytest.raises(TimeoutExceededError):
            asyncio.run(call(60))


def test_loops_in_threads_at_once(timed):
    policy, together, came = timeout(0.05), threading.Barrier(4), []

    def thread() -> None:
        async def main() -> list[object]:
            call = timed(policy, asyncio.sleep)
            together.wait()
            return await asyncio.gather(*(call(60 * (i % 2), i) for i in range(20)), return_exceptions=True)

        came.append(asyncio.run(main()))

    threads = [threading.Thread(target=thread) for _ in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(came) == 4
    for results in came:
        assert [result for result in results if isinstance(result, int)] == list(range(0, 20, 2))
        assert sum(isinstance(result, TimeoutExceededError) for result in results) == 10
    assert policy.snapshot()["running"] == 0


def test_loops_that_have_ended_are_not_kept_alive(timed):
    call, loops = timed(timeout(1), briefly), []

    async def main() -> None:
        loops.append(weakref.ref(asyncio.get_running_loop()))
        await call()

    for _ in range(5):
        asyncio.run(main())
    gc.collect()
    assert [loop() for loop in loops[:-1]] == [None] * 4


def test_loops_that_take_turns_in_one_thread(timed):
    call = timed(timeout(0.01), forever)
    with asyncio.Runner() as one, asyncio.Runner() as other:
        for runner in (one, other, one, other):
            with pytest.raises(TimeoutExceededError):
                runner.run(call())


# ------------------------------------------------------------------ live changes


@pytest.mark.parametrize(("before", "after"), [(1, 10), (10, 1)])
def test_a_call_in_flight_keeps_its_time_when_the_length_changes(timed, clock, before, after):
    policy, ends = timeout(before, "quote"), {}
    call = timed(policy, forever)

    async def one(name: str) -> None:
        with pytest.raises(TimeoutExceededError) as raised:
            await call()
        ends[name] = (clock.monotonic(), raised.value.seconds)

    async def main() -> None:
        first = asyncio.create_task(one("first"))
        await asyncio.sleep(0)
        policy.reconfigure(seconds=after)
        await asyncio.gather(first, one("second"))

    clock.run(main)
    assert ends == {"first": (before, before), "second": (after, after)}


def test_a_mode_change_in_flight_changes_nothing_for_the_call(timed, clock):
    policy = timeout(1, "quote")

    async def main() -> None:
        task = asyncio.create_task(timed(policy, forever)())
        await asyncio.sleep(0)
        policy.mode = "off"
        with pytest.raises(TimeoutExceededError):
            await task

    clock.run(main)
    assert clock.monotonic() == 1.0


def test_derive_makes_a_timeout_of_its_own(clock):
    short = timeout(1, "quote", runs="inline", gap=3).derive("quick", seconds=0.5)
    assert (short.name, short.config.seconds, short.config.runs, short.config.gap) == ("quick", 0.5, "inline", 3.0)
