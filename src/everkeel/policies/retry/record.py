"""What a retry leaves behind for people: the note on the error, the record for `explain`, the events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from everkeel.errors import RetryExhaustedError
from everkeel.policies.retry.core import Run
from everkeel.runtime.explain import Decision, FailedAttempt, attach, describe

if TYPE_CHECKING:
    from everkeel.policies.retry.policy import Retry

_DEEPEST_CAUSE = 32  # a chain may be cyclic


def retrying(policy: Retry, run: Run, error: Exception | None, value: object) -> None:
    """Tell that another attempt follows."""
    from everkeel.events import Retrying

    policy.emit(
        Retrying(
            policy=policy.name,
            policy_type=policy.type,
            attempt=run.attempts,
            delay=run.delay,
            error=error,
            result=value,
            outer=run.outer,
        )
    )


def succeeded(policy: Retry, run: Run) -> None:
    """Tell that an attempt after the first succeeded."""
    from everkeel.events import RetrySucceeded

    policy.emit(RetrySucceeded(policy=policy.name, policy_type=policy.type, attempts=run.attempts + 1))


def gave_up(policy: Retry, run: Run, error: Exception | None, value: object) -> None:
    """No further attempt: count it, note it on the error, and tell."""
    unwanted = error is not None and run.reason == "not_retryable"
    policy.counts.tick("ignored" if unwanted else "failure")
    policy.counts.tick(f"gave_up_{run.reason}")
    if error is not None and run.attempts > 1:
        _note(policy, run, error)
    if error is not None and (run.attempts > 1 or not unwanted):
        explain_by(error, policy, run)
    if policy.heard():
        _tell_gave_up(policy, run.attempts, run.reason, error, value)


def cut_short(policy: Retry, run: Run | None, attempts: int, error: BaseException, reason: str) -> None:
    """The whole call's time ran out in the middle of an attempt, or before the first."""
    if run is not None:
        why = f"time ran out during attempt {attempts}"
        attach(error, Decision(policy.name, policy.type, "gave_up", why, _attempts(run)))
    if policy.heard():
        _tell_gave_up(policy, attempts, reason, error, None)


def explain_by(error: BaseException, policy: Retry, run: Run) -> None:
    """Attach the whole record to the error that leaves."""
    last = None if isinstance(error, RetryExhaustedError) else describe(type(error), error.args)
    attempts = (*_attempts(run), FailedAttempt(run.attempts, last, None))
    attach(error, Decision(policy.name, policy.type, "gave_up", _why(run), attempts))


def without_frames(error: BaseException) -> BaseException:
    """The error without the frames of its attempt, nor those of its causes: it is shown, but keeps nothing alive."""
    link: BaseException | None = error
    for _ in range(_DEEPEST_CAUSE):
        if link is None:
            break
        link.__traceback__ = None
        link = link.__cause__ or link.__context__
    return error


def _attempts(run: Run) -> tuple[FailedAttempt, ...]:
    return tuple(
        FailedAttempt(number, None if kind is None else describe(kind, args), delay)
        for number, (kind, args, delay) in enumerate(run.attempts_so_far(), 1)
    )


def _note(policy: Retry, run: Run, error: Exception) -> None:
    over = policy.clock.monotonic() - run.began
    begin = f"{policy.label} gave up after "
    # An application may raise one exception object again and again: the newest note takes the place of ours before it.
    notes = [note for note in getattr(error, "__notes__", ()) if not note.startswith(begin)]
    text = f"{begin}{run.attempts} attempts over {over:.3g} s: {_why(run)}"
    try:
        error.__notes__ = [*notes, text]
    except AttributeError:  # an exception class that refuses attributes goes without
        pass


def _why(run: Run) -> str:
    rules = run.rules
    return {
        "attempts": f"all {run.attempts} attempts failed",
        "duration": f"another attempt would not fit into its {rules.max_duration or 0:g} s",
        "deadline": "another attempt would not fit before the deadline",
        "budget": "its retry budget is spent",
        "not_retryable": "the last error is not one to retry on",
        "retry_after": f"was asked to wait longer than max_retry_after={rules.max_retry_after:g} s",
        "nested": f"left to the retry around it, {run.outer!r}",
    }[run.reason]


def _tell_gave_up(policy: Retry, attempts: int, reason: str, error: BaseException | None, value: object) -> None:
    from everkeel.events import RetryGaveUp

    policy.emit(
        RetryGaveUp(
            policy=policy.name, policy_type=policy.type, attempts=attempts, reason=reason, error=error, result=value
        )
    )
