"""The line in front of a limiter. Only the first in it asks for permits, nobody overtakes, and no lock is held.

A waiter that gives up steps out and wakes the next: it leaves no trace, because nothing was reserved for it.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

    from everkeel.runtime.clock import Clock


class ThreadWaiter:
    """A thread in the line."""

    __slots__ = ("_bell", "cost", "key")

    def __init__(self, key: Any, cost: int) -> None:
        self.key, self.cost = key, cost
        self._bell = threading.Event()

    def ring(self) -> None:
        """Look again: you are the first now, or something changed."""
        self._bell.set()

    def wait(self, clock: Clock, seconds: float | None) -> None:
        """Until the bell rings, or so long."""
        clock.wait(self._bell, seconds)
        self._bell.clear()


class TaskWaiter:
    """A task in the line."""

    __slots__ = ("_clock", "_future", "_loop", "cost", "key")

    def __init__(self, key: Any, cost: int, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self.key, self.cost = key, cost
        self._clock, self._loop = clock, loop
        self._future: asyncio.Future[None] = clock.future(loop)

    def ring(self) -> None:
        """Look again. Called from any thread."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        if not self._future.done():
            self._future.set_result(None)

    async def wait(self, clock: Clock, seconds: float | None) -> None:
        """Until the bell rings, or so long."""
        timer = None if seconds is None else clock.later(self._loop, seconds, self._wake)
        try:
            await self._future
        finally:
            if timer is not None:
                timer.cancel()
        self._future = clock.future(self._loop)


class Line:
    """Who waits, in order. All methods are called under the limiter's lock."""

    __slots__ = ("_waiters", "newest_first")

    def __init__(self, *, newest_first: bool) -> None:
        self._waiters: deque[ThreadWaiter | TaskWaiter] = deque()
        self.newest_first = newest_first

    def __len__(self) -> int:
        return len(self._waiters)

    def __contains__(self, waiter: object) -> bool:
        return waiter in self._waiters

    def join(self, waiter: ThreadWaiter | TaskWaiter) -> None:
        """Stand in line."""
        self._waiters.append(waiter)

    def first(self) -> ThreadWaiter | TaskWaiter | None:
        """Whose turn it is."""
        if not self._waiters:
            return None
        return self._waiters[-1] if self.newest_first else self._waiters[0]

    def leave(self, waiter: ThreadWaiter | TaskWaiter) -> None:
        """Step out, with or without permits; whoever is first now is woken."""
        self._waiters.remove(waiter)
        self.wake()

    def wake(self) -> None:
        """Something changed: let the first look again."""
        first = self.first()
        if first is not None:
            first.ring()
