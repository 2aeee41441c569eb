"""What happened, as frozen values in the past tense. Hear them with `policy.subscribe` or `everkeel.subscribe`.

Every event says which policy it is about (`policy`, its name, and `policy_type`). Fields named `error` hold the very
exception.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something a policy did or saw."""

    policy: str | None
    """The policy's name; None for one that has none."""
    policy_type: str
    """`retry`, `circuit_breaker`, ..."""


# ------------------------------------------------------------------ every policy


@dataclass(frozen=True, kw_only=True, slots=True)
class Succeeded(Event):
    """A call ended well. Listening for this adds a layer to the policy."""

    duration: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Failed(Event):
    """A call ended in an exception that counts as a failure."""

    duration: float
    error: BaseException


@dataclass(frozen=True, kw_only=True, slots=True)
class Ignored(Event):
    """A call ended in an exception that does not count as a failure."""

    duration: float
    error: BaseException


@dataclass(frozen=True, kw_only=True, slots=True)
class Reconfigured(Event):
    """Settings changed; `changes` maps each to its old and its new value."""

    changes: dict[str, tuple[Any, Any]]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModeChanged(Event):
    """The policy now enforces, only watches (shadow), or is off."""

    before: str
    mode: str


@dataclass(frozen=True, kw_only=True, slots=True)
class WouldHave(Event):
    """In shadow mode: what the policy would have done (`reject`, `retry`, `expire`, `queue`, `fall_back`, ...)."""

    action: str
    error: BaseException | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CallRejected(Event):
    """A call was turned away before it was made."""

    error: BaseException
    key: object = None


# ------------------------------------------------------------------ the registry


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyAdded(Event):
    """A policy was registered under its name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyRemoved(Event):
    """A policy was taken out of the registry."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyReplaced(Event):
    """A policy took the name of another one."""


# ------------------------------------------------------------------ configuration


class SettingChange(NamedTuple):
    """One setting of one policy that has another value now."""

    type: str
    name: str | None
    setting: str
    before: Any
    after: Any
    source: str
    """Where the new value comes from: default, code, a file and its line, env and the variable, or live."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigChanged(Event):
    """Another version of the configuration is in force. `policy` is None: it is about all of them."""

    version: int
    cause: str
    """load, reload, watch, change, or `rollback to 3`."""
    changes: tuple[SettingChange, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ConfigRejected(Event):
    """A new configuration is wrong and was not taken; `version` is the one that stays in force."""

    version: int
    cause: str
    problems: tuple[str, ...]
    """All that is wrong with it, each with its place."""


# ------------------------------------------------------------------ retry


@dataclass(frozen=True, kw_only=True, slots=True)
class Retrying(Event):
    """An attempt failed and another will follow after `delay` seconds."""

    attempt: int
    """The attempt that failed; 1 is the first."""
    delay: float
    error: BaseException | None
    """What it raised; None when it returned a result that counts as a failure."""
    result: object = None
    outer: str | None = None
    """Another retry policy around this one, which multiplies the attempts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RetrySucceeded(Event):
    """A call succeeded after at least one failed attempt."""

    attempts: int


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryGaveUp(Event):
    """No further attempt: `reason` is attempts, duration, deadline, budget, not_retryable, retry_after or nested."""

    attempts: int
    reason: str
    error: BaseException | None
    result: object = None


# ------------------------------------------------------------------ circuit breaker


@dataclass(frozen=True, kw_only=True, slots=True)
class CircuitOpened(Event):
    """Too many failures: calls are rejected for `open_for` seconds (None: until told otherwise)."""

    failure_rate: float | None
    open_for: float | None
    reason: str | None = None
    key: object = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CircuitHalfOpened(Event):
    """A few probes may pass to see whether the trouble is over."""

    key: object = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CircuitClosed(Event):
    """Calls pass again."""

    key: object = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CircuitForced(Event):
    """Somebody set the state by hand."""

    state: str
    key: object = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CircuitReset(Event):
    """Somebody made the circuit forget everything."""

    key: object = None


# ------------------------------------------------------------------ timeout, bulkhead


@dataclass(frozen=True, kw_only=True, slots=True)
class TimedOut(Event):
    """A call had no answer in time."""

    seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LateCompletion(Event):
    """A call that had timed out ended after all, `late_by` seconds after its time."""

    late_by: float
    error: BaseException | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CallQueued(Event):
    """A call has to wait for a place."""

    waiting: int
    key: object = None


@dataclass(frozen=True, kw_only=True, slots=True)
class WaitEnded(Event):
    """A call that had to wait for a place got one, or has waited long enough."""

    seconds: float
    granted: bool
    key: object = None


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitChanged(Event):
    """How many calls may run at once changed."""

    before: int
    limit: int
    key: object = None


# ------------------------------------------------------------------ rate limit


@dataclass(frozen=True, kw_only=True, slots=True)
class Granted(Event):
    """Permits were granted. Listening for this makes every call a little slower."""

    permits: int
    key: object = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Drained(Event):
    """The limiter was emptied, because the protected service asked for a pause or somebody did."""

    seconds: float | None
    key: object = None


# ------------------------------------------------------------------ hedge


@dataclass(frozen=True, kw_only=True, slots=True)
class HedgeStarted(Event):
    """Another attempt began beside those under way."""

    attempt: int


@dataclass(frozen=True, kw_only=True, slots=True)
class HedgeWon(Event):
    """An attempt answered first; 1 is the one that began first."""

    attempt: int


# ------------------------------------------------------------------ chaos


@dataclass(frozen=True, kw_only=True, slots=True)
class ChaosInjected(Event):
    """A call was hit on purpose; `kinds` are behavior, latency, error and result, in the order they happen."""

    kinds: tuple[str, ...]
    call: int
    """Which call of its key, from 1."""
    latency: float = 0.0
    error: BaseException | None = None
    key: object = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ChaosStopped(Event):
    """No more faults until it is resumed: too many calls failed, or somebody stopped it."""

    reason: str


# ------------------------------------------------------------------ feature toggle


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureDenied(Event):
    """A call did not get the feature; `reason` is disabled, denied, schedule, predicate or share."""

    reason: str
    key: object = None


# ------------------------------------------------------------------ fail fast


@dataclass(frozen=True, kw_only=True, slots=True)
class FailFastOpened(Event):
    """Known to be bad: calls are rejected for `open_for` seconds (None: until it is reset, or its check passes)."""

    reason: str
    open_for: float | None
    error: BaseException | None = None
    """The last of the failures that opened it; None when it was the check, or a hand."""
    key: object = None


@dataclass(frozen=True, kw_only=True, slots=True)
class FailFastClosed(Event):
    """Calls pass again; `reason` is reset, time or check."""

    reason: str
    key: object = None


# ------------------------------------------------------------------ cache


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheHit(Event):
    """A fresh answer was there. Listening for this makes every hit slower."""

    key: object = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheMissed(Event):
    """No answer was there that may be served: a load begins."""

    key: object = None


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheStale(Event):
    """An answer was served that has expired; `age` is the time since it was loaded."""

    age: float
    key: object = None
    error: BaseException | None = None
    """The failure it was served in place of; None when it is being refreshed."""


# ------------------------------------------------------------------ collapse


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchSent(Event):
    """Calls were sent as one; `waited` is how long the first of them waited for the others."""

    size: int
    waited: float


# ------------------------------------------------------------------ fallback


@dataclass(frozen=True, kw_only=True, slots=True)
class FellBack(Event):
    """The call failed and an alternative answered in its place."""

    error: BaseException | None
    result: object = None


# ------------------------------------------------------------------ consumers and dead letters


@dataclass(frozen=True, kw_only=True, slots=True)
class DuplicateSuppressed(Event):
    """An event came again that this consumer has handled; nothing was done."""

    event_id: str
    event_type: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DeadLettered(Event):
    """An event was given up on, or set aside behind one that was; `letter` is the id under which it is kept."""

    letter: str
    event_id: str
    event_type: str
    reason: str
    """attempts, rejected, poison, mismatch or parked."""
    attempts: int
    error: BaseException | None = None
    epoch: int = 0
    """How often it was replayed. If it was, this letter supersedes an earlier one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Replayed(Event):
    """A dead letter's event is on its way again."""

    letter: str
    event_id: str
    event_type: str
    actor: str
    epoch: int
    edited: bool = False
    actor_kind: str = "human"
    """human, agent or auto."""
    before: str = "pending"
    """The letter's status until then."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Discarded(Event):
    """A dead letter was given up on for good."""

    letter: str
    event_id: str
    event_type: str
    actor: str
    reason: str
    actor_kind: str = "human"
    """human, agent or auto."""
    before: str = "pending"
    """The letter's status until then."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved(Event):
    """The event of a dead letter was handled after all, or has left the outbox after all."""

    letters: int
    event_id: str
    event_type: str
    before: str = "replayed"
    """The letters' status until then."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Reopened(Event):
    """A dead letter waits again: nothing was heard of its replay."""

    letter: str
    event_id: str
    event_type: str
    actor: str
    reason: str
    actor_kind: str = "human"
    """human, agent or auto."""


# ------------------------------------------------------------------ outbox and relay


@dataclass(frozen=True, kw_only=True, slots=True)
class EventWritten(Event):
    """An event was written to the outbox; it counts once the transaction it was written in is committed."""

    event_id: str
    event_type: str
    topic: str


@dataclass(frozen=True, kw_only=True, slots=True)
class EventDelivered(Event):
    """A transport confirmed an event; `age` is how long it took since it was written."""

    event_id: str
    event_type: str
    topic: str
    attempt: int
    age: float


@dataclass(frozen=True, kw_only=True, slots=True)
class DeliveryFailed(Event):
    """An event was not confirmed and is tried again after `delay` seconds (None: when the transport is back)."""

    event_id: str
    event_type: str
    topic: str
    attempt: int
    delay: float | None
    error: BaseException | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchPublished(Event):
    """A transport answered for a batch of events after `duration` seconds; it confirmed so many of them."""

    topic: str
    size: int
    confirmed: int
    duration: float


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseLost(Event):
    """Somebody took over while we were at it; what we had to say about it was not written."""

    event_id: str
    event_type: str
    topic: str


# ------------------------------------------------------------------ sagas


@dataclass(frozen=True, kw_only=True, slots=True)
class SagaStarted(Event):
    """A saga began; `policy` is its type."""

    saga_id: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCompleted(Event):
    """A step's action succeeded; `late`: after the saga had turned back, so that it is undone."""

    saga_id: str
    step: str
    attempt: int
    late: bool = False
    duration: float | None = None
    """Seconds since its first attempt began; None where that is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRejected(Event):
    """A step said no for a business reason; `reason` is its error as text."""

    saga_id: str
    step: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SagaTimedOut(Event):
    """A saga's time was over before it was; `compensating` is False where it was past its pivot and goes on."""

    saga_id: str
    compensating: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Compensating(Event):
    """A saga turned back: rejected, failed, timed_out, cancelled, ..."""

    saga_id: str
    cause: str
    step: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StepUndone(Event):
    """A step's compensation is confirmed."""

    saga_id: str
    step: str
    attempt: int
    duration: float | None = None
    """Seconds since it began to be undone; None where that is not known."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SagaCompleted(Event):
    """Every step is done; `duration` is the time since the saga began."""

    saga_id: str
    duration: float


@dataclass(frozen=True, kw_only=True, slots=True)
class SagaCompensated(Event):
    """Everything that had to be undone is."""

    saga_id: str
    cause: str
    duration: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CompensationBlocked(Event):
    """A compensation failed as often as it may: an operator is needed."""

    saga_id: str
    step: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SagaParked(Event):
    """A saga cannot go on by itself, and an operator is needed."""

    saga_id: str
    cause: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SagaFailed(Event):
    """An operator has given up on a saga: nothing more is done for it, and nothing more is undone."""

    saga_id: str
    actor: str
    reason: str
