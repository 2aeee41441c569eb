"""Those who wait, threads and tasks alike: each is granted what it waits for or gives up; what happens first counts."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio

    from everkeel.runtime.clock import Clock


class ThreadWaiter:
    """A thread that waits."""

    __slots__ = ("_event", "granted")

    def __init__(self) -> None:
        self.granted = False
        self._event = threading.Event()

    def grant(self) -> None:
        """Here it is."""
        self.granted = True
        self._event.set()

    def wake(self) -> None:
        """There is no use in waiting longer."""
        self._event.set()

    def wait(self, clock: Clock, seconds: float | None) -> None:
        """Until granted, or so long."""
        clock.wait(self._event, seconds)


class TaskWaiter:
    """A task that waits."""

    __slots__ = ("_future", "_loop", "_thread", "granted")

    def __init__(self, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self.granted = False
        self._loop, self._thread = loop, threading.get_ident()
        self._future: asyncio.Future[None] = clock.future(loop)

    def grant(self) -> None:
        """Here it is. From any thread."""
        self.granted = True
        self.wake()

    def wake(self) -> None:
        """There is no use in waiting longer. From any thread."""
        try:
            if threading.get_ident() == self._thread:
                self._wake()
            else:
                self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            # It went away with whoever waited on it; the others still have to hear.

    def _wake(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    async def wait(self, clock: Clock, seconds: float | None) -> None:
        """Until granted, or so long."""
        timer = None if seconds is None else clock.later(self._loop, seconds, self._wake)
        try:
            await self._future
        finally:
            if timer is not None:
                timer.cancel()
