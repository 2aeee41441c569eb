"""Every metric in one place: its name, type, unit and attributes, and how it is read from snapshots and events.

Names are OpenTelemetry's. Prometheus has the same with underscores, units and `_total`, exactly as a collector would
translate them, so that one dashboard serves both ways.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

from everkeel.runtime.registry import registry
from everkeel.runtime.trouble import report

if TYPE_CHECKING:
    from everkeel.events import Event
    from everkeel.runtime.policy import AnyPolicy

POLICY_NAME = "everkeel.policy.name"
POLICY_TYPE = "everkeel.policy.type"

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Source: TypeAlias = Literal["snapshot", "event", "call"]
"""Where numbers come from: snapshots, read when somebody scrapes; events, heard when something is wrong; or every call,
which is why those must be asked for."""


class Metric(NamedTuple):
    """One metric. Beside its own attributes, each has the policy's name and type."""

    name: str
    kind: Kind
    unit: str
    description: str
    attributes: Mapping[str, str]
    """Attribute to its values, as one reads them in the documentation."""
    source: Source = "snapshot"

    @property
    def prometheus_name(self) -> str:
        """The same in Prometheus, with `_total` where it is a counter."""
        words = self.name.replace(".", "_")
        unit = _SPELT.get(self.unit, "")
        if self.unit == "1" and self.kind != "gauge":
            unit = ""
        if unit and not words.endswith(unit):
            words += unit
        return words + ("_total" if self.kind == "counter" else "")


_SPELT = {"s": "_seconds", "1": "_ratio", "{permit}/s": "_per_second"}


class Measurement(NamedTuple):
    """One number of one metric."""

    name: str
    value: float
    attributes: dict[str, str]


_OUTCOMES = "`success`, `failure`, `ignored`, `rejected`"
_STATES = "`closed`, `open`, `half_open`"

METRICS: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric("everkeel.calls", "counter", "{call}", "Calls that ended, by outcome.", {"outcome": _OUTCOMES}),
        Metric(
            "everkeel.call.duration",
            "histogram",
            "s",
            "How long calls took, with everything the policy did.",
            {"outcome": "`success`, `failure`, `ignored`"},
            "call",
        ),
        Metric(
            "everkeel.retry.attempts",
            "counter",
            "{attempt}",
            "Attempts that ended.",
            {"outcome": "`success`, `failure`, `ignored`"},
        ),
        Metric(
            "everkeel.retry.gave_up",
            "counter",
            "{call}",
            "Calls for which no further attempt was made.",
            {
                "reason": "`attempts`, `duration`, `deadline`, `budget`, `not_retryable`, `retry_after`, `nested`",
            },
        ),
        Metric("everkeel.retry.ignored", "counter", "{call}", "Calls that ended in an error not to retry on.", {}),
        Metric("everkeel.retry.delay", "histogram", "s", "Waits between two attempts.", {}, "event"),
        Metric(
            "everkeel.circuit.state",
            "gauge",
            "{circuit}",
            "1 for the state the circuit is in, 0 for the others; with keys, how many circuits are in each.",
            {"state": _STATES},
        ),
        Metric("everkeel.circuit.failure_rate", "gauge", "1", "Share of failures in the window, 0 to 1.", {}),
        Metric("everkeel.circuit.slow_rate", "gauge", "1", "Share of slow calls in the window, 0 to 1.", {}),
        Metric("everkeel.circuit.window.calls", "gauge", "{call}", "Calls in the window.", {}),
        Metric(
            "everkeel.circuit.transitions",
            "counter",
            "{transition}",
            "Changes of state.",
            {"from": _STATES, "to": _STATES},
        ),
        Metric("everkeel.circuit.rejected", "counter", "{call}", "Calls rejected because the circuit was open.", {}),
        Metric("everkeel.circuit.time_in_state", "counter", "s", "Time spent in each state.", {"state": _STATES}),
        Metric("everkeel.timeout.expired", "counter", "{call}", "Calls that had no answer in time.", {}),
        Metric("everkeel.bulkhead.running", "gauge", "{call}", "Calls that run now (also of concurrency limits).", {}),
        Metric("everkeel.bulkhead.waiting", "gauge", "{call}", "Calls that wait for a place now.", {}),
        Metric(
            "everkeel.concurrency.limit", "gauge", "{call}", "How many calls may run at once (also of bulkheads).", {}
        ),
        Metric(
            "everkeel.bulkhead.wait",
            "histogram",
            "s",
            "How long calls waited for a place; not of pools, nor of limits with priorities.",
            {"granted": "`true`, `false`"},
            "event",
        ),
        Metric(
            "everkeel.rate_limit.decisions",
            "counter",
            "{call}",
            "Calls by what the limiter decided; a call that waited and then passed is in both.",
            {"decision": "`granted`, `queued`, `rejected`"},
        ),
        Metric("everkeel.rate_limit.permits", "counter", "{permit}", "Permits that were granted.", {}, "call"),
        Metric(
            "everkeel.rate_limit.available", "gauge", "{permit}", "Permits left; not known where there are keys.", {}
        ),
        Metric("everkeel.rate_limit.capacity", "gauge", "{permit}", "Permits that can be taken at once.", {}),
        Metric("everkeel.rate_limit.refill_rate", "gauge", "{permit}/s", "Permits that come back per second.", {}),
        Metric("everkeel.rate_limit.utilization", "gauge", "1", "Share of the capacity in use, 0 to 1.", {}),
        Metric(
            "everkeel.rate_limit.backpressure",
            "gauge",
            "1",
            "How hard callers press, 0 to 1, where it is measured.",
            {},
        ),
        Metric(
            "everkeel.rate_limit.retry_after",
            "histogram",
            "s",
            "When rejected calls were told to come back.",
            {},
            "event",
        ),
        Metric("everkeel.fallback.used", "counter", "{call}", "Calls that an alternative answered.", {}),
        Metric("everkeel.hedge.started", "counter", "{attempt}", "Attempts begun beside those under way.", {}),
        Metric(
            "everkeel.hedge.won",
            "counter",
            "{call}",
            "Which attempt answered first; 1 began first.",
            {"attempt": "`1`, `2`, ..."},
        ),
        Metric(
            "everkeel.cache.lookups",
            "counter",
            "{lookup}",
            "Lookups in the cache.",
            {"result": "`hit`, `miss`, `stale`, `coalesced`"},
        ),
        Metric(
            "everkeel.toggle.denied",
            "counter",
            "{call}",
            "Calls that did not get the feature.",
            {"reason": "`disabled`, `denied`, `schedule`, `predicate`, `share`"},
        ),
        Metric(
            "everkeel.chaos.injected",
            "counter",
            "{fault}",
            "Faults injected on purpose.",
            {"kind": "`behavior`, `latency`, `error`, `result`"},
        ),
        Metric(
            "everkeel.shadow.would",
            "counter",
            "{decision}",
            "What policies in shadow mode would have done.",
            {"action": "`reject`, `retry`, `expire`, `queue`, `hedge`, `fall_back`, `hit`, `inject`, ..."},
        ),
    )
}

SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Where the buckets of the histograms end: from what a local call takes to the longest wait retry obeys."""


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
    """The numbers of every registered policy. One that cannot be read is reported, and does not spoil the others."""
    for policy in policies:
        try:
            measurements = measure(policy)
        except Exception as error:
            report(f"{policy.label}: its snapshot could not be read for telemetry", error)
        else:
            yield from measurements


def identity(name: str | None, policy_type: str) -> dict[str, str]:
    """The attributes that every metric has."""
    return {POLICY_NAME: name or "", POLICY_TYPE: policy_type}


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

    trouble: tuple[type[Event], ...] = (events.Retrying, events.WaitEnded, events.CallRejected)
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
    return None


# ------------------------------------------------------------------ for people


def table() -> str:
    """All metrics as the table of the documentation."""
    rows = ["| metric | in Prometheus | type | attributes | what |", "|---|---|---|---|---|"]
    for metric in METRICS.values():
        kind = metric.kind if metric.unit != "s" else f"{metric.kind}, s"
        note = {"snapshot": "", "event": " (recorded)", "call": " (recorded, opt-in)"}[metric.source]
        attributes = "; ".join(f"`{name}`: {values}" for name, values in metric.attributes.items())
        cells = (f"`{metric.name}`", f"`{metric.prometheus_name}`", kind + note, attributes, metric.description)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def prometheus_label(attribute: str) -> str:
    """How an attribute is called in Prometheus."""
    return re.sub(r"\W", "_", attribute)


if __name__ == "__main__":
    print(table())
