"""Section 8: Bulkhead."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, wait
from typing import Any

import pytest

from everkeel import current_cancellation
from everkeel.microprofile import (
    Asynchronous,
    Bulkhead,
    BulkheadException,
    CircuitBreaker,
    CircuitBreakerOpenException,
    Retry,
    Timeout,
    completed,
)
from everkeel.microprofile.metrics import registry


class DownError(Exception):
    pass


def until(condition: Callable[[], bool]) -> None:
    """Wait, really, until something is so."""
    for _ in range(5000):
        if condition():
            return
        threading.Event().wait(0.001)
    raise AssertionError("it never came to that")


class Hall:
    """A room of two, with two chairs in front of it. Guests stay until they are told to go."""

    def __init__(self) -> None:
        self.doors: dict[str, threading.Event] = {}
        self.inside: list[str] = []
        self.threads: dict[str, int] = {}
        self.most = 0
        self._lock = threading.Lock()

    def stay(self, guest: str) -> None:
        door = self.doors.setdefault(guest, threading.Event())
        with self._lock:
            self.inside.append(guest)
            self.threads[guest] = threading.get_ident()
            self.most = max(self.most, len(self.inside))
        door.wait(10)
        with self._lock:
            self.inside.remove(guest)

    def leave(self, *guests: str) -> None:
        for guest in guests:
            self.doors.setdefault(guest, threading.Event()).set()

    @Bulkhead(2, waiting_task_queue=1)
    def visit(self, guest: str) -> str:
        self.stay(guest)
        return guest

    @Bulkhead(2)
    def fail(self, guest: str) -> str:
        self.stay(guest)
        raise DownError

    @Asynchronous
    @Bulkhead(2, waiting_task_queue=2)
    def come(self, guest: str) -> Future[str]:
        self.stay(guest)
        return completed(guest)


@pytest.fixture
def hall() -> Iterator[Hall]:
    hall = Hall()
    yield hall
    hall.leave("ann", "bob", "cid", "dan", "fay")
    for name in ("visit", "fail", "come"):
        until(lambda name=name: registry.value("ft.bulkhead.executionsRunning", method=f"{__name__}.Hall.{name}") == 0)


def begin(call: Callable[..., object], *args: Any) -> threading.Thread:
    thread = threading.Thread(target=lambda: _quietly(call, *args))
    thread.start()
    return thread


def _quietly(call: Callable[..., object], *args: Any) -> None:
    try:
        call(*args)
    except (DownError, BulkheadException):
        pass


@pytest.mark.rule("MP-BH-01", "MP-BH-02", "MP-AMBIG-15")
def test_sync_so_many_on_their_callers_threads_and_no_queue(hall):
    threads = [begin(hall.visit, guest) for guest in ("ann", "bob")]
    until(lambda: len(hall.inside) == 2)
    with pytest.raises(BulkheadException):
        hall.visit("eve")
    assert set(hall.threads.values()) == {thread.ident for thread in threads}
    hall.leave("ann", "bob")
    for thread in threads:
        thread.join()


@pytest.mark.rule("MP-BH-03")
@pytest.mark.parametrize("name", ["visit", "fail"])
def test_a_return_or_an_exception_makes_room_for_exactly_one(hall, name):
    method = getattr(hall, name)
    threads = [begin(method, guest) for guest in ("ann", "bob")]
    until(lambda: len(hall.inside) == 2)
    hall.leave("ann")
    threads[0].join()
    threads.append(begin(method, "cid"))
    until(lambda: hall.inside == ["bob", "cid"])
    with pytest.raises(BulkheadException):
        method("eve")
    hall.leave("bob", "cid")
    for thread in threads:
        thread.join()


@pytest.mark.rule("MP-BH-04", "MP-BH-05", "MP-ASYNC-02")
def test_asynchronous_so_many_run_so_many_wait_and_the_next_returns_rejected(hall):
    visits = [hall.come(guest) for guest in ("ann", "bob", "cid", "dan")]
    until(lambda: sorted(hall.inside) == ["ann", "bob"])
    rejected = hall.come("eve")
    assert rejected.done()
    assert type(rejected.exception()) is BulkheadException
    assert not any(visit.done() for visit in visits)


@pytest.mark.rule("MP-BH-06")
def test_when_one_ends_the_oldest_in_the_queue_starts_and_a_place_there_is_free(hall):
    for guest in ("ann", "bob", "cid", "dan"):
        hall.come(guest)
    until(lambda: len(hall.inside) == 2)
    hall.leave("ann")
    until(lambda: sorted(hall.inside) == ["bob", "cid"])
    late = hall.come("fay")
    assert not late.done()
    assert hall.come("eve").done()
    hall.leave("bob", "cid")
    until(lambda: sorted(hall.inside) == ["dan", "fay"])


@pytest.mark.rule("MP-BH-07", "MP-AMBIG-11")
async def test_future_kind_holds_its_place_until_the_return_and_stage_kind_until_the_end(virtual_time):
    class Service:
        @Asynchronous
        @Bulkhead(1, waiting_task_queue=1)
        def future(self) -> Future[str]:
            return Future()

        @Asynchronous
        @Bulkhead(1, waiting_task_queue=1)
        def stage(self) -> Awaitable[str]:
            return asyncio.sleep(10, "done")

    def running(name: str) -> int:
        return registry.value("ft.bulkhead.executionsRunning", method=f"{__name__}.{Service.__qualname__}.{name}")

    outer = Service().future()
    await asyncio.sleep(1)
    assert not outer.done()
    assert running("future") == 0
    stage = Service().stage()
    await asyncio.sleep(9)
    assert running("stage") == 1
    assert await stage == "done"
    assert running("stage") == 0


@pytest.mark.rule("MP-BH-08")
def test_it_goes_on_though_nobody_asks_and_may_be_asked_again(hall):
    results = [hall.come(guest) for guest in ("ann", "bob", "cid", "dan")]
    hall.leave("ann", "bob", "cid", "dan")
    until(lambda: len(hall.threads) == 4)
    assert [result.result(10) for result in results] == [result.result(10) for result in results]


class Own(Future[str]):
    """A future that knows its answer without ever having been told, and has no callbacks that work."""

    def done(self) -> bool:
        return True

    def cancelled(self) -> bool:
        return False

    def result(self, timeout: float | None = None) -> str:
        return "mine"


@pytest.mark.rule("MP-BH-09")
def test_the_users_own_future_is_asked_in_its_own_way():
    class Service:
        @Asynchronous
        @Bulkhead(1)
        def work(self) -> Own:
            return Own()

    assert Service().work().result(10) == "mine"


@pytest.mark.rule("MP-BH-10", "MP-ORDER-08")
def test_with_retry_it_comes_back_as_a_newcomer(virtual_time):
    order: list[str] = []

    class Service:
        @Asynchronous
        @Retry(max_retries=1, delay=1000, jitter=0)
        @Bulkhead(1, waiting_task_queue=5)
        def work(self, name: str) -> Future[str]:
            order.append(name)
            if order.count("first") == 1 and name == "first":
                raise DownError
            virtual_time.sleep(3)
            return completed(name)

    tag = f"{__name__}.{Service.__qualname__}.work"
    service = Service()
    first = service.work("first")
    until(lambda: order == ["first"])
    until(lambda: registry.value("ft.bulkhead.executionsRunning", method=tag) == 0)
    assert registry.value("ft.bulkhead.executionsWaiting", method=tag) == 0  # it holds nothing while it waits
    others = [service.work("second"), service.work("third")]
    assert wait([first, *others], 10).not_done == set()
    assert order == ["first", "second", "third", "first"]


@pytest.mark.rule("MP-BH-11", "MP-ORDER-04")
def test_a_prevented_call_never_comes_to_the_bulkhead():
    class Service:
        @CircuitBreaker(request_volume_threshold=1)
        @Bulkhead(1)
        def work(self) -> None:
            raise DownError

    with pytest.raises(DownError):
        Service().work()
    with pytest.raises(CircuitBreakerOpenException):
        Service().work()
    tag = f"{__name__}.{Service.__qualname__}.work"
    assert registry.value("ft.bulkhead.calls.total", method=tag, bulkheadResult="accepted") == 1
    assert registry.value("ft.bulkhead.calls.total", method=tag, bulkheadResult="rejected") == 0


@pytest.mark.rule("MP-BH-12", "MP-ASYNC-11", "MP-AMBIG-07")
def test_cancelled_in_the_queue_it_never_starts_and_its_place_is_free(hall):
    visits = [hall.come(guest) for guest in ("ann", "bob", "cid", "dan")]
    until(lambda: len(hall.inside) == 2)
    assert visits[2].cancel()
    assert not hall.come("fay").done()
    assert hall.come("eve").done()
    hall.leave("ann", "bob", "dan", "fay")
    assert visits[3].result(10) == "dan"
    until(lambda: len(hall.threads) == 4)
    assert "cid" not in hall.threads


@pytest.mark.rule("MP-BH-13")
def test_cancelled_while_running_it_keeps_its_place_until_it_has_ended(hall):
    visits = [hall.come(guest) for guest in ("ann", "bob")]
    until(lambda: len(hall.inside) == 2)
    assert visits[0].cancel()
    waiting = [hall.come("cid"), hall.come("dan")]
    assert type(hall.come("eve").exception(10)) is BulkheadException
    assert len(hall.inside) == 2
    hall.leave("ann")
    until(lambda: "cid" in hall.inside)
    hall.leave("bob", "cid", "dan")
    assert [one.result(10) for one in waiting] == ["cid", "dan"]


@pytest.mark.rule("MP-BH-14", "MP-LEVEL-10")
def test_state_belongs_to_class_and_method():
    @Bulkhead(1)
    class Base:
        def one(self, then: Callable[[], object]) -> object:
            return then()

        def other(self, then: Callable[[], object]) -> object:
            return then()

    class Sub(Base): ...

    def nothing() -> str:
        return "in"

    with pytest.raises(BulkheadException):
        Base().one(lambda: Base().one(nothing))
    assert Base().one(lambda: Base().other(nothing)) == "in"
    assert Base().one(lambda: Sub().one(nothing)) == "in"


@pytest.mark.rule("MP-BH-15")
def test_under_overload_there_are_never_more_than_allowed(hall):
    guests = [f"guest {number}" for number in range(60)]
    hall.leave(*guests)
    results: list[Any] = []
    for start in range(0, 60, 6):
        results += [hall.come(guest) for guest in guests[start : start + 6]]
    assert wait(results, 10).not_done == set()
    assert hall.most <= 2
    outcomes = {type(result.exception()) for result in results}
    assert outcomes <= {type(None), BulkheadException}
    assert type(None) in outcomes


@pytest.mark.rule("MP-BH-16")
def test_bulkheads_do_not_starve_each_other_and_guarded_calls_nest():
    class Service:
        @Asynchronous
        @Bulkhead(50, waiting_task_queue=50)
        def outer(self, number: int) -> Future[int]:
            return completed(self.inner(number).result(10))

        @Asynchronous
        @Bulkhead(1, waiting_task_queue=200)
        def inner(self, number: int) -> Future[int]:
            return completed(number)

    results = [Service().outer(number) for number in range(100)]
    assert sorted(result.result(10) for result in results) == list(range(100))


@pytest.mark.rule("MP-BH-17")
async def test_a_coroutine_waits_for_its_place_without_blocking_the_loop(virtual_time):
    most = [0, 0]

    class Service:
        @Asynchronous
        @Bulkhead(2, waiting_task_queue=10)
        async def work(self) -> None:
            most[0] += 1
            most[1] = max(most)
            await asyncio.sleep(1)
            most[0] -= 1

    await asyncio.gather(*(Service().work() for _ in range(6)))
    assert most[1] == 2
    assert virtual_time.monotonic() == pytest.approx(3)


@pytest.mark.rule("MP-BH-17")
def test_loops_in_several_threads_share_it():
    running, lock = [0, 0], threading.Lock()

    class Service:
        @Asynchronous
        @Bulkhead(2, waiting_task_queue=20)
        async def work(self) -> None:
            with lock:
                running[0] += 1
                running[1] = max(running)
            await asyncio.sleep(0.005)
            with lock:
                running[0] -= 1

    async def several() -> None:
        await asyncio.gather(*(Service().work() for _ in range(4)))

    threads = [threading.Thread(target=asyncio.run, args=(several(),)) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert running[1] <= 2
    tag = f"{__name__}.{Service.__qualname__}.work"
    assert registry.value("ft.bulkhead.calls.total", method=tag, bulkheadResult="accepted") == 12


@pytest.mark.rule("MP-BH-02")
async def test_a_coroutine_without_asynchronous_does_not_wait(virtual_time):
    class Service:
        @Bulkhead(1, waiting_task_queue=5)
        async def work(self) -> None:
            await asyncio.sleep(1)

    first = asyncio.ensure_future(Service().work())
    await asyncio.sleep(0)
    with pytest.raises(BulkheadException):
        await Service().work()
    await first


@pytest.mark.rule("MP-BH-13", "MP-ASYNC-10")
def test_a_body_that_heeds_its_interruption_frees_its_place_soon(virtual_time):
    began = threading.Event()

    class Service:
        @Asynchronous
        @Timeout(0)
        @Bulkhead(1, waiting_task_queue=1)
        def work(self, polite: bool) -> Future[str]:
            cancellation = current_cancellation()
            assert cancellation is not None
            began.set()
            if polite:
                cancellation.sleep(3600)
            return completed("next")

    first = Service().work(True)
    assert began.wait(10)
    first.cancel(interrupt=True)
    assert Service().work(False).result(10) == "next"


@pytest.mark.rule("MP-BH-14", "MP-CB-16")
def test_the_first_calls_of_several_threads_share_one_state():
    for _ in range(20):
        together, inside = threading.Barrier(4), []

        class Service:
            @Bulkhead(1)
            def work(self, together=together, inside=inside) -> None:
                inside.append(threading.get_ident())
                together.wait(10)

        def call(service: Any = Service, together: threading.Barrier = together) -> None:
            try:
                service().work()
            except BulkheadException:
                together.wait(10)

        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(10)
        assert len(inside) == 1
