"""`Everkeel(app)`: everything in one line, around any application."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from blockbuster import blockbuster_ctx
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Mount

import everkeel
from everkeel import ConfigError, RejectedError, bulkhead, rate_limit, registry
from everkeel.http import Everkeel, ProblemMiddleware, by_address
from everkeel.idempotency import MemoryIdempotencyStore


def _shop() -> FastAPI:
    app = FastAPI()

    @app.get("/orders/{number}")
    async def order(number: int) -> dict[str, int]:
        return {"number": number}

    @app.post("/orders")
    async def place() -> dict[str, int]:
        placed.append(1)
        return {"placed": len(placed)}

    @app.get("/sync")
    def sync() -> str:
        return "in a thread"

    placed: list[int] = []
    return app


def test_one_line_protects_a_fastapi_application_in_place(serve: Any) -> None:
    app = _shop()
    Everkeel(app).with_protection(rate_limit=3, per=60, idempotency=True, deadline=30.0, exclude=["/health"])

    async def main() -> None:
        async with serve(app) as service:
            first = await service.get("/orders/7")
            assert first.headers["ratelimit"] == '"http";r=2;t=20'
            assert first.headers["x-backpressure"] == "0"
            placed = [await service.post("/orders", headers={"Idempotency-Key": '"k"'}) for _ in range(2)]
            assert [one.json() for one in placed] == [{"placed": 1}, {"placed": 1}]
            assert (await service.get("/orders/7")).status_code == 429
            late = await service.get("/orders/7", headers={"X-Request-Timeout-Ms": "0"})
            assert late.status_code == 504
            assert (await service.get("/health")).status_code == 404

    asyncio.run(main())
    assert {policy.type for policy in registry if policy.name == "http"} == {"rate_limit", "concurrency_limit"}


def test_anything_else_is_wrapped(serve: Any, hello: Any) -> None:
    service_app = Everkeel(hello).with_protection(rate_limit=rate_limit(1, per=60, key=by_address()))

    async def main() -> None:
        async with serve(service_app, lifespan="on") as service:
            assert [(await service.get()).status_code for _ in range(2)] == [200, 429]

    asyncio.run(main())


def test_a_rejection_that_leaves_a_plain_application_is_a_problem_document(serve: Any) -> None:
    place = bulkhead(1, "place")

    @place
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("there is no place")

    async def main() -> None:
        async with serve(Everkeel(app), lifespan="off") as service:
            with place:
                refused = await service.get()
        assert (refused.status_code, refused.json()["error"]) == (503, "bulkhead_full")

    asyncio.run(main())


def test_metrics_are_served_where_it_is_said_also_while_the_service_refuses(serve: Any) -> None:
    app = _shop()
    everkeel = Everkeel(app).with_protection(rate_limit=1).with_telemetry(prometheus="/metrics")

    async def main() -> None:
        async with serve(app) as service:
            assert [(await service.get("/orders/1")).status_code for _ in range(2)] == [200, 429]
            metrics = await service.get("/metrics")
        assert metrics.status_code == 200
        assert 'everkeel_policy_name="http"' in metrics.text

    asyncio.run(main())
    everkeel.close()


def test_metrics_of_an_application_that_is_mounted_are_below_its_prefix(serve: Any) -> None:
    app = _shop()
    service = Everkeel(app).with_telemetry(logs=False, prometheus="/metrics")

    async def main() -> None:
        async with serve(Starlette(routes=[Mount("/shop", app)])) as running:
            assert (await running.get("/shop/metrics")).text.startswith("# HELP")
            assert (await running.get("/metrics")).status_code == 404

    asyncio.run(main())
    service.close()


def test_rejections_are_logged_until_it_is_closed(serve: Any, caplog: pytest.LogCaptureFixture) -> None:
    app = _shop()
    service = Everkeel(app).with_protection(rate_limit=1).with_telemetry()

    async def main() -> None:
        async with serve(app) as running:
            for _ in range(2):
                await running.get("/orders/1")

    with caplog.at_level(logging.WARNING, "everkeel"):
        asyncio.run(main())
    assert [record for record in caplog.records if record.name == "everkeel.rate_limit"]
    service.close()


def test_configuration_is_loaded_first_and_applies(serve: Any, tmp_path: Path) -> None:
    file = tmp_path / "everkeel.yaml"
    file.write_text("rate_limit:\n  http:\n    permits: 1\n")
    app = _shop()
    Everkeel(app, config=file).with_protection(rate_limit=100)

    async def main() -> None:
        async with serve(app) as service:
            assert [(await service.get("/orders/1")).status_code for _ in range(2)] == [200, 429]

    asyncio.run(main())


def test_the_control_plane_is_outside_of_the_protection(serve: Any) -> None:
    app = _shop()
    Everkeel(app).with_control_plane(tokens=[]).with_protection(rate_limit=1)

    async def main() -> None:
        async with serve(app) as service:
            for _ in range(3):
                assert (await service.get("/everkeel/liveness")).status_code == 200
            assert [(await service.get("/orders/1")).status_code for _ in range(2)] == [200, 429]

    asyncio.run(main())


def test_backpressure_is_told_once_though_two_layers_measure_it(serve: Any) -> None:
    app = _shop()
    limit = rate_limit(100, per=60, key=by_address(), backpressure=True, min_latency=0.000001)  # hard-pressed at once
    Everkeel(app).with_protection(rate_limit=limit)

    async def main() -> None:
        async with serve(app) as service:
            answer = await service.get("/orders/7")
        assert answer.headers.get_list("x-backpressure") == ["1"]

    asyncio.run(main())


def test_the_event_loop_is_never_blocked(serve: Any) -> None:
    """blockbuster turns any blocking call on the event loop into an error, in server and middlewares alike."""
    app = _shop()
    store = MemoryIdempotencyStore()
    Everkeel(app).with_protection(rate_limit=20, idempotency=store, deadline=30.0, trusted_proxies=["127.0.0.1"])

    async def main() -> None:
        async with serve(app) as service:
            with blockbuster_ctx():
                answers = await asyncio.gather(
                    *(service.get("/orders/1", headers={"X-Forwarded-For": "203.0.113.9"}) for _ in range(25)),
                    *(service.post("/orders", headers={"Idempotency-Key": f'"{n}"'}) for n in range(5)),
                    service.get("/sync"),
                    service.get("/orders/1", headers={"X-Request-Timeout-Ms": "0"}),
                )
        assert sorted({one.status_code for one in answers}) == [200, 429, 504]

    asyncio.run(main())


def test_it_is_there_at_the_top_and_loaded_when_used() -> None:
    assert everkeel.Everkeel is Everkeel


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"rate_limit": rate_limit(1), "key": by_address()}, "key must be set on the rate_limit itself"),
        ({"routes": {"/x": None}}, "routes must not be set without rate_limit"),
        ({"rate_limit": 0}, "permits must be at least 1"),
        ({"trusted_proxies": ["*"]}, "must be addresses or networks"),
        ({"deadline": -1.0}, "default must be more than 0"),
    ],
)
def test_wrong_settings_fail_when_they_are_written(hello: Any, wrong: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Everkeel(hello).with_protection(**wrong)


def test_opentelemetry_is_instrumented_until_it_is_closed(hello: Any) -> None:
    from everkeel.telemetry import EverkeelInstrumentor

    service = Everkeel(hello).with_telemetry(logs=False, opentelemetry=True)
    assert EverkeelInstrumentor().is_instrumented_by_opentelemetry
    service.close()
    assert not EverkeelInstrumentor().is_instrumented_by_opentelemetry


def test_a_control_plane_of_ones_own_takes_no_options(hello: Any) -> None:
    from everkeel.control import ControlPlane

    plane = ControlPlane(tokens=[])
    assert Everkeel(hello).with_control_plane(plane)
    with pytest.raises(ConfigError, match="has a plane, and so takes no tokens"):
        Everkeel(hello).with_control_plane(plane, tokens=[])


def test_a_response_that_has_begun_cannot_become_a_problem() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RejectedError("late", 1.0)

    async def send(message: Any) -> None:
        sent.append(message["status"])

    sent: list[int] = []
    with pytest.raises(RejectedError):
        asyncio.run(ProblemMiddleware(app)({"type": "http", "path": "/", "headers": []}, None, send))  # type: ignore[arg-type]
    assert sent == [200]


def test_a_metrics_path_is_a_path(hello: Any) -> None:
    with pytest.raises(ConfigError, match="must be a path"):
        Everkeel(hello).with_telemetry(prometheus="metrics")
