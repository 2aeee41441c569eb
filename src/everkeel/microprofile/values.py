"""What configured text means: numbers, units, names, exception classes.

Each reader raises a ValueError that says what the value must be. The table `PARAMETERS` is every parameter of every
annotation that configuration can override, in the standard's spelling.
"""

from __future__ import annotations

import builtins
import importlib
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Reader: TypeAlias = Callable[[str], object]

UNITS = ("NANOS", "MICROS", "MILLIS", "SECONDS", "MINUTES", "HOURS", "HALF_DAYS", "DAYS")

_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")  # what fits into a Java long, and costs nothing to read
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_DOTTED = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def whole(text: str) -> int:
    """A whole number; not `1_000` and not `1.0`, which Java would not read either."""
    if not _WHOLE.fullmatch(text):
        raise ValueError("must be a whole number")
    return int(text)


def number(text: str) -> float:
    """A decimal number."""
    if not _NUMBER.fullmatch(text):
        raise ValueError("must be a number")
    return float(text)


def unit(text: str) -> str:
    """The name of a unit of time."""
    if text not in UNITS:
        raise ValueError(f"must be one of {', '.join(UNITS)}")
    return text


def boolean(text: str) -> bool:
    """`true` or `false`, in any case. `yes`, `1` and `off` are refused: a switch must not be guessed."""
    lower = text.lower()
    if lower not in ("true", "false"):
        raise ValueError("must be true or false")
    return lower == "true"


def name(text: str) -> str:
    """The name of a method."""
    if not text.isidentifier():
        raise ValueError("must be the name of a method")
    return text


def choice(*words: str) -> Reader:
    """A reader of one of a few words."""

    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return text

    return read


def some_class(text: str) -> type:
    """A class by its qualified name, `shop.errors.Declined`; its module is imported if need be."""
    found = _find(text)
    if not isinstance(found, type):
        raise ValueError("must be the qualified name of a class")
    return found


def exceptions(text: str) -> tuple[type[BaseException], ...]:
    """Exception classes by their qualified names, or bare for builtins, separated by commas."""
    found: list[type[BaseException]] = []
    for one in text.split(","):
        cls = some_class(one.strip())
        if not issubclass(cls, BaseException):
            raise ValueError(f"must be exception classes, and {one.strip()} is none")
        found.append(cls)
    return tuple(found)


def _find(dotted: str) -> object:
    """Whatever has this qualified name. The module is the longest leading part that can be imported."""
    if not _DOTTED.fullmatch(dotted):
        raise ValueError(f"must be a qualified name such as shop.errors.Declined, which {dotted!r} is not")
    parts = dotted.split(".")
    if len(parts) == 1:
        return _attribute(builtins, parts, dotted)
    for end in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:end])
        if module not in sys.modules:
            try:
                importlib.import_module(module)
            except ModuleNotFoundError as error:
                # Only what is not there at all is looked for further up; a module that fails to import says why.
                if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
                    continue
                raise ValueError(f"must be a class that can be imported; importing {module} failed: {error}") from error
            except Exception as error:
                raise ValueError(f"must be a class that can be imported; importing {module} failed: {error}") from error
        return _attribute(sys.modules[module], parts[end:], dotted)
    raise ValueError(f"must be a class that can be imported, and there is no module {parts[0]}")


def _attribute(holder: Any, path: list[str], dotted: str) -> object:
    for part in path:
        try:
            holder = getattr(holder, part)
        except AttributeError:
            raise ValueError(f"must be a class that exists, and there is no {dotted}") from None
    return holder


PARAMETERS: Mapping[str, Mapping[str, Reader]] = {
    "Asynchronous": {},
    "Bulkhead": {"value": whole, "waitingTaskQueue": whole},
    "CircuitBreaker": {
        "failOn": exceptions,
        "skipOn": exceptions,
        "delay": whole,
        "delayUnit": unit,
        "requestVolumeThreshold": whole,
        "failureRatio": number,
        "successThreshold": whole,
    },
    "Fallback": {"value": some_class, "fallbackMethod": name, "applyOn": exceptions, "skipOn": exceptions},
    "Retry": {
        "maxRetries": whole,
        "delay": whole,
        "delayUnit": unit,
        "maxDuration": whole,
        "durationUnit": unit,
        "jitter": whole,
        "jitterDelayUnit": unit,
        "retryOn": exceptions,
        "abortOn": exceptions,
    },
    "Timeout": {"value": whole, "unit": unit},
    # Beyond the standard.
    "RateLimit": {
        "value": whole,
        "window": whole,
        "windowUnit": unit,
        "minSpacing": whole,
        "minSpacingUnit": unit,
        "type": choice("FIXED", "ROLLING", "SMOOTH"),
    },
    "ExponentialBackoff": {"factor": whole, "maxDelay": whole, "maxDelayUnit": unit},
    "FibonacciBackoff": {"maxDelay": whole, "maxDelayUnit": unit},
    "CustomBackoff": {"value": some_class},
    "RetryWhen": {"result": some_class, "exception": some_class},
    "BeforeRetry": {"value": some_class, "methodName": name},
    "CircuitBreakerName": {},
    "ApplyGuard": {},
}
