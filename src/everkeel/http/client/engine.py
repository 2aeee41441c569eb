"""The policies around one request, and the two drivers, sync and async, that send it through them.

Outermost first: retry (with the end of the whole call), circuit breaker, rate limit, concurrency limit, timeout of one
attempt, hedge. The hedge is innermost here, other than in `guard`: were it around the retry, it would start a second
request while the first one waits because the server asked it to.

A status that counts as a failure travels through the policies as an `HTTPStatusError` and becomes the response again at
the end, so that each policy sees a failure as it sees any other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable, iscoroutinefunction
from typing import Any, TypeVar

from everkeel.compose.chain import Pipeline
from everkeel.errors import HTTPStatusError, TimeoutExceededError
from everkeel.http.client.call import CURRENT, Call
from everkeel.http.client.config import PLAIN, ClientConfig, RequestConfig, options_for
from everkeel.http.client.dialect import Dialect
from everkeel.http.client.learned import LearnedLimit
from everkeel.http.hints import NOTHING
from everkeel.policies.circuit_breaker.policy import CircuitBreaker, circuit_breaker
from everkeel.policies.concurrency.policy import ConcurrencyLimit, concurrency_limit
from everkeel.policies.hedge.policy import Hedge, hedge
from everkeel.policies.retry.attempt import Attempt
from everkeel.policies.retry.policy import Retry, retry
from everkeel.policies.timeout.policy import Timeout, timeout
from everkeel.runtime.clock import DEFAULT, Clock
from everkeel.runtime.policy import AnyPolicy
from everkeel.runtime.trouble import report

Send = Callable[[Any], Any]
ASend = Callable[[Any], Awaitable[Any]]

T = TypeVar("T")

_MOST_PLANS = 64  # of requests with settings of their own; more are made anew each time


class Engine:
    """The policies of one client. `send` and `asend` take one request through them."""

    def __init__(
        self,
        name: str | None,
        config: ClientConfig,
        dialect: Dialect,
        *,
        is_async: bool,
        clock: Clock | None = None,
        replace: bool = False,
    ) -> None:
        self.name, self.config, self.dialect, self.is_async = name, config, dialect, is_async
        self.clock = dialect.clock = clock or DEFAULT
        if not is_async and iscoroutinefunction(config.before_retry):
            raise config.wrong("before_retry", config.before_retry, "must be a plain function: this client is sync")
        given: dict[str, Any] = {"clock": clock, "replace": replace}
        self.retry = self._make_retry(given)
        self.circuit_breaker = self._make_breaker(given)
        self.rate_limit = self._make_rate_limit(given)
        self.concurrency_limit = self._make_concurrency_limit(given)
        self.hedge = self._make_hedge(given)
        self.timeout = None if config.attempt_timeout is None else self._make_timeout(config.attempt_timeout, given)
        self._plans: dict[tuple[Any, ...], tuple[Pipeline, Pipeline]] = {}
        self._usual = self._plan(PLAIN)

    # ------------------------------------------------------------------ the policies

    def _make_retry(self, given: dict[str, Any]) -> Retry:
        config = self.config
        return retry(
            self.name,
            attempts=config.attempts,
            ignore=_not_to_retry,  # and not `on`: the expiry of a time limit is retried unless it is ignored
            backoff=config.backoff,
            jitter=config.jitter,
            max_retry_after=config.max_retry_after,
            max_duration=config.max_duration,
            # Where attempts have an end of their own, that ends them in a worker: one thread for each is enough.
            runs="worker" if config.attempt_timeout is None else "inline",
            budget=config.budget,
            before_retry=self._abefore_retry if self.is_async else self._before_retry,
            mode=config.mode,
            **given,
        )

    def _make_breaker(self, given: dict[str, Any]) -> CircuitBreaker | None:
        values = _wanted(
            self.config.circuit_breaker,
            mode=self.config.mode,
            max_keys=self.config.max_origins,
            on=_is_bad_health,
            ignore=_says_nothing,
            key=_origin,
        )
        if values is None:
            return None
        return self._make("circuit_breaker", circuit_breaker, values | given)

    def _make_rate_limit(self, given: dict[str, Any]) -> LearnedLimit | None:
        values = _wanted(self.config.rate_limit)
        if values is None:
            return None
        longest, most = self.config.max_retry_after, self.config.max_origins
        rest = {"longest": longest, "most": most, "mode": self.config.mode, **given}
        return self._make("rate_limit", LearnedLimit, {"settings": values} | rest)

    def _make(self, setting: str, make: Callable[..., T], values: dict[str, Any]) -> T:
        """A policy from a table of the user's; a name in it that the policy does not know is a wrong setting."""
        try:
            return make(name=self.name, **values)
        except TypeError as error:
            raise self.config.wrong(
                setting, getattr(self.config, setting), f"must have known settings: {error}"
            ) from None

    def _make_concurrency_limit(self, given: dict[str, Any]) -> ConcurrencyLimit | None:
        values = _wanted(
            self.config.concurrency_limit,
            mode=self.config.mode,
            max_keys=self.config.max_origins,
            queue=1000,
            on=_is_overload,
            key=_origin,
        )
        if values is None:
            return None
        return self._make("concurrency_limit", concurrency_limit, values | given)

    def _make_hedge(self, given: dict[str, Any]) -> Hedge | None:
        values = _wanted(self.config.hedge, mode=self.config.mode)
        # Against slowness alone: an attempt that failed is for the retry, which waits before the next one.
        return None if values is None else self._make("hedge", hedge, {"on": _never} | values | given)

    def _make_timeout(self, seconds: float, given: Mapping[str, Any]) -> Timeout:
        return timeout(seconds, self.name, mode=self.config.mode, **given)

    def policies(self) -> tuple[AnyPolicy, ...]:
        """All of them, outermost first."""
        return self._usual[0].policies

    def _plan(self, options: RequestConfig) -> tuple[Pipeline, Pipeline]:
        """The policies for requests with these settings, with the hedge and without it."""
        changes = options.plan()
        key = (options.attempt_timeout, *changes.items())
        found = self._plans.get(key)
        if found is not None:
            return found
        one_try = self.timeout
        if options.attempt_timeout is not None:
            one_try = timeout(options.attempt_timeout, mode=self.config.mode, clock=self._own_clock())
            changes["runs"] = "inline"
        again = self.retry.derive(None, **changes) if changes else self.retry
        limit = None if self.rate_limit is None else self.rate_limit.policy
        always = [one for one in (again, self.circuit_breaker, limit, self.concurrency_limit, one_try) if one]
        hedged = always if self.hedge is None else [*always, self.hedge]
        made = Pipeline(*hedged), Pipeline(*always)
        if len(self._plans) < _MOST_PLANS:
            self._plans[key] = made
        return made

    def _own_clock(self) -> Clock | None:
        return None if self.clock is DEFAULT else self.clock

    # ------------------------------------------------------------------ the drivers

    def begin(self, request: Any, *, streamed: bool) -> tuple[Call, Pipeline]:
        """The record of a request, and the policies it goes through."""
        options = options_for(self.dialect.options(request))
        call = Call(request, self.config, self.dialect, options, streamed=streamed)
        hedged, plain = self._usual if options is PLAIN else self._plan(options)
        return call, hedged if self.hedge is not None and call.hedgeable() else plain

    def send(self, request: Any, send: Send, *, streamed: bool = False) -> Any:
        """The response to a request, which `send` sends. `streamed`: its body is for the caller to read."""
        call, policies = self.begin(request, streamed=streamed)
        token, response = CURRENT.set(call), None
        try:
            try:
                response = policies.call(self._attempt, call, send)
            except HTTPStatusError as failure:
                if call.raises() or failure.response is None:
                    self._keep(failure)
                    raise
                response = failure.response
            return response
        finally:
            CURRENT.reset(token)
            self._release(call.unwanted(but=response, over=True))

    async def asend(self, request: Any, send: ASend) -> Any:
        """The same for a coroutine."""
        call, policies = self.begin(request, streamed=False)
        token, response = CURRENT.set(call), None
        try:
            try:
                response = await policies.acall(self._aattempt, call, send)
            except HTTPStatusError as failure:
                if call.raises() or failure.response is None:
                    await self._akeep(failure)
                    raise
                response = failure.response
            return response
        finally:
            CURRENT.reset(token)
            unwanted = call.unwanted(but=response, over=True)
            if unwanted:
                await self._arelease(unwanted)

    def _attempt(self, call: Call, send: Send) -> Any:
        request = self._prepare(call)
        response = send(request)
        if not call.hold(response):
            self._release([response])
            raise self._too_late()
        if call.buffer:
            self.dialect.buffer(response)
        return self._judge(call, request, response)

    async def _aattempt(self, call: Call, send: ASend) -> Any:
        request = self._prepare(call)
        response = await send(request)
        if not call.hold(response):
            await self._arelease([response])
            raise self._too_late()
        if call.buffer:
            await self.dialect.abuffer(response)
        return self._judge(call, request, response)

    # ------------------------------------------------------------------ what both share

    def _too_late(self) -> TimeoutExceededError:
        """For an attempt that was given up on and has its answer now: nobody but the breaker gets to see it."""
        return TimeoutExceededError(self.name, self.config.max_duration or 0.0, "http client")

    def _prepare(self, call: Call) -> Any:
        request = call.prepare()
        if self.rate_limit is not None:
            self.rate_limit.sent(call.origin)
        return request

    def _judge(self, call: Call, request: Any, response: Any) -> Any:
        """Learn from a response; hand it on, or raise what it is to the policies."""
        hints = self.dialect.hints(response)
        if self.rate_limit is not None and hints is not NOTHING:
            self.rate_limit.heard(call.origin, hints)
        failure = call.failure(request, response, hints, self.name)
        if failure is not None:
            raise failure
        return response

    # ------------------------------------------------------------------ between attempts

    def _before_retry(self, attempt: Attempt) -> None:
        call = CURRENT.get()
        if call is None:  # pragma: no cover - the retry is ours alone, and only used in `send`
            return
        self._release(call.unwanted())  # before the wait, and not after it
        hook = self.config.before_retry
        if hook is not None:
            call.change(hook(call.request, attempt))

    async def _abefore_retry(self, attempt: Attempt) -> None:
        call = CURRENT.get()
        if call is None:  # pragma: no cover
            return
        await self._arelease(call.unwanted())
        hook = self.config.before_retry
        if hook is not None:
            changed = hook(call.request, attempt)
            call.change(await changed if isawaitable(changed) else changed)

    # ------------------------------------------------------------------ giving back

    def _release(self, responses: list[Any]) -> None:
        for response in responses:
            try:
                self.dialect.close(response)
            except Exception as broken:
                report("http client: a response could not be closed", broken)

    async def _arelease(self, responses: list[Any]) -> None:
        interrupted: BaseException | None = None
        for response in responses:
            try:
                await self.dialect.aclose(response)
            except Exception as broken:
                report("http client: a response could not be closed", broken)
            except GeneratorExit:
                raise  # nothing may be awaited any more
            except BaseException as error:
                interrupted = error  # cancelled: not before the others are closed too
        if interrupted is not None:
            raise interrupted

    def _keep(self, failure: HTTPStatusError) -> None:
        """The error leaves with its response: read what is small of it, and give back the connection."""
        try:
            if failure.response is not None:
                self.dialect.close(failure.response, keep=True)
        except Exception as broken:
            report("http client: a response could not be closed", broken)

    async def _akeep(self, failure: HTTPStatusError) -> None:
        try:
            if failure.response is not None:
                await self.dialect.aclose(failure.response, keep=True)
        except Exception as broken:
            report("http client: a response could not be closed", broken)


def _wanted(setting: bool | Mapping[str, Any], **defaults: Any) -> dict[str, Any] | None:
    """The settings of a policy; None where it is not wanted."""
    if setting is False:
        return None
    return {**defaults, **(setting if isinstance(setting, Mapping) else {})}


def _origin(call: Call, *rest: Any) -> Any:
    return call.origin


def _never(error: BaseException) -> bool:
    return False


def _not_to_retry(error: BaseException) -> bool:
    call = CURRENT.get()
    return call is None or not call.may_retry(error)


def _is_bad_health(error: BaseException) -> bool:
    """What a breaker counts. 408, 425 and 429 are answers of a server that is well."""
    if isinstance(error, HTTPStatusError):
        return error.status >= 500
    call = CURRENT.get()
    return call is not None and call.is_network_trouble(error)


def _says_nothing(error: BaseException) -> bool:
    """A request that never got to the server (no connection free, not to be sent at all) is no evidence about it."""
    return not isinstance(error, HTTPStatusError) and not _is_bad_health(error)


def _is_overload(error: BaseException) -> bool:
    call = CURRENT.get()
    return call is not None and call.is_overload(error)
