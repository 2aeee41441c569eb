"""From what the annotations of one method say to the policies that do it, in the standard's order.

Outermost first: Fallback, Retry, CircuitBreaker, Timeout, Bulkhead, and the body in its thread. Each is the native
policy of that name with the settings that make it follow the standard; nothing is decided here at run time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from everkeel.microprofile import additions, config, fallbacks, taps
from everkeel.microprofile import annotations as said
from everkeel.microprofile.annotations import Annotation, seconds
from everkeel.microprofile.backoffs import Delays
from everkeel.microprofile.calls import judged, real, the_call
from everkeel.microprofile.driver import in_a_worker, to_the_end
from everkeel.microprofile.exceptions import BulkheadException, CircuitBreakerOpenException, TimeoutException
from everkeel.microprofile.extras import BeforeRetry, RateLimit
from everkeel.microprofile.kinds import Kind
from everkeel.microprofile.metrics import MethodMetrics
from everkeel.policies.bulkhead.policy import Bulkhead, bulkhead
from everkeel.policies.circuit_breaker.policy import CircuitBreaker, circuit_breaker
from everkeel.policies.fallback import Fallback, fallback
from everkeel.policies.retry.policy import Retry, retry
from everkeel.policies.timeout.policy import Timeout, timeout
from everkeel.runtime.clock import DEFAULT
from everkeel.runtime.outcome import Outcome
from everkeel.runtime.policy import AnyPolicy
from everkeel.runtime.registry import registry
from everkeel.runtime.state import State
from everkeel.runtime.weave import Weaving

_FOREVER = 1e9  # seconds; the standard knows no lease on a trial
_NO_LIMIT = sys.maxsize
P = TypeVar("P")


class Part(Protocol):
    """A policy, or a tap between two of them."""

    def layers(self) -> tuple[State, ...]:
        """What a call passes through now, outermost first."""
        ...

    def woven_into(self, weaving: Weaving) -> None:
        """Remember a function to refresh when the layers change."""
        ...


class Shared(Protocol):
    """A guard that several methods share."""

    name: str

    def once(self, annotation: str, make: Callable[[], P]) -> P:
        """What does the work of an annotation; made for the first who asks."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """What is in force on one method of one class."""

    target: fallbacks.Target
    tag: str
    """The value of the metrics' tag `method`."""
    records: dict[str, Annotation]
    """By the name of the annotation, as configured, and only those that are enabled."""
    bound: bool
    """Is the first argument of a call the object whose method it is?"""
    shared: Shared | None = None
    """What has the state, where the method shares that with others."""

    def once(self, annotation: str, make: Callable[[], P]) -> P:
        """What does the work of an annotation: its own, or the one that is shared."""
        return make() if self.shared is None else self.shared.once(annotation, make)

    @property
    def kind(self) -> Kind:
        """What a call returns."""
        return self.target.kind

    @property
    def awaited(self) -> bool:
        """Do its policies act on a coroutine?"""
        return self.kind != "sync"

    def has(self, name: str) -> bool:
        """Is this annotation in force?"""
        return name in self.records


def parts_of(plan: Plan, metrics: MethodMetrics | None) -> list[Part]:
    """Everything a call passes through, outermost first."""
    parts: list[Part] = [taps.EachCall(metrics, fallback=plan.has("Fallback"))]
    if plan.has("Fallback"):
        said_fallback = cast("said.Fallback", plan.records["Fallback"])
        parts.append(
            _adopted(make_fallback(plan, said_fallback), plan.tag)
        )  # a method's own, even where a guard is shared
    if plan.has("Retry"):
        results, errors = additions.predicates_of(plan)
        said_retry, delays = cast("said.Retry", plan.records["Retry"]), additions.delays_of(plan)
        again = _named(plan, "Retry", lambda: make_retry(said_retry, delays, on_result=results, on_error=errors))
        if results is not None:
            parts.append(additions.Unsatisfied(plan.tag, again.name))
        if metrics is not None and metrics.retry is not None:
            parts.append(taps.AroundRetry(metrics.retry, again))
        parts.append(again)
        if plan.has("BeforeRetry"):
            parts.append(additions.BeforeEachRetry(plan, cast("BeforeRetry", plan.records["BeforeRetry"])))
    parts.append(taps.EachAttempt(None if metrics is None else metrics.retry))
    if plan.has("CircuitBreaker"):
        said_breaker = cast("said.CircuitBreaker", plan.records["CircuitBreaker"])
        breaker = _named(plan, "CircuitBreaker", lambda: make_breaker(said_breaker))
        if metrics is not None and metrics.circuit_breaker is not None:
            parts += [taps.AroundBreaker(metrics.circuit_breaker, breaker), breaker, taps.InsideBreaker()]
        else:
            parts.append(breaker)
    if plan.has("RateLimit"):
        counting = None if metrics is None else metrics.rate_limit
        said_limit = cast("RateLimit", plan.records["RateLimit"])
        limiter = plan.once("RateLimit", lambda: additions.Limiter(said_limit))
        parts.append(additions.Limiting(limiter, plan.tag, counting))
    if plan.has("Timeout") and cast("said.Timeout", plan.records["Timeout"]).value > 0:
        said_timeout = cast("said.Timeout", plan.records["Timeout"])
        limit = _named(plan, "Timeout", lambda: make_timeout(said_timeout))
        if metrics is not None and metrics.timeout is not None:
            parts.append(taps.AroundTimeout(metrics.timeout, limit))
        parts.append(limit)
    if plan.has("Bulkhead"):
        queues = plan.has("Asynchronous") and plan.awaited
        said_bulkhead = cast("said.Bulkhead", plan.records["Bulkhead"])
        places = _named(plan, "Bulkhead", lambda: make_bulkhead(said_bulkhead, queues=queues))
        counted = None if metrics is None else metrics.bulkhead
        parts += [taps.AroundBulkhead(counted, places), places, taps.InsideBulkhead(counted)]
    parts.append(taps.Carrying())
    return parts


def _named(plan: Plan, annotation: str, make: Callable[[], P]) -> P:
    """A policy of this method, or the one of the guard that it shares with others."""
    return plan.once(annotation, lambda: _adopted(make(), plan.tag if plan.shared is None else plan.shared.name))


def _adopted(policy: P, name: str) -> P:
    """Under its name in errors and lists of policies. Configuration of native policies does not apply to it."""
    made = cast("AnyPolicy", policy)
    made.settled = True
    made.name = name
    registry.adopt(made, name)
    return policy


# ------------------------------------------------------------------ the policies


def make_retry(
    record: said.Retry,
    delays: Callable[[], Delays] | None = None,
    *,
    on_result: Callable[[Any], bool] | None = None,
    on_error: Callable[[BaseException], bool] | None = None,
) -> Retry:
    """At most `maxRetries` more attempts, none begun after `maxDuration`. `delays`: a backoff, made for each call."""
    delay = seconds(record.delay, record.delay_unit)
    jitter = seconds(record.jitter, record.jitter_delay_unit)
    on, ignore = judged(record.retry_on, record.abort_on, causes=config.current().judges_causes)

    def pause(attempt: int, outcome: Outcome) -> float:
        length = delay
        if delays is not None:
            call = the_call()
            if call.delays is None:
                call.delays = delays()
            length = call.delays.next(None if outcome.error is None else real(outcome.error))
        if jitter:
            length += (2 * DEFAULT.random() - 1) * jitter
        return max(0.0, length)

    return retry(
        attempts=_NO_LIMIT if record.max_retries < 0 else record.max_retries + 1,
        on=on if on_error is None else on_error,
        on_result=on_result,
        ignore=ignore,
        backoff=pause if jitter or delays is not None else delay,
        jitter=None,
        max_duration=seconds(record.max_duration, record.duration_unit) or None,
        cut_short=False,
        rejections="failure",
        obey_retry_after=False,
    )


def make_breaker(record: said.CircuitBreaker) -> CircuitBreaker:
    """Opens on a full window, closes when all of a fixed number of trials succeed."""
    size = record.request_volume_threshold
    on, ignore = judged(record.fail_on, record.skip_on, causes=config.current().judges_causes)
    return circuit_breaker(
        failure_rate=record.failure_ratio,
        allow_zero_rate=True,
        window=size,
        minimum_calls=size,
        on=on,
        ignore=ignore,
        ignored="success",
        rejections="failure",
        open_for=seconds(record.delay, record.delay_unit),
        probes=record.success_threshold,
        probe_success_rate=1.0,
        probe_lease=_FOREVER,
        cancelled_probe="failure",
        open_error=CircuitBreakerOpenException,
    )


def make_timeout(record: said.Timeout) -> Timeout:
    """On the caller's thread for a sync method, where the body must cooperate; a coroutine is cancelled."""
    return timeout(
        seconds(record.value, record.unit),
        runs="inline",
        strict=True,
        max_abandoned=_NO_LIMIT,
        expired_error=TimeoutException,
    )


def make_bulkhead(record: said.Bulkhead, *, queues: bool) -> Bulkhead:
    """A queue only where calls are asynchronous."""
    return bulkhead(record.value, queue=record.waiting_task_queue if queues else 0, full_error=BulkheadException)


def make_fallback(plan: Plan, record: said.Fallback) -> Fallback:
    """Answers where everything else has failed."""
    answer = fallbacks.alternative(plan.target, record, bound=plan.bound)
    kind, where = plan.kind, plan.tag
    on, ignore = judged(record.apply_on, record.skip_on, causes=config.current().judges_causes)

    def begin() -> BaseException:
        call = the_call()
        call.applied = True
        call.settled()
        error = sys.exc_info()[1]  # a fallback runs while the failure is being handled
        assert error is not None
        return real(error)

    def fall_back(*args: Any, **kwargs: Any) -> Any:
        return answer(begin(), args, kwargs)

    async def afall_back(*args: Any, **kwargs: Any) -> Any:
        failure = begin()
        if kind == "coroutine":
            result = answer(failure, args, kwargs)
            return await result if hasattr(result, "__await__") else result
        result = await in_a_worker(where, answer, (failure, args, kwargs), {}, stage=kind == "stage")
        return await to_the_end(result) if kind == "stage" else result

    return fallback(
        afall_back if plan.awaited else fall_back,
        on=on,
        ignore=ignore,
    )
