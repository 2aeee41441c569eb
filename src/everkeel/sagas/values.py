"""Values between steps and the store: as JSON knows them, and as the classes that a definition names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from everkeel.messaging.data import from_json, to_json


def plain(value: Any) -> Any:
    """A value as JSON knows it; TypeError or ValueError where it does not."""
    if value is None or isinstance(value, str | bool | int):
        return value
    return json.loads(to_json(value))


def typed(value: Any, wanted: type[Any] | None) -> Any:
    """A JSON value as the class that the definition names."""
    if wanted is None or wanted in (dict, list, str, int, float, bool, object):
        return value
    return from_json(json.dumps(value).encode(), wanted)


def as_fields(state: Any) -> Mapping[str, Any]:
    """The shared state as a JSON object."""
    fields = plain(state)
    if not isinstance(fields, dict):
        raise TypeError(f"the state of a saga must have fields (got {type(state).__qualname__})")
    return fields
