"""The rate limit middleware: who may come in, and telling everybody how they stand."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from inspect import isawaitable
from math import ceil
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from everkeel.errors import ConfigError, RateLimitedError
from everkeel.http.headers import write_backpressure
from everkeel.http.server.asgi import ASGIApp, Headers, Message, Receive, Scope, Send
from everkeel.http.server.keys import Key, by_address, client_id
from everkeel.http.server.listening import HungUp, Listening
from everkeel.http.server.problems import problem_of
from everkeel.http.server.refusing import refuse
from everkeel.http.server.standing import name_in_header, standing_headers
from everkeel.http.server.strain import with_backpressure
from everkeel.http.server.templates import Templates
from everkeel.ratelimit.algorithm import NANO
from everkeel.ratelimit.chain import Chaining, RateLimitChain
from everkeel.ratelimit.policy import RateLimit, rate_limit
from everkeel.runtime.settings import Seconds
from everkeel.runtime.trouble import report

if TYPE_CHECKING:
    from everkeel.ratelimit.config import RateLimitConfig
    from everkeel.ratelimit.state import Limiting

AnyLimit: TypeAlias = "RateLimit | RateLimitChain"


@dataclass(frozen=True, slots=True)
class Admission:
    """What was decided about one request, for the callbacks. `client_id` is a digest: it may be logged."""

    scope: Scope
    limit: RateLimit
    client_id: str | None
    error: RateLimitedError | None = None

    @property
    def allowed(self) -> bool:
        """Did it pass?"""
        return self.error is None


Callback: TypeAlias = Callable[[Admission], Any]


class RateLimitMiddleware:
    """Let each caller make so many requests per time, and tell it on every response how it stands.

    Plain ASGI: works with Starlette, FastAPI, Litestar, or none of them, over HTTP and for the handshakes of
    WebSockets. A rejected request gets a problem document with status 429 and `Retry-After`.

    Args:
        app: The application.
        limit: How many requests per `per`, for each `key`; or a `rate_limit(...)` (or a chain of them) whose `key`,
            `cost` and `exclude` are functions of the ASGI scope.
        per: In how many seconds. A minute, where `limit` is a number.
        key: Whose limit a request counts against; its address by default. Behind proxies, say which ones:
            `by_address(trusted=["10.0.0.0/8"])`.
        cost: How many permits a request takes, or a function of the scope.
        name: The limit's name, in headers, metrics and configuration.
        routes: Limits of their own for some routes, in place of `limit`: `{"POST /orders/{id}": rate_limit(5)}`; None
            for no limit.
        exclude: Routes that are not limited, or a predicate on the scope.
        on_rejected: Called with an `Admission` for each request that is turned away; may be a coroutine function.
        on_passed: The same for each request that passes.
        older_headers: Send `RateLimit-Limit`, `-Remaining` and `-Reset` too, for clients that know only those.
        send_client_id: Send `X-Client-Id`, a digest of the key, so that a caller can say who it was counted as.

    >>> async def app(scope, receive, send): ...
    >>> limited = RateLimitMiddleware(app, 100, per=60, exclude=["/health"])
    """

    def __init__(
        self,
        app: ASGIApp,
        limit: int | AnyLimit,
        *,
        per: Seconds | None = None,
        key: Key | None = None,
        cost: int | Callable[[Scope], int] | None = None,
        name: str | None = None,
        routes: Mapping[str, AnyLimit | None] | None = None,
        exclude: Iterable[str] | Callable[[Scope], bool] = (),
        on_rejected: Callback | None = None,
        on_passed: Callback | None = None,
        older_headers: bool = False,
        send_client_id: bool = False,
    ) -> None:
        self.app = app
        self.limit = self._limit(limit, per, key, cost, name)
        self._routes = Templates(routes or {}, "rate limit middleware")
        self._excluded: Callable[[Scope], bool] | None = exclusion(exclude, "rate limit middleware")
        self._on_rejected, self._on_passed = on_rejected, on_passed
        self._older, self._send_id = older_headers, send_client_id
        # The limits are asked through what is made of them here, once.
        self._doors: dict[int, Turnstile] = {}
        for one in (self.limit, *(routes or {}).values()):
            if one is not None:
                self._doors[id(one)] = Turnstile(one)
        self._default = self._doors[id(self.limit)]

    @staticmethod
    def _limit(
        limit: int | AnyLimit,
        per: Seconds | None,
        key: Key | None,
        cost: int | Callable[[Scope], int] | None,
        name: str | None,
    ) -> AnyLimit:
        if isinstance(limit, RateLimit | RateLimitChain):
            given = {"per": per, "key": key, "cost": cost, "name": name}
            for setting, value in given.items():
                if value is not None:
                    raise ConfigError(
                        "rate limit middleware", setting, f"must be set on the {limit.type} itself", repr(value)
                    )
            return limit
        return rate_limit(
            limit,
            name,
            per=60.0 if per is None else per,
            key=key or by_address(),
            cost=1 if cost is None else cost,
        )

    def _for(self, scope: Scope) -> Turnstile | None:
        if self._excluded is not None and self._excluded(scope):
            return None
        if self._routes:
            found = self._routes.of(scope)
            if found is not None:
                return None if found[1] is None else self._doors[id(found[1])]
        return self._default

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        kind = scope["type"]
        if kind != "http" and kind != "websocket":
            return await self.app(scope, receive, send)
        turnstile = self._for(scope)
        if turnstile is None:
            return await self.app(scope, receive, send)
        quick = turnstile.slip_through(scope, older=self._older)
        if quick is not None:
            key, headers = quick
            limit = turnstile.first
        else:
            try:
                if turnstile.queues():
                    async with Listening(receive) as listening:
                        receive = listening.receive
                        shares = await turnstile.pass_through(scope)
                        await listening.stop()
                else:
                    shares = await turnstile.pass_through(scope)
            except RateLimitedError as error:
                return await self._reject(scope, receive, send, turnstile, error)
            except HungUp:
                return None
            if not shares:  # switched off, or one that is not limited
                return await self.app(scope, receive, send)
            limit, key = shares[0]
            headers = turnstile.headers(shares, older=self._older)
        if self._send_id:
            headers.append(_client_id_header(key))
        if self._on_passed is not None:
            await _tell(self._on_passed, Admission(scope, limit, client_id(key)))
        begun = turnstile.begin() if kind == "http" else None

        async def answering(message: Message) -> None:
            what = message["type"]
            if what == "http.response.start" or what == "websocket.accept":
                message["headers"] = [*message.get("headers", ()), *headers]
                if begun is not None:
                    message["headers"] = with_backpressure(message["headers"], turnstile.answered(begun))
            await send(message)

        return await self.app(scope, receive, answering)

    async def _reject(
        self, scope: Scope, receive: Receive, send: Send, turnstile: Turnstile, error: RateLimitedError
    ) -> None:
        problem = problem_of(error)
        assert problem is not None
        policy, more = turnstile.that_said_no(error), turnstile.headers_of_refusal(error, older=self._older)
        if self._send_id and problem.client_id is not None:
            more.append(_client_id_header(error.key))
        if self._on_rejected is not None:
            await _tell(self._on_rejected, Admission(scope, policy, problem.client_id, error))
        await refuse(scope, receive, send, problem.but(more=more))


class Turnstile:
    """A limit, or a chain of them, as the middleware asks it. `shares` are the limits that a request was charged to."""

    __slots__ = ("_chain", "_limits", "_names", "_plain", "_quota", "first")

    def __init__(self, limit: AnyLimit) -> None:
        if not isinstance(limit, RateLimit | RateLimitChain):
            raise ConfigError("rate limit middleware", "limit", "must be a number, or a rate_limit(...)", repr(limit))
        self._chain = limit if isinstance(limit, RateLimitChain) else None
        self._limits = list(limit.limits.values()) if isinstance(limit, RateLimitChain) else [limit]
        self.first = self._limits[0]
        if self._chain is not None and len({one.name for one in self._limits} - {None}) < len(self._limits):
            allowed = "must have limits with names, by which callers are told apart how they stand with each"
            raise ConfigError("rate limit middleware", "limit", allowed, repr(limit))
        self._names = {id(one): name_in_header(one) for one in self._limits}
        self._plain: RateLimitConfig | None = None  # the settings under which nothing else has to be looked at
        self._quota = b""

    def slip_through(self, scope: Scope, *, older: bool) -> tuple[Hashable, Headers] | None:
        """The quick way, which nearly all requests take: one bucket, with permits left. None: not that way.

        Whatever the other ways do, this one must do the same; what it cannot, it leaves to them.
        """
        limit = self.first
        rules = limit.config
        if rules is not self._plain and not self._is_plain(rules):
            return None
        state, layers = limit.state, limit.layers()
        if len(layers) != 1 or layers[0] is not state:  # switched off, a shadow, or heard
            return None
        key = None if limit.key_of is None else limit.key_of(scope)
        stands = cast("Limiting", state).slip_in(key, cast("int", rules.cost))
        if stands is None:
            return None
        left, reset = stands
        if older:
            return key, self.headers([(limit, key)], older=True)
        name = self._names[id(limit)]
        seconds = -(-reset // NANO)
        return key, [(b"ratelimit", b"%b;r=%d;t=%d" % (name, left, seconds)), (b"ratelimit-policy", self._quota)]

    def _is_plain(self, rules: RateLimitConfig) -> bool:
        plain = not (
            self._chain is not None
            or callable(rules.cost)
            or rules.exclude is not None
            or rules.allow is not None
            or rules.deny is not None
            or rules.limits is not None
        )
        if plain:
            self._plain = rules
            self._quota = b"%b;q=%d;w=%d" % (self._names[id(self.first)], rules.permits, ceil(rules.per))
        return plain

    def queues(self) -> bool:
        """May a request have to wait?"""
        for limit in self._limits:
            if limit.config.queue:
                return True
        return False

    async def pass_through(self, scope: Scope) -> list[tuple[RateLimit, Hashable]]:
        """Take what the request costs, now or after a wait; `RateLimitedError` where it is not to be had."""
        args: tuple[Scope] = (scope,)
        if self._chain is not None:
            for layer in self._chain.layers():
                if isinstance(layer, Chaining):
                    taken = await layer.atake(layer.wants(args, {}), args, {})
                    return [(share.limit, share.key) for share in taken if share.taken is not None]
            return []
        limit = self.first
        if not limit.layers():
            return []
        state = limit.limiter
        key = state.key_for(args, {})
        taken_here = await limit.atake(key, state.cost_of(args, {}), args, {})
        return [] if taken_here is None else [(limit, key)]

    def headers(self, shares: list[tuple[RateLimit, Hashable]], *, older: bool) -> Headers:
        """How the caller stands with each."""
        names = self._names
        return standing_headers([(names[id(limit)], limit.standing(key)) for limit, key in shares], older=older)

    def that_said_no(self, error: RateLimitedError) -> RateLimit:
        """The limit of a chain that an error is of."""
        return next((limit for limit in self._limits if limit.name == error.policy), self.first)

    def headers_of_refusal(self, error: RateLimitedError, *, older: bool) -> Headers:
        """How a caller stands who was turned away."""
        headers: Headers = []
        if error.retry_after is not None:  # who is never let in has no limit to stand with
            headers = self.headers([(self.that_said_no(error), error.key)], older=older)
        if error.backpressure is not None:
            headers.append((b"x-backpressure", write_backpressure(error.backpressure).encode()))
        return headers

    def begin(self) -> float | None:
        """When a request begins, where it is measured how hard-pressed the service is."""
        return self.first.limiter.begin()

    def answered(self, begun: float) -> float:
        """Its answer begins now: how hard-pressed is the service?"""
        state = self.first.limiter
        state.measure(begun)
        pressure = state.door.refusals.pressure
        return 0.0 if pressure is None else pressure.score


def exclusion(exclude: Iterable[str] | Callable[[Scope], bool], owner: str) -> Callable[[Scope], bool] | None:
    """A predicate of route templates, or the one that was given; None where nothing is excluded."""
    if callable(exclude):
        return exclude
    if isinstance(exclude, str):
        raise ConfigError(owner, "exclude", "must be a list of routes, or a predicate on the scope", repr(exclude))
    table = Templates.only(exclude, owner)
    return (lambda scope: table.of(scope) is not None) if table else None


def _client_id_header(key: Hashable) -> tuple[bytes, bytes]:
    return (b"x-client-id", (client_id(key) or "").encode())


async def _tell(callback: Callback, admission: Admission) -> None:
    """A callback that raises harms nobody but itself."""
    try:
        answer = callback(admission)
        if isawaitable(answer):
            await answer
    except Exception as error:
        report("rate limit middleware: a callback raised", error)
