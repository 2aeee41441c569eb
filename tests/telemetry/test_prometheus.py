"""The collector and the ASGI application, read by prometheus_client's own parsers."""

from __future__ import annotations

import asyncio
import gzip
import subprocess
import sys
from collections.abc import Iterator

import prometheus_client
import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from everkeel import CircuitOpenError, RateLimitedError, circuit_breaker, fallback, rate_limit, registry, retry
from everkeel.compose import source
from everkeel.telemetry import PolicyCollector, metrics_app, prometheus
from everkeel.telemetry.names import METRICS
from everkeel.testing import Flaky


@pytest.fixture
def collecting() -> CollectorRegistry:
    return CollectorRegistry()


def samples(collecting: CollectorRegistry) -> dict[str, float]:
    """Everything but zeros, as `name{label=value,...}` without the labels that say which policy it is."""
    text = prometheus_client.generate_latest(collecting).decode()
    found = {}
    for family in parse_text(text):
        for sample in family.samples:
            own = [f"{key}={value}" for key, value in sample.labels.items() if not key.startswith("everkeel_")]
            if sample.value and not sample.name.endswith("_created"):
                found[sample.name + (f"{{{','.join(own)}}}" if own else "")] = sample.value
    return found


# ------------------------------------------------------------------ the collector


def test_a_scripted_sequence_gives_exact_numbers(clock, collecting):
    collecting.register(PolicyCollector())
    fetch = retry("fetch", attempts=3, backoff=0)
    fetch.call(Flaky(OSError("down"), "up"))
    with pytest.raises(OSError, match="down"):
        fetch.call(Flaky(*[OSError("down")] * 3))
    assert samples(collecting) == {
        "everkeel_calls_total{outcome=success}": 1,
        "everkeel_calls_total{outcome=failure}": 1,
        "everkeel_retry_attempts_total{outcome=success}": 1,
        "everkeel_retry_attempts_total{outcome=failure}": 4,
        "everkeel_retry_gave_up_total{reason=attempts}": 1,
    }


def test_a_circuit_is_read_as_it_is_at_the_scrape(clock, collecting):
    collecting.register(PolicyCollector())
    bank = circuit_breaker("bank", open_for=10)
    bank.force_open()
    with pytest.raises(CircuitOpenError):
        bank.call(len, "")
    clock.advance(3)
    first = samples(collecting)
    clock.advance(1)
    assert first["everkeel_circuit_state{state=open}"] == 1
    assert first["everkeel_circuit_rejected_total"] == 1
    assert first["everkeel_circuit_transitions_total{from=closed,to=open}"] == 1
    assert first["everkeel_circuit_time_in_state_seconds_total{state=open}"] == 3
    assert samples(collecting)["everkeel_circuit_time_in_state_seconds_total{state=open}"] == 4


def test_every_sample_says_which_policy_it_is_about(clock, collecting):
    collecting.register(PolicyCollector())
    policies = [retry("fetch"), circuit_breaker("fetch"), fallback(1, name="spare")]
    text = prometheus_client.generate_latest(collecting).decode()
    found = {
        (sample.labels["everkeel_policy_type"], sample.labels["everkeel_policy_name"])
        for family in parse_text(text)
        for sample in family.samples
    }
    assert found == {("retry", "fetch"), ("circuit_breaker", "fetch"), ("fallback", "spare")}
    assert len(policies) == len(registry)


def test_openmetrics_is_well_formed_and_complete(clock, collecting):
    collecting.register(PolicyCollector(histograms=True, durations=True))
    policies = [retry('a "strange" \\ name\n', backoff=0), circuit_breaker("bank"), rate_limit(5, "api")]
    for policy in policies:
        policy.call(len, "")
    families = {family.name: family for family in parse_openmetrics(openmetrics(collecting).decode())}
    assert families["everkeel_calls"].type == "counter"
    assert families["everkeel_circuit_state"].type == "gauge"
    assert families["everkeel_call_duration_seconds"].type == "histogram"
    names = {sample.labels.get("everkeel_policy_name") for sample in families["everkeel_calls"].samples}
    assert 'a "strange" \\ name\n' in names


def test_every_name_that_is_exported_is_listed(clock, collecting):
    collecting.register(PolicyCollector(histograms=True, durations=True))
    listed = {metric.prometheus_name.removesuffix("_total") for metric in METRICS.values()}
    policies = [retry("r"), circuit_breaker("c"), rate_limit(5, "l")]
    assert {family.name for family in collecting.collect()} <= listed
    assert policies


def test_a_policy_that_is_gone_is_gone_from_the_next_scrape(clock, collecting):
    collecting.register(PolicyCollector())
    fetch = retry("fetch")
    assert samples(collecting) == {}  # nothing but zeros
    assert b"fetch" in prometheus_client.generate_latest(collecting)
    registry.remove("retry", "fetch")
    assert b"fetch" not in prometheus_client.generate_latest(collecting)
    assert fetch.name == "fetch"


def test_two_collectors_in_one_registry_are_refused(clock, collecting):
    collecting.register(PolicyCollector())
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        collecting.register(PolicyCollector())


# ------------------------------------------------------------------ histograms


def test_histograms_are_recorded_from_trouble(clock, collecting):
    collector = PolicyCollector(histograms=True, buckets=(0.1, 1, 10))
    collecting.register(collector)
    retry("fetch", backoff=(0.5, 2.0), jitter=None).call(Flaky(OSError(), OSError(), "up"))
    limit = rate_limit(1, "api", per=4)
    limit.call(len, "")
    with pytest.raises(RateLimitedError):
        limit.call(len, "")
    found = samples(collecting)
    assert found["everkeel_retry_delay_seconds_bucket{le=1.0}"] == 1
    assert found["everkeel_retry_delay_seconds_bucket{le=10.0}"] == 2
    assert found["everkeel_retry_delay_seconds_sum"] == 2.5
    assert found["everkeel_rate_limit_retry_after_seconds_count"] == 1
    assert found["everkeel_rate_limit_retry_after_seconds_sum"] == 4
    assert not [name for name in found if "duration" in name]
    collector.close()


def test_durations_and_permits_are_recorded_where_they_are_asked_for(clock, collecting):
    collecting.register(PolicyCollector(durations=True))
    retry("fetch").call(clock.sleep, 0.3)
    rate_limit(10, "api", cost=3).call(len, "")
    found = samples(collecting)
    assert found["everkeel_call_duration_seconds_sum{outcome=success}"] == 0.3
    assert found["everkeel_rate_limit_permits_total"] == 3


@pytest.mark.parametrize("histograms", [False, True])
def test_a_call_that_goes_well_is_woven_as_before(clock, histograms):
    guarded = retry("fetch")(lambda: 1)
    before = source(guarded)
    collector = PolicyCollector(histograms=histograms)
    assert source(guarded) == before
    collector.close()


def test_durations_cost_a_layer_until_the_collector_is_closed(clock):
    guarded = retry("fetch")(lambda: 1)
    before = source(guarded)
    collector = PolicyCollector(durations=True)
    assert "tap" in source(guarded)
    collector.close()
    assert source(guarded) == before


# ------------------------------------------------------------------ /metrics


def ask(app, *, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
    sent: list[dict] = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": "/metrics", "query_string": b"", "headers": raw}
    asyncio.run(app(scope, receive, send))
    answered = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], answered, b"".join(message.get("body", b"") for message in sent[1:])


@pytest.fixture
def app(clock, collecting: CollectorRegistry) -> Iterator[prometheus.ASGIApp]:
    collecting.register(PolicyCollector())
    policy = retry("fetch")
    yield metrics_app(collecting)
    assert policy.name == "fetch"


def test_metrics_are_text_by_default(app):
    status, headers, body = ask(app)
    assert (status, headers["content-type"].split(";")[0]) == (200, "text/plain")
    assert "everkeel_calls" in {family.name for family in parse_text(body.decode())}


def test_metrics_are_openmetrics_for_who_accepts_it(app):
    status, headers, body = ask(app, accept="application/openmetrics-text; version=1.0.0")
    assert (status, headers["content-type"].split(";")[0]) == (200, "application/openmetrics-text")
    assert "everkeel_calls" in {family.name for family in parse_openmetrics(body.decode())}


def test_metrics_are_compressed_for_who_accepts_it(app):
    _, headers, body = ask(app, accept_encoding="gzip")
    assert headers["content-encoding"] == "gzip"
    assert b"everkeel_calls_total" in gzip.decompress(body)


def test_metrics_can_only_be_read(app):
    status, headers, _ = ask(app, method="POST")
    assert (status, headers["allow"]) == (405, "GET, HEAD")


def test_metrics_are_not_a_websocket(app):
    with pytest.raises(ValueError, match="not websocket"):
        asyncio.run(app({"type": "websocket"}, None, None))


def test_the_application_can_be_served_by_itself(app):
    messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    sent: list[dict] = []

    async def receive():
        return next(messages)

    async def send(message):
        sent.append(message)

    asyncio.run(app({"type": "lifespan"}, receive, send))
    assert [message["type"] for message in sent] == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_without_a_registry_it_shows_that_of_the_process(clock, monkeypatch):
    process = CollectorRegistry()
    monkeypatch.setattr(prometheus_client, "REGISTRY", process)
    monkeypatch.setattr(prometheus, "_own", None)
    policy = retry("fetch")
    apps = [metrics_app(), metrics_app()]
    for app in apps:
        assert b'everkeel_policy_name="fetch"' in ask(app)[2]
    assert policy.name == "fetch"


def test_a_collector_of_the_application_is_used_as_it_is(clock, monkeypatch):
    process = CollectorRegistry()
    monkeypatch.setattr(prometheus_client, "REGISTRY", process)
    monkeypatch.setattr(prometheus, "_own", None)
    process.register(PolicyCollector(histograms=True))
    policy = retry("fetch", backoff=0)
    policy.call(Flaky(OSError(), "up"))
    assert b"everkeel_retry_delay_seconds_count" in ask(metrics_app())[2]


# ------------------------------------------------------------------ what is needed


WITHOUT = """
import sys
sys.modules[{library!r}] = None
import everkeel.telemetry
everkeel.telemetry.log_events().cancel()
try:
    everkeel.telemetry.{name}
except ImportError as error:
    print(error)
"""


def test_without_the_library_the_error_names_the_extra():
    script = WITHOUT.format(library="prometheus_client", name="PolicyCollector")
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert answer.strip() == ("everkeel.telemetry.prometheus needs prometheus-client: pip install everkeel[prometheus]")


def test_logging_needs_neither_library():
    script = (
        "import sys, everkeel.telemetry as telemetry\n"
        "telemetry.log_events().cancel()\n"
        "assert not {'prometheus_client', 'opentelemetry'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
