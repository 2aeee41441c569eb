"""The trace in which an event begins goes with it, and the spans of its way are linked to it.

Names are those of OpenTelemetry's conventions for messaging, which are still in development: they are all here.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from everkeel.messaging.event import Event
from everkeel.runtime import tracing

if TYPE_CHECKING:
    from everkeel.messaging.transports.protocol import Message


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


def sending(messages: Sequence[Message], *, system: str) -> AbstractContextManager[tracing.Told]:
    """The span in which a batch is handed to a transport, linked to where each of its events began."""
    if tracing.opener is None or not messages:
        return tracing.UNTRACED
    topic = ",".join(sorted({message.topic for message in messages}))  # a relay's batches are of one topic
    attributes = {**_about("send", topic, system), "messaging.batch.message_count": len(messages)}
    if len(messages) == 1:
        attributes["messaging.message.id"] = messages[0].event.id
    origins = {(message.event.traceparent, message.event.tracestate): None for message in messages}
    return tracing.span("send", f"send {topic}", attributes, links=list(origins))


def processing(
    event: Event, *, consumer: str, topic: str, system: str, attempt: int
) -> AbstractContextManager[tracing.Told]:
    """The span in which a handler runs, linked to where its event began."""
    if tracing.opener is None:
        return tracing.UNTRACED
    attributes = {
        **_about("process", topic, system),
        "messaging.consumer.group.name": consumer,
        "messaging.message.id": event.id,
        "cloudevents.event_type": event.type,
        "everkeel.attempt": attempt,
    }
    return tracing.span("process", f"process {topic}", attributes, links=[(event.traceparent, event.tracestate)])


def _about(operation: str, topic: str, system: str) -> dict[str, Any]:
    return {
        "messaging.system": system,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": topic,
    }
