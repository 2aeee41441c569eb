"""The six annotations as decorators: bare or with parameters, on functions, methods and (but for `Fallback`) classes.

Parameters have the standard's names or the same in snake_case. In which order decorators stand does not matter.
"""

# ruff: noqa: N802 - functions with the names of the standard's annotations
from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, Protocol, TypeAlias, TypedDict, TypeVar, Unpack, overload

from everkeel.microprofile import annotations as said
from everkeel.microprofile.annotations import Annotation, ChronoUnit
from everkeel.microprofile.guards import RECORD
from everkeel.microprofile.levels import annotate

F = TypeVar("F", bound=Callable[..., Any])
Exceptions: TypeAlias = type[BaseException] | Iterable[type[BaseException]]
Unit: TypeAlias = ChronoUnit | str
Length: TypeAlias = int | timedelta


class Decorator(Protocol):
    """Whatever it decorates keeps its type."""

    def __call__(self, target: F, /) -> F:
        """The same, guarded."""
        ...


class RetryParameters(TypedDict, total=False):
    """What `Retry` takes."""

    max_retries: int
    maxRetries: int
    delay: Length
    delay_unit: Unit
    delayUnit: Unit
    max_duration: Length
    maxDuration: Length
    duration_unit: Unit
    durationUnit: Unit
    jitter: Length
    jitter_delay_unit: Unit
    jitterDelayUnit: Unit
    retry_on: Exceptions
    retryOn: Exceptions
    abort_on: Exceptions
    abortOn: Exceptions


class TimeoutParameters(TypedDict, total=False):
    """What `Timeout` takes beside its value."""

    unit: Unit


class FallbackParameters(TypedDict, total=False):
    """What `Fallback` takes beside a handler."""

    fallback_method: str
    fallbackMethod: str
    apply_on: Exceptions
    applyOn: Exceptions
    skip_on: Exceptions
    skipOn: Exceptions


class CircuitBreakerParameters(TypedDict, total=False):
    """What `CircuitBreaker` takes."""

    fail_on: Exceptions
    failOn: Exceptions
    skip_on: Exceptions
    skipOn: Exceptions
    delay: Length
    delay_unit: Unit
    delayUnit: Unit
    request_volume_threshold: int
    requestVolumeThreshold: int
    failure_ratio: float
    failureRatio: float
    success_threshold: int
    successThreshold: int


class BulkheadParameters(TypedDict, total=False):
    """What `Bulkhead` takes beside its value."""

    waiting_task_queue: int
    waitingTaskQueue: int


def _annotation(kind: type[Annotation], target: Any, parameters: dict[str, Any]) -> Any:
    """A decorator, or what it has decorated already when it was written without parentheses."""
    record = kind(**parameters)
    if target is not None:
        return annotate(target, record)

    def decorate(target: F) -> F:
        return annotate(target, record)

    setattr(decorate, RECORD, record)  # for guards, which collect decorators rather than decorating
    return decorate


@overload
def Retry(target: F, /) -> F: ...
@overload
def Retry(**parameters: Unpack[RetryParameters]) -> Decorator: ...
def Retry(target: Any = None, /, **parameters: Any) -> Any:
    """Try again when the method fails, up to `max_retries` times.

    Args:
        target: What it decorates, when written without parentheses.
        parameters: `max_retries` 3 (-1: no limit); `delay` 0 and `delay_unit` MILLIS before each retry; `jitter` 200
            and `jitter_delay_unit` MILLIS, added to or taken from the delay at random; `max_duration` 180000 (0: no
            limit) and `duration_unit` MILLIS, after which no attempt begins; `retry_on` Exception; `abort_on` nothing,
            which wins over `retry_on`.

    When there is no further attempt the last one's exception is raised as it is.

    >>> from everkeel.microprofile import Retry
    >>> attempts = iter([ConnectionError("reset"), "answer"])
    >>> @Retry(max_retries=1, jitter=0)
    ... def fetch() -> str:
    ...     if isinstance(step := next(attempts), Exception):
    ...         raise step
    ...     return step
    >>> fetch()
    'answer'
    """
    return _annotation(said.Retry, target, parameters)


@overload
def Timeout(target: F, /) -> F: ...
@overload
def Timeout(value: Length = ..., **parameters: Unpack[TimeoutParameters]) -> Decorator: ...
def Timeout(value: Any = None, **parameters: Any) -> Any:
    """End the method with `TimeoutException` when it takes longer than `value` (1000) in `unit` (MILLIS); 0: no limit.

    A plain `def` runs on its caller's thread and must cooperate: `everkeel.sleep()` and
    `everkeel.current_cancellation()` tell it when to stop. The call returns when the body does, and then raises. An
    `async def` is cancelled, a method marked `Asynchronous` left behind, both at once.

    >>> from everkeel import sleep
    >>> from everkeel.microprofile import Timeout, TimeoutException
    >>> @Timeout(10)
    ... def slow() -> str:
    ...     sleep(60)
    ...     return "late"
    >>> try:
    ...     slow()
    ... except TimeoutException as error:
    ...     error.seconds
    0.01
    """
    return _with_value(said.Timeout, value, parameters)


@overload
def Fallback(value: type, /, **parameters: Unpack[FallbackParameters]) -> Decorator: ...
@overload
def Fallback(*, value: type = ..., **parameters: Unpack[FallbackParameters]) -> Decorator: ...
def Fallback(value: Any = None, /, **parameters: Any) -> Any:
    """Answer with something else when the method has failed for good.

    Args:
        value: A handler class: an object of it is made for each use, and its `handle(context)` gives the answer.
        parameters: `fallback_method`, in place of a handler: the name of a method of the same class (or function of the
            same module) that takes the same arguments; `apply_on` everything; `skip_on` nothing, which wins over it.

    >>> from everkeel.microprofile import Fallback
    >>> class Weather:
    ...     @Fallback(fallback_method="unknown")
    ...     def forecast(self, city: str) -> str:
    ...         raise ConnectionError("service is down")
    ...     def unknown(self, city: str) -> str:
    ...         return f"nobody knows about {city}"
    >>> Weather().forecast("Oslo")
    'nobody knows about Oslo'
    """
    if value is not None and not (isinstance(value, type) and hasattr(value, "handle")):
        return annotate(value, said.Fallback(**parameters))  # bare: on a class, or without a handler; both are errors
    return _annotation(said.Fallback, None, parameters if value is None else {"value": value, **parameters})


@overload
def CircuitBreaker(target: F, /) -> F: ...
@overload
def CircuitBreaker(**parameters: Unpack[CircuitBreakerParameters]) -> Decorator: ...
def CircuitBreaker(target: Any = None, /, **parameters: Any) -> Any:
    """Stop calling a method that keeps failing, and try it again after a while.

    Args:
        target: What it decorates, when written without parentheses.
        parameters: It opens when of the last `request_volume_threshold` (20) results a share of `failure_ratio` (0.5)
            are failures; raises `CircuitBreakerOpenException` for `delay` (5000) in `delay_unit` (MILLIS); then admits
            `success_threshold` (1) trials and closes when all of them succeed. `fail_on` everything; `skip_on` nothing,
            which wins over it.

    >>> from everkeel.microprofile import CircuitBreaker, CircuitBreakerOpenException
    >>> @CircuitBreaker(request_volume_threshold=2)
    ... def charge() -> None:
    ...     raise ConnectionError("no route to the bank")
    >>> for _ in range(3):
    ...     try:
    ...         charge()
    ...     except (ConnectionError, CircuitBreakerOpenException) as error:
    ...         print(type(error).__name__)
    ConnectionError
    ConnectionError
    CircuitBreakerOpenException
    """
    return _annotation(said.CircuitBreaker, target, parameters)


@overload
def Bulkhead(target: F, /) -> F: ...
@overload
def Bulkhead(value: int = ..., **parameters: Unpack[BulkheadParameters]) -> Decorator: ...
def Bulkhead(value: Any = None, **parameters: Any) -> Any:
    """Let at most `value` (10) executions run at once; others are rejected with `BulkheadException`.

    Together with `Asynchronous`, `waiting_task_queue` (10) more may wait for a place. State belongs to the class of the
    object and the method: all objects of a class share it.

    >>> from everkeel.microprofile import Bulkhead
    >>> @Bulkhead(2)
    ... def report() -> str:
    ...     return "done"
    >>> report()
    'done'
    """
    return _with_value(said.Bulkhead, value, parameters)


@overload
def Asynchronous(target: F, /) -> F: ...
@overload
def Asynchronous() -> Decorator: ...
def Asynchronous(target: Any = None, /, **parameters: Any) -> Any:
    """Return at once; the method runs in a worker thread (an `async def`: in the event loop, as it does anyway).

    A plain `def` must be declared to return a `concurrent.futures.Future` or an awaitable. The call gives an
    `AsyncResult`, which is both. An `async def` gives a coroutine, as ever: nothing of it runs before it is awaited.

    >>> from concurrent.futures import Future
    >>> from everkeel.microprofile import Asynchronous, completed
    >>> @Asynchronous
    ... def answer() -> Future[int]:
    ...     return completed(42)
    >>> answer().result()
    42
    """
    return _annotation(said.Asynchronous, target, parameters)


def _with_value(kind: type[Annotation], value: Any, parameters: dict[str, Any]) -> Any:
    """The first argument is the annotation's value, or what it decorates when written without parentheses."""
    if callable(value) or isinstance(value, staticmethod | classmethod | property):
        return _annotation(kind, value, parameters)
    return _annotation(kind, None, parameters if value is None else {"value": value, **parameters})
