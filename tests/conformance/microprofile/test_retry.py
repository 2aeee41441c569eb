"""Section 4: Retry."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from concurrent.futures import Future

import pytest

from everkeel.microprofile import (
    Asynchronous,
    AsyncResult,
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
from everkeel.testing import Flaky, VirtualClock

FLAKY = "everkeel.testing.double.flaky"
"""What a `Flaky` is called in metrics."""


class DownError(Exception):
    pass


class VeryDownError(DownError):
    pass


class Collapse(BaseException):
    """Like a Java `Error`."""


def executions(script: Flaky, **parameters: object) -> int:
    """How often it runs before its call is over, however that ends."""
    with pytest.raises((Exception, Collapse)):
        Retry(**{"jitter": 0, **parameters})(script)()
    return script.calls


@pytest.mark.rule("MP-RETRY-01")
def test_what_happens_after_an_attempt():
    assert Retry(jitter=0)(script := Flaky("answer"))() == "answer"
    assert script.calls == 1
    assert executions(Flaky(DownError()), retry_on=DownError, abort_on=DownError) == 1
    assert executions(Flaky(DownError()), retry_on=DownError) == 4
    assert executions(Flaky(OSError()), retry_on=DownError) == 1


@pytest.mark.rule("MP-RETRY-02")
def test_subclasses_match_and_abort_on_wins_whatever_the_specificity():
    assert executions(Flaky(VeryDownError()), retry_on=DownError) == 4
    assert executions(Flaky(VeryDownError()), retry_on=VeryDownError, abort_on=DownError) == 1
    assert executions(Flaky(VeryDownError()), retry_on=[OSError, Exception], abort_on=[VeryDownError]) == 1


@pytest.mark.rule("MP-RETRY-03", "MP-AMBIG-14")
def test_by_default_exceptions_are_retried_and_errors_are_not():
    assert executions(Flaky(Exception())) == 4
    assert executions(Flaky(Collapse())) == 1
    assert executions(Flaky(Collapse()), retry_on=Collapse) == 4
    assert executions(Flaky(Collapse()), retry_on=BaseException) == 4


@pytest.mark.rule("MP-RETRY-04")
@pytest.mark.parametrize(("retries", "runs"), [(0, 1), (1, 2), (5, 6)])
def test_max_retries_counts_retries(retries, runs):
    assert executions(Flaky(DownError()), max_retries=retries) == runs


@pytest.mark.rule("MP-RETRY-04")
def test_minus_one_is_no_limit_on_the_number():
    script = Flaky(*[DownError()] * 50, "answer")
    assert Retry(max_retries=-1, max_duration=0, jitter=0)(script)() == "answer"
    assert script.calls == 51


@pytest.mark.rule("MP-RETRY-05")
def test_the_first_success_ends_it(virtual_time):
    script = Flaky(DownError(), DownError(), "answer", "another")
    assert Retry()(script)() == "answer"
    assert script.calls == 3


@pytest.mark.rule("MP-RETRY-06")
def test_no_attempt_starts_once_the_duration_is_over(virtual_time):
    script = Flaky(DownError(), takes=0.3)
    assert executions(script, max_retries=99, max_duration=1000) == 4
    assert script.times == pytest.approx([0.0, 0.3, 0.6, 0.9])


@pytest.mark.rule("MP-RETRY-06")
def test_an_attempt_that_ends_exactly_at_the_limit_is_not_followed_by_another(virtual_time):
    assert executions(Flaky(DownError(), takes=0.5), max_retries=99, max_duration=1000) == 2


@pytest.mark.rule("MP-RETRY-06", "MP-AMBIG-10")
def test_after_a_wait_that_took_longer_than_planned_nothing_starts():
    from everkeel.runtime.clock import use_clock

    class Oversleeping(VirtualClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(10 * seconds)

    with use_clock(Oversleeping()):
        script = Flaky(DownError())
        guarded = Retry(delay=100, jitter=0, max_duration=500, max_retries=9)(script)
        with pytest.raises(DownError):
            guarded()
    assert script.calls == 1
    assert registry.value("ft.retry.retries.total", method=FLAKY) == 0
    assert registry.value("ft.retry.calls.total", method=FLAKY, retried="false", retryResult="maxDurationReached") == 1


@pytest.mark.rule("MP-AMBIG-10")
def test_a_wait_that_must_cross_the_limit_is_skipped_and_is_no_retry(virtual_time):
    script = Flaky(DownError(), takes=0.3)
    guarded = Retry(delay=400, jitter=0, max_duration=600, max_retries=9)(script)
    with pytest.raises(DownError):
        guarded()
    assert (script.calls, virtual_time.monotonic()) == (1, pytest.approx(0.3))
    assert virtual_time.sleeps == []
    method = registry.value(
        "ft.retry.calls.total",
        method=FLAKY,
        retried="false",
        retryResult="maxDurationReached",
    )
    assert method == 1


@pytest.mark.rule("MP-RETRY-06")
def test_zero_is_no_limit_on_the_duration(virtual_time):
    script = Flaky(*[DownError()] * 9, "answer", takes=3600)
    assert Retry(max_retries=-1, max_duration=0, jitter=0)(script)() == "answer"


@pytest.mark.rule("MP-RETRY-07")
def test_the_duration_never_interrupts_an_attempt(virtual_time):
    assert Retry(max_duration=100, jitter=0)(Flaky("late", takes=5))() == "late"
    error = DownError()
    with pytest.raises(DownError) as raised:
        Retry(max_duration=100, jitter=0)(script := Flaky(error, takes=5))()
    assert raised.value is error
    assert script.calls == 1


@pytest.mark.rule("MP-RETRY-07")
async def test_nor_that_of_a_coroutine(virtual_time):
    assert await Retry(max_duration=100, jitter=0)(Flaky("late", takes=5).async_())() == "late"


@pytest.mark.rule("MP-RETRY-08", "MP-AMBIG-13")
def test_the_delay_varies_by_the_jitter_both_ways_afresh_each_time_and_never_below_zero(virtual_time):
    executions(Flaky(DownError()), max_retries=300, delay=100, jitter=200)
    sleeps = virtual_time.sleeps
    assert len(set(sleeps)) > 100
    assert all(0 <= one <= 0.3 for one in sleeps)
    assert min(sleeps) < 0.02
    assert max(sleeps) > 0.28
    assert sum(1 for one in sleeps if one < 0.1) > 80


@pytest.mark.rule("MP-RETRY-09", "MP-AMBIG-13")
def test_a_bare_retry_waits_up_to_two_hundred_milliseconds(virtual_time):
    for _ in range(60):
        with pytest.raises(DownError):
            Retry(Flaky(DownError()))()
    assert all(one <= 0.2 for one in virtual_time.sleeps)
    assert max(virtual_time.sleeps) > 0.15
    assert len(virtual_time.sleeps) < 180  # those clamped to zero are no sleeps at all


@pytest.mark.rule("MP-RETRY-10")
def test_without_jitter_the_delay_is_exact(virtual_time):
    executions(Flaky(DownError()), max_retries=3, delay=100)
    assert virtual_time.sleeps == [0.1, 0.1, 0.1]


@pytest.mark.rule("MP-RETRY-11")
def test_jitter_alone_makes_some_delays_positive(virtual_time):
    executions(Flaky(DownError()), max_retries=100, delay=0, jitter=50)
    assert 20 < sum(1 for one in virtual_time.sleeps if one > 0) < 80


@pytest.mark.rule("MP-RETRY-12")
def test_each_length_has_a_unit_of_its_own(virtual_time):
    executions(
        Flaky(DownError()), max_retries=2, delay=2, delay_unit="SECONDS", max_duration=1, duration_unit="MINUTES"
    )
    assert virtual_time.sleeps == [2.0, 2.0]
    virtual_time.sleeps.clear()
    executions(
        Flaky(DownError()),
        max_retries=50,
        delay=1,
        delayUnit="HOURS",
        jitter=1,
        jitterDelayUnit="MINUTES",
        maxDuration=9,
        durationUnit="DAYS",
    )
    assert all(3540 <= one <= 3660 for one in virtual_time.sleeps)
    assert len(virtual_time.sleeps) == 50


@pytest.mark.rule("MP-RETRY-12", "MP-RETRY-06")
def test_the_unit_of_the_duration_bounds_it(virtual_time):
    script = Flaky(DownError(), takes=1.0)
    assert executions(script, max_retries=99, max_duration=3, duration_unit="SECONDS") == 3


@pytest.mark.rule("MP-RETRY-13")
async def test_the_timeout_starts_anew_for_each_attempt_and_its_exception_is_retried(virtual_time):
    starts: list[float] = []

    @Retry(max_retries=2, jitter=0)
    @Timeout(500)
    async def work() -> None:
        starts.append(virtual_time.monotonic())
        await asyncio.sleep(60)

    with pytest.raises(TimeoutException):
        await work()
    assert starts == [0.0, 0.5, 1.0]


@pytest.mark.rule("MP-RETRY-13")
async def test_unless_the_lists_say_otherwise(virtual_time):
    runs = []

    @Retry(abort_on=TimeoutException, jitter=0)
    @Timeout(500)
    async def work() -> None:
        runs.append(1)
        await asyncio.sleep(60)

    with pytest.raises(TimeoutException):
        await work()
    assert len(runs) == 1


@pytest.mark.rule("MP-RETRY-14")
def test_after_a_timeout_the_next_attempt_starts_though_the_last_one_runs_on(virtual_time):
    gate, starts, overlapping = threading.Event(), [], []

    @Asynchronous
    @Retry(max_retries=1, jitter=0)
    @Timeout(500)
    def work() -> Future[str]:
        starts.append(1)
        overlapping.append(not gate.is_set())
        if len(starts) == 1:
            gate.wait(10)
        return completed("second")

    result = work()
    assert result.result(10) == "second"
    gate.set()
    assert overlapping == [True, True]


@pytest.mark.rule("MP-RETRY-15", "MP-AMBIG-09")
def test_every_attempt_is_recorded_and_an_open_circuit_is_retried(virtual_time):
    script = Flaky(DownError("first"))
    guarded = Retry(max_retries=3, jitter=0)(CircuitBreaker(request_volume_threshold=2, delay=60_000)(script))
    with pytest.raises(CircuitBreakerOpenException):
        guarded()
    assert script.calls == 2


@pytest.mark.rule("MP-RETRY-15")
def test_an_open_circuit_is_not_retried_where_the_lists_say_so(virtual_time):
    script = Flaky(DownError())
    guarded = Retry(max_retries=9, delay=1000, jitter=0, abort_on=CircuitBreakerOpenException)(
        CircuitBreaker(request_volume_threshold=1, delay=60_000)(script)
    )
    with pytest.raises(CircuitBreakerOpenException):
        guarded()
    assert virtual_time.sleeps == [1.0]


@pytest.mark.rule("MP-RETRY-15")
def test_with_enough_delay_a_later_attempt_is_the_trial(virtual_time):
    script = Flaky(DownError(), "answer")
    guarded = Retry(max_retries=3, delay=600, jitter=0)(CircuitBreaker(request_volume_threshold=1, delay=1000)(script))
    assert guarded() == "answer"
    assert virtual_time.sleeps == [0.6, 0.6]  # not as long as the circuit would like


@pytest.mark.rule("MP-RETRY-16")
def test_a_rejection_is_retried_where_the_lists_allow_it(virtual_time):
    gate, began = threading.Event(), threading.Event()

    class Service:
        @Retry(max_retries=2, delay=500, jitter=0)
        @Bulkhead(1)
        def work(self) -> str:
            began.set()
            gate.wait(10)
            return "done"

        @Retry(max_retries=2, delay=500, jitter=0, abort_on=BulkheadException)
        @Bulkhead(1)
        def impatient(self) -> str:
            began.set()
            gate.wait(10)
            return "done"

    for method, slept in ((Service().work, [0.5, 0.5]), (Service().impatient, [])):
        gate.clear()
        began.clear()
        virtual_time.sleeps.clear()
        thread = threading.Thread(target=method)
        thread.start()
        assert began.wait(10)
        with pytest.raises(BulkheadException):
            method()
        gate.set()
        thread.join()
        assert virtual_time.sleeps == slept


@pytest.mark.rule("MP-RETRY-17", "MP-AMBIG-09", "MP-EXC-04")
def test_the_last_attempts_exception_is_raised(virtual_time):
    last = OSError("last")
    with pytest.raises(OSError) as raised:
        Retry(max_retries=2)(Flaky(DownError(), VeryDownError(), last))()
    assert raised.value is last


@pytest.mark.rule("MP-RETRY-18", "MP-AMBIG-11", "MP-ASYNC-06")
def test_future_kind_a_returned_failure_is_not_retried_and_a_raised_one_is():
    returned, raised = [], []

    @Asynchronous
    @Retry(max_retries=2, jitter=0)
    def returns() -> Future[str]:
        returned.append(1)
        return failed(DownError())

    @Asynchronous
    @Retry(max_retries=2, jitter=0)
    def raises() -> Future[str]:
        raised.append(1)
        raise DownError

    assert type(returns().exception(10)) is DownError
    assert type(raises().exception(10)) is DownError
    assert (len(returned), len(raised)) == (1, 3)


@pytest.mark.rule("MP-RETRY-19", "MP-AMBIG-11", "MP-ASYNC-07")
async def test_stage_kind_both_are_retried(virtual_time):
    runs: dict[str, int] = {"raised": 0, "returned": 0, "deep": 0, "one of several": 0, "async def": 0}

    async def fail_later() -> str:
        await asyncio.sleep(1)
        raise DownError

    async def deep() -> str:
        async def deeper() -> str:
            return await fail_later()

        return (await deeper()).upper()

    async def several() -> str:
        await asyncio.gather(asyncio.sleep(2), fail_later())
        return "never"

    def stage(name: str, make: object) -> object:
        @Asynchronous
        @Retry(max_retries=2, jitter=0)
        def work() -> Awaitable[str]:
            runs[name] += 1
            if make is None:
                raise DownError
            return make()  # type: ignore[operator]

        return work

    @Retry(max_retries=2, jitter=0)
    async def coroutine() -> str:
        runs["async def"] += 1
        return await fail_later()

    works = [
        stage("raised", None),
        stage("returned", fail_later),
        stage("deep", deep),
        stage("one of several", several),
        coroutine,
    ]
    for work in works:
        with pytest.raises(DownError):
            await work()  # type: ignore[operator]
    assert runs == dict.fromkeys(runs, 3)


@pytest.mark.rule("MP-RETRY-20", "MP-MAP-08")
async def test_without_asynchronous_a_returned_failure_is_a_value(virtual_time):
    runs = []

    @Retry(max_retries=2, jitter=0)
    def work() -> Future[str]:
        runs.append(1)
        return failed(DownError())

    @Retry(max_retries=2, jitter=0)
    def awaitable() -> Awaitable[None]:
        runs.append(1)
        return asyncio.sleep(1)

    @Retry(max_retries=2, jitter=0)
    def raises() -> Future[str]:
        runs.append(1)
        raise DownError

    assert not isinstance(work(), AsyncResult)
    inner = awaitable()
    assert asyncio.iscoroutine(inner)
    await inner
    assert len(runs) == 2
    with pytest.raises(DownError):
        raises()
    assert len(runs) == 5


@pytest.mark.rule("MP-RETRY-21", "MP-ASYNC-11")
def test_once_cancelled_no_further_attempt_starts(virtual_time):
    runs = []

    @Asynchronous
    @Retry(max_retries=5, delay=1000, jitter=0)
    def work() -> Future[str]:
        runs.append(1)
        raise DownError

    result = work()
    while not runs:
        threading.Event().wait(0.001)
    virtual_time.sleep(0.5)
    assert result.cancel()
    virtual_time.sleep(60)
    assert len(runs) == 1


@pytest.mark.rule("MP-RETRY-22")
async def test_a_coroutine_waits_without_blocking_its_loop(virtual_time):
    script = Flaky(DownError(), "answer").async_()
    ticks = []

    async def tick() -> None:
        while True:
            ticks.append(virtual_time.monotonic())
            await asyncio.sleep(1)

    ticking = asyncio.ensure_future(tick())
    assert await Retry(delay=10, delay_unit="SECONDS", jitter=0)(script)() == "answer"
    ticking.cancel()
    assert len(ticks) >= 10


@pytest.mark.rule("MP-RETRY-23")
def test_where_both_limits_are_reached_it_is_the_number_that_is_reported(virtual_time):
    script = Flaky(DownError(), takes=1.0)
    guarded = Retry(max_retries=1, max_duration=2000, jitter=0)(script)
    with pytest.raises(DownError):
        guarded()
    tags = {"method": FLAKY, "retried": "true"}
    assert registry.value("ft.retry.calls.total", retryResult="maxRetriesReached", **tags) == 1
    assert registry.value("ft.retry.calls.total", retryResult="maxDurationReached", **tags) == 0


@pytest.mark.rule("MP-RETRY-24")
def test_a_methods_retry_replaces_that_of_its_class_as_a_whole(virtual_time):
    script = Flaky(DownError())

    @Retry(max_retries=1, delay=900, jitter=0)
    class Service:
        @Retry(max_retries=2, jitter=0)
        def work(self) -> object:
            return script()

    with pytest.raises(DownError):
        Service().work()
    assert (script.calls, virtual_time.sleeps) == (3, [])
