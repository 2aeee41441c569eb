"""The clock that jumps, in one thread and in several."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from everkeel.runtime.clock import DEFAULT
from everkeel.testing import VirtualClock, run, virtual_time


def in_a_thread(act: Callable[[], Any]) -> Callable[[], Any]:
    """Start `act` in a thread; calling the answer waits for it and gives what it returned."""
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(act()))
    thread.start()

    def result() -> Any:
        thread.join()
        return results[0]

    return result


# ------------------------------------------------------------------ one thread


def test_a_sleep_jumps_the_clock() -> None:
    clock = VirtualClock()
    clock.sleep(3600)
    assert clock.monotonic() == 3600


def test_every_sleep_is_recorded_in_its_order() -> None:
    clock = VirtualClock()
    clock.sleep(0.2)
    clock.sleep(0.4)
    clock.sleep(0)
    assert clock.sleeps == [0.2, 0.4, 0]


def test_wall_time_moves_along() -> None:
    clock = VirtualClock(start=100, wall=datetime(2030, 6, 1, tzinfo=UTC))
    clock.sleep(60)
    assert datetime.fromtimestamp(clock.time(), UTC) == datetime(2030, 6, 1, 0, 1, tzinfo=UTC)
    assert clock.monotonic() == 160


def test_wall_time_starts_at_the_same_moment_in_every_run() -> None:
    assert datetime.fromtimestamp(VirtualClock().time(), UTC) == datetime(2026, 1, 1, tzinfo=UTC)


def test_the_same_seed_draws_the_same_numbers() -> None:
    one, same, other = VirtualClock(seed=7), VirtualClock(seed=7), VirtualClock(seed=8)
    drawn = [one.random() for _ in range(5)]
    assert drawn == [same.random() for _ in range(5)]
    assert drawn != [other.random() for _ in range(5)]


def test_the_seed_is_recorded_and_shown() -> None:
    clock = VirtualClock(seed=42)
    clock.sleep(1.5)
    assert clock.seed == 42
    assert repr(clock) == "<VirtualClock at 1.5 s, seed 42>"


def test_advance_moves_time_without_a_sleep() -> None:
    clock = VirtualClock()
    clock.advance(30)
    assert (clock.monotonic(), clock.sleeps) == (30, [])


def test_time_does_not_run_backwards() -> None:
    clock = VirtualClock()
    with pytest.raises(ValueError, match="backwards"):
        clock.advance(-1)
    with pytest.raises(ValueError, match="non-negative"):
        clock.sleep(-1)
    assert clock.monotonic() == 0


def test_a_wait_for_an_event_that_is_set_takes_no_time() -> None:
    clock, event = VirtualClock(), threading.Event()
    event.set()
    assert clock.wait(event, 10) is True
    assert clock.wait(event, None) is True
    assert clock.monotonic() == 0


def test_a_wait_for_an_event_that_nobody_sets_jumps_to_its_end() -> None:
    clock = VirtualClock()
    assert clock.wait(threading.Event(), 10) is False
    assert clock.monotonic() == 10


def test_a_wait_of_no_length_only_looks() -> None:
    clock = VirtualClock()
    assert clock.wait(threading.Event(), 0) is False
    assert clock.wait(threading.Event(), -1) is False
    assert clock.monotonic() == 0


# ------------------------------------------------------------------ several threads


def test_an_event_that_a_real_thread_sets_ends_the_wait_before_its_time() -> None:
    clock, event = VirtualClock(), threading.Event()
    done = in_a_thread(event.set)
    assert clock.wait(event, 10) is True
    assert clock.monotonic() == 0
    done()


def test_a_worker_that_sleeps_beyond_the_wait_is_too_late() -> None:
    clock, event = VirtualClock(), threading.Event()

    def work() -> None:
        clock.sleep(5)
        event.set()

    done = in_a_thread(work)
    assert clock.wait(event, 2) is False
    assert clock.monotonic() == 2
    done()
    assert clock.monotonic() == 5


def test_a_worker_that_sleeps_less_than_the_wait_is_in_time() -> None:
    clock, event = VirtualClock(), threading.Event()

    def work() -> None:
        clock.sleep(1)
        event.set()

    done = in_a_thread(work)
    assert clock.wait(event, 2) is True
    assert clock.monotonic() == 1
    done()


def test_an_event_set_when_the_clock_has_passed_the_deadline_does_not_count() -> None:
    clock, event, parked = VirtualClock(grace=0.05), threading.Event(), threading.Event()

    def wait() -> bool:
        parked.set()
        return clock.wait(event, 2)

    answer = in_a_thread(wait)
    parked.wait()
    while not clock.turns.parked:
        pass
    clock.advance(3)
    event.set()  # the waiting thread may not even have woken up by now
    assert answer() is False


def test_an_event_set_before_the_clock_passes_the_deadline_counts() -> None:
    clock, event = VirtualClock(grace=5), threading.Event()
    answer = in_a_thread(lambda: clock.wait(event, 2))
    while not clock.turns.parked:
        pass
    event.set()
    clock.advance(3)
    assert answer() is True


def test_threads_wake_in_the_order_of_their_deadlines() -> None:
    clock = VirtualClock()
    woken: list[tuple[int, float]] = []
    together = threading.Barrier(3)

    def sleeper(seconds: int) -> Callable[[], None]:
        def sleep() -> None:
            together.wait()
            clock.sleep(seconds)
            woken.append((seconds, clock.monotonic()))

        return sleep

    done = [in_a_thread(sleeper(seconds)) for seconds in (30, 10, 20)]
    for result in done:
        result()
    assert woken == [(10, 10), (20, 20), (30, 30)]


def test_a_worker_that_is_really_at_work_is_not_overtaken() -> None:
    clock, event = VirtualClock(), threading.Event()

    def work() -> None:
        time.sleep(0.1)
        event.set()

    done = in_a_thread(work)
    assert clock.wait(event, 2) is True
    assert clock.monotonic() == 0
    done()


def test_an_idle_worker_from_before_the_clock_that_is_given_work_is_not_overtaken() -> None:
    given, event = threading.Event(), threading.Event()

    def work() -> None:
        given.wait()
        time.sleep(0.1)
        event.set()

    done = in_a_thread(work)
    clock = VirtualClock()
    given.set()
    assert clock.wait(event, 2) is True
    done()


def test_a_worker_that_is_at_work_for_too_long_is_overtaken() -> None:
    clock, event = VirtualClock(patience=0.05), threading.Event()

    def work() -> None:
        while clock.monotonic() < 2:
            time.sleep(0.001)
        event.set()

    done = in_a_thread(work)
    assert clock.wait(event, 2) is False
    done()


def test_a_thread_that_waits_for_another_one_holds_nobody_up() -> None:
    clock, event = VirtualClock(patience=60), threading.Event()
    began = time.monotonic()
    idle = in_a_thread(event.wait)
    sleeper = in_a_thread(lambda: clock.sleep(10))
    sleeper()
    event.set()
    idle()
    assert clock.monotonic() == 10
    assert time.monotonic() - began < 5


def test_two_threads_that_sleep_together_share_the_time() -> None:
    clock, together = VirtualClock(), threading.Barrier(2)

    def sleep() -> float:
        together.wait()
        clock.sleep(10)
        return clock.monotonic()

    one, two = in_a_thread(sleep), in_a_thread(sleep)
    assert (one(), two()) == (10, 10)


# ------------------------------------------------------------------ event loops


def test_an_async_sleep_jumps_on_a_loop_of_this_clock_and_is_recorded() -> None:
    clock = VirtualClock()
    clock.run(clock.asleep(60))
    assert (clock.monotonic(), clock.sleeps) == (60, [60])


def test_an_async_sleep_jumps_even_on_a_real_loop() -> None:
    clock = VirtualClock()
    asyncio.run(clock.asleep(60))
    assert (clock.monotonic(), clock.sleeps) == (60, [60])


def test_a_timer_on_a_real_loop_is_refused_rather_than_waited_for() -> None:
    async def arm() -> None:
        VirtualClock().later(asyncio.get_running_loop(), 60, print)

    with pytest.raises(RuntimeError, match="needs an event loop that runs on it"):
        asyncio.run(arm())


def test_a_timer_goes_off_at_its_time() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        rang = DEFAULT.future(loop)
        DEFAULT.later(loop, 5, lambda: rang.set_result(DEFAULT.monotonic()))
        return float(await rang)

    assert run(main) == 5


# ------------------------------------------------------------------ as a block


def test_a_block_of_virtual_time_is_virtual_inside_and_real_outside() -> None:
    with virtual_time(start=10) as clock:
        DEFAULT.sleep(3600)
        assert DEFAULT.monotonic() == 3610 == clock.monotonic()
    assert DEFAULT.monotonic() != 3610


def test_another_thread_keeps_real_time() -> None:
    with virtual_time():
        DEFAULT.sleep(-DEFAULT.monotonic() + 1e9)
        elsewhere = in_a_thread(DEFAULT.monotonic)()
    assert elsewhere < 1e9


def test_coroutines_run_on_the_clock_of_the_block() -> None:
    with virtual_time() as clock:
        clock.run(asyncio.sleep(60))
        clock.run(asyncio.sleep(60))
    assert clock.monotonic() == 120
