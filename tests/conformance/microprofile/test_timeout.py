"""Section 5: Timeout."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable
from concurrent.futures import Future

import pytest

from everkeel import current_cancellation, current_deadline, sleep
from everkeel.microprofile import (
    Asynchronous,
    Bulkhead,
    BulkheadException,
    CircuitBreaker,
    CircuitBreakerOpenException,
    Fallback,
    Retry,
    Timeout,
    TimeoutException,
    completed,
)
from everkeel.microprofile.metrics import registry
from everkeel.testing import Flaky


class DownError(Exception):
    pass


def until(condition: object) -> None:
    """Wait, really, until something is so."""
    for _ in range(5000):
        if condition():  # type: ignore[operator]
            return
        threading.Event().wait(0.001)
    raise AssertionError("it never came to that")


@pytest.mark.rule("MP-TIMEOUT-01")
@pytest.mark.parametrize("late", ["answer", DownError()])
def test_what_a_body_does_after_its_time_is_discarded(virtual_time, late):
    with pytest.raises(TimeoutException):
        Timeout(500)(Flaky(late, takes=1.0))()


@pytest.mark.rule("MP-TIMEOUT-01")
@pytest.mark.parametrize("late", ["answer", DownError()])
async def test_also_that_of_a_coroutine(virtual_time, late):
    with pytest.raises(TimeoutException):
        await Timeout(500)(Flaky(late, takes=1.0).async_())()


@pytest.mark.rule("MP-TIMEOUT-02")
async def test_in_time_nothing_changes(virtual_time):
    error = DownError()
    assert Timeout(500)(Flaky("answer", takes=0.4))() == "answer"
    assert await Timeout(500)(Flaky("answer", takes=0.4).async_())() == "answer"
    with pytest.raises(DownError) as raised:
        Timeout(500)(Flaky(error, takes=0.4))()
    assert raised.value is error


@pytest.mark.rule("MP-TIMEOUT-03")
async def test_zero_is_no_timeout(virtual_time):
    assert Timeout(0)(Flaky("answer", takes=3600))() == "answer"
    assert await Timeout(value=0)(Flaky("answer", takes=3600).async_())() == "answer"


@pytest.mark.rule("MP-TIMEOUT-04", "MP-MAP-10")
def test_a_sync_body_runs_on_its_callers_thread_and_is_told_when_its_time_is_up(virtual_time):
    threads = []

    @Timeout(500)
    def cooperative() -> None:
        threads.append(threading.get_ident())
        sleep(60)

    with pytest.raises(TimeoutException):
        cooperative()
    assert threads == [threading.get_ident()]
    assert virtual_time.monotonic() == 0.5


@pytest.mark.rule("MP-TIMEOUT-04", "MP-MAP-11")
def test_a_body_that_cannot_stop_ends_when_it_ends(virtual_time):
    with pytest.raises(TimeoutException):
        Timeout(500)(lambda: virtual_time.sleep(60))()
    assert virtual_time.monotonic() == 60


@pytest.mark.rule("MP-MAP-11")
def test_a_blocked_c_call_is_not_woken(virtual_time):
    waits = []

    @Timeout(10)
    def blocked() -> None:
        began = time.monotonic()
        virtual_time.advance(1)
        time.sleep(0.05)
        waits.append(time.monotonic() - began)

    with pytest.raises(TimeoutException):
        blocked()
    assert waits[0] >= 0.05


@pytest.mark.rule("MP-TIMEOUT-05")
def test_a_body_that_swallows_the_interruption_has_still_timed_out(virtual_time):
    @Timeout(500)
    def stubborn() -> str:
        try:
            sleep(60)
        except TimeoutError:
            pass
        return "fine"

    with pytest.raises(TimeoutException):
        stubborn()


@pytest.mark.rule("MP-TIMEOUT-06")
def test_nothing_is_left_of_it_afterwards(virtual_time):
    seen = []

    @Retry(max_retries=1, jitter=0)
    @Timeout(500)
    def work() -> None:
        cancellation = current_cancellation()
        assert cancellation is not None
        seen.append(cancellation)
        assert not cancellation.requested
        sleep(60)

    with pytest.raises(TimeoutException):
        work()
    assert seen[0] is not seen[1]
    assert current_cancellation() is None
    assert current_deadline() is None
    sleep(60)  # and is not woken


@pytest.mark.rule("MP-TIMEOUT-06")
async def test_a_coroutine_that_ended_in_time_is_never_cancelled_later(virtual_time):
    @Timeout(500)
    async def quick() -> str:
        return "answer"

    assert await quick() == "answer"
    await asyncio.sleep(60)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.rule("MP-TIMEOUT-07")
def test_by_default_no_other_thread_is_used(virtual_time):
    before = threading.active_count()
    assert Timeout(500)(threading.get_ident)() == threading.get_ident()
    assert threading.active_count() == before


@pytest.mark.rule("MP-TIMEOUT-08")
def test_asynchronous_it_fails_at_once_and_the_bodys_result_is_dropped():
    gate, ended = threading.Event(), threading.Event()

    @Asynchronous
    @Timeout(20)
    def work() -> Future[str]:
        gate.wait(10)
        ended.set()
        return completed("late")

    result = work()
    assert type(result.exception(10)) is TimeoutException
    assert not ended.is_set()
    gate.set()
    assert ended.wait(10)
    assert type(result.exception()) is TimeoutException


@pytest.mark.rule("MP-TIMEOUT-09")
def test_it_never_fires_early():
    @Asynchronous
    @Timeout(30)
    def work() -> Future[None]:
        sleep(10)
        return completed(None)

    for _ in range(5):
        began = time.monotonic()
        assert type(work().exception(10)) is TimeoutException
        assert time.monotonic() - began >= 0.03


@pytest.mark.rule("MP-TIMEOUT-10")
async def test_a_stage_is_not_over_before_its_awaitable_is(virtual_time):
    @Asynchronous
    @Timeout(500)
    def work() -> Awaitable[None]:
        return asyncio.sleep(60)

    with pytest.raises(TimeoutException):
        await work()
    assert virtual_time.monotonic() == pytest.approx(0.5)


@pytest.mark.rule("MP-TIMEOUT-11")
async def test_a_coroutine_that_swallows_its_cancellation_does_not_hold_up_the_caller(virtual_time):
    cancelled = []

    @Timeout(500)
    async def stubborn() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.append(virtual_time.monotonic())
        await asyncio.sleep(10)
        return "late"

    with pytest.raises(TimeoutException):
        await stubborn()
    assert virtual_time.monotonic() == 0.5
    assert cancelled == [0.5]
    await asyncio.sleep(60)


@pytest.mark.rule("MP-TIMEOUT-12")
async def test_the_fallback_runs_as_soon_as_time_is_up(virtual_time):
    times = []

    class Service:
        @Timeout(500)
        @Fallback(fallback_method="instead")
        async def stubborn(self) -> str:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await asyncio.sleep(5)
            return "late"

        async def instead(self) -> str:
            times.append(virtual_time.monotonic())
            return "instead"

        @Timeout(500)
        @Fallback(fallback_method="sync_instead")
        def blocking(self) -> str:
            virtual_time.advance(2)
            return "late"

        def sync_instead(self) -> str:
            times.append(virtual_time.monotonic())
            return "instead"

    assert await Service().stubborn() == "instead"
    assert Service().blocking() == "instead"
    assert times == [0.5, 2.5]
    await asyncio.sleep(60)


@pytest.mark.rule("MP-TIMEOUT-13")
@pytest.mark.parametrize(
    ("parameters", "opens"), [({}, True), ({"skip_on": TimeoutException}, False), ({"fail_on": DownError}, False)]
)
def test_to_a_circuit_breaker_a_timeout_is_what_its_lists_say(virtual_time, parameters, opens):
    guarded = CircuitBreaker(request_volume_threshold=2, **parameters)(Timeout(500)(Flaky("late", takes=1)))
    for _ in range(2):
        with pytest.raises(TimeoutException):
            guarded()
    with pytest.raises(CircuitBreakerOpenException if opens else TimeoutException):
        guarded()


class Kitchen:
    """One cook, one order waiting, half a second for each."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.cooked: list[str] = []

    @Asynchronous
    @Timeout(500)
    @Bulkhead(1, waiting_task_queue=1)
    def cook(self, dish: str) -> Future[str]:
        self.cooked.append(dish)
        self.gate.wait(10)
        return completed(dish)


@pytest.mark.rule("MP-TIMEOUT-14", "MP-ORDER-07", "MP-AMBIG-08")
def test_time_in_the_queue_counts(virtual_time):
    kitchen = Kitchen()
    first, second = kitchen.cook("soup"), kitchen.cook("fish")
    assert type(second.exception(10)) is TimeoutException
    assert virtual_time.monotonic() == pytest.approx(0.5)
    assert type(first.exception(10)) is TimeoutException
    kitchen.gate.set()
    assert kitchen.cooked == ["soup"]


@pytest.mark.rule("MP-TIMEOUT-15", "MP-AMBIG-07")
def test_timed_out_in_the_queue_it_never_starts_and_its_place_is_free_at_once(virtual_time):
    kitchen = Kitchen()
    kitchen.cook("soup")
    for dish in ("fish", "meat", "cake"):
        waiting = kitchen.cook(dish)
        assert not waiting.done()
        assert type(waiting.exception(10)) is TimeoutException
    kitchen.gate.set()
    until(lambda: registry.value("ft.bulkhead.executionsRunning", method=f"{__name__}.Kitchen.cook") == 0)
    assert kitchen.cooked == ["soup"]


@pytest.mark.rule("MP-TIMEOUT-16", "MP-AMBIG-06", "MP-BH-11")
def test_timed_out_while_running_it_keeps_its_place_until_it_has_ended(virtual_time):
    kitchen = Kitchen()
    assert type(kitchen.cook("soup").exception(10)) is TimeoutException
    waiting = kitchen.cook("fish")
    assert not waiting.done()
    assert type(kitchen.cook("meat").exception(10)) is BulkheadException
    kitchen.gate.set()
    assert waiting.result(10) == "fish"


@pytest.mark.rule("MP-TIMEOUT-16", "MP-AMBIG-06")
async def test_so_does_a_coroutine(virtual_time):
    class Service:
        @Timeout(500)
        @Bulkhead(1)
        async def work(self) -> None:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await asyncio.sleep(5)

    with pytest.raises(TimeoutException):
        await Service().work()
    with pytest.raises(BulkheadException):
        await Service().work()
    await asyncio.sleep(5)
    with pytest.raises(TimeoutException):
        await Service().work()
    await asyncio.sleep(5)


@pytest.mark.rule("MP-TIMEOUT-17")
async def test_the_users_own_timeout_exception_is_an_exception_like_any_other(virtual_time):
    mine = TimeoutException("mine", 1.0)

    class Service:
        @Timeout(500)
        def work(self) -> None:
            raise mine

        @Timeout(500)
        async def awork(self) -> None:
            raise mine

    with pytest.raises(TimeoutException) as raised:
        Service().work()
    assert raised.value is mine
    with pytest.raises(TimeoutException) as raised:
        await Service().awork()
    assert raised.value is mine
    for method in ("work", "awork"):
        tag = f"{__name__}.{Service.__qualname__}.{method}"
        assert registry.value("ft.timeout.calls.total", method=tag, timedOut="true") == 0
        assert registry.value("ft.timeout.calls.total", method=tag, timedOut="false") == 1
