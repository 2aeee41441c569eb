"""Section 10: class level, method level, inheritance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from everkeel.microprofile import Bulkhead, CircuitBreaker, Retry, Timeout, TimeoutException
from everkeel.microprofile.levels import method_of


class DownError(Exception):
    pass


def retries(method: Callable[[], object]) -> int:
    """How often a method of `Runs` was tried again."""
    receiver: Any = method.__self__  # type: ignore[attr-defined]
    before = receiver.runs
    with pytest.raises(DownError):
        method()
    return int(receiver.runs - before - 1)


class Runs:
    runs = 0

    def _fail(self) -> None:
        self.runs += 1
        raise DownError


@pytest.mark.rule("MP-LEVEL-01", "MP-MAP-14")
def test_a_class_level_annotation_is_on_every_business_method():
    @Retry(max_retries=2, jitter=0)
    class Service(Runs):
        def one(self) -> None:
            self._fail()

        def two(self) -> None:
            self._fail()

        def _internal(self) -> None:
            self._fail()

        def __call__(self) -> None:
            self._fail()

        @staticmethod
        def static(service: Service) -> None:
            service._fail()

        @classmethod
        def of_class(cls, service: Service) -> None:
            service._fail()

        @property
        def prop(self) -> None:
            self._fail()

        class Nested(Runs):
            def work(self) -> None:
                self._fail()

    one = Service()
    assert [retries(one.one), retries(one.two), retries(one._internal)] == [2, 2, 0]
    for plain in (lambda: Service.static(one), lambda: Service.of_class(one), one, lambda: one.prop):
        one.runs = 0
        with pytest.raises(DownError):
            plain()
        assert one.runs == 1
    assert retries(Service.Nested().work) == 0


@pytest.mark.rule("MP-LEVEL-01", "MP-MAP-14")
def test_methods_it_inherits_from_others_are_its_business_methods_too():
    class Plain(Runs):
        def work(self) -> None:
            self._fail()

    @Retry(max_retries=2, jitter=0)
    class Service(Plain): ...

    assert retries(Service().work) == 2
    assert retries(Plain().work) == 0


@pytest.mark.rule("MP-LEVEL-01")
def test_an_inherited_method_is_the_one_that_a_subclass_would_find():
    class Plain(Runs):
        def work(self) -> str:
            return "plain"

    @Retry(max_retries=2, jitter=0)
    class Service(Plain): ...

    class Other(Plain):
        def work(self) -> str:
            return "other"

    class Both(Service, Other): ...

    assert (Service().work(), Both().work()) == ("plain", "other")


@pytest.mark.rule("MP-LEVEL-02", "MP-RETRY-24")
def test_a_methods_own_annotation_overrides_that_of_its_class_and_others_stay(virtual_time):
    @Retry(max_retries=3, jitter=0)
    @Timeout(500)
    class Service(Runs):
        @Retry(max_retries=1, jitter=0)
        def own(self) -> None:
            self._fail()

        @Retry(max_retries=0, jitter=0)
        def slow(self) -> None:
            virtual_time.advance(1)

        def inherits(self) -> None:
            self._fail()

    assert [retries(Service().own), retries(Service().inherits)] == [1, 3]
    with pytest.raises(TimeoutException):
        Service().slow()


@pytest.mark.rule("MP-LEVEL-03", "MP-LEVEL-04", "MP-AMBIG-18")
def test_class_level_annotations_are_inherited():
    @Retry(max_retries=3, jitter=0)
    class Base(Runs):
        def work(self) -> None:
            self._fail()

    class Sub(Base):
        def added(self) -> None:
            self._fail()

    class SubSub(Sub):
        def more(self) -> None:
            self._fail()

    assert [retries(Sub().work), retries(Sub().added), retries(SubSub().more)] == [3, 3, 3]


@pytest.mark.rule("MP-LEVEL-05", "MP-AMBIG-18")
def test_a_subclass_that_redefines_it_affects_inherited_methods():
    @Retry(max_retries=3, jitter=0)
    class Base(Runs):
        def work(self) -> None:
            self._fail()

    @Retry(max_retries=1, jitter=0)
    class Sub(Base): ...

    assert [retries(Base().work), retries(Sub().work)] == [3, 1]


@pytest.mark.rule("MP-LEVEL-06", "MP-AMBIG-18")
def test_an_inherited_method_keeps_its_own_annotation():
    class Base(Runs):
        @Retry(max_retries=3, jitter=0)
        def work(self) -> None:
            self._fail()

    @Retry(max_retries=1, jitter=0)
    class Sub(Base): ...

    assert retries(Sub().work) == 3


@pytest.mark.rule("MP-LEVEL-07")
def test_overriding_drops_the_annotation_of_the_method_overridden():
    class Base(Runs):
        @Retry(max_retries=3, jitter=0)
        def work(self) -> None:
            self._fail()

    class Bare(Base):
        def work(self) -> None:
            self._fail()

    class Own(Base):
        @Retry(max_retries=1, jitter=0)
        def work(self) -> None:
            self._fail()

    @Retry(max_retries=2, jitter=0)
    class OnClass(Base):
        def work(self) -> None:
            self._fail()

    assert [retries(Bare().work), retries(Own().work), retries(OnClass().work)] == [0, 1, 2]


@pytest.mark.rule("MP-LEVEL-08")
def test_the_override_of_a_method_annotated_twice_gets_what_the_class_has():
    @Retry(max_retries=3, jitter=0)
    class Base(Runs):
        @Retry(max_retries=1, jitter=0)
        def work(self) -> None:
            self._fail()

    class Sub(Base):
        def work(self) -> None:
            self._fail()

    assert [retries(Base().work), retries(Sub().work)] == [1, 3]


@pytest.mark.rule("MP-LEVEL-09", "MP-MAP-15")
def test_a_call_through_super_is_not_guarded_a_second_time():
    class Base(Runs):
        @Retry(max_retries=3, jitter=0)
        def work(self) -> None:
            self._fail()

    class Sub(Base):
        @Retry(max_retries=1, jitter=0)
        def work(self) -> None:
            super().work()

    class Bare(Base):
        def work(self) -> None:
            super().work()

    @Retry(max_retries=2, jitter=0)
    class OnClass(Runs):
        def work(self) -> None:
            self._fail()

    class BelowClass(OnClass):
        def work(self) -> None:
            super().work()

    assert [retries(one.work) for one in (Sub(), Bare(), BelowClass())] == [1, 0, 2]


@pytest.mark.rule("MP-LEVEL-09", "MP-MAP-15")
async def test_nor_one_of_a_coroutine(virtual_time):
    class Base(Runs):
        @Retry(max_retries=3, jitter=0)
        async def work(self) -> None:
            self._fail()

    class Sub(Base):
        @Retry(max_retries=1, jitter=0)
        async def work(self) -> None:
            await super().work()

    one = Sub()
    with pytest.raises(DownError):
        await one.work()
    assert one.runs == 2


@pytest.mark.rule("MP-LEVEL-10")
def test_each_method_has_a_state_of_its_own():
    @CircuitBreaker(request_volume_threshold=1)
    @Bulkhead(1)
    class Service(Runs):
        def one(self) -> None:
            self._fail()

        def two(self) -> None:
            self._fail()

    for method in (Service().one, Service().two):
        with pytest.raises(DownError):
            method()


@pytest.mark.rule("MP-LEVEL-11")
def test_without_annotations_nothing_is_touched():
    class Service(Runs):
        def work(self) -> None:
            self._fail()

    before = Service.__dict__["work"]

    @Retry
    class Elsewhere: ...

    assert Service.__dict__["work"] is before
    assert method_of(before) is None


@pytest.mark.rule("MP-LEVEL-04")
def test_init_subclass_of_the_users_own_still_runs():
    made = []

    @Retry(max_retries=1, jitter=0)
    class Base(Runs):
        def __init_subclass__(cls, *, flavour: str = "plain") -> None:
            made.append((cls.__name__, flavour))

    class Sub(Base, flavour="sweet"):
        def work(self) -> None:
            self._fail()

    assert made == [("Sub", "sweet")]
    assert retries(Sub().work) == 1
