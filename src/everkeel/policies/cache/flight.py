"""One load, and those who wait for it: threads, and tasks of every event loop."""

from __future__ import annotations

import threading
from collections.abc import Hashable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

from everkeel.runtime.waiting import TaskWaiter, ThreadWaiter

if TYPE_CHECKING:
    import asyncio

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
