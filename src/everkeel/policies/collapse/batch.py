"""Calls on their way together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from contextvars import Context, copy_context
from typing import TYPE_CHECKING, Any

from everkeel.policies.collapse.core import Call
from everkeel.runtime.deadline import AMBIENT, Deadline
from everkeel.runtime.outcome import Outcome
from everkeel.runtime.waiting import TaskWaiter, ThreadWaiter

if TYPE_CHECKING:
    import asyncio


class Seat:
    """One call in a batch."""

    __slots__ = ("deadline", "item", "outcome", "waiter")

    def __init__(self, item: Any, waiter: ThreadWaiter | TaskWaiter) -> None:
        self.item, self.waiter = item, waiter
        self.deadline = AMBIENT.get()
        self.outcome: Outcome | None = None


class Batch:
    """Calls that are collected, then sent. What is here changes under the policy's lock."""

    __slots__ = ("call", "context", "fn", "full", "key", "loop", "opened_at", "over", "seats", "sent", "task", "timer")

    def __init__(self, key: Hashable, fn: Callable[..., Any], call: Call, opened_at: float) -> None:
        self.key, self.fn, self.call, self.opened_at = key, fn, call, opened_at
        self.context: Context = copy_context()  # of whoever came first
        self.seats: list[Seat] = []
        self.sent = False
        self.over = False
        self.full = threading.Event()
        """Wakes the thread that waits for the window to end."""
        self.loop: asyncio.AbstractEventLoop | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None

    def deadline(self) -> Deadline | None:
        """The latest deadline of all: the batch is of use until then. None where one of them has none."""
        limits = [seat.deadline for seat in self.seats]
        if any(limit is None for limit in limits):
            return None
        return max((limit for limit in limits if limit is not None), key=lambda limit: limit.at, default=None)
