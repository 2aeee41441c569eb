"""Annotations beyond the standard as decorators, to be used beside its own.

They mean what Java services know by the same names. Configuration keys, levels and validation are the standard's.
"""

# ruff: noqa: N802, N803 - functions and parameters named like the standard's
from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

from everkeel.microprofile import extras as said
from everkeel.microprofile.decorators import Decorator, Length, Unit, _annotation, _with_value

F = TypeVar("F", bound=Callable[..., Any])


class RateLimitParameters(TypedDict, total=False):
    """What `RateLimit` takes beside its value."""

    window: Length
    window_unit: Unit
    windowUnit: Unit
    min_spacing: Length
    minSpacing: Length
    min_spacing_unit: Unit
    minSpacingUnit: Unit
    type: Literal["FIXED", "ROLLING", "SMOOTH"]


class FibonacciBackoffParameters(TypedDict, total=False):
    """What `FibonacciBackoff` takes."""

    max_delay: Length
    maxDelay: Length
    max_delay_unit: Unit
    maxDelayUnit: Unit


class ExponentialBackoffParameters(FibonacciBackoffParameters, total=False):
    """What `ExponentialBackoff` takes."""

    factor: int


@overload
def RateLimit(target: F, /) -> F: ...
@overload
def RateLimit(value: int = ..., /, **parameters: Unpack[RateLimitParameters]) -> Decorator: ...
def RateLimit(value: Any = None, /, **parameters: Any) -> Any:
    """Let the method be called `value` (100) times in each `window` (1) in `window_unit` (SECONDS).

    Further calls are refused with `RateLimitException`, which says when to come back. It stands between circuit breaker
    and timeout. `type` is FIXED, ROLLING (any stretch of time counts) or SMOOTH (evenly spread); `min_spacing` (0) in
    `min_spacing_unit` (SECONDS) is the least time between two calls.

    >>> from everkeel.microprofile import RateLimit, RateLimitException
    >>> @RateLimit(1, window=60)
    ... def report() -> str:
    ...     return "done"
    >>> report()
    'done'
    >>> try:
    ...     report()
    ... except RateLimitException as error:
    ...     error.limit
    1
    """
    return _with_value(said.RateLimit, value, parameters)


@overload
def ExponentialBackoff(target: F, /) -> F: ...
@overload
def ExponentialBackoff(**parameters: Unpack[ExponentialBackoffParameters]) -> Decorator: ...
def ExponentialBackoff(target: Any = None, /, **parameters: Any) -> Any:
    """Let the delay of a `Retry` grow by `factor` (2) each time, up to `max_delay` (60000; 0: no end) MILLIS.

    >>> from everkeel.microprofile import ExponentialBackoff, Retry
    >>> @Retry(delay=100)
    ... @ExponentialBackoff(factor=3)
    ... def fetch() -> None: ...
    """
    return _annotation(said.ExponentialBackoff, target, parameters)


@overload
def FibonacciBackoff(target: F, /) -> F: ...
@overload
def FibonacciBackoff(**parameters: Unpack[FibonacciBackoffParameters]) -> Decorator: ...
def FibonacciBackoff(target: Any = None, /, **parameters: Any) -> Any:
    """Let the delay of a `Retry` grow to twice, three times, five times itself, up to `max_delay` (60000) MILLIS.

    >>> from everkeel.microprofile import FibonacciBackoff, Retry
    >>> @Retry(delay=100)
    ... @FibonacciBackoff
    ... def fetch() -> None: ...
    """
    return _annotation(said.FibonacciBackoff, target, parameters)


def CustomBackoff(value: type, /) -> Decorator:
    """Let an object of a class of yours say each delay of a `Retry`: see `CustomBackoffStrategy`.

    >>> from everkeel.microprofile import CustomBackoff, Retry
    >>> class Patient:
    ...     def init(self, initial_delay_in_millis: int) -> None:
    ...         self.delay = initial_delay_in_millis
    ...     def next_delay_in_millis(self, exception: BaseException | None) -> int:
    ...         return 60_000 if isinstance(exception, ConnectionError) else self.delay
    >>> @Retry(delay=100)
    ... @CustomBackoff(Patient)
    ... def fetch() -> None: ...
    """
    decorator: Decorator = _annotation(said.CustomBackoff, None, {"value": value})
    return decorator


def RetryWhen(
    *, result: Callable[[Any], bool] | None = None, exception: Callable[[BaseException], bool] | None = None
) -> Decorator:
    """Let functions decide what a `Retry` tries again: a result, an exception, or both.

    Where no attempt gives a result that is wanted, the call ends in a `FaultToleranceException`.

    >>> from everkeel.microprofile import Retry, RetryWhen
    >>> answers = iter([None, "ready"])
    >>> @Retry(jitter=0)
    ... @RetryWhen(result=lambda answer: answer is None)
    ... def poll() -> str | None:
    ...     return next(answers)
    >>> poll()
    'ready'
    """
    decorator: Decorator = _annotation(said.RetryWhen, None, {"result": result, "exception": exception})
    return decorator


def BeforeRetry(
    value: type | None = None, /, *, method_name: str | None = None, methodName: str | None = None
) -> Decorator:
    """Run something before each retry: a handler class, as for `Fallback`, or a method without parameters.

    What it raises is logged, and the retry is made all the same.

    >>> from everkeel.microprofile import BeforeRetry, Retry
    >>> class Client:
    ...     @Retry
    ...     @BeforeRetry(method_name="reconnect")
    ...     def fetch(self) -> None: ...
    ...     def reconnect(self) -> None: ...
    """
    given = {"value": value, "method_name": method_name, "methodName": methodName}
    spelt = {name: one for name, one in given.items() if one is not None}
    decorator: Decorator = _annotation(said.BeforeRetry, None, spelt)
    return decorator


def CircuitBreakerName(value: str, /) -> Decorator:
    """Give the `CircuitBreaker` beside it a name, by which `current_state`, `on_state_change` and `reset` know it.

    >>> from everkeel.microprofile import CircuitBreaker, CircuitBreakerName
    >>> @CircuitBreaker
    ... @CircuitBreakerName("ledger")
    ... def post() -> None: ...
    """
    decorator: Decorator = _annotation(said.CircuitBreakerName, None, {"value": value})
    return decorator


def ApplyGuard(value: str, /) -> Decorator:
    """Guard a method by a `Guard` that was built elsewhere, of this name: its state is shared by all who apply it.

    Other annotations on the method are ignored, but for `Fallback` and `Asynchronous`. Metrics are the method's own.

    >>> from everkeel.microprofile import ApplyGuard, Bulkhead, Guard
    >>> printer = Guard("docs.printer", Bulkhead(1))
    >>> @ApplyGuard("docs.printer")
    ... def print_report() -> str:
    ...     return "printed"
    >>> print_report()
    'printed'
    """
    decorator: Decorator = _annotation(said.ApplyGuard, None, {"value": value})
    return decorator
