"""Which attempt is under way, for the operation itself to read."""

from __future__ import annotations

import sys
from contextvars import ContextVar
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from everkeel.policies.retry.policy import Retry


class Attempt:
    """One try of a retried call. `current_attempt()` gives it to the operation, `before_retry` to its hook."""

    __slots__ = ("error", "number", "policy", "total")

    def __init__(self, policy: str | None, number: int, total: int | None, error: BaseException | None = None) -> None:
        self.policy = policy
        """The name of the retry policy."""
        self.number = number
        """1 for the first try."""
        self.total = total
        """How many tries there may be; None where only time bounds them."""
        self.error = error
        """What the try before this one raised. Only `before_retry` sees it; nothing keeps it alive afterwards."""

    @property
    def last(self) -> bool:
        """Is this the last try, whatever happens?"""
        return self.total is not None and self.number >= self.total

    def __repr__(self) -> str:
        return f"Attempt({self.number} of {self.total or 'any number'}, policy={self.policy!r})"


# A tuple, made for every attempt after the first, becomes an Attempt when somebody asks: that costs a fifth.
Mark: TypeAlias = "tuple[Retry, int, int | None]"
CURRENT: ContextVar[Mark | None] = ContextVar("everkeel.attempt", default=None)
"""The retry, the number and the total of the attempt under way, from the second one on."""
wanted = False
"""Has anybody ever asked? Until then an attempt that follows at once is not marked, which would double its cost."""


def current_attempt() -> Attempt | None:
    """The attempt under way, from the second one on; None during a first attempt and outside of a retried call.

    A first attempt is not marked, because marking would cost every call that succeeds at once. Use it to tell the other
    side that it sees a repetition (a header), or to choose another replica.

    >>> current_attempt() is None
    True
    """
    global wanted
    mark = CURRENT.get()
    if not wanted:
        from everkeel.policies.retry.nesting import mark_on_the_stack

        wanted = True
        mark = mark_on_the_stack(sys._getframe(1)) or mark
    return None if mark is None else Attempt(mark[0].name, mark[1], mark[2])
