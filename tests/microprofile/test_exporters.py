"""The same numbers in `prometheus_client` and in OpenTelemetry."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest

from everkeel.microprofile.exposition import as_text, families
from everkeel.microprofile.instruments import BOUNDS
from everkeel.microprofile.metrics import METRICS, MetricRegistry
from everkeel.microprofile.opentelemetry import export_metrics, views
from everkeel.microprofile.prometheus import FaultToleranceCollector


def _use(numbers: MetricRegistry) -> None:
    """Every policy, and something counted in each."""
    policies = ("retry", "timeout", "circuit_breaker", "bulkhead", "fallback", "rate_limit", "asynchronous")
    metrics = numbers.register("shop.Orders.pay", **dict.fromkeys(policies, True))
    assert metrics is not None
    assert metrics.retry and metrics.timeout and metrics.circuit_breaker  # noqa: PT018 - for the type checker
    assert metrics.bulkhead and metrics.rate_limit  # noqa: PT018 - for the type checker
    metrics.ended(raised=False, fallback="applied")
    metrics.retry.retried()
    metrics.retry.ended(retried=True, result="maxRetriesReached")
    metrics.timeout.ended(0.3, timed_out=False)
    metrics.circuit_breaker.ended("success")
    metrics.bulkhead.accepted()
    metrics.bulkhead.queued()
    metrics.bulkhead.unqueued()
    metrics.bulkhead.waited(0.001)
    metrics.bulkhead.started()
    metrics.bulkhead.finished(0.01)
    metrics.rate_limit.ended(permitted=True)


def _lines(text: str) -> list[str]:
    """Samples without the order of their labels."""
    return sorted(
        name + "".join(sorted(labels.split(","))) + f" {float(value)}"
        for line in text.splitlines()
        if not line.startswith("#")
        for name, _, rest in [line.partition("{")]
        for labels, _, value in [rest.partition("} ")]
        if not name.endswith("_created")
    )


def test_the_collector_says_what_the_endpoint_says(numbers: MetricRegistry) -> None:
    _use(numbers)
    scraped = CollectorRegistry()
    scraped.register(FaultToleranceCollector(numbers))
    assert _lines(generate_latest(scraped).decode()) == _lines(as_text(families(numbers)))


def test_two_collectors_of_the_same_names_cannot_be_registered() -> None:
    scraped = CollectorRegistry()
    scraped.register(FaultToleranceCollector())
    with pytest.raises(ValueError, match="base_ft_invocations"):
        scraped.register(FaultToleranceCollector())


def _collected(reader: InMemoryMetricReader) -> dict[str, Any]:
    data: Any = reader.get_metrics_data()
    scopes = [scope for resource in (data.resource_metrics if data else ()) for scope in resource.scope_metrics]
    return {metric.name: metric for scope in scopes for metric in scope.metrics}


def test_open_telemetry_gets_every_metric_with_its_unit_and_instrument(numbers: MetricRegistry) -> None:
    reader = InMemoryMetricReader()
    export = export_metrics(MeterProvider([reader], views=views()), shown=numbers)
    _use(numbers)
    collected = _collected(reader)
    export.close()
    assert collected.keys() == METRICS.keys()
    for name, metric in METRICS.items():
        if metric.kind == "histogram":
            assert collected[name].unit == "seconds"
            assert collected[name].data.data_points[0].explicit_bounds == BOUNDS
        else:
            assert collected[name].unit == ("nanoseconds" if metric.unit == "nanoseconds" else "")
            assert collected[name].data.is_monotonic is metric.monotonic


def test_open_telemetry_sees_the_same_numbers(numbers: MetricRegistry) -> None:
    reader = InMemoryMetricReader()
    export = export_metrics(MeterProvider([reader]), shown=numbers)
    _use(numbers)
    points = _collected(reader)["ft.invocations.total"].data.data_points
    export.close()
    said = {(point.attributes["result"], point.attributes["fallback"]): point.value for point in points}
    assert said == {
        ("valueReturned", "applied"): 1,
        ("valueReturned", "notApplied"): 0,
        ("exceptionThrown", "applied"): 0,
        ("exceptionThrown", "notApplied"): 0,
    }


def test_a_closed_export_is_silent_and_can_be_begun_again(numbers: MetricRegistry) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader])
    _use(numbers)
    export_metrics(provider, shown=numbers).close()
    assert _collected(reader) == {}
    again = export_metrics(provider, shown=numbers)
    assert "ft.invocations.total" in _collected(reader)
    again.close()


def test_a_second_export_to_the_same_place_would_count_twice(numbers: MetricRegistry) -> None:
    provider = MeterProvider([InMemoryMetricReader()])
    export = export_metrics(provider, shown=numbers)
    with pytest.raises(ValueError, match="exported to this meter provider already"):
        export_metrics(provider, shown=numbers)
    export.close()


def test_without_views_the_sdk_writes_names_in_lower_case(numbers: MetricRegistry) -> None:
    reader = InMemoryMetricReader()
    export = export_metrics(MeterProvider([reader]), shown=numbers)
    _use(numbers)
    assert _collected(reader).keys() == {name.lower() for name in METRICS}
    export.close()


def test_every_collection_sees_what_was_counted_since(numbers: MetricRegistry) -> None:
    reader = InMemoryMetricReader()
    export = export_metrics(MeterProvider([reader]), shown=numbers)
    metrics = numbers.register("shop.Orders.pay", retry=True)
    assert metrics is not None
    assert metrics.retry is not None
    for expected in (1, 2, 3):
        metrics.retry.retried()
        (point,) = _collected(reader)["ft.retry.retries.total"].data.data_points
        assert point.value == expected
    export.close()
