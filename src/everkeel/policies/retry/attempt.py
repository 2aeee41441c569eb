"""Which attempt is under way, for the operation itself to read."""

from __future__ import annotations

from contextvars import ContextVar


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


CURRENT: ContextVar[Attempt | None] = ContextVar("everkeel.attempt", default=None)


def current_attempt() -> Attempt | None:
    """The attempt under way, from the second one on; None during a first attempt and outside of a retried call.

    A first attempt is not marked, because marking would cost every call that succeeds at once. Use it to tell the other
    side that it sees a repetition (a header), or to choose another replica.

    >>> current_attempt() is None
    True
    """
    return CURRENT.get()
