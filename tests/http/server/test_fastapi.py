"""FastAPI: decorated endpoints keep what FastAPI reads, and rejections are answered as they should be."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest
import websockets
from fastapi import APIRouter, Depends, FastAPI, Header, HTTPException, Query, WebSocket
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

from everkeel import (
    CircuitOpenError,
    RateLimitedError,
    adaptive_throttle,
    bulkhead,
    cache,
    chaos,
    circuit_breaker,
    concurrency_limit,
    fail_fast,
    fallback,
    feature_toggle,
    guard,
    hedge,
    pipeline,
    rate_limit,
    retry,
    timeout,
)
from everkeel.http import add_handlers, by_address, by_route
from everkeel.http.fastapi import guarded_by, limited_by
from everkeel.http.server.keys import template_of

POLICIES = {
    "rate_limit": lambda: rate_limit(100),
    "retry": lambda: retry(attempts=2),
    "circuit_breaker": lambda: circuit_breaker(),
    "timeout": lambda: timeout(5.0),
    "bulkhead": lambda: bulkhead(5),
    "concurrency_limit": lambda: concurrency_limit(),
    "fallback": lambda: fallback(lambda *args, **kwargs: {}),
    "hedge": lambda: hedge(delay=5.0),
    "cache": lambda: cache(ttl=60),
    "fail_fast": lambda: fail_fast(),
    "feature_toggle": lambda: feature_toggle("here"),
    "adaptive_throttle": lambda: adaptive_throttle(),
    "chaos": lambda: chaos(error=ValueError),
    "pipeline": lambda: pipeline(retry(), timeout(5.0)),
    "guard": lambda: guard(retry=2, timeout=5.0, bulkhead=5),
}


class Order(BaseModel):
    item: str
    count: int = 1


def _awaited() -> Any:
    async def place(
        order_id: int,
        order: Order,
        dry: Annotated[bool, Query(description="only look")] = False,
        x_tenant: Annotated[str | None, Header()] = None,
    ) -> dict[str, Any]:
        """Place an order."""
        return {"id": order_id, "item": order.item, "count": order.count, "dry": dry, "tenant": x_tenant}

    return place


def _plain() -> Any:
    def place(
        order_id: int,
        order: Order,
        dry: Annotated[bool, Query(description="only look")] = False,
        x_tenant: Annotated[str | None, Header()] = None,
    ) -> dict[str, Any]:
        """Place an order."""
        return {"id": order_id, "item": order.item, "count": order.count, "dry": dry, "tenant": x_tenant}

    return place


def _app(endpoint: Any) -> FastAPI:
    app = FastAPI()
    app.post("/orders/{order_id}")(endpoint)
    return app


# a hedge races attempts, which for a sync function takes threads of its own: not for endpoints
@pytest.mark.parametrize("name", [name for name in POLICIES if name != "hedge"])
def test_a_decorated_sync_endpoint_is_described_as_the_bare_one(name: str) -> None:
    assert _app(POLICIES[name]()(_plain())).openapi() == _app(_plain()).openapi()


@pytest.mark.parametrize("name", POLICIES)
def test_a_decorated_endpoint_is_described_and_called_as_the_bare_one(serve: Any, name: str) -> None:
    decorated = _app(POLICIES[name]()(_awaited()))
    assert decorated.openapi() == _app(_awaited()).openapi()
    if name == "cache":
        return  # a pydantic model is no key: caches on endpoints take `key=`

    async def main() -> None:
        async with serve(decorated) as service:
            url = "/orders/7?dry=true"
            answer = await service.post(url, json={"item": "anchor", "count": 2}, headers={"X-Tenant": "sea"})
            wrong = await service.post("/orders/seven", json={"item": "anchor"})
        assert answer.json() == {"id": 7, "item": "anchor", "count": 2, "dry": True, "tenant": "sea"}
        assert wrong.status_code == 422

    asyncio.run(main())


def test_every_rejection_has_its_status_and_says_when_to_come_back(serve: Any) -> None:
    app = FastAPI()
    add_handlers(app)
    limit = rate_limit(1, "orders", per=60)
    full, shedding = bulkhead(1, "places"), concurrency_limit("machine", initial=1, ceiling=1)

    @app.get("/limited")
    @limit
    async def limited() -> str:
        return "passed"

    @app.get("/remote")
    async def remote() -> str:
        raise RateLimitedError("supplier", 7.0, 10, 0, None, None, "remote")

    @app.get("/open")
    async def opened() -> str:
        raise CircuitOpenError("payments", 3.2, 0.52, 100)

    @app.get("/full")
    @full
    async def crowded() -> str:
        raise AssertionError("there is no place")

    @app.get("/shed")
    @shedding
    async def shed() -> str:
        raise AssertionError("there is no place")

    @app.get("/slow")
    @timeout(0.01, "quote")
    async def slow() -> str:
        await asyncio.sleep(30)
        return "too late"

    @app.get("/poll")
    @retry("poll", attempts=2, backoff=0, on_result=lambda answer: True)
    async def poll() -> str:
        return "pending"

    @app.get("/own")
    @retry(attempts=2, backoff=0)
    async def own() -> str:
        raise HTTPException(418, "the application's own")

    async def main() -> dict[str, Any]:
        async with serve(app) as service:
            await service.get("/limited")
            with full, shedding:
                paths = ("/limited", "/remote", "/open", "/full", "/shed", "/slow", "/poll", "/own")
                return {path: await service.get(path) for path in paths}

    answers = asyncio.run(main())
    documents = {path: answer.json() for path, answer in answers.items()}
    assert {path: (answer.status_code, documents[path].get("error")) for path, answer in answers.items()} == {
        "/limited": (429, "rate_limited"),
        "/remote": (503, "upstream_rate_limited"),
        "/open": (503, "circuit_open"),
        "/full": (503, "bulkhead_full"),
        "/shed": (503, "shed"),
        "/slow": (504, "timeout"),
        "/poll": (503, "retry_exhausted"),
        "/own": (418, None),
    }
    assert answers["/limited"].headers["retry-after"] == "60"
    assert answers["/limited"].headers["ratelimit"] == '"orders";r=0;t=60'
    assert answers["/limited"].headers["ratelimit-policy"] == '"orders";q=1'
    assert answers["/open"].headers["retry-after"] == "4"
    assert answers["/open"].headers["x-ratelimit-retry-after-ms"] == "3200"
    assert documents["/open"]["violated-policies"] == ["payments"]
    assert "52%" not in answers["/open"].text  # how we are doing inside is nobody's business outside
    assert answers["/remote"].headers["retry-after"] == "7"
    for path in ("/limited", "/open", "/slow"):
        assert answers[path].headers["content-type"] == "application/problem+json"
        assert documents[path]["title"]
        assert documents[path]["status"] == answers[path].status_code


def test_a_limit_as_a_dependency(serve: Any) -> None:
    app = FastAPI()
    add_handlers(app)
    search = rate_limit(1, "search", per=60, key=by_address())

    @app.get("/search", dependencies=[Depends(limited_by(search, older_headers=True))])
    async def find(q: str = "") -> dict[str, str]:
        return {"q": q}

    @app.websocket("/feed")
    async def feed(socket: WebSocket, limited: None = Depends(limited_by(search))) -> None:
        await socket.accept()

    async def main() -> None:
        async with serve(app) as service:
            passed, refused = await service.get("/search?q=x"), await service.get("/search?q=x")
            assert (passed.status_code, refused.status_code) == (200, 429)
            assert passed.headers["ratelimit"] == '"search";r=0;t=60'
            assert passed.headers["ratelimit-remaining"] == "0"
            with pytest.raises(websockets.InvalidStatus) as denied:
                await websockets.connect(f"ws://127.0.0.1:{service.port}/feed")
            assert denied.value.response.status_code == 429
            assert denied.value.response.headers["Retry-After"] == "60"

    asyncio.run(main())


def test_a_rejection_on_an_open_websocket_closes_it(serve: Any) -> None:
    app = FastAPI()
    add_handlers(app)

    @app.websocket("/feed")
    async def feed(socket: WebSocket) -> None:
        await socket.accept()
        raise CircuitOpenError("payments", 3.2, 0.52, 100)

    async def main() -> None:
        async with serve(app) as service, websockets.connect(f"ws://127.0.0.1:{service.port}/feed") as socket:
            with pytest.raises(websockets.ConnectionClosed):
                await socket.recv()
            assert socket.close_code == 1013

    asyncio.run(main())


def test_any_block_as_a_dependency_gives_its_place_back(serve: Any) -> None:
    app = FastAPI()
    add_handlers(app)
    place = bulkhead(1)

    @app.get("/{how}", dependencies=[Depends(guarded_by(place))])
    async def work(how: str) -> int:
        if how == "fail":
            raise HTTPException(400)
        return place.snapshot()["running"]

    async def main() -> None:
        async with serve(app) as service:
            assert (await service.get("/well")).json() == 1
            assert (await service.get("/fail")).status_code == 400
            with place:
                assert (await service.get("/well")).json()["error"] == "bulkhead_full"
        assert place.snapshot()["running"] == 0

    asyncio.run(main())
    with pytest.raises(TypeError, match="cannot be a block"):
        guarded_by(retry())


def test_the_route_template_is_found_among_the_routes_of_the_framework() -> None:
    async def page(request: Any) -> Any:
        return PlainTextResponse("")

    inner = [Route("/lines/{line}", page)]
    starlette = Starlette(routes=[Route("/orders/{id:int}", page), Mount("/orders/{id:int}", routes=inner)])
    fast = FastAPI()
    fast.post("/carts/{cart}")(lambda cart: cart)
    lines, orders = APIRouter(prefix="/lines"), APIRouter(prefix="/orders")
    lines.get("/{line}")(lambda line: line)
    orders.get("/{order}")(lambda order: order)
    orders.include_router(lines)
    fast.include_router(orders, prefix="/v1")

    def found(app: Any, path: str, method: str = "GET") -> str:
        return template_of({"type": "http", "method": method, "path": path, "root_path": "", "headers": [], "app": app})

    assert found(starlette, "/orders/7") == "/orders/{id:int}"
    assert found(starlette, "/orders/8/lines/9").startswith("/orders/{id:int}")
    assert found(starlette, "/orders/x") == "elsewhere"
    assert found(fast, "/carts/3", "POST") == "/carts/{cart}"
    assert found(fast, "/v1/orders/7") == "/v1/orders/{order}"
    assert found(fast, "/v1/orders/lines/7") == "/v1/orders/lines/{line}"
    assert found(fast, "/v1/orders/7/8/9") == "elsewhere"
    assert found(fast, "/nowhere") == "elsewhere"
    assert template_of({"path_template": "/carts/{cart:int}"}) == "/carts/{cart:int}"  # as Litestar has it


def test_a_limit_for_each_route_of_a_fastapi_application(serve: Any) -> None:
    from everkeel.http import RateLimitMiddleware

    app = FastAPI()
    app.add_middleware(RateLimitMiddleware, limit=1, key=by_route(by_address()))

    @app.get("/a/{n}")
    async def first(n: int) -> int:
        return n

    @app.get("/b/{n}")
    async def second(n: int) -> int:
        return n

    async def main() -> None:
        async with serve(app) as service:
            paths = ("/a/1", "/a/2", "/b/1", "/b/2", "/x", "/y")
            assert [(await service.get(path)).status_code for path in paths] == [200, 429, 200, 429, 404, 429]

    asyncio.run(main())
