"""Section 6: Fallback."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

import pytest

from everkeel.microprofile import (
    Asynchronous,
    Bulkhead,
    BulkheadException,
    CircuitBreaker,
    CircuitBreakerOpenException,
    ExecutionContext,
    Fallback,
    FallbackHandler,
    FaultToleranceDefinitionException,
    Retry,
    Timeout,
    TimeoutException,
    completed,
    config,
    create_handlers_with,
    failed,
    validate,
)

T = TypeVar("T")


class DownError(Exception):
    pass


class VeryDownError(DownError):
    pass


class Collapse(BaseException):
    pass


def service(error: object, **parameters: Any) -> Any:
    """An object whose `work` ends as told, and falls back to `instead`."""

    class Service:
        runs = 0

        @Fallback(fallback_method="instead", **parameters)
        def work(self) -> str:
            self.runs += 1
            if isinstance(error, BaseException):
                raise error
            return str(error)

        def instead(self) -> str:
            return "instead"

    return Service()


@pytest.mark.rule("MP-FALLBACK-01")
def test_what_happens_after_the_call():
    assert service("answer").work() == "answer"
    assert service(DownError(), apply_on=DownError).work() == "instead"
    for error, parameters in (
        (DownError(), {"apply_on": DownError, "skip_on": DownError}),
        (OSError(), {"apply_on": DownError}),
    ):
        with pytest.raises(type(error)) as raised:
            service(error, **parameters).work()
        assert raised.value is error


@pytest.mark.rule("MP-FALLBACK-02", "MP-AMBIG-14")
def test_subclasses_match_skip_on_wins_and_everything_is_the_default():
    assert service(VeryDownError(), apply_on=DownError).work() == "instead"
    with pytest.raises(VeryDownError):
        service(VeryDownError(), apply_on=VeryDownError, skip_on=DownError).work()
    assert service(Collapse()).work() == "instead"
    with pytest.raises(Collapse):
        service(Collapse(), apply_on=Exception).work()


class Handler:
    def handle(self, context: ExecutionContext) -> str:
        return f"handled {context.method.__name__}{context.parameters}{context.keywords}: {context.failure!r}"


@pytest.mark.rule("MP-FALLBACK-03", "MP-VALID-15")
def test_exactly_one_of_handler_and_method_is_given():
    with pytest.raises(FaultToleranceDefinitionException, match="must not be given together"):

        @Fallback(Handler, fallback_method="instead")
        def both() -> str: ...

    with pytest.raises(FaultToleranceDefinitionException, match="must be given"):

        @Fallback()
        def neither() -> str: ...

    with pytest.raises(FaultToleranceDefinitionException, match="must be given"):

        @Fallback  # type: ignore[arg-type]
        def bare() -> str: ...


@pytest.mark.rule("MP-FALLBACK-04")
def test_a_handler_is_told_method_parameters_and_failure():
    class Service:
        @Fallback(Handler)
        def work(self, order: int, *, urgent: bool = False) -> str:
            raise DownError("down")

    assert Service().work(7, urgent=True) == "handled work(7,){'urgent': True}: DownError('down')"


@pytest.mark.rule("MP-FALLBACK-04")
def test_a_handler_serves_functions_and_coroutines_too(virtual_time):
    @Fallback(value=Handler)
    def work(order: int) -> str:
        raise DownError("down")

    class Waiting:
        async def handle(self, context: ExecutionContext) -> str:
            await asyncio.sleep(1)
            return f"{context.failure}"

    @Fallback(Waiting)
    async def awork(order: int) -> str:
        raise Collapse("all of it")

    assert work(7) == "handled work(7,){}: DownError('down')"
    assert virtual_time.run(awork(7)) == "all of it"


@pytest.mark.rule("MP-FALLBACK-05")
def test_each_use_has_a_handler_of_its_own_made_by_a_factory():
    class Counting:
        def __init__(self, shared: list[object]) -> None:
            self.shared = shared

        def handle(self, context: ExecutionContext) -> int:
            self.shared.append(self)
            return len(self.shared)

    class Service:
        @Fallback(Counting)
        def work(self) -> int:
            raise DownError

    shared: list[object] = []
    create_handlers_with(lambda cls: cls(shared))
    try:
        assert [Service().work(), Service().work()] == [1, 2]
    finally:
        create_handlers_with(None)
    assert shared[0] is not shared[1]


@pytest.mark.rule("MP-FALLBACK-06")
def test_a_fallback_method_gets_the_same_object_and_arguments():
    class Service:
        @Fallback(fallback_method="instead")
        def work(self, a: int, *rest: int, b: int = 0, **others: int) -> Any:
            raise DownError

        def instead(self, a: int, *rest: int, b: int = 0, **others: int) -> Any:
            return self, a, rest, b, others

    one = Service()
    assert one.work(1, 2, 3, b=4, c=5) == (one, 1, (2, 3), 4, {"c": 5})


def function_instead(order: int) -> str:
    return f"instead of {order}"


@pytest.mark.rule("MP-FALLBACK-06", "MP-MAP-13")
def test_a_function_falls_back_to_one_of_its_module():
    @Fallback(fallback_method="function_instead")
    def work(order: int) -> str:
        raise DownError

    assert work(7) == "instead of 7"


@pytest.mark.rule("MP-FALLBACK-07")
def test_an_override_of_the_fallback_is_used():
    class Base:
        @Fallback(fallback_method="instead")
        def work(self) -> str:
            raise DownError

        def instead(self) -> str:
            return "base"

    class Sub(Base):
        def instead(self) -> str:
            return "sub"

    assert (Base().work(), Sub().work()) == ("base", "sub")


@pytest.mark.rule("MP-FALLBACK-08", "MP-VALID-17")
def test_the_fallback_is_declared_in_the_class_or_a_base():
    class Interface(ABC):
        @abstractmethod
        def instead(self) -> str: ...

    class Service(Interface):
        @Fallback(fallback_method="instead")
        def work(self) -> str:
            raise DownError

    class Concrete(Service):
        def instead(self) -> str:
            return "instead"

    assert Concrete().work() == "instead"

    class Base:
        @Fallback(fallback_method="only_below")
        def work(self) -> str:
            raise DownError

    class Sub(Base):
        def only_below(self) -> str:
            return "never"

    with pytest.raises(FaultToleranceDefinitionException, match=r"fallbackMethod must be the name of a method"):
        Sub().work()
    with pytest.raises(FaultToleranceDefinitionException, match="only_below"):
        validate(Base)


class Same:
    def instead(self, a: int, b: str = "x", *, c: float = 0.0) -> str:
        return "instead"

    def fewer(self, a: int) -> str:
        return "no"

    def no_default(self, a: int, b: str, *, c: float = 0.0) -> str:
        return "no"

    def positional(self, a: int, b: str = "x", c: float = 0.0) -> str:
        return "no"

    def other_type(self, a: str, b: str = "x", *, c: float = 0.0) -> str:
        return "no"

    def other_result(self, a: int, b: str = "x", *, c: float = 0.0) -> int:
        return 0

    def not_annotated(self, a, b="x", *, c=0.0):
        return "instead"


def guarded_by(name: str) -> Any:
    class Service(Same):
        @Fallback(fallback_method=name)
        def work(self, a: int, b: str = "x", *, c: float = 0.0) -> str:
            raise DownError

    return Service()


@pytest.mark.rule("MP-FALLBACK-09", "MP-VALID-18", "MP-VALID-19")
@pytest.mark.parametrize("name", ["fewer", "no_default", "positional", "other_type", "other_result"])
def test_another_signature_is_refused(name):
    with pytest.raises(FaultToleranceDefinitionException, match=r"Service\.work: Fallback\.fallbackMethod must"):
        guarded_by(name).work(1)


@pytest.mark.rule("MP-FALLBACK-09")
@pytest.mark.parametrize("name", ["instead", "not_annotated"])
def test_the_same_signature_is_accepted(name):
    assert guarded_by(name).work(1) == "instead"


class Generic_(Generic[T]):
    def instead(self, item: T, all: list[T]) -> T:
        return item


@pytest.mark.rule("MP-FALLBACK-09", "MP-VALID-18")
def test_type_variables_are_those_of_the_class_hierarchy():
    class Right(Generic_[int]):
        @Fallback(fallback_method="instead")
        def work(self, item: int, all: list[int]) -> int:
            raise DownError

    class Wrong(Generic_[int]):
        @Fallback(fallback_method="instead")
        def work(self, item: int, all: list[str]) -> int:
            raise DownError

    assert Right().work(1, [1]) == 1
    with pytest.raises(FaultToleranceDefinitionException, match=r"must take list\[str\] as all"):
        Wrong().work(1, ["x"])


@pytest.mark.rule("MP-FALLBACK-10", "MP-VALID-20")
def test_a_private_fallback_is_the_business_of_its_class():
    class Base:
        def __secret(self) -> str:
            return "base"

        def _internal(self) -> str:
            return "internal"

        @Fallback(fallback_method="__secret")
        def work(self) -> str:
            raise DownError

    class Sub(Base):
        @Fallback(fallback_method="_internal")
        def internal(self) -> str:
            raise DownError

        @Fallback(fallback_method="__secret")
        def secret(self) -> str:
            raise DownError

    assert (Base().work(), Sub().work(), Sub().internal()) == ("base", "base", "internal")
    with pytest.raises(FaultToleranceDefinitionException):
        Sub().secret()


@pytest.mark.rule("MP-FALLBACK-11", "MP-ORDER-02")
def test_a_fallback_is_not_guarded_and_there_is_no_second_one():
    runs = []

    class Service:
        @Retry(max_retries=2, jitter=0)
        @Fallback(fallback_method="instead")
        def work(self) -> str:
            raise DownError

        def instead(self) -> str:
            runs.append(1)
            raise OSError("also down")

    with pytest.raises(OSError, match="also down"):
        Service().work()
    assert len(runs) == 1


@pytest.mark.rule("MP-FALLBACK-12", "MP-ORDER-02")
def test_it_runs_once_after_the_last_attempt():
    one = service(DownError())
    assert one.work() == "instead"
    assert one.runs == 1

    class Service:
        runs, falls = 0, 0

        @Fallback(fallback_method="instead")
        @Retry(max_retries=2, jitter=0)
        def work(self) -> str:
            self.runs += 1
            raise DownError

        def instead(self) -> str:
            self.falls += 1
            return "instead"

    another = Service()
    assert another.work() == "instead"
    assert (another.runs, another.falls) == (3, 1)


@pytest.mark.rule("MP-FALLBACK-13", "MP-AMBIG-19")
def test_it_applies_to_timeouts_rejections_and_open_circuits(virtual_time):
    seen = []

    class Noting:
        def handle(self, context: ExecutionContext) -> str:
            seen.append(type(context.failure))
            return "instead"

    class Service:
        @Fallback(Noting)
        @Timeout(100)
        def slow(self) -> str:
            virtual_time.advance(1)
            return "late"

        @Fallback(Noting)
        @Bulkhead(1)
        def crowded(self, again: bool) -> str:
            return self.crowded(False) if again else "inside"

        @Fallback(Noting)
        @CircuitBreaker(request_volume_threshold=1)
        def broken(self) -> str:
            raise DownError

        @Fallback(Noting, skip_on=CircuitBreakerOpenException)
        @CircuitBreaker(request_volume_threshold=1)
        def skipped(self) -> str:
            raise DownError

    one = Service()
    assert {one.slow(), one.crowded(True), one.broken(), one.broken()} == {"instead"}
    assert seen == [TimeoutException, BulkheadException, DownError, CircuitBreakerOpenException]
    assert one.skipped() == "instead"
    with pytest.raises(CircuitBreakerOpenException):
        one.skipped()


@pytest.mark.rule("MP-FALLBACK-14", "MP-AMBIG-11")
def test_future_kind_only_a_raised_exception_falls_back():
    class Service:
        @Asynchronous
        @Fallback(fallback_method="instead")
        def work(self, raises: bool) -> Future[str]:
            if raises:
                raise DownError
            return failed(DownError())

        def instead(self, raises: bool) -> Future[str]:
            return completed("instead")

    assert Service().work(True).result(10) == "instead"
    assert type(Service().work(False).exception(10)) is DownError


@pytest.mark.rule("MP-FALLBACK-15", "MP-AMBIG-11")
async def test_stage_kind_a_failing_awaitable_falls_back_too(virtual_time):
    async def fail() -> str:
        await asyncio.sleep(1)
        raise DownError

    class Service:
        @Asynchronous
        @Fallback(fallback_method="instead")
        def work(self, raises: bool) -> Awaitable[str]:
            if raises:
                raise DownError
            return fail()

        def instead(self, raises: bool) -> Awaitable[str]:
            return asyncio.sleep(1, "instead")

        @Fallback(fallback_method="ainstead")
        async def awork(self) -> str:
            return await fail()

        async def ainstead(self) -> str:
            return "instead"

    assert await Service().work(True) == "instead"
    assert await Service().work(False) == "instead"
    assert await Service().awork() == "instead"


@pytest.mark.rule("MP-FALLBACK-16", "MP-MAP-19")
def test_the_outcome_of_the_fallbacks_future_is_that_of_the_call():
    threads = []

    class Service:
        @Asynchronous
        @Fallback(fallback_method="instead")
        def work(self, fails: bool) -> Future[str]:
            raise DownError

        def instead(self, fails: bool) -> Future[str]:
            threads.append(threading.get_ident())
            return failed(OSError()) if fails else completed("flat")

    assert Service().work(False).result(10) == "flat"
    assert type(Service().work(True).exception(10)) is OSError
    assert threading.get_ident() not in threads


@pytest.mark.rule("MP-FALLBACK-17", "MP-VALID-21")
def test_it_may_not_stand_on_a_class():
    with pytest.raises(FaultToleranceDefinitionException, match="must be placed on a method, not on a class"):

        @Fallback(Handler)
        class Service: ...

    with pytest.raises(FaultToleranceDefinitionException, match="must be placed on a method, not on a class"):

        @Fallback
        class Other: ...


@pytest.mark.rule("MP-FALLBACK-18")
def test_the_switch_that_disables_all_others_leaves_it():
    config.configure({"MP_Fault_Tolerance_NonFallback_Enabled": False}, environment=False)

    class Service:
        runs = 0

        @Retry(max_retries=2, jitter=0)
        @Fallback(fallback_method="instead")
        def work(self) -> str:
            self.runs += 1
            raise DownError

        def instead(self) -> str:
            return "instead"

    one = Service()
    assert one.work() == "instead"
    assert one.runs == 1


@pytest.mark.rule("MP-FALLBACK-19")
async def test_a_cancelled_call_does_not_fall_back(virtual_time):
    falls = []

    class Service:
        @Fallback(fallback_method="instead")
        async def work(self) -> str:
            await asyncio.sleep(60)
            return "never"

        async def instead(self) -> str:
            falls.append(1)
            return "instead"

        @Asynchronous
        @Fallback(fallback_method="sync_instead")
        def threaded(self) -> Awaitable[str]:
            return asyncio.sleep(60, "never")

        def sync_instead(self) -> Awaitable[str]:
            falls.append(1)
            return asyncio.sleep(0, "instead")

    for begun in (asyncio.ensure_future(Service().work()), Service().threaded()):
        await asyncio.sleep(1)
        begun.cancel()
        with pytest.raises(asyncio.CancelledError):
            await begun
    assert falls == []


@pytest.mark.rule("MP-FALLBACK-20", "MP-VALID-16")
def test_a_handler_of_another_type_is_refused():
    class Words(FallbackHandler[str]):
        def handle(self, context: ExecutionContext) -> Any:
            return "x"

    class Numbers(FallbackHandler[int]):
        def handle(self, context):  # type: ignore[no-untyped-def]
            return 0

    class Service:
        @Fallback(Handler)
        def number(self) -> int:
            raise DownError

        @Fallback(Numbers)
        def word(self) -> str:
            raise DownError

        @Fallback(Words)
        def unknown(self) -> str:
            raise DownError

    with pytest.raises(FaultToleranceDefinitionException, match="must be a handler of int"):
        Service().number()
    with pytest.raises(FaultToleranceDefinitionException, match="must be a handler of str"):
        Service().word()
    assert Service().unknown() == "x"


@pytest.mark.rule("MP-AMBIG-20")
def test_a_fallback_may_return_a_subclass():
    class Service:
        @Fallback(fallback_method="instead")
        def work(self) -> Exception:
            raise DownError

        def instead(self) -> DownError:
            return VeryDownError()

    assert type(Service().work()) is VeryDownError
