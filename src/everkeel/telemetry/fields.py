"""An event as plain values, for log records and spans. Results of calls and keys are left out: they are data."""

from __future__ import annotations

import re
from dataclasses import fields

from everkeel.events import Event

_LEFT_OUT = {"policy", "policy_type", "result", "key"}


def event_name(kind: type[Event]) -> str:
    """`CircuitOpened` as `circuit_opened`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", kind.__name__).lower()


def values_of(event: Event) -> dict[str, object]:
    """What an event says beside who it is about."""
    return {field.name: getattr(event, field.name) for field in fields(event) if field.name not in _LEFT_OUT}


def plain(name: str, value: object) -> dict[str, object]:
    """One of these values as JSON takes it; an exception becomes its class and its message."""
    if isinstance(value, BaseException):
        kind = type(value)
        named = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
        return {name: named, f"{name}_message": str(value)}
    if name == "changes" and isinstance(value, dict):
        return {name: {setting: [repr(old), repr(new)] for setting, (old, new) in value.items()}}
    if isinstance(value, tuple):
        return {name: [str(one) for one in value]}
    return {name: value if isinstance(value, str | int | float | None) else str(value)}
