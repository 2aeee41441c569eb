"""Clients that go as fast as their server lets them: they wait as long as it asks for, and slow down before it has to.

    class Orders(AdaptiveClient):
        def place(self, item: str) -> dict:
            return self.send_request("POST", "/orders", item=item).json()

`@adaptive` does the same for functions and methods that return a response, or raise what `raise_for_status` raises.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from inspect import iscoroutinefunction, signature
from typing import Any, Self, Unpack, cast, overload
from weakref import WeakKeyDictionary

from everkeel.http.client.adapting import Adaptive, AdaptiveSettings, Strategy
from everkeel.runtime.clock import Clock
from everkeel.runtime.weave import F

__all__ = [
    "Adaptive",
    "AdaptiveClient",
    "AdaptiveSettings",
    "AsyncAdaptiveClient",
    "Strategy",
    "adaptive",
    "adaptive_state",
]

# ---------------------------------------------------------------------- clients


class _Paced(ABC):
    """What both clients have: their pace, and the way to it."""

    def __init__(
        self,
        base_url: str = "",
        *,
        client: Any = None,
        name: str | None = None,
        clock: Clock | None = None,
        **settings: Unpack[AdaptiveSettings],
    ) -> None:
        self._base_url = base_url.rstrip("/")
        self._owned = client is None
        self._client = self._make_client() if client is None else client
        self.adaptive = Adaptive(name, clock=clock, **settings)

    @abstractmethod
    def _make_client(self) -> Any:
        """A client of the library, for who brings none."""

    def _request(self, method: str, path: str, values: dict[str, Any]) -> Any:
        """What the library's client answers: a response, or what is to be awaited for it."""
        url = f"{self._base_url}/{path.lstrip('/')}" if self._base_url else path
        method = method.upper()
        where = "params" if method in ("GET", "HEAD", "OPTIONS") else "json"
        return self._client.request(method, url, **({where: values} if values else {}))

    @property
    def is_rate_limited(self) -> bool:
        """Does the server want to be left alone at the moment?"""
        return self.adaptive.is_rate_limited

    @property
    def retry_after_seconds(self) -> float:
        """For how many seconds more; 0 when it does not."""
        return self.adaptive.retry_after_seconds

    @property
    def backpressure(self) -> float | None:
        """How hard-pressed the server said it is, from 0 to 1; None if it never did."""
        return self.adaptive.backpressure

    @property
    def remaining_tokens(self) -> int | None:
        """How many calls are left before the limit, as far as is known; None if the server never said."""
        return self.adaptive.remaining_tokens

    def set_strategy(self, strategy: Strategy) -> None:
        """From now on, "queue" or "reject"."""
        self.adaptive.set_strategy(strategy)

    def set_max_retries(self, max_retries: int) -> None:
        """From now on, so many tries after the first."""
        self.adaptive.set_max_retries(max_retries)


class AdaptiveClient(_Paced):
    """A base for clients of a service that says how fast it can go. `AsyncAdaptiveClient` is its twin.

    `send_request` waits as long as the server asks for and tries again (`strategy="queue"`), or raises
    `RateLimitedError` and makes no further call until then (`"reject"`). It slows down before it is told to, when the
    server says that it is hard-pressed, and stops before the limit, when the server says that nothing is left. When all
    attempts were refused, `RetryExhaustedError` has their number and the wait that was asked for last.

    Args:
        base_url: What paths are relative to.
        client: What sends: a `Client` of httpx2 or httpx, or a `Session` of requests. An `httpx2.Client` by default.
        name: Its identity in errors, events and metrics.
        clock: Where its time comes from, in place of the default.
        settings: See `AdaptiveSettings`.

    >>> import httpx2
    >>> from everkeel.http.adaptive import AdaptiveClient
    >>> class Orders(AdaptiveClient):
    ...     def place(self, item: str) -> str:
    ...         return self.send_request("POST", "/orders", item=item).json()["id"]
    >>> server = httpx2.MockTransport(lambda request: httpx2.Response(200, json={"id": "o-1"}))
    >>> orders = Orders("https://example.com", client=httpx2.Client(transport=server))
    >>> orders.place("book"), orders.is_rate_limited
    ('o-1', False)
    """

    def _make_client(self) -> Any:
        import httpx2

        return httpx2.Client()

    def send_request(self, method: str, path: str, **json: Any) -> Any:
        """Send a request at the server's pace: the response. What is named goes as JSON, or as query of a GET."""
        return self.adaptive.call(self._request, method, path, json)

    def close(self) -> None:
        """Close the client inside, unless it was given."""
        if self._owned:
            self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class AsyncAdaptiveClient(_Paced):
    """The twin of `AdaptiveClient` for coroutines, around an `AsyncClient` of httpx2 or httpx, or aiohttp's session."""

    def _make_client(self) -> Any:
        import httpx2

        return httpx2.AsyncClient()

    async def send_request(self, method: str, path: str, **json: Any) -> Any:
        """Send a request at the server's pace: the response. What is named goes as JSON, or as query of a GET."""
        return await self.adaptive.acall(self._asend, method, path, json)

    async def _asend(self, method: str, path: str, values: dict[str, Any]) -> Any:
        return await self._request(method, path, values)

    async def aclose(self) -> None:
        """Close the client inside, unless it was given."""
        if self._owned:
            await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()


# ---------------------------------------------------------------------- the decorator

_STATE = "__everkeel_adaptive__"


class _States:
    """The state of a decorated function, or one for each instance whose method it is."""

    def __init__(self, make: Callable[[], Adaptive], is_method: bool) -> None:
        self._make, self._is_method = make, is_method
        self._lock = threading.Lock()
        self._alone: Adaptive | None = None
        self._each: WeakKeyDictionary[Any, Adaptive] = WeakKeyDictionary()

    def of(self, args: tuple[Any, ...]) -> Adaptive:
        owner = args[0] if self._is_method and args else None
        if isinstance(owner, _Paced):
            return owner.adaptive  # a client's methods share what its requests know
        with self._lock:
            if owner is not None:
                try:
                    found = self._each.get(owner)
                    if found is None:
                        found = self._each[owner] = self._make()
                    return found
                except TypeError:
                    pass  # not to be hashed, or not to be referred to weakly: all of its kind share one
            if self._alone is None:
                self._alone = self._make()
            return self._alone


def _called(fn: Callable[..., Any], states: _States) -> Callable[..., Any]:
    @wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return states.of(args).call(fn, *args, **kwargs)

    return wrapper


def _awaited(fn: Callable[..., Any], states: _States) -> Callable[..., Any]:
    @wraps(fn)
    async def wrapper(*args: Any, **kwargs: Any) -> Any:
        return await states.of(args).acall(fn, *args, **kwargs)

    return wrapper


@overload
def adaptive(fn: F, /) -> F: ...
@overload
def adaptive(
    *, name: str | None = None, clock: Clock | None = None, **settings: Unpack[AdaptiveSettings]
) -> Callable[[F], F]: ...
def adaptive(
    fn: F | None = None,
    /,
    *,
    name: str | None = None,
    clock: Clock | None = None,
    **settings: Unpack[AdaptiveSettings],
) -> F | Callable[[F], F]:
    """Call a function at the pace of the server behind it: it returns a response, or raises the error of one.

    Responses and errors of httpx2, httpx, requests and aiohttp are understood. A function has one state, a method one
    for each instance; `adaptive_state` gives it. On a method of an `AdaptiveClient` it is the client's.

    >>> import httpx2
    >>> from everkeel import RateLimitedError
    >>> from everkeel.http.adaptive import adaptive
    >>> @adaptive(strategy="reject")
    ... def fetch() -> httpx2.Response:
    ...     return httpx2.Response(429, headers={"Retry-After": "30"})
    >>> try:
    ...     fetch()
    ... except RateLimitedError as error:
    ...     error.retry_after
    30.0
    """

    def decorate(fn: F) -> F:
        def make() -> Adaptive:
            return Adaptive(name, clock=clock, **settings)

        parameters = list(signature(fn).parameters)
        states = _States(make, bool(parameters) and parameters[0] == "self")
        make()  # wrong settings fail here
        wrapper = _awaited(fn, states) if iscoroutinefunction(fn) else _called(fn, states)
        setattr(wrapper, _STATE, states)
        return cast("F", wrapper)

    return decorate if fn is None else decorate(fn)


def adaptive_state(fn: Callable[..., Any], owner: object = None) -> Adaptive:
    """What an `@adaptive` function knows about its server; for a method say whose, unless it is bound.

    >>> from everkeel.http.adaptive import adaptive, adaptive_state
    >>> @adaptive
    ... def fetch() -> None: ...
    >>> adaptive_state(fetch).remaining_tokens is None
    True
    """
    states = getattr(fn, _STATE, None)
    if not isinstance(states, _States):
        raise TypeError(f"{getattr(fn, '__qualname__', fn)!r} is not decorated with @adaptive")
    owner = getattr(fn, "__self__", owner)
    return states.of(() if owner is None else (owner,))
