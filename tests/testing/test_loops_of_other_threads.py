"""`clock.new_loop()`: an event loop on the same clock, for a thread of one's own."""

from __future__ import annotations

import asyncio
import threading

from everkeel.runtime.clock import DEFAULT, REAL, use_clock
from everkeel.testing import VirtualClock


def test_on_a_real_clock_it_is_an_ordinary_loop():
    loop = REAL.new_loop()
    try:
        assert loop.run_until_complete(asyncio.sleep(0, "done")) == "done"
    finally:
        loop.close()


def test_the_default_clock_makes_one_of_the_clock_in_use():
    clock = VirtualClock()
    with use_clock(clock):
        assert DEFAULT.here() is clock
        loop = DEFAULT.new_loop()
    assert DEFAULT.here() is REAL
    loop.close()
    assert getattr(loop, "clock", None) is clock


def test_a_loop_in_another_thread_takes_turns_on_the_clock():
    clock = VirtualClock()
    loop = clock.new_loop()
    times, began = [], threading.Event()

    async def ticks() -> None:
        began.set()
        for _ in range(3):
            await asyncio.sleep(10)
            times.append(clock.monotonic())

    def serve() -> None:
        loop.run_until_complete(ticks())
        loop.close()

    thread = threading.Thread(target=serve)
    thread.start()
    assert began.wait(10)
    clock.sleep(25)
    times.append(clock.monotonic())
    thread.join(10)
    assert times == [10.0, 20.0, 25.0, 30.0]


def test_it_does_not_take_silence_for_a_deadlock():
    clock = VirtualClock(patience=0.02)
    loop = clock.new_loop()
    answers = []

    async def waits() -> None:
        future = loop.create_future()
        asked.set()
        waiting.append(future)
        answers.append(await future)

    asked, waiting = threading.Event(), []

    def serve() -> None:
        loop.run_until_complete(waits())
        loop.close()

    thread = threading.Thread(target=serve)
    thread.start()
    assert asked.wait(10)
    threading.Event().wait(0.1)  # longer than its patience
    loop.call_soon_threadsafe(waiting[0].set_result, "at last")
    thread.join(10)
    assert answers == ["at last"]
