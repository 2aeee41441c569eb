"""How configuration writes when something is on, by the clock on the wall."""

from __future__ import annotations

import re
from datetime import datetime, time
from typing import Any

from everkeel.config.parts import Schema, only, table_schema
from everkeel.runtime.settings import Names

_MOMENT = r"^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d([.]\d{1,6})?)?(Z|[+-]\d\d:\d\d)$"
_TIME = r"^([01]\d|2[0-3]):[0-5]\d(:[0-5]\d)?$"
_SCHEDULE = (
    "{from: 2026-12-01T00:00:00Z, until: ...}, or {from: '09:00', until: '17:00', timezone: Europe/Berlin}, "
    "or a list of such"
)


def read_schedule(value: Any, names: Names) -> Any:
    """What `schedule=` would be given."""
    listed = value if isinstance(value, list) else [value]
    if not listed:
        raise ValueError(f"must be {_SCHEDULE}")
    return [_opening(one) for one in listed]


def _opening(value: Any) -> Any:
    table = only(value, _SCHEDULE, ("from", "until", "timezone"))
    start, end = table.get("from"), table.get("until")
    if "timezone" not in table:
        return _moment(start), _moment(end)
    zone = _zone(table["timezone"])
    if not all(isinstance(one, str) and re.search(_TIME, one) for one in (start, end)):
        raise ValueError(f"must be {_SCHEDULE}")
    return tuple(time.fromisoformat(one.strip()).replace(tzinfo=zone) for one in (str(start), str(end)))


def _moment(value: Any) -> datetime | None:
    if value is None:
        return None
    if not isinstance(value, str) or not re.search(_MOMENT, value):
        raise ValueError(f"must be {_SCHEDULE}")
    try:
        return datetime.fromisoformat(value.strip())
    except ValueError:
        raise ValueError(f"must be a moment there is, not {value!r}") from None


def _zone(value: Any) -> Any:
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(value)
    except Exception:  # a name it does not know, or one that is no name at all: several kinds of errors
        raise ValueError(f"must have a timezone such as Europe/Berlin or UTC, not {value!r}") from None


def schedule_schema() -> Schema:
    """What `read_schedule` takes."""
    moment = {"type": ["string", "null"], "pattern": _MOMENT}
    clock = {"type": "string", "pattern": _TIME}
    spans = table_schema({"from": moment, "until": moment})
    daily = table_schema({"from": clock, "until": clock, "timezone": {"type": "string"}}, "from", "until", "timezone")
    one = {"anyOf": [spans, daily]}
    return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1}]}
