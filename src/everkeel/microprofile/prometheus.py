"""The standard's metrics for a registry of `prometheus_client`, beside everything else the application exports there.

pip install everkeel[prometheus]
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate

from everkeel.microprofile.exposition import Family, families
from everkeel.microprofile.instruments import BOUNDS
from everkeel.microprofile.metrics import METRICS, MetricRegistry, registry
from everkeel.telemetry.extras import missing

try:
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    from prometheus_client.metrics_core import Metric as Exported
except ImportError as error:  # pragma: no cover - the tests have it
    raise missing("everkeel.microprofile.prometheus", "prometheus-client", "prometheus") from error


class FaultToleranceCollector:
    """Gives `base_ft_...` to a Prometheus registry. Register it once, at startup.

    >>> from prometheus_client import CollectorRegistry
    >>> CollectorRegistry().register(FaultToleranceCollector())
    """

    def __init__(self, shown: MetricRegistry = registry) -> None:
        self._shown = shown

    def describe(self) -> Iterator[Exported]:
        """What it may collect; asked when it is registered, so that the names of two collectors cannot clash unseen."""
        return iter([_exported(Family(metric)) for metric in METRICS.values()])

    def collect(self) -> Iterator[Exported]:
        """The numbers as they are now."""
        return iter([_exported(family) for family in families(self._shown)])


def _exported(family: Family) -> Exported:
    name, text = family.prometheus_name, family.metric.description
    labels = ["method", *family.metric.tags]
    if family.metric.kind == "histogram":
        histogram = HistogramMetricFamily(name, text, labels=labels)
        ends = [*map(repr, BOUNDS), "+Inf"]
        for tags, spread in family.spreads:
            buckets = list(zip(ends, accumulate(spread.buckets), strict=True))
            histogram.add_metric([tags[label] for label in labels], buckets, spread.sum)
        return histogram
    # The client takes `_total` off a counter's name and puts it on again, so that it never stands there twice.
    kind = CounterMetricFamily if family.metric.kind == "counter" else GaugeMetricFamily
    exported = kind(name, text, labels=labels)
    for tags, value in family.numbers:
        exported.add_metric([tags[label] for label in labels], family.in_base_unit(value))
    return exported
