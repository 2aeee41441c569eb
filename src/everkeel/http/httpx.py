"""Transports for httpx clients that retry, wait and give up as they should.

    import httpx
    from everkeel.http.httpx import ResilientTransport

    client = httpx.Client(transport=ResilientTransport(name="payments"))

Everything that `ClientSettings` lists may be set; a request has settings of its own in its extensions:
`client.get(url, extensions={"everkeel": {"attempts": 1}})`.
"""

from __future__ import annotations

from typing import Unpack

from everkeel.http.client.config import ClientSettings, RequestSettings, configure, request_options
from everkeel.http.client.engine import Engine
from everkeel.http.client.httpx_family import HttpxDialect
from everkeel.http.client.policies import HasPolicies
from everkeel.runtime.clock import Clock
from everkeel.telemetry.extras import missing

try:
    import httpx
except ImportError:  # pragma: no cover - in environments without it
    raise missing("everkeel.http.httpx", "httpx", "httpx") from None

__all__ = ["AsyncResilientTransport", "ClientSettings", "RequestSettings", "ResilientTransport", "request_options"]


class ResilientTransport(HasPolicies, httpx.BaseTransport):
    """A transport around another one, `httpx.HTTPTransport()` by default, for `httpx.Client`.

    When attempts run out on a status, the last response is returned, as without it.

    >>> import httpx
    >>> from everkeel.http.httpx import ResilientTransport
    >>> unwell = httpx.MockTransport(lambda request: httpx.Response(503))
    >>> with httpx.Client(transport=ResilientTransport(unwell, backoff=0)) as client:
    ...     client.get("https://example.com").status_code
    503
    """

    def __init__(
        self,
        transport: httpx.BaseTransport | None = None,
        *,
        name: str | None = None,
        clock: Clock | None = None,
        replace: bool = False,
        **settings: Unpack[ClientSettings],
    ) -> None:
        self._transport = httpx.HTTPTransport() if transport is None else transport
        config, dialect = configure(name, settings), HttpxDialect(httpx)
        self._engine = Engine(name, config, dialect, is_async=False, clock=clock, replace=replace)

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request, as often as it takes."""
        response: httpx.Response = self._engine.send(request, self._transport.handle_request)
        return response

    def close(self) -> None:
        """Close the transport inside."""
        self._transport.close()


class AsyncResilientTransport(HasPolicies, httpx.AsyncBaseTransport):
    """The same for `httpx.AsyncClient`, around `httpx.AsyncHTTPTransport()` by default."""

    def __init__(
        self,
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        name: str | None = None,
        clock: Clock | None = None,
        replace: bool = False,
        **settings: Unpack[ClientSettings],
    ) -> None:
        self._transport = httpx.AsyncHTTPTransport() if transport is None else transport
        config, dialect = configure(name, settings), HttpxDialect(httpx)
        self._engine = Engine(name, config, dialect, is_async=True, clock=clock, replace=replace)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request, as often as it takes."""
        response: httpx.Response = await self._engine.asend(request, self._transport.handle_async_request)
        return response

    async def aclose(self) -> None:
        """Close the transport inside."""
        await self._transport.aclose()
