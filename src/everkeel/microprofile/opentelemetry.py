"""The standard's metrics for OpenTelemetry, with its names, instruments and units.

    pip install everkeel[opentelemetry]

Needs only the API. Counters and gauges are observed when the SDK collects and cost calls nothing; values of histograms
are passed on as they are recorded, since OpenTelemetry cannot observe a histogram.

Names of instruments are the same in any case to OpenTelemetry, and its Python SDK writes them in lower case:
`ft.timeout.executionduration`. Where the standard's spelling matters, give `views()` to the SDK's meter provider.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from importlib.metadata import version
from math import inf
from typing import TYPE_CHECKING

from everkeel.microprofile.instruments import BOUNDS
from everkeel.microprofile.metrics import METRICS, Metric, MetricRegistry, registry
from everkeel.runtime.clock import DEFAULT
from everkeel.telemetry.extras import missing

try:
    from opentelemetry import metrics
    from opentelemetry.metrics import CallbackOptions, Histogram, Meter, MeterProvider, Observation
except ImportError as error:  # pragma: no cover - the tests have it
    raise missing("everkeel.microprofile.opentelemetry", "opentelemetry-api", "opentelemetry") from error

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.view import View

METER = "everkeel.microprofile"
_OLDEST = 1.0  # seconds


class Export:
    """The standard's metrics on their way to one meter provider, until `close`."""

    def __init__(self, instruments: _Instruments, stop: Callable[[], None]) -> None:
        self._instruments, self._stop = instruments, stop

    def close(self) -> None:
        """Export no more. The API cannot remove instruments: they fall silent."""
        self._instruments.shown = None
        self._instruments.forget()
        self._stop()


def export_metrics(meter_provider: MeterProvider | None = None, *, shown: MetricRegistry = registry) -> Export:
    """Send `ft.*` to OpenTelemetry: call it once, at startup, after the SDK is set up.

    Args:
        meter_provider: Where they go; the one of the process by default.
        shown: The numbers to send; those of the process by default.
    """
    provider = meter_provider or metrics.get_meter_provider()
    with _making:
        instruments = _known.get(provider)
        if instruments is None:
            meter = metrics.get_meter(METER, version("everkeel"), meter_provider=provider)
            instruments = _known[provider] = _Instruments(meter)
        if instruments.shown is not None:
            raise ValueError("these metrics are exported to this meter provider already; close() the first export")
        instruments.shown = shown
    return Export(instruments, shown.record_to(instruments.record))


def views() -> list[View]:
    """Views that have the SDK write names as the standard does: `MeterProvider(readers, views=views())`."""
    from opentelemetry.sdk.metrics.view import View

    capital = [name for name in METRICS if name != name.lower()]
    return [View(instrument_name=name.lower(), meter_name=METER, name=name) for name in capital]


class _Instruments:
    def __init__(self, meter: Meter) -> None:
        self.shown: MetricRegistry | None = None
        self._lock = threading.Lock()
        self._observed: dict[str, list[Observation]] = {}
        self._served: set[str] = set()
        self._read_at = -inf
        self._histograms: dict[str, Histogram] = {}
        for metric in METRICS.values():
            if metric.kind == "histogram":
                self._histograms[metric.name] = meter.create_histogram(
                    metric.name, "seconds", metric.description, explicit_bucket_boundaries_advisory=BOUNDS
                )
            else:
                unit = "nanoseconds" if metric.unit == "nanoseconds" else ""
                make = meter.create_observable_counter if metric.monotonic else meter.create_observable_up_down_counter
                make(metric.name, [partial(self._observe, metric)], unit=unit, description=metric.description)

    def _observe(self, metric: Metric, options: CallbackOptions) -> Iterable[Observation]:
        if self.shown is None:
            return ()
        with self._lock:
            # The SDK asks for one instrument after the other. All numbers are read for the first of them; when one is
            # asked for again, that is the next collection. (Readers that ask for less than all: hence the age.)
            now = DEFAULT.monotonic()
            if metric.name in self._served or now - self._read_at > _OLDEST:
                self._observed, self._served, self._read_at = {}, set(), now
                for number in self.shown.numbers():
                    found = self._observed.setdefault(number.metric.name, [])
                    found.append(Observation(number.value, number.tags))
            self._served.add(metric.name)
            return self._observed.get(metric.name, ())

    def forget(self) -> None:
        """What was read belongs to an export that is over."""
        with self._lock:
            self._read_at = -inf

    def record(self, name: str, seconds: float, tags: dict[str, str]) -> None:
        """One value of a histogram."""
        self._histograms[name].record(seconds, tags)


_making = threading.Lock()
_known: weakref.WeakKeyDictionary[MeterProvider, _Instruments] = weakref.WeakKeyDictionary()
