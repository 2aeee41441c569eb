"""Spans of messages and of steps of sagas, linked to where they come from.

Links, and not parenthood: an event may have waited for hours and a saga may take days, and a trace that long helps
nobody. So the sending and the handling of an event are traces of their own, with a link to the span that wrote it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from everkeel.runtime.tracing import Kind, Origin

_KINDS = {"send": SpanKind.CLIENT, "process": SpanKind.CONSUMER, "step": SpanKind.INTERNAL}
_REMEMBERED = 10_000
"""Sagas of which the last step's span is known. One that is older begins a new chain; its id is on every span."""
_reader = TraceContextTextMapPropagator()


class Told:
    """An open span, for those who know how it goes."""

    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        self._span = span

    def failed(self, why: BaseException | str) -> None:
        """What it is about did not work."""
        kind = why if isinstance(why, str) else type(why).__qualname__
        self._span.set_attribute("error.type", kind)
        self._span.set_status(Status(StatusCode.ERROR, kind if isinstance(why, str) else f"{kind}: {why}"))


class LinkedSpans:
    """Opens spans for `everkeel.runtime.tracing`."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._last: OrderedDict[str, SpanContext] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def __call__(
        self, kind: Kind, name: str, attributes: Mapping[str, Any], *, links: Sequence[Origin], chain: str | None
    ) -> Iterator[Told]:
        origins = [context for origin in links if (context := origin_of(origin)) is not None]
        around: Context | None = Context()
        if kind == "step":
            # Inside of the request that waits for the saga, while it does. Later ones are linked to it.
            current = trace.get_current_span()
            if current.is_recording():
                around = None
            elif current.get_span_context().is_valid:
                origins.append(current.get_span_context())
        if chain is not None and (before := self._last.get(chain)) is not None:
            origins.append(before)
        span = self._tracer.start_span(
            name, around, kind=_KINDS[kind], attributes=dict(attributes), links=[Link(one) for one in origins]
        )
        if chain is not None:
            self._remember(chain, span.get_span_context())
        told = Told(span)
        try:
            with trace.use_span(span, record_exception=False, set_status_on_exception=False):
                yield told
        except Exception as error:
            span.record_exception(error)
            told.failed(error)
            raise
        except BaseException as error:  # cancelled: nobody knows what became of it
            span.set_attribute("error.type", type(error).__qualname__)
            raise
        finally:
            span.end()

    def _remember(self, chain: str, context: SpanContext) -> None:
        with self._lock:
            self._last[chain] = context
            self._last.move_to_end(chain)
            if len(self._last) > _REMEMBERED:
                self._last.popitem(last=False)


def origin_of(origin: Origin) -> SpanContext | None:
    """The span that an event says it began in; None where it says none, or nonsense."""
    carrier = {name: text for name, text in zip(("traceparent", "tracestate"), origin, strict=True) if text}
    context = trace.get_current_span(_reader.extract(carrier, Context())).get_span_context()
    return context if context.is_valid else None
