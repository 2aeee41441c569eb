"""What annotations beyond the standard hold: rate limits, backoffs, finer retries, names of circuit breakers.

They mean what they mean in Java's most used implementation. Configuration keys, levels and validation are those of the
standard's annotations.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from everkeel.microprofile.annotations import (
    Annotation,
    Retry,
    handler_class,
    method_name,
    nanoseconds,
    parameter,
    seconds,
    unit,
    whole,
)
from everkeel.microprofile.backoffs import Asked, Delays, Growing, exponentially, like_fibonacci
from everkeel.microprofile.rates import KINDS, Rate


def _kind(value: Any) -> None:
    if value not in KINDS:
        raise ValueError(f"must be one of {', '.join(KINDS)}")


def _strategy_class(value: Any) -> None:
    wanted = ("init", "next_delay_in_millis")
    if not isinstance(value, type) or not all(callable(getattr(value, name, None)) for name in wanted):
        raise ValueError("must be a class with the methods init and next_delay_in_millis")


def _predicate(value: Any) -> None:
    if value is not None and not callable(value):
        raise ValueError("must be a function that answers whether to retry, or a class of such objects")


def _text(value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise ValueError("must be a name")


@dataclasses.dataclass(frozen=True, slots=True, init=False)
class RateLimit(Annotation):
    """What `RateLimit` says."""

    name = "RateLimit"
    lengths: ClassVar[Mapping[str, str]] = {"window": "window_unit", "min_spacing": "min_spacing_unit"}

    value: int = parameter("value", whole(1), 100)
    window: int = parameter("window", whole(1), 1)
    window_unit: str = parameter("windowUnit", unit, "SECONDS")
    min_spacing: int = parameter("minSpacing", whole(0), 0)
    min_spacing_unit: str = parameter("minSpacingUnit", unit, "SECONDS")
    type: str = parameter("type", _kind, "FIXED")

    def rate(self) -> Rate:
        """A new limit that has seen no call."""
        window, spacing = seconds(self.window, self.window_unit), seconds(self.min_spacing, self.min_spacing_unit)
        return KINDS[self.type](self.value, window, spacing)


@dataclasses.dataclass(frozen=True, slots=True, init=False)
class Backoff(Annotation):
    """What the three backoffs have in common: they need a `Retry` at the same place, which has the first delay."""

    def delays(self, retry: Retry) -> Delays:
        """The delays of one call."""
        raise TypeError(f"{type(self).__name__} does not say how delays grow")  # pragma: no cover

    def check_beside(self, retry: Retry, where: str) -> None:
        """What only the two together can know."""


@dataclasses.dataclass(frozen=True, slots=True, init=False)
class _Bounded(Backoff):
    lengths: ClassVar[Mapping[str, str]] = {"max_delay": "max_delay_unit"}

    max_delay: int = parameter("maxDelay", whole(0), 60_000)
    max_delay_unit: str = parameter("maxDelayUnit", unit, "MILLIS")

    def longest(self) -> float | None:
        """No delay is longer, in seconds; None where there is no bound."""
        return seconds(self.max_delay, self.max_delay_unit) if self.max_delay else None

    def check_beside(self, retry: Retry, where: str) -> None:
        duration = nanoseconds(retry.max_duration, retry.duration_unit)
        if 0 < duration <= nanoseconds(self.max_delay, self.max_delay_unit):
            allowed = f"must be shorter than Retry.maxDuration, which is {retry.max_duration} {retry.duration_unit}"
            raise self.wrong(where, "max_delay", allowed, f"{self.max_delay} {self.max_delay_unit}")


@dataclasses.dataclass(frozen=True, slots=True, init=False)
class ExponentialBackoff(_Bounded):
    """What `ExponentialBackoff` says."""

    name = "ExponentialBackoff"

    factor: int = parameter("factor", whole(1), 2)

    def delays(self, retry: Retry) -> Delays:
        return Growing(exponentially(seconds(retry.delay, retry.delay_unit), self.factor), self.longest())


@dataclasses.dataclass(frozen=True, slots=True, init=False)
class FibonacciBackoff(_Bounded):
    """What `FibonacciBackoff` says."""

    name = "FibonacciBackoff"

    def delays(self, retry: Retry) -> Delays:
        return Growing(like_fibonacci(seconds(retry.delay, retry.delay_unit)), self.longest())


@dataclasses.dataclass(frozen=True, slots=True, init=False)
class CustomBackoff(Backoff):
    """What `CustomBackoff` says."""

    name = "CustomBackoff"

    value: Any = parameter("value", _strategy_class, None)

    def delays(self, retry: Retry) -> Delays:
        return Asked(self.value, seconds(retry.delay, retry.delay_unit))


@dataclasses.dataclass(frozen=True, slots=True, init=False)
class RetryWhen(Annotation):
    """What `RetryWhen` says."""

    name = "RetryWhen"

    result: Any = parameter("result", _predicate, None)
    exception: Any = parameter("exception", _predicate, None)

    def check_beside(self, retry: Retry, where: str) -> None:
        """What only the two together can know."""
        default = Retry()
        if self.exception is not None and (retry.retry_on, retry.abort_on) != (default.retry_on, default.abort_on):
            allowed = "must not be given together with retryOn or abortOn of Retry"
            raise self.wrong(where, "exception", allowed, self.exception)


@dataclasses.dataclass(frozen=True, slots=True, init=False)
class BeforeRetry(Annotation):
    """What `BeforeRetry` says."""

    name = "BeforeRetry"

    value: Any = parameter("value", handler_class, None)
    method_name: str | None = parameter("methodName", method_name, None)

    def check_together(self, where: str) -> None:
        if (self.value is None) == (self.method_name is None):
            raise self.wrong(where, "value", "or methodName must be given, and not both", self.value)


@dataclasses.dataclass(frozen=True, slots=True, init=False)
class CircuitBreakerName(Annotation):
    """What `CircuitBreakerName` says."""

    name = "CircuitBreakerName"

    value: str = parameter("value", _text, "")


@dataclasses.dataclass(frozen=True, slots=True, init=False)
class ApplyGuard(Annotation):
    """What `ApplyGuard` says."""

    name = "ApplyGuard"

    value: str = parameter("value", _text, "")


EXTRAS: dict[str, type[Annotation]] = {
    record.name: record
    for record in (
        RateLimit,
        ExponentialBackoff,
        FibonacciBackoff,
        CustomBackoff,
        RetryWhen,
        BeforeRetry,
        CircuitBreakerName,
        ApplyGuard,
    )
}
BACKOFFS = ("ExponentialBackoff", "FibonacciBackoff", "CustomBackoff")
