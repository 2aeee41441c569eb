"""One FastAPI application behind different rate limiters: what `servers` serves. No limit is ever reached."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI, Request

PLENTY = 1_000_000_000  # per minute
PLENTY_LOGGED = 1_000_000  # for limiters that remember every request

APPS: dict[str, tuple[str, str, str, Callable[[], FastAPI]]] = {}
"""Name to kind (bare, peer, ours), form (middleware, endpoint), distribution and factory."""


def app(name: str, kind: str, form: str, dist: str) -> Callable[[Callable[[], FastAPI]], Callable[[], FastAPI]]:
    def add(factory: Callable[[], FastAPI]) -> Callable[[], FastAPI]:
        APPS[name] = (kind, form, dist, factory)
        return factory

    return add


def chosen() -> FastAPI:
    """The application that the environment names: a factory for uvicorn."""
    return APPS[os.environ["EVERKEEL_BENCH_APP"]][3]()


async def item(number: int) -> dict[str, int]:
    return {"number": number}


@app("bare", "bare", "", "fastapi")
def bare() -> FastAPI:
    made = FastAPI()
    made.get("/items/{number}")(item)
    return made


@app("everkeel RateLimitMiddleware", "ours", "middleware", "everkeel")
def ours() -> FastAPI:
    from everkeel.http import RateLimitMiddleware

    made = bare()
    made.add_middleware(RateLimitMiddleware, limit=PLENTY, per=60)  # by address; tells how the caller stands
    return made


@app("everkeel with_protection (also concurrency, deadline)", "ours", "everything", "everkeel")
def everything() -> FastAPI:
    from everkeel.http import Everkeel

    made = bare()
    Everkeel(made).with_protection(rate_limit=PLENTY, deadline=30.0)
    return made


@app("everkeel @rate_limit", "ours", "endpoint", "everkeel")
def decorated() -> FastAPI:
    from everkeel import rate_limit

    limit = rate_limit(PLENTY, per=60, key=lambda request, number: request.client.host)
    made = FastAPI()

    @made.get("/items/{number}")
    @limit
    async def limited(request: Request, number: int) -> dict[str, int]:
        return {"number": number}

    return made


def _slowapi(middleware: str) -> FastAPI:
    import slowapi.middleware
    from slowapi import Limiter
    from slowapi.util import get_remote_address

    made = bare()
    made.state.limiter = Limiter(key_func=get_remote_address, default_limits=[f"{PLENTY}/minute"], headers_enabled=True)
    made.add_middleware(getattr(slowapi.middleware, middleware))
    return made


@app("slowapi SlowAPIMiddleware", "peer", "middleware", "slowapi")
def slowapi_middleware() -> FastAPI:
    return _slowapi("SlowAPIMiddleware")


@app("slowapi SlowAPIASGIMiddleware", "peer", "middleware", "slowapi")
def slowapi_asgi() -> FastAPI:
    return _slowapi("SlowAPIASGIMiddleware")


@app("slowapi @limiter.limit, no headers", "peer", "endpoint", "slowapi")
def slowapi_decorated() -> FastAPI:
    from slowapi import Limiter
    from slowapi.util import get_remote_address

    made = FastAPI()
    limiter = made.state.limiter = Limiter(key_func=get_remote_address)

    @made.get("/items/{number}")
    @limiter.limit(f"{PLENTY}/minute")
    async def limited(request: Request, number: int) -> dict[str, int]:
        return {"number": number}

    return made


@app("fastapi-limiter in memory, one limit for all, no headers", "peer", "in memory", "fastapi-limiter")
def fastapi_limiter_memory() -> FastAPI:
    from fastapi_limiter.depends import RateLimiter
    from pyrate_limiter import Duration, Limiter, Rate

    made = FastAPI()
    limited = RateLimiter(limiter=Limiter(Rate(PLENTY_LOGGED, Duration.MINUTE)))
    made.get("/items/{number}", dependencies=[Depends(limited)])(item)
    return made


@app("fastapi-limiter on Redis, no headers", "peer", "redis", "fastapi-limiter")
def fastapi_limiter_redis() -> FastAPI:
    from fastapi_limiter.depends import RateLimiter
    from pyrate_limiter import Duration, Limiter, Rate, RedisBucket
    from redis.asyncio import Redis

    limits: dict[str, Any] = {}  # made when the server starts: its bucket needs a running loop

    async def limited(request: Request) -> None:
        await limits["one"](request, None)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        redis = Redis(port=int(os.environ["EVERKEEL_BENCH_REDIS"]))
        bucket = await RedisBucket.init([Rate(PLENTY_LOGGED, Duration.MINUTE)], redis, "everkeel-bench")
        limits["one"] = RateLimiter(limiter=Limiter(bucket))
        yield
        await redis.aclose()

    made = FastAPI(lifespan=lifespan)
    made.get("/items/{number}", dependencies=[Depends(limited)])(item)
    return made
