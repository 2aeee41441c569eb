"""Closed and open: told the time, the outcomes and the check's answers, says who may pass. No clock, no lock, no I/O.

A permit belongs to the phase it was given in: what an old call reports after the phase has changed finds that its phase
is not the current one, and is ignored.
"""

from __future__ import annotations

from math import inf
from typing import Literal, TypeAlias

from everkeel.policies.fail_fast.config import FailFastConfig
from everkeel.runtime.tally import Tally, read, tally

Cause: TypeAlias = Literal["failures", "check", "hand"]


class Closed:
    """Calls pass. A success is nothing but a tick of the tally: failures are in a row while it has not moved."""

    __slots__ = ("_streak", "_streak_at", "tally")
    name = "closed"

    def __init__(self) -> None:
        self.tally: Tally = tally()
        self._streak, self._streak_at = 0, -1

    def failure(self, rules: FailFastConfig, now: float, last: str) -> Open | None:
        """A call failed, in the words of `last`: the phase to change to, if any."""
        successes = read(self.tally)
        self._streak = self._streak + 1 if self._streak_at == successes else 1
        self._streak_at = successes
        if rules.failures is None or self._streak < rules.failures:
            return None
        times = "1 failure" if self._streak == 1 else f"{self._streak} failures in a row"
        return Open("failures", f"{times}: {last}", now)

    def streak(self) -> int:
        """How many calls in a row failed, up to now."""
        return self._streak if self._streak_at == read(self.tally) else 0

    def checked(self, trouble: str | None, now: float) -> Open | None:
        """The check answered: None, or what is wrong."""
        return None if trouble is None else Open("check", trouble, now)


class Open:
    """Nobody passes. Who opened it decides what closes it."""

    __slots__ = ("cause", "reason", "since")
    name = "open"

    def __init__(self, cause: Cause, reason: str, since: float) -> None:
        self.cause, self.reason, self.since = cause, reason, since

    def until(self, rules: FailFastConfig) -> float:
        """When time alone closes it. Never what a hand opened, nor what a check opened that can still be asked."""
        if rules.open_for is None or self.cause == "hand" or (self.cause == "check" and rules.check is not None):
            return inf
        return self.since + rules.open_for

    def checked(self, trouble: str | None, now: float) -> Closed | None:
        """The check answered: None, or what is wrong. What a hand opened a hand must close."""
        if self.cause == "hand":
            return None
        if trouble is None:
            return Closed()
        if self.cause == "check":
            self.reason = trouble  # the latest word on it
        return None


Phase: TypeAlias = Closed | Open
