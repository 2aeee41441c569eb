"""Prometheus: a collector that reads snapshots when it is scraped, and `/metrics` as an ASGI application.

    pip install everkeel[prometheus]

Between two scrapes it does nothing. Where histograms are wanted it hears of retries and rejections, and only where
durations are wanted of every call.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, TypeAlias

from everkeel.runtime.events import Subscription, subscribe
from everkeel.telemetry.extras import missing
from everkeel.telemetry.measuring import heard_events, measure_all, measure_event
from everkeel.telemetry.names import METRICS, POLICY_NAME, POLICY_TYPE, READ, Metric, prometheus_label

try:
    import prometheus_client
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.metrics_core import Metric as Family
except ImportError as error:  # pragma: no cover - the tests have it; one runs without it in a process of its own
    raise missing("everkeel.telemetry.prometheus", "prometheus-client", "prometheus") from error

if TYPE_CHECKING:
    from everkeel.events import Event

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


class PolicyCollector:
    """Gives the numbers of every named policy to a Prometheus registry.

    Register it once, at startup. `close()` stops what it hears; unregister it as any other collector.

    Args:
        histograms: Also record waits (of retries, for a place), what rejected calls were told, and how long events and
            sagas took. Of calls something is recorded only when something goes wrong.
        durations: Also record how long every call took, and how many permits were granted. Makes every call of every
            policy slower: it adds a layer that reads the clock.
        buckets: Where the buckets of all histograms end, in seconds; by default each metric has its own.

    >>> from prometheus_client import CollectorRegistry, generate_latest
    >>> from everkeel import retry
    >>> fetch = retry("docs.scraped")
    >>> scraped = CollectorRegistry()
    >>> scraped.register(PolicyCollector())
    >>> b'everkeel_policy_name="docs.scraped"' in generate_latest(scraped)
    True
    """

    def __init__(
        self,
        *,
        histograms: bool = False,
        durations: bool = False,
        buckets: Iterable[float] | None = None,
    ) -> None:
        self._recorders: dict[str, prometheus_client.Histogram | prometheus_client.Counter] = {}
        self._subscription: Subscription | None = None
        wanted = {"event"} if histograms else set()
        wanted |= {"event", "call"} if durations else set()
        if wanted:
            bounds = None if buckets is None else tuple(buckets)
            recorded = [metric for metric in METRICS.values() if metric.source in wanted]
            self._recorders = {metric.name: _recorder(metric, bounds or metric.buckets) for metric in recorded}
            self._subscription = subscribe(self._record, *heard_events(calls=durations))

    def close(self) -> None:
        """Hear no more events. What was recorded stays until it is unregistered."""
        if self._subscription is not None:
            self._subscription.cancel()

    def _record(self, event: Event) -> None:
        measured = measure_event(event)
        if measured is not None:
            recorder = self._recorders[measured.name].labels(*_values(METRICS[measured.name], measured.attributes))
            if isinstance(recorder, prometheus_client.Histogram):
                recorder.observe(measured.value)
            else:
                recorder.inc(measured.value)

    def describe(self) -> Iterator[Family]:
        """What it may collect; asked when it is registered, so that the names of two collectors cannot clash unseen."""
        return iter([_family(metric) for metric in METRICS.values() if metric.source in READ])

    def collect(self) -> Iterator[Family]:
        """The numbers as they are now."""
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for name, value, attributes in measure_all():
            family = families.get(name)
            if family is None:
                family = families[name] = _family(METRICS[name])
            family.add_metric(_values(METRICS[name], attributes), value)
        yield from families.values()
        for recorder in self._recorders.values():
            yield from recorder.collect()


def metrics_app(collecting: prometheus_client.CollectorRegistry | None = None) -> ASGIApp:
    """An ASGI application that answers every GET with the metrics: mount it at `/metrics`.

    In the text format, or OpenMetrics where the scraper accepts it, compressed where it accepts that.

    Args:
        collecting: The registry to show. By default the process-wide one of prometheus_client, with a `PolicyCollector`
            in it; one that is registered already is used as it is.
    """
    if collecting is None:
        collecting = prometheus_client.REGISTRY
        _register_once()
    show: ASGIApp = prometheus_client.make_asgi_app(collecting)

    async def metrics(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":  # served by itself, without a framework around it
            return await _live(receive, send)
        if scope["type"] != "http":
            raise ValueError(f"metrics are served over http, not {scope['type']}")
        if scope["method"] not in ("GET", "HEAD"):
            await send({"type": "http.response.start", "status": 405, "headers": [(b"allow", b"GET, HEAD")]})
            return await send({"type": "http.response.body", "body": b""})
        return await show(scope, receive, send)

    return metrics


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        else:
            await send({"type": "lifespan.shutdown.complete"})
            return


_own: PolicyCollector | None = None
_registering = threading.Lock()


def _register_once() -> None:
    global _own
    with _registering:
        if _own is None:
            collector = PolicyCollector()
            try:
                prometheus_client.REGISTRY.register(collector)
            except ValueError:  # the application has registered one, with options of its own
                return
            _own = collector


def _labels(metric: Metric) -> list[str]:
    return [prometheus_label(one) for one in (POLICY_NAME, POLICY_TYPE, *metric.attributes)]


def _values(metric: Metric, attributes: dict[str, str]) -> list[str]:
    return [attributes[one] for one in (POLICY_NAME, POLICY_TYPE, *metric.attributes)]


def _family(metric: Metric) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    return kind(metric.prometheus_name, metric.description, labels=_labels(metric))


def _recorder(metric: Metric, buckets: tuple[float, ...]) -> prometheus_client.Histogram | prometheus_client.Counter:
    name, text, labels = metric.prometheus_name, metric.description, _labels(metric)
    if metric.kind == "histogram":
        return prometheus_client.Histogram(name, text, labels, registry=None, buckets=buckets)
    return prometheus_client.Counter(name, text, labels, registry=None)
