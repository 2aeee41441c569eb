"""Real uvicorn on loopback, and applications that speak plain ASGI."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, MutableMapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import httpx2
import pytest
import uvicorn

from everkeel.testing import fresh_everkeel

Scope = MutableMapping[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]
Serve = Callable[..., AbstractAsyncContextManager["Service"]]


@pytest.fixture(autouse=True)
def _no_policies_left_over() -> Iterator[None]:
    with fresh_everkeel():
        yield


class Service:
    """A server that runs, and a client for it."""

    def __init__(self, port: int, client: httpx2.AsyncClient) -> None:
        self.port, self.client = port, client

    async def get(self, path: str = "/", **options: Any) -> httpx2.Response:
        return await self.client.get(path, **options)

    async def post(self, path: str = "/", **options: Any) -> httpx2.Response:
        return await self.client.post(path, **options)

    async def connection(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A bare connection, for callers that hang up."""
        return await asyncio.open_connection("127.0.0.1", self.port)


@asynccontextmanager
async def serving(app: Any, **options: Any) -> AsyncIterator[Service]:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    settings = {"proxy_headers": False, "log_config": None, "timeout_graceful_shutdown": 2, **options}
    server = uvicorn.Server(uvicorn.Config(app, **settings))
    running = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started:
        assert not running.done(), "the server did not start"
        await asyncio.sleep(0.005)
    try:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=10.0) as client:
            yield Service(port, client)
    finally:
        server.should_exit = True
        await running
        listener.close()


@pytest.fixture
def serve() -> Serve:
    """`async with serve(app) as service: await service.get("/")`."""
    return serving


@pytest.fixture
def hello() -> App:
    """Answers every request with what it was asked for; accepts a WebSocket and echoes."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await send({"type": "lifespan.shutdown.complete"})
            return
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.accept"})
            while (message := await receive())["type"] == "websocket.receive":
                await send({"type": "websocket.send", "text": message["text"]})
            return
        body = json.dumps({"path": scope["path"]}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    return app


@pytest.fixture
def until() -> Callable[..., Awaitable[None]]:
    """Wait for something that happens in the server, in its own time; the test's own timeout ends it."""

    async def wait(condition: Callable[[], object]) -> None:
        while not condition():  # noqa: ASYNC110 - what is waited for knows of no event
            await asyncio.sleep(0.005)

    return wait
