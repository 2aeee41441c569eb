"""requests, which sends prepared requests through adapters."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

import requests
import urllib3
from requests.utils import rewind_body

from everkeel.http.client.dialect import PATIENCE, PORTS, SMALL, Dialect, Origin, untrusted

SECONDS = "everkeel_seconds"
"""The attribute of a copy that says within how many seconds it has to end."""

_TRANSIENT = (requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)


class RequestsDialect(Dialect):
    """Prepared requests and their responses."""

    def method(self, request: Any) -> str:
        return str(request.method).upper()

    def url(self, request: Any) -> str:
        url = urlsplit(request.url)
        return f"{url.scheme}://{url.netloc.rpartition('@')[2]}{url.path}"

    def origin(self, request: Any) -> Origin:
        url = urlsplit(request.url)
        return url.scheme, url.hostname or "", url.port or PORTS.get(url.scheme)

    def replayable(self, request: Any) -> bool:
        position = getattr(request, "_body_position", None)
        return self.in_memory(request) or (isinstance(position, int) and hasattr(request.body, "seek"))

    def in_memory(self, request: Any) -> bool:
        return request.body is None or isinstance(request.body, str | bytes)

    def again(self, request: Any, headers: dict[str, str], seconds: float | None) -> Any:
        copy = request.copy()
        copy.headers.update(headers)
        if not self.in_memory(request) and self.replayable(request):
            rewind_body(copy)
        setattr(copy, SECONDS, seconds)
        return copy

    def transient(self, error: BaseException) -> bool:
        return isinstance(error, _TRANSIENT) and not untrusted(error)

    def timed_out(self, error: BaseException) -> bool:
        return isinstance(error, requests.Timeout | TimeoutError)

    def close(self, response: Any, *, keep: bool = False) -> None:
        # The rest is read only where a timeout is set, or asked for: there is no other end to one read.
        bounded = getattr(response.request, SECONDS, None) is not None
        try:
            if (keep or bounded) and self.is_small(response):
                body = self._read_quickly(response.raw)
                if keep and body is not None:
                    response._content, response._content_consumed = body, True
        except (urllib3.exceptions.HTTPError, OSError):
            pass  # the rest of a response that nobody wants
        finally:
            response.close()

    def _read_quickly(self, raw: Any) -> bytes | None:
        """All of it, if that does not take long. (`response.content` has no end while bytes keep coming.)"""
        body, until = bytearray(), self.clock.monotonic() + PATIENCE
        read = getattr(raw, "read1", None)  # urllib3 1.26 has none, and what it has waits for all that was asked for
        while read is not None:
            chunk = read(SMALL, decode_content=True)
            body += chunk
            if not chunk:
                return bytes(body)
            if len(body) > SMALL or self.clock.monotonic() > until:
                break
        return None

    def buffer(self, response: Any) -> None:
        response.content  # noqa: B018 - reading it is what keeps it


def within(timeout: Any, seconds: float | None) -> Any:
    """A timeout of the caller's, and the end of the attempt: whichever is first. Pairs are for connect and read."""
    if seconds is None:
        return timeout
    seconds = max(seconds, 0.001)  # urllib3 does not take 0
    if timeout is None:
        return seconds
    if isinstance(timeout, tuple):
        return tuple(seconds if one is None else min(one, seconds) for one in timeout)
    return min(timeout, seconds) if isinstance(timeout, int | float) else timeout
