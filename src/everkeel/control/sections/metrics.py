"""Numbers: of one policy, of all, and live."""

from __future__ import annotations

from typing import Any

from everkeel.control.access import Role
from everkeel.control.feed import shown
from everkeel.control.moments import iso
from everkeel.control.problems import ProblemError
from everkeel.control.section import Endpoint, Exchange, Parameter, Section
from everkeel.control.sections.policies import FILTERS, fits, policy_of
from everkeel.control.stream import EventStream
from everkeel.runtime.policy import AnyPolicy

_TIME = {"type": "string", "format": "date-time"}
METRICS = {
    "type": "object",
    "required": ["type", "name", "metrics", "last_updated", "timestamp"],
    "properties": {
        "type": {"type": "string"},
        "name": {"type": "string"},
        "metrics": {"type": "object", "description": "The policy's snapshot, its counters since the last reset."},
        "last_updated": {**_TIME, "description": "When a reading last differed from the one before it."},
        "timestamp": {**_TIME, "description": "When this was read."},
    },
}
_ALL = {
    "type": "object",
    "required": ["timestamp", "policies"],
    "properties": {
        "timestamp": _TIME,
        "policies": {"type": "array", "items": {"$ref": "#/components/schemas/Metrics"}},
    },
}
READING = {
    "type": "object",
    "required": ["type", "name", "mode", "state", "rates", "metrics", "last_updated"],
    "properties": {
        "type": {"type": "string"},
        "name": {"type": "string"},
        "mode": {"type": "string"},
        "state": {"type": ["string", "null"]},
        "rates": {
            "type": "object",
            "description": "Calls per second by outcome, between the last two readings.",
            "additionalProperties": {"type": "number"},
        },
        "metrics": {"type": "object"},
        "last_updated": _TIME,
    },
}
_SNAPSHOT = {
    "type": "object",
    "required": ["version", "timestamp", "complete", "policies", "gone"],
    "properties": {
        "version": {"type": "integer", "description": "Pass it as `since` to get only what changed after it."},
        "timestamp": _TIME,
        "complete": {"type": "boolean", "description": "False: only what changed; true: everything there is."},
        "policies": {"type": "array", "items": {"$ref": "#/components/schemas/Reading"}},
        "gone": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["type", "name"],
                "properties": {"type": {"type": "string"}, "name": {"type": "string"}},
            },
        },
    },
}


def _metrics(exchange: Exchange, policy: AnyPolicy) -> dict[str, Any]:
    row = exchange.plane.feed.look(policy)
    if row is None:
        raise ProblemError(500, "unreadable", f"the snapshot of {policy.label} could not be read; the log says why")
    now = iso(exchange.plane.clock.time())
    return {
        "type": policy.type,
        "name": policy.name,
        "metrics": row.numbers,
        "last_updated": iso(row.updated),
        "timestamp": now,
    }


async def all_metrics(exchange: Exchange) -> Any:
    """Of every policy that fits the filter."""
    plane = exchange.plane
    await plane.feed.read()
    now = iso(plane.clock.time())
    found = []
    for policy in plane.registry:
        row = plane.feed.board.rows.get((policy.type, str(policy.name)))
        if row is not None and fits(policy, exchange.query):
            found.append(
                {
                    "type": policy.type,
                    "name": policy.name,
                    "metrics": row.numbers,
                    "last_updated": iso(row.updated),
                    "timestamp": now,
                }
            )
    return {"timestamp": now, "policies": found}


async def metrics(exchange: Exchange) -> Any:
    """Of one policy."""
    return _metrics(exchange, policy_of(exchange))


async def reset_metrics(exchange: Exchange) -> Any:
    """Counters begin at zero, here. What the policy has learned, and what exporters count, is left alone."""
    policy = policy_of(exchange)
    before = _metrics(exchange, policy)["metrics"]
    exchange.plane.feed.reset(policy)
    answer = _metrics(exchange, policy)
    exchange.plane.note(exchange, "reset_metrics", policy.type, policy.name, before, answer["metrics"])
    return answer


async def snapshot(exchange: Exchange) -> Any:
    """Everything at once, or what changed since a version."""
    feed = exchange.plane.feed
    version = await feed.read()
    since = exchange.query.get("since")
    news = None if since is None else feed.board.since(since)
    rows, gone = (list(feed.board.rows.items()), []) if news is None else news
    return {
        "version": version,
        "timestamp": iso(exchange.plane.clock.time()),
        "complete": news is None,
        "policies": [shown(identity, row) for identity, row in rows],
        "gone": [{"type": kind, "name": name} for kind, name in gone],
    }


async def stream(exchange: Exchange) -> Any:
    """The numbers and the happenings, live, in one stream: what a dashboard needs."""
    feed = exchange.plane.feed
    reader = feed.join(exchange.who)
    return EventStream(reader, feed.everything(reader), exchange.plane.stream_headers, feed.leave)


def section() -> Section:
    """The part about numbers."""
    return Section(
        "metrics",
        "Numbers of policies, since their last reset.",
        [
            Endpoint(
                "GET", "/metrics", all_metrics, Role.VIEWER, "The numbers of all policies", answer=_ALL,
                parameters=FILTERS, parts=("metrics",),
            ),
            Endpoint(
                "GET", "/metrics/{type}/{name}", metrics, Role.VIEWER, "The numbers of one policy",
                answer={"$ref": "#/components/schemas/Metrics"}, parts=("metrics",),
            ),
            Endpoint(
                "DELETE", "/metrics/{type}/{name}", reset_metrics, Role.OPERATOR, "Let the counters begin at zero",
                description="State (an open circuit, calls in flight) and what exporters count stay as they are.",
                answer={"$ref": "#/components/schemas/Metrics"}, parts=("metrics", "control"),
            ),
            Endpoint(
                "GET", "/snapshot", snapshot, Role.VIEWER, "All policies with numbers and rates, or what changed",
                answer=_SNAPSHOT, parts=("metrics",),
                parameters=(Parameter("since", {"type": "integer", "minimum": 0}, "A version got before."),),
            ),
            Endpoint(
                "GET", "/stream", stream, Role.VIEWER, "All policies, live: a snapshot, then only what changes",
                description=(
                    "Server-sent events: `snapshot` (in pieces; the last has `complete`), then about once a second "
                    "`changes` (the policies that changed, and those that are `gone`), `happened` as in /events, "
                    "`dropped` for a reader that is too slow, `bye` when the stream ends."
                ),
                media="text/event-stream", parts=("metrics",), problems=(503,),
            ),
        ],
        {"Metrics": METRICS, "Reading": READING},
    )  # fmt: skip
