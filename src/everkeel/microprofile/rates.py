"""How often a method may be called: the three kinds of `RateLimit`, told the time, asked whether a call may go ahead.

Beyond the standard, with the meaning Java services know: a fixed and a rolling window count calls they refuse, so that
a caller who does not slow down is let in less often; the smooth kind does not.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol


class Rate(Protocol):
    """One limit. Not safe by itself for several threads at once."""

    def wait_for(self, now: float) -> float:
        """0 where a call may go ahead now; otherwise the seconds after which it is worth coming back."""
        ...


class FixedRate:
    """So many calls in each window; windows follow each other from the first call on.

    >>> rate = FixedRate(permits=1, window=10.0)
    >>> [rate.wait_for(now) for now in (0.0, 4.0, 10.0)]
    [0.0, 6.0, 0.0]
    """

    def __init__(self, permits: int, window: float, spacing: float = 0.0) -> None:
        self._permits, self._window, self._spacing = permits, window, spacing
        self._began: float | None = None
        self._count = 0
        self._last: float | None = None

    def wait_for(self, now: float) -> float:
        if self._began is None:
            self._began = now
        elif now - self._began >= self._window:
            # Windows follow each other without gaps, however long nobody called.
            self._began += (now - self._began) // self._window * self._window
            self._count = 0
        self._count += 1
        crowded = self._began + self._window - now if self._count > self._permits else 0.0
        close = _too_close(self._last, now, self._spacing)
        self._last = now
        return max(crowded, close)


class RollingRate:
    """So many calls in any stretch of time as long as the window.

    >>> rate = RollingRate(permits=1, window=10.0)
    >>> [rate.wait_for(now) for now in (0.0, 4.0, 10.0, 20.0)]
    [0.0, 10.0, 10.0, 0.0]
    """

    def __init__(self, permits: int, window: float, spacing: float = 0.0) -> None:
        self._window, self._spacing = window, spacing
        self._calls: deque[float] = deque(maxlen=permits)
        self._last: float | None = None

    def wait_for(self, now: float) -> float:
        full = len(self._calls) == self._calls.maxlen
        oldest = self._calls[0] if full else None
        self._calls.append(now)
        crowded = 0.0
        if oldest is not None and now - oldest < self._window:
            crowded = self._calls[0] + self._window - now  # the refused call counts: the next oldest must leave too
        close = _too_close(self._last, now, self._spacing)
        self._last = now
        return max(crowded, close)


class SmoothRate:
    """Calls evenly spread: permits come back one by one, and may be saved up while nobody calls. It begins with one.

    >>> rate = SmoothRate(permits=2, window=8.0)
    >>> [rate.wait_for(now) for now in (0.0, 3.0, 4.0, 100.0, 100.0, 100.0)]
    [0.0, 1.0, 0.0, 0.0, 0.0, 4.0]
    """

    def __init__(self, permits: int, window: float, spacing: float = 0.0) -> None:
        self._most, self._each, self._spacing = permits, window / permits, spacing
        self._left = 1.0
        self._refilled: float | None = None
        self._last: float | None = None

    def wait_for(self, now: float) -> float:
        if self._refilled is not None:
            self._left = min(float(self._most), self._left + (now - self._refilled) / self._each)
        self._refilled = now
        close = _too_close(self._last, now, self._spacing)
        self._last = now
        missing = 1.0 - self._left
        if missing > 1e-9 or close:  # what many small refills add up to may be a hair less than one
            return max(missing * self._each, close, 0.0)
        self._left = max(0.0, self._left - 1.0)
        return 0.0


def _too_close(last: float | None, now: float, spacing: float) -> float:
    return spacing if last is not None and now - last < spacing else 0.0


KINDS: dict[str, type[FixedRate] | type[RollingRate] | type[SmoothRate]] = {
    "FIXED": FixedRate,
    "ROLLING": RollingRate,
    "SMOOTH": SmoothRate,
}
