"""The calls in flight under one length of time on one event loop, oldest first, behind a single timer.

Arming and cancelling a timer of the event loop for every call costs more than everything else a timeout does. All calls
of one policy may last equally long, so the order in which they began is the order in which their time is up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from everkeel.runtime.expiry import expired_by_us

if TYPE_CHECKING:
    import asyncio

    from everkeel.runtime.clock import Clock


class Again:
    """A task that is inside the same timeout twice (recursion) needs a second key."""

    __slots__ = ("task",)

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self.task = task


Key: TypeAlias = "asyncio.Task[Any] | Again"


def _task(key: Key) -> asyncio.Task[Any]:
    return key.task if isinstance(key, Again) else key


class InFlight:
    """Who is in flight, and until when."""

    __slots__ = ("_clock", "armed", "live", "loop", "seconds")

    def __init__(self, seconds: float, clock: Clock, loop: asyncio.AbstractEventLoop | None) -> None:
        self.seconds, self.loop, self._clock = seconds, loop, clock
        self.armed = False
        self.live: dict[Key, float] = {}  # a task and when its time is up; insertion order is deadline order

    def begin(self, task: asyncio.Task[Any]) -> Key:
        """A call begins in this task."""
        key: Key = task if task not in self.live else Again(task)
        if not self.armed:
            self.arm()
        self.live[key] = self._clock.monotonic() + self.seconds
        return key

    def arm(self, delay: float | None = None) -> None:
        """Set the timer."""
        if self.loop is not None:
            self._clock.later(self.loop, self.seconds if delay is None else delay, self._sweep)
            self.armed = True  # after it is: a clock that refuses must not leave later calls without a timer

    def _sweep(self) -> None:
        now = self._clock.monotonic()
        due: list[Key] = []
        for key, at in self.live.items():
            if at > now:
                self.arm(at - now)
                break
            due.append(key)
        else:
            self.armed = False
        for key in due:
            del self.live[key]  # no longer live: that is how a call learns that its cancellation is ours
            _task(key).cancel()

    def expired(self, key: Key, cancelling: int, error: BaseException | None) -> bool:
        """The call is over: must a timeout be raised in place of its outcome?"""
        if self.live.pop(key, None) is not None:
            return False
        return expired_by_us(_task(key), cancelling, error)
