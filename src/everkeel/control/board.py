"""The numbers of all policies, who changed since when, and how fast: the core of the snapshot and the live stream.

Pure: it is told readings and the time. A version counts up with every round of readings in which something changed, so
"what changed since version 17?" has a cheap answer, and 1,000 quiet policies cost a reader nothing.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Identity: TypeAlias = tuple[str, str]
Numbers: TypeAlias = dict[str, Any]

OUTCOMES = ("success", "failure", "ignored", "rejected")
TICKING = frozenset({"time_in_state", "retry_after"})
"""What changes by itself as time passes: no reason to say that a policy changed."""
COUNTERS = frozenset(
    {
        *OUTCOMES, "would", "retries", "recovered", "gave_up", "attempt_expired", "transitions", "expired",
        "late", "queued", "waited", "excluded", "overflow", "started", "won", "refused", "disposed", "checks",
        "check_failed", "denied", "alternative", "injected", "calls", "hits", "misses", "stale", "coalesced", "used",
        "exhausted", "refreshed", "refresh_failed", "store_errors", "evicted", "batches", "time_in_state",
    }
)  # fmt: skip
"""What only ever counts up: the part of a reading that a reset begins anew."""
SHORTEST = 0.5
"""Seconds: over less, a rate would be noise."""
MOST_GONE = 1_000


def plain(value: Any) -> Any:
    """A value of a snapshot as JSON has it: numbers that JSON cannot write become null, all else text.

    >>> plain({1: float("inf"), "error": ValueError("x")})
    {'1': None, 'error': "ValueError('x')"}
    """
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(one) for one in value]
    return repr(value)


def less(now: Numbers, base: Numbers) -> Numbers:
    """A reading whose counters begin at `base`: what a reset means, without touching what the policy has learned."""
    return {name: _minus(value, base.get(name)) if name in COUNTERS else value for name, value in now.items()}


def _minus(value: Any, base: Any) -> Any:
    if isinstance(value, dict):
        below = base if isinstance(base, dict) else {}
        return {name: _minus(one, below.get(name)) for name, one in value.items()}
    if isinstance(value, bool) or not isinstance(value, int | float) or not isinstance(base, int | float):
        return value
    return value - base if value >= base else value  # less than before: it started over by itself


@dataclass(slots=True)
class Row:
    """What is known about one policy."""

    numbers: Numbers
    rates: dict[str, float]
    version: int
    """The round in which it last changed."""
    updated: float
    """When, in seconds since 1970."""
    read_at: float
    """When it was last read for a rate, by the monotonic clock."""
    raw: Numbers
    """That reading, for the next rate."""


class Board:
    """The last reading of every policy."""

    def __init__(self) -> None:
        self.version = 0
        self.rows: dict[Identity, Row] = {}
        self._base: dict[Identity, tuple[Hashable, Numbers]] = {}
        self._gone: deque[tuple[int, Identity]] = deque(maxlen=MOST_GONE)
        self._forgotten = 0  # the version up to which removals are no longer known

    def reset(self, identity: Identity, whose: Hashable, raw: Numbers) -> None:
        """Let the counters of a policy begin at this reading. `whose`: of a successor by the same name, nothing."""
        self._base[identity] = (whose, raw)

    def numbers(self, identity: Identity, whose: Hashable, raw: Numbers) -> Numbers:
        """A reading as it is shown: since the last reset."""
        base = self._base.get(identity)
        return less(raw, base[1]) if base is not None and base[0] == whose else raw

    def read(self, readings: Iterable[tuple[Identity, Hashable, Numbers]], now: float, wall: float) -> int:
        """A round of readings of *all* policies; answers the version after it."""
        present: set[Identity] = set()
        coming = self.version + 1
        for identity, whose, raw in readings:
            present.add(identity)
            if self.note(identity, whose, raw, now, wall, coming):
                self.version = coming
        for identity in [one for one in self.rows if one not in present]:
            if len(self._gone) == MOST_GONE:
                self._forgotten = self._gone[0][0]
            del self.rows[identity]
            self._base.pop(identity, None)
            self._gone.append((coming, identity))
            self.version = coming
        return self.version

    def note(
        self, identity: Identity, whose: Hashable, raw: Numbers, now: float, wall: float, version: int | None = None
    ) -> bool:
        """One reading; answers whether anything changed. Without a version, a round of its own."""
        numbers = self.numbers(identity, whose, raw)
        row = self.rows.get(identity)
        version = self.version + 1 if version is None else version
        if row is None:
            self.rows[identity] = Row(numbers, dict.fromkeys(OUTCOMES, 0.0), version, wall, now, raw)
            self.version = max(self.version, version)
            return True
        differs = any(row.numbers.get(name, row) != value for name, value in numbers.items() if name not in TICKING)
        rates = row.rates
        if now - row.read_at >= SHORTEST:
            rates = {name: _rate(raw.get(name, 0), row.raw.get(name, 0), now - row.read_at) for name in OUTCOMES}
            row.read_at, row.raw = now, raw
        moved = rates != row.rates
        row.numbers, row.rates = numbers, rates
        if not differs and not moved:
            return False
        row.version = version
        if differs:
            row.updated = wall
        self.version = max(self.version, version)
        return True

    def since(self, version: int) -> tuple[list[tuple[Identity, Row]], list[Identity]] | None:
        """What changed after a version, and what is gone; None where that is no longer known: take everything."""
        if version > self.version or version < self._forgotten:
            return None
        changed = [(identity, row) for identity, row in self.rows.items() if row.version > version]
        return changed, [identity for at, identity in self._gone if at > version and identity not in self.rows]


def _rate(now: float, before: float, seconds: float) -> float:
    return round((now - before if now >= before else now) / seconds, 3)
