"""What the HTTP clients make of types. Read by type checkers, never run."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import timedelta
from typing import Any, assert_type

import aiohttp
import httpx
import httpx2
import requests

import everkeel.http.httpx
from everkeel import HTTPStatusError, Retry, RetryBudget
from everkeel.http.adaptive import Adaptive, AdaptiveClient, AsyncAdaptiveClient, adaptive, adaptive_state
from everkeel.http.aiohttp import ResilientMiddleware
from everkeel.http.httpx2 import AsyncResilientTransport, ResilientTransport, request_options
from everkeel.http.requests import ResilientAdapter

# ------------------------------------------------------------------ they go where the libraries take them

transport = ResilientTransport(
    name="payments",
    attempts=5,
    backoff=[0.1, 1],
    max_duration=timedelta(seconds=30),
    attempt_timeout=2.0,
    budget=RetryBudget(ratio=0.1),
    statuses={429, 503},
    retry_if=lambda request, outcome: None,
    circuit_breaker={"failure_rate": 0.3},
    hedge=True,
    idempotency_keys=lambda: "key",
)
httpx2.Client(transport=transport)
httpx2.AsyncClient(transport=AsyncResilientTransport(httpx2.AsyncHTTPTransport(), on_status="raise"))
httpx.Client(transport=everkeel.http.httpx.ResilientTransport())
httpx.AsyncClient(transport=everkeel.http.httpx.AsyncResilientTransport())
requests.Session().mount("https://", ResilientAdapter())
assert_type(transport.retry, Retry)


async def session() -> None:
    aiohttp.ClientSession(middlewares=[ResilientMiddleware(buffer=True)])


with request_options(attempts=1, priority="low", idempotent=True):
    pass

# ------------------------------------------------------------------ what is wrong is seen

ResilientTransport(tries=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
ResilientTransport(attempts="3")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
ResilientTransport(on_status="ignore")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
AdaptiveClient(strategy="wait")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]

# ------------------------------------------------------------------ @adaptive: the type stays


@adaptive
def fetch(url: str, *, page: int = 1) -> httpx2.Response:
    return httpx2.Response(200)


@adaptive(strategy="reject", max_retries=2)
async def count(url: str) -> int:
    return 1


class Orders(AdaptiveClient):
    @adaptive
    def place(self, item: str) -> str:
        return item


class AsyncOrders(AsyncAdaptiveClient):
    async def place(self, item: str) -> None:
        await self.send_request("POST", "/orders", item=item)


assert_type(fetch("/", page=2), httpx2.Response)
counting: Callable[[str], Coroutine[Any, Any, int]] = count
assert_type(Orders("https://example.com").place("book"), str)
assert_type(Orders().remaining_tokens, int | None)
assert_type(adaptive_state(fetch), Adaptive)


def told(error: HTTPStatusError) -> None:
    assert_type(error.status, int)
    assert_type(error.retry_after, float | None)
