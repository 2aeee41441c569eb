"""How many may run at once, found out from latencies. Pure: told the time, no clock, no lock.

A control looks at *windows*: ten samples (fewer where hardly anything runs), and as many as come in while every call
that runs is answered once, so that one slow answer does not decide, and no second decision is made before the first one
shows. None grows while less than
half of what it allows is used: a limit that was never tried says nothing.

The *baseline* is the latency of the service when it is not pressed. Quicker answers lower it at once. Slower ones raise
it little by little, only while we do not press the service ourselves (or slowness that we cause would become the
normal), and not during an *incident*, when answers take more than twice as long, unless that has lasted for a minute.

Slowness of which we are the cause goes when we let fewer in. Where half as many are no quicker it is not ours to mend:
the limit stays where it is, rather than turn away calls that would only have been as slow as all others.
"""

from __future__ import annotations

from math import log10, sqrt
from statistics import median

_WINDOW = 10  # samples
SAMPLED = 4  # one call in so many is a sample: that many calls per sample make up one turn of all that run
_NEW_NORMAL = 60.0  # seconds of incident after which it is none


class Control:
    """The limit, and what moves it."""

    __slots__ = (
        "_mark", "_most", "_overloaded", "_overloads", "_samples", "_since", "_vain", "baseline", "ceiling", "floor",
        "limit", "max_latency",
    )  # fmt: skip

    def __init__(self, initial: int, floor: int, ceiling: int, max_latency: float | None) -> None:
        self.limit = float(initial)
        self.floor, self.ceiling, self.max_latency = floor, ceiling, max_latency
        self.baseline: float | None = None
        self._mark: tuple[float, float] | None = None  # limit and latency from which it came down
        self._vain = False  # coming down did not help
        self._since: float | None = None  # the beginning of an incident
        self._begin_window()

    def _begin_window(self) -> None:
        self._samples: list[float] = []
        self._most = 0  # the most calls seen running at once
        self._overloaded = False
        self._overloads = 0

    def sample(self, latency: float, running: int, now: float) -> int:
        """A call was answered after so long, with so many running: the limit now."""
        self._samples.append(latency)
        self._most = max(self._most, running)
        if len(self._samples) >= self._enough():
            self._close(now)
        return int(self.limit)

    def overload(self) -> int:
        """A call failed in a way that says "too much": the limit now. Once in a window, it comes down at once."""
        if not self._overloaded:
            self._overloaded = True
            self._cut()
        self._overloads += 1
        if self._overloads >= self._enough():  # there may be no samples to close the window
            self._begin_window()
        return int(self.limit)

    def _enough(self) -> int:
        return max(min(_WINDOW, int(self.limit) + 2), self._most // SAMPLED)

    def bound(self, limit: float) -> None:
        """Set the limit, within its bounds."""
        self.limit = min(float(self.ceiling), max(float(self.floor), limit))

    def _cut(self) -> None:
        self.bound(self.limit * 0.9)

    def _close(self, now: float) -> None:
        typical, most, overloaded = median(self._samples), self._most, self._overloaded
        self._begin_window()
        if self.max_latency is not None and typical > self.max_latency:
            self._cut()  # the guardrail: whatever the baseline says, this is too slow
            return
        self._learn(typical, now, ours=most >= 0.8 * self.limit and not self._vain)
        if overloaded:
            return
        wish = self._next(typical)
        if wish >= self.limit:
            self._mark, self._vain = None, False
            if 2 * most >= self.limit:
                self.bound(wish)
        elif self._helps(typical):
            self.bound(max(wish, self._mark[0] / 2 if self._mark is not None else 0.0))  # no further before it shows

    def _learn(self, typical: float, now: float, *, ours: bool) -> None:
        if self.baseline is None:
            self.baseline = typical
            return
        if typical < self.baseline:
            self.baseline += 0.5 * (typical - self.baseline)
        if typical <= 2 * self.baseline:
            self._since = None
            if not ours:
                self.baseline += 0.05 * (typical - self.baseline)
        elif self._since is None:
            self._since = now
        elif now - self._since >= _NEW_NORMAL:
            self.baseline, self._since = typical, None

    def _helps(self, typical: float) -> bool:
        """Is there hope that letting fewer in makes answers quicker?"""
        if self._mark is None or typical > 1.25 * self._mark[1]:
            self._mark = (self.limit, typical)
        limit, latency = self._mark
        self._vain = self.limit <= limit / 2 and typical >= 0.8 * latency
        if self.limit <= limit / 2 and not self._vain:
            self._mark = (self.limit, typical)
        return not self._vain

    def _next(self, typical: float) -> float:
        """The limit that this latency speaks for."""
        raise TypeError(f"{type(self).__name__} does not say what it wants")  # pragma: no cover


class Aimd(Control):
    """One more when all is well, a tenth fewer on an overload or above `max_latency`. Needs one of the two to learn."""

    __slots__ = ()

    def _next(self, typical: float) -> float:
        return self.limit + 1


class Vegas(Control):
    """Keeps an estimate of how many calls queue up in the service between two bounds that grow with the limit."""

    __slots__ = ()

    def _next(self, typical: float) -> float:
        baseline = self.baseline or typical
        queued = self.limit * (1 - min(1.0, baseline / typical)) if typical > 0 else 0.0
        step = max(1.0, log10(self.limit))
        if queued <= step:
            return self.limit + 6 * step
        if queued < 3 * step:
            return self.limit + step
        if queued > 6 * step:
            return self.limit - max(step, 0.25 * queued)  # far off: a step at a time would take too long
        return self.limit


class Gradient2(Control):
    """Follows the ratio of the baseline to the latest latency, with a tolerance, and leaves room for a small queue."""

    __slots__ = ()

    def _next(self, typical: float) -> float:
        baseline = self.baseline or typical
        gradient = max(0.5, min(1.0, 1.5 * baseline / typical)) if typical > 0 else 1.0
        wish = self.limit * gradient + max(4.0, sqrt(self.limit))
        return self.limit + (0.2 if wish > self.limit else 0.4) * (wish - self.limit)


CONTROLS: dict[str, type[Control]] = {"aimd": Aimd, "vegas": Vegas, "gradient2": Gradient2}
