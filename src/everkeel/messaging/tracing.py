"""The trace in which an event begins goes with it, where OpenTelemetry is in use."""

from __future__ import annotations

import sys
from typing import Any

from everkeel.messaging.event import Event


def traced(event: Event) -> Event:
    """The event with the current span's context, unless it has one already or there is no span.

    It says where the event began: relays and transports on the way leave it as it is.
    """
    trace: Any = sys.modules.get("opentelemetry.trace")  # not imported, it is not in use
    if trace is None or event.traceparent is not None:
        return event
    context = trace.get_current_span().get_span_context()
    if not context.is_valid:
        return event
    parent = f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
    return event.changed(traceparent=parent, tracestate=context.trace_state.to_header() or None)
