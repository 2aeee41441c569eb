"""How configuration writes the settings that are more than a number or a word: errors, backoffs, budgets, schedules.

Each form reads plain data (`parse`), and describes to an editor what it reads (`schema`). Functions are written as
`{function: name}`, and only those that the application registered can be had.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, time
from typing import Any, NamedTuple, TypeAlias

from everkeel.errors import ConfigError
from everkeel.runtime import durations
from everkeel.runtime.settings import NAME, Count, Duration, Kind, Names, Number, Share, is_name

Schema: TypeAlias = dict[str, Any]

_NAME: Schema = {"type": "string", "pattern": NAME}
_KEY: Schema = {"type": ["string", "integer"]}


class Form(NamedTuple):
    """One way of writing a setting."""

    parse: Callable[[Any, Names], Any]
    schema: Callable[[], Schema]
    from_text: Callable[[str], Any] = Kind().from_text


def form_of(kind: Kind) -> Kind | Form:
    """What reads a setting of this kind: its form, or the kind itself."""
    return FORMS[kind.form] if kind.form is not None else kind


def parse(kind: Kind, value: Any, names: Names) -> Any:
    """What `value` stands for, checked; ValueError with a sentence that begins with "must be" where it is wrong."""
    try:
        return kind.check(form_of(kind).parse(value, names))
    except ConfigError as error:  # of a part, such as a backoff's factor
        raise ValueError(f"{error.parameter} {error.allowed}" if error.parameter else error.allowed) from None
    except OverflowError:
        raise ValueError("must be a number that is not beyond all bounds") from None


# ------------------------------------------------------------------ parts


def _is_function(value: Any) -> bool:
    return isinstance(value, Mapping) and list(value) == ["function"]


def _function(value: Any, names: Names) -> Callable[..., Any]:
    name = value["function"] if _is_function(value) else value
    if not is_name(name):
        raise ValueError("must be the name of a registered function, as in {function: name}")
    return names.function(name.strip())


def _object(properties: Schema, *required: str) -> Schema:
    rules: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**rules, "required": list(required)} if required else rules


def _function_schema(what: str = "a registered function") -> Schema:
    return _object({"function": {**_NAME, "description": what}}, "function")


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _only(value: Any, what: str, known: tuple[str, ...], required: tuple[str, ...] = ()) -> Mapping[str, Any]:
    """A table with these keys and no others."""
    if not isinstance(value, Mapping):
        raise ValueError(f"must be {what}")
    for key in value:
        if key not in known:
            raise ValueError(f"must be {what}; it has no {key!r}")
    for key in required:
        if key not in value:
            raise ValueError(f"must be {what}; {key} is missing")
    return value


def _lengths(zero: bool = True) -> Schema:
    return durations.schema(zero=zero)


# ------------------------------------------------------------------ errors


def _errors(value: Any, names: Names) -> Any:
    listed = value if isinstance(value, list) else [value]
    if not listed or not all(is_name(one) or _is_function(one) for one in listed):
        raise ValueError("must be the name of an exception class, or a list of such names")
    found = tuple(_function(one, names) if _is_function(one) else names.error(one.strip()) for one in listed)
    return found if isinstance(value, list) else found[0]


def _errors_schema() -> Schema:
    predicate = _function_schema("a registered predicate on exceptions")
    one = {"anyOf": [_NAME, predicate]}
    return {
        "anyOf": [_NAME, predicate, {"type": "array", "items": one, "minItems": 1}],
        "description": "exception classes by name: ConnectionError, shop.errors.OutOfStock",
    }


def _listed(text: str) -> Any:
    """In the environment: names with commas between them."""
    found = Kind().from_text(text)
    if isinstance(found, str) and "," in found:
        return [part.strip() for part in found.split(",") if part.strip()]
    return found


def _error_class(value: Any, names: Names) -> Any:
    if not is_name(value):
        raise ValueError("must be the name of an exception class")
    return names.error(value.strip())


# ------------------------------------------------------------------ backoffs

_BACKOFF = (
    "a duration, a list of durations, or one of constant, linear, exponential, fibonacci, function and by_error, "
    "such as {exponential: {first: 200ms, factor: 2, max: 30s}}"
)
_SHAPES: dict[str, tuple[str, ...]] = {
    "linear": ("step", "max"),
    "exponential": ("factor", "max"),
    "fibonacci": ("max",),
}


def _backoff(value: Any, names: Names) -> Any:
    if isinstance(value, list):
        if not value:
            raise ValueError(f"must be {_BACKOFF}")
        return [Duration(zero=True).parse(one, names) for one in value]
    if not isinstance(value, Mapping):
        try:
            return Duration(zero=True).parse(value, names)
        except ValueError:
            raise ValueError(f"must be {_BACKOFF}") from None
    _only(value, _BACKOFF, ("constant", *_SHAPES, "function", "by_error"))
    if len(value) != 1:
        raise ValueError(f"must be {_BACKOFF}")
    ((shape, inside),) = value.items()
    if shape == "constant":
        return Duration(zero=True).parse(inside, names)
    if shape == "function":
        return _function(value, names)
    if shape == "by_error":
        return _by_error(inside, names, _backoff)
    return _shaped(shape, inside, names)


def _shaped(shape: str, inside: Any, names: Names) -> Any:
    from everkeel.runtime import backoff

    table = _only(inside, f"a table as in {_BACKOFF}", ("first", "initial", *_SHAPES[shape]))
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


def _by_error(value: Any, names: Names, inner: Callable[[Any, Names], Any]) -> Any:
    if not isinstance(value, Mapping) or not value or not all(is_name(key) for key in value):
        raise ValueError("must be a table from the name of an exception class, such as {TimeoutError: 1s}")
    return {names.error(key.strip()): inner(one, names) for key, one in value.items()}


def _backoff_schema() -> Schema:
    length, bound = _lengths(), _or_null(_lengths())
    parts = {"first": length, "initial": length, "step": length, "max": bound, "factor": Number(1).schema()}

    def shape(name: str) -> Schema:
        rules = _object({key: parts[key] for key in ("first", "initial", *_SHAPES[name])})
        return {**rules, "oneOf": [{"required": ["first"]}, {"required": ["initial"]}]}

    by_error: Schema = {"type": "object", "propertyNames": _NAME, "minProperties": 1}
    by_error["additionalProperties"] = {"$ref": "#/$defs/backoff"}
    properties = {name: shape(name) for name in _SHAPES}
    properties |= {"constant": length, "function": _NAME, "by_error": by_error}
    table = {**_object(properties), "minProperties": 1, "maxProperties": 1}
    return {"anyOf": [length, {"type": "array", "items": length, "minItems": 1}, table]}


def _jitter(value: Any, names: Names) -> Any:
    if value in ("full", "equal", "decorrelated"):
        return value
    try:
        return Duration(zero=True).parse(value, names)
    except ValueError:
        raise ValueError('must be "full", "equal", "decorrelated", or a duration to add at most') from None


def _delay(value: Any, names: Names) -> Any:
    return _function(value, names) if _is_function(value) else Duration(zero=True).parse(value, names)


# ------------------------------------------------------------------ budgets, alternatives


def _budget(value: Any, names: Names) -> Any:
    from everkeel.policies.retry.budget import RetryBudget

    what = "a table with ratio and floor, or the name of a registered RetryBudget"
    if is_name(value):
        return names.instance(value.strip(), RetryBudget)
    return RetryBudget(**_only(value, what, ("ratio", "floor")))


def _budget_schema() -> Schema:
    table = _object({"ratio": Share(zero=True).schema(), "floor": Number(0).schema()})
    return {"anyOf": [_NAME, table]}


def _alternative(value: Any, names: Names) -> Any:
    """A literal, unless it is `{function: name}`; `{value: ...}` is a literal whatever is inside."""
    if _is_function(value):
        return _function(value, names)
    if isinstance(value, Mapping) and list(value) == ["value"]:
        return value["value"]
    return value


def _alternative_schema() -> Schema:
    alone = {"type": "object", "required": ["function"], "maxProperties": 1}
    return {"if": alone, "then": {"properties": {"function": _NAME}}, "description": "a value, or {function: name}"}


def _alternatives(value: Any, names: Names) -> Any:
    """One alternative, or a list of them; in `{by_error: {TimeoutError: ...}}` each is for a class of errors."""
    listed = value if isinstance(value, list) else [value]
    if not listed or value is None:
        raise ValueError("must be an alternative, or a list with at least one: a value, or {function: name}")
    return tuple(_row(one, names) for one in listed)


def _row(value: Any, names: Names) -> Any:
    if isinstance(value, Mapping) and list(value) == ["by_error"]:
        return _by_error(value["by_error"], names, _alternative)
    return _alternative(value, names)


def _alternatives_schema() -> Schema:
    by_error = {"type": "object", "minProperties": 1, "propertyNames": _NAME}
    by_error["additionalProperties"] = _alternative_schema()
    row: Schema = {
        "allOf": [
            _alternative_schema(),
            {
                "if": {"type": "object", "required": ["by_error"], "maxProperties": 1},
                "then": {"properties": {"by_error": by_error}},
            },
        ]
    }
    is_list: Schema = {"type": "array"}
    return {
        "not": {"type": "null"},
        "if": is_list,
        "then": {"items": row, "minItems": 1},
        "else": row,
        "description": "a value, {function: name}, {by_error: {TimeoutError: ...}}, or a list of those",
    }


# ------------------------------------------------------------------ chaos, toggles


def _span(value: Any, names: Names) -> Any:
    if not isinstance(value, list):
        return Duration().parse(value, names)
    if len(value) != 2:
        raise ValueError("must be a duration, or a list of two: from, to")
    return tuple(Duration(zero=True).parse(one, names) for one in value)


def _span_schema() -> Schema:
    return {"anyOf": [_lengths(zero=False), {"type": "array", "items": _lengths(), "minItems": 2, "maxItems": 2}]}


def _window(value: Any, names: Names) -> Any:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError("must be a list of two durations: from, until; null for no end")
    start, end = value
    return Duration(zero=True).parse(start, names), None if end is None else Duration(zero=True).parse(end, names)


def _window_schema() -> Schema:
    return {"type": "array", "prefixItems": [_lengths(), _or_null(_lengths())], "minItems": 2, "maxItems": 2}


def _words(value: Any, names: Names) -> Any:
    what = "must be a list of strings or whole numbers"
    if not isinstance(value, list) or any(isinstance(one, bool) or not isinstance(one, str | int) for one in value):
        raise ValueError(what)
    return value


def _words_schema() -> Schema:
    return {"type": "array", "items": _KEY}


_MOMENT = r"^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d([.]\d{1,6})?)?(Z|[+-]\d\d:\d\d)$"
_TIME = r"^([01]\d|2[0-3]):[0-5]\d(:[0-5]\d)?$"
_SCHEDULE = (
    "{from: 2026-12-01T00:00:00Z, until: ...}, or {from: '09:00', until: '17:00', timezone: Europe/Berlin}, "
    "or a list of such"
)


def _schedule(value: Any, names: Names) -> Any:
    listed = value if isinstance(value, list) else [value]
    if not listed:
        raise ValueError(f"must be {_SCHEDULE}")
    return [_opening(one) for one in listed]


def _opening(value: Any) -> Any:
    table = _only(value, _SCHEDULE, ("from", "until", "timezone"))
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


def _schedule_schema() -> Schema:
    moment = {"type": ["string", "null"], "pattern": _MOMENT}
    clock = {"type": "string", "pattern": _TIME}
    spans = _object({"from": moment, "until": moment})
    daily = _object({"from": clock, "until": clock, "timezone": {"type": "string"}}, "from", "until", "timezone")
    one = {"anyOf": [spans, daily]}
    return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1}]}


# ------------------------------------------------------------------ limits


def _cost(value: Any, names: Names) -> Any:
    return _function(value, names) if _is_function(value) else Count(at_least=1).parse(value, names)


def _keys(value: Any, names: Names) -> Any:
    return _function(value, names) if _is_function(value) else frozenset(_words(value, names))


def _limits(value: Any, names: Names) -> Any:
    if _is_function(value):
        return _function(value, names)
    if not isinstance(value, Mapping):
        raise ValueError("must be a table from key to limit, such as {acme: {permits: 100, per: 1s}}")
    return {key: _limit(one, names) for key, one in value.items()}


def _limit(value: Any, names: Names) -> Any:
    if isinstance(value, list) and 1 <= len(value) <= 3:
        value = dict(zip(("permits", "per", "burst"), value, strict=False))
    if not isinstance(value, Mapping):
        return Count(at_least=1).parse(value, names)
    table = _only(value, "permits, or a table with permits, per and burst", ("permits", "per", "burst"), ("permits",))
    permits = Count(at_least=1).parse(table["permits"], names)
    per = Duration().parse(table["per"], names) if table.get("per") is not None else None
    burst = Count(at_least=1).parse(table["burst"], names) if "burst" in table else None
    return permits if per is None and burst is None else (permits, per) if burst is None else (permits, per, burst)


def _limits_schema() -> Schema:
    count = Count(at_least=1).schema()
    per = _or_null(_lengths(zero=False))
    table = _object({"permits": count, "per": per, "burst": count}, "permits")
    parts = {"type": "array", "prefixItems": [count, per, count], "minItems": 1, "maxItems": 3}
    # A table with the one key `function` names a function, so no key may be called that alone.
    limits = {"type": "object", "additionalProperties": {"anyOf": [count, table, parts]}}
    alone = {"type": "object", "required": ["function"], "maxProperties": 1}
    return {"if": alone, "then": _function_schema(), "else": limits}


def _algorithm(value: Any, names: Names) -> Any:
    from everkeel.ratelimit.config import ALGORITHMS

    if value in ALGORITHMS if isinstance(value, str) else False:
        return value
    if not _is_function(value):
        raise ValueError(f"must be {', '.join(ALGORITHMS)}, or {{function: name}}")
    return _function(value, names)


def _algorithm_schema() -> Schema:
    from everkeel.ratelimit.config import ALGORITHMS

    return {"anyOf": [{"enum": list(ALGORITHMS)}, _function_schema()]}


def _priorities(value: Any, names: Names) -> Any:
    if not isinstance(value, Mapping) or not value:
        raise ValueError("must be a table from priority, highest first, to its guaranteed share")
    return {key: Share(zero=True).parse(one, names) for key, one in value.items()}


def _priorities_schema() -> Schema:
    return {"type": "object", "minProperties": 1, "additionalProperties": Share(zero=True).schema()}


def _priority(value: Any, names: Names) -> Any:
    if _is_function(value):
        return _function(value, names)
    if not isinstance(value, str):
        raise ValueError("must be the name of a priority, or {function: name}")
    return value


def _seed(value: Any, names: Names) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _any(*schemas: Schema) -> Callable[[], Schema]:
    return lambda: {"anyOf": list(schemas)}


FORMS: dict[str, Form] = {
    "errors": Form(_errors, _errors_schema, _listed),
    "error_class": Form(_error_class, lambda: _NAME),
    "error_sources": Form(_errors, _errors_schema, _listed),
    "backoff": Form(_backoff, lambda: {"$ref": "#/$defs/backoff"}),
    "jitter": Form(_jitter, _any({"enum": ["full", "equal", "decorrelated"]}, _lengths())),
    "delay": Form(_delay, _any(_lengths(), _function_schema("of the attempt to start"))),
    "budget": Form(_budget, _budget_schema),
    "alternatives": Form(_alternatives, _alternatives_schema),
    "alternative": Form(_alternative, _alternative_schema),
    "function": Form(_function, _any(_NAME, _function_schema())),
    "span": Form(_span, _span_schema),
    "window": Form(_window, _window_schema),
    "words": Form(_words, _words_schema, _listed),
    "seed": Form(_seed, lambda: _KEY),
    "schedule": Form(_schedule, _schedule_schema),
    "cost": Form(_cost, _any(Count(at_least=1).schema(), _function_schema())),
    "keys": Form(_keys, _any({"type": "array", "items": _KEY}, _function_schema()), _listed),
    "limits": Form(_limits, _limits_schema),
    "algorithm": Form(_algorithm, _algorithm_schema),
    "priorities": Form(_priorities, _priorities_schema),
    "priority": Form(_priority, _any({"type": "string"}, _function_schema())),
}

DEFINITIONS: dict[str, Callable[[], Schema]] = {"backoff": _backoff_schema}
"""What schemas refer to by name, because it contains itself."""
