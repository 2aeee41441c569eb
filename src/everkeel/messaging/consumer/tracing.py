"""A span for each handled event, linked to the one that produced it. Nothing, where OpenTelemetry is not installed.

A link, and not parenthood: the event may have waited for hours, and a trace that lasts hours helps nobody.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from everkeel.messaging.event import Event

_api: Any = None


def _load() -> Any:
    """The parts of OpenTelemetry that are used; False where it is not installed."""
    global _api
    if _api is None:
        try:
            from opentelemetry import trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError:
            _api = False
        else:
            _api = (trace, TraceContextTextMapPropagator())
    return _api


@contextmanager
def processing(event: Event, *, consumer: str, topic: str, system: str, attempt: int) -> Iterator[None]:
    """The span in which a handler runs."""
    api = _load()
    if not api:
        yield
        return
    trace, propagator = api
    carrier = {
        name: value
        for name, value in (("traceparent", event.traceparent), ("tracestate", event.tracestate))
        if value is not None
    }
    producer = trace.get_current_span(propagator.extract(carrier)).get_span_context() if carrier else None
    links = [trace.Link(producer)] if producer is not None and producer.is_valid else []
    tracer = trace.get_tracer("everkeel")
    attributes = {
        "messaging.system": system,
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": topic,
        "messaging.consumer.group.name": consumer,
        "messaging.message.id": event.id,
        "cloudevents.event_type": event.type,
        "everkeel.attempt": attempt,
    }
    with tracer.start_as_current_span(
        f"process {topic}", kind=trace.SpanKind.CONSUMER, attributes=attributes, links=links
    ):
        yield
