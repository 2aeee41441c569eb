"""The line in front of a limiter. Only the first in it asks for permits, nobody overtakes, and no lock is held.

A waiter that gives up steps out and wakes the next: it leaves no trace, because nothing was reserved for it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

    from everkeel.runtime.clock import Clock


class Waiter:
    """Somebody in the line: who wants how much, and until when it is willing to wait."""

    __slots__ = ("cost", "granted", "key", "limit", "until")

    def __init__(self, key: Hashable, limit: Any, cost: int, until: int | None) -> None:
        self.key, self.limit, self.cost, self.until = key, limit, cost, until
        self.granted = False

    def ring(self) -> None:
        """Look again: you are the first now, or something changed. From any thread."""

    def is_gone(self) -> bool:
        """Will it never look again?"""
        return False


class ThreadWaiter(Waiter):
    """A thread in the line."""

    __slots__ = ("_bell",)

    def __init__(self, key: Hashable, limit: Any, cost: int, until: int | None, clock: Clock) -> None:
        super().__init__(key, limit, cost, until)
        self._bell = threading.Event()

    def ring(self) -> None:
        self._bell.set()

    def wait(self, clock: Clock, seconds: float | None) -> None:
        """Until the bell rings, or so long."""
        clock.wait(self._bell, seconds)
        self._bell.clear()


class TaskWaiter(Waiter):
    """A task in the line."""

    __slots__ = ("_future", "_loop")

    def __init__(self, key: Hashable, limit: Any, cost: int, until: int | None, clock: Clock) -> None:
        from asyncio import get_running_loop

        super().__init__(key, limit, cost, until)
        self._loop: asyncio.AbstractEventLoop = get_running_loop()
        self._future: asyncio.Future[None] = clock.future(self._loop)

    def ring(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._wake)
        except RuntimeError:  # the loop was closed
            pass

    def is_gone(self) -> bool:
        return self._loop.is_closed()

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

    __slots__ = ("_waiters", "cost", "newest_first")

    def __init__(self, *, newest_first: bool) -> None:
        self._waiters: deque[Waiter] = deque()
        self.newest_first = newest_first
        self.cost = 0
        """What all of them want, together."""

    def __len__(self) -> int:
        return len(self._waiters)

    def join(self, waiter: Waiter) -> None:
        """Stand in line."""
        self._waiters.append(waiter)
        self.cost += waiter.cost

    def first(self) -> Waiter:
        """Whose turn it is."""
        return self._waiters[-1] if self.newest_first else self._waiters[0]

    def leave(self, waiter: Waiter) -> bool:
        """Step out, with or without permits; False if it was not there."""
        try:
            self._waiters.remove(waiter)
        except ValueError:
            return False
        self.cost -= waiter.cost
        return True

    def wake(self) -> None:
        """Something changed: let the first look again."""
        if self._waiters:
            self.first().ring()
