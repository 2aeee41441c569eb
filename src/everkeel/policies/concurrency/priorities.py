"""Who is let in when not all can be: each class of calls has a guaranteed share, and the lowest is shed first.

A class may always use its guaranteed share of the limit. Beyond that it may use what no other class has a right to, and
the lower its rank, the more of the last places it leaves for those above it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from everkeel.errors import ConfigError

CURRENT: ContextVar[str | None] = ContextVar("everkeel.priority", default=None)
"""The priority of the request in progress: whoever reads it from a header (`X-Request-Priority`) sets it here."""


@contextmanager
def priority(name: str) -> Iterator[None]:
    """Calls in this block, and in what it calls, have this priority wherever a limit knows it.

    >>> from everkeel import priority
    >>> with priority("low"):
    ...     pass
    """
    if not isinstance(name, str) or not name:
        raise ConfigError("priority", "name", "must be a non-empty string", repr(name))
    token = CURRENT.set(name)
    try:
        yield
    finally:
        CURRENT.reset(token)


class Classes:
    """The decision core: told how many of each class are running, answers who may enter. Highest priority first."""

    __slots__ = ("_shares", "names")

    def __init__(self, shares: Mapping[str, float]) -> None:
        self.names = tuple(shares)
        self._shares = dict(shares)

    def known(self, name: str | None) -> str:
        """The class a call belongs to: without a priority the highest, with an unknown one the lowest."""
        if name is None:
            return self.names[0]
        return name if name in self._shares else self.names[-1]

    def rank(self, name: str) -> int:
        """0 for the highest; a class that is not known (any more) ranks lowest."""
        return self.names.index(name) if name in self._shares else len(self.names) - 1

    def guaranteed(self, name: str, limit: int) -> int:
        """How many places this class may always use."""
        return int(self._shares.get(name, 0.0) * limit + 1e-9)

    def may_enter(self, name: str, limit: int, running: Mapping[str, int]) -> bool:
        """May one more call of this class run?"""
        total = sum(running.values())
        if total >= limit:
            return False
        if running.get(name, 0) < self.guaranteed(name, limit):
            return True
        promised = sum(
            max(0, self.guaranteed(other, limit) - running.get(other, 0)) for other in self.names if other != name
        )
        left_for_others = limit * self.rank(name) // (2 * len(self.names))
        return total + promised < limit and total < limit - left_for_others
