"""How annotations beyond the standard take part: what stands beside `Retry`, and the layers that the standard lacks."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

from everkeel.errors import RetryExhaustedError
from everkeel.microprofile import fallbacks
from everkeel.microprofile.annotations import Annotation, Retry
from everkeel.microprofile.backoffs import Delays
from everkeel.microprofile.calls import real, the_call
from everkeel.microprofile.driver import in_a_worker
from everkeel.microprofile.exceptions import (
    FaultToleranceDefinitionException,
    FaultToleranceException,
    RateLimitException,
)
from everkeel.microprofile.extras import BACKOFFS, Backoff, BeforeRetry, RateLimit, RetryWhen
from everkeel.microprofile.instruments import tell_after_fork
from everkeel.microprofile.metrics import RateLimitMetrics
from everkeel.microprofile.taps import Tap
from everkeel.runtime.clock import DEFAULT
from everkeel.runtime.state import CallKind
from everkeel.runtime.trouble import report

if TYPE_CHECKING:
    from everkeel.microprofile.assembly import Plan
    from everkeel.microprofile.levels import Declared

BESIDE_RETRY = (*BACKOFFS, "RetryWhen", "BeforeRetry")
"""They say more about a `Retry`, and mean nothing without one."""


def check(
    records: dict[str, Annotation],
    declared: Mapping[str, Declared],
    rank: Callable[[Declared], int],
    where: str,
    kind: str,
) -> None:
    """Take out what belongs to a `Retry` that is not in force; a definition error where there is none to belong to.

    Args:
        records: What is in force on a method.
        declared: All its annotations, and where they stand.
        rank: How near to the method a place is, 0 being the method itself.
        where: The class and method, for messages.
        kind: What a call of the method returns.
    """
    for name in BESIDE_RETRY:
        if name not in declared:
            continue
        retry = declared.get("Retry")
        if retry is None or rank(retry) > rank(declared[name]):
            allowed = "must stand beside a Retry, on the same method or the same class"
            raise FaultToleranceDefinitionException(where, name, allowed)
        if rank(retry) < rank(declared[name]) or "Retry" not in records:
            records.pop(name, None)  # the Retry it belongs to was replaced, or is disabled
    _check_together(records, where, kind)


def check_in_guard(records: dict[str, Annotation], declared: Mapping[str, Annotation], where: str) -> None:
    """The same for the annotations of a guard, which all stand at one place."""
    for name in BESIDE_RETRY:
        if name in declared and "Retry" not in declared:
            raise FaultToleranceDefinitionException(where, name, "must stand beside a Retry, in the same guard")
        if "Retry" not in records:
            records.pop(name, None)
    _check_together(records, where, "sync")


def _check_together(records: dict[str, Annotation], where: str, kind: str) -> None:
    if len([name for name in BACKOFFS if name in records]) > 1:
        raise FaultToleranceDefinitionException(where, "backoff", "must be one at most: " + ", ".join(BACKOFFS))
    for record in list(records.values()):
        if isinstance(record, Backoff | RetryWhen):
            record.check_beside(cast("Retry", records["Retry"]), where)
    if kind == "future" and "RetryWhen" in records and cast("RetryWhen", records["RetryWhen"]).result is not None:
        allowed = "cannot see what a concurrent.futures.Future will hold: return an awaitable, or write an async def"
        raise FaultToleranceDefinitionException(where, "RetryWhen.result", allowed)
    if "CircuitBreakerName" in records and "CircuitBreaker" not in records:
        records.pop("CircuitBreakerName")  # disabled, or never there: a name of nothing


def delays_of(plan: Plan) -> Callable[[], Delays] | None:
    """What makes the delays of one call, where a backoff says so."""
    backoff = next((record for record in plan.records.values() if isinstance(record, Backoff)), None)
    retry = cast("Retry", plan.records["Retry"])
    return None if backoff is None else lambda: backoff.delays(retry)


def predicates_of(plan: Plan) -> tuple[Callable[[Any], bool] | None, Callable[[BaseException], bool] | None]:
    """On which results and on which exceptions to retry, where `RetryWhen` says so."""
    record = plan.records.get("RetryWhen")
    if not isinstance(record, RetryWhen):
        return None, None
    on_result, on_error = (_made(one) for one in (record.result, record.exception))
    return on_result, None if on_error is None else lambda error: bool(on_error(real(error)))


def _made(predicate: Any) -> Callable[[Any], bool] | None:
    return cast("Callable[[Any], bool] | None", predicate() if isinstance(predicate, type) else predicate)


# ------------------------------------------------------------------ layers


class Limiter:
    """What calls share that a `RateLimit` counts."""

    __slots__ = ("__weakref__", "_lock", "_rate", "permits")

    def __init__(self, record: RateLimit) -> None:
        self._rate, self.permits = record.rate(), record.value
        self._lock = threading.Lock()
        tell_after_fork(self)

    def after_fork(self) -> None:
        """A lock that nobody holds."""
        self._lock = threading.Lock()

    def wait(self) -> float:
        """0 where a call may go ahead; otherwise the seconds to wait."""
        with self._lock:
            return self._rate.wait_for(DEFAULT.monotonic())


class Limiting(Tap):
    """Inside of the circuit breaker, outside of the timeout: lets a call pass, or says when to come back."""

    __slots__ = ("_limiter", "_metrics", "_name")

    def __init__(self, limiter: Limiter, name: str, metrics: RateLimitMetrics | None) -> None:
        self._limiter, self._name, self._metrics = limiter, name, metrics

    def enter(self) -> None:
        wait = self._limiter.wait()
        if self._metrics is not None:
            self._metrics.ended(permitted=not wait)
        if wait:
            raise RateLimitException(self._name, wait, self._limiter.permits, 0, None, None, "local")


class BeforeEachRetry(Tap):
    """Between the retry and its attempts: runs what `BeforeRetry` names, before each attempt but the first."""

    __slots__ = ("_act", "_kind", "_where")

    def __init__(self, plan: Plan, record: BeforeRetry) -> None:
        self._kind, self._where = plan.kind, plan.tag
        self._act = _action(plan, record)

    def fragment(self, kind: CallKind) -> str | None:
        """It wants to see the arguments of the call: what is inside of it is a function that it calls."""
        return None

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if the_call().attempts:
            try:
                self._act(args, kwargs)
            except Exception as broken:
                report(f"{self._where}: BeforeRetry raised", broken)
        with _noted():
            return fn(*args, **kwargs)

    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if the_call().attempts:
            try:
                if self._kind == "coroutine":
                    result = self._act(args, kwargs)
                    if inspect.isawaitable(result):
                        await result
                else:
                    await in_a_worker(self._where, self._act, (args, kwargs), {})
            except Exception as broken:
                report(f"{self._where}: BeforeRetry raised", broken)
        with _noted():
            return await fn(*args, **kwargs)


@contextmanager
def _noted() -> Generator[None]:
    """Keep what the attempt raises, for whoever runs before the next one."""
    call = the_call()
    call.failure = None
    try:
        yield
    except Exception as error:
        call.failure = real(error)
        raise


def _action(plan: Plan, record: BeforeRetry) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    if record.value is not None:
        handler, target, bound = record.value, plan.target, plan.bound

        def handle(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            receiver, rest = (args[0], args[1:]) if bound else (None, args)
            failure = the_call().failure
            context = fallbacks.ExecutionContext(target.fn, rest, failure, dict(kwargs), receiver)  # type: ignore[arg-type]  # None after a result
            return fallbacks.make_handler(handler).handle(context)

        return handle
    name = record.method_name or ""
    other = fallbacks.found(plan.target, name)
    if other is None:
        raise record.wrong(plan.tag, "method_name", "must be the name of a method beside the guarded one", name)
    needed = [one for one in inspect.signature(other).parameters.values() if one.default is one.empty]
    if len([one for one in needed if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]) > int(plan.bound):
        raise record.wrong(plan.tag, "method_name", "must be the name of a method without parameters", name)
    attribute = fallbacks.attribute_of(plan.target, name)
    if plan.bound:
        return lambda args, kwargs: getattr(args[0], attribute)()
    return lambda args, kwargs: other()


class Unsatisfied(Tap):
    """Outside of the retry: where no attempt gave a result that was wanted, there is no exception to raise again."""

    __slots__ = ("_policy", "_where")

    def __init__(self, where: str, policy: str | None) -> None:
        self._where, self._policy = where, policy

    def failed(self, permit: None, error: BaseException) -> None:
        if isinstance(error, RetryExhaustedError) and error.policy == self._policy:
            raise FaultToleranceException(
                f"{self._where}: {error.attempts} attempts, and no result that RetryWhen accepts"
            ) from None
