"""How many may run at once, found out from latencies. Pure: no clock, no lock.

All controls look at windows of a few samples, so that one slow answer does not decide, and none grows while less than
half of what it allows is used: a limit that was never tried says nothing. The *baseline* is the latency of the service
when it is not pressed. Quicker answers lower it at once. Slower ones raise it only while we do not press the service
ourselves, or slowness that we cause would become the normal; and not during an incident, or slowness would by lasting
long. Only when the limit has come down to its floor and answers are still slow is that the service's own pace.
"""

from __future__ import annotations

from math import log10, sqrt

_WINDOW = 10  # samples


class Control:
    """The limit, and what moves it."""

    __slots__ = (
        "_most",
        "_overloaded",
        "_overloads",
        "_samples",
        "baseline",
        "ceiling",
        "floor",
        "limit",
        "max_latency",
    )

    def __init__(self, initial: int, floor: int, ceiling: int, max_latency: float | None) -> None:
        self.limit = float(initial)
        self.floor, self.ceiling, self.max_latency = floor, ceiling, max_latency
        self.baseline: float | None = None
        self._samples: list[float] = []
        self._most = 0  # the most calls seen running at once in this window
        self._overloaded = False
        self._overloads = 0

    def sample(self, latency: float, running: int) -> int:
        """A call was answered after so long, with so many running: the limit now."""
        self._samples.append(latency)
        self._most = max(self._most, running)
        if len(self._samples) >= _WINDOW:
            self._close()
        return int(self.limit)

    def overload(self, running: int) -> int:
        """A call failed in a way that says "too much": the limit now. Once in a window, it comes down at once."""
        if not self._overloaded:
            self._overloaded = True
            self.limit = self._bounded(self.limit * 0.9)
        self._overloads += 1
        if self._overloads >= _WINDOW:  # nothing but overloads: there may be no samples to close the window
            self._samples, self._most, self._overloaded, self._overloads = [], 0, False, 0
        return int(self.limit)

    def _close(self) -> None:
        from statistics import median  # 4 ms of import that a service without such a limit need not pay

        typical, most, overloaded = median(self._samples), self._most, self._overloaded
        self._samples, self._most, self._overloaded, self._overloads = [], 0, False, 0
        if self.max_latency is not None and typical > self.max_latency:
            self.limit = self._bounded(self.limit * 0.9)  # the guardrail: whatever the baseline says, this is too slow
            return
        self._learn(typical, pressed=2 * most >= self.limit)
        if not overloaded:
            wish = self._next(typical)
            if wish < self.limit or 2 * most >= self.limit:
                self.limit = self._bounded(wish)

    def _learn(self, typical: float, *, pressed: bool) -> None:
        if self.baseline is None:
            self.baseline = typical
        elif typical < self.baseline:
            self.baseline += 0.5 * (typical - self.baseline)
        elif self.limit <= self.floor:
            self.baseline += 0.2 * (typical - self.baseline)
        elif not pressed and not self._incident(typical):
            self.baseline += 0.05 * (typical - self.baseline)

    def _incident(self, typical: float) -> bool:
        return self.baseline is not None and typical > 2 * self.baseline

    def _next(self, typical: float) -> float:
        """The limit that this latency speaks for."""
        raise TypeError(f"{type(self).__name__} does not say what it wants")  # pragma: no cover

    def _bounded(self, limit: float) -> float:
        return min(float(self.ceiling), max(float(self.floor), limit))


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
            return self.limit - step
        return self.limit


class Gradient2(Control):
    """Follows the ratio of the baseline to the latest latency, with a tolerance, and leaves room for a small queue."""

    __slots__ = ()

    def _next(self, typical: float) -> float:
        baseline = self.baseline or typical
        gradient = max(0.5, min(1.0, 1.5 * baseline / typical)) if typical > 0 else 1.0
        wish = self.limit * gradient + max(1.0, sqrt(self.limit))
        return 0.8 * self.limit + 0.2 * wish


CONTROLS: dict[str, type[Control]] = {"aimd": Aimd, "vegas": Vegas, "gradient2": Gradient2}
