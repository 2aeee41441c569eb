"""How hard-pressed the protected service is, from how long it takes to answer; and what to ask rejected callers for."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable


class Backpressure:
    """A score from 0 to 1 over the last latencies. Pure: told each latency, answers the score.

    The score is the greater of two: the share of calls slower than the baseline, and how far the mean is above the
    least latency to be expected, in units of that latency times the sensitivity. The baseline drifts towards the
    measured p95, a twentieth of the way with each call, except during an incident (score of one half or more): slowness
    must not become the normal by lasting long.
    """

    __slots__ = ("_latencies", "_min_latency", "_ordered", "_recorded", "_sensitivity", "_sum", "baseline", "score")

    def __init__(self, *, p95_baseline: float, min_latency: float, sensitivity: float, window: int) -> None:
        self.baseline = p95_baseline
        self._min_latency, self._sensitivity = min_latency, sensitivity
        self._latencies: deque[float] = deque(maxlen=window)
        self._ordered: list[float] = []
        self._sum = 0.0
        self._recorded = 0
        self.score = 0.0

    def record(self, latency: float) -> float:
        """A call took so many seconds: the score now."""
        latencies, ordered = self._latencies, self._ordered
        if len(latencies) == latencies.maxlen:
            oldest = latencies[0]
            self._sum -= oldest
            del ordered[bisect_left(ordered, oldest)]
        latencies.append(latency)
        insort(ordered, latency)
        self._sum += latency
        self._recorded += 1
        if self._recorded % 1000 == 0:
            self._sum = sum(latencies)  # what rounding has left behind must not add up
        count = len(ordered)
        slower = (count - bisect_right(ordered, self.baseline)) / count
        gradient = (self._sum / count - self._min_latency) / (self._min_latency * self._sensitivity)
        self.score = min(1.0, max(0.0, slower, gradient))
        if self.score < 0.5:
            p95 = ordered[-(-95 * count // 100) - 1]  # the nearest rank
            self.baseline = 0.95 * self.baseline + 0.05 * p95
        return self.score

    def inherit(self, earlier: Backpressure) -> None:
        """Begin with what another one has measured."""
        for latency in earlier._latencies:
            self.record(latency)


def backpressure_delay(score: float, min_delay: float, max_penalty: float, chance: Callable[[], float]) -> float:
    """What to ask a rejected caller to wait: the more, the harder-pressed; spread out, so that not all come at once."""
    return (min_delay + max_penalty * score) * (0.8 + 0.4 * chance())


def utilization_delay(used_share: float, reset_after: float) -> float:
    """The emptier the bucket, the nearer to the moment at which it is full again."""
    return used_share * reset_after
