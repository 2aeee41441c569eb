"""How hard-pressed a service is that sheds requests, and what to tell those it sheds. Pure: told the time.

Half of the score is how full it is, the other half which share of the latest requests it has turned away: below one
half it fills up, above it sheds. So a caller who slows down at the first sign is never turned away.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import exp

from everkeel.http.headers import read_backpressure, write_backpressure
from everkeel.http.server.asgi import Headers
from everkeel.ratelimit.pressure import backpressure_delay

_MEMORY = 5.0  # seconds: long enough to see a rate, short enough that the end of a spike is soon seen
_FEW = 5.0  # requests: one rejection among hardly any says little


class Strain:
    """Which share of requests was shed lately; older ones count less."""

    __slots__ = ("_at", "_passed", "_shed")

    def __init__(self) -> None:
        self._at = self._passed = self._shed = 0.0

    def passed(self, now: float) -> None:
        """One was let in."""
        self._fade(now)
        self._passed += 1.0

    def shed(self, now: float) -> None:
        """One was turned away."""
        self._fade(now)
        self._shed += 1.0

    def score(self, running: int, limit: int, now: float) -> float:
        """From 0 (at rest) over one half (full) to 1 (nearly all are turned away).

        >>> strain = Strain()
        >>> strain.score(5, 10, now=0.0), strain.score(10, 10, now=0.0)
        (0.0, 0.5)
        """
        self._fade(now)
        full = min(1.0, max(0.0, 2.0 * running / max(1, limit) - 1.0))  # half full is no strain
        return 0.5 * full + 0.5 * self._shed / (self._shed + self._passed + _FEW)

    def retry_after(self, score: float, least: float, most_more: float, chance: Callable[[], float]) -> float:
        """What to ask those for who are shed: the more, the more are; spread out, so that not all come at once."""
        return backpressure_delay(max(0.0, 2.0 * score - 1.0), least, most_more, chance)

    def _fade(self, now: float) -> None:
        if now > self._at:
            share = exp((self._at - now) / _MEMORY)
            self._passed *= share
            self._shed *= share
            self._at = now


def with_backpressure(headers: Iterable[tuple[bytes, bytes]], score: float) -> Headers:
    """The headers of a response, with `X-Backpressure` once: the higher one, where a layer inside has told its own.

    >>> with_backpressure([(b"X-Backpressure", b"0.75"), (b"vary", b"accept")], 0.2)
    [(b'vary', b'accept'), (b'x-backpressure', b'0.75')]
    """
    kept: Headers = []
    for name, value in headers:
        if name.lower() == b"x-backpressure":
            score = max(score, read_backpressure(value.decode("latin-1")) or 0.0)
        else:
            kept.append((name, value))
    kept.append((b"x-backpressure", write_backpressure(score).encode()))
    return kept
