"""What metrics are counted with: made to cost a call next to nothing, and read at leisure."""

from __future__ import annotations

import os
import threading
from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, sqrt
from typing import Any
from weakref import WeakSet

from everkeel.runtime.clock import DEFAULT
from everkeel.runtime.tally import read, tally

BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Where the buckets of histograms end, in seconds, each bound included in its bucket."""

RECENT = 1024


_after_fork: WeakSet[Any] = WeakSet()
"""What must be told in a forked child, where a lock may be held by a thread that does not exist there."""


def tell_after_fork(one: Any) -> None:
    """Call `one.after_fork()` in every child that is forked from here on."""
    _after_fork.add(one)


def _forked() -> None:
    for one in list(_after_fork):
        one.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Count:
    """A number that only grows."""

    __slots__ = ("_tally",)

    def __init__(self) -> None:
        self._tally = tally()

    def add(self) -> None:
        """One more."""
        next(self._tally)

    def read(self) -> int:
        """How many so far."""
        return read(self._tally)


class Level:
    """A number that goes up and down: how many are inside now."""

    __slots__ = ("__weakref__", "_in", "_out")

    def __init__(self) -> None:
        self._in, self._out = tally(), tally()
        tell_after_fork(self)

    def after_fork(self) -> None:
        """Nothing that is inside in the parent is inside here."""
        self._in, self._out = tally(), tally()

    def up(self) -> None:
        """One more inside."""
        next(self._in)

    def down(self) -> None:
        """One less inside."""
        next(self._out)

    def read(self) -> int:
        """How many are inside now."""
        out = read(self._out)  # first: whoever comes and goes in between must not make it negative
        return read(self._in) - out


@dataclass(frozen=True, slots=True)
class Spread:
    """What a histogram holds: exact counts, and statistics of its last values."""

    count: int
    sum: float
    buckets: tuple[int, ...]
    """How many values are in each bucket, the last being those above every bound."""
    recent: tuple[float, ...]
    """The last values, in order of size."""

    def quantile(self, share: float) -> float:
        """The value that this share of the last values does not exceed; 0 where there are none."""
        return self.recent[max(0, ceil(share * len(self.recent)) - 1)] if self.recent else 0.0

    @property
    def mean(self) -> float:
        """Of the last values."""
        return sum(self.recent) / len(self.recent) if self.recent else 0.0

    @property
    def deviation(self) -> float:
        """Of the last values."""
        mean = self.mean
        return sqrt(sum((one - mean) ** 2 for one in self.recent) / len(self.recent)) if self.recent else 0.0


class Histogram:
    """Durations in seconds, by bucket; the last 1,024 are kept for quantiles."""

    __slots__ = ("__weakref__", "_also", "_buckets", "_lock", "_recent", "_sum")

    def __init__(self, also: Callable[[float], None] | None = None) -> None:
        self._lock = threading.Lock()
        self._buckets = [0] * (len(BOUNDS) + 1)
        self._sum = 0.0
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._also = also
        tell_after_fork(self)

    def after_fork(self) -> None:
        """A lock that nobody holds."""
        self._lock = threading.Lock()

    def record(self, seconds: float) -> None:
        """One more duration."""
        seconds = max(0.0, seconds)
        with self._lock:
            self._buckets[bisect_left(BOUNDS, seconds)] += 1
            self._sum += seconds
            self._recent.append(seconds)
        if self._also is not None:
            self._also(seconds)

    def read(self) -> Spread:
        """What it holds now."""
        with self._lock:
            buckets, total, recent = tuple(self._buckets), self._sum, tuple(self._recent)
        return Spread(sum(buckets), total, buckets, tuple(sorted(recent)))


class StateTimes:
    """How long a circuit breaker has been in each state, to the nanosecond; the present state grows as one looks.

    An open breaker is half open from the moment its delay is over, though it learns of that only from the next call:
    `until` says when that is.
    """

    __slots__ = ("__weakref__", "_lock", "_now", "_since", "_spent", "_state", "_until")

    def __init__(self, now: Callable[[], int] | None = None) -> None:
        self._now = now if now is not None else lambda: DEFAULT.monotonic_ns()
        self._lock = threading.Lock()
        self._spent = {"open": 0, "closed": 0, "halfOpen": 0}
        self._state, self._since = "closed", self._now()
        self._until: int | None = None
        tell_after_fork(self)

    def after_fork(self) -> None:
        """A lock that nobody holds."""
        self._lock = threading.Lock()

    def enter(self, state: str, *, lasting: float | None = None) -> None:
        """The breaker is in this state from now on; when open, for so many seconds."""
        now = self._now()
        with self._lock:
            self._settle(now)
            self._state = state
            self._until = now + round(lasting * 1e9) if lasting is not None else None

    def state(self) -> str:
        """The state it is in now."""
        now = self._now()
        with self._lock:
            self._settle(now)
            return self._state

    def read(self) -> dict[str, int]:
        """Nanoseconds in each state."""
        now = self._now()
        with self._lock:
            self._settle(now)
            return dict(self._spent)

    def _settle(self, now: int) -> None:
        if self._until is not None and now >= self._until:
            self._spent[self._state] += self._until - self._since
            self._state, self._since, self._until = "halfOpen", self._until, None
        if now > self._since:
            self._spent[self._state] += now - self._since
            self._since = now
