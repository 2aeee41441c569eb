"""A count that one atomic C call raises: `next(tally)`. Nothing allocated, no update lost, no lock.

With a GIL it is an `itertools.repeat` counting down (no int is made); without one it is an `itertools.count`, whose
`next` is a compare-and-exchange there, where `repeat`'s is not. The hot path is the same text for both.
"""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Iterator
from typing import Any, TypeAlias

Tally: TypeAlias = Iterator[object]

if getattr(sys, "_is_gil_enabled", lambda: True)():

    def tally() -> Tally:
        """A new count, at zero."""
        return itertools.repeat(None, sys.maxsize)

    def read(count: Tally) -> int:
        """How often `next` was called on it."""
        return sys.maxsize - operator.length_hint(count)

else:  # pragma: no cover - free-threaded builds

    def tally() -> Tally:
        """A new count, at zero."""
        return itertools.count()

    def read(count: Tally) -> int:
        """How often `next` was called on it."""
        # `count(17)`: its pickling protocol, the other way to look without touching, is gone in 3.14.
        return int(repr(count)[6:-1])


class Tallies:
    """Counts by name, each made when it is first needed: what is counted off the happy path."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[str, Tally] = {}

    def tick(self, name: str) -> None:
        """One more of `name`."""
        count = self._counts.get(name)
        if count is None:
            count = self._counts.setdefault(name, tally())  # setdefault is atomic: two firsts share one tally
        next(count)

    def __getitem__(self, name: str) -> int:
        count = self._counts.get(name)
        return 0 if count is None else read(count)

    def read(self) -> dict[str, int]:
        """Every count so far."""
        return {name: read(count) for name, count in list(self._counts.items())}


def sum_of(counts: Any) -> int:
    """The sum over several tallies."""
    return sum(read(count) for count in counts)
