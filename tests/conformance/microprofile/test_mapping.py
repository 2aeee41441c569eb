"""Section 1: how the standard maps to Python."""

from __future__ import annotations

import asyncio
import functools
import inspect
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest

import everkeel.microprofile as mp
from everkeel.microprofile import (
    Asynchronous,
    AsyncResult,
    Bulkhead,
    BulkheadException,
    ChronoUnit,
    CircuitBreaker,
    CircuitBreakerOpenException,
    Fallback,
    FaultToleranceDefinitionException,
    Retry,
    Timeout,
    TimeoutException,
    completed,
    config,
    redeploy,
    validate,
)
from everkeel.microprofile.annotations import Timeout as SaidTimeout
from everkeel.microprofile.annotations import seconds
from everkeel.microprofile.levels import method_of
from everkeel.microprofile.metrics import registry
from everkeel.testing import Flaky


class DownError(Exception):
    pass


class Collapse(BaseException):
    pass


@pytest.mark.rule("MP-MAP-01")
def test_decorators_are_bare_or_have_parameters_on_functions_methods_and_classes():
    for decorator in (Retry, Timeout, CircuitBreaker, Bulkhead, Asynchronous):

        def function() -> Future[int]:
            return completed(1)

        class Service:
            @decorator
            def bare(self) -> Future[int]:
                return completed(2)

            @decorator()
            def called(self) -> Future[int]:
                return completed(3)

        @decorator
        class Whole:
            def work(self) -> Future[int]:
                return completed(4)

        service = Service()
        for guarded in (decorator(function), decorator()(function), service.bare, service.called, Whole().work):
            assert method_of(guarded) is not None
            assert guarded().result(10) in (1, 2, 3, 4)


@pytest.mark.rule("MP-MAP-01")
def test_a_value_may_stand_first_and_names_have_two_spellings(virtual_time):
    with pytest.raises(TimeoutException, match=r"0\.5 s"):
        Timeout(500)(Flaky("late", takes=1))()
    assert method_of(Bulkhead(3, waitingTaskQueue=4)(len)) is not None
    for spelling in ({"max_retries": 1}, {"maxRetries": 1}):
        script = Flaky(DownError())
        with pytest.raises(DownError):
            Retry(**spelling)(script)()
        assert script.calls == 2


@pytest.mark.rule("MP-MAP-02")
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_the_order_of_decorators_does_not_matter(virtual_time, order):
    runs: list[str] = []

    def instead_of(context: object) -> str:
        runs.append("fallback")
        return "instead"

    handler = type("Handler", (), {"handle": lambda self, context: instead_of(context)})
    decorators = [
        Retry(max_retries=3, jitter=0),
        CircuitBreaker(request_volume_threshold=2),
        Timeout(500),
        Fallback(handler),
    ]

    def work() -> str:
        runs.append("run")
        virtual_time.advance(1)
        return "late"

    guarded: Any = work
    for index in order:
        guarded = decorators[index](guarded)
    assert guarded() == "instead"
    assert runs == ["run", "run", "fallback"]
    assert guarded.__wrapped__ is work


@pytest.mark.rule("MP-MAP-03")
def test_an_error_is_a_base_exception_that_is_no_exception(virtual_time):
    script = Flaky(Collapse(), "answer")
    assert Retry(retry_on=Collapse, jitter=0)(script)() == "answer"


@pytest.mark.rule("MP-MAP-04")
@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(1), GeneratorExit(), asyncio.CancelledError()])
def test_some_always_leave_untouched_and_give_back_what_they_held(error):
    script = Flaky(error, error, "answer")
    handler = type("Handler", (), {"handle": lambda self, context: "instead"})
    guarded = Retry(retry_on=BaseException, jitter=0)(
        Fallback(handler, apply_on=BaseException)(
            CircuitBreaker(fail_on=BaseException, request_volume_threshold=1)(Bulkhead(1)(Timeout(500)(script)))
        )
    )
    for calls in (1, 2):
        with pytest.raises(type(error)) as raised:
            guarded()
        assert raised.value is error
        assert script.calls == calls
    assert guarded() == "answer"


@pytest.mark.rule("MP-MAP-05")
@pytest.mark.parametrize(
    ("unit", "length"),
    [
        ("NANOS", 1e-9), ("MICROS", 1e-6), ("MILLIS", 1e-3), ("SECONDS", 1.0),
        ("MINUTES", 60.0), ("HOURS", 3600.0), ("HALF_DAYS", 43200.0), ("DAYS", 86400.0),
    ],
)  # fmt: skip
def test_units_by_name_or_as_objects(unit, length):
    assert seconds(1, unit) == pytest.approx(length)
    assert SaidTimeout(value=1, unit=ChronoUnit[unit]) == SaidTimeout(value=1, unit=unit)


@pytest.mark.rule("MP-MAP-05")
def test_short_times_are_not_rounded_to_zero_and_timedeltas_are_times(virtual_time):
    with pytest.raises(TimeoutException):
        Timeout(500, unit="NANOS")(Flaky("late", takes=1e-6))()
    assert Timeout(500, unit="MICROS")(Flaky("in time", takes=1e-4))() == "in time"
    script = Flaky(DownError(), "answer")
    assert Retry(delay=timedelta(seconds=2), jitter=timedelta(0))(script)() == "answer"
    assert virtual_time.sleeps == [2.0]
    with pytest.raises(FaultToleranceDefinitionException, match="must be left out"):
        Timeout(timedelta(seconds=1), unit="SECONDS")


@pytest.mark.rule("MP-MAP-06", "MP-MAP-07")
async def test_the_two_asynchronous_kinds(virtual_time):
    @Asynchronous
    def future() -> Future[str]:
        return completed("future")

    @Asynchronous
    def stage() -> Awaitable[str]:
        return asyncio.sleep(1, "stage")

    @Retry
    async def coroutine() -> str:
        return "coroutine"

    assert isinstance(future(), Future)
    assert isinstance(stage(), Awaitable)
    assert [await future(), await stage(), await coroutine()] == ["future", "stage", "coroutine"]


@pytest.mark.rule("MP-MAP-08")
async def test_for_an_async_def_policies_act_on_its_end_marked_or_not(virtual_time):
    for mark in (lambda fn: fn, Asynchronous):
        script = Flaky(DownError(), "answer", takes=1).async_()

        async def work(script=script) -> object:
            return await script()

        assert await mark(Retry(jitter=0)(work))() == "answer"


@pytest.mark.rule("MP-MAP-09")
async def test_a_blocking_body_never_runs_on_the_event_loop(virtual_time):
    threads = []

    @Asynchronous
    @Retry(max_retries=1, jitter=0)
    def work() -> Awaitable[None]:
        threads.append(threading.get_ident())
        raise DownError

    with pytest.raises(DownError):
        await work()
    assert len(threads) == 2
    assert threading.get_ident() not in threads


@pytest.mark.rule("MP-MAP-12", "MP-MAP-13")
def test_the_bean_class_is_that_of_the_object():
    class Base:
        @Retry
        def work(self) -> str:
            return "done"

    class Sub(Base): ...

    @Retry
    def function() -> str:
        return "done"

    Sub().work()
    function()
    tags = {method.method for method in registry}
    assert tags == {f"{Sub.__module__}.{Sub.__qualname__}.work", f"{__name__}.function"}


@pytest.mark.rule("MP-MAP-13")
def test_the_module_is_the_class_of_a_function():
    config.configure({f"{__name__}/function/Retry/maxRetries": 1}, environment=False)
    script = Flaky(DownError())

    @Retry(jitter=0)
    def function() -> object:
        return script()

    with pytest.raises(DownError):
        function()
    assert script.calls == 2


@pytest.mark.rule("MP-MAP-14")
def test_static_and_class_methods_may_be_annotated_themselves():
    runs = []

    class Service:
        @staticmethod
        @Retry(max_retries=1, jitter=0)
        def static(what: str) -> None:
            runs.append(what)
            raise DownError

        @classmethod
        @Retry(max_retries=2, jitter=0)
        def of_class(cls) -> None:
            runs.append(cls)
            raise DownError

        @Retry(max_retries=1, jitter=0)
        @staticmethod
        def above(what: str) -> None:
            runs.append(what)
            raise DownError

    for call in (lambda: Service.static("x"), Service.of_class, lambda: Service().above("y")):
        with pytest.raises(DownError):
            call()
    assert runs == ["x", "x", Service, Service, Service, "y", "y"]


@pytest.mark.rule("MP-MAP-16")
def test_a_call_within_the_class_goes_through_the_policies_of_the_other_method():
    script = Flaky(DownError())

    class Service:
        @Retry(max_retries=1, jitter=0)
        def inner(self) -> object:
            return script()

        @Retry(max_retries=1, jitter=0)
        def outer(self) -> object:
            return self.inner()

    with pytest.raises(DownError):
        Service().outer()
    assert script.calls == 4


@pytest.mark.rule("MP-MAP-17")
def test_what_is_wrong_is_found_when_written_by_validate_or_at_the_first_call():
    with pytest.raises(FaultToleranceDefinitionException):
        Retry(max_retries=-3)(len)

    class Service:
        @Fallback(fallback_method="nowhere")
        def work(self) -> None: ...

        @Retry
        def fine(self) -> None: ...

    with pytest.raises(FaultToleranceDefinitionException, match="nowhere"):
        validate(Service)
    with pytest.raises(FaultToleranceDefinitionException, match="nowhere"):
        Service().work()
    Service().fine()


APPLICATION = """
from everkeel.microprofile import Fallback, FaultToleranceDefinitionException, Retry, validate

class Orders:
    class Inner:
        @Fallback(fallback_method="missing")
        def pay(self) -> None: ...

@Retry
def fine() -> None: ...

try:
    validate()
except FaultToleranceDefinitionException as error:
    print(error)

del Orders.Inner
validate()
print("fine")
"""


@pytest.mark.rule("MP-MAP-17")
def test_validate_finds_everything_that_has_a_name():
    # In a process of its own, which has no other classes.
    done = subprocess.run([sys.executable, "-c", APPLICATION], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    problem, end = done.stdout.splitlines()
    assert problem.startswith("__main__.Orders.Inner.pay: Fallback.fallbackMethod must be the name of a method")
    assert end == "fine"


@pytest.mark.rule("MP-MAP-18")
def test_a_definition_error_in_a_class_body_is_itself():
    with pytest.raises(FaultToleranceDefinitionException) as raised:

        class Service:
            @Retry(max_retries=-3)
            def work(self) -> None: ...

    assert type(raised.value) is FaultToleranceDefinitionException

    @Asynchronous
    class Base: ...

    with pytest.raises(FaultToleranceDefinitionException, match=r"Sub\.work: Asynchronous must be declared"):

        class Sub(Base):
            def work(self) -> str:
                return "no future"


@pytest.mark.rule("MP-MAP-20")
def test_a_redeployment_forgets_everything():
    class Service:
        @CircuitBreaker(request_volume_threshold=1)
        def work(self) -> None:
            raise DownError

    config.configure({"Retry/maxRetries": 1}, environment=False)
    with pytest.raises(DownError):
        Service().work()
    with pytest.raises(CircuitBreakerOpenException):
        Service().work()
    redeploy()
    assert list(registry) == []
    config.configure({"CircuitBreaker/enabled": False}, environment=False)
    for _ in range(3):
        with pytest.raises(DownError):
            Service().work()


@pytest.mark.rule("MP-MAP-20")
def test_so_are_places_in_bulkheads():
    class Service:
        @Bulkhead(1)
        def work(self, then: Callable[[], object]) -> object:
            return then()

    def inside() -> object:
        with pytest.raises(BulkheadException):
            Service().work(int)
        redeploy()
        return Service().work(int)

    assert Service().work(inside) == 0


@pytest.mark.rule("MP-MAP-21")
def test_a_guarded_function_looks_like_the_original():
    class Service:
        @Retry
        @Timeout(500)
        def work(self, order: int, *, urgent: bool = False) -> str:
            """What it does."""
            return f"{order}{urgent}"

        @Retry
        async def awork(self) -> None: ...

    guarded: Any = Service.work
    assert (guarded.__name__, guarded.__doc__) == ("work", "What it does.")
    assert str(inspect.signature(Service().work)) == "(order: 'int', *, urgent: 'bool' = False) -> 'str'"
    assert guarded.__wrapped__(Service(), 7) == "7False"
    assert not inspect.iscoroutinefunction(guarded)
    assert inspect.iscoroutinefunction(Service.awork)
    assert inspect.ismethod(Service().work)
    assert Service().work.__self__.__class__ is Service


@pytest.mark.rule("MP-MAP-15")
def test_a_foreign_decorator_above_does_not_make_it_another_method():
    def opaque(fn: Callable[..., Any]) -> Callable[..., Any]:
        def other(*args: Any) -> Any:
            return fn(*args)

        return other

    def transparent(fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def other(*args: Any) -> Any:
            return fn(*args)

        return other

    for foreign in (opaque, transparent):
        script = Flaky(DownError())

        class Service:
            @foreign
            @Retry(max_retries=1, jitter=0)
            def work(self, script=script) -> object:
                return script()

        with pytest.raises(DownError):
            Service().work()
        assert script.calls == 2


def test_everything_the_package_offers_is_there():
    assert {name for name in mp.__all__ if not hasattr(mp, name)} == set()
    assert issubclass(AsyncResult, Future)
