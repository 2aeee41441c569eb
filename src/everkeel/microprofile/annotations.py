"""What each annotation holds: one frozen record per annotation, with the standard's names, defaults and units.

A record keeps what was written, right or wrong: whether it is allowed is asked (`check`) once configuration has had
its say, since that may replace a value or take the annotation away. Every parameter has two spellings: the standard's
camelCase, which is also its configuration key, and snake_case.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from datetime import timedelta
from enum import StrEnum
from math import isfinite
from typing import Any, ClassVar, Self, TypeAlias

from everkeel.microprofile.exceptions import FaultToleranceDefinitionException

Check: TypeAlias = Callable[[Any], None]
"""Raises ValueError with a sentence beginning with "must" where a value is not allowed."""


class ChronoUnit(StrEnum):
    """A unit of time; a parameter takes it or its name.

    >>> Retry(delay=1, delay_unit=ChronoUnit.SECONDS) == Retry(delay=1, delayUnit="SECONDS")
    True
    """

    NANOS = "NANOS"
    MICROS = "MICROS"
    MILLIS = "MILLIS"
    SECONDS = "SECONDS"
    MINUTES = "MINUTES"
    HOURS = "HOURS"
    HALF_DAYS = "HALF_DAYS"
    DAYS = "DAYS"


_NANOS = {
    "NANOS": 1,
    "MICROS": 10**3,
    "MILLIS": 10**6,
    "SECONDS": 10**9,
    "MINUTES": 60 * 10**9,
    "HOURS": 3600 * 10**9,
    "HALF_DAYS": 12 * 3600 * 10**9,
    "DAYS": 24 * 3600 * 10**9,
}


def nanoseconds(value: int, unit: str) -> int:
    """A length of time, exactly: two of them in different units can be compared."""
    return value * _NANOS[unit]


def seconds(value: int, unit: str) -> float:
    """A length of time as policies take it."""
    return nanoseconds(value, unit) / 1e9


# ------------------------------------------------------------------ what parameters allow


def whole(at_least: int) -> Check:
    """A whole number."""

    def check(value: Any) -> None:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(f"must be a whole number of at least {at_least}")
        if value < at_least:
            raise ValueError(f"must be at least {at_least}")

    return check


def ratio(value: Any) -> None:
    """A share from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or not 0 <= value <= 1:
        raise ValueError("must be a number from 0 to 1")


def unit(value: Any) -> None:
    """A unit of time."""
    if not isinstance(value, str) or value not in _NANOS:
        raise ValueError(f"must be one of {', '.join(_NANOS)}")


def exception_classes(value: Any) -> None:
    """Exception classes."""
    if not isinstance(value, tuple) or not all(
        isinstance(one, type) and issubclass(one, BaseException) for one in value
    ):
        raise ValueError("must be exception classes")


def handler_class(value: Any) -> None:
    """A class whose objects handle a failure."""
    if value is not None and not (isinstance(value, type) and callable(getattr(value, "handle", None))):
        raise ValueError("must be a class with a method handle(context)")


def method_name(value: Any) -> None:
    """The name of a method."""
    if value is not None and not (isinstance(value, str) and value.isidentifier()):
        raise ValueError("must be the name of a method")


def parameter(camel: str, check: Check, default: Any) -> Any:
    """A parameter of an annotation: its name in the standard, what it allows, and its default."""
    return dataclasses.field(default=default, metadata={"camel": camel, "check": check})


def _as_written(value: Any) -> Any:
    """One form for what can be written in several: a class or a list of classes, a unit or its name."""
    if isinstance(value, ChronoUnit):
        return value.value
    if isinstance(value, list | set | frozenset):
        return tuple(value)
    return value


# ------------------------------------------------------------------ the records


@dataclasses.dataclass(frozen=True, slots=True, init=False)
class Annotation:
    """What one annotation says. `Annotation.make` reads both spellings; `name` is the standard's."""

    name: ClassVar[str]
    lengths: ClassVar[Mapping[str, str]] = {}
    """Parameters that are lengths of time, and the parameter that holds the unit of each."""

    def __init__(self, **given: Any) -> None:
        by_any_name = self.spellings()
        seen: dict[str, Any] = {}
        for spelling, value in given.items():
            name = by_any_name.get(spelling)
            if name is None:
                known = ", ".join(sorted({*by_any_name})) or "no parameters"
                raise FaultToleranceDefinitionException(
                    self.name, None, f"has no parameter {spelling!r}; it has {known}", None
                )
            if name in seen:
                raise FaultToleranceDefinitionException(
                    self.name, spelling, "must be given once, in one spelling", None
                )
            seen[name] = value
        for length, of in self.lengths.items():
            if isinstance(seen.get(length), timedelta):
                if of in seen:
                    raise FaultToleranceDefinitionException(
                        self.name, self.camel(of), f"must be left out where {self.camel(length)} is a timedelta", None
                    )
                seen[length], seen[of] = seen[length] // timedelta(microseconds=1), "MICROS"
        for one in dataclasses.fields(self):
            value = _as_written(seen.get(one.name, one.default))
            if one.metadata["check"] is exception_classes and isinstance(value, type):
                value = (value,)
            object.__setattr__(self, one.name, value)

    @classmethod
    def spellings(cls) -> dict[str, str]:
        """Every name a parameter may be given by, and the one it is kept under."""
        names = {}
        for one in dataclasses.fields(cls):
            names[one.metadata["camel"]] = one.name
            names[one.name] = one.name
        return names

    @classmethod
    def camel(cls, name: str) -> str:
        """A parameter's name in the standard."""
        return next(str(one.metadata["camel"]) for one in dataclasses.fields(cls) if one.name == name)

    def overridden(self, values: Mapping[str, object]) -> Self:
        """This record with some parameters, by the standard's names, replaced; the others stay as in code."""
        if not values:
            return self
        return type(self)(
            **{
                **{one.name: getattr(self, one.name) for one in dataclasses.fields(self)},
                **{self.spellings()[name]: value for name, value in values.items()},
            }
        )

    def check(self, where: str) -> None:
        """Raise where a value is not allowed; `where` is the class and method that has the annotation."""
        for one in dataclasses.fields(self):
            value = getattr(self, one.name)
            try:
                one.metadata["check"](value)
            except ValueError as error:
                raise self.wrong(where, one.name, str(error), value) from None
        self.check_together(where)

    def check_together(self, where: str) -> None:
        """What no single parameter can know."""

    def wrong(self, where: str, name: str, allowed: str, value: object) -> FaultToleranceDefinitionException:
        """The error for a value that is not allowed: names class, method, annotation and parameter."""
        return FaultToleranceDefinitionException(where, f"{self.name}.{self.camel(name)}", allowed, repr(value))


@dataclasses.dataclass(frozen=True, slots=True, init=False)
class Retry(Annotation):
    """What `Retry` says."""

    name = "Retry"
    lengths: ClassVar[Mapping[str, str]] = {
        "delay": "delay_unit",
        "max_duration": "duration_unit",
        "jitter": "jitter_delay_unit",
    }

    max_retries: int = parameter("maxRetries", whole(-1), 3)
    delay: int = parameter("delay", whole(0), 0)
    delay_unit: str = parameter("delayUnit", unit, "MILLIS")
    max_duration: int = parameter("maxDuration", whole(0), 180_000)
    duration_unit: str = parameter("durationUnit", unit, "MILLIS")
    jitter: int = parameter("jitter", whole(0), 200)
    jitter_delay_unit: str = parameter("jitterDelayUnit", unit, "MILLIS")
    retry_on: tuple[type[BaseException], ...] = parameter("retryOn", exception_classes, (Exception,))
    abort_on: tuple[type[BaseException], ...] = parameter("abortOn", exception_classes, ())

    def check_together(self, where: str) -> None:
        longest = nanoseconds(self.max_duration, self.duration_unit)
        if 0 < longest <= nanoseconds(self.delay, self.delay_unit):
            allowed = f"must be longer than the delay, which is {self.delay} {self.delay_unit}, or 0 for no limit"
            raise self.wrong(where, "max_duration", allowed, f"{self.max_duration} {self.duration_unit}")


@dataclasses.dataclass(frozen=True, slots=True, init=False)
class Timeout(Annotation):
    """What `Timeout` says."""

    name = "Timeout"
    lengths: ClassVar[Mapping[str, str]] = {"value": "unit"}

    value: int = parameter("value", whole(0), 1000)
    unit: str = parameter("unit", unit, "MILLIS")


@dataclasses.dataclass(frozen=True, slots=True, init=False)
class Fallback(Annotation):
    """What `Fallback` says."""

    name = "Fallback"

    value: type | None = parameter("value", handler_class, None)
    fallback_method: str | None = parameter("fallbackMethod", method_name, None)
    apply_on: tuple[type[BaseException], ...] = parameter("applyOn", exception_classes, (BaseException,))
    skip_on: tuple[type[BaseException], ...] = parameter("skipOn", exception_classes, ())

    def check_together(self, where: str) -> None:
        if self.value is not None and self.fallback_method is not None:
            raise self.wrong(where, "value", "must not be given together with fallbackMethod", self.value)
        if self.value is None and self.fallback_method is None:
            raise self.wrong(where, "value", "or fallbackMethod must be given", None)


@dataclasses.dataclass(frozen=True, slots=True, init=False)
class CircuitBreaker(Annotation):
    """What `CircuitBreaker` says."""

    name = "CircuitBreaker"
    lengths: ClassVar[Mapping[str, str]] = {"delay": "delay_unit"}

    fail_on: tuple[type[BaseException], ...] = parameter("failOn", exception_classes, (BaseException,))
    skip_on: tuple[type[BaseException], ...] = parameter("skipOn", exception_classes, ())
    delay: int = parameter("delay", whole(0), 5000)
    delay_unit: str = parameter("delayUnit", unit, "MILLIS")
    request_volume_threshold: int = parameter("requestVolumeThreshold", whole(1), 20)
    failure_ratio: float = parameter("failureRatio", ratio, 0.5)
    success_threshold: int = parameter("successThreshold", whole(1), 1)


@dataclasses.dataclass(frozen=True, slots=True, init=False)
class Bulkhead(Annotation):
    """What `Bulkhead` says."""

    name = "Bulkhead"

    value: int = parameter("value", whole(1), 10)
    waiting_task_queue: int = parameter("waitingTaskQueue", whole(1), 10)


@dataclasses.dataclass(frozen=True, slots=True, init=False)
class Asynchronous(Annotation):
    """`Asynchronous` has nothing to say but that it is there."""

    name = "Asynchronous"


RECORDS: dict[str, type[Annotation]] = {
    record.name: record for record in (Asynchronous, Bulkhead, CircuitBreaker, Fallback, Retry, Timeout)
}
