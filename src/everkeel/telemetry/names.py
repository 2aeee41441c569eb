"""Every metric in one place: its name, type, unit and attributes.

Names are OpenTelemetry's. Prometheus has the same with underscores, units and `_total`, exactly as a collector would
translate them, so that one dashboard serves both ways.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple, TypeAlias

POLICY_NAME = "everkeel.policy.name"
POLICY_TYPE = "everkeel.policy.type"

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]
Source: TypeAlias = Literal["snapshot", "store", "event", "call"]
"""Where numbers come from: snapshots, read when somebody scrapes; stores and what happened to their events and sagas,
while a `StoreMetrics` runs; events, heard when something is wrong; or every call, which is why those must be asked
for."""

READ = ("snapshot", "store")
"""Those that are read when somebody scrapes."""

SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Where the buckets of the histograms end: from what a local call takes to the longest wait retry obeys."""

LONG_SECONDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14_400.0, 86_400.0)
"""The same for what may wait for another service or a person: from a delivery at once to one after a day of outage."""


class Metric(NamedTuple):
    """One metric. Beside its own attributes, each has the policy's name and type."""

    name: str
    kind: Kind
    unit: str
    description: str
    attributes: Mapping[str, str]
    """Attribute to its values, as one reads them in the documentation."""
    source: Source = "snapshot"
    buckets: tuple[float, ...] = SECONDS
    """Where those of a histogram end."""

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


_IDENTITY = (POLICY_NAME, POLICY_TYPE, "store")


class Measurement(NamedTuple):
    """One number of one metric."""

    name: str
    value: float
    attributes: dict[str, str]


_OUTCOMES = "`success`, `failure`, `ignored`, `rejected`"
_STATES = "`closed`, `open`, `half_open`"
_STORE = "the name of the `StoreMetrics`"

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
        Metric(
            "everkeel.outbox.depth",
            "gauge",
            "{event}",
            "Events that wait in the outbox, by what for; parked ones wait behind a dead letter of their key.",
            {"store": _STORE, "state": "`due`, `leased`, `delayed`, `parked`"},
            "store",
        ),
        Metric(
            "everkeel.outbox.oldest_age",
            "gauge",
            "s",
            "Time since the oldest event was written that waits in the outbox; 0 when none does.",
            {"store": _STORE},
            "store",
        ),
        Metric(
            "everkeel.outbox.written",
            "counter",
            "{event}",
            "Events written with an `Outbox`, also in transactions rolled back later; not what steps of sagas emit.",
            {},
            "store",
        ),
        Metric(
            "everkeel.outbox.attempts",
            "counter",
            "{attempt}",
            "Attempts of relays to deliver an event that ended.",
            {"result": "`delivered`, `failed`, `dead_lettered`"},
            "store",
        ),
        Metric(
            "everkeel.outbox.lease_lost",
            "counter",
            "{event}",
            "Events that another relay had taken over when this one wanted to write down their end.",
            {},
            "store",
        ),
        Metric(
            "everkeel.outbox.delivery_age",
            "histogram",
            "s",
            "Time from writing an event to its confirmation by the transport.",
            {},
            "event",
            LONG_SECONDS,
        ),
        Metric(
            "everkeel.outbox.publish.duration",
            "histogram",
            "s",
            "How long a transport took to answer for a batch of events.",
            {"result": "`confirmed`, `failed`"},
            "event",
        ),
        Metric(
            "everkeel.relay.in_flight",
            "gauge",
            "{event}",
            "Events that a relay has claimed and is publishing, of the relays that `StoreMetrics` was given.",
            {"store": _STORE},
            "store",
        ),
        Metric(
            "everkeel.relay.paused",
            "gauge",
            "{relay}",
            "1 while a relay is paused, else 0.",
            {"store": _STORE},
            "store",
        ),
        Metric(
            "everkeel.relay.outages",
            "counter",
            "{outage}",
            "Times that a topic went away from a relay; what it was to deliver waits.",
            {"store": _STORE},
            "store",
        ),
        Metric(
            "everkeel.relay.purged",
            "counter",
            "{event}",
            "Delivered events that a relay deleted when their time was over.",
            {"store": _STORE},
            "store",
        ),
        Metric(
            "everkeel.inbox.begin",
            "counter",
            "{claim}",
            "Times that the inbox was asked whether to do some work, by its scope (the consumer) and its answer.",
            {"store": _STORE, "result": "`fresh`, `duplicate`, `in_progress`, `mismatch`"},
            "store",
        ),
        Metric(
            "everkeel.inbox.duplicates",
            "counter",
            "{event}",
            "Events that came again and were not handled again, by consumer.",
            {},
            "store",
        ),
        Metric(
            "everkeel.consumer.events",
            "counter",
            "{event}",
            "Deliveries by what became of them, of the consumers that `StoreMetrics` was given.",
            {
                "outcome": "`handled`, `duplicates`, `in_progress`, `redelivered`, `dead_lettered`, `parked`, "
                "`rejected`, `lost`, `not_buried`, `ignored`, `early`"
            },
            "store",
        ),
        Metric(
            "everkeel.dlq.depth",
            "gauge",
            "{letter}",
            "Dead letters that are kept, by consumer.",
            {
                "store": _STORE,
                "reason": "`attempts`, `rejected`, `poison`, `mismatch`, `parked`, ...",
                "status": "`pending`, `parked`, `replayed`, `resolved`, `superseded`, `discarded`",
            },
            "store",
        ),
        Metric(
            "everkeel.dlq.filled",
            "gauge",
            "1",
            "Share of the dead letters that may be kept (`most`) which still wait, of the consumers that "
            "`StoreMetrics` was given. At 1, what fails stays with the broker.",
            {"store": _STORE},
            "store",
        ),
        Metric(
            "everkeel.dlq.oldest_age",
            "gauge",
            "s",
            "Time since the oldest dead letter of a consumer was written that is pending, parked or replayed.",
            {"store": _STORE},
            "store",
        ),
        Metric(
            "everkeel.dlq.transitions",
            "counter",
            "{letter}",
            "Dead letters that were written, and those that moved on, by consumer.",
            {
                "from": "empty when it is written; `pending`, `parked`, `replayed`",
                "to": "`pending`, `parked`, `replayed`, `resolved`, `superseded`, `discarded`",
                "actor_kind": "`human`, `agent`, `auto`",
            },
            "store",
        ),
        Metric(
            "everkeel.saga.active",
            "gauge",
            "{saga}",
            "Sagas that have not ended, by type.",
            {
                "store": _STORE,
                "state": "`pending`, `running`, `compensating`, `compensation_blocked`, `parked`",
            },
            "store",
        ),
        Metric(
            "everkeel.saga.oldest_age",
            "gauge",
            "s",
            "Time since the oldest saga of a type began that has not ended; 0 when there is none.",
            {"store": _STORE},
            "store",
        ),
        Metric(
            "everkeel.saga.unsettled",
            "gauge",
            "{saga}",
            "Sagas that have ended with a step that was done late and could not be undone: an operator must decide.",
            {"store": _STORE},
            "store",
        ),
        Metric(
            "everkeel.saga.transitions",
            "counter",
            "{saga}",
            "Sagas that began, turned back, stopped and ended, by type.",
            {
                "to": "`running`, `completed`, `compensating`, `compensated`, `compensation_blocked`, `parked`, "
                "`failed`",
                "cause": "why it turned back or was parked: `rejected`, `failed`, `timed_out`, `cancelled`, ...",
            },
            "store",
        ),
        Metric(
            "everkeel.saga.claimed",
            "counter",
            "{saga}",
            "Sagas that a detector of this process took because they were due, by type: timed out, left behind by a "
            "process that died, or started elsewhere.",
            {"store": _STORE},
            "store",
        ),
        Metric(
            "everkeel.saga.timed_out", "counter", "{saga}", "Sagas whose time was over before they were.", {}, "store"
        ),
        Metric(
            "everkeel.saga.steps",
            "counter",
            "{step}",
            "Steps of sagas that ended; `late`: done after the saga had turned back.",
            {"step": "its name", "result": "`completed`, `late`, `rejected`, `undone`, `undo_failed`"},
            "store",
        ),
        Metric(
            "everkeel.saga.duration",
            "histogram",
            "s",
            "Time from the beginning of a saga to its end.",
            {"state": "`completed`, `compensated`"},
            "event",
            LONG_SECONDS,
        ),
        Metric(
            "everkeel.saga.step.duration",
            "histogram",
            "s",
            "How long the actions of steps took, all their attempts included.",
            {"step": "its name"},
            "event",
            LONG_SECONDS,
        ),
        Metric(
            "everkeel.saga.compensation.duration",
            "histogram",
            "s",
            "How long it took to undo a step, all attempts included.",
            {"step": "its name"},
            "event",
            LONG_SECONDS,
        ),
        Metric(
            "everkeel.store.conflicts",
            "counter",
            "{write}",
            "Writes that the store refused because somebody else had changed the row first, or taken over its lease.",
            {"store": _STORE, "kind": "`outbox`, `inbox`, `dead_letter`, `saga`"},
            "store",
        ),
        Metric(
            "everkeel.store.clock_skew",
            "gauge",
            "s",
            "How far the database's clock is ahead of this process's (negative: behind), as far as the round trip "
            "leaves that certain; PostgreSQL only.",
            {"store": _STORE},
            "store",
        ),
        Metric(
            "everkeel.store.oldest_transaction_age",
            "gauge",
            "s",
            "Time since the oldest transaction of the database began that is still open, of those this role may see; "
            "PostgreSQL only.",
            {"store": _STORE},
            "store",
        ),
        Metric(
            "everkeel.store.xmin_age",
            "gauge",
            "{transaction}",
            "How many transactions back the database must keep dead rows, for whom or whatever; PostgreSQL only.",
            {"store": _STORE},
            "store",
        ),
        Metric(
            "everkeel.store.sample_age",
            "gauge",
            "s",
            "Time since the stores were last read; grows while they cannot be.",
            {"store": _STORE},
            "store",
        ),
    )
}


def label(measurement: Measurement) -> str:
    """A measurement's name with its own attributes, where a text must do.

    >>> label(Measurement("everkeel.outbox.depth", 3, {**identity("outbox", "outbox"), "state": "due"}))
    'everkeel.outbox.depth{state=due}'
    """
    own = ",".join(f"{name}={value}" for name, value in measurement.attributes.items() if name not in _IDENTITY)
    return f"{measurement.name}{{{own}}}" if own else measurement.name


def identity(name: str | None, policy_type: str) -> dict[str, str]:
    """The attributes that every metric has."""
    return {POLICY_NAME: name or "", POLICY_TYPE: policy_type}


# ------------------------------------------------------------------ for people


_NOTES = {"snapshot": "", "store": " (stores)", "event": " (recorded)", "call": " (recorded, opt-in)"}


def table() -> str:
    """All metrics as the table of the documentation."""
    rows = ["| metric | in Prometheus | type | attributes | what |", "|---|---|---|---|---|"]
    for metric in METRICS.values():
        kind = metric.kind if metric.unit != "s" else f"{metric.kind}, s"
        note = {"snapshot": "", "store": " (stores)", "event": " (recorded)", "call": " (recorded, opt-in)"}[
            metric.source
        ]
        attributes = "; ".join(f"`{name}`: {values}" for name, values in metric.attributes.items())
        cells = (f"`{metric.name}`", f"`{metric.prometheus_name}`", kind + note, attributes, metric.description)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def prometheus_label(attribute: str) -> str:
    """How an attribute is called in Prometheus."""
    return re.sub(r"\W", "_", attribute)


if __name__ == "__main__":
    print(table())
