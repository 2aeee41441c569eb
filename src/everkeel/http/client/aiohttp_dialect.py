"""aiohttp, whose client middlewares see requests before they are sent."""

from __future__ import annotations

from copy import copy
from typing import Any

import aiohttp
from aiohttp.payload import BytesPayload

from everkeel.errors import TimeoutExceededError
from everkeel.http.client.dialect import PATIENCE, Dialect, Origin, untrusted
from everkeel.http.headers import Lookup
from everkeel.runtime.expiry import call_within

_TRANSIENT = (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError, ConnectionError)


class AiohttpDialect(Dialect):
    """Client requests and their responses."""

    def method(self, request: Any) -> str:
        return str(request.method).upper()

    def url(self, request: Any) -> str:
        url = request.url
        return f"{url.scheme}://{url.host_port_subcomponent}{url.path}"

    def origin(self, request: Any) -> Origin:
        url = request.url
        return url.scheme, url.host or "", url.port

    def replayable(self, request: Any) -> bool:
        # An iterator says that it is consumed as soon as it has been read from: when its attempt has failed.
        return self.in_memory(request) or not getattr(request.body, "consumed", True)

    def in_memory(self, request: Any) -> bool:
        return isinstance(request.body, bytes | BytesPayload)

    def again(self, request: Any, headers: dict[str, str], seconds: float | None) -> Any:
        again = copy(request)
        again.headers = request.headers.copy()
        again.headers.update(headers)
        return again

    def status(self, response: Any) -> int:
        return int(response.status)

    def lookup(self, response: Any) -> Lookup:
        # A field may come in several lines; the other libraries join them by themselves.
        return lambda name: ", ".join(response.headers.getall(name, ())) or None

    def transient(self, error: BaseException) -> bool:
        return isinstance(error, _TRANSIENT) and not untrusted(error)

    async def aclose(self, response: Any, *, keep: bool = False) -> None:
        try:
            if self.is_small(response):
                await call_within(self.clock, PATIENCE, _too_slow, response.read, (), {})
        except (TimeoutExceededError, aiohttp.ClientError, OSError):
            pass  # the rest of a response that nobody wants
        finally:
            if not response.content.at_eof():  # where it is, the connection is back already, and `read()` still answers
                response.close()

    async def abuffer(self, response: Any) -> None:
        await response.read()


def _too_slow() -> TimeoutExceededError:
    return TimeoutExceededError(None, PATIENCE)
