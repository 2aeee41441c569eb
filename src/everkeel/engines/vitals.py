"""How a database itself is doing, as far as it concerns what is kept there."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Vitals:
    """What an engine says about its database when it is asked."""

    clock_skew: float
    """Seconds by which the store's clock is ahead of ours (negative: behind), as far as that is certain."""
    oldest_transaction: float
    """Seconds since the oldest transaction began that is open."""
    xmin_age: int
    """How many transactions ago the oldest rows died that may not be cleaned up yet."""


def certain_skew(theirs: float, before: float, after: float) -> float:
    """How far their clock is from ours at least, if they looked at it at some moment between our two looks at ours.

    A slow answer makes it less certain, and never larger: nobody is woken because a database was busy.

    >>> certain_skew(103.0, before=100.0, after=102.0), certain_skew(90.0, before=100.0, after=102.0)
    (1.0, -10.0)
    >>> certain_skew(101.5, before=100.0, after=102.0)
    0.0
    """
    return theirs - min(max(theirs, before), after)
