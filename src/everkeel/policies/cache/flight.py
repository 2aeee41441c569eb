"""One load, and those who wait for it: threads, and tasks of every event loop."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

from everkeel.runtime.waiting import TaskWaiter, ThreadWaiter

if TYPE_CHECKING:
    import asyncio

    from everkeel.policies.cache.policy import Cache

Waiter: TypeAlias = ThreadWaiter | TaskWaiter


class Flight:
    """A load under way. What is here changes under the policy's lock, until it is `over`."""

    __slots__ = (
        "answered", "background", "error", "keep", "key", "leader", "loop", "over", "task", "thread", "value",
        "waiters",
    )  # fmt: skip

    def __init__(self, key: Hashable, leader: Waiter | None) -> None:
        self.key = key
        self.leader = leader
        """Whose call it is: the one who gets its error. None in the background."""
        self.background = leader is None
        """A refresh: wanted even where nobody waits."""
        self.waiters: set[Waiter] = set() if leader is None else {leader}
        self.thread = threading.get_ident()
        self.task: asyncio.Task[None] | None = None
        self.loop: asyncio.AbstractEventLoop | None = None
        self.keep = True
        """Is its answer worth keeping? Not when the key was invalidated meanwhile."""
        self.over = False
        self.answered = False
        self.value: Any = None
        self.error: BaseException | None = None

    def lost(self) -> bool:
        """Will it never end? Its event loop was closed with the load still in it."""
        return self.loop is not None and self.loop.is_closed()


LEADING: ContextVar[tuple[Flight, ...]] = ContextVar("everkeel.cache.leading", default=())
"""The loads this context is inside of: one that asks for its own answer must not wait for itself."""


def leads(flight: Flight) -> bool:
    """Is the code that asks part of this very load?"""
    return flight in LEADING.get()


class Flights:
    """The loads under way, one for a key."""

    __slots__ = ("_policy", "under_way")

    def __init__(self, policy: Cache) -> None:
        self._policy = policy
        self.under_way: dict[Hashable, Flight] = {}

    def board(self, key: Hashable, waiter: Waiter) -> Flight | None:
        """The load to wait for; one whose `leader` is this waiter is its own to make. None: load without the others."""
        stranded: set[Waiter] = set()
        with self._policy.lock:
            flight = self.under_way.get(key)
            if flight is not None and flight.lost():
                stranded, flight = flight.waiters, None
            if flight is None:
                flight = self.under_way[key] = Flight(key, waiter)
            elif leads(flight) or (isinstance(waiter, ThreadWaiter) and flight.thread == threading.get_ident()):
                return None  # it would wait for itself, or block the event loop that the load needs
            else:
                flight.waiters.add(waiter)
        for other in stranded:
            other.grant()  # they look again, and find this one
        return flight

    def begin(self, key: Hashable) -> Flight | None:
        """A load that nobody waits for; None where there is one already."""
        with self._policy.lock:
            flight = self.under_way.get(key)
            if flight is not None and not flight.lost():
                return None
            flight = self.under_way[key] = Flight(key, None)
        return flight

    def leave(self, flight: Flight, waiter: Waiter) -> bool:
        """This one waits no longer; answers whether the load has nobody left who wants it."""
        with self._policy.lock:
            flight.waiters.discard(waiter)
            if flight.over or flight.waiters or flight.background or flight.task is None:
                return False
            self._take_out(flight)  # whoever comes now begins anew
            return True

    def land(self, flight: Flight, *, answered: bool, value: Any = None, error: BaseException | None = None) -> None:
        """The load is over: tell everybody who waits. Those who get no answer look again, and one of them is next."""
        with self._policy.lock:
            flight.over, flight.answered, flight.value, flight.error = True, answered, value, error
            self._take_out(flight)
            waiters, flight.waiters = flight.waiters, set()
        for waiter in waiters:
            waiter.grant()

    def forget(self, key: Hashable) -> bool:
        """What is being loaded for a key is not to be kept; answers whether anything is."""
        with self._policy.lock:
            flight = self.under_way.pop(key, None)
            if flight is not None:
                flight.keep = False
        return flight is not None

    def forget_all(self) -> None:
        """Nothing that is being loaded is to be kept."""
        with self._policy.lock:
            for flight in self.under_way.values():
                flight.keep = False
            self.under_way.clear()

    def _take_out(self, flight: Flight) -> None:
        if self.under_way.get(flight.key) is flight:
            del self.under_way[flight.key]


async def abandon(flight: Flight, error: BaseException | None) -> None:
    """Nobody wants this load any more: cancel it and, where it is ours to see, wait until it has ended."""
    task, loop = flight.task, flight.loop
    if task is None or loop is None or loop.is_closed():
        return
    if flight.thread != threading.get_ident():
        loop.call_soon_threadsafe(task.cancel)
        return
    from asyncio import CancelledError, wait

    task.cancel()
    if error is None or isinstance(error, CancelledError):  # not while a coroutine is closed: that may not await
        await wait([task])
