"""Lengths of time as people write them: `500ms`, `2s`, `1h30m`, ISO 8601's `PT1.5S`, or a number of seconds.

Only configuration and the command line read these; in code a duration is a number or a timedelta.
"""

from __future__ import annotations

import re
from math import isfinite
from typing import Any

_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = r"[0-9]+([.][0-9]+)?"
_SIMPLE = rf"({_NUMBER} ?(us|ms|s|m|h|d))+"
_ISO = rf"P(?=[0-9T])({_NUMBER}W)?({_NUMBER}D)?(T(?=[0-9])({_NUMBER}H)?({_NUMBER}M)?({_NUMBER}S)?)?"
PATTERN = rf"^({_NUMBER}|{_SIMPLE}|{_ISO})$"
_POSITIVE = rf"^(?=.*[1-9])({_NUMBER}|{_SIMPLE}|{_ISO})$"
_PARTS = re.compile(r"([0-9]+(?:[.][0-9]+)?) ?(us|ms|s|m|h|d)")
_ISO_PARTS = re.compile(r"([0-9]+(?:[.][0-9]+)?)([WDHMS])")
ALLOWED = "must be a duration such as 500ms, 2s, 1m or PT1.5S, or seconds as a number"


def as_seconds(value: Any) -> float:
    """The seconds that a number or a text stands for; ValueError where it is no duration.

    >>> as_seconds("500ms"), as_seconds("1h30m"), as_seconds("PT1.5S"), as_seconds(2)
    (0.5, 5400.0, 1.5, 2.0)
    """
    try:
        length = _of_text(value) if isinstance(value, str) else _of_number(value)
    except OverflowError:  # a whole number that no float can hold
        raise ValueError(ALLOWED) from None
    if not isfinite(length):
        raise ValueError(ALLOWED)
    return length


def _of_number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(ALLOWED)
    return float(value)


def _of_text(text: str) -> float:
    if not re.search(PATTERN, text):
        raise ValueError(ALLOWED)
    text = text.strip()
    if text.startswith("P"):
        date, _, clock = text.partition("T")
        days = {"W": 7 * 86400.0, "D": 86400.0}
        hours = {"H": 3600.0, "M": 60.0, "S": 1.0}
        return _sum(_ISO_PARTS.findall(date), days) + _sum(_ISO_PARTS.findall(clock), hours)
    if text[-1].isdigit():
        return float(text)
    return _sum(_PARTS.findall(text), _UNITS)


def _sum(parts: list[tuple[str, str]], units: dict[str, float]) -> float:
    # 1.1 ms is 1.1 / 1000, the nearest number there is; 1.1 * 0.001 is its neighbour.
    return sum(
        (float(number) / round(1 / units[unit]) if units[unit] < 1 else float(number) * units[unit])
        for number, unit in parts
    )


def schema(*, zero: bool = False) -> dict[str, Any]:
    """What `as_seconds` takes, as a JSON Schema."""
    return {
        "anyOf": [
            {"type": "number", "minimum" if zero else "exclusiveMinimum": 0},
            {"type": "string", "pattern": PATTERN if zero else _POSITIVE},
        ],
        "description": "a duration: 500ms, 2s, 1m, 1h, PT1.5S, or seconds as a number",
    }
