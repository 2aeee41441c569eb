"""Time comes from the Clock: real by default, another one for a context, another one for a policy."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from everkeel import Clock, retry, use_clock
from everkeel.runtime.clock import DEFAULT, REAL
from everkeel.testing import Flaky, VirtualClock


class Stopped(Clock):
    """A clock that stands still."""

    def __init__(self, now: float) -> None:
        self.now = now
        self.slept: list[float] = []

    def monotonic(self) -> float:  # type: ignore[override]
        return self.now

    def sleep(self, seconds: float) -> None:  # type: ignore[override]
        self.slept.append(seconds)

    async def asleep(self, seconds: float) -> None:
        self.slept.append(seconds)


def in_a_thread(act):
    """What `act()` answers in a thread of its own."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(act()))
    thread.start()
    thread.join()
    return answers[0]


# ------------------------------------------------------------------ real time


def test_by_default_time_is_real() -> None:
    before = time.monotonic()
    assert before <= DEFAULT.monotonic() <= time.monotonic()
    assert time.time() - 60 < DEFAULT.time() < time.time() + 60
    assert DEFAULT.monotonic_ns() > 0
    assert 0 <= DEFAULT.random() < 1


def test_a_real_clock_waits_for_an_event_of_another_thread() -> None:
    event = threading.Event()
    assert not REAL.wait(event, 0)
    threading.Thread(target=event.set).start()
    assert REAL.wait(event, None)


def test_a_real_clock_sleeps_and_rings_on_a_real_loop() -> None:
    async def main() -> list[str]:
        rang: list[str] = []
        future = DEFAULT.future(asyncio.get_running_loop())
        DEFAULT.later(asyncio.get_running_loop(), 0, lambda: future.set_result("rang"))
        await DEFAULT.asleep(0)
        rang.append(await future)
        return rang

    assert asyncio.run(main()) == ["rang"]


def test_a_clock_whose_time_is_its_own_tells_it_in_nanoseconds_too() -> None:
    assert Stopped(1.5).monotonic_ns() == 1_500_000_000


# ------------------------------------------------------------------ another clock for a context


def test_a_block_has_the_clock_it_chose() -> None:
    with use_clock(Stopped(7.0)) as chosen:
        assert DEFAULT.monotonic() == 7.0
        assert chosen.monotonic() == 7.0
    assert DEFAULT.monotonic() != 7.0


def test_blocks_nest() -> None:
    with use_clock(Stopped(1.0)):
        with use_clock(Stopped(2.0)):
            assert DEFAULT.monotonic() == 2.0
        assert DEFAULT.monotonic() == 1.0


def test_a_block_that_fails_gives_real_time_back() -> None:
    with pytest.raises(ZeroDivisionError), use_clock(Stopped(1.0)):
        raise ZeroDivisionError
    assert DEFAULT.monotonic() != 1.0
    assert "monotonic" not in vars(DEFAULT)


def test_another_thread_keeps_real_time() -> None:
    with use_clock(Stopped(-1.0)):
        assert in_a_thread(DEFAULT.monotonic) > 0


def test_two_threads_have_each_their_own() -> None:
    both_inside = threading.Barrier(2)

    def read(now: float) -> float:
        with use_clock(Stopped(now)):
            both_inside.wait()
            seen = DEFAULT.monotonic()
            both_inside.wait()
            return seen

    answers: list[float] = []
    threads = [threading.Thread(target=lambda now=now: answers.append(read(now))) for now in (1.0, 2.0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers) == [1.0, 2.0]


def test_a_task_started_inside_takes_the_clock_along() -> None:
    async def main() -> float:
        with use_clock(Stopped(3.0)):
            task = asyncio.create_task(asyncio.to_thread(DEFAULT.monotonic))
        assert DEFAULT.monotonic() != 3.0
        return await task

    assert asyncio.run(main()) == 3.0


def test_a_function_woven_before_follows(fresh_everkeel) -> None:
    fetch = Flaky("first", OSError, "second", OSError, "third")
    guarded = retry(backoff=60, jitter=None)(lambda: fetch())
    assert guarded() == "first"
    with use_clock(Stopped(0.0)) as chosen:
        assert guarded() == "second"
        assert guarded() == "third"
    assert chosen.slept == [60.0, 60.0]


def test_an_async_function_woven_before_follows(fresh_everkeel) -> None:
    fetch = Flaky("first", OSError, "second").async_()
    guarded = retry(backoff=60, jitter=None)(lambda: fetch())
    chosen = Stopped(0.0)

    @retry(backoff=60, jitter=None)
    async def call() -> object:
        return await fetch()

    async def main() -> object:
        await call()
        with use_clock(chosen):
            return await call()

    assert asyncio.run(main()) == "second"
    assert chosen.slept == [60.0]
    assert callable(guarded)


def test_a_woven_function_called_in_another_thread_keeps_real_time(fresh_everkeel) -> None:
    fetch = Flaky(OSError, "answer")
    guarded = retry(backoff=0.001, jitter=None)(lambda: fetch())
    with use_clock(Stopped(0.0)) as chosen:
        assert in_a_thread(guarded) == "answer"
    assert chosen.slept == []


# ------------------------------------------------------------------ another clock for a policy


def test_a_policy_may_have_a_clock_of_its_own(fresh_everkeel) -> None:
    own = Stopped(0.0)
    policy = retry(backoff=5, jitter=None, clock=own)
    with use_clock(Stopped(9.0)) as chosen:
        assert policy.call(Flaky(OSError, "answer")) == "answer"
    assert own.slept == [5.0]
    assert chosen.slept == []


def test_a_policy_derived_from_it_has_the_same(fresh_everkeel) -> None:
    own = VirtualClock()
    policy = retry(backoff=5, jitter=None, clock=own).derive(attempts=2)
    assert policy.call(Flaky(OSError, "answer")) == "answer"
    assert own.sleeps == [5.0]
