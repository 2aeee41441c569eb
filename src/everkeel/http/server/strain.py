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

_MEMORY = 1.5  # seconds: long enough to see a rate, short enough to see the beginning and the end of a spike soon
_MOST, _LEAST = 0.1, 0.005  # seconds that one request can stand for


class Strain:
    """Which share of requests was turned away lately.

    By time, not by number: a request stands for the time since the one before. Counted by number, the thousands that a
    spike turned away would outweigh the few that pass in the calm after it for minutes. Time without requests counts as
    if they had passed; one request after a long silence does not decide by itself.
    """

    __slots__ = ("_at", "_share")

    def __init__(self) -> None:
        self._at = self._share = 0.0

    def passed(self, now: float) -> None:
        """One was let in."""
        self._count(0.0, now)

    def shed(self, now: float) -> None:
        """One was turned away."""
        self._count(1.0, now)

    def score(self, running: int, limit: int, now: float) -> float:
        """From 0 (at rest) over one half (full) to 1 (nearly all are turned away).

        >>> strain = Strain()
        >>> strain.score(5, 10, now=0.0), strain.score(10, 10, now=0.0)
        (0.0, 0.5)
        """
        full = min(1.0, max(0.0, 2.0 * running / max(1, limit) - 1.0))  # half full is no strain
        return 0.5 * full + 0.5 * self._share * exp(min(0.0, self._at - now) / _MEMORY)

    def retry_after(self, score: float, least: float, most_more: float, chance: Callable[[], float]) -> float:
        """What to ask those for who are shed: the more, the more are; spread out, so that not all come at once."""
        return backpressure_delay(max(0.0, 2.0 * score - 1.0), least, most_more, chance)

    def _count(self, outcome: float, now: float) -> None:
        gap = max(_LEAST, now - self._at)
        if gap > _MOST:
            self._share *= exp((_MOST - gap) / _MEMORY)
            gap = _MOST
        self._share += (outcome - self._share) * (1.0 - exp(-gap / _MEMORY))
        self._at = max(self._at, now)


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
