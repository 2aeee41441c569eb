"""Section 11: which value a parameter has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import everkeel.microprofile as mp
from everkeel import sleep
from everkeel.microprofile import config
from everkeel.microprofile.annotations import RECORDS
from everkeel.microprofile.exceptions import FaultToleranceDefinitionException, TimeoutException
from everkeel.microprofile.metrics import registry
from everkeel.microprofile.sources import EnvironmentSource
from everkeel.testing import VirtualClock

HERE = __name__


class DownError(Exception):
    pass


class SpecialError(DownError):
    pass


class Handler:
    """Named by configuration."""

    def handle(self, context: mp.ExecutionContext) -> str:
        return f"handled {context.failure}"


def configure(values: dict[str, Any]) -> None:
    config.configure(values, environment=False)


def failing(*decorators: Any, error: type[BaseException] = DownError) -> tuple[Any, list[int]]:
    """A class with a method that always fails, guarded by these, and a record of its executions."""
    runs: list[int] = []

    class Service:
        def serve(self) -> str:
            runs.append(1)
            raise error("down")

    for decorator in decorators:
        Service.serve = decorator(Service.serve)
    return Service, runs


def executions(service: Any, runs: list[int], method: str = "serve") -> int:
    runs.clear()
    with pytest.raises(DownError):
        getattr(service(), method)()
    return len(runs)


RUNS: list[str] = []


class Method:
    """Annotated on methods."""

    class InnerError(DownError):
        """Named by configuration, too."""

    @mp.Retry(maxRetries=1, delay=0, jitter=0)
    def serve(self) -> None:
        RUNS.append("serve")
        raise DownError

    @mp.Retry(maxRetries=1, delay=0, jitter=0)
    def other(self) -> None:
        RUNS.append("other")
        raise DownError


@mp.Retry(maxRetries=1, delay=0, jitter=0)
class Whole:
    """Annotated as a class."""

    def serve(self) -> None:
        RUNS.append("serve")
        raise DownError


class Heir(Whole):
    """Inherits its annotation."""


def count(service: Any, method: str = "serve") -> int:
    """How often the method is executed by one call."""
    RUNS.clear()
    with pytest.raises(DownError):
        getattr(service, method)()
    return len(RUNS)


@pytest.mark.rule("MP-CONFIG-01")
@pytest.mark.parametrize(
    ("key", "runs"),
    [
        (f"{HERE}.Method/serve/Retry/maxRetries", 4),
        ("Retry/maxRetries", 4),
        (f"{HERE}.Method/serve/retry/maxRetries", 2),
        (f"{HERE}.Method/serve/Retry/maxretries", 2),
        (f"{HERE}.method/serve/Retry/maxRetries", 2),
    ],
)
def test_keys_are_case_sensitive_paths(key: str, runs: int) -> None:
    configure({key: 3})
    assert count(Method()) == runs


@pytest.mark.rule("MP-CONFIG-01", "MP-CONFIG-05")
@pytest.mark.parametrize("service", [Whole, Heir])
def test_a_class_key_names_the_class_that_has_the_annotation(service: Any) -> None:
    configure({f"{HERE}.Whole/Retry/maxRetries": 3, f"{HERE}.Heir/Retry/maxRetries": 5})
    assert count(service()) == 4


@pytest.mark.rule("MP-CONFIG-03")
def test_a_method_key_beats_a_global_one_and_that_the_code() -> None:
    configure({f"{HERE}.Method/serve/Retry/maxRetries": 4, "Retry/maxRetries": 2})
    assert (count(Method()), count(Method(), "other")) == (5, 3)


@pytest.mark.rule("MP-CONFIG-03")
def test_a_class_key_beats_a_global_one_for_a_class() -> None:
    configure({f"{HERE}.Whole/Retry/maxRetries": 4, "Retry/maxRetries": 2})
    assert count(Whole()) == 5


@pytest.mark.rule("MP-CONFIG-03")
def test_without_configuration_the_code_decides_and_without_code_the_default(virtual_time: Any) -> None:
    configure({})
    bare, runs = failing(mp.Retry)
    assert (count(Method()), executions(bare, runs)) == (2, 4)


@pytest.mark.rule("MP-CONFIG-04", "MP-AMBIG-01")
def test_a_class_key_does_not_touch_a_method_annotation_though_a_global_one_does() -> None:
    configure({f"{HERE}.Method/Retry/maxRetries": 4})
    assert count(Method()) == 2


@pytest.mark.rule("MP-CONFIG-04", "MP-AMBIG-01")
def test_for_a_method_annotation_the_global_key_counts_even_where_there_is_a_class_key() -> None:
    configure({f"{HERE}.Method/Retry/maxRetries": 4, "Retry/maxRetries": 2})
    assert count(Method()) == 3


@pytest.mark.rule("MP-CONFIG-04")
def test_a_method_key_does_not_touch_a_class_annotation() -> None:
    configure({f"{HERE}.Whole/serve/Retry/maxRetries": 4})
    assert count(Whole()) == 2


@pytest.mark.rule("MP-CONFIG-02")
@pytest.mark.parametrize(
    ("annotation", "configured"),
    [
        ("Retry", {"maxRetries": 9, "delay": 8, "delayUnit": "MICROS", "maxDuration": 7, "durationUnit": "HOURS"}),
        ("Retry", {"jitter": 6, "jitterDelayUnit": "NANOS", "retryOn": (ValueError,), "abortOn": (KeyError, OSError)}),
        ("Timeout", {"value": 5, "unit": "SECONDS"}),
        ("CircuitBreaker", {"failOn": (ValueError,), "skipOn": (KeyError,), "delay": 4, "delayUnit": "MINUTES"}),
        ("CircuitBreaker", {"requestVolumeThreshold": 3, "failureRatio": 0.25, "successThreshold": 2}),
        ("Bulkhead", {"value": 2, "waitingTaskQueue": 3}),
        ("Fallback", {"fallbackMethod": "other", "applyOn": (ValueError,), "skipOn": (KeyError,)}),
        ("Asynchronous", {}),
    ],
)
def test_every_parameter_can_be_configured(annotation: str, configured: dict[str, Any]) -> None:
    written = {
        f"{annotation}/{name}": ",".join(one.__name__ for one in value) if isinstance(value, tuple) else value
        for name, value in configured.items()
    }
    values = config.Configuration(written).overrides(annotation, level="method", class_name="a.B", method="c")
    record = RECORDS[annotation]().overridden(values)
    assert {name: getattr(record, record.spellings()[name]) for name in configured} == configured


@pytest.mark.rule("MP-CONFIG-06", "MP-DISABLE-06")
def test_configuration_never_adds_a_policy() -> None:
    configure({"Retry/maxRetries": 5, "Retry/enabled": True, "Timeout/value": 1, "Bulkhead/value": 1})
    service, runs = failing(mp.CircuitBreaker)
    assert executions(service, runs) == 1


@pytest.mark.rule("MP-CONFIG-07")
def test_unknown_parameters_are_ignored() -> None:
    configure({"Retry/maxRetrees": 5, f"{HERE}.Method/serve/Retry/colour": "red", "Retry": "x", "Sleep/value": 1})
    assert count(Method()) == 2


@pytest.mark.rule("MP-CONFIG-08")
@pytest.mark.parametrize(("key", "value", "seconds"), [("Timeout/value", 2, 2.0), ("Timeout/unit", "MINUTES", 60.0)])
def test_a_value_and_its_unit_are_overridden_each_on_its_own(
    virtual_time: VirtualClock, key: str, value: Any, seconds: float
) -> None:
    configure({key: value})

    @mp.Timeout(1, unit="SECONDS")
    def serve() -> None:
        sleep(1000)

    with pytest.raises(TimeoutException):
        serve()
    assert virtual_time.monotonic() == seconds


@pytest.mark.rule("MP-CONFIG-09")
def test_a_unit_is_configured_by_its_name_in_capitals() -> None:
    configure({"Retry/delayUnit": "seconds"})
    with pytest.raises(FaultToleranceDefinitionException, match=r"Retry\.delayUnit must be one of NANOS, MICROS"):
        Method().serve()


@pytest.mark.rule("MP-CONFIG-10")
def test_a_configured_list_of_exceptions_replaces_the_one_in_code() -> None:
    configure({"Retry/retryOn": "KeyError, ValueError", "Retry/abortOn": f"{HERE}.SpecialError"})
    service, runs = failing(mp.Retry(retryOn=DownError, maxRetries=2, jitter=0))
    assert executions(service, runs) == 1
    listed, runs = failing(mp.Retry(retryOn=DownError, maxRetries=2, jitter=0), error=ValueError)
    with pytest.raises(ValueError, match="down"):
        listed().serve()
    assert len(runs) == 3


@pytest.mark.rule("MP-CONFIG-10")
@pytest.mark.parametrize(
    "written", [f"{HERE}.DownError", f"builtins.KeyError,{HERE}.DownError", f" {HERE}.Method.InnerError , KeyError"]
)
def test_exceptions_are_named_in_full_or_bare_where_they_are_builtins(written: str) -> None:
    configure({"Retry/retryOn": written})
    error = Method.InnerError if "Inner" in written else DownError
    service, runs = failing(mp.Retry(retryOn=OSError, maxRetries=2, jitter=0), error=error)
    assert executions(service, runs) == 3


class Fragile:
    """Its fallback is chosen by configuration."""

    @mp.Fallback(fallbackMethod="in_code")
    def by_method(self) -> str:
        raise DownError("down")

    @mp.Fallback(Handler)
    def by_handler(self) -> str:
        raise DownError("down")

    def in_code(self) -> str:
        return "in code"

    def elsewhere(self) -> str:
        return "elsewhere"


class Other:
    """Named by configuration too."""

    def handle(self, context: mp.ExecutionContext) -> str:
        return f"the other handled {context.failure}"


@pytest.mark.rule("MP-CONFIG-11")
def test_a_fallback_method_and_a_handler_can_be_chosen_for_each_method() -> None:
    configure(
        {
            f"{HERE}.Fragile/by_method/Fallback/fallbackMethod": "elsewhere",
            f"{HERE}.Fragile/by_handler/Fallback/value": f"{HERE}.Other",
        }
    )
    assert (Fragile().by_method(), Fragile().by_handler()) == ("elsewhere", "the other handled down")


@pytest.mark.rule("MP-CONFIG-11")
@pytest.mark.parametrize(("key", "falls_back"), [("Fallback/applyOn", False), ("Fallback/skipOn", True)])
def test_what_a_fallback_applies_to_can_be_chosen_globally(key: str, falls_back: bool) -> None:
    configure({key: "KeyError"})
    if falls_back:
        assert Fragile().by_method() == "in code"
    else:
        with pytest.raises(DownError):
            Fragile().by_method()


@pytest.mark.rule("MP-CONFIG-12")
@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("Retry/maxRetries", "-3", r"Retry\.maxRetries must be at least -1"),
        ("Retry/maxRetries", "three", r"Retry\.maxRetries must be a whole number"),
        ("Retry/delay", "200000", r"Retry\.maxDuration must be longer than the delay"),
        ("Retry/retryOn", "no.such.Error", r"Retry\.retryOn must be a class that can be imported"),
        ("Retry/retryOn", "builtins.str", r"Retry\.retryOn must be exception classes"),
    ],
)
def test_configured_values_are_checked_like_those_in_code(key: str, value: str, message: str) -> None:
    configure({key: value})
    with pytest.raises(FaultToleranceDefinitionException, match=message):
        Method().serve()


@pytest.mark.rule("MP-CONFIG-12")
def test_a_value_that_is_wrong_in_code_may_be_put_right_by_configuration(virtual_time: VirtualClock) -> None:
    configure({"Retry/maxDuration": 3000, "Retry/maxRetries": 1})
    service, runs = failing(mp.Retry(delay=1000, maxDuration=500, jitter=0))
    assert executions(service, runs) == 2


@pytest.mark.rule("MP-CONFIG-13")
def test_the_global_switches_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MP_Fault_Tolerance_NonFallback_Enabled", "false")
    monkeypatch.setenv("MP_Fault_Tolerance_Metrics_Enabled", "false")
    assert count(Method()) == 1
    monkeypatch.delenv("MP_Fault_Tolerance_NonFallback_Enabled")
    monkeypatch.delenv("MP_Fault_Tolerance_Metrics_Enabled")
    assert count(Method(), "other") == 1
    assert list(registry) == []


@pytest.mark.rule("MP-CONFIG-14")
@pytest.mark.parametrize(
    "variable",
    [
        f"{HERE}.Method/serve/Retry/maxRetries",
        f"{HERE}.Method/serve/Retry/maxRetries".replace(".", "_").replace("/", "_"),
        f"{HERE}.Method/serve/Retry/maxRetries".replace(".", "_").replace("/", "_").upper(),
    ],
)
def test_a_variable_is_found_by_each_of_its_three_names(variable: str) -> None:
    config.configure(EnvironmentSource({variable: "3"}), environment=False)
    assert count(Method()) == 4


@pytest.mark.rule("MP-CONFIG-14")
def test_of_the_three_names_the_exact_one_comes_first() -> None:
    values = {"RETRY_MAXRETRIES": "1", "Retry_maxRetries": "2", "Retry/maxRetries": "3"}
    config.configure(EnvironmentSource(values), environment=False)
    assert count(Method()) == 4


@pytest.mark.rule("MP-CONFIG-14")
def test_a_properties_file_a_mapping_and_a_source_of_ones_own(tmp_path: Path) -> None:
    class Server:
        name, ordinal = "server", 500

        def get(self, key: str, /) -> str | None:
            return "0" if key == "Retry/jitter" else None

    file = tmp_path / "microprofile-config.properties"
    file.write_text(f"{HERE}.Method/serve/Retry/maxRetries = 3\nRetry/delay = 999999\n", encoding="utf-8")
    config.configure(file, {"Retry/delay": 0}, Server(), environment=False)
    assert count(Method()) == 4


@pytest.mark.rule("MP-CONFIG-15")
def test_the_priority_of_interceptors_is_accepted_and_ignored() -> None:
    configure({"mp.fault.tolerance.interceptor.priority": 10})
    assert count(Method()) == 2


@pytest.mark.rule("MP-CONFIG-16")
def test_values_are_looked_up_once_for_each_class_and_method() -> None:
    asked: list[str] = []

    class Watched:
        name, ordinal = "watched", 100

        def get(self, key: str, /) -> str | None:
            asked.append(key)
            return None

    config.configure(Watched(), environment=False)
    count(Method())
    assert f"{HERE}.Method/serve/Retry/maxRetries" in asked
    asked.clear()
    count(Method())
    assert asked == []
    count(Method(), "other")
    assert f"{HERE}.Method/other/Retry/maxRetries" in asked


@pytest.mark.rule("MP-CONFIG-16")
@pytest.mark.parametrize("name", [f"{HERE}.Method.serve", "default"])
def test_configuration_of_native_policies_touches_none_of_these(fresh_everkeel: Any, tmp_path: Path, name: str) -> None:
    from everkeel import config as native

    assert count(Method()) == 2
    file = tmp_path / "everkeel.json"
    file.write_text(json.dumps({"retry": {name: {"attempts": 7}}}), encoding="utf-8")
    with native.load(str(file)):
        assert count(Method()) == 2
        assert count(Method(), "other") == 2
