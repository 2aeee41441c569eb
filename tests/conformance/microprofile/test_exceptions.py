"""Section 2: exceptions."""

from __future__ import annotations

import copy
import pickle
import threading
from concurrent.futures import Future

import pytest

from everkeel.errors import BulkheadFullError, CircuitOpenError, ConfigError, EverkeelError, TimeoutExceededError
from everkeel.microprofile import (
    Asynchronous,
    Bulkhead,
    BulkheadException,
    CircuitBreaker,
    CircuitBreakerOpenException,
    FaultToleranceDefinitionException,
    FaultToleranceException,
    Retry,
    Timeout,
    TimeoutException,
)
from everkeel.testing import Flaky


class DownError(Exception):
    pass


EXAMPLES = [
    FaultToleranceException("shop.Orders.pay returned nothing"),
    TimeoutException("shop.Orders.pay", 0.5),
    CircuitBreakerOpenException("shop.Orders.pay", 3.2, 0.5, 20),
    BulkheadException("shop.Orders.pay", None, 10, 10),
    FaultToleranceDefinitionException("shop.Orders.pay", "Retry.maxRetries", "must be at least -1", "-3"),
    FaultToleranceDefinitionException("something else is wrong"),
]


@pytest.mark.rule("MP-EXC-01")
def test_one_root_and_four_below_it():
    four = (TimeoutException, CircuitBreakerOpenException, BulkheadException, FaultToleranceDefinitionException)
    assert set(FaultToleranceException.__subclasses__()) >= set(four)
    assert issubclass(FaultToleranceException, Exception)
    assert issubclass(TimeoutException, TimeoutError)


@pytest.mark.rule("MP-EXC-01")
def test_each_is_the_native_error_of_the_same_meaning_too():
    pairs = {
        TimeoutException: TimeoutExceededError,
        CircuitBreakerOpenException: CircuitOpenError,
        BulkheadException: BulkheadFullError,
        FaultToleranceDefinitionException: ConfigError,
        FaultToleranceException: EverkeelError,
    }
    assert all(issubclass(mine, native) for mine, native in pairs.items())


@pytest.mark.rule("MP-EXC-01")
@pytest.mark.parametrize("error", EXAMPLES, ids=repr)
def test_they_survive_pickling_and_copying(error):
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is type(error)
        assert (str(again), again.args, again.retry_after) == (str(error), error.args, error.retry_after)


@pytest.mark.rule("MP-EXC-02")
async def test_a_timeout_is_exactly_that_class(virtual_time):
    with pytest.raises(TimeoutException) as raised:
        Timeout(500)(Flaky("late", takes=1))()
    assert type(raised.value) is TimeoutException
    with pytest.raises(TimeoutException) as raised:
        await Timeout(500)(Flaky("late", takes=1).async_())()
    assert type(raised.value) is TimeoutException


@pytest.mark.rule("MP-EXC-03")
async def test_the_users_exception_is_the_same_object(virtual_time):
    class Odd(BaseException): ...

    for error in (DownError("x"), Odd("x")):
        guarded = Retry(max_retries=1)(Timeout(500)(CircuitBreaker(Bulkhead(Flaky(error)))))
        with pytest.raises(type(error)) as raised:
            guarded()
        assert raised.value is error
        assert error.__cause__ is None
        aguarded = Retry(max_retries=1)(Timeout(500)(CircuitBreaker(Bulkhead(Flaky(error).async_()))))
        with pytest.raises(type(error)) as raised:
            await aguarded()
        assert raised.value is error


@pytest.mark.rule("MP-EXC-04")
def test_exhausted_retries_raise_no_exception_of_their_own(virtual_time):
    with pytest.raises(DownError) as raised:
        Retry(max_retries=2)(Flaky(DownError()))()
    assert not isinstance(raised.value, FaultToleranceException)


@pytest.mark.rule("MP-EXC-05")
def test_a_failed_result_raises_the_exception_itself():
    error = DownError()

    @Asynchronous
    def work() -> Future[None]:
        raise error

    with pytest.raises(DownError) as raised:
        work().result(10)
    assert raised.value is error


@pytest.mark.rule("MP-EXC-06")
def test_each_rejection_and_timeout_is_a_new_one_that_names_the_method(virtual_time):
    class Service:
        @Timeout(500)
        def slow(self) -> None:
            virtual_time.advance(1)

        @CircuitBreaker(request_volume_threshold=1)
        def broken(self) -> None:
            raise DownError

        @Bulkhead(1)
        def crowded(self, door: threading.Event | None = None) -> list[BaseException]:
            return [] if door is None else _caught(self.crowded) + _caught(self.crowded)

    service = Service()
    _caught(service.broken)
    for method, errors in (
        ("slow", _caught(service.slow) + _caught(service.slow)),
        ("broken", _caught(service.broken) + _caught(service.broken)),
        ("crowded", service.crowded(threading.Event())),
    ):
        first, second = errors
        assert first is not second
        assert type(first) is type(second)
        assert f"{__name__}.{Service.__qualname__}.{method}" in str(first)


def _caught(call: object) -> list[BaseException]:
    with pytest.raises((DownError, FaultToleranceException)) as raised:
        call()  # type: ignore[operator]
    return [raised.value]
