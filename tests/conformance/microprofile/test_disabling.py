"""Section 12: which policies are there at all."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

import pytest

import everkeel.microprofile as mp
from everkeel import sleep
from everkeel.microprofile import config
from everkeel.microprofile.exceptions import FaultToleranceDefinitionException
from everkeel.microprofile.metrics import registry
from everkeel.testing import VirtualClock

HERE = __name__
RUNS: list[str] = []


class DownError(Exception):
    pass


class Method:
    """Annotated on methods."""

    @mp.Retry(maxRetries=1, jitter=0)
    @mp.Fallback(fallbackMethod="instead")
    def work(self) -> str:
        RUNS.append("work")
        raise DownError

    @mp.Retry(maxRetries=1, jitter=0)
    def other(self) -> str:
        RUNS.append("other")
        raise DownError

    def instead(self) -> str:
        return "instead"


@mp.Retry(maxRetries=1, jitter=0)
class Whole:
    """Annotated as a class."""

    def work(self) -> str:
        RUNS.append("work")
        raise DownError

    def other(self) -> str:
        RUNS.append("other")
        raise DownError


class Heir(Whole):
    """Inherits annotation and methods."""


class Base:
    """Has a method with an annotation of its own."""

    @mp.Retry(maxRetries=1, jitter=0)
    def work(self) -> str:
        RUNS.append("work")
        raise DownError


class Child(Base):
    """Inherits the method."""


def configure(values: dict[str, Any]) -> None:
    config.configure(values, environment=False)


def count(service: Any, method: str = "work") -> int:
    """How often the method is executed by one call."""
    RUNS.clear()
    try:
        getattr(service, method)()
    except DownError:
        pass
    return len(RUNS)


@pytest.mark.rule("MP-DISABLE-01")
@pytest.mark.parametrize("key", ["Retry/enabled", f"{HERE}.Method/Retry/enabled", f"{HERE}.Method/work/Retry/enabled"])
def test_retry_is_disabled_at_every_level(key: str) -> None:
    configure({key: "false"})
    assert count(Method()) == 1


@pytest.mark.rule("MP-DISABLE-01")
def test_timeout_can_be_disabled(virtual_time: VirtualClock) -> None:
    configure({"Timeout/enabled": "false"})

    @mp.Timeout(1)
    def work() -> str:
        sleep(5)
        return "in its own time"

    assert work() == "in its own time"


@pytest.mark.rule("MP-DISABLE-01")
def test_circuit_breaker_can_be_disabled() -> None:
    configure({"CircuitBreaker/enabled": "false"})

    @mp.CircuitBreaker(requestVolumeThreshold=1)
    def work() -> None:
        raise DownError

    for _ in range(3):
        with pytest.raises(DownError):
            work()


@pytest.mark.rule("MP-DISABLE-01")
def test_bulkhead_can_be_disabled() -> None:
    configure({"Bulkhead/enabled": "false"})

    @mp.Bulkhead(1)
    def work(depth: int) -> int:
        return depth if depth == 3 else work(depth + 1)

    assert work(0) == 3


@pytest.mark.rule("MP-DISABLE-01")
def test_fallback_can_be_disabled() -> None:
    configure({"Fallback/enabled": "false"})
    with pytest.raises(DownError):
        Method().work()


@pytest.mark.rule("MP-DISABLE-01", "MP-ASYNC-14")
def test_asynchronous_can_be_disabled() -> None:
    configure({"Asynchronous/enabled": "false"})
    made: list[Any] = []

    @mp.Asynchronous
    def work() -> Future[int]:
        future: Future[int] = Future()
        made.append((future, threading.get_ident()))
        return future

    assert (work(), threading.get_ident()) == made[0]


@pytest.mark.rule("MP-DISABLE-01")
def test_anything_but_true_and_false_is_a_definition_error() -> None:
    configure({"Retry/enabled": "off"})
    with pytest.raises(FaultToleranceDefinitionException, match=r"Retry\.enabled must be true or false"):
        Method().work()


LEVELS = ("Retry/enabled", f"{HERE}.Method/Retry/enabled", f"{HERE}.Method/work/Retry/enabled")


@pytest.mark.rule("MP-DISABLE-02", "MP-DISABLE-07")
@pytest.mark.parametrize("deciding", range(4))
@pytest.mark.parametrize("enabled", [True, False])
def test_the_most_specific_level_decides(deciding: int, enabled: bool) -> None:
    levels = (config.NON_FALLBACK, *LEVELS)
    below = dict.fromkeys(levels[:deciding], not enabled)
    configure({**below, levels[deciding]: enabled})
    assert count(Method()) == (2 if enabled else 1)


@pytest.mark.rule("MP-DISABLE-03", "MP-AMBIG-01")
def test_a_class_key_disables_annotations_of_methods() -> None:
    configure({f"{HERE}.Method/Retry/enabled": "false"})
    assert (count(Method()), count(Method(), "other")) == (1, 1)


@pytest.mark.rule("MP-DISABLE-03")
def test_a_method_key_disables_an_annotation_of_the_class_for_that_method() -> None:
    configure({f"{HERE}.Whole/work/Retry/enabled": "false"})
    assert (count(Whole()), count(Whole(), "other")) == (1, 2)


@pytest.mark.rule("MP-DISABLE-04")
def test_a_disabled_policy_has_no_effect_state_or_metrics() -> None:
    configure({"CircuitBreaker/enabled": "false"})

    class Service:
        @mp.Retry(maxRetries=0)
        @mp.CircuitBreaker(requestVolumeThreshold=1)
        def work(self) -> None:
            raise DownError

    for _ in range(3):
        with pytest.raises(DownError):
            Service().work()
    names = {number.metric.name for number in registry.numbers()}
    assert not [name for name in names if "circuitbreaker" in name]
    assert "ft.retry.calls.total" in names


@pytest.mark.rule("MP-DISABLE-05")
def test_policies_are_disabled_each_on_its_own() -> None:
    configure({"Fallback/enabled": "false"})
    RUNS.clear()
    with pytest.raises(DownError):
        Method().work()
    assert len(RUNS) == 2


@pytest.mark.rule("MP-DISABLE-06")
def test_enabling_adds_nothing() -> None:
    configure({"Bulkhead/enabled": "true", f"{HERE}.Method/other/Fallback/enabled": "true"})
    with pytest.raises(DownError):
        Method().other()


@pytest.mark.rule("MP-DISABLE-07", "MP-FALLBACK-18")
def test_the_master_switch_leaves_fallbacks() -> None:
    configure({config.NON_FALLBACK: "false"})
    RUNS.clear()
    assert Method().work() == "instead"
    assert len(RUNS) == 1


@pytest.mark.rule("MP-DISABLE-08")
def test_what_is_disabled_is_not_checked() -> None:
    configure({"Retry/enabled": "false"})

    @mp.Retry(maxRetries=-7)
    def work() -> str:
        return "unchecked"

    mp.validate(work)
    assert work() == "unchecked"


@pytest.mark.rule("MP-DISABLE-09")
def test_a_method_is_meant_by_its_simple_name() -> None:
    configure({f"{HERE}.Method/other/Retry/enabled": "false"})
    assert (count(Method()), count(Method(), "other")) == (2, 1)


@pytest.mark.rule("MP-AMBIG-22")
@pytest.mark.parametrize("service", [Base, Child])
@pytest.mark.parametrize("key", [f"{HERE}.Base/Retry/enabled", f"{HERE}.Base/work/Retry/enabled"])
def test_for_an_inherited_method_the_declaring_class_counts(service: Any, key: str) -> None:
    configure({key: "false"})
    assert count(service()) == 1


@pytest.mark.rule("MP-AMBIG-22")
@pytest.mark.parametrize("method", ["", "work/"])
def test_and_before_it_the_class_of_the_object(method: str) -> None:
    configure({f"{HERE}.Base/{method}Retry/enabled": "false", f"{HERE}.Child/{method}Retry/enabled": "true"})
    assert (count(Base()), count(Child())) == (1, 2)


@pytest.mark.rule("MP-AMBIG-22")
def test_a_class_annotation_can_be_disabled_for_a_subclass_alone() -> None:
    configure({f"{HERE}.Heir/Retry/enabled": "false"})
    assert (count(Whole()), count(Heir())) == (2, 1)
