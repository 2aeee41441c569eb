"""Section 9: Asynchronous."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextvars import ContextVar
from typing import Any

import pytest

from everkeel import current_cancellation, sleep
from everkeel.microprofile import (
    Asynchronous,
    AsyncResult,
    Bulkhead,
    BulkheadException,
    CircuitBreaker,
    CircuitBreakerOpenException,
    FaultToleranceDefinitionException,
    FaultToleranceException,
    Retry,
    completed,
    config,
    failed,
)
from everkeel.microprofile.metrics import registry


class DownError(Exception):
    pass


class Collapse(BaseException):
    pass


def until(condition: Callable[[], bool]) -> None:
    """Wait, really, until something is so."""
    for _ in range(5000):
        if condition():
            return
        threading.Event().wait(0.001)
    raise AssertionError("it never came to that")


class Worker:
    def __init__(self) -> None:
        self.began, self.gate = threading.Event(), threading.Event()
        self.ended = threading.Event()
        self.interrupted = False
        self.thread = 0

    @Asynchronous
    def work(self) -> Future[str]:
        self.thread = threading.get_ident()
        self.began.set()
        self.gate.wait(10)
        cancellation = current_cancellation()
        self.interrupted = cancellation is not None and cancellation.requested
        self.ended.set()
        return completed("done")


@pytest.mark.rule("MP-ASYNC-01", "MP-MAP-06")
def test_the_call_returns_at_once_and_the_body_runs_elsewhere():
    worker = Worker()
    result = worker.work()
    assert isinstance(result, AsyncResult)
    assert isinstance(result, Future)
    assert not result.done()
    assert result.running()
    worker.gate.set()
    assert result.result(10) == "done"
    assert not result.running()
    assert worker.thread != threading.get_ident()


@pytest.mark.rule("MP-ASYNC-01", "MP-MAP-07", "MP-MAP-09")
async def test_a_blocking_stage_runs_in_a_thread_and_a_coroutine_in_the_loop(virtual_time):
    threads: dict[str, int] = {}

    @Asynchronous
    def blocking() -> Awaitable[str]:
        threads["blocking"] = threading.get_ident()
        return asyncio.sleep(1, "stage")

    @Asynchronous
    async def coroutine() -> str:
        threads["coroutine"] = threading.get_ident()
        return "coroutine"

    begun = blocking()
    assert not begun.done()
    assert [await begun, await coroutine()] == ["stage", "coroutine"]
    assert threads["coroutine"] == threading.get_ident() != threads["blocking"]


@pytest.mark.rule("MP-ASYNC-02")
def test_the_call_itself_never_raises():
    class Service:
        @Asynchronous
        @CircuitBreaker(request_volume_threshold=1)
        def broken(self) -> Future[str]:
            raise DownError

        @Asynchronous
        @Bulkhead(1, waiting_task_queue=1)
        def crowded(self) -> Future[str]:
            gate.wait(10)
            return completed("in")

    gate = threading.Event()
    assert type(Service().broken().exception(10)) is DownError
    assert type(Service().broken().exception(10)) is CircuitBreakerOpenException
    calls = [Service().crowded() for _ in range(3)]
    assert type(calls[2].exception(10)) is BulkheadException
    gate.set()
    assert [call.result(10) for call in calls[:2]] == ["in", "in"]


@pytest.mark.rule("MP-ASYNC-03", "MP-EXC-05", "MP-EXC-03")
@pytest.mark.parametrize(
    "error", [DownError("x"), Collapse("x"), StopIteration("x"), SystemExit(3), KeyboardInterrupt()]
)
def test_what_the_body_raises_is_what_the_result_fails_with(error):
    @Asynchronous
    def work() -> Future[str]:
        raise error

    result = work()
    assert result.exception(10) is error
    assert not result.cancelled()
    with pytest.raises(type(error)) as raised:
        result.result()
    assert raised.value is error


@pytest.mark.rule("MP-ASYNC-04")
def test_the_outer_future_becomes_what_the_inner_one_becomes():
    inner: Future[str] = Future()
    other: Future[str] = Future()
    returned: list[Future[str]] = []

    @Asynchronous
    def work(future: Future[str]) -> Future[str]:
        returned.append(future)
        return future

    outer, second = work(inner), work(other)
    until(lambda: len(returned) == 2)
    threading.Event().wait(0.01)
    assert not outer.done()
    inner.set_result("answer")
    assert outer.result(10) == "answer"
    error = DownError()
    other.set_exception(error)
    assert second.exception(10) is error


@pytest.mark.rule("MP-ASYNC-04")
async def test_so_does_that_of_a_stage(virtual_time):
    loop = asyncio.get_running_loop()
    inner: asyncio.Future[str] = loop.create_future()

    @Asynchronous
    def work() -> asyncio.Future[str]:
        return inner

    @Asynchronous
    def hybrid() -> Awaitable[Any]:
        return another

    another: AsyncResult[str] = AsyncResult()
    outer, second = work(), hybrid()
    await asyncio.sleep(1)
    assert not outer.done()
    inner.set_result("answer")
    another.succeed("other")
    assert (await outer, await second) == ("answer", "other")


@pytest.mark.rule("MP-ASYNC-05")
def test_callbacks_of_the_inner_future_run_first_and_then_those_of_the_outer_in_their_order():
    inner: Future[str] = Future()
    order: list[str] = []
    returned = threading.Event()

    @Asynchronous
    def work() -> Future[str]:
        inner.add_done_callback(lambda _: order.append("inner"))
        returned.set()
        return inner

    outer = work()
    outer.add_done_callback(lambda _: order.append("first"))
    outer.add_done_callback(lambda _: order.append("second"))
    assert returned.wait(10)
    threading.Event().wait(0.01)
    inner.set_result("done")
    until(lambda: len(order) == 3)
    assert order == ["inner", "first", "second"]


@pytest.mark.rule("MP-ASYNC-06", "MP-AMBIG-11", "MP-METRIC-24")
def test_future_kind_a_returned_future_is_a_success_whatever_becomes_of_it():
    class Service:
        @Asynchronous
        @CircuitBreaker(request_volume_threshold=1)
        def work(self) -> Future[str]:
            return failed(DownError())

    for _ in range(3):
        assert type(Service().work().exception(10)) is DownError
    tag = f"{__name__}.{Service.__qualname__}.work"
    assert registry.value("ft.circuitbreaker.calls.total", method=tag, circuitBreakerResult="success") == 3
    assert registry.value("ft.invocations.total", method=tag, result="valueReturned", fallback="notDefined") == 3


@pytest.mark.rule("MP-ASYNC-07", "MP-AMBIG-11")
async def test_stage_kind_failed_already_and_failing_later_are_alike(virtual_time):
    async def later() -> str:
        await asyncio.sleep(1)
        raise DownError

    def already() -> asyncio.Future[str]:
        future: asyncio.Future[str] = loop.create_future()
        future.set_exception(DownError())
        return future

    loop = asyncio.get_running_loop()
    for make in (later, already):
        runs = []

        @Asynchronous
        @Retry(max_retries=1, jitter=0)
        def work(make=make, runs=runs) -> Awaitable[str]:
            runs.append(1)
            return make()

        with pytest.raises(DownError):
            await work()
        assert len(runs) == 2


@pytest.mark.rule("MP-ASYNC-08", "MP-VALID-13")
def test_a_declared_result_that_is_no_future_is_refused():
    for make in (str, None, int):

        def work() -> Any: ...

        work.__annotations__["return"] = make
        with pytest.raises(FaultToleranceDefinitionException, match="must be declared to return"):
            Asynchronous(work)

    @Asynchronous
    def not_annotated():
        return completed("future kind")

    assert not_annotated().result(10) == "future kind"


@pytest.mark.rule("MP-ASYNC-08", "MP-MAP-06", "MP-MAP-07")
def test_futures_their_subclasses_and_awaitables_are_accepted():
    class Mine(Future[str]): ...

    for written in (
        Future,
        Future[str],
        "Future[str]",
        "concurrent.futures.Future[Unknown]",
        Mine,
        AsyncResult[str],
        Awaitable[str],
        Coroutine[Any, Any, str],
        asyncio.Future,
        "asyncio.Task[str]",
    ):

        def work() -> Any: ...

        work.__annotations__["return"] = written
        Asynchronous(work)


@pytest.mark.rule("MP-ASYNC-08")
def test_what_is_returned_all_the_same_and_is_no_future_is_an_error():
    @Asynchronous
    def work():
        return "oops"

    assert type(work().exception(10)) is FaultToleranceException


@pytest.mark.rule("MP-ASYNC-09")
def test_cancelling_takes_effect_at_once_and_for_good():
    worker = Worker()
    result = worker.work()
    assert worker.began.wait(10)
    assert result.cancel()
    assert result.cancelled()
    assert result.done()
    with pytest.raises(concurrent.futures.CancelledError):
        result.result(10)
    assert concurrent.futures.wait([result], 10).not_done == set()
    worker.gate.set()
    assert worker.ended.wait(10)
    assert result.cancelled()
    assert result.cancel()
    assert not completed_call().cancel()


def completed_call() -> AsyncResult[Any]:
    worker = Worker()
    worker.gate.set()
    result = worker.work()
    result.result(10)
    return result  # type: ignore[return-value]


@pytest.mark.rule("MP-ASYNC-10", "MP-MAP-10")
@pytest.mark.parametrize("interrupt", [False, True])
def test_the_body_is_told_only_where_that_was_asked_for(interrupt):
    worker = Worker()
    result = worker.work()
    assert worker.began.wait(10)
    result.cancel(interrupt=interrupt)
    threading.Event().wait(0.02)
    worker.gate.set()
    assert worker.ended.wait(10)
    assert worker.interrupted is interrupt


@pytest.mark.rule("MP-ASYNC-10", "MP-MAP-10")
def test_a_body_that_sleeps_wakes():
    # In real time: a virtual clock that only the body waits on would jump to its end before it is cancelled.
    began, woken = threading.Event(), threading.Event()

    @Asynchronous
    def work() -> Future[str]:
        began.set()
        try:
            sleep(3600)
        except TimeoutError:
            woken.set()
        return completed("x")

    result = work()
    assert began.wait(10)
    result.cancel(interrupt=True)
    assert woken.wait(30)  # and not after an hour


@pytest.mark.rule("MP-ASYNC-10", "MP-ASYNC-11")
async def test_whoever_awaits_it_and_is_cancelled_cancels_it(virtual_time):
    told = threading.Event()

    @Asynchronous
    @Retry(max_retries=5, jitter=0)
    def work() -> Awaitable[str]:
        try:
            sleep(3600)
        finally:
            told.set()
        return asyncio.sleep(0, "never")

    result = work()

    async def waits() -> str:
        return await result

    task = asyncio.ensure_future(waits())
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert result.cancelled()
    await asyncio.to_thread(told.wait, 10)
    assert virtual_time.monotonic() < 3600


@pytest.mark.rule("MP-ASYNC-11")
def test_cancelled_before_it_has_begun_it_is_never_begun(virtual_time):
    runs = []

    async def main() -> None:
        # In a loop, a stage is a task of that loop: it cannot begin before we wait.
        @Asynchronous
        def stage() -> Awaitable[None]:
            runs.append(1)
            return asyncio.sleep(0)

        stage().cancel()
        await asyncio.sleep(1)

    virtual_time.run(main)
    assert runs == []


request: ContextVar[str] = ContextVar("request", default="none")


@pytest.mark.rule("MP-ASYNC-12", "MP-MAP-19")
def test_context_variables_of_the_caller_are_there_in_every_attempt():
    seen = []

    @Asynchronous
    @Retry(max_retries=1, jitter=0)
    def work() -> Future[None]:
        seen.append(request.get())
        request.set("changed")
        raise DownError

    token = request.set("mine")
    try:
        assert type(work().exception(10)) is DownError
    finally:
        request.reset(token)
    assert seen == ["mine", "mine"]


@pytest.mark.rule("MP-ASYNC-13")
def test_alone_it_has_no_metrics():
    assert completed_call().result() == "done"
    assert [method.method for method in registry] == []


@pytest.mark.rule("MP-ASYNC-14")
def test_disabled_it_runs_here_and_its_own_object_comes_back():
    config.configure({"Asynchronous/enabled": False}, environment=False)
    inner: Future[int] = Future()
    threads = []

    class Service:
        @Asynchronous
        @Bulkhead(1, waiting_task_queue=5)
        def work(self, again: bool) -> Future[int]:
            threads.append(threading.get_ident())
            if again:
                with pytest.raises(BulkheadException):
                    self.work(False)
            return inner

    assert Service().work(True) is inner
    assert threads == [threading.get_ident()]


@pytest.mark.rule("MP-ASYNC-15")
def test_on_class_and_method_both_it_does_no_harm():
    @Asynchronous
    class Service:
        @Asynchronous
        def work(self) -> Future[int]:
            return completed(7)

    assert Service().work().result(10) == 7


@pytest.mark.rule("MP-ASYNC-04", "MP-MAP-07")
def test_a_stage_called_where_no_loop_runs_can_be_waited_for():
    @Asynchronous
    def work() -> Awaitable[str]:
        async def answer() -> str:
            await asyncio.sleep(0)
            return "from nowhere"

        return answer()

    assert work().result(10) == "from nowhere"


@pytest.mark.rule("MP-MAP-04")
def test_an_exit_in_a_coroutine_of_one_call_does_not_end_the_others():
    @Asynchronous
    def work(leaves: bool) -> Awaitable[str]:
        async def answer() -> str:
            await asyncio.sleep(0)
            if leaves:
                raise SystemExit(3)
            return "still here"

        return answer()

    assert type(work(True).exception(10)) is SystemExit
    assert work(False).result(10) == "still here"


@pytest.mark.rule("MP-ASYNC-01", "MP-BH-10")
def test_a_call_returns_though_its_first_attempt_was_rejected_and_the_next_is_far_off(virtual_time):
    gate, began = threading.Event(), threading.Event()

    class Service:
        @Asynchronous
        @Retry(max_retries=1, delay=1, delay_unit="HOURS", jitter=0, max_duration=0)
        @Bulkhead(1, waiting_task_queue=1)
        def work(self) -> Future[str]:
            began.set()
            gate.wait(10)
            return completed("done")

    calls = [Service().work() for _ in range(2)]
    assert began.wait(10)
    rejected = Service().work()
    assert not rejected.done()
    assert virtual_time.monotonic() < 3600
    gate.set()
    assert [call.result(10) for call in (*calls, rejected)] == ["done"] * 3
    assert virtual_time.monotonic() >= 3600
