"""The deadline middleware: the time a caller is willing to wait, and not a moment of work beyond it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from everkeel.errors import ConfigError, TimeoutExceededError
from everkeel.http.headers import TIMEOUT_MS, read_timeout_ms
from everkeel.http.server.asgi import ASGIApp, Message, Receive, Scope, Send, header
from everkeel.http.server.problems import Problem
from everkeel.http.server.rate_limits import exclusion
from everkeel.http.server.refusing import refuse
from everkeel.runtime import switch
from everkeel.runtime.cancellation import CURRENT, Cancellation
from everkeel.runtime.clock import DEFAULT, Clock
from everkeel.runtime.deadline import AMBIENT, Deadline
from everkeel.runtime.expiry import expired_by_us
from everkeel.runtime.settings import Duration, Seconds

_TIMEOUT_MS = TIMEOUT_MS.lower().encode()


class DeadlineMiddleware:
    """Work on a request only as long as its caller waits for the answer (`X-Request-Timeout-Ms`).

    A request whose time has passed is refused with status 504 before it costs anything. One that runs out of time is
    cancelled, and its caller is answered at that moment even if the work does not end (a sync endpoint cannot be
    interrupted; `everkeel.sleep` and `current_cancellation` let it notice). What the request calls sees the same
    deadline: policies respect it, and clients pass on what is left of it. A response that has begun is cut off.

    Put it outermost, so that waiting in line counts. WebSockets pass untouched: they have no end.

    Args:
        app: The application.
        default: Seconds for requests that do not say; None, for no end.
        longest: The most seconds that a request may ask for. Five minutes: what somebody writes there holds a place.
        least: With less time left than this it is refused at once. 0 by default: only what is over already.
        exclude: Routes without a deadline, or a predicate on the scope.
        clock: Where time comes from, in place of the default.

    >>> async def app(scope, receive, send): ...
    >>> timed = DeadlineMiddleware(app, default=30.0)
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        default: Seconds | None = None,
        longest: Seconds = 300.0,
        least: Seconds = 0.0,
        exclude: Iterable[str] | Callable[[Scope], bool] = (),
        clock: Clock | None = None,
    ) -> None:
        self.app = app
        self._default = None if default is None else _length("default", default)
        self._longest, self._least = _length("longest", longest), _length("least", least, zero=True)
        if self._least >= self._longest:
            raise ConfigError("deadline middleware", "least", f"must be below longest ({self._longest:g})", repr(least))
        self._excluded = exclusion(exclude, "deadline middleware")
        self._clock = clock or DEFAULT

    def seconds_for(self, scope: Scope) -> float | None:
        """How long a request may take; None for as long as it likes."""
        asked = read_timeout_ms(header(scope, _TIMEOUT_MS))  # what makes no sense is worth no more than nothing
        if asked is None:
            return self._default
        return min(asked, self._longest)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not switch.on or (self._excluded is not None and self._excluded(scope)):
            return await self.app(scope, receive, send)
        seconds = self.seconds_for(scope)
        if seconds is None:
            return await self.app(scope, receive, send)
        if seconds <= self._least:
            return await refuse(scope, receive, send, out_of_time("passed"))
        return await _Timed(scope, receive, send, self._clock, seconds).run(self.app)


def out_of_time(reason: str) -> Problem:
    """What a caller is told whose time is up: before the work began (`passed`), or while it was done (`expired`)."""
    return Problem(
        status=504,
        title="Gateway Timeout",
        error="deadline_exceeded",
        message="The time that the caller would wait has passed.",
        reason=f"deadline {reason}",
    )


class _Timed:
    """One request, with its end."""

    __slots__ = ("_answer", "_clock", "_ended", "_length", "_receive", "_scope", "_send", "_started", "_stop", "_task")

    def __init__(self, scope: Scope, receive: Receive, send: Send, clock: Clock, length: float) -> None:
        self._scope, self._receive, self._send, self._clock, self._length = scope, receive, send, clock, length
        self._started = self._ended = False
        self._answer: asyncio.Task[None] | None = None
        self._task: asyncio.Task[Any] | None = None
        self._stop: Cancellation | None = None

    async def run(self, app: ASGIApp) -> None:
        clock, loop = self._clock, asyncio.get_running_loop()
        task = self._task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a deadline needs a running task to cancel")
        outer, at = AMBIENT.get(), clock.monotonic() + self._length
        limit = Deadline(at, length=self._length, clock=clock) if outer is None or at < outer.at else outer
        self._stop = Cancellation(clock, limit.at, limit.error())
        deadline_token, stop_token, cancelling = AMBIENT.set(limit), CURRENT.set(self._stop), task.cancelling()
        alarm = clock.later(loop, max(0.0, limit.remaining()), self._ring)
        error: BaseException | None = None
        try:
            await app(self._scope, self._receive, self._forward)
        except BaseException as raised:
            error = raised
        finally:
            alarm.cancel()
            AMBIENT.reset(deadline_token)
            CURRENT.reset(stop_token)
        if self._ended:
            ours = expired_by_us(task, cancelling, error) or isinstance(error, TimeoutExceededError)
            if self._answer is not None:
                await self._answer
            if ours:
                return
        if error is not None:
            try:
                raise error
            finally:
                del error  # no cycle through this frame

    def _ring(self) -> None:
        """Time is up: cancel the work, and answer now, since the work may be slow to end."""
        self._ended = True
        assert self._task is not None
        assert self._stop is not None
        self._stop.cancel()
        if not self._started:
            problem = out_of_time("expired")
            self._answer = self._task.get_loop().create_task(refuse(self._scope, self._receive, self._send, problem))
        self._task.cancel()

    async def _forward(self, message: Message) -> None:
        if self._ended:
            return  # somebody who did not notice; the answer has been given, or cut off
        self._started = True
        await self._send(message)


def _length(name: str, value: Seconds, *, zero: bool = False) -> float:
    try:
        return Duration(zero=zero).check(value)
    except ValueError as error:
        raise ConfigError("deadline middleware", name, str(error), repr(value)) from None
