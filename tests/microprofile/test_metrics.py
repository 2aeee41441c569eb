"""The registry: what exists for which policies, shared names, switched off."""

from __future__ import annotations

from collections import Counter

import pytest

from everkeel.microprofile import config
from everkeel.microprofile.instruments import StateTimes
from everkeel.microprofile.metrics import METRICS, MetricRegistry


def _names(numbers: MetricRegistry) -> Counter[str]:
    return Counter(number.metric.name for number in numbers.numbers())


def test_a_policy_brings_its_own_metrics_only(numbers: MetricRegistry) -> None:
    numbers.register("shop.pay", timeout=True)
    assert _names(numbers) == {"ft.invocations.total": 2, "ft.timeout.calls.total": 2}


def test_asynchronous_alone_has_none(numbers: MetricRegistry) -> None:
    assert numbers.register("shop.pay", asynchronous=True) is None
    assert _names(numbers) == {}


def test_switched_off_nothing_is_registered(numbers: MetricRegistry) -> None:
    config.configure({config.METRICS: "false"}, environment=False)
    assert numbers.register("shop.pay", retry=True) is None
    assert _names(numbers) == {}


def test_the_same_name_twice_shares_numbers_and_has_what_either_has(numbers: MetricRegistry) -> None:
    first = numbers.register("shop.pay", retry=True)
    second = numbers.register("shop.pay", retry=True, timeout=True, fallback=True)
    assert first is not None
    assert first is second
    assert first.retry is not None
    first.retry.retried()
    assert numbers.value("ft.retry.retries.total", method="shop.pay") == 1
    assert _names(numbers)["ft.invocations.total"] == 6


def test_two_breakers_under_one_name_add_up_their_times(numbers: MetricRegistry) -> None:
    metrics = numbers.register("shop.pay", circuit_breaker=True)
    assert metrics is not None
    assert metrics.circuit_breaker is not None
    now = 0
    for _ in range(2):
        metrics.circuit_breaker.watch(StateTimes(lambda: now))
    now = 5
    assert numbers.value("ft.circuitbreaker.state.total", method="shop.pay", state="closed") == 10
    assert numbers.value("ft.circuitbreaker.state.current", method="shop.pay", state="closed") == 2


def test_a_recorder_hears_until_it_is_stopped(numbers: MetricRegistry) -> None:
    heard: list[tuple[str, float, dict[str, str]]] = []
    metrics = numbers.register("shop.pay", timeout=True)
    assert metrics is not None
    assert metrics.timeout is not None
    stop = numbers.record_to(lambda *value: heard.append(value))
    metrics.timeout.ended(0.5, timed_out=False)
    stop()
    metrics.timeout.ended(0.7, timed_out=False)
    assert heard == [("ft.timeout.executionDuration", 0.5, {"method": "shop.pay"})]


def test_after_clearing_a_method_is_registered_anew(numbers: MetricRegistry) -> None:
    numbers.register("shop.pay", retry=True)
    numbers.clear()
    assert list(numbers) == []


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_is_described(name: str) -> None:
    assert METRICS[name].description.endswith(".")


def test_an_exporter_that_fails_harms_no_call(numbers: MetricRegistry, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*value: object) -> None:
        raise OSError("no collector")

    heard: list[float] = []
    metrics = numbers.register("shop.pay", timeout=True)
    assert metrics is not None
    assert metrics.timeout is not None
    numbers.record_to(broken)
    numbers.record_to(lambda name, seconds, tags: heard.append(seconds))
    metrics.timeout.ended(0.5, timed_out=False)
    assert heard == [0.5]
    assert "exporting ft.timeout.executionDuration of shop.pay failed" in caplog.text
