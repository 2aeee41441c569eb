"""What may be set on a chaos policy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar, TypeAlias

from everkeel.policies.fallback import Alternative
from everkeel.runtime.schedule import Schedule, as_schedule
from everkeel.runtime.settings import Converted, Count, Duration, Settings, Share, seconds, setting
from everkeel.runtime.stable import text_of

ErrorSource: TypeAlias = type[Exception] | Exception | Callable[[], Exception]

MESSAGE = "injected by chaos"
NO_FAULT: Any = object()
"""In place of a result: None is one."""


def make_error(source: ErrorSource) -> Exception:
    """A new exception each time: one that is raised again and again grows with every raise."""
    if isinstance(source, Exception):
        from copy import copy

        return copy(source)
    if isinstance(source, type):
        try:
            made: object = source(MESSAGE)
        except TypeError:
            made = source()
    else:
        made = source()
    if not isinstance(made, Exception):
        raise TypeError(f"a function as error= must return an exception, not {made!r}")
    return made


def _as_errors(value: Any) -> tuple[ErrorSource, ...]:
    sources = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not sources:
        raise ValueError("must be at least one exception, exception class, or function that makes one")
    for source in sources:
        if isinstance(source, type) and issubclass(source, BaseException):
            if not issubclass(source, Exception):
                raise ValueError(f"must not be {source.__name__}: that is for the interpreter to raise")
            try:
                make_error(source)
            except Exception:
                raise ValueError(
                    f"must be a function that makes one, since {source.__name__} needs arguments"
                ) from None
        elif isinstance(source, type) or not (isinstance(source, Exception) or callable(source)):
            raise ValueError("must be an exception, an exception class, a function that makes one, or a list of those")
    return sources


def _as_latency(value: Any) -> tuple[float, float]:
    """From and up to how many seconds."""
    low, high = value if isinstance(value, tuple) and len(value) == 2 else (value, value)
    low, high = seconds(low), seconds(high)
    if not 0 <= low <= high or high == 0:
        raise ValueError("must be more than 0 seconds, or (from, to) in seconds")
    return low, high


def _as_window(value: Any) -> tuple[float, float]:
    if not isinstance(value, tuple) or len(value) != 2:
        raise ValueError("must be (from, until) in seconds; until may be None")
    start, end = seconds(value[0]), inf if value[1] is None or value[1] == inf else seconds(value[1])
    if not 0 <= start < end:
        raise ValueError("must begin before it ends")
    return start, end


def _as_words(value: Any) -> frozenset[str]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise ValueError("must be several words, such as a set of strings")
    return frozenset(text_of(word) for word in value)


def _as_result(value: Any) -> Any:
    return value if value is NO_FAULT or isinstance(value, Alternative) else Alternative(value)


def _as_behavior(value: Any) -> Alternative:
    given = value if isinstance(value, Alternative) else Alternative(value)
    if not given.is_function or isinstance(given.given, type):
        raise ValueError("must be a function of the call's arguments")
    return given


def _as_seed(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("must be a whole number or a string")
    return text_of(value)


@dataclass(frozen=True, kw_only=True, slots=True)
class ChaosConfig(Settings):
    """The settings of a chaos policy; `everkeel.chaos` says what each is for."""

    policy_type: ClassVar[str] = "chaos"

    rate: float = setting(Share(zero=True), default=0.001)
    latency: tuple[float, float] | None = setting(Converted(_as_latency, "span"), default=None, none="no latency")
    error: tuple[ErrorSource, ...] | None = setting(
        Converted(_as_errors, "error_sources"), default=None, none="no error"
    )
    result: Any = setting(Converted(_as_result, "alternative"), default=NO_FAULT)
    behavior: Alternative | None = setting(Converted(_as_behavior, "function"), default=None, none="no behavior")
    window: tuple[float, float] | None = setting(Converted(_as_window, "window"), default=None, none="at any time")
    schedule: Schedule | None = setting(Converted(as_schedule, "schedule"), default=None, none="at any time")
    keys: frozenset[str] | None = setting(Converted(_as_words, "words"), default=None, none="every key")
    tags: frozenset[str] | None = setting(Converted(_as_words, "words"), default=None, none="tags do not matter")
    seed: str = setting(Converted(_as_seed, "seed"), default=0)
    max_failures: int | None = setting(Count(at_least=1), default=None, none="no bound on their number")
    max_failure_rate: float | None = setting(Share(), default=None, none="no bound on their share")
    failure_window: float = setting(Duration(), default=60.0)
    minimum_calls: int = setting(Count(at_least=1), default=20)

    bounded: bool = field(init=False, repr=False, compare=False)  # must failures be counted?

    def check_together(self) -> None:
        if self.latency is None and self.error is None and self.result is NO_FAULT and self.behavior is None:
            raise self.wrong(
                "error", None, "must be set, unless latency, result or behavior is: there is nothing to inject"
            )
        if self.error is not None and self.result is not NO_FAULT:
            raise self.wrong("result", self.result.given, "must not be set together with error: use two policies")
        object.__setattr__(self, "bounded", self.max_failures is not None or self.max_failure_rate is not None)
