"""What a rate limiting algorithm is: a small pure value that is told the time and the demand, and answers.

Times are integer nanoseconds, because a float bucket is short at its own `retry_after` half of the time. Floats exist
only at the edge, rounded up. A state belongs to one key; it is None for a key that has not been seen, and whoever calls
`acquire` keeps the state it returns and forgets the one it passed in.

To add an algorithm of your own, subclass `Algorithm` and pass the class as `algorithm=`:

- `acquire` decides, and answers the next state with a `Decision`;
- `used` and `charged` translate between a state and a number of permits, so that a limit can change while it works;
- `idle` says that a state is as good as none, so that its key may be forgotten.
"""

from __future__ import annotations

from math import gcd, nextafter
from typing import Any, NamedTuple

NANO = 1_000_000_000


class Decision(NamedTuple):
    """What a limiter answers. Times are nanoseconds from the moment it was asked."""

    allowed: bool
    retry_after: int
    """The earliest moment at which the same request could pass; 0 when it passed."""
    remaining: int
    """Whole permits left."""
    reset_after: int
    """When all permits are there again, if nobody takes any."""


class Rate(NamedTuple):
    """So many permits per so many nanoseconds, and so many at once."""

    permits: int
    per: int
    burst: int

    @property
    def scale(self) -> int:
        """Time is counted in 1/scale nanoseconds, so that the interval between two permits is a whole number."""
        return self.permits // gcd(self.permits, self.per)


class Algorithm:
    """The protocol, with the rate it works at."""

    __slots__ = ("rate",)
    name = "custom"

    def __init__(self, rate: Rate) -> None:
        self.rate = rate

    @property
    def capacity(self) -> int:
        """The most that one request can ever be granted."""
        return self.rate.burst

    def acquire(self, state: Any, now: int, permits: int) -> tuple[Any, Decision]:
        """Take `permits`, if they are there."""
        raise TypeError(f"{type(self).__name__} does not say how it decides")  # pragma: no cover

    def adjust(self, state: Any, now: int, permits: int) -> Any:
        """Take more without asking, or (negative) give back: the state afterwards."""
        return self.charged(now, max(0, self.used(state, now) + permits))

    def used(self, state: Any, now: int) -> int:
        """How many permits are charged to this state now, rounded up."""
        raise TypeError(f"{type(self).__name__} does not say what is used")  # pragma: no cover

    def charged(self, now: int, permits: int) -> Any:
        """A state to which so many permits are charged."""
        raise TypeError(f"{type(self).__name__} does not say how to charge")  # pragma: no cover

    def idle(self, state: Any, now: int) -> bool:
        """Is this state as good as none?"""
        return self.used(state, now) <= 0


def nanoseconds(seconds: float) -> int:
    """A length in nanoseconds, rounded to the nearest."""
    return round(seconds * NANO)


def seconds_up(length: int) -> float:
    """A length in float seconds that is never less than it is in nanoseconds."""
    seconds = length / NANO
    while seconds * NANO < length:
        seconds = nextafter(seconds, float("inf"))
    return seconds
