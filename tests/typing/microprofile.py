"""What MicroProfile's decorators make of types: nothing. Read by type checkers, never run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import assert_type

from everkeel.microprofile import (
    Asynchronous,
    AsyncResult,
    Bulkhead,
    ChronoUnit,
    CircuitBreaker,
    ExecutionContext,
    Fallback,
    FallbackHandler,
    Retry,
    Timeout,
    completed,
)


class Unknown(FallbackHandler[str]):
    def handle(self, context: ExecutionContext) -> str:
        assert_type(context.failure, BaseException)
        return "unknown"


@Retry
def bare(order: int, *, urgent: bool = False) -> str:
    return "done"


@Retry(max_retries=2, delay=200, delay_unit=ChronoUnit.MILLIS, abort_on=[ValueError])
@Timeout(500)
@CircuitBreaker(requestVolumeThreshold=10, failureRatio=0.75)
@Bulkhead(5, waiting_task_queue=8)
@Fallback(Unknown, skip_on=KeyError)
def stacked(order: int) -> str:
    return "done"


@Timeout(timedelta(seconds=2))
async def coroutine(order: int) -> str:
    return "done"


@Asynchronous
def future(order: int) -> Future[str]:
    return completed("done")


@Asynchronous()
def stage(order: int) -> Awaitable[str]:
    return coroutine(order)


@Retry
@Timeout(value=2, unit="SECONDS")
class Service:
    def __init__(self, name: str) -> None:
        self.name = name

    @Bulkhead
    @Fallback(fallback_method="instead", apply_on=OSError)
    def work(self, order: int) -> str:
        return self.name

    def instead(self, order: int) -> str:
        return self.name


assert_type(bare(1, urgent=True), str)
assert_type(stacked(1), str)
awaits: Callable[[int], Awaitable[str]] = coroutine
assert_type(future(1), Future[str])
assert_type(stage(1), Awaitable[str])
assert_type(Service("x").work(1), str)
assert_type(Service("x"), Service)
takes: Callable[[int], str] = stacked
result: AsyncResult[int] = AsyncResult()
assert_type(result.cancel(interrupt=True), bool)

bare("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
Retry(max_retry=1)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
Retry(max_retries="3")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
Service(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def awaited() -> None:
    assert_type(await result, int)
    assert_type(await stage(1), str)
    assert_type(await coroutine(1), str)
