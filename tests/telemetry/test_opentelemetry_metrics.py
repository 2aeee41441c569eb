"""Metrics through the OpenTelemetry SDK, read by its in-memory reader."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import Gauge, Histogram, InMemoryMetricReader, Sum

from everkeel import CircuitOpenError, RateLimitedError, bulkhead, circuit_breaker, rate_limit, retry
from everkeel.compose import source
from everkeel.telemetry import EverkeelInstrumentor
from everkeel.telemetry.names import METRICS
from everkeel.testing import Flaky


class Meters:
    """A meter provider, and what can be read of it."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.provider = MeterProvider([self.reader], shutdown_on_exit=False)

    def metrics(self):
        data = self.reader.get_metrics_data()
        scopes = [] if data is None else [scope for one in data.resource_metrics for scope in one.scope_metrics]
        return {metric.name: metric for scope in scopes for metric in scope.metrics}

    def read(self, prefix: str = "everkeel.") -> dict[str, float]:
        """Everything but zeros, as `name{own attributes}`; of histograms count and sum, over all policies."""
        found: dict[str, float] = {}
        for name, metric in self.metrics().items():
            for point in metric.data.data_points if name.startswith(prefix) else ():
                own = [str(value) for key, value in point.attributes.items() if not key.startswith("everkeel.")]
                label = name + (f"{{{','.join(own)}}}" if own else "")
                if isinstance(metric.data, Histogram):
                    for what, value in (("count", point.count), ("sum", point.sum)):
                        found[f"{label} {what}"] = found.get(f"{label} {what}", 0) + value
                elif point.value:
                    found[label] = point.value
        return found


@pytest.fixture
def meters(clock) -> Iterator[Meters]:
    meters = Meters()
    yield meters
    EverkeelInstrumentor().uninstrument()
    meters.provider.shutdown()


def test_a_scripted_sequence_gives_exact_numbers(meters):
    EverkeelInstrumentor().instrument(meter_provider=meters.provider, spans=False)
    fetch = retry("fetch", attempts=3, backoff=0.5, jitter=None)
    fetch.call(Flaky(OSError("down"), "up"))
    with pytest.raises(OSError, match="down"):
        fetch.call(Flaky(*[OSError("down")] * 3))
    assert meters.read() == {
        "everkeel.calls{success}": 1,
        "everkeel.calls{failure}": 1,
        "everkeel.retry.attempts{success}": 1,
        "everkeel.retry.attempts{failure}": 4,
        "everkeel.retry.gave_up{attempts}": 1,
        "everkeel.retry.delay count": 3,
        "everkeel.retry.delay sum": 1.5,
    }


def test_every_collection_reads_the_numbers_of_its_moment(meters, clock):
    EverkeelInstrumentor().instrument(meter_provider=meters.provider, spans=False)
    bank = circuit_breaker("bank", open_for=10)
    assert meters.read("everkeel.circuit.state") == {"everkeel.circuit.state{closed}": 1}
    bank.force_open()
    for _ in range(2):
        with pytest.raises(CircuitOpenError):
            bank.call(len, "")
    clock.advance(4)
    assert meters.read("everkeel.circuit.") == {
        "everkeel.circuit.state{open}": 1,
        "everkeel.circuit.rejected": 2,
        "everkeel.circuit.transitions{closed,open}": 1,
        "everkeel.circuit.time_in_state{open}": 4,
    }


def test_a_collection_reads_every_snapshot_once(meters, monkeypatch):
    EverkeelInstrumentor().instrument(meter_provider=meters.provider, spans=False)
    policy, reads = retry("fetch"), []
    details = type(policy.state).details
    monkeypatch.setattr(type(policy.state), "details", lambda state: reads.append(1) or details(state))
    meters.read()
    assert len(reads) == 1
    meters.read()
    assert len(reads) == 2


def test_what_rejected_calls_are_told_is_recorded(meters):
    EverkeelInstrumentor().instrument(meter_provider=meters.provider, spans=False)
    limit = rate_limit(1, "api", per=4)
    limit.call(len, "")
    with pytest.raises(RateLimitedError):
        limit.call(len, "")
    assert meters.read("everkeel.rate_limit.retry_after") == {
        "everkeel.rate_limit.retry_after count": 1,
        "everkeel.rate_limit.retry_after sum": 4,
    }


def test_waits_for_a_place_are_recorded_with_how_they_ended(meters, clock):
    EverkeelInstrumentor().instrument(meter_provider=meters.provider, spans=False)
    places = bulkhead(1, "db", queue=2, max_wait=3)

    async def main():
        calls = [places.acall(asyncio.sleep, seconds) for seconds in (2, 5, 0)]
        await asyncio.gather(*calls, return_exceptions=True)

    clock.run(main())
    assert meters.read("everkeel.bulkhead.wait") == {
        "everkeel.bulkhead.wait{true} count": 1,
        "everkeel.bulkhead.wait{true} sum": 2,
        "everkeel.bulkhead.wait{false} count": 1,
        "everkeel.bulkhead.wait{false} sum": 3,
    }


def test_durations_and_permits_are_recorded_where_they_are_asked_for(meters, clock):
    EverkeelInstrumentor().instrument(meter_provider=meters.provider, spans=False, durations=True)
    retry("fetch").call(clock.sleep, 0.25)
    rate_limit(10, "api", cost=3).call(len, "")
    found = meters.read()
    assert found["everkeel.call.duration{success} sum"] == 0.25
    assert found["everkeel.rate_limit.permits"] == 3


def test_kinds_and_units_are_as_listed(meters):
    EverkeelInstrumentor().instrument(meter_provider=meters.provider, spans=False, durations=True)
    policies = [circuit_breaker("c"), rate_limit(5, "l"), retry("r", backoff=0)]
    for policy in policies:
        policy.call(Flaky("fine"))
    found = meters.metrics()
    assert {"everkeel.calls", "everkeel.circuit.state", "everkeel.call.duration"} <= set(found)
    shapes = {"counter": Sum, "gauge": Gauge, "histogram": Histogram}
    for name, metric in found.items():
        assert isinstance(metric.data, shapes[METRICS[name].kind])
        assert (metric.unit, metric.description) == (METRICS[name].unit, METRICS[name].description)
        if isinstance(metric.data, Sum):
            assert metric.data.is_monotonic


def test_a_call_that_goes_well_is_woven_as_before(meters):
    guarded = retry("fetch")(lambda: 1)
    before = source(guarded)
    EverkeelInstrumentor().instrument(meter_provider=meters.provider, spans=False)
    assert source(guarded) == before


# ------------------------------------------------------------------ beginning and ending


def test_after_uninstrument_nothing_is_read(meters):
    EverkeelInstrumentor().instrument(meter_provider=meters.provider, spans=False)
    EverkeelInstrumentor().uninstrument()
    policy = retry("fetch", backoff=0)
    policy.call(Flaky(OSError(), "up"))
    assert meters.read() == {}


def test_instrumenting_again_does_not_count_twice(meters, caplog):
    for _ in range(3):
        EverkeelInstrumentor().instrument(meter_provider=meters.provider, spans=False)
        EverkeelInstrumentor().uninstrument()
    EverkeelInstrumentor().instrument(meter_provider=meters.provider, spans=False)
    policy = retry("fetch", backoff=0.5, jitter=None)
    policy.call(Flaky(OSError(), "up"))
    assert meters.read("everkeel.retry.delay") == {"everkeel.retry.delay count": 1, "everkeel.retry.delay sum": 0.5}
    assert meters.read("everkeel.calls") == {"everkeel.calls{success}": 1}
    assert caplog.text == ""  # the SDK would warn of instruments made twice


def test_a_second_instrument_warns_and_does_nothing(meters, caplog):
    EverkeelInstrumentor().instrument(meter_provider=meters.provider, spans=False)
    EverkeelInstrumentor().instrument(durations=True)
    assert "instrumented for OpenTelemetry already" in caplog.text
    EverkeelInstrumentor().uninstrument()
    assert not EverkeelInstrumentor().is_instrumented_by_opentelemetry


def test_uninstrument_without_instrument_does_nothing(clock):
    EverkeelInstrumentor().uninstrument()


def test_it_is_found_by_its_entry_point(meters):
    (found,) = [one for one in entry_points(group="opentelemetry_instrumentor") if one.name == "everkeel"]
    instrumentor = found.load()()
    assert list(instrumentor.instrumentation_dependencies()) == []
    instrumentor.instrument(meter_provider=meters.provider, skip_dep_check=True)  # as a distribution does
    assert EverkeelInstrumentor().is_instrumented_by_opentelemetry


def test_without_an_sdk_everything_goes_into_nothing():
    script = (
        "import sys\n"
        "sys.modules['opentelemetry.sdk'] = None\n"
        "from everkeel import retry\n"
        "from everkeel.telemetry import EverkeelInstrumentor\n"
        "EverkeelInstrumentor().instrument(durations=True)\n"
        "assert retry(backoff=0)(lambda: 1)() == 1\n"
        "assert retry('r', backoff=0).call(len, 'abc') == 3\n"
        "EverkeelInstrumentor().uninstrument()\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)


def test_without_the_library_the_error_names_the_extra():
    script = (
        "import sys\n"
        "sys.modules['opentelemetry'] = None\n"
        "try:\n"
        "    from everkeel.telemetry import EverkeelInstrumentor\n"
        "except ImportError as error:\n"
        "    print(error)\n"
    )
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "needs opentelemetry-api: pip install everkeel[opentelemetry]" in answer
