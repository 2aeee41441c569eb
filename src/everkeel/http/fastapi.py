"""For FastAPI and Starlette: rejections become problem documents, and policies can be dependencies.

The policies' decorators need nothing from here: `@app.get("/orders")` over `@rate_limit(...)` sees the signature of the
function that was written.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from everkeel.http.server.handlers import add_handlers
from everkeel.http.server.rate_limits import AnyLimit, Turnstile
from everkeel.runtime.policy import Policy
from everkeel.telemetry.extras import missing

try:
    from starlette.requests import HTTPConnection
    from starlette.responses import Response
except ImportError as error:  # pragma: no cover - the tests have it
    raise missing("everkeel.http.fastapi", "fastapi", "fastapi") from error

__all__ = ["add_handlers", "guarded_by", "limited_by"]


def limited_by(limit: AnyLimit, *, older_headers: bool = False) -> Callable[..., Awaitable[None]]:
    """A dependency that lets a request in if the limit does: `dependencies=[Depends(limited_by(limit))]`.

    The limit's `key`, `cost` and `exclude` are functions of the ASGI scope, as in `RateLimitMiddleware`. The response
    says how the caller stands, unless the endpoint makes a `Response` of its own. Without `add_handlers(app)` a
    rejection is an error 500.

    >>> from everkeel import rate_limit
    >>> from everkeel.http import by_address
    >>> searching = limited_by(rate_limit(5, "search", per=60, key=by_address()))
    """
    turnstile = Turnstile(limit)

    async def limited(connection: HTTPConnection, response: Response) -> None:
        shares = await turnstile.pass_through(connection.scope)
        if shares:
            for name, value in turnstile.headers(shares, older=older_headers):
                response.headers[name.decode()] = value.decode()

    return limited


def guarded_by(policy: Policy[Any]) -> Callable[..., AsyncIterator[None]]:
    """A dependency that holds a policy around the endpoint: a bulkhead's place, a breaker's verdict, a timeout.

    For every policy that can be a block. The others (retry, fallback, hedge, cache) must be able to call the function
    again, or not at all: decorate it.

    >>> from everkeel import bulkhead
    >>> reporting = guarded_by(bulkhead(limit=4))
    """
    policy.entry()  # a policy that cannot be a block says so now

    async def guarded() -> AsyncIterator[None]:
        async with policy.entry():
            yield

    return guarded
