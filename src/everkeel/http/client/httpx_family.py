"""httpx and its continuation httpx2, which differ in their module alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from everkeel.errors import TimeoutExceededError
from everkeel.http.client.dialect import PATIENCE, PORTS, SMALL, Dialect, Origin, untrusted
from everkeel.runtime.expiry import call_within

EXTENSION = "everkeel"
"""Where a request has settings of its own: `client.get(url, extensions={"everkeel": {"attempts": 1}})`."""


class HttpxDialect(Dialect):
    """One of the two, given as its module."""

    def __init__(self, module: Any) -> None:
        self._httpx = module
        self._transient = (
            module.NetworkError,
            module.RemoteProtocolError,
            module.ProxyError,
            module.ConnectTimeout,
            module.ReadTimeout,
            module.WriteTimeout,
        )

    # ------------------------------------------------------------------ requests

    def method(self, request: Any) -> str:
        return str(request.method).upper()

    def url(self, request: Any) -> str:
        url = request.url
        port = "" if url.port is None else f":{url.port}"
        return f"{url.scheme}://{url.host}{port}{url.path}"

    def origin(self, request: Any) -> Origin:
        url = request.url
        return url.scheme, url.host, url.port or PORTS.get(url.scheme)

    def options(self, request: Any) -> object:
        return request.extensions.get(EXTENSION)

    def replayable(self, request: Any) -> bool:
        stream = request.stream
        if isinstance(stream, self._httpx.ByteStream):
            return True
        # A form with files can be sent again if each of its files can be read again. Anything else is an iterator.
        fields = getattr(stream, "fields", None)
        return isinstance(fields, list) and all(_seekable(getattr(field, "file", b"")) for field in fields)

    def in_memory(self, request: Any) -> bool:
        return isinstance(request.stream, self._httpx.ByteStream)

    def again(self, request: Any, headers: dict[str, str], seconds: float | None) -> Any:
        extensions = request.extensions
        if seconds is not None:
            waits = extensions.get("timeout") or dict.fromkeys(("connect", "read", "write", "pool"))
            bounded = {name: seconds if wait is None else min(wait, seconds) for name, wait in waits.items()}
            extensions = {**extensions, "timeout": bounded}
        copy = self._httpx.Request(
            request.method, request.url, headers=request.headers, stream=request.stream, extensions=extensions
        )
        copy.headers.update(headers)
        if isinstance(request.stream, self._httpx.ByteStream):
            copy.read()  # as it is for the original: transports for tests look at the content
        return copy

    # ------------------------------------------------------------------ outcomes

    def names(self, response: Any) -> Iterable[str]:
        # Iterating over the headers themselves builds a dict of decoded values first.
        return [name.decode("latin-1") for name, _ in response.headers.raw]

    def transient(self, error: BaseException) -> bool:
        return isinstance(error, self._transient) and not untrusted(error)

    def timed_out(self, error: BaseException) -> bool:
        return isinstance(error, self._httpx.TimeoutException | TimeoutError)

    # ------------------------------------------------------------------ giving back

    def close(self, response: Any, *, keep: bool = False) -> None:
        stream, body = response.stream, None
        try:
            if self.is_small(response):
                body = self._read_quickly(stream)
        except (self._httpx.HTTPError, self._httpx.StreamError):
            pass  # the rest of a response that nobody wants
        finally:
            stream.close()
        if keep and body is not None:
            response.stream = self._httpx.ByteStream(body)
            response.read()
        else:
            response.close()

    def _read_quickly(self, stream: Any) -> bytes | None:
        body, until = bytearray(), self.clock.monotonic() + PATIENCE
        for chunk in stream:
            body += chunk
            if len(body) > SMALL or self.clock.monotonic() > until:
                return None
        return bytes(body)

    async def aclose(self, response: Any, *, keep: bool = False) -> None:
        stream, body = response.stream, None
        try:
            if self.is_small(response):
                body = await call_within(self.clock, PATIENCE, _too_slow, _aread, (stream,), {})
        except (TimeoutExceededError, self._httpx.HTTPError, self._httpx.StreamError):
            pass
        finally:
            await stream.aclose()
        if keep and body is not None:
            response.stream = self._httpx.ByteStream(body)
            await response.aread()
        else:
            await response.aclose()

    def buffer(self, response: Any) -> None:
        stream = response.stream
        try:
            body = b"".join(stream)
        finally:
            stream.close()
        response.stream = self._httpx.ByteStream(body)

    async def abuffer(self, response: Any) -> None:
        stream = response.stream
        try:
            body = await _aread(stream)
        finally:
            await stream.aclose()
        response.stream = self._httpx.ByteStream(body)


async def _aread(stream: Any) -> bytes:
    return b"".join([chunk async for chunk in stream])


def _too_slow() -> TimeoutExceededError:
    return TimeoutExceededError(None, PATIENCE)


def _seekable(file: Any) -> bool:
    if isinstance(file, str | bytes):
        return True
    seekable = getattr(file, "seekable", None)
    return bool(seekable is not None and seekable())
