"""What goes beyond MicroProfile, as type checkers see it: read by mypy and pyright, never run."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import assert_type

from everkeel.microprofile import (
    ApplyGuard,
    BeforeRetry,
    Bulkhead,
    CircuitBreaker,
    CircuitBreakerName,
    CircuitBreakerState,
    CustomBackoff,
    ExponentialBackoff,
    FibonacciBackoff,
    Guard,
    RateLimit,
    Retry,
    RetryWhen,
    configure,
    current_state,
    on_state_change,
)
from everkeel.microprofile.endpoint import metrics_app
from everkeel.microprofile.sources import MappingSource


class Strategy:
    def init(self, initial_delay_in_millis: int) -> None: ...

    def next_delay_in_millis(self, exception: BaseException | None) -> int:
        return 0


@Retry
@ExponentialBackoff(factor=3, maxDelay=5, max_delay_unit="SECONDS")
@RetryWhen(result=lambda result: result is None, exception=lambda error: True)
@BeforeRetry(methodName="reconnect")
@RateLimit(10, window=timedelta(seconds=1), type="SMOOTH")
@CircuitBreaker
@CircuitBreakerName("bank")
def fetch(order: int) -> str:
    return str(order)


@Retry
@FibonacciBackoff
@RateLimit
async def coroutine(order: int) -> str:
    return str(order)


@Retry
@CustomBackoff(Strategy)
@ApplyGuard("bank")
def custom(order: int) -> str:
    return str(order)


guard = Guard("typed", Retry, Bulkhead(2))
assert_type(fetch(1), str)
assert_type(custom(1), str)
assert_type(guard.call(fetch, 1), str)
assert_type(current_state("bank"), CircuitBreakerState)
hears: Callable[[CircuitBreakerState], object] = print
on_state_change("bank", hears)
configure({"Retry/maxRetries": 2}, "microprofile-config.properties", MappingSource({}), environment=False)
metrics_app()

guard.call(fetch, "1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
RateLimit(type="JUMPING")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
ExponentialBackoff(faktor=2)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]


async def awaited() -> None:
    assert_type(await coroutine(1), str)
    assert_type(await guard.acall(coroutine, 1), str)
