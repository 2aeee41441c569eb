"""How configuration writes how long to wait: backoffs, jitter, delays."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everkeel.config.parts import (
    NAME_SCHEMA,
    Schema,
    by_error,
    function,
    is_function,
    lengths,
    only,
    or_null,
    table_schema,
)
from everkeel.runtime.settings import Duration, Names, Number

_BACKOFF = (
    "a duration, a list of durations, or one of constant, linear, exponential, fibonacci, function and by_error, "
    "such as {exponential: {first: 200ms, factor: 2, max: 30s}}"
)
_SHAPES: dict[str, tuple[str, ...]] = {
    "linear": ("step", "max"),
    "exponential": ("factor", "max"),
    "fibonacci": ("max",),
}


def read_backoff(value: Any, names: Names) -> Any:
    """What `backoff=` would be given."""
    if isinstance(value, list):
        if not value:
            raise ValueError(f"must be {_BACKOFF}")
        return [Duration(zero=True).parse(one, names) for one in value]
    if not isinstance(value, Mapping):
        try:
            return Duration(zero=True).parse(value, names)
        except ValueError:
            raise ValueError(f"must be {_BACKOFF}") from None
    only(value, _BACKOFF, ("constant", *_SHAPES, "function", "by_error"))
    if len(value) != 1:
        raise ValueError(f"must be {_BACKOFF}")
    ((shape, inside),) = value.items()
    if shape == "constant":
        return Duration(zero=True).parse(inside, names)
    if shape == "function":
        return function(value, names)
    if shape == "by_error":
        return by_error(inside, names, read_backoff)
    return _shaped(shape, inside, names)


def _shaped(shape: str, inside: Any, names: Names) -> Any:
    from everkeel.runtime import backoff

    table = only(inside, f"a table as in {_BACKOFF}", ("first", "initial", *_SHAPES[shape]))
    if ("first" in table) == ("initial" in table):
        raise ValueError(f"must have first (or initial, which is the same): {shape} begins with it")
    given = {key: one for key, one in table.items() if key not in ("first", "initial")}
    for key in ("step", "max"):
        if given.get(key) is not None:
            given[key] = Duration(zero=True).parse(given[key], names)
        elif key == "step":
            given.pop(key, None)
    first = Duration(zero=True).parse(table.get("first", table.get("initial")), names)
    return getattr(backoff, shape)(first, **given)


def backoff_schema() -> Schema:
    """What `read_backoff` takes."""
    length, bound = lengths(), or_null(lengths())
    parts = {"first": length, "initial": length, "step": length, "max": bound, "factor": Number(1).schema()}

    def shape(name: str) -> Schema:
        rules = table_schema({key: parts[key] for key in ("first", "initial", *_SHAPES[name])})
        return {**rules, "oneOf": [{"required": ["first"]}, {"required": ["initial"]}]}

    rows: Schema = {"type": "object", "propertyNames": NAME_SCHEMA, "minProperties": 1}
    rows["additionalProperties"] = {"$ref": "#/$defs/backoff"}
    properties = {name: shape(name) for name in _SHAPES}
    properties |= {"constant": length, "function": NAME_SCHEMA, "by_error": rows}
    table = {**table_schema(properties), "minProperties": 1, "maxProperties": 1}
    return {"anyOf": [length, {"type": "array", "items": length, "minItems": 1}, table]}


def read_jitter(value: Any, names: Names) -> Any:
    """What `jitter=` would be given."""
    if value in ("full", "equal", "decorrelated"):
        return value
    try:
        return Duration(zero=True).parse(value, names)
    except ValueError:
        raise ValueError('must be "full", "equal", "decorrelated", or a duration to add at most') from None


def read_delay(value: Any, names: Names) -> Any:
    """A duration, or a function that computes one."""
    return function(value, names) if is_function(value) else Duration(zero=True).parse(value, names)
