"""Why a call failed the way it did: the decision record of an exception that left a pipeline.

Nothing is recorded while calls succeed. A policy that gives up attaches one small `Decision` to the exception; what
our own errors say about themselves is read from them when somebody asks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from everkeel.errors import EverkeelError, RejectedError, TimeoutExceededError
from everkeel.runtime.settings import label

_ATTRIBUTE = "__everkeel__"
_MOST = 16  # decisions kept on one exception object: an application may raise the same one for ever
_DEEPEST = 32


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """One attempt that did not succeed."""

    number: int
    error: str | None
    """Class and message of what it raised; None when it returned a result that counts as a failure."""
    delay: float | None
    """Seconds waited after it; None after the last."""

    def __str__(self) -> str:
        what = self.error or "a result that counts as a failure"
        return f"attempt {self.number}: {what}" + ("" if self.delay is None else f"; waited {self.delay:.3g} s")


@dataclass(frozen=True, slots=True)
class Decision:
    """What one policy decided about the call, and why."""

    policy: str | None
    policy_type: str
    action: str
    """`gave_up`, `rejected`, `timed_out`, `fell_back`, `injected`."""
    reason: str
    attempts: tuple[FailedAttempt, ...] = ()

    def __str__(self) -> str:
        lines = [f"{label(self.policy_type, self.policy)} {self.action.replace('_', ' ')}: {self.reason}"]
        return "\n".join([*lines, *(f"  {attempt}" for attempt in self.attempts)])


@dataclass(frozen=True, slots=True)
class Explanation:
    """The decision record of an exception: what each policy on its way out decided, innermost first."""

    error: BaseException
    decisions: tuple[Decision, ...]

    @property
    def attempts(self) -> int:
        """How many attempts the outermost retry made; 1 when none was involved."""
        for decision in reversed(self.decisions):
            if decision.attempts:
                return len(decision.attempts)
        return 1

    @property
    def delays(self) -> tuple[float, ...]:
        """How long the outermost retry waited after each attempt."""
        for decision in reversed(self.decisions):
            if decision.attempts:
                return tuple(attempt.delay for attempt in decision.attempts if attempt.delay is not None)
        return ()

    def __str__(self) -> str:
        if not self.decisions:
            return f"{type(self.error).__name__}: no policy decided anything about it"
        return "\n".join(str(decision) for decision in self.decisions)


def attach(error: BaseException, decision: Decision) -> None:
    """Remember a decision on the exception it is about."""
    earlier: tuple[Decision, ...] = getattr(error, _ATTRIBUTE, ())
    try:
        setattr(error, _ATTRIBUTE, (*earlier, decision)[-_MOST:])
    except AttributeError:  # an exception class that refuses attributes stays unexplained
        pass


def explain(error: BaseException) -> Explanation:
    """What the policies decided about a call that failed, and why: attempts, delays, rejections, timeouts.

    >>> from everkeel import explain, retry
    >>> def fetch():
    ...     raise ConnectionError("refused")
    >>> try:
    ...     retry("docs.explain", attempts=2, backoff=0).call(fetch)
    ... except ConnectionError as error:
    ...     print(explain(error))
    retry 'docs.explain' gave up: all 2 attempts failed
      attempt 1: ConnectionError: refused; waited 0 s
      attempt 2: ConnectionError: refused
    """
    decisions: list[Decision] = []
    seen: set[int] = set()
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and id(current) not in seen and len(chain) < _DEEPEST:
        seen.add(id(current))
        chain.append(current)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    for link in reversed(chain):
        own = _own(link)
        if own is not None:
            decisions.append(own)
        decisions.extend(getattr(link, _ATTRIBUTE, ()))
    return Explanation(error, tuple(decisions))


def _own(error: BaseException) -> Decision | None:
    """What one of our own errors says about itself."""
    if isinstance(error, RejectedError):
        return Decision(error.policy, error.policy_type, "rejected", str(error))
    if isinstance(error, TimeoutExceededError):
        return Decision(error.policy, error.limit, "timed_out", f"no answer within {error.seconds:g} s")
    return None


def describe(kind: type[BaseException], args: tuple[Any, ...]) -> str:
    """Class and message of an exception that is not kept, from its class and arguments."""
    try:
        text = str(kind(*args)) if issubclass(kind, EverkeelError) else ", ".join(str(argument) for argument in args)
    except Exception:  # an argument that cannot be shown must not replace the error that is on its way
        text = "…"
    return f"{kind.__name__}: {text[:200]}" if text else kind.__name__
