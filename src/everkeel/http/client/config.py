"""What may be set on a client, and on one request of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, TypedDict, Unpack

from everkeel.errors import ConfigError
from everkeel.http import headers
from everkeel.policies.retry.budget import RetryBudget
from everkeel.policies.retry.policy import BackoffLike
from everkeel.runtime.backoff import Backoff, Jitter, as_backoff, as_jitter, exponential
from everkeel.runtime.settings import (
    Choice,
    Converted,
    Count,
    Duration,
    Flag,
    Function,
    Instance,
    Mode,
    Seconds,
    Settings,
    setting,
)

STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
"""What is worth another try: the server was busy, restarting or behind a gateway that was."""

SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "QUERY"})
"""Methods that change nothing: only these may be made twice at the same time."""

IDEMPOTENT = SAFE | {"PUT", "DELETE"}
"""Methods that may be repeated because twice is the same as once."""

KEYED = frozenset({"POST", "PATCH"})
"""Methods for which an `Idempotency-Key` is made, when asked."""

PolicySetting = bool | Mapping[str, Any]
Predicate = Callable[[Any, Any], bool | None]
Hook = Callable[[Any, Any], Any]


class ClientSettings(TypedDict, total=False):
    """What every client takes as keyword arguments; the defaults and their reasons are in the guide on HTTP clients."""

    attempts: int
    """Tries including the first, 3 by default."""
    backoff: BackoffLike
    """How long between tries, by default 0.2 s doubling up to 30 s."""
    jitter: Jitter
    """Randomness of it, "full" by default."""
    max_retry_after: Seconds
    """A wait that the server asks for is obeyed up to so many seconds, 60; asked for more, the client gives up."""
    max_duration: Seconds | None
    """The end of the whole call, waits included. None by default."""
    attempt_timeout: Seconds | None
    """The end of one try, up to the response's headers (its body, with `buffer`). By default only the library's own."""
    budget: RetryBudget | None
    """How many retries the traffic may afford, by default a fifth of the calls plus three a second. None lifts it."""
    statuses: Iterable[int]
    """Statuses worth another try, by default 408, 425, 429, 500, 502, 503 and 504."""
    methods: Iterable[str]
    """Methods that may be repeated without a key, by default GET, HEAD, OPTIONS, TRACE, QUERY, PUT and DELETE."""
    retry_if: Predicate | None
    """Told the request and its response or error, it answers True (try again), False (do not) or None (as usual)."""
    before_retry: Hook | None
    """Told the request and the next `Attempt`, it may change the request, or return another. Async clients also take
    a coroutine function."""
    circuit_breaker: PolicySetting
    """A breaker for each origin, on by default. A table has settings of `circuit_breaker`."""
    concurrency_limit: PolicySetting
    """A concurrency limit for each origin, off by default. A table has settings of `concurrency_limit`."""
    rate_limit: PolicySetting
    """Keep to what servers say about their limits, on by default. A table has settings of `rate_limit`."""
    hedge: PolicySetting
    """A second request for safe methods when the first is slow, off by default. A table has settings of `hedge`."""
    idempotency_keys: bool | Callable[[], str]
    """Give every POST and PATCH a key, the same for all its attempts. Off by default; may be what makes the keys."""
    send_headers: bool
    """Tell the server the remaining time, the attempt, the priority and the trace. On by default."""
    priority: str | None
    """The priority of requests whose context has none."""
    buffer: bool
    """Read the body within the attempt, so that a connection lost in the middle of it is retried. Off by default."""
    on_status: Literal["return", "raise"]
    """When attempts run out on a status, "return" the last response (the default), or "raise" `HTTPStatusError`."""
    max_origins: int
    """How many origins have a breaker and limits of their own, 1000 by default; further ones share."""
    mode: Mode
    """"enforce", "shadow" or "off", for all its policies."""


def _statuses(value: Any) -> frozenset[int]:
    found: frozenset[Any] = frozenset(value) if isinstance(value, Iterable) else frozenset([None])
    if any(isinstance(one, bool) or not isinstance(one, int) or not 100 <= one <= 599 for one in found):
        raise ValueError("must be a collection of status codes from 100 to 599")
    return found


def _methods(value: Any) -> frozenset[str]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ValueError("must be a collection of HTTP methods, such as {'GET', 'PUT'}")
    found = frozenset(value)
    if not all(isinstance(one, str) and one.isascii() and one.isalpha() for one in found):
        raise ValueError("must be a collection of HTTP methods, such as {'GET', 'PUT'}")
    return frozenset(one.upper() for one in found)


def _policy(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return dict(value)
    raise ValueError("must be True, False, or a table with the settings of the policy")


def _keys(value: Any) -> Any:
    if isinstance(value, bool) or callable(value):
        return value
    raise ValueError("must be True, False, or a function that makes a key")


def _priority(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be the name of a priority")
    return headers.write_priority(value)


@dataclass(frozen=True, kw_only=True, slots=True)
class ClientConfig(Settings):
    """The settings of a client; `ClientSettings` says what each is for."""

    policy_type: ClassVar[str] = "http client"

    attempts: int = setting(Count(at_least=1), default=3)
    backoff: Backoff = setting(Converted(as_backoff), default=exponential(0.2, factor=2, max=30))
    jitter: Jitter = setting(Converted(as_jitter), default="full", none="no randomness")
    max_retry_after: float = setting(Duration(zero=True), default=60.0)
    max_duration: float | None = setting(Duration(), default=None, none="no bound")
    attempt_timeout: float | None = setting(Duration(), default=None, none="no bound")
    budget: RetryBudget | None = setting(Instance(RetryBudget, "a RetryBudget"), default=None, none="no budget")
    statuses: frozenset[int] = setting(Converted(_statuses), default=STATUSES)
    methods: frozenset[str] = setting(Converted(_methods), default=IDEMPOTENT)
    retry_if: Predicate | None = setting(
        Function("of the request and its response or error"), default=None, none="statuses and errors decide"
    )
    before_retry: Hook | None = setting(
        Function("of the request and the next Attempt", awaited=True), default=None, none="no hook"
    )
    circuit_breaker: PolicySetting = setting(Converted(_policy), default=True)
    concurrency_limit: PolicySetting = setting(Converted(_policy), default=False)
    rate_limit: PolicySetting = setting(Converted(_policy), default=True)
    hedge: PolicySetting = setting(Converted(_policy), default=False)
    idempotency_keys: bool | Callable[[], str] = setting(Converted(_keys), default=False)
    send_headers: bool = setting(Flag(), default=True)
    priority: str | None = setting(Converted(_priority), default=None, none="that of the context")
    buffer: bool = setting(Flag(), default=False)
    on_status: Literal["return", "raise"] = setting(Choice("return", "raise"), default="return")
    max_origins: int = setting(Count(at_least=1), default=1000)


def configure(name: str | None, settings: ClientSettings) -> ClientConfig:
    """The config of a client; without a `budget` of the user's it has one of its own."""
    values: dict[str, Any] = {"budget": RetryBudget(), **settings}
    return ClientConfig.make(name, values)


# ---------------------------------------------------------------------- one request


class RequestSettings(TypedDict, total=False):
    """What one request may have otherwise than its client."""

    attempts: int
    backoff: BackoffLike
    max_retry_after: Seconds
    max_duration: Seconds | None
    attempt_timeout: Seconds | None
    hedge: bool
    buffer: bool
    on_status: Literal["return", "raise"]
    priority: str | None
    idempotent: bool
    """This request may be repeated, whatever its method."""
    idempotency_key: str
    """The key to send; with one, the request may be repeated."""


def _key(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be a string")
    headers.write_idempotency_key(value)
    return value


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestConfig(Settings):
    """The settings of one request. None: as the client has it."""

    policy_type: ClassVar[str] = "http request"
    CLIENT = "as the client has it"

    attempts: int | None = setting(Count(at_least=1), default=None, none=CLIENT)
    backoff: Backoff | None = setting(Converted(as_backoff), default=None, none=CLIENT)
    max_retry_after: float | None = setting(Duration(zero=True), default=None, none=CLIENT)
    max_duration: float | None = setting(Duration(), default=None, none=CLIENT)
    attempt_timeout: float | None = setting(Duration(), default=None, none=CLIENT)
    hedge: bool | None = setting(Flag(), default=None, none=CLIENT)
    buffer: bool | None = setting(Flag(), default=None, none=CLIENT)
    on_status: Literal["return", "raise"] | None = setting(Choice("return", "raise"), default=None, none=CLIENT)
    priority: str | None = setting(Converted(_priority), default=None, none=CLIENT)
    idempotent: bool | None = setting(Flag(), default=None, none=CLIENT)
    idempotency_key: str | None = setting(Converted(_key), default=None, none="as the request has it")

    def plan(self) -> dict[str, Any]:
        """What concerns the retry: other settings than the client's."""
        names = ("attempts", "backoff", "max_retry_after", "max_duration")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


PLAIN = RequestConfig()
_AROUND: ContextVar[Mapping[str, Any] | None] = ContextVar("everkeel.http.request_options", default=None)


@contextmanager
def request_options(**settings: Unpack[RequestSettings]) -> Iterator[None]:
    """Requests made in this block have these settings, whatever their client's: for libraries whose calls take no
    options of ours (`requests`, aiohttp), and for whole blocks.

    >>> from everkeel.http.httpx2 import request_options
    >>> with request_options(attempts=1, priority="low"):
    ...     pass
    """
    RequestConfig.make(None, settings)  # wrong settings fail where they are written
    token = _AROUND.set({**(_AROUND.get() or {}), **settings})
    try:
        yield
    finally:
        _AROUND.reset(token)


def options_for(given: object) -> RequestConfig:
    """The settings of a request: those of the block around it, and those `given` with it, which win."""
    around = _AROUND.get()
    if given is None and around is None:
        return PLAIN
    if isinstance(given, RequestConfig):
        return given
    if given is not None and not isinstance(given, Mapping):
        allowed = "must be a table with any of " + ", ".join(field.name for field in fields(RequestConfig))
        raise ConfigError("http request", "extensions['everkeel']", allowed, repr(given))
    return RequestConfig.make(None, {**(around or {}), **(given or {})})
