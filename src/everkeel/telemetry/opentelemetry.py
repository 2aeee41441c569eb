"""OpenTelemetry: metrics from snapshots through observable instruments, histograms from events, and spans.

    pip install everkeel[opentelemetry]

Needs only the API, and works with whatever SDK the application has configured; where it has none, everything is
recorded into nothing. `opentelemetry-instrument` finds it by its entry point.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from importlib.metadata import version
from math import inf
from typing import TYPE_CHECKING, Any

from everkeel.runtime.clock import DEFAULT
from everkeel.runtime.events import Subscription, subscribe
from everkeel.runtime.policy import trace_with
from everkeel.runtime.tracing import open_with
from everkeel.runtime.trouble import warn
from everkeel.telemetry.extras import missing
from everkeel.telemetry.measuring import heard_events, measure_all, measure_event
from everkeel.telemetry.names import METRICS, READ, Metric

try:
    from opentelemetry import metrics, trace
    from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Meter, MeterProvider, Observation
    from opentelemetry.trace import TracerProvider
except ImportError as error:  # pragma: no cover - the tests have it; one runs without it in a process of its own
    raise missing("everkeel.telemetry.opentelemetry", "opentelemetry-api", "opentelemetry") from error

if TYPE_CHECKING:
    from everkeel.events import Event


_OLDEST = 1.0  # seconds


class Instruments:
    """The instruments of one meter provider. The API cannot remove an instrument, so they fall silent instead."""

    def __init__(self, meter: Meter) -> None:
        self.reading = False
        self._lock = threading.Lock()
        self._observed: dict[str, list[Observation]] = {}
        self._served: set[str] = set()
        self._read_at = -inf
        self._recorders: dict[str, Histogram | Counter] = {}
        for metric in METRICS.values():
            if metric.source in READ:
                make = meter.create_observable_counter if metric.kind == "counter" else meter.create_observable_gauge
                make(metric.name, [partial(self._read, metric)], unit=metric.unit, description=metric.description)
            elif metric.kind == "histogram":
                self._recorders[metric.name] = meter.create_histogram(
                    metric.name, metric.unit, metric.description, explicit_bucket_boundaries_advisory=metric.buckets
                )
            else:
                self._recorders[metric.name] = meter.create_counter(metric.name, metric.unit, metric.description)

    def _read(self, metric: Metric, options: CallbackOptions) -> Iterable[Observation]:
        if not self.reading:
            return ()
        with self._lock:
            # The SDK asks for one instrument after the other. All snapshots are read for the first of them; when one
            # is asked for again, that is the next collection. (Readers that ask for less than all: hence the age.)
            now = DEFAULT.monotonic()
            if metric.name in self._served or now - self._read_at > _OLDEST:
                self._observed, self._served, self._read_at = {}, set(), now
                for name, value, attributes in measure_all():
                    self._observed.setdefault(name, []).append(Observation(value, attributes))
            self._served.add(metric.name)
            return self._observed.get(metric.name, ())

    def record(self, event: Event) -> None:
        """Add what an event has to say to a histogram."""
        measured = measure_event(event)
        if measured is not None:
            recorder = self._recorders[measured.name]
            if isinstance(recorder, Histogram):
                recorder.record(measured.value, measured.attributes)
            else:
                recorder.add(measured.value, measured.attributes)


class EverkeelInstrumentor:
    """Sends metrics and spans of every policy to OpenTelemetry: `EverkeelInstrumentor().instrument()`.

    The usual face of an instrumentation. All objects of this class stand for the same thing: a process is instrumented,
    or it is not.
    """

    def instrument(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        read_metrics: bool = True,
        histograms: bool = True,
        durations: bool = False,
        spans: bool = True,
        **other: Any,
    ) -> None:
        """Begin. A second time, before `uninstrument`, does nothing but warn.

        Args:
            tracer_provider: Where spans go; the one of the process by default.
            meter_provider: Where metrics go; the one of the process by default.
            read_metrics: Observe the numbers of all policies whenever the SDK collects. Costs calls nothing.
            histograms: Record waits (of retries, for a place), what rejected calls were told, and how long events and
                sagas took. Of calls something is recorded only when something goes wrong.
            durations: Also record how long every call took and how many permits were granted. Makes calls slower.
            spans: One span for each call and one for each attempt, for sending and handling events, and for steps of
                sagas. Makes them slower, by what the SDK takes for spans.
            other: What a distribution passes to every instrumentation, and is of no use to this one.
        """
        global _installed
        with _changing:
            if _installed is not None:
                warn("everkeel is instrumented for OpenTelemetry already")
                return
            _installed = _Installed()
            if read_metrics or histograms or durations:
                instruments = _instruments_of(meter_provider or metrics.get_meter_provider())
                instruments.reading = read_metrics
                _installed.undo.append(lambda: setattr(instruments, "reading", False))
                if histograms or durations:
                    heard = subscribe(instruments.record, *heard_events(calls=durations))
                    _installed.undo.append(heard.cancel)
            if spans:
                _installed.undo += _trace(tracer_provider)

    def uninstrument(self, **other: Any) -> None:
        """End: calls are as they were before."""
        global _installed
        with _changing:
            installed, _installed = _installed, None
        for undo in installed.undo if installed is not None else ():
            undo()

    def instrumentation_dependencies(self) -> Collection[str]:
        """The libraries that are instrumented: it comes with its own."""
        return ()

    @property
    def is_instrumented_by_opentelemetry(self) -> bool:
        """Is it under way?"""
        return _installed is not None


class _Installed:
    """What to undo."""

    def __init__(self) -> None:
        self.undo: list[Callable[[], object]] = []


_installed: _Installed | None = None
_changing = threading.Lock()
_known: weakref.WeakKeyDictionary[MeterProvider, Instruments] = weakref.WeakKeyDictionary()


def _instruments_of(provider: MeterProvider) -> Instruments:
    """Made once for each provider: an SDK would warn of a second instrument of the same name, and count twice."""
    instruments = _known.get(provider)
    if instruments is None:
        meter = metrics.get_meter("everkeel", version("everkeel"), meter_provider=provider)
        instruments = _known[provider] = Instruments(meter)
    return instruments


def _trace(provider: TracerProvider | None) -> Sequence[Callable[[], object]]:
    from everkeel.telemetry.linked import LinkedSpans
    from everkeel.telemetry.spans import add_decision, traced

    tracer = trace.get_tracer("everkeel", version("everkeel"), tracer_provider=provider)
    trace_with(partial(traced, tracer))
    open_with(LinkedSpans(tracer))
    heard: Subscription = subscribe(add_decision, *_decisions())
    return (heard.cancel, partial(trace_with, None), partial(open_with, None))


def _decisions() -> tuple[type[Event], ...]:
    """What is put on spans: everything a policy decides about a call that is not simply made."""
    from everkeel import events

    return (
        events.Retrying, events.RetrySucceeded, events.RetryGaveUp,
        events.CircuitOpened, events.CircuitHalfOpened, events.CircuitClosed, events.CallRejected, events.CallQueued,
        events.TimedOut, events.Drained, events.FellBack, events.HedgeStarted, events.HedgeWon, events.CacheStale,
        events.FeatureDenied, events.FailFastOpened, events.FailFastClosed, events.ChaosInjected, events.WouldHave,
    )  # fmt: skip
