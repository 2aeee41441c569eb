"""Section 16: what is easy to get wrong, where no other section has its test."""

from __future__ import annotations

from typing import Any

import pytest

from everkeel.microprofile import Fallback, Retry, Timeout, config
from everkeel.microprofile.metrics import METRICS, registry
from everkeel.testing import Flaky


class DownError(Exception):
    pass


def executions(cls: Any) -> int:
    cls.script = script = Flaky(DownError())
    with pytest.raises(DownError):
        cls().work()
    return script.calls


@pytest.mark.rule("MP-AMBIG-01")
def test_a_class_key_does_not_reach_a_methods_retry_but_its_enabled_does():
    def make() -> Any:
        class Service:
            script: Any = None

            @Retry(max_retries=3, jitter=0)
            def work(self) -> object:
                return self.script()

        return Service

    name = f"{__name__}.{make().__qualname__}"
    config.configure({f"{name}/Retry/maxRetries": 1, "Retry/maxRetries": 2}, environment=False)
    assert executions(make()) == 3  # the global key, though there is a class key
    config.forget()
    config.configure({f"{name}/Retry/maxRetries": 1}, environment=False)
    assert executions(make()) == 4
    config.forget()
    config.configure({f"{name}/Retry/enabled": False}, environment=False)
    assert executions(make()) == 1


@pytest.mark.rule("MP-AMBIG-16")
def test_all_combinations_of_tags_are_there_and_no_others(virtual_time):
    class Service:
        @Retry
        @Timeout
        def without(self) -> None: ...

        @Retry
        @Fallback(fallback_method="instead")
        def with_one(self) -> None: ...

        def instead(self) -> None: ...

    Service().without()
    Service().with_one()

    def combinations(method: str, name: str) -> set[tuple[str, ...]]:
        tag = f"{__name__}.{Service.__qualname__}.{method}"
        numbers = [one for one in registry.numbers() if one.metric is METRICS[name] and one.tags["method"] == tag]
        return {tuple(one.tags[key] for key in METRICS[name].tags) for one in numbers}

    assert combinations("without", "ft.invocations.total") == {
        ("valueReturned", "notDefined"),
        ("exceptionThrown", "notDefined"),
    }
    assert combinations("with_one", "ft.invocations.total") == {
        (result, used) for result in ("valueReturned", "exceptionThrown") for used in ("applied", "notApplied")
    }
    assert len(combinations("without", "ft.retry.calls.total")) == 8


@pytest.mark.rule("MP-AMBIG-22")
def test_enabled_is_believed_for_the_declaring_class_and_before_that_for_the_objects_own():
    class Base:
        script: Any = None

        @Retry(max_retries=3, jitter=0)
        def work(self) -> object:
            return self.script()

    class Sub(Base): ...

    class Other(Base): ...

    base, sub = f"{__name__}.{Base.__qualname__}", f"{__name__}.{Sub.__qualname__}"
    config.configure({f"{base}/Retry/enabled": False, f"{sub}/Retry/enabled": True}, environment=False)
    assert [executions(Base), executions(Sub), executions(Other)] == [1, 4, 1]
