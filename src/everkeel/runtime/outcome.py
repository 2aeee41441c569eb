"""What became of a call, and what a policy makes of it."""

from __future__ import annotations

from enum import Enum


class Verdict(Enum):
    """What an outcome says about the thing that was called."""

    SUCCESS = "success"
    FAILURE = "failure"
    NO_EVIDENCE = "ignored"
    """Ignored exceptions, our own rejections, cancellation: nothing is learned from them."""


# Looking up an attribute of an enum costs 60 ns before Python 3.12; a name of a module costs nothing.
SUCCESS, FAILURE, NO_EVIDENCE = Verdict


NO_RESULT: object = object()
"""In place of the result of work that has none to judge: a block that reported nothing, a stream."""


class Outcome:
    """How one attempt ended: with a `value`, or with an `error`. Handed to backoff functions, hooks and mappers.

    >>> Outcome(error=ValueError("no"))
    Outcome(error=ValueError('no'), attempts=1)
    """

    __slots__ = ("attempts", "error", "value")

    def __init__(self, value: object = None, error: BaseException | None = None, attempts: int = 1) -> None:
        self.value = value
        """What was returned; None when an error was raised."""
        self.error = error
        """What was raised; None when a value was returned."""
        self.attempts = attempts
        """How many attempts have been made, this one included."""

    def unwrap(self) -> object:
        """The value, or the error raised."""
        if self.error is not None:
            raise self.error
        return self.value

    def __repr__(self) -> str:
        what = f"error={self.error!r}" if self.error is not None else f"value={self.value!r}"
        return f"Outcome({what}, attempts={self.attempts})"
