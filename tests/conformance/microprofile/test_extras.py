"""Section 17: annotations beyond the standard."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Awaitable
from concurrent.futures import Future
from itertools import pairwise
from typing import Any

import pytest

import everkeel.microprofile as mp
from everkeel import sleep
from everkeel.microprofile import config
from everkeel.microprofile.exceptions import FaultToleranceDefinitionException
from everkeel.microprofile.metrics import registry
from everkeel.testing import VirtualClock

HERE = __name__


class DownError(Exception):
    pass


class OtherError(Exception):
    pass


def waits(clock: VirtualClock, *decorators: Any, retries: int = 5, error: type[Exception] = DownError) -> list[float]:
    """How long a failing call waits before each of its retries."""
    moments: list[float] = []

    def work() -> None:
        moments.append(clock.monotonic())
        raise error

    guarded = mp.Retry(maxRetries=retries, delay=1, delayUnit="SECONDS", jitter=0, maxDuration=0)(work)
    for decorator in decorators:
        guarded = decorator(guarded)
    with pytest.raises(error):
        guarded()
    return [round(after - before, 6) for before, after in pairwise(moments)]


# ------------------------------------------------------------------ rate limits


class Limited:
    @mp.RateLimit(2, window=10)
    @mp.Retry(maxRetries=0)
    def work(self) -> str:
        return "value"

    @mp.RateLimit(2, window=10, type="ROLLING")
    def rolling(self) -> str:
        return "value"

    @mp.RateLimit(2, window=8, type="SMOOTH")
    def smooth(self) -> str:
        return "value"


def refused(method: Any) -> float | None:
    """When to come back, where a call is refused."""
    try:
        method()
    except mp.RateLimitException as error:
        return error.retry_after
    return None


@pytest.mark.rule("SR-01")
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # at 0, 0, 0, 5, 9, 10, 10.5 s
        ("work", [None, None, 10.0, 5.0, 1.0, None, None]),
        ("rolling", [None, None, 10.0, 5.0, 6.0, 9.0, 9.5]),
        ("smooth", [None, 4.0, 4.0, None, None, 2.0, 1.5]),
    ],
)
def test_each_kind_of_limit_says_when_to_come_back(
    virtual_time: VirtualClock, kind: str, expected: list[float | None]
) -> None:
    limited, seen = Limited(), []
    for pause in (0, 0, 0, 5, 4, 1, 0.5):
        virtual_time.sleep(pause)
        seen.append(refused(getattr(limited, kind)))
    assert seen == expected


@pytest.mark.rule("SR-01")
def test_a_limit_is_shared_by_the_objects_of_a_class_and_counted(virtual_time: VirtualClock) -> None:
    assert [refused(Limited().work) for _ in range(3)] == [None, None, 10.0]
    method = f"{HERE}.Limited.work"
    assert registry.value("ft.ratelimit.calls.total", method=method, rateLimitResult="permitted") == 2
    assert registry.value("ft.ratelimit.calls.total", method=method, rateLimitResult="rejected") == 1


@pytest.mark.rule("SR-01")
def test_a_refusal_is_an_everkeel_error_with_milliseconds(virtual_time: VirtualClock) -> None:
    limited = Limited()
    limited.work()
    limited.work()
    virtual_time.sleep(0.0005)
    with pytest.raises(mp.RateLimitException, match=r"rate limit '.*Limited.work' of 2 reached") as caught:
        limited.work()
    assert caught.value.retry_after_millis == 10_000


@pytest.mark.rule("SR-01")
def test_it_stands_inside_the_circuit_breaker_and_outside_the_timeout(virtual_time: VirtualClock) -> None:
    class Service:
        @mp.CircuitBreaker(requestVolumeThreshold=2, failureRatio=0.5)
        @mp.RateLimit(1, window=60)
        @mp.Timeout(1000)
        def work(self) -> str:
            return "value"

    service = Service()
    service.work()
    assert refused(service.work) == 60.0  # the second of two: half of them failed
    with pytest.raises(mp.CircuitBreakerOpenException):
        service.work()
    (metrics,) = registry
    assert metrics.timeout is not None
    assert metrics.timeout.duration.read().count == 1


@pytest.mark.rule("SR-01")
@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"window": 0}, r"RateLimit\.window must be at least 1"),
        ({"min_spacing": -1}, r"RateLimit\.minSpacing must be at least 0"),
        ({"type": "JUMPING"}, r"RateLimit\.type must be one of FIXED, ROLLING, SMOOTH"),
    ],
)
def test_wrong_limits_are_definition_errors(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(FaultToleranceDefinitionException, match=message):
        mp.RateLimit(**parameters)(lambda: None)


@pytest.mark.rule("SR-01")
async def test_a_limit_on_a_coroutine_is_configured_by_the_same_keys(virtual_time: VirtualClock) -> None:
    config.configure({"RateLimit/value": 1, "RateLimit/windowUnit": "MINUTES"}, environment=False)

    @mp.RateLimit
    async def work() -> str:
        return "value"

    await work()
    with pytest.raises(mp.RateLimitException) as caught:
        await work()
    assert caught.value.retry_after == 60.0


# ------------------------------------------------------------------ backoffs


@pytest.mark.rule("SR-02")
def test_an_exponential_backoff_multiplies_the_delay_up_to_the_longest(virtual_time: VirtualClock) -> None:
    assert waits(virtual_time, mp.ExponentialBackoff) == [1, 2, 4, 8, 16]
    backoff = mp.ExponentialBackoff(factor=3, max_delay=20, max_delay_unit="SECONDS")
    assert waits(virtual_time, backoff) == [1, 3, 9, 20, 20]


@pytest.mark.rule("SR-02")
def test_without_a_longest_delay_it_grows_and_grows(virtual_time: VirtualClock) -> None:
    assert waits(virtual_time, mp.ExponentialBackoff(factor=10, max_delay=0)) == [1, 10, 100, 1000, 10000]


@pytest.mark.rule("SR-02")
def test_a_longest_delay_must_fit_into_the_duration() -> None:
    guarded = mp.Retry(maxDuration=60_000)(mp.ExponentialBackoff(lambda: None))
    with pytest.raises(FaultToleranceDefinitionException, match=r"ExponentialBackoff\.maxDelay must be shorter than"):
        guarded()


@pytest.mark.rule("SR-03")
def test_a_fibonacci_backoff(virtual_time: VirtualClock) -> None:
    assert waits(virtual_time, mp.FibonacciBackoff, retries=6) == [1, 2, 3, 5, 8, 13]
    assert waits(virtual_time, mp.FibonacciBackoff(max_delay=4000)) == [1, 2, 3, 4, 4]


class Strategy:
    """Made for each call."""

    made: list[Strategy]

    def __init__(self) -> None:
        self.asked: list[Any] = []
        Strategy.made.append(self)

    def init(self, initial_delay_in_millis: int) -> None:
        self.asked.append(initial_delay_in_millis)

    def next_delay_in_millis(self, exception: BaseException | None) -> int:
        self.asked.append(type(exception))
        return 500 * (len(self.asked) - 1)


@pytest.mark.rule("SR-04")
def test_a_custom_backoff_is_made_for_each_call_and_asked_each_time(virtual_time: VirtualClock) -> None:
    Strategy.made = []
    assert waits(virtual_time, mp.CustomBackoff(Strategy), retries=3) == [0.5, 1.0, 1.5]
    assert waits(virtual_time, mp.CustomBackoff(Strategy), retries=1) == [0.5]
    assert [one.asked for one in Strategy.made] == [[1000, DownError, DownError, DownError], [1000, DownError]]


@pytest.mark.rule("SR-02", "SR-03", "SR-04")
def test_a_backoff_begins_anew_with_each_call(virtual_time: VirtualClock) -> None:
    moments: list[float] = []

    @mp.Retry(maxRetries=2, delay=1000, jitter=0)
    @mp.ExponentialBackoff
    def work() -> None:
        moments.append(virtual_time.monotonic())
        raise DownError

    for _ in range(2):
        with pytest.raises(DownError):
            work()
    assert moments == [0, 1, 3, 3, 4, 6]


@pytest.mark.rule("SR-05")
def test_a_backoff_needs_a_retry_at_the_same_place() -> None:
    with pytest.raises(FaultToleranceDefinitionException, match="ExponentialBackoff must stand beside a Retry"):
        mp.ExponentialBackoff(lambda: None)()

    @mp.Retry
    class OnClass:
        @mp.FibonacciBackoff
        def work(self) -> None: ...

    with pytest.raises(FaultToleranceDefinitionException, match="FibonacciBackoff must stand beside a Retry"):
        OnClass().work()


@pytest.mark.rule("SR-05")
def test_there_is_one_backoff_at_most() -> None:
    guarded = mp.Retry(mp.ExponentialBackoff(mp.FibonacciBackoff(lambda: None)))
    with pytest.raises(FaultToleranceDefinitionException, match="backoff must be one at most"):
        guarded()


@pytest.mark.rule("SR-05")
def test_a_retry_on_a_method_leaves_the_backoff_of_the_class_behind(virtual_time: VirtualClock) -> None:
    moments: list[float] = []

    @mp.Retry(maxRetries=3, delay=1000, jitter=0)
    @mp.ExponentialBackoff
    class Service:
        def by_class(self) -> None:
            moments.append(virtual_time.monotonic())
            raise DownError

        @mp.Retry(maxRetries=3, delay=1000, jitter=0)
        def by_method(self) -> None:
            self.by_class.__wrapped__(self)  # type: ignore[attr-defined]  # what it wraps

    for method, expected in (("by_class", [0, 1, 3, 7]), ("by_method", [7, 8, 9, 10])):
        moments.clear()
        with pytest.raises(DownError):
            getattr(Service(), method)()
        assert moments == expected


@pytest.mark.rule("SR-05")
def test_a_backoff_of_a_disabled_retry_is_no_error() -> None:
    config.configure({"Retry/enabled": "false"}, environment=False)
    assert mp.Retry(mp.ExponentialBackoff(lambda: "value"))() == "value"


# ------------------------------------------------------------------ finer retries


@pytest.mark.rule("SR-06")
def test_a_result_can_be_tried_again() -> None:
    answers = iter([None, None, "ready"])

    @mp.Retry(jitter=0)
    @mp.RetryWhen(result=lambda answer: answer is None)
    def poll() -> str | None:
        return next(answers)

    assert poll() == "ready"


@pytest.mark.rule("SR-06")
def test_where_no_result_is_wanted_there_is_no_exception_to_raise_again() -> None:
    @mp.Retry(maxRetries=2, jitter=0)
    @mp.RetryWhen(result=lambda answer: answer is None)
    def poll() -> None:
        return None

    with pytest.raises(mp.FaultToleranceException, match="3 attempts, and no result that RetryWhen accepts") as caught:
        poll()
    assert type(caught.value) is mp.FaultToleranceException
    assert registry.value("ft.retry.retries.total", method=f"{HERE}.poll") == 2


@pytest.mark.rule("SR-06")
@pytest.mark.parametrize(("text", "runs"), [("later", 4), ("never", 1)])
def test_a_function_can_decide_about_exceptions(text: str, runs: int) -> None:
    made: list[int] = []

    @mp.Retry(jitter=0)
    @mp.RetryWhen(exception=lambda error: "later" in str(error))
    def work() -> None:
        made.append(1)
        raise DownError(text)

    with pytest.raises(DownError):
        work()
    assert len(made) == runs


@pytest.mark.rule("SR-06")
def test_a_function_and_a_list_of_exceptions_exclude_each_other() -> None:
    guarded = mp.Retry(retryOn=DownError)(mp.RetryWhen(exception=lambda error: True)(lambda: None))
    with pytest.raises(FaultToleranceDefinitionException, match=r"RetryWhen\.exception must not be given together"):
        guarded()


@pytest.mark.rule("SR-06")
async def test_the_result_of_an_awaitable_is_its_value(virtual_time: VirtualClock) -> None:
    answers = iter([None, "ready", None, "ready"])

    @mp.Retry(jitter=0)
    @mp.RetryWhen(result=lambda answer: answer is None)
    async def poll() -> str | None:
        return next(answers)

    @mp.Asynchronous
    @mp.Retry(jitter=0)
    @mp.RetryWhen(result=lambda answer: answer is None)
    def stage() -> Awaitable[str | None]:
        async def answer() -> str | None:
            return next(answers)

        return answer()

    assert await poll() == "ready"
    assert await stage() == "ready"


@pytest.mark.rule("SR-06")
def test_what_a_future_will_hold_cannot_be_seen() -> None:
    @mp.Asynchronous
    @mp.Retry
    @mp.RetryWhen(result=lambda answer: answer is None)
    def work() -> Future[None]:
        return mp.completed(None)

    with pytest.raises(FaultToleranceDefinitionException, match=r"RetryWhen\.result cannot see what"):
        mp.validate(work)


class Prepared:
    """Writes down what happens."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    @mp.Retry(maxRetries=2, jitter=0)
    @mp.BeforeRetry(method_name="_prepare")
    def work(self, item: str) -> None:
        self.seen.append(item)
        raise DownError(item)

    @mp.Retry(maxRetries=2, jitter=0)
    @mp.BeforeRetry(method_name="_prepare_later")
    async def coroutine(self, item: str) -> None:
        self.seen.append(item)
        raise DownError(item)

    def _prepare(self) -> None:
        self.seen.append("prepared")

    async def _prepare_later(self) -> None:
        await asyncio.sleep(0)
        self.seen.append("prepared")


@pytest.mark.rule("SR-07")
def test_a_method_runs_before_each_retry_and_not_before_the_first_attempt() -> None:
    prepared = Prepared()
    with pytest.raises(DownError):
        prepared.work("a")
    assert prepared.seen == ["a", "prepared", "a", "prepared", "a"]


@pytest.mark.rule("SR-07")
async def test_for_a_coroutine_it_may_be_one_too(virtual_time: VirtualClock) -> None:
    prepared = Prepared()
    with pytest.raises(DownError):
        await prepared.coroutine("a")
    assert prepared.seen == ["a", "prepared", "a", "prepared", "a"]


SEEN: list[Any] = []


class Preparation:
    def handle(self, context: mp.ExecutionContext) -> None:
        SEEN.append((context.method.__name__, context.parameters, type(context.failure)))


@pytest.mark.rule("SR-07")
def test_a_handler_is_told_what_failed() -> None:
    SEEN.clear()

    @mp.Retry(maxRetries=1, jitter=0)
    @mp.BeforeRetry(Preparation)
    def work(item: str) -> None:
        raise DownError

    with pytest.raises(DownError):
        work("a")
    assert [("work", ("a",), DownError)] == SEEN


@pytest.mark.rule("SR-07")
def test_on_an_asynchronous_method_it_runs_off_the_callers_thread() -> None:
    threads: list[int] = []

    class Preparing:
        def handle(self, context: mp.ExecutionContext) -> None:
            threads.append(threading.get_ident())

    @mp.Asynchronous
    @mp.Retry(maxRetries=1, jitter=0)
    @mp.BeforeRetry(Preparing)
    def work() -> Future[None]:
        raise DownError

    with pytest.raises(DownError):
        work().result()
    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


@pytest.mark.rule("SR-07")
def test_what_it_raises_is_logged_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    runs: list[int] = []

    class Broken:
        def handle(self, context: mp.ExecutionContext) -> None:
            raise OtherError

    @mp.Retry(maxRetries=1, jitter=0)
    @mp.BeforeRetry(Broken)
    def work() -> None:
        runs.append(1)
        raise DownError

    with caplog.at_level(logging.ERROR, "everkeel"), pytest.raises(DownError):
        work()
    assert len(runs) == 2
    assert "BeforeRetry raised" in caplog.text


@pytest.mark.rule("SR-07")
@pytest.mark.parametrize(
    ("value", "parameters", "message"),
    [
        (Preparation, {"method_name": "_prepare"}, "or methodName must be given, and not both"),
        (None, {}, "or methodName must be given, and not both"),
        (None, {"method_name": "no name"}, "must be the name of a method"),
    ],
)
def test_it_is_a_handler_or_a_method(value: Any, parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(FaultToleranceDefinitionException, match=message):
        mp.BeforeRetry(value, **parameters)(lambda: None)


@pytest.mark.rule("SR-07")
@pytest.mark.parametrize("name", ["gone", "demanding"])
def test_the_method_exists_and_needs_nothing(name: str) -> None:
    class Service:
        @mp.Retry
        @mp.BeforeRetry(method_name=name)
        def work(self) -> None: ...

        def demanding(self, item: str) -> None: ...

    with pytest.raises(
        FaultToleranceDefinitionException, match=r"BeforeRetry\.methodName must be the name of a method"
    ):
        Service().work()


# ------------------------------------------------------------------ circuit breakers by name


class Bank:
    @mp.CircuitBreaker(requestVolumeThreshold=1, delay=1000)
    @mp.CircuitBreakerName("bank")
    def charge(self, fails: bool = False) -> str:
        if fails:
            raise DownError
        return "charged"

    @mp.CircuitBreaker(requestVolumeThreshold=1)
    def nameless(self) -> None:
        raise DownError


@pytest.mark.rule("SR-08")
def test_the_state_of_a_breaker_by_its_name(virtual_time: VirtualClock) -> None:
    assert mp.current_state("bank") is mp.CircuitBreakerState.CLOSED
    with pytest.raises(DownError):
        Bank().charge(fails=True)
    assert mp.current_state("bank") is mp.CircuitBreakerState.OPEN


@pytest.mark.rule("SR-08")
def test_changes_are_heard_also_by_who_came_before_the_first_call(virtual_time: VirtualClock) -> None:
    early: list[str] = []
    late: list[str] = []
    mp.on_state_change("bank", early.append)
    Bank().charge()
    mp.on_state_change("bank", late.append)
    with pytest.raises(DownError):
        Bank().charge(fails=True)
    virtual_time.sleep(1.0)
    Bank().charge()
    assert early == late == ["OPEN", "HALF_OPEN", "CLOSED"]


@pytest.mark.rule("SR-08")
def test_a_breaker_is_closed_by_hand() -> None:
    with pytest.raises(DownError):
        Bank().charge(fails=True)
    mp.reset("bank")
    assert mp.current_state("bank") is mp.CircuitBreakerState.CLOSED
    assert Bank().charge() == "charged"


@pytest.mark.rule("SR-08")
def test_all_breakers_are_closed_by_hand_those_without_a_name_too() -> None:
    for method in (lambda: Bank().charge(fails=True), Bank().nameless):
        with pytest.raises(DownError):
            method()
    mp.reset_all()
    assert Bank().charge() == "charged"
    with pytest.raises(DownError):  # and not CircuitBreakerOpenException
        Bank().nameless()


@pytest.mark.rule("SR-08")
@pytest.mark.parametrize("ask", [mp.current_state, mp.reset, lambda name: mp.on_state_change(name, print)])
def test_an_unknown_name_is_an_error(ask: Any) -> None:
    with pytest.raises(ValueError, match="there is no circuit breaker named 'bnak'"):
        ask("bnak")


@pytest.mark.rule("SR-08")
def test_a_name_belongs_to_one_breaker() -> None:
    @mp.CircuitBreaker
    @mp.CircuitBreakerName("bank")
    def another() -> None: ...

    Bank().charge()
    with pytest.raises(FaultToleranceDefinitionException, match="must be given to one circuit breaker only"):
        another()


# ------------------------------------------------------------------ the rest


@pytest.mark.rule("SR-11")
async def test_a_coroutine_needs_no_thread(virtual_time: VirtualClock) -> None:
    threads: list[int] = []

    @mp.Asynchronous
    @mp.Retry(maxRetries=1, jitter=0)
    @mp.Timeout(1000)
    @mp.Bulkhead(1)
    async def work() -> None:
        threads.append(threading.get_ident())
        raise DownError

    with pytest.raises(DownError):
        await work()
    assert threads == [threading.get_ident()] * 2


@pytest.mark.rule("SR-15")
def test_the_present_state_of_a_breaker_is_a_metric(virtual_time: VirtualClock) -> None:
    def states() -> list[int]:
        tags = {"method": f"{HERE}.Bank.charge"}
        return [
            registry.value("ft.circuitbreaker.state.current", **tags, state=state)
            for state in ("closed", "open", "halfOpen")
        ]

    Bank().charge()
    assert states() == [1, 0, 0]
    with pytest.raises(DownError):
        Bank().charge(fails=True)
    assert states() == [0, 1, 0]
    virtual_time.sleep(1.0)
    assert states() == [0, 0, 1]


@pytest.mark.rule("SR-16")
def test_thousands_of_retries_do_not_deepen_the_stack() -> None:
    runs: list[int] = []
    depths: list[int] = []

    @mp.Retry(maxRetries=5000, jitter=0)
    def work() -> None:
        runs.append(1)
        if len(runs) in (2, 5000):
            depths.append(len(inspect.stack(0)))
        raise DownError

    with pytest.raises(DownError):
        work()
    assert depths[0] == depths[1]


@pytest.mark.rule("SR-16")
async def test_a_long_queue_of_quick_calls_is_worked_off(virtual_time: VirtualClock) -> None:
    done: list[int] = []

    @mp.Asynchronous
    @mp.Bulkhead(1, waitingTaskQueue=3000)
    async def work(place: int) -> None:
        done.append(place)
        if place == 0:
            await asyncio.sleep(1)

    await asyncio.gather(*(work(place) for place in range(3000)))
    assert done == list(range(3000))


@pytest.mark.rule("SR-01", "SR-07")
def test_extras_are_disabled_like_everything_else(virtual_time: VirtualClock) -> None:
    config.configure({"RateLimit/enabled": "false", "BeforeRetry/enabled": "false"}, environment=False)
    assert [refused(Limited().work) for _ in range(5)] == [None] * 5
    prepared = Prepared()
    with pytest.raises(DownError):
        prepared.work("a")
    assert prepared.seen == ["a"] * 3


@pytest.mark.rule("SR-02")
def test_jitter_is_added_to_what_the_backoff_says(virtual_time: VirtualClock) -> None:
    moments: list[float] = []

    @mp.Retry(maxRetries=4, delay=1000, jitter=100, maxDuration=0)
    @mp.ExponentialBackoff
    def work() -> None:
        moments.append(virtual_time.monotonic())
        sleep(0)
        raise DownError

    with pytest.raises(DownError):
        work()
    gaps = [after - before for before, after in pairwise(moments)]
    assert gaps != [1, 2, 4, 8]
    assert gaps == [pytest.approx(delay, abs=0.1) for delay in (1, 2, 4, 8)]


@pytest.mark.rule("SR-12")
@pytest.mark.parametrize("enabled", [True, False])
async def test_a_method_that_returns_an_awaitable_may_be_asynchronous_by_its_signature(
    virtual_time: VirtualClock, enabled: bool
) -> None:
    config.configure({config.SIGNATURES: enabled}, environment=False)
    steps = iter([DownError, None])

    @mp.Retry(jitter=0)
    def stage() -> Awaitable[str]:
        async def answer() -> str:
            step = next(steps)
            if step is not None:
                raise step
            return "value"

        return answer()

    if enabled:
        assert await stage() == "value"
    else:
        with pytest.raises(DownError):
            await stage()


class WrapperError(Exception):
    pass


def _chained(error: BaseException, cause: BaseException | None) -> BaseException:
    error.__cause__ = cause
    return error


def _ring() -> BaseException:
    one, other = WrapperError(), WrapperError()
    one.__cause__, other.__cause__ = other, one
    return one


@pytest.mark.rule("SR-13")
@pytest.mark.parametrize(
    ("error", "runs"),
    [
        (_chained(WrapperError(), DownError()), 2),
        (_chained(WrapperError(), _chained(WrapperError(), DownError())), 2),
        (_chained(WrapperError(), _chained(OtherError(), DownError())), 1),
        (_chained(DownError(), OtherError()), 2),
        (_chained(WrapperError(), None), 1),
        (_ring(), 1),
    ],
)
def test_an_exception_that_no_list_knows_may_be_judged_by_its_causes(error: BaseException, runs: int) -> None:
    config.configure({config.CAUSES: True}, environment=False)
    made: list[int] = []

    @mp.Retry(maxRetries=1, jitter=0, retryOn=DownError, abortOn=OtherError)
    def work() -> None:
        made.append(1)
        raise error

    with pytest.raises(type(error)):
        work()
    assert len(made) == runs


@pytest.mark.rule("SR-13")
def test_causes_are_not_looked_at_unless_that_is_wanted() -> None:
    made: list[int] = []

    @mp.Retry(maxRetries=1, jitter=0, retryOn=DownError)
    def work() -> None:
        made.append(1)
        raise WrapperError from DownError()

    with pytest.raises(WrapperError):
        work()
    assert len(made) == 1


class Told:
    @mp.Fallback(fallbackMethod="instead")
    def work(self, item: str, *, urgent: bool = False) -> str:
        raise DownError("down")

    def instead(self, item: str, error: DownError, *, urgent: bool = False) -> str:
        return f"{item} {urgent} {error}"

    @mp.Fallback(fallbackMethod="later", skipOn=OtherError)
    async def coroutine(self, error_code: int) -> str:
        raise DownError("down") if error_code else OtherError("skipped")

    async def later(self, error_code: int, *, error: BaseException) -> str:
        return f"{error_code} {error}"


@pytest.mark.rule("SR-14")
def test_a_fallback_method_may_be_told_what_failed() -> None:
    assert Told().work("a", urgent=True) == "a True down"


@pytest.mark.rule("SR-14")
async def test_lists_are_looked_at_before_it_is_told(virtual_time: VirtualClock) -> None:
    assert await Told().coroutine(7) == "7 down"
    with pytest.raises(OtherError):
        await Told().coroutine(0)
