"""Section 7: CircuitBreaker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from concurrent.futures import Future
from typing import Any

import pytest

from everkeel.microprofile import (
    Asynchronous,
    Bulkhead,
    BulkheadException,
    CircuitBreaker,
    CircuitBreakerOpenException,
    Retry,
    Timeout,
    TimeoutException,
    completed,
    failed,
)
from everkeel.microprofile.metrics import registry
from everkeel.testing import Flaky


class DownError(Exception):
    pass


class VeryDownError(DownError):
    pass


class Collapse(BaseException):
    pass


class Fed:
    """A guarded function that succeeds or fails as fed: "s", "f"; answers "x" where the circuit prevented it."""

    def __init__(self, **parameters: Any) -> None:
        def body(what: str) -> str:
            if what == "f":
                raise DownError
            return what

        self.call = CircuitBreaker(**parameters)(body)

    def __call__(self, outcomes: str) -> str:
        return "".join(self._one(one) for one in outcomes)

    def _one(self, what: str) -> str:
        try:
            return self.call(what)
        except DownError:
            return "f"
        except CircuitBreakerOpenException:
            return "x"


@pytest.mark.rule("MP-CB-01", "MP-CB-09")
def test_it_begins_closed_opens_and_is_half_open_after_the_delay(virtual_time):
    feed = Fed(request_volume_threshold=2, delay=1000)
    assert feed("ffss") == "ffxx"
    virtual_time.advance(1)
    assert feed("ss") == "ss"


@pytest.mark.rule("MP-CB-02", "MP-AMBIG-03")
def test_the_window_rolls(virtual_time):
    assert Fed(request_volume_threshold=4, failure_ratio=0.5)("sfssfs") == "sfssfx"
    assert Fed(request_volume_threshold=4, failure_ratio=0.5)("sffss") == "sffsx"


@pytest.mark.rule("MP-CB-02")
def test_calls_in_progress_are_not_in_the_window(virtual_time):
    inside = []

    @CircuitBreaker(request_volume_threshold=2)
    def work(depth: int) -> str:
        if depth:
            inside.append(work(depth - 1))
        if depth == 0:
            raise DownError
        return "done"

    with pytest.raises(DownError):
        work(1)
    with pytest.raises(CircuitBreakerOpenException):
        work(1)


@pytest.mark.rule("MP-CB-03")
@pytest.mark.parametrize(("outcomes", "seen"), [("sssffff", "sssfffx"), ("ssfssff", "ssfssff"), ("fsssfff", "fsssffx")])
def test_it_opens_when_the_share_is_reached_after_any_result(virtual_time, outcomes, seen):
    # A window of six and a half: the third failure among the last six.
    assert Fed(request_volume_threshold=6, failure_ratio=0.5)(outcomes) == seen


@pytest.mark.rule("MP-CB-04", "MP-AMBIG-02")
def test_a_success_that_fills_the_window_can_open_it(virtual_time):
    assert Fed(request_volume_threshold=4, failure_ratio=0.5)("ffss") == "ffss"
    assert Fed(request_volume_threshold=4, failure_ratio=0.5)("ffsss") == "ffssx"


@pytest.mark.rule("MP-CB-05")
def test_before_the_window_is_full_nothing_opens_it(virtual_time):
    assert Fed(request_volume_threshold=10)("fffffffff") == "fffffffff"
    assert Fed(request_volume_threshold=10)("ffffffffffs") == "ffffffffffx"


@pytest.mark.rule("MP-CB-06")
@pytest.mark.parametrize(("ratio", "size", "failures"), [(0.28, 25, 7), (0.14, 50, 7), (0.56, 25, 14), (0.07, 100, 7)])
def test_shares_are_compared_as_quotients(virtual_time, ratio, size, failures):
    opens = "f" * failures + "s" * (size - failures)
    assert Fed(request_volume_threshold=size, failure_ratio=ratio)(opens + "s")[-1] == "x"
    stays = "f" * (failures - 1) + "s" * (size - failures + 1)
    assert Fed(request_volume_threshold=size, failure_ratio=ratio)(stays + "s")[-1] == "s"


@pytest.mark.rule("MP-CB-07", "MP-AMBIG-14")
@pytest.mark.parametrize(
    ("error", "parameters", "opens"),
    [
        (DownError(), {}, True),
        (Collapse(), {}, True),
        (VeryDownError(), {"fail_on": DownError}, True),
        (OSError(), {"fail_on": DownError}, False),
        (VeryDownError(), {"skip_on": DownError}, False),
        (VeryDownError(), {"fail_on": VeryDownError, "skip_on": DownError}, False),
        (Collapse(), {"fail_on": Exception}, False),
        (Collapse(), {"skip_on": Collapse}, False),
    ],
)
def test_what_counts_as_a_failure(virtual_time, error, parameters, opens):
    guarded = CircuitBreaker(request_volume_threshold=2, **parameters)(Flaky(error))
    for _ in range(2):
        with pytest.raises(type(error)):
            guarded()
    with pytest.raises(CircuitBreakerOpenException if opens else type(error)):
        guarded()


@pytest.mark.rule("MP-CB-07")
def test_what_does_not_count_as_a_failure_counts_as_a_success(virtual_time):
    def body(error: BaseException) -> None:
        raise error

    guarded = CircuitBreaker(request_volume_threshold=2, failure_ratio=0.5, skip_on=OSError, fail_on=DownError)(body)
    for error in (DownError(), OSError()):  # the window is full, and half of it failed
        with pytest.raises(type(error)):
            guarded(error)
    with pytest.raises(CircuitBreakerOpenException):
        guarded(OSError())


@pytest.mark.rule("MP-CB-08", "MP-EXC-03")
def test_the_exception_that_trips_it_is_raised_as_it_is(virtual_time):
    for error in (DownError(), Collapse()):
        with pytest.raises(type(error)) as raised:
            CircuitBreaker(request_volume_threshold=1)(Flaky(error))()
        assert raised.value is error
        assert error.__context__ is None


@pytest.mark.rule("MP-CB-09")
def test_open_the_method_is_not_executed(virtual_time):
    script = Flaky(DownError())
    guarded = CircuitBreaker(request_volume_threshold=1)(script)
    with pytest.raises(DownError):
        guarded()
    for _ in range(3):
        with pytest.raises(CircuitBreakerOpenException):
            guarded()
    assert script.calls == 1


@pytest.mark.rule("MP-CB-10")
def test_the_delay_is_measured_from_the_opening(virtual_time):
    feed = Fed(request_volume_threshold=1, delay=1000)
    feed("f")
    virtual_time.advance(0.999)
    assert feed("s") == "x"
    virtual_time.advance(0.001)
    assert feed("s") == "s"


@pytest.mark.rule("MP-CB-10")
def test_without_a_delay_the_very_next_call_is_a_trial(virtual_time):
    assert Fed(request_volume_threshold=1, delay=0)("ffs") == "ffs"


@pytest.mark.rule("MP-CB-10")
def test_its_time_as_half_open_begins_when_it_is_due_and_not_with_the_next_call(virtual_time):
    feed = Fed(request_volume_threshold=1, delay=1000)
    feed("f")
    virtual_time.advance(3)
    tag = f"{__name__}.body"
    spent = {
        state: registry.value("ft.circuitbreaker.state.total", method=tag, state=state)
        for state in ("open", "halfOpen")
    }
    assert spent == {"open": 1_000_000_000, "halfOpen": 2_000_000_000}


class Trials:
    """A circuit that is due for trials; each trial waits until it is told how to end."""

    def __init__(self, clock: Any, threshold: int) -> None:
        self.ends: list[asyncio.Future[str]] = []
        self.clock = clock

        @CircuitBreaker(request_volume_threshold=1, delay=1000, success_threshold=threshold)
        async def work(fails: bool = False) -> str:
            if fails:
                raise DownError
            end: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            self.ends.append(end)
            return await end

        self.work = work

    async def open(self) -> None:
        with pytest.raises(DownError):
            await self.work(True)
        self.clock.advance(1)

    async def begin(self, calls: int) -> list[asyncio.Task[str]]:
        tasks = [asyncio.ensure_future(self.work()) for _ in range(calls)]
        await asyncio.sleep(0.001)
        return tasks


@pytest.mark.rule("MP-CB-11", "MP-CB-12", "MP-AMBIG-04")
async def test_as_many_trials_as_must_succeed_side_by_side_and_no_more(virtual_time):
    trials = Trials(virtual_time, 3)
    await trials.open()
    tasks = await trials.begin(10)
    assert len(trials.ends) == 3
    prevented = [task.exception() for task in tasks if task.done()]
    assert [type(one) for one in prevented] == [CircuitBreakerOpenException] * 7
    for end in trials.ends:
        end.set_result("fine")
    await asyncio.sleep(0.001)
    assert len(await trials.begin(5)) == 5
    assert len(trials.ends) == 8  # closed
    for end in trials.ends[3:]:
        end.set_result("fine")
    await asyncio.sleep(0.001)


@pytest.mark.rule("MP-CB-11")
def test_or_one_after_the_other(virtual_time):
    feed = Fed(request_volume_threshold=2, failure_ratio=1.0, delay=1000, success_threshold=3)
    feed("ff")
    virtual_time.advance(1)
    assert feed("sss" + "fs") == "sssfs"  # closed: one failure does not open it


@pytest.mark.rule("MP-AMBIG-17", "MP-CB-12")
async def test_what_is_prevented_in_half_open_counts_as_such(virtual_time):
    trials = Trials(virtual_time, 1)
    await trials.open()
    tasks = await trials.begin(3)
    tag = f"{__name__}.work"
    assert registry.value("ft.circuitbreaker.calls.total", method=tag, circuitBreakerResult="circuitBreakerOpen") == 2
    trials.ends[0].set_result("fine")
    await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.rule("MP-CB-13")
def test_the_first_failing_trial_opens_it_for_a_full_delay(virtual_time):
    feed = Fed(request_volume_threshold=1, delay=1000, success_threshold=3)
    feed("f")
    virtual_time.advance(1)
    assert feed("ssfs") == "ssfx"
    virtual_time.advance(0.999)
    assert feed("s") == "x"
    virtual_time.advance(0.001)
    assert feed("s") == "s"


@pytest.mark.rule("MP-CB-14")
def test_after_closing_a_full_window_is_needed_again(virtual_time):
    feed = Fed(request_volume_threshold=4, delay=1000)
    feed("ffff")
    virtual_time.advance(1)
    assert feed("s" + "ffff" + "s") == "s" + "ffff" + "x"


@pytest.mark.rule("MP-CB-15", "MP-AMBIG-05")
async def test_a_result_of_an_earlier_state_moves_nothing(virtual_time):
    trials = Trials(virtual_time, 1)
    (slow,) = await trials.begin(1)  # begun while closed
    await trials.open()
    (trial,) = await trials.begin(1)
    trials.ends[0].set_exception(DownError())  # ends while half open
    with pytest.raises(DownError):
        await slow
    trials.ends[1].set_result("fine")
    assert await trial == "fine"
    (passes,) = await trials.begin(1)
    assert not passes.done()  # closed
    trials.ends[2].set_result("fine")
    await passes
    calls = {
        result: registry.value("ft.circuitbreaker.calls.total", method=f"{__name__}.work", circuitBreakerResult=result)
        for result in ("success", "failure")
    }
    assert calls == {"success": 2, "failure": 2}  # though it was counted


@pytest.mark.rule("MP-CB-16", "MP-LEVEL-10")
def test_state_belongs_to_class_and_method(virtual_time):
    @CircuitBreaker(request_volume_threshold=1)
    class Base:
        def one(self) -> None:
            raise DownError

        def other(self) -> None:
            raise DownError

    class Left(Base): ...

    class Right(Base): ...

    with pytest.raises(DownError):
        Left().one()
    with pytest.raises(CircuitBreakerOpenException):
        Left().one()  # another object
    for separate in (Left().other, Right().one, Base().one):
        with pytest.raises(DownError):
            separate()


@pytest.mark.rule("MP-CB-17")
def test_failures_at_once_open_it_once(virtual_time):
    barrier = threading.Barrier(4)

    class Service:
        @CircuitBreaker(request_volume_threshold=4)
        def work(self) -> None:
            barrier.wait(10)
            raise DownError

    def call() -> None:
        with pytest.raises(DownError):
            Service().work()

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tag = f"{__name__}.{Service.__qualname__}.work"
    assert registry.value("ft.circuitbreaker.opened.total", method=tag) == 1


@pytest.mark.rule("MP-CB-18", "MP-RETRY-15", "MP-ORDER-03")
def test_each_attempt_is_recorded_and_so_are_timeouts_and_rejections(virtual_time):
    script = Flaky(DownError())
    retried = Retry(max_retries=5, jitter=0)(CircuitBreaker(request_volume_threshold=3)(script))
    with pytest.raises(CircuitBreakerOpenException):
        retried()
    assert script.calls == 3
    timed = CircuitBreaker(request_volume_threshold=1)(Timeout(100)(Flaky("late", takes=1)))
    with pytest.raises(TimeoutException):
        timed()
    with pytest.raises(CircuitBreakerOpenException):
        timed()

    class Service:
        @CircuitBreaker(request_volume_threshold=1)
        @Bulkhead(1)
        def crowded(self, again: bool) -> None:
            if again:
                with pytest.raises(BulkheadException):
                    self.crowded(False)
                with pytest.raises(CircuitBreakerOpenException):
                    self.crowded(False)

        @CircuitBreaker(request_volume_threshold=1, skip_on=BulkheadException)
        @Bulkhead(1)
        def forgiving(self, again: bool) -> None:
            if again:
                for _ in range(2):
                    with pytest.raises(BulkheadException):
                        self.forgiving(False)

    Service().crowded(True)
    Service().forgiving(True)


@pytest.mark.rule("MP-CB-18")
async def test_a_timeout_is_recorded_when_it_happens(virtual_time):
    @CircuitBreaker(request_volume_threshold=1)
    @Timeout(500)
    async def stubborn() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(5)

    with pytest.raises(TimeoutException):
        await stubborn()
    with pytest.raises(CircuitBreakerOpenException):
        await stubborn()
    await asyncio.sleep(5)


@pytest.mark.rule("MP-CB-19", "MP-AMBIG-11")
async def test_future_kind_is_recorded_at_the_return_and_stage_kind_at_the_end(virtual_time):
    class Service:
        @Asynchronous
        @CircuitBreaker(request_volume_threshold=1)
        def future(self) -> Future[str]:
            return failed(DownError())

        @Asynchronous
        @CircuitBreaker(request_volume_threshold=1)
        def stage(self) -> Awaitable[str]:
            async def fail() -> str:
                await asyncio.sleep(1)
                raise DownError

            return fail()

    for _ in range(3):
        with pytest.raises(DownError):
            await Service().future()
    with pytest.raises(DownError):
        await Service().stage()
    with pytest.raises(CircuitBreakerOpenException):
        await Service().stage()


@pytest.mark.rule("MP-CB-20")
def test_ratios_of_one_and_of_zero(virtual_time):
    assert Fed(request_volume_threshold=3, failure_ratio=1.0)("ffsfffs") == "ffsfffx"
    assert Fed(request_volume_threshold=3, failure_ratio=0.0)("ssss") == "sssx"


@pytest.mark.rule("MP-CB-21")
async def test_a_cancelled_trial_is_a_failed_one(virtual_time):
    trials = Trials(virtual_time, 1)
    await trials.open()
    (trial,) = await trials.begin(1)
    trial.cancel()
    with pytest.raises(asyncio.CancelledError):
        await trial
    with pytest.raises(CircuitBreakerOpenException):
        await trials.work()
    virtual_time.advance(1)
    (another,) = await trials.begin(1)
    trials.ends[-1].set_result("fine")
    assert await another == "fine"


@pytest.mark.rule("MP-CB-21")
def test_so_is_one_of_a_thread_that_its_caller_gave_up_on(virtual_time):
    gate, began = threading.Event(), threading.Event()
    fails = [True]

    class Service:
        @Asynchronous
        @CircuitBreaker(request_volume_threshold=1, delay=1000)
        def work(self) -> Future[str]:
            if fails.pop() if fails else False:
                raise DownError
            began.set()
            gate.wait(10)
            return completed("fine")

    assert type(Service().work().exception(10)) is DownError
    virtual_time.advance(1)
    trial = Service().work()
    assert began.wait(10)
    trial.cancel()
    gate.set()
    for _ in range(5000):
        if type(Service().work().exception(10)) is CircuitBreakerOpenException:
            break
    else:
        raise AssertionError("it is still half open, or closed")
