"""The layers between policies that watch what happens, tell the metrics, and keep the record of each call."""

from __future__ import annotations

from contextvars import Token
from typing import Any

from everkeel.errors import BulkheadFullError
from everkeel.events import (
    CallQueued,
    CircuitClosed,
    CircuitHalfOpened,
    CircuitOpened,
    RetryGaveUp,
    TimedOut,
)
from everkeel.microprofile.calls import ATTEMPT, CALL, Attempt, Call, carried, real, the_attempt, the_call
from everkeel.microprofile.instruments import StateTimes
from everkeel.microprofile.metrics import (
    BreakerMetrics,
    BulkheadMetrics,
    MethodMetrics,
    RetryMetrics,
    RetryResult,
    TimeoutMetrics,
)
from everkeel.policies.bulkhead.policy import Bulkhead
from everkeel.policies.circuit_breaker.policy import CircuitBreaker
from everkeel.policies.retry.policy import Retry
from everkeel.policies.timeout.policy import Timeout
from everkeel.runtime.clock import DEFAULT
from everkeel.runtime.outcome import Verdict
from everkeel.runtime.state import CallKind, State
from everkeel.runtime.weave import Weaving

_WHY: dict[str | None, RetryResult] = {
    "attempts": "maxRetriesReached",
    "duration": "maxDurationReached",
    "deadline": "maxDurationReached",
}


class Tap(State):
    """A layer that stays whatever else is switched off."""

    __slots__ = ()
    word = "tap"

    def fragment(self, kind: CallKind) -> str | None:
        """One that needs the call's arguments is called with them; the others are woven in."""
        return super().fragment(kind) if type(self).call is State.call else None

    def layers(self) -> tuple[State, ...]:
        """Itself."""
        return (self,)

    def woven_into(self, weaving: Weaving) -> None:
        """Nothing to remember: it never changes."""


class EachCall(Tap):
    """Outside of everything: one call begins and ends."""

    __slots__ = ("_fallback", "_metrics")

    def __init__(self, metrics: MethodMetrics | None, *, fallback: bool) -> None:
        self._metrics, self._fallback = metrics, fallback

    def enter(self) -> tuple[Call, Token[Call | None] | None]:
        begun = CALL.get()
        if begun is not None and begun.launched:
            begun.launched = False
            return begun, None
        call = Call()
        return call, CALL.set(call)

    def done(self, permit: tuple[Call, Token[Call | None] | None], result: Any) -> None:
        self._over(permit, raised=False)

    def failed(self, permit: tuple[Call, Token[Call | None] | None], error: BaseException) -> None:
        self._over(permit, raised=True)

    dropped = failed

    def _over(self, permit: tuple[Call, Token[Call | None] | None], *, raised: bool) -> None:
        call, token = permit
        if token is not None:
            CALL.reset(token)
        if self._metrics is not None:
            used = "notDefined" if not self._fallback else "applied" if call.applied else "notApplied"
            self._metrics.ended(raised=raised, fallback=used)  # type: ignore[arg-type]  # one of the three words


class AroundRetry(Tap):
    """Outside of the retry: how its attempts ended."""

    __slots__ = ("_metrics",)

    def __init__(self, metrics: RetryMetrics, policy: Retry) -> None:
        self._metrics = metrics
        policy.subscribe(self._hear, RetryGaveUp)

    def _hear(self, event: RetryGaveUp) -> None:
        the_call().reason = event.reason

    def done(self, permit: None, result: Any) -> None:
        self._metrics.ended(retried=the_call().attempts > 1, result="valueReturned")

    def failed(self, permit: None, error: BaseException) -> None:
        call = the_call()
        self._metrics.ended(retried=call.attempts > 1, result=_WHY.get(call.reason, "exceptionNotRetryable"))

    dropped = failed


class EachAttempt(Tap):
    """Inside of the retry: one attempt begins and ends."""

    __slots__ = ("_metrics",)

    def __init__(self, metrics: RetryMetrics | None) -> None:
        self._metrics = metrics

    def enter(self) -> Token[Attempt | None]:
        call = the_call()
        call.attempts += 1
        if call.attempts > 1:
            call.settled()
            if self._metrics is not None:
                self._metrics.retried()
        return ATTEMPT.set(Attempt(call))

    def done(self, permit: Token[Attempt | None], result: Any) -> None:
        ATTEMPT.reset(permit)

    def failed(self, permit: Token[Attempt | None], error: BaseException) -> None:
        ATTEMPT.reset(permit)

    dropped = failed


class AroundBreaker(Tap):
    """Outside of the circuit breaker: what it made of each attempt."""

    __slots__ = ("_metrics", "_policy", "_times")

    def __init__(self, metrics: BreakerMetrics, policy: CircuitBreaker) -> None:
        self._metrics, self._policy, self._times = metrics, policy, StateTimes()
        metrics.watch(self._times)
        state = policy.snapshot()["state"]
        if state != "closed":  # it is shared, and others have used it before
            self._times.enter("halfOpen" if state == "half_open" else state)
        policy.subscribe(self._opened, CircuitOpened)
        policy.subscribe(self._half_opened, CircuitHalfOpened)
        policy.subscribe(self._closed, CircuitClosed)

    def _opened(self, event: CircuitOpened) -> None:
        if self._times.state() == "closed":
            self._metrics.opened()
        self._times.enter("open", lasting=event.open_for)

    def _half_opened(self, event: CircuitHalfOpened) -> None:
        self._times.enter("halfOpen")

    def _closed(self, event: CircuitClosed) -> None:
        self._times.enter("closed")

    def done(self, permit: None, result: Any) -> None:
        self._metrics.ended("success")

    def failed(self, permit: None, error: BaseException) -> None:
        if not the_attempt().admitted:
            self._metrics.ended("circuitBreakerOpen")
        else:
            failure = self._policy.config.classifier.of_error(error) is Verdict.FAILURE
            self._metrics.ended("failure" if failure else "success")

    def dropped(self, permit: None, error: BaseException) -> None:
        self._metrics.ended("failure" if the_attempt().admitted else "circuitBreakerOpen")


class InsideBreaker(Tap):
    """Inside of the circuit breaker: it let the attempt pass."""

    __slots__ = ()

    def enter(self) -> None:
        the_attempt().admitted = True


class AroundTimeout(Tap):
    """Outside of the timeout: how long each attempt took, and whether that was too long."""

    __slots__ = ("_metrics",)

    def __init__(self, metrics: TimeoutMetrics, policy: Timeout) -> None:
        self._metrics = metrics
        policy.subscribe(self._hear, TimedOut)

    def _hear(self, event: TimedOut) -> None:
        the_attempt().timed_out = True

    def enter(self) -> float:
        return DEFAULT.monotonic()

    def done(self, permit: float, result: Any) -> None:
        self._metrics.ended(DEFAULT.monotonic() - permit, timed_out=False)

    def failed(self, permit: float, error: BaseException) -> None:
        self._metrics.ended(DEFAULT.monotonic() - permit, timed_out=the_attempt().timed_out)

    dropped = failed


class AroundBulkhead(Tap):
    """Outside of the bulkhead: who was let in, who waits, who was sent away. Inside of the timeout."""

    __slots__ = ("_metrics",)

    def __init__(self, metrics: BulkheadMetrics | None, policy: Bulkhead) -> None:
        self._metrics = metrics
        policy.subscribe(self._hear, CallQueued)

    def _hear(self, event: CallQueued) -> None:
        attempt = the_attempt()
        if attempt.bulkhead is not self:
            return
        attempt.queued = True
        if self._metrics is not None:
            self._metrics.accepted()
            self._metrics.queued()
        if attempt.call is not None:
            attempt.call.settled()

    def enter(self) -> None:
        attempt = the_attempt()
        attempt.bulkhead, attempt.arrived = self, DEFAULT.monotonic()

    def failed(self, permit: None, error: BaseException) -> None:
        attempt = the_attempt()
        if attempt.started or self._metrics is None:
            return
        if attempt.queued:  # it left the queue without having run: timed out, or cancelled
            self._metrics.unqueued()
            self._metrics.waited(DEFAULT.monotonic() - attempt.arrived)
        elif isinstance(error, BulkheadFullError):
            self._metrics.rejected()

    dropped = failed


class InsideBulkhead(Tap):
    """Inside of the bulkhead: what really runs."""

    __slots__ = ("_metrics",)

    def __init__(self, metrics: BulkheadMetrics | None) -> None:
        self._metrics = metrics

    def enter(self) -> float:
        attempt, now = the_attempt(), DEFAULT.monotonic()
        attempt.started = True
        if self._metrics is not None:
            if attempt.queued:
                self._metrics.unqueued()
            else:
                self._metrics.accepted()
            self._metrics.waited(now - attempt.arrived if attempt.queued else 0.0)
            self._metrics.started()
        if attempt.call is not None:
            attempt.call.settled()
        return now

    def done(self, permit: float, result: Any) -> None:
        self._ended(permit)

    def failed(self, permit: float, error: BaseException) -> None:
        self._ended(permit)

    dropped = failed

    def _ended(self, began: float) -> None:
        if self._metrics is not None:
            self._metrics.finished(DEFAULT.monotonic() - began)


class Carrying(Tap):
    """Innermost: an error that is no `Exception` gets into its carrier."""

    __slots__ = ()

    def dropped(self, permit: None, error: BaseException) -> None:
        other = carried(error)
        if other is not error:
            raise other from None


def unloaded(error: BaseException) -> BaseException:
    """Outermost: the error as it was raised, and nothing of the carrier left on it."""
    original = real(error)
    if original is not error and original.__context__ is error:
        original.__context__ = None
    return original
