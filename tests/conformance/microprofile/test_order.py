"""Section 3: the order of policies, whatever the order of decorators."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from everkeel.microprofile import (
    Asynchronous,
    Bulkhead,
    BulkheadException,
    CircuitBreaker,
    CircuitBreakerOpenException,
    ExecutionContext,
    Fallback,
    Retry,
    Timeout,
    TimeoutException,
    completed,
)
from everkeel.microprofile.levels import method_of
from everkeel.microprofile.metrics import registry
from everkeel.runtime.policy import Policy


class DownError(Exception):
    pass


class Instead:
    def handle(self, context: ExecutionContext) -> Any:
        return f"instead of {type(context.failure).__name__}"


@pytest.mark.rule("MP-ORDER-01", "MP-MAP-02")
def test_the_nesting_is_fixed():
    @Bulkhead
    @Fallback(Instead)
    @Timeout
    @CircuitBreaker
    @Retry
    def work() -> Any:
        return "done"

    work()
    guarded = method_of(work).guarded_for()
    assert [part.type for part in guarded._parts if isinstance(part, Policy)] == [
        "fallback", "retry", "circuit_breaker", "timeout", "bulkhead",
    ]  # fmt: skip


@pytest.mark.rule("MP-ORDER-02")
def test_the_fallback_sees_what_would_leave_everything_else(virtual_time):
    @Fallback(Instead)
    @Retry(max_retries=2, jitter=0)
    @CircuitBreaker(request_volume_threshold=2)
    def work() -> Any:
        raise DownError

    assert work() == "instead of CircuitBreakerOpenException"


@pytest.mark.rule("MP-ORDER-03")
def test_each_attempt_is_a_new_pass_through_all(virtual_time):
    class Service:
        @Retry(max_retries=2, jitter=0)
        @CircuitBreaker
        @Timeout(500)
        @Bulkhead
        def work(self) -> Any:
            raise DownError

    with pytest.raises(DownError):
        Service().work()
    tag = f"{__name__}.{Service.__qualname__}.work"
    assert registry.value("ft.circuitbreaker.calls.total", method=tag, circuitBreakerResult="failure") == 3
    assert registry.value("ft.timeout.calls.total", method=tag, timedOut="false") == 3
    assert registry.value("ft.bulkhead.calls.total", method=tag, bulkheadResult="accepted") == 3


@pytest.mark.rule("MP-ORDER-04")
def test_a_prevented_call_starts_no_timer_and_takes_no_place(virtual_time):
    class Service:
        @CircuitBreaker(request_volume_threshold=1)
        @Timeout(500)
        @Bulkhead(1)
        def work(self) -> Any:
            raise DownError

    with pytest.raises(DownError):
        Service().work()
    for _ in range(3):
        with pytest.raises(CircuitBreakerOpenException):
            Service().work()
    tag = f"{__name__}.{Service.__qualname__}.work"
    assert registry.value("ft.timeout.calls.total", method=tag, timedOut="false") == 1
    assert registry.value("ft.timeout.calls.total", method=tag, timedOut="true") == 0
    assert registry.value("ft.bulkhead.calls.total", method=tag, bulkheadResult="accepted") == 1
    assert registry.value("ft.bulkhead.calls.total", method=tag, bulkheadResult="rejected") == 0


@pytest.mark.rule("MP-ORDER-05")
def test_rejections_and_timeouts_are_ordinary_exceptions_to_the_layers_outside(virtual_time):
    runs = []

    class Service:
        @Fallback(Instead, apply_on=TimeoutException)
        @Retry(max_retries=1, jitter=0, retry_on=TimeoutException)
        @CircuitBreaker(request_volume_threshold=4, fail_on=TimeoutException)
        @Timeout(500)
        def slow(self) -> Any:
            runs.append(1)
            virtual_time.advance(1)

        @Retry(max_retries=1, jitter=0, retry_on=BulkheadException)
        @Bulkhead(1)
        def crowded(self, then: Callable[[], object]) -> Any:
            return then()

        @Fallback(Instead, skip_on=BulkheadException)
        @Bulkhead(1)
        def skipped(self, then: Callable[[], object]) -> Any:
            return then()

    service = Service()
    assert service.slow() == "instead of TimeoutException"
    assert len(runs) == 2
    assert service.slow() == "instead of TimeoutException"
    with pytest.raises(CircuitBreakerOpenException):
        service.slow()
    with pytest.raises(BulkheadException):
        service.crowded(lambda: service.crowded(int))
    tag = f"{__name__}.{Service.__qualname__}.crowded"
    assert (
        registry.value("ft.retry.retries.total", method=tag) == 3
    )  # one of the outer call, and one of the inner in each of its attempts
    with pytest.raises(BulkheadException):
        service.skipped(lambda: service.skipped(int))


@pytest.mark.rule("MP-ORDER-06")
def test_an_open_circuit_is_not_recorded_in_its_own_window(virtual_time):
    outcomes = iter([DownError(), DownError(), None])

    class Service:
        @Fallback(Instead)
        @Retry(max_retries=2, jitter=0)
        @CircuitBreaker(request_volume_threshold=2, delay=1000)
        def work(self) -> Any:
            if (outcome := next(outcomes)) is not None:
                raise outcome
            return "answer"

    assert Service().work() == "instead of CircuitBreakerOpenException"
    for _ in range(5):
        assert Service().work() == "instead of CircuitBreakerOpenException"
    virtual_time.advance(1)
    assert Service().work() == "answer"
    tag = f"{__name__}.{Service.__qualname__}.work"
    assert registry.value("ft.circuitbreaker.opened.total", method=tag) == 1


@pytest.mark.rule("MP-ORDER-07", "MP-AMBIG-08")
async def test_the_clock_starts_before_the_bulkhead(virtual_time):
    class Service:
        @Asynchronous
        @Timeout(1500)
        @Bulkhead(1, waiting_task_queue=1)
        async def work(self) -> str:
            await asyncio.sleep(1)
            return "done"

    first, second = asyncio.ensure_future(Service().work()), asyncio.ensure_future(Service().work())
    assert await first == "done"
    with pytest.raises(TimeoutException):
        await second
    assert virtual_time.monotonic() == pytest.approx(1.5)


@pytest.mark.rule("MP-ORDER-08")
async def test_nothing_is_held_between_attempts(virtual_time):
    fails = [True]

    class Service:
        @Retry(max_retries=1, delay=10_000, jitter=0)
        @Timeout(500)
        @Bulkhead(1)
        async def work(self) -> str:
            if fails and fails.pop():
                raise DownError
            return "done"

    first = asyncio.ensure_future(Service().work())
    await asyncio.sleep(5)
    assert not first.done()
    assert await Service().work() == "done"  # the place is free
    assert await first == "done"  # and it has not timed out


@pytest.mark.rule("MP-ORDER-09")
def test_asynchronous_everything_happens_elsewhere_before_the_result_is_there():
    threads: list[int] = []
    gate = threading.Event()

    class Slow:
        def handle(self, context: ExecutionContext) -> Future[str]:
            threads.append(threading.get_ident())
            gate.wait(10)
            return completed("instead")

    @Asynchronous
    @Fallback(Slow)
    @Retry(max_retries=1, jitter=0)
    def work() -> Future[str]:
        threads.append(threading.get_ident())
        raise DownError

    result = work()
    assert not result.done()
    gate.set()
    assert result.result(10) == "instead"
    assert len(threads) == 3
    assert threading.get_ident() not in threads


@pytest.mark.rule("MP-ORDER-10")
def test_other_decorators_run_where_they_stand():
    seen: list[tuple[str, int]] = []

    def noting(where: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def decorate(fn: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(fn)
            def other(*args: Any) -> Any:
                seen.append((where, threading.get_ident()))
                return fn(*args)

            return other

        return decorate

    class Service:
        @noting("outside")
        @Asynchronous
        @Retry(max_retries=2, jitter=0)
        @noting("inside")
        def work(self) -> Future[str]:
            raise DownError

    assert type(Service().work().exception(10)) is DownError
    here = threading.get_ident()
    assert [where for where, _ in seen] == ["outside", "inside", "inside", "inside"]
    assert [thread == here for _, thread in seen] == [True, False, False, False]


@pytest.mark.rule("MP-ORDER-11", "MP-AMBIG-12")
def test_whoever_sees_the_result_sees_the_metrics_and_the_free_place():
    class Service:
        @Asynchronous
        @Bulkhead(1, waiting_task_queue=1)
        @Retry(max_retries=1, jitter=0)
        def work(self, fails: bool) -> Future[str]:
            if fails:
                raise DownError
            return completed("done")

    tag = f"{__name__}.{Service.__qualname__}.work"
    for number in range(1, 60):
        seen: list[tuple[int, int]] = []

        def look(_: object, seen: list[tuple[int, int]] = seen) -> None:
            total = sum(one.value for one in registry.numbers() if one.metric.name == "ft.invocations.total")
            seen.append((total, registry.value("ft.bulkhead.executionsRunning", method=tag)))

        result = Service().work(number % 2 == 0)
        result.add_done_callback(look)
        result.exception(10)
        look(None)
        assert set(seen) == {(number, 0)}
