"""What a rate limiting algorithm is: a small pure value that is told the time and the demand, and answers.

Times are integer nanoseconds, because a float bucket is short at its own `retry_after` half of the time. Floats exist
only at the edge, rounded up. A state belongs to one key and is None for a key that has not been seen. States are
values: a method answers a new one and never changes the one it was given, so that "what if" can be asked as well.

To add an algorithm of your own, subclass `Algorithm` and pass the class as `algorithm=`:

- `acquire` decides, and answers the next state with a `Decision`;
- `used` and `charged` translate between a state and a number of permits, so that a limit can change while it works;
- `idle` says that a state is as good as none, so that its key may be forgotten.

What is given back (`adjust` with a negative number) counts from then on: every promise of an algorithm is about what
was granted less what was given back.
"""

from __future__ import annotations

from math import gcd, nextafter
from typing import Any, NamedTuple

NANO = 1_000_000_000


class Decision(NamedTuple):
    """What a limiter answers. Times are nanoseconds from the moment it was asked."""

    allowed: bool
    retry_after: int
    """The earliest moment at which the same request would pass if nobody else took anything; 0 when it passed."""
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
        raise TypeError(f"{type(self).__name__} does not say how it decides")

    def adjust(self, state: Any, now: int, permits: int) -> Any:
        """Take more without asking, or (negative) give back: the state afterwards."""
        return self.charged(now, max(0, self.used(state, now) + permits))

    def used(self, state: Any, now: int) -> int:
        """How many permits are charged to this state now, rounded up."""
        raise TypeError(f"{type(self).__name__} does not say what is used")

    def charged(self, now: int, permits: int) -> Any:
        """A state to which so many permits are charged."""
        raise TypeError(f"{type(self).__name__} does not say how to charge")

    def idle(self, state: Any, now: int) -> bool:
        """Is this state as good as none?"""
        return self.used(state, now) <= 0

    # ------------------------------------------------------------------ a limit that changes while it works

    def adopt(self, earlier: Algorithm, state: Any, now: int) -> Any:
        """The state of a key that was limited by `earlier` until now: what is charged stays charged."""
        return self.charged(now, earlier.used(state, now))

    def eases(self, earlier: Algorithm) -> bool:
        """Does everything that passed under `earlier` pass here too, at the same moment or before it?

        Then it may take the place of `earlier` at once: no `retry_after` that was given becomes a lie.
        """
        mine, theirs = self.rate, earlier.rate
        return (
            type(self) is type(earlier)
            and mine.per == theirs.per
            and mine.permits >= theirs.permits
            and mine.burst >= theirs.burst
        )

    def replenished(self, now: int) -> int:
        """The next moment at which a lower limit may come into force: now, unless permits come in batches."""
        return now


def nanoseconds(seconds: float) -> int:
    """A length in nanoseconds, rounded to the nearest."""
    return round(seconds * NANO)


def seconds_up(length: int) -> float:
    """A length in float seconds that is never less than it is in nanoseconds."""
    seconds = length / NANO
    while seconds * NANO < length:
        seconds = nextafter(seconds, float("inf"))
    return seconds
