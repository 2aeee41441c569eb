"""How long calls usually take: a quantile over the latest ones."""

from __future__ import annotations

from collections import deque

_WINDOW = 500
_ENOUGH = 20  # a quantile of fewer calls is chance


class Latencies:
    """The latest latencies. `record` is the append of a deque: one C call, safe from any thread."""

    __slots__ = ("_latest", "record")

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=_WINDOW)
        self.record = self._latest.append

    def quantile(self, share: float, unknown: float) -> float:
        """So long does that share of the calls take at most; `unknown` while too few were seen."""
        latest = sorted(self._latest.copy())  # a copy first: other threads go on recording
        if len(latest) < _ENOUGH:
            return unknown
        return latest[min(len(latest) - 1, int(share * len(latest)))]
