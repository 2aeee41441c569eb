"""How sync code learns that its time is up, when it is willing to ask.

A thread cannot be interrupted from outside. A body that runs long checks `current_cancellation()` now and then, or
waits with `everkeel.sleep`, which wakes and raises when its time is up.
"""

from __future__ import annotations

import threading
from contextvars import ContextVar

from everkeel.errors import TimeoutExceededError
from everkeel.runtime.clock import DEFAULT, Clock
from everkeel.runtime.deadline import AMBIENT


class Cancellation:
    """The end of the timed call in progress: a moment, or somebody giving up before it."""

    __slots__ = ("_bells", "at", "clock", "error", "given_up")

    def __init__(self, clock: Clock, at: float, error: TimeoutExceededError) -> None:
        self.clock, self.at, self.error = clock, at, error
        self.given_up = False
        """Has the caller stopped waiting?"""
        self._bells: list[threading.Event] = []  # of those who sleep: most calls never do, and a bell is not cheap

    def cancel(self) -> None:
        """The caller has stopped waiting."""
        self.given_up = True  # before bells are looked for: whoever adds one looks at this afterwards
        for bell in tuple(self._bells):
            bell.set()

    def _wait(self, seconds: float) -> bool:
        bell = threading.Event()
        self._bells.append(bell)
        try:
            if self.given_up:
                bell.set()
            return self.clock.wait(bell, seconds)
        finally:
            self._bells.remove(bell)

    @property
    def requested(self) -> bool:
        """Is it time to stop?"""
        return self.given_up or self.clock.monotonic() >= self.at

    def remaining(self) -> float:
        """Seconds left; 0 when it is time to stop."""
        return 0.0 if self.given_up else max(0.0, self.at - self.clock.monotonic())

    def check(self) -> None:
        """Raise `TimeoutExceededError` when it is time to stop."""
        if self.requested:
            raise TimeoutExceededError(self.error.policy, self.error.seconds, self.error.limit)

    def sleep(self, seconds: float) -> None:
        """Sleep, but wake and raise when it is time to stop."""
        left = self.remaining()
        if seconds < left:
            if not self._wait(seconds):
                return
        elif left > 0:
            self._wait(left)
        self.check()


CURRENT: ContextVar[Cancellation | None] = ContextVar("everkeel.cancellation", default=None)


def current_cancellation() -> Cancellation | None:
    """The end of the timed sync call in progress; None outside of one.

    >>> current_cancellation() is None
    True
    """
    return CURRENT.get()


def sleep(seconds: float) -> None:
    """Sleep in sync code that a policy has timed: wakes and raises `TimeoutExceededError` when its time is up.

    Outside of a timed call it sleeps as `time.sleep` does, but not past an ambient deadline.

    >>> sleep(0)
    """
    cancellation = CURRENT.get()
    if cancellation is not None:
        cancellation.sleep(seconds)
        return
    limit = AMBIENT.get()
    if limit is not None:
        left = limit.remaining()
        if seconds >= left:
            if left > 0:
                limit.clock.sleep(left)
            raise limit.error()
    if seconds > 0:
        DEFAULT.sleep(seconds)
