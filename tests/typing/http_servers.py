"""How HTTP servers are set up, as type checkers see it. Read by type checkers, never run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import assert_type

from everkeel import Everkeel, concurrency_limit, rate_limit, rate_limit_chain
from everkeel.http import (
    Admission,
    ConcurrencyLimitMiddleware,
    DeadlineMiddleware,
    IdempotencyMiddleware,
    Problem,
    RateLimitMiddleware,
    by_address,
    by_api_key,
    by_route,
    by_user,
    problem_of,
)
from everkeel.http.fastapi import guarded_by, limited_by
from everkeel.http.server.asgi import Receive, Scope, Send
from everkeel.idempotency import MemoryIdempotencyStore


async def app(scope: Scope, receive: Receive, send: Send) -> None: ...


async def told(admission: Admission) -> None:
    assert_type(admission.allowed, bool)


assert_type(Everkeel(app).with_protection(rate_limit=100).with_telemetry().with_control_plane(), Everkeel)
assert_type(by_address()({}), str)
assert_type(problem_of(KeyError()), Problem | None)

each = rate_limit(10, "each", key=by_api_key(known={"a"}, otherwise=by_address(trusted=["10.0.0.0/8"])))
RateLimitMiddleware(app, rate_limit_chain(rate_limit(100, "all"), each), on_rejected=told, on_passed=told)
RateLimitMiddleware(app, 5, key=by_route(by_user()), cost=lambda scope: 2, routes={"/free": None}, exclude=["/health"])
ConcurrencyLimitMiddleware(app, concurrency_limit(), trust_priority=lambda scope: scope["path"] == "/")
IdempotencyMiddleware(DeadlineMiddleware(app, default=30), MemoryIdempotencyStore(), required=lambda scope: True)
assert_type(limited_by(each), Callable[..., Awaitable[None]])
guarded_by(concurrency_limit())

RateLimitMiddleware(app, "100")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Everkeel(app).with_protection(limit=100)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
