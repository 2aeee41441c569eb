"""Section 14: what is refused before any call, and what is not."""

from __future__ import annotations

from collections.abc import Awaitable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

import pytest

from everkeel.microprofile import (
    Asynchronous,
    Bulkhead,
    CircuitBreaker,
    ExecutionContext,
    Fallback,
    FaultToleranceDefinitionException,
    Retry,
    Timeout,
    completed,
    config,
    validate,
)

T = TypeVar("T")
SERVICE = f"{__name__}.refused.<locals>.Service"


def refused(decorator: Any, parameter: str) -> None:
    """Wherever it stands: on a method, on a class, on a function; and what is wrong is named."""
    with pytest.raises(FaultToleranceDefinitionException) as raised:

        class Service:
            @decorator
            def work(self) -> None: ...

    assert f"{SERVICE}.work: {parameter} " in str(raised.value)
    with pytest.raises(FaultToleranceDefinitionException, match=parameter.replace(".", r"\.")):

        @decorator
        class Whole:
            def work(self) -> None: ...

    with pytest.raises(FaultToleranceDefinitionException, match=parameter.replace(".", r"\.")):

        @decorator
        def function() -> None: ...


@pytest.mark.rule("MP-VALID-01")
def test_a_timeout_is_not_negative():
    refused(Timeout(-1), "Timeout.value")


@pytest.mark.rule("MP-VALID-02")
@pytest.mark.parametrize("value", [-2, -3])
def test_max_retries_is_at_least_minus_one(value):
    refused(Retry(max_retries=value), "Retry.maxRetries")


@pytest.mark.rule("MP-VALID-03")
def test_a_delay_is_not_negative():
    refused(Retry(delay=-1), "Retry.delay")


@pytest.mark.rule("MP-VALID-04")
def test_jitter_is_not_negative():
    refused(Retry(jitter=-1), "Retry.jitter")


@pytest.mark.rule("MP-VALID-05")
def test_the_duration_is_not_negative():
    refused(Retry(max_duration=-1), "Retry.maxDuration")


@pytest.mark.rule("MP-VALID-06")
@pytest.mark.parametrize(
    "parameters",
    [
        {"delay": 1000, "max_duration": 500},
        {"delay": 500, "max_duration": 500},
        {"delay": 1, "delay_unit": "SECONDS", "max_duration": 1000},
        {"delay": 2, "delay_unit": "SECONDS", "max_duration": 1999},
        {"delay": 1000, "max_duration": 1, "duration_unit": "SECONDS"},
    ],
)
def test_the_duration_is_longer_than_the_delay(parameters):
    refused(Retry(**parameters), "Retry.maxDuration")


@pytest.mark.rule("MP-VALID-07")
def test_the_delay_of_a_circuit_breaker_is_not_negative():
    refused(CircuitBreaker(delay=-1), "CircuitBreaker.delay")


@pytest.mark.rule("MP-VALID-08")
@pytest.mark.parametrize("value", [-1, -0.1, 1.1, float("nan"), float("inf")])
def test_a_ratio_is_between_zero_and_one(value):
    refused(CircuitBreaker(failure_ratio=value), "CircuitBreaker.failureRatio")


@pytest.mark.rule("MP-VALID-09")
@pytest.mark.parametrize("value", [0, -1])
def test_the_volume_is_at_least_one(value):
    refused(CircuitBreaker(request_volume_threshold=value), "CircuitBreaker.requestVolumeThreshold")


@pytest.mark.rule("MP-VALID-10")
@pytest.mark.parametrize("value", [0, -1])
def test_so_many_trials_are_at_least_one(value):
    refused(CircuitBreaker(success_threshold=value), "CircuitBreaker.successThreshold")


@pytest.mark.rule("MP-VALID-11")
@pytest.mark.parametrize("value", [0, -1])
def test_a_bulkhead_has_room_for_one(value):
    refused(Bulkhead(value), "Bulkhead.value")


@pytest.mark.rule("MP-VALID-12", "MP-AMBIG-15")
@pytest.mark.parametrize("value", [0, -1])
def test_its_queue_has_room_for_one_also_where_it_has_none(value):
    refused(Bulkhead(waiting_task_queue=value), "Bulkhead.waitingTaskQueue")


@pytest.mark.rule("MP-VALID-13", "MP-ASYNC-08")
def test_an_asynchronous_method_returns_a_future():
    with pytest.raises(FaultToleranceDefinitionException, match=r"Service\.work: Asynchronous must be declared"):

        class Service:
            @Asynchronous
            def work(self) -> str:
                return "no"


@pytest.mark.rule("MP-VALID-14", "MP-ASYNC-08")
def test_in_an_asynchronous_class_every_method_does():
    with pytest.raises(FaultToleranceDefinitionException, match=r"Service\.wrong: Asynchronous must be declared"):

        @Asynchronous
        class Service:
            def right(self) -> Future[str]:
                return completed("x")

            def wrong(self) -> str:
                return "x"

    @Asynchronous
    class Right:
        def future(self) -> Future[str]:
            return completed("x")

        def stage(self) -> Awaitable[str]: ...

        async def coroutine(self) -> str:
            return "x"

        def _internal(self) -> str:
            return "not a business method"

        def __len__(self) -> int:
            return 0

    validate(Right)


class Words:
    def handle(self, context: ExecutionContext) -> str:
        return "x"


@pytest.mark.rule("MP-VALID-15")
def test_a_fallback_has_a_handler_or_a_method():
    with pytest.raises(FaultToleranceDefinitionException, match=r"work: Fallback\.value must not be given together"):

        class Service:
            @Fallback(Words, fallback_method="instead")
            def work(self) -> str: ...


@pytest.mark.rule("MP-VALID-16")
def test_a_handler_has_the_methods_type():
    class Service:
        @Fallback(Words)
        def work(self) -> int: ...

    with pytest.raises(FaultToleranceDefinitionException, match=r"work: Fallback\.value must be a handler of int"):
        validate(Service)


@pytest.mark.rule("MP-VALID-17")
def test_a_fallback_method_exists():
    class Service:
        @Fallback(fallback_method="instead")
        def work(self) -> int: ...

    class Sub(Service):
        def instead(self) -> int: ...

    for cls in (Service, Sub):
        with pytest.raises(FaultToleranceDefinitionException, match=r"fallbackMethod must be the name of a method"):
            validate(cls)


class Shelf(Generic[T]):
    def instead(self, items: list[T]) -> str: ...


@pytest.mark.rule("MP-VALID-18")
def test_a_fallback_method_takes_the_same_parameters():
    class Two:
        @Fallback(fallback_method="instead")
        def work(self, one: int) -> str: ...

        def instead(self, one: int, two: int) -> str: ...

    class Other(Shelf[int]):
        @Fallback(fallback_method="instead")
        def work(self, items: list[str]) -> str: ...

    class Same(Shelf[str]):
        @Fallback(fallback_method="instead")
        def work(self, items: list[str]) -> str: ...

    for cls in (Two, Other):
        with pytest.raises(FaultToleranceDefinitionException, match=r"fallbackMethod must take"):
            validate(cls)
    validate(Same)


@pytest.mark.rule("MP-VALID-19", "MP-AMBIG-20")
def test_a_fallback_method_returns_the_same():
    class Service:
        @Fallback(fallback_method="instead")
        def work(self) -> int: ...

        def instead(self) -> str: ...

    with pytest.raises(FaultToleranceDefinitionException, match=r"fallbackMethod must return int"):
        validate(Service)


@pytest.mark.rule("MP-VALID-20")
def test_a_private_method_of_a_base_is_no_fallback():
    class Base:
        def __instead(self) -> int: ...

    class Service(Base):
        @Fallback(fallback_method="__instead")
        def work(self) -> int: ...

    with pytest.raises(FaultToleranceDefinitionException, match="fallbackMethod"):
        validate(Service)


@pytest.mark.rule("MP-VALID-21")
def test_a_class_has_no_fallback():
    with pytest.raises(FaultToleranceDefinitionException, match=r"Service: Fallback must be placed on a method"):

        @Fallback(Words)
        class Service: ...


@pytest.mark.rule("MP-VALID-22")
@pytest.mark.parametrize(
    ("annotation", "parameters", "parameter"),
    [
        (Retry, {"retry_on": "OSError"}, "Retry.retryOn"),
        (Retry, {"abort_on": [OSError, 7]}, "Retry.abortOn"),
        (Retry, {"abort_on": int}, "Retry.abortOn"),
        (Retry, {"delay_unit": "WEEKZ"}, "Retry.delayUnit"),
        (Retry, {"jitter_delay_unit": "millis"}, "Retry.jitterDelayUnit"),
        (Retry, {"max_retries": True}, "Retry.maxRetries"),
        (Retry, {"max_retries": "3"}, "Retry.maxRetries"),
        (Retry, {"delay": 1.5}, "Retry.delay"),
        (Timeout, {"unit": 7}, "Timeout.unit"),
        (Bulkhead, {"value": 2.0}, "Bulkhead.value"),
        (CircuitBreaker, {"fail_on": ("x",)}, "CircuitBreaker.failOn"),
        (CircuitBreaker, {"failure_ratio": True}, "CircuitBreaker.failureRatio"),
        (CircuitBreaker, {"failure_ratio": "0.5"}, "CircuitBreaker.failureRatio"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_values_are_of_the_right_type(annotation, parameters, parameter):
    refused(annotation(**parameters), parameter)


@pytest.mark.rule("MP-VALID-22")
def test_parameters_that_do_not_exist_are_refused():
    with pytest.raises(FaultToleranceDefinitionException, match="has no parameter 'maxDurationUnit'"):
        Retry(maxDurationUnit="MILLIS")
    with pytest.raises(FaultToleranceDefinitionException, match="must be given once"):
        Retry(max_retries=1, maxRetries=1)
    with pytest.raises(FaultToleranceDefinitionException, match=r"work: Fallback\.value must be a class with a method"):
        Fallback(value=len)(_work)
    with pytest.raises(FaultToleranceDefinitionException, match=r"work: Fallback\.fallbackMethod must be the name"):
        Fallback(fallback_method="no name")(_work)


def _work() -> None: ...


@pytest.mark.rule("MP-VALID-22")
def test_what_cannot_be_guarded_is_refused():
    with pytest.raises(FaultToleranceDefinitionException, match="cannot guard a generator"):

        @Retry
        def items() -> Any:
            yield 1

    with pytest.raises(FaultToleranceDefinitionException, match="must be placed on a function"):
        Retry(property(len))
    with pytest.raises(FaultToleranceDefinitionException, match="must not stand on one method twice"):

        @Retry
        @Retry
        def twice() -> None: ...

    with pytest.raises(FaultToleranceDefinitionException, match="must not stand on one class twice"):

        @Timeout
        @Timeout
        class Twice: ...


@pytest.mark.rule("MP-VALID-23")
@pytest.mark.parametrize(
    ("annotation", "parameters"),
    [
        (Timeout, {"value": 0}),
        (Retry, {"max_retries": -1}),
        (Retry, {"max_retries": 0}),
        (Retry, {"delay": 0}),
        (Retry, {"jitter": 0}),
        (Retry, {"max_duration": 0, "delay": 999_999}),
        (Retry, {"max_duration": 501, "delay": 500}),
        (CircuitBreaker, {"delay": 0}),
        (CircuitBreaker, {"failure_ratio": 0}),
        (CircuitBreaker, {"failure_ratio": 1}),
        (CircuitBreaker, {"request_volume_threshold": 1, "success_threshold": 1}),
        (Bulkhead, {"value": 1, "waiting_task_queue": 1}),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_legal_values_at_the_edge_are_accepted(annotation, parameters):
    assert annotation(**parameters)(lambda: "done")() == "done"


@pytest.mark.rule("MP-VALID-24")
def test_the_message_names_class_method_annotation_and_parameter():
    with pytest.raises(FaultToleranceDefinitionException) as raised:

        class Orders:
            @CircuitBreaker(successThreshold=0)
            def pay(self) -> None: ...

    here = f"{__name__}.test_the_message_names_class_method_annotation_and_parameter.<locals>.Orders"
    assert str(raised.value) == f"{here}.pay: CircuitBreaker.successThreshold must be at least 1 (got 0)"


@pytest.mark.rule("MP-VALID-24")
def test_also_where_configuration_is_to_blame():
    config.configure({"Retry/maxRetries": -7}, environment=False)

    class Orders:
        def pay(self) -> None: ...

    with pytest.raises(FaultToleranceDefinitionException, match=r"Orders\.pay: Retry\.maxRetries .*-7"):
        Retry(Orders.pay)
