"""What a wake-up signal must do, as tests: little, because nothing may depend on it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from everkeel.engines.protocols import Wakeup


class WakeupContract:
    """A hint: it wakes who waits, it is not lost between two waits, and whoever hears nothing stops waiting in time."""

    def open(self) -> AbstractAsyncContextManager[Wakeup]:
        """Open a signal: yours to write."""
        raise NotImplementedError("a contract needs `open`, an async context manager that yields a Wakeup")

    def run(self, test: Callable[[Wakeup], Awaitable[None]]) -> None:
        """Run one test."""

        async def opened() -> None:
            async with self.open() as wakeup:
                await test(wakeup)

        asyncio.run(opened())

    def test_who_waits_is_woken(self) -> None:
        async def test(wakeup: Wakeup) -> None:
            waiting = asyncio.ensure_future(wakeup.wait("a", 30))
            await asyncio.sleep(0)
            wakeup.notify("a")
            assert await waiting

        self.run(test)

    def test_a_signal_between_two_waits_is_heard_by_the_next(self) -> None:
        async def test(wakeup: Wakeup) -> None:
            wakeup.notify("a")
            assert await wakeup.wait("a", 30)

        self.run(test)

    def test_who_hears_nothing_stops_waiting_in_time(self) -> None:
        async def test(wakeup: Wakeup) -> None:
            assert not await wakeup.wait("quiet", 0.01)

        self.run(test)

    def test_another_topic_wakes_nobody(self) -> None:
        async def test(wakeup: Wakeup) -> None:
            wakeup.notify("b")
            assert not await wakeup.wait("a", 0.01)

        self.run(test)

    def test_several_who_wait_are_all_woken(self) -> None:
        async def test(wakeup: Wakeup) -> None:
            waiting = [asyncio.ensure_future(wakeup.wait("a", 30)) for _ in range(3)]
            await asyncio.sleep(0)
            wakeup.notify("a")
            assert await asyncio.gather(*waiting) == [True, True, True]

        self.run(test)

    def test_another_thread_can_wake(self) -> None:
        async def test(wakeup: Wakeup) -> None:
            waiting = asyncio.ensure_future(wakeup.wait("a", 30))
            await asyncio.sleep(0)
            thread = threading.Thread(target=wakeup.notify, args=("a",))
            thread.start()
            assert await waiting
            thread.join()

        self.run(test)

    def test_a_wait_that_is_cancelled_leaves_nothing_behind(self) -> None:
        async def test(wakeup: Wakeup) -> None:
            waiting = asyncio.ensure_future(wakeup.wait("a", 30))
            await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            wakeup.notify("a")
            assert await wakeup.wait("a", 30)

        self.run(test)
