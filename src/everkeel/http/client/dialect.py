"""What the core must know about an HTTP library: how to read and copy its requests, and how to give back its responses.

One subclass for each library; httpx and httpx2 share theirs. No decision is made here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from ssl import SSLCertVerificationError
from typing import Any, TypeAlias

from everkeel.http.headers import Lookup
from everkeel.http.hints import NOTHING, SPOKEN, ServerHints, read_response
from everkeel.runtime.clock import Clock

Origin: TypeAlias = tuple[str, str, int | None]
"""Scheme, host and port: what a breaker and the limits are for."""

SMALL = 64 * 1024
"""A body up to so many bytes is read rather than cut off: that saves the connection."""

PATIENCE = 0.5
"""... unless that takes longer than so many seconds: then a new connection costs less."""

PORTS = {"http": 80, "https": 443}
_DEEPEST = 16


class Dialect(ABC):
    """One HTTP library. Where it is awaited it has `aclose` and `abuffer`, where it is not `close` and `buffer`."""

    clock: Clock

    # ------------------------------------------------------------------ requests

    @abstractmethod
    def method(self, request: Any) -> str:
        """Its method, in capitals."""

    @abstractmethod
    def url(self, request: Any) -> str:
        """Where it goes, without query and user."""

    @abstractmethod
    def origin(self, request: Any) -> Origin:
        """Whose server that is."""

    def header(self, request: Any, name: str) -> str | None:
        """A header of it."""
        found = request.headers.get(name)
        return found.decode("latin-1") if isinstance(found, bytes) else found

    def options(self, request: Any) -> object:
        """The settings that came with it, if the library has a place for them."""
        return None

    @abstractmethod
    def replayable(self, request: Any) -> bool:
        """Can its body be sent again from the start?"""

    @abstractmethod
    def in_memory(self, request: Any) -> bool:
        """Can its body be sent twice at the same time?"""

    @abstractmethod
    def again(self, request: Any, headers: dict[str, str], seconds: float | None) -> Any:
        """A copy to send, with these headers besides its own, ending within so many seconds where the library can."""

    # ------------------------------------------------------------------ outcomes

    def status(self, response: Any) -> int:
        """Its status code."""
        return int(response.status_code)

    def lookup(self, response: Any) -> Lookup:
        """Its headers."""
        return response.headers.get  # type: ignore[no-any-return]  # every library's mapping ignores case

    def names(self, response: Any) -> Iterable[str]:
        """The names of its headers, in whatever case."""
        return response.headers  # type: ignore[no-any-return]  # every library's mapping gives its keys

    def hints(self, response: Any) -> ServerHints:
        """What it says about its server."""
        for name in self.names(response):
            if name.lower() in SPOKEN:
                return read_response(self.lookup(response), now=self.clock.time())
        return NOTHING

    @abstractmethod
    def transient(self, error: BaseException) -> bool:
        """Is it a connection that failed or broke, or an answer that did not come: something that may pass?"""

    def timed_out(self, error: BaseException) -> bool:
        """Is it an answer that did not come in time?"""
        return isinstance(error, TimeoutError)

    # ------------------------------------------------------------------ giving back

    def close(self, response: Any, *, keep: bool = False) -> None:
        """Give back its connection. `keep`: with its body in memory, if that is small."""
        raise TypeError(f"{type(self).__name__}: this library is awaited: use aclose")

    async def aclose(self, response: Any, *, keep: bool = False) -> None:
        """The same for a coroutine."""
        raise TypeError(f"{type(self).__name__}: this library is not awaited: use close")

    def buffer(self, response: Any) -> None:
        """Read all of its body into memory."""
        raise TypeError(f"{type(self).__name__}: this library is awaited: use abuffer")

    async def abuffer(self, response: Any) -> None:
        """The same for a coroutine."""
        raise TypeError(f"{type(self).__name__}: this library is not awaited: use buffer")

    def is_small(self, response: Any) -> bool:
        """Does it say that its body is small?"""
        length = self.lookup(response)("Content-Length")
        return length is not None and length.isascii() and length.isdigit() and len(length) < 9 and int(length) <= SMALL


def untrusted(error: BaseException) -> bool:
    """Is a certificate that was not accepted behind this? That does not pass by itself."""
    link: BaseException | None = error
    for _ in range(_DEEPEST):
        if link is None:
            return False
        if isinstance(link, SSLCertVerificationError):
            return True
        link = link.__cause__ or link.__context__
    return False
