"""What the user holds: `retry(...)`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

from everkeel.errors import ConfigError, RetryExhaustedError, TimeoutExceededError
from everkeel.policies.retry.attempt import Attempt
from everkeel.policies.retry.attempts import AttemptBlocks
from everkeel.policies.retry.budget import RetryBudget
from everkeel.policies.retry.config import RetryConfig
from everkeel.policies.retry.state import Retrying
from everkeel.runtime.backoff import Backoff, Jitter, exponential
from everkeel.runtime.classify import Errors, ResultPredicate
from everkeel.runtime.clock import Clock
from everkeel.runtime.outcome import Outcome, Verdict
from everkeel.runtime.policy import Policy, Snapshot
from everkeel.runtime.settings import Mode, Seconds
from everkeel.runtime.state import CallKind

BackoffLike: TypeAlias = (
    Backoff
    | Seconds
    | Sequence[Seconds]
    | Callable[[int], Seconds]
    | Callable[[int, Outcome], Seconds]
    | Mapping[type[BaseException], "BackoffLike"]
)


class RetrySnapshot(Snapshot):
    """What a retry's snapshot adds."""

    retries: int
    recovered: int
    gave_up: dict[str, int]
    attempt_expired: int
    abandoned: int


class Retry(Policy[RetryConfig]):
    """A retry policy; make one with `retry(...)`."""

    __slots__ = ()
    type = "retry"
    no_block = "its body could not run again; write `for attempt in policy.attempts(): with attempt: ...`"

    def make_state(self, key: Hashable = None) -> Retrying:
        return Retrying(self)

    def attempts(self) -> AttemptBlocks:
        """The tries of a block, for code that is not a function: `for attempt in policy.attempts(): with attempt: ...`.

        >>> from everkeel import retry
        >>> tries = []
        >>> for attempt in retry(on=OSError, backoff=0).attempts():
        ...     with attempt:
        ...         tries.append(attempt.number)
        ...         if len(tries) < 3:
        ...             raise OSError("disk is busy")
        >>> tries
        [1, 2, 3]
        """
        return AttemptBlocks(self)

    def may_guard(self, kind: CallKind) -> None:
        if self.config.awaits_hook and kind in ("sync", "generator"):
            raise ConfigError(
                self.label, "before_retry", "must not be a coroutine function where the guarded call is sync", "one"
            )

    def judge(self, error: BaseException) -> Verdict:
        if isinstance(error, RetryExhaustedError | TimeoutExceededError) and error.policy == self.name:
            return Verdict.FAILURE  # its own way of saying that the call failed, which `on` need not name
        return self.config.classifier.of_error(error)

    def snapshot(self) -> RetrySnapshot:
        return cast("RetrySnapshot", super().snapshot())


def retry(
    name: str | None = None,
    *,
    attempts: int | None = 3,
    on: Errors = Exception,
    ignore: Errors | None = None,
    on_result: ResultPredicate | None = None,
    causes: bool = False,
    backoff: BackoffLike = exponential(0.2, factor=2, max=30),
    jitter: Jitter = "full",
    max_retry_after: Seconds = 60.0,
    obey_retry_after: bool = True,
    max_duration: Seconds | None = None,
    cut_short: bool = True,
    attempt_timeout: Seconds | None = None,
    runs: Literal["worker", "inline"] = "worker",
    budget: RetryBudget | None = None,
    exhausted: Callable[[Outcome], Any] | None = None,
    before_retry: Callable[[Attempt], Any] | None = None,
    rejections: Literal["no_evidence", "failure"] = "no_evidence",
    nested: Literal["each", "outermost"] = "each",
    max_abandoned: int = 64,
    mode: Mode = "enforce",
    clock: Clock | None = None,
    replace: bool = False,
) -> Retry:
    """Try again when a call fails: for faults that pass by themselves, on operations that may safely be repeated.

    Not for errors that will be the same next time (mix `NotRetryable` into those, or list them in `ignore`), and not
    for operations that must not happen twice, unless the other side recognises a repetition.

    When attempts run out the original exception is raised, with a note saying how often and how long was tried;
    `explain(error)` has the whole record.

    Args:
        name: Its identity in errors, events, metrics and configuration. Without one it takes the decorated function's.
        attempts: Tries including the first. 3 survives a restarted instance behind a balancer and triples the load at
            most. None: no bound but time, which then needs `max_duration` or a call under a deadline.
        on: What counts as a failure: exception classes, predicates on the exception, or a tuple of both.
        ignore: Wins over `on`.
        on_result: A predicate: True for results that count as a failure. When attempts run out on one,
            `RetryExhaustedError` carries the last.
        causes: Let `on` and `ignore` look along the chain of causes too.
        backoff: How long between tries: a `Backoff`, seconds, a sequence of them, a function of the attempt (and the
            outcome), or a table from exception class to any of these. 0.2 s doubling up to 30 s by default.
        jitter: Randomness of it, so that clients that failed together do not come back together: "full", "equal",
            "decorrelated", seconds to add at most, or None.
        max_retry_after: A `retry_after` on the error is obeyed up to so many seconds; asked for more, it gives up.
        obey_retry_after: False: what an error says about when to come back is not looked at.
        max_duration: The end of the whole call. It really ends it: an attempt in progress is cut short.
        cut_short: False: `max_duration` only keeps further attempts from beginning, and an attempt in progress may
            take its time.
        attempt_timeout: The end of one try. Its expiry is retried unless `ignore` names `TimeoutExceededError`.
        runs: Where a sync attempt with a time limit runs: in a "worker" thread that can be left behind, or "inline",
            where it must cooperate (see `current_cancellation`).
        budget: A `RetryBudget` that bounds retries as a share of the traffic.
        exhausted: Makes the answer when there is no further attempt, from the last `Outcome`, in place of raising.
        before_retry: Called with the next `Attempt` before waiting for it: refresh a token, choose another replica. May
            be a coroutine function where the call is async.
        rejections: What a rejection by another policy, and a `NotRetryable` error, counts as. "failure": like any other
            error that `on` names.
        nested: "outermost" leaves retrying to a retry around this one, if there is one.
        max_abandoned: How many timed-out attempts may still occupy their worker threads before another is refused.
        mode: "enforce", "shadow" (counts where it would have retried and passes the first outcome on) or "off".
        clock: Where its time comes from, in place of the default.
        replace: Take the name from a policy that has it.

    >>> from everkeel import retry
    >>> @retry(on=ConnectionError, attempts=5)
    ... def fetch(url: str) -> bytes:
    ...     return b"answer"
    >>> fetch("https://example.com")
    b'answer'
    """
    values = {
        "attempts": attempts,
        "on": on,
        "ignore": ignore,
        "on_result": on_result,
        "causes": causes,
        "backoff": backoff,
        "jitter": jitter,
        "max_retry_after": max_retry_after,
        "obey_retry_after": obey_retry_after,
        "max_duration": max_duration,
        "cut_short": cut_short,
        "attempt_timeout": attempt_timeout,
        "runs": runs,
        "budget": budget,
        "exhausted": exhausted,
        "before_retry": before_retry,
        "rejections": rejections,
        "nested": nested,
        "max_abandoned": max_abandoned,
        "mode": mode,
    }
    return Retry(name, RetryConfig.make(name, values), clock=clock, replace=replace)
