"""From snapshots and events to the numbers that `names` lists; exporters read them here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from everkeel.runtime.registry import registry
from everkeel.runtime.trouble import report
from everkeel.telemetry.names import Measurement, identity

if TYPE_CHECKING:
    from everkeel.events import Event
    from everkeel.runtime.policy import AnyPolicy

# ------------------------------------------------------------------ from snapshots


def measure(policy: AnyPolicy) -> list[Measurement]:
    """The numbers of one policy, from its snapshot.

    >>> from everkeel import retry
    >>> fetch = retry("docs.measured")
    >>> fetch.call(len, "")
    0
    >>> measure(fetch)[0].name, measure(fetch)[0].value, measure(fetch)[0].attributes["outcome"]
    ('everkeel.calls', 1, 'success')
    """
    snapshot: Mapping[str, Any] = policy.snapshot()
    who = identity(policy.name, policy.type)
    rows = [*_every_policy(snapshot), *_BY_TYPE.get(policy.type, _nothing)(snapshot)]
    return [Measurement(name, value, {**who, **own}) for name, value, own in rows if value is not None]


def measure_all(policies: Iterable[AnyPolicy] = registry) -> Iterator[Measurement]:
    """The numbers of every registered policy, and of the stores that are watched.

    A policy that cannot be read is reported, and does not spoil the others.
    """
    for policy in policies:
        try:
            measurements = measure(policy)
        except Exception as error:
            report(f"{policy.label}: its snapshot could not be read for telemetry", error)
        else:
            yield from measurements
    if policies is registry:
        for source in sources:
            try:
                found = list(source())
            except Exception as error:
                report("what is watched beside policies could not be read for telemetry", error)
            else:
                yield from found


sources: tuple[Callable[[], Iterable[Measurement]], ...] = ()
"""Numbers that are no policy's: those of the `StoreMetrics` that run."""


Row: TypeAlias = tuple[str, Any, dict[str, str]]


def _every_policy(now: Mapping[str, Any]) -> Iterator[Row]:
    for outcome in ("success", "failure", "ignored", "rejected"):
        yield "everkeel.calls", now[outcome], {"outcome": outcome}
    for action, count in now["would"].items():
        yield "everkeel.shadow.would", count, {"action": action}


def _retry(now: Mapping[str, Any]) -> Iterator[Row]:
    # Every call that ended well had one good attempt, and every other attempt failed: as many as there were retries,
    # and the last ones of the calls that failed.
    yield "everkeel.retry.attempts", now["success"], {"outcome": "success"}
    yield "everkeel.retry.attempts", now["retries"] + now["failure"], {"outcome": "failure"}
    yield "everkeel.retry.attempts", now["ignored"], {"outcome": "ignored"}
    for reason, count in now["gave_up"].items():
        yield "everkeel.retry.gave_up", count, {"reason": reason}
    yield "everkeel.retry.ignored", now["ignored"], {}


def _circuit_breaker(now: Mapping[str, Any]) -> Iterator[Row]:
    states = now.get("states")  # of the circuits of a keyed breaker
    for state in ("closed", "open", "half_open"):
        yield (
            "everkeel.circuit.state",
            int(now["state"] == state) if states is None else states[state],
            {"state": state},
        )
    yield "everkeel.circuit.failure_rate", now.get("failure_rate"), {}
    yield "everkeel.circuit.slow_rate", now.get("slow_rate"), {}
    yield "everkeel.circuit.window.calls", now.get("window_calls"), {}
    for change, count in now["transitions"].items():
        before, _, after = change.partition("_to_")
        yield "everkeel.circuit.transitions", count, {"from": before, "to": after}
    yield "everkeel.circuit.rejected", now["rejected"], {}
    for state, seconds in now["time_in_state"].items():
        yield "everkeel.circuit.time_in_state", seconds, {"state": state}


def _timeout(now: Mapping[str, Any]) -> Iterator[Row]:
    yield "everkeel.timeout.expired", now["expired"], {}


def _places(now: Mapping[str, Any]) -> Iterator[Row]:
    yield "everkeel.bulkhead.running", now["running"], {}
    yield "everkeel.bulkhead.waiting", now["waiting"], {}
    yield "everkeel.concurrency.limit", now["limit"], {}


def _rate_limit(now: Mapping[str, Any]) -> Iterator[Row]:
    for decision, count in (("granted", now["success"]), ("queued", now["queued"]), ("rejected", now["rejected"])):
        yield "everkeel.rate_limit.decisions", count, {"decision": decision}
    for what in ("available", "capacity", "refill_rate", "utilization", "backpressure"):
        yield f"everkeel.rate_limit.{what}", now[what], {}


def _fallback(now: Mapping[str, Any]) -> Iterator[Row]:
    yield "everkeel.fallback.used", now["used"], {}


def _hedge(now: Mapping[str, Any]) -> Iterator[Row]:
    yield "everkeel.hedge.started", now["started"], {}
    for attempt, count in now["won"].items():
        yield "everkeel.hedge.won", count, {"attempt": str(attempt)}


def _cache(now: Mapping[str, Any]) -> Iterator[Row]:
    for result, field in (("hit", "hits"), ("miss", "misses"), ("stale", "stale"), ("coalesced", "coalesced")):
        yield "everkeel.cache.lookups", now[field], {"result": result}


def _feature_toggle(now: Mapping[str, Any]) -> Iterator[Row]:
    for reason, count in now["denied"].items():
        yield "everkeel.toggle.denied", count, {"reason": reason}


def _chaos(now: Mapping[str, Any]) -> Iterator[Row]:
    for kind, count in now["injected"].items():
        yield "everkeel.chaos.injected", count, {"kind": kind}


def _nothing(now: Mapping[str, Any]) -> Iterator[Row]:
    yield from ()


_BY_TYPE = {
    "retry": _retry,
    "circuit_breaker": _circuit_breaker,
    "timeout": _timeout,
    "bulkhead": _places,
    "concurrency_limit": _places,
    "rate_limit": _rate_limit,
    "fallback": _fallback,
    "hedge": _hedge,
    "cache": _cache,
    "feature_toggle": _feature_toggle,
    "chaos": _chaos,
}


# ------------------------------------------------------------------ from events


def heard_events(*, calls: bool = False) -> tuple[type[Event], ...]:
    """What must be heard for the metrics that no snapshot has; `calls`: also for those that hear of every call."""
    from everkeel import events

    trouble: tuple[type[Event], ...] = (
        events.Retrying, events.WaitEnded, events.CallRejected,
        events.EventDelivered, events.BatchPublished,
        events.SagaCompleted, events.SagaCompensated, events.StepCompleted, events.StepUndone,
    )  # fmt: skip
    return (*trouble, events.Succeeded, events.Failed, events.Ignored, events.Granted) if calls else trouble


def measure_event(event: Event) -> Measurement | None:
    """What an event adds to a histogram, or to a counter that no snapshot has; None where that is nothing."""
    from everkeel import events

    who = identity(event.policy, event.policy_type)
    match event:
        case events.Retrying():
            return Measurement("everkeel.retry.delay", event.delay, who)
        case events.WaitEnded():
            granted = "true" if event.granted else "false"
            return Measurement("everkeel.bulkhead.wait", event.seconds, {**who, "granted": granted})
        case events.CallRejected() if event.policy_type == "rate_limit":
            after = getattr(event.error, "retry_after", None)
            return None if after is None else Measurement("everkeel.rate_limit.retry_after", after, who)
        case events.Succeeded():
            return Measurement("everkeel.call.duration", event.duration, {**who, "outcome": "success"})
        case events.Failed():
            return Measurement("everkeel.call.duration", event.duration, {**who, "outcome": "failure"})
        case events.Ignored():
            return Measurement("everkeel.call.duration", event.duration, {**who, "outcome": "ignored"})
        case events.Granted():
            return Measurement("everkeel.rate_limit.permits", event.permits, who)
        case events.EventDelivered():
            return Measurement("everkeel.outbox.delivery_age", event.age, who)
        case events.BatchPublished():
            result = "confirmed" if event.confirmed == event.size else "failed"
            return Measurement("everkeel.outbox.publish.duration", event.duration, {**who, "result": result})
        case events.SagaCompleted():
            return Measurement("everkeel.saga.duration", event.duration, {**who, "state": "completed"})
        case events.SagaCompensated():
            return Measurement("everkeel.saga.duration", event.duration, {**who, "state": "compensated"})
        case events.StepCompleted() if event.duration is not None:
            return Measurement("everkeel.saga.step.duration", event.duration, {**who, "step": event.step})
        case events.StepUndone() if event.duration is not None:
            return Measurement("everkeel.saga.compensation.duration", event.duration, {**who, "step": event.step})
    return None
