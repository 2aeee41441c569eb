"""`/metrics/base`: what is asked for, in which form, and what is said to everything else."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from everkeel.microprofile.endpoint import metrics_app, preferred
from everkeel.microprofile.metrics import MetricRegistry

TEXT, JSON = "text/plain", "application/json"


def ask(numbers: MetricRegistry, path: str = "/metrics/base", **how: Any) -> tuple[int, dict[str, str], str]:
    """Status, headers and body."""
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"accept", how["accept"].encode())] if "accept" in how else []
    scope = {"type": "http", "method": how.get("method", "GET"), "path": path, "headers": headers}
    scope["root_path"] = how.get("root_path", "")
    asyncio.run(metrics_app(numbers)(scope, receive, send))
    start, body = sent
    return start["status"], {key.decode(): value.decode() for key, value in start["headers"]}, body["body"].decode()


@pytest.fixture
def numbers() -> MetricRegistry:
    numbers = MetricRegistry()
    metrics = numbers.register("shop.Orders.pay", retry=True, timeout=True, circuit_breaker=True, bulkhead=True)
    assert metrics is not None
    assert metrics.timeout is not None
    metrics.ended(raised=False, fallback="notDefined")
    metrics.timeout.ended(0.2, timed_out=False)
    metrics.timeout.ended(1.0, timed_out=True)
    return numbers


def test_text_is_what_prometheus_reads(numbers: MetricRegistry) -> None:
    status, headers, body = ask(numbers)
    assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    families = {family.name: family for family in text_string_to_metric_families(body)}
    every = [sample for family in families.values() for sample in family.samples]
    samples = {(one.name, *sorted(one.labels.items())): one.value for one in every}
    method = ("method", "shop.Orders.pay")
    called = ("base_ft_invocations_total", ("fallback", "notDefined"), method, ("result", "valueReturned"))
    assert samples[called] == 1
    assert samples["base_ft_timeout_executionDuration_seconds_count", method] == 2
    assert samples["base_ft_timeout_executionDuration_seconds_sum", method] == pytest.approx(1.2)
    assert samples["base_ft_timeout_executionDuration_seconds_bucket", ("le", "0.25"), method] == 1
    assert samples["base_ft_timeout_executionDuration_seconds_bucket", ("le", "+Inf"), method] == 2
    assert families["base_ft_timeout_executionDuration_seconds"].type == "histogram"
    assert families["base_ft_circuitbreaker_state_total_seconds"].type == "gauge"


def test_no_name_has_a_suffix_twice(numbers: MetricRegistry) -> None:
    _, _, body = ask(numbers)
    names = [line.split()[2] for line in body.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names))
    assert not [name for name in names if "_total_total" in name or "_seconds_seconds" in name]


def test_json_has_tags_in_its_keys_and_times_in_nanoseconds(numbers: MetricRegistry) -> None:
    status, headers, body = ask(numbers, accept=JSON)
    assert (status, headers["content-type"]) == (200, JSON)
    said = json.loads(body)
    assert said["ft.invocations.total;fallback=notDefined;method=shop.Orders.pay;result=valueReturned"] == 1
    duration = said["ft.timeout.executionDuration"]
    assert duration["count;method=shop.Orders.pay"] == 2
    assert duration["max;method=shop.Orders.pay"] == 1_000_000_000
    assert duration["p50;method=shop.Orders.pay"] == 200_000_000


def test_a_semicolon_in_a_tag_cannot_pass_for_another_tag() -> None:
    numbers = MetricRegistry()
    numbers.register("shop;evil=1", retry=True)
    _, _, body = ask(numbers, accept=JSON)
    assert "ft.retry.retries.total;method=shop_evil=1" in json.loads(body)


def test_a_quote_in_a_tag_cannot_break_out_of_its_label() -> None:
    numbers = MetricRegistry()
    numbers.register('shop"} 1\n\\', retry=True)
    _, _, body = ask(numbers)
    (family,) = [one for one in text_string_to_metric_families(body) if one.name == "base_ft_retry_retries"]
    assert family.samples[0].labels == {"method": 'shop"} 1\n\\'}


@pytest.mark.parametrize(
    ("path", "root_path"),
    [
        ("/metrics/base/ft.retry.retries.total", ""),
        ("/ft.retry.retries.total", ""),
        ("/metrics/base/ft.retry.retries.total", "/metrics/base"),
        ("/metrics/base/ft.retry.retries.total", "/metrics"),
        ("/shop/metrics/base/ft.retry.retries.total/", "/shop"),
    ],
)
def test_one_metric_by_name(numbers: MetricRegistry, path: str, root_path: str) -> None:
    status, _, body = ask(numbers, path, accept=JSON, root_path=root_path)
    assert (status, json.loads(body)) == (200, {"ft.retry.retries.total;method=shop.Orders.pay": 0})


@pytest.mark.parametrize("path", ["/", "", "/metrics/base", "/metrics/base/"])
def test_all_metrics_wherever_it_is_mounted(numbers: MetricRegistry, path: str) -> None:
    assert "base_ft_invocations_total" in ask(numbers, path)[2]


@pytest.mark.parametrize(
    "path",
    ["/metrics/vendor", "/metrics/basement", "/metrics/base/ft.no", "/metrics/base/ft.ratelimit.calls.total"],
)
def test_what_is_not_there_is_not_found(numbers: MetricRegistry, path: str) -> None:
    assert ask(numbers, path)[0] == 404


def test_without_any_metric_there_is_no_content() -> None:
    assert ask(MetricRegistry())[::2] == (204, "")


def test_head_has_the_headers_of_get_and_no_body(numbers: MetricRegistry) -> None:
    status, headers, body = ask(numbers, method="HEAD")
    assert (status, body) == (200, "")
    assert int(headers["content-length"]) > 0


@pytest.mark.parametrize("method", ["POST", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed(numbers: MetricRegistry, method: str) -> None:
    status, headers, _ = ask(numbers, method=method)
    assert (status, headers["allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", TEXT),
        ("*/*", TEXT),
        ("text/*", TEXT),
        ("application/json", JSON),
        ("APPLICATION/JSON", JSON),
        ("application/*", JSON),
        ("application/json, text/plain", TEXT),
        ("application/json;q=0.9, text/plain;q=0.5", JSON),
        ("text/plain;q=0, */*", JSON),
        ("application/json, */*;q=0.1", JSON),
        ("text/html, application/xhtml+xml, */*;q=0.8", TEXT),
        ("text/plain;version=0.0.4", TEXT),
        ("application/json;q=nonsense, */*;q=0.1", TEXT),
        ("application/openmetrics-text", None),
        ("image/png", None),
        ("text/plain;q=0", None),
    ],
)
def test_the_client_chooses_the_form(accept: str, form: str | None) -> None:
    chosen = preferred(accept)
    assert (chosen and chosen.partition(";")[0]) == form


def test_neither_form_is_not_acceptable(numbers: MetricRegistry) -> None:
    assert ask(numbers, accept="image/png")[0] == 406


def test_it_can_be_served_by_itself(numbers: MetricRegistry) -> None:
    received = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return next(received)

    async def send(message: Any) -> None:
        sent.append(message["type"])

    asyncio.run(metrics_app(numbers)({"type": "lifespan"}, receive, send))
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_it_speaks_http_only(numbers: MetricRegistry) -> None:
    async def never(*_: Any) -> Any:
        raise AssertionError

    with pytest.raises(ValueError, match="not websocket"):
        asyncio.run(metrics_app(numbers)({"type": "websocket"}, never, never))


@pytest.mark.parametrize("place", ["/metrics", "/metrics/base"])
def test_it_can_be_mounted_in_a_framework(numbers: MetricRegistry, place: str) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount
    from starlette.testclient import TestClient

    with TestClient(Starlette(routes=[Mount(place, metrics_app(numbers))])) as client:
        answer = client.get("/metrics/base")
        assert "base_ft_retry_retries_total" in answer.text
        assert bool(answer.history) is (place == "/metrics/base")
        one = client.get("/metrics/base/ft.retry.retries.total", headers={"accept": JSON})
        assert one.json() == {"ft.retry.retries.total;method=shop.Orders.pay": 0}
