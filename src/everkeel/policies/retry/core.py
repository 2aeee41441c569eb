"""The decision after each attempt: told the time and what happened, answers whether to try again and how long to wait.

No clock, no sleep, no lock. A `Run` is the record of one call that failed at least once; a call that succeeds at its
first attempt never has one, and two calls never share one.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeAlias

from everkeel.policies.retry.config import RetryConfig
from everkeel.runtime.backoff import jittered
from everkeel.runtime.outcome import Outcome

History: TypeAlias = "tuple[type[BaseException] | None, tuple[Any, ...], float, History | None]"
"""The class and the arguments of an attempt's error, the wait after it, and the same of the attempt before."""


class Run:
    """One call and its attempts so far. After `failed`, either it is `over` for a `reason`, or `delay` is set."""

    __slots__ = (
        "attempts", "before", "began", "delay", "error", "history",
        "marked", "outer", "over", "policy", "reason", "rules",
    )  # fmt: skip

    def __init__(self, began: float, rules: RetryConfig, policy: Any = None) -> None:
        self.attempts = 0
        self.policy = policy  # whose it is, for whoever finds it on the stack; of no concern here
        self.rules = rules  # the plan of this call, which a reconfiguration under way does not change
        self.began = began  # the first failure: reading the clock before it would cost every success
        self.delay = 0.0
        self.over = False
        self.reason = ""
        self.history: History | None = None
        self.outer: str | None = None  # the name of a retry around this one
        self.marked = False  # is the context told which attempt is under way?
        self.before: Any = None  # the attempt that was current when this call began
        self.error: BaseException | None = None  # kept, without its frames, where a time limit may want to show it

    def failed(
        self,
        error: Exception | None,
        value: object,
        retryable: bool,
        room: float | None,
        chance: Callable[[], float],
    ) -> None:
        """An attempt failed with `error`, or with a `value` that counts as a failure. `room`: seconds left, if any."""
        self.attempts = number = self.attempts + 1
        if not retryable:
            return self.give_up("not_retryable")
        rules = self.rules
        # Neither a number nor a time bounds it: its plan was changed to `attempts=None` after it had begun without one.
        if room is None if rules.attempts is None else number >= rules.attempts:
            return self.give_up("attempts")
        delay = rules.fixed_delay
        if delay is None:
            backoff = rules.backoff
            outcome = Outcome(value, error, number)
            delay = jittered(backoff.delay(number, outcome), backoff, rules.jitter, self.delay, chance)
        hint = getattr(error, "retry_after", None) if error is not None and rules.obey_retry_after else None
        if hint is not None:
            wished = _as_seconds(hint)
            if wished > rules.max_retry_after:
                return self.give_up("retry_after")
            if wished > delay:
                delay = wished
        if room is not None and delay >= room:
            return self.give_up("duration")
        self.delay = delay
        return None

    def attempts_so_far(self) -> list[tuple[type[BaseException] | None, tuple[Any, ...], float]]:
        """The class and the arguments of each attempt's error, and the wait after it, first attempt first."""
        rows: list[tuple[type[BaseException] | None, tuple[Any, ...], float]] = []
        link = self.history
        while link is not None:
            kind, args, delay, link = link
            rows.append((kind, args, delay))
        return rows[::-1]

    def give_up(self, reason: str) -> None:
        """No further attempt."""
        self.over, self.reason = True, reason


def _as_seconds(hint: object) -> float:
    """A `retry_after` found on somebody's error: seconds or a timedelta. Anything else is not for us."""
    if isinstance(hint, timedelta):
        return hint.total_seconds()
    return float(hint) if isinstance(hint, int | float) and not isinstance(hint, bool) and hint == hint else 0.0
