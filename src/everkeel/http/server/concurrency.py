"""The concurrency middleware: so many requests at once as the service can take, the important ones first."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

from everkeel.errors import ConfigError, RejectedError
from everkeel.http.headers import PRIORITY, read_priority, write_backpressure
from everkeel.http.server.asgi import ASGIApp, Message, Receive, Scope, Send, header
from everkeel.http.server.listening import HungUp, Listening
from everkeel.http.server.problems import Problem, problem_of
from everkeel.http.server.rate_limits import exclusion
from everkeel.http.server.refusing import refuse
from everkeel.http.server.strain import Strain, with_backpressure
from everkeel.policies.bulkhead.policy import Bulkhead
from everkeel.policies.bulkhead.state import Places
from everkeel.policies.concurrency.policy import ConcurrencyLimit, concurrency_limit
from everkeel.policies.concurrency.priorities import CURRENT
from everkeel.runtime.settings import Duration, Seconds
from everkeel.runtime.trouble import report

AnyPlaces: TypeAlias = "ConcurrencyLimit | Bulkhead"

_PRIORITY = PRIORITY.lower().encode()


class _NoEvidence(BaseException):
    """Ends a request whose length says nothing about the service: a stream is as long as its listener wants it."""


class _OverloadedError(RejectedError):
    """Ends a request that was answered, but with "too much" or "too late"."""


class ConcurrencyLimitMiddleware:
    """Let so many requests run at once as the service can take, found out from how long it takes to answer.

    What is too much is shed with status 503 before it has cost anything, the least important first, and told to come
    back the later the more is shed. Every response says how hard-pressed the service is (`X-Backpressure`).

    A request has its place until its response is complete; a WebSocket until its handshake is over. Streams (no
    `Content-Length`) have a place too, but teach the limit nothing.

    Args:
        app: The application.
        limit: A `concurrency_limit(...)`, with `priorities` where not all requests are alike; or a `bulkhead(...)` for
            a fixed number. By default a limit that finds out by itself. With a `queue` a request waits its turn, and
            leaves the line when its caller hangs up.
        trust_priority: Whose `X-Request-Priority` is believed: a predicate on the scope. By default everybody's, which
            is right where only services of your own call. A name that the limit does not know ranks lowest.
        retry_after: What a shed caller is asked to wait at least. A second.
        retry_penalty: How many seconds more when nearly everything is shed. Both vary by a fifth, so that not all come
            back at once.
        overloaded: Statuses of responses that mean "too much" here or behind us, and lower the limit.
        exclude: Routes that need no place (health checks), or a predicate on the scope.
        on_rejected: Called with the scope and the error for each request that is shed.

    >>> async def app(scope, receive, send): ...
    >>> shedding = ConcurrencyLimitMiddleware(app, concurrency_limit(priorities={"high": 0.2, "low": 0.0}))
    """

    def __init__(
        self,
        app: ASGIApp,
        limit: AnyPlaces | None = None,
        *,
        trust_priority: Callable[[Scope], bool] | None = None,
        retry_after: Seconds = 1.0,
        retry_penalty: Seconds = 15.0,
        overloaded: Iterable[int] = (503, 504),
        exclude: Iterable[str] | Callable[[Scope], bool] = (),
        on_rejected: Callable[[Scope, RejectedError], object] | None = None,
    ) -> None:
        self.app, self.limit = app, concurrency_limit() if limit is None else limit
        if not isinstance(self.limit, ConcurrencyLimit | Bulkhead) or not isinstance(self.limit.state, Places):
            allowed = "must be a concurrency_limit(...) or a bulkhead(...) without a key"
            raise ConfigError("concurrency middleware", "limit", allowed, repr(limit))
        self._trust, self._on_rejected = trust_priority, on_rejected
        self._retry_after = _length("retry_after", retry_after)
        self._retry_penalty = _length("retry_penalty", retry_penalty)
        self._overloaded = frozenset(overloaded)
        self._excluded = exclusion(exclude, "concurrency middleware")
        self._strain = Strain()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or (self._excluded is not None and self._excluded(scope)):
            return await self.app(scope, receive, send)
        name = read_priority(header(scope, _PRIORITY)) if self._trust is None or self._trust(scope) else None
        if name is None:
            return await self._guarded(scope, receive, send)
        token = CURRENT.set(name)
        try:
            return await self._guarded(scope, receive, send)
        finally:
            CURRENT.reset(token)

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = _Request(self, scope, receive, send)
        try:
            if self.limit.config.queue:
                await request.wait_in_line()
            elif scope["type"] == "websocket":
                await request.shake_hands()
            else:
                await self.limit.acall(request.run, scope)
        except (_NoEvidence, _OverloadedError, HungUp):
            return
        except RejectedError as error:
            if request.entered:
                raise  # the application's own, or one of a policy inside of it
            await self._shed(scope, request.receive, send, error)

    async def _shed(self, scope: Scope, receive: Receive, send: Send, error: RejectedError) -> None:
        self._strain.shed(self.limit.clock.monotonic())
        score = self.backpressure()
        if self._on_rejected is not None:
            try:
                self._on_rejected(scope, error)
            except Exception as trouble:
                report("concurrency middleware: on_rejected raised", trouble)
        wait = self._strain.retry_after(score, self._retry_after, self._retry_penalty, self.limit.clock.random)
        problem = problem_of(error)
        assert problem is not None
        await refuse(scope, receive, send, self._explained(problem, score, wait))

    def _explained(self, problem: Problem, score: float, wait: float) -> Problem:
        more = [(b"x-backpressure", write_backpressure(score).encode())]
        return problem.but(retry_after=wait, more=more, reason=problem.reason or "concurrency")

    def let_in(self) -> None:
        """A request has its place."""
        self._strain.passed(self.limit.clock.monotonic())

    def backpressure(self) -> float:
        """How hard-pressed the service is, from 0 to 1."""
        places = self.limit.state
        assert isinstance(places, Places)
        return self._strain.score(places.running(), places.limit(), self.limit.clock.monotonic())

    def is_overload(self, status: int) -> bool:
        """Does an answer with this status mean "too much"?"""
        return status in self._overloaded


class _Request:
    """One request on its way through."""

    __slots__ = ("_middleware", "_scope", "_send", "_sized", "entered", "receive", "status", "streams")

    def __init__(self, middleware: ConcurrencyLimitMiddleware, scope: Scope, receive: Receive, send: Send) -> None:
        self._middleware, self._scope, self.receive, self._send = middleware, scope, receive, send
        self.entered = self.streams = self._sized = False
        self.status = 0

    async def run(self, scope: Scope) -> None:
        """The application, in its place."""
        self.entered = True
        self._middleware.let_in()
        await self._middleware.app(scope, self.receive, self.send)
        if self._middleware.is_overload(self.status):
            raise _OverloadedError(self._middleware.limit.name, None)
        if self.streams:
            raise _NoEvidence

    async def wait_in_line(self) -> None:
        """The same where there is a queue: who hangs up leaves it."""
        async with Listening(self.receive) as listening:
            self.receive = listening.receive  # also for whoever refuses the request: something may have been read

            async def run(scope: Scope) -> None:
                await listening.stop()
                await self.run(scope)

            if self._scope["type"] == "websocket":
                await self.shake_hands(before=listening.stop)
            else:
                await self._middleware.limit.acall(run, self._scope)

    async def shake_hands(self, before: Callable[[], Awaitable[None]] | None = None) -> None:
        """A WebSocket: its place is given back when its handshake is over, one way or the other."""
        middleware, send = self._middleware, self._send
        place = middleware.limit.entry()
        await place.__aenter__()
        self.entered, held = True, True
        middleware.let_in()

        def leave() -> None:
            nonlocal held
            if held:
                held = False
                place.__exit__(None, _NoEvidence(), None)

        async def answering(message: Message) -> None:
            try:
                await send(message)
            finally:
                leave()

        try:
            if before is not None:
                await before()
            await middleware.app(self._scope, self.receive, answering)
        finally:
            leave()

    async def send(self, message: Message) -> None:
        """What the application answers, with a word about how we are."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = with_backpressure(message.get("headers", ()), self._middleware.backpressure())
            self._sized = any(name.lower() == b"content-length" for name, _ in headers)
            message = {**message, "headers": headers}
        elif message.get("more_body") and not self._sized:
            self.streams = True
        await self._send(message)


def _length(name: str, value: Seconds) -> float:
    try:
        return Duration(zero=True).check(value)
    except ValueError as error:
        raise ConfigError("concurrency middleware", name, str(error), repr(value)) from None
