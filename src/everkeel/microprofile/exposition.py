"""Metrics as they are sent: Prometheus text (`base_ft_...`, in base units, one suffix each) and MicroProfile's JSON.

Both are written from the same families, which the collector for `prometheus_client` reads too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from everkeel.microprofile.instruments import BOUNDS, Spread
from everkeel.microprofile.metrics import METRICS, SCOPE, Metric, MetricRegistry

_QUANTILES = {"p50": 0.5, "p75": 0.75, "p95": 0.95, "p98": 0.98, "p99": 0.99, "p999": 0.999}


@dataclass(slots=True)
class Family:
    """All numbers of one metric."""

    metric: Metric
    numbers: list[tuple[dict[str, str], int]] = field(default_factory=list)
    spreads: list[tuple[dict[str, str], Spread]] = field(default_factory=list)

    @property
    def prometheus_name(self) -> str:
        """`base_ft_retry_calls_total`, `base_ft_timeout_executionDuration_seconds`."""
        suffix = "_seconds" if self.metric.unit == "nanoseconds" else ""
        return f"{SCOPE}_{self.metric.name.replace('.', '_')}{suffix}"

    def in_base_unit(self, value: int) -> float:
        """Times in seconds, everything else as it is."""
        return value / 1e9 if self.metric.unit == "nanoseconds" else value


def families(registry: MetricRegistry, only: str | None = None) -> list[Family]:
    """What the registry holds now, by metric in the standard's order; of one metric only where it is named."""
    found: dict[str, Family] = {}
    for method in registry:
        for metric, tags, value in method.numbers():
            found.setdefault(metric.name, Family(metric)).numbers.append((tags, value))
        for metric, tags, histogram in method.histograms():
            found.setdefault(metric.name, Family(metric)).spreads.append((tags, histogram.read()))
    return [found[name] for name in METRICS if name in found and only in (None, name)]


def as_text(given: Iterable[Family]) -> str:
    """Prometheus' text format, version 0.0.4."""
    return "".join(f"{line}\n" for family in given for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    name = family.prometheus_name
    yield f"# HELP {name} {family.metric.description}"
    yield f"# TYPE {name} {family.metric.kind}"
    for tags, value in family.numbers:
        yield f"{name}{_labels(tags)} {_number(family.in_base_unit(value))}"
    for tags, spread in family.spreads:
        ends = [*(_number(bound) for bound in BOUNDS), "+Inf"]
        for end, below in zip(ends, accumulate(spread.buckets), strict=True):
            yield f"{name}_bucket{_labels({**tags, 'le': end})} {below}"
        yield f"{name}_sum{_labels(tags)} {_number(spread.sum)}"
        yield f"{name}_count{_labels(tags)} {spread.count}"


def _labels(tags: dict[str, str]) -> str:
    return "{" + ",".join(f'{key}="{_escaped(value)}"' for key, value in tags.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    return repr(float(value)) if isinstance(value, float) else str(value)


def as_json(given: Iterable[Family]) -> str:
    """The JSON of MicroProfile Metrics: tags are part of the key, times are in nanoseconds."""
    written: dict[str, Any] = {}
    for family in given:
        for tags, value in family.numbers:
            written[family.metric.name + _suffix(tags)] = value
        for tags, spread in family.spreads:
            parts: dict[str, float] = written.setdefault(family.metric.name, {})
            for part, number in _statistics(spread).items():
                parts[part + _suffix(tags)] = number
    return json.dumps(written)


def _statistics(spread: Spread) -> dict[str, float]:
    """Count and sum of everything; the rest of the last values, in nanoseconds."""
    nanoseconds = {
        "sum": spread.sum,
        "min": spread.quantile(0.0),
        "max": spread.quantile(1.0),
        "mean": spread.mean,
        "stddev": spread.deviation,
        **{name: spread.quantile(share) for name, share in _QUANTILES.items()},
    }
    return {"count": spread.count, **{name: round(seconds * 1e9) for name, seconds in nanoseconds.items()}}


def _suffix(tags: dict[str, str]) -> str:
    # A semicolon separates tags, so one within a value would read as another tag.
    return "".join(f";{key}={tags[key].replace(';', '_')}" for key in sorted(tags))
