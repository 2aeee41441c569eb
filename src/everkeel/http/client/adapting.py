"""Calls at the pace of a server: the pure core is `pace`, and this waits, calls and tells it what came back."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, Literal, NoReturn, ParamSpec, TypedDict, TypeVar, Unpack, cast

from everkeel.errors import ConfigError, RateLimitedError, RetryExhaustedError
from everkeel.http.client.pace import AdaptiveConfig, Pace, Refusal, answer_in
from everkeel.policies.retry.policy import Retry, retry
from everkeel.runtime.clock import DEFAULT, Clock
from everkeel.runtime.deadline import remaining
from everkeel.runtime.outcome import Outcome
from everkeel.runtime.settings import Mode, Seconds

P = ParamSpec("P")
T = TypeVar("T")

Strategy = Literal["queue", "reject"]

_ACTIVE: ContextVar[tuple[Adaptive, ...]] = ContextVar("everkeel.http.adaptive", default=())
"""Whose calls are under way: a method that is adaptive may call another of the same client."""


class AdaptiveSettings(TypedDict, total=False):
    """What an adaptive client takes as keyword arguments."""

    strategy: Strategy
    """When the server says "later", "queue" (wait and try again; the default) or "reject" (`RateLimitedError`)."""
    attempts: int
    """Tries including the first, when queueing. 4 by default."""
    max_retries: int
    """The same, less one."""
    backoff_multiplier: float
    """How many times as long as asked to wait, 1.0 by default."""
    max_wait: Seconds
    """The longest wait, 60 seconds; asked for more, the call is given up."""
    default_wait: Seconds
    """The wait when the server says 429 and no more, 1 second by default."""
    respect_backpressure: bool
    """Slow down when the server says that it is hard-pressed. On by default, when queueing."""
    backpressure_threshold: float
    """From which pressure on, from 0 to 1. 0.8 by default."""
    mode: Mode
    """"enforce", "shadow" or "off", for the retry inside."""


class Adaptive:
    """What is known about one server, and the calls that keep to it. Clients and decorated functions have one each.

    >>> from everkeel.http.adaptive import Adaptive
    >>> pace = Adaptive(strategy="reject")
    >>> pace.is_rate_limited
    False
    """

    __slots__ = ("__weakref__", "_lock", "_pace", "clock", "name", "retry")

    def __init__(
        self, name: str | None = None, *, clock: Clock | None = None, **settings: Unpack[AdaptiveSettings]
    ) -> None:
        values: dict[str, Any] = dict(settings)
        if "max_retries" in values:
            values["attempts"] = _attempts(values.pop("max_retries"))
        rules = AdaptiveConfig.make(name, values)
        self.name, self.clock = name, clock or DEFAULT
        self._pace, self._lock = Pace(rules), threading.Lock()
        self.retry: Retry = retry(
            name,
            attempts=rules.attempts,
            on=RateLimitedError,
            backoff=0,
            jitter=None,  # the server said when: not sooner, and later is for it to say
            max_retry_after=rules.max_wait,
            exhausted=self._exhausted,
            mode=rules.mode,
            clock=clock,
        )

    # ------------------------------------------------------------------ state

    @property
    def is_rate_limited(self) -> bool:
        """Does the server want to be left alone at the moment?"""
        return self.retry_after_seconds > 0

    @property
    def retry_after_seconds(self) -> float:
        """For how many seconds more; 0 when it does not."""
        return self._pace.retry_after(self.clock.monotonic())

    @property
    def backpressure(self) -> float | None:
        """How hard-pressed the server said it is, from 0 to 1; None if it never did."""
        return self._pace.backpressure

    @property
    def remaining_tokens(self) -> int | None:
        """How many calls are left before the limit, as far as is known; None if the server never said."""
        return self._pace.remaining

    @property
    def strategy(self) -> Strategy:
        """What happens when the server says "later"."""
        return self._pace.rules.strategy

    def set_strategy(self, strategy: Strategy) -> None:
        """From now on, "queue" or "reject"."""
        self._pace.rules = self._pace.rules.changed(self.name, {"strategy": strategy})

    def set_max_retries(self, max_retries: int) -> None:
        """From now on, so many tries after the first."""
        attempts = _attempts(max_retries)
        self._pace.rules = self._pace.rules.changed(self.name, {"attempts": attempts})
        self.retry.reconfigure(attempts=attempts)

    # ------------------------------------------------------------------ the drivers

    def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `fn`, which returns a response or raises the error of one, at the server's pace."""
        active = _ACTIVE.get()
        if self in active:
            return fn(*args, **kwargs)
        token = _ACTIVE.set((*active, self))
        try:
            if self.strategy == "reject":
                return cast("T", self._attempt(fn, args, kwargs))
            return cast("T", self.retry.call(self._attempt, fn, args, kwargs))
        finally:
            _ACTIVE.reset(token)

    async def acall(self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """The same for a coroutine function."""
        active = _ACTIVE.get()
        if self in active:
            return await fn(*args, **kwargs)
        token = _ACTIVE.set((*active, self))
        try:
            if self.strategy == "reject":
                return cast("T", await self._aattempt(fn, args, kwargs))
            return cast("T", await self.retry.acall(self._aattempt, fn, args, kwargs))
        finally:
            _ACTIVE.reset(token)

    def _attempt(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        wait = self._wait()
        if wait:
            self.clock.sleep(wait)
        self._begin()
        try:
            result = fn(*args, **kwargs)
        except Exception as error:
            self._heard(error)
            raise
        try:
            self._heard(result)
        except RateLimitedError:
            _close(result)
            raise
        return result

    async def _aattempt(self, fn: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        wait = self._wait()
        if wait:
            await self.clock.asleep(wait)
        self._begin()
        try:
            result = await fn(*args, **kwargs)
        except Exception as error:
            self._heard(error)
            raise
        try:
            self._heard(result)
        except RateLimitedError:
            await _aclose(result)
            raise
        return result

    # ------------------------------------------------------------------ what both share

    def _wait(self) -> float:
        """Seconds to wait before a call; raises where it is not to be made."""
        pace = self._pace
        limited = pace.retry_after(self.clock.monotonic())
        if self.strategy == "reject":
            if limited:
                raise self._limited(limited)
            return 0.0
        wait = max(limited, pace.slow_down())
        left = remaining()
        if wait > pace.rules.max_wait or (left is not None and wait >= left):
            raise self._limited(wait)
        return wait

    def _begin(self) -> None:
        with self._lock:
            self._pace.begin()

    def _heard(self, outcome: object) -> None:
        """Learn from a response or an error; raise where the server said "later"."""
        answer = answer_in(outcome, self.clock.time())
        if answer is None:
            return
        with self._lock:
            refusal = self._pace.heard(*answer, self.clock.monotonic())
        if refusal is not None:
            cause = outcome if isinstance(outcome, BaseException) else None
            raise self._limited(refusal.retry_after, refusal) from cause

    def _limited(self, wait: float, refusal: Refusal | None = None) -> RateLimitedError:
        limit = None if refusal is None else refusal.hints.limit
        return RateLimitedError(self.name, wait, limit, self._pace.remaining, None, self._pace.backpressure, "remote")

    def _exhausted(self, outcome: Outcome) -> NoReturn:
        """No further attempt. Asked for a wait that is too long, it says so itself."""
        error = outcome.error
        wait = getattr(error, "retry_after", None) or 0.0
        if error is not None and wait > self._pace.rules.max_wait:
            raise error
        raise RetryExhaustedError(self.name, outcome.attempts, None, wait) from error


def _close(response: Any) -> None:
    """Give back the connection of a response that nobody gets to see."""
    close = getattr(response, "close", None)
    if close is not None:
        close()


async def _aclose(response: Any) -> None:
    close = getattr(response, "aclose", None)
    if close is None:
        _close(response)
    else:
        await close()


def _attempts(max_retries: object) -> int:
    if isinstance(max_retries, bool) or not isinstance(max_retries, int) or max_retries < 0:
        raise ConfigError("adaptive client", "max_retries", "must be a whole number of at least 0", repr(max_retries))
    return max_retries + 1
