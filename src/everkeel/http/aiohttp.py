"""A middleware for aiohttp clients that retries, waits and gives up as it should.

    import aiohttp
    from everkeel.http.aiohttp import ResilientMiddleware

    session = aiohttp.ClientSession(middlewares=[ResilientMiddleware(name="payments")])

Everything that `ClientSettings` lists may be set; `request_options` changes it for the requests in a block.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Unpack

from everkeel.http.client.config import ClientSettings, RequestSettings, configure, request_options
from everkeel.http.client.engine import Engine
from everkeel.http.client.policies import HasPolicies
from everkeel.runtime.clock import Clock
from everkeel.telemetry.extras import missing

try:
    import aiohttp
except ImportError:  # pragma: no cover - in environments without it
    raise missing("everkeel.http.aiohttp", "aiohttp", "aiohttp") from None

from everkeel.http.client.aiohttp_dialect import AiohttpDialect

__all__ = ["ClientSettings", "RequestSettings", "ResilientMiddleware", "request_options"]

_GAVE_UP: ContextVar[tuple[tuple[object, ...], Exception] | None] = ContextVar("everkeel.http.gave_up", default=None)
"""The request that failed last in this task, and how. See `ResilientMiddleware.__call__`."""


class ResilientMiddleware(HasPolicies):
    """A client middleware; put it first, so that what the others do is done for every attempt.

    When attempts run out on a status, the last response is returned, as without it. The session's own `total` timeout
    is over all attempts together.

    >>> import aiohttp
    >>> from everkeel.http.aiohttp import ResilientMiddleware
    >>> async def main() -> None:
    ...     async with aiohttp.ClientSession(middlewares=[ResilientMiddleware(attempt_timeout=5)]) as session:
    ...         ...
    """

    def __init__(
        self,
        *,
        name: str | None = None,
        clock: Clock | None = None,
        replace: bool = False,
        **settings: Unpack[ClientSettings],
    ) -> None:
        config, dialect = configure(name, settings), AiohttpDialect()
        self._engine = Engine(name, config, dialect, is_async=True, clock=clock, replace=replace)

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Send one request, as often as it takes."""
        # A session makes a request once more by itself when a connection is lost, middlewares and all. Our attempts are
        # all there are: the second time we say what we said the first. A session's call is known by its timer.
        which = getattr(request, "_timer", request), request.method, request.url
        before = _GAVE_UP.get()
        if before is not None:
            _GAVE_UP.set(None)
            if before[0] == which:
                raise before[1]
        try:
            response: aiohttp.ClientResponse = await self._engine.asend(request, handler)
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
            _GAVE_UP.set((which, error))
            raise
        return response
