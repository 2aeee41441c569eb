"""How configuration writes the settings that are more than a number or a word: errors, backoffs, budgets, schedules.

Each form reads plain data (`parse`), and describes to an editor what it reads (`schema`). Functions are written as
`{function: name}`, and only those that the application registered can be had.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from everkeel.config.backoffs import backoff_schema, read_backoff, read_delay, read_jitter
from everkeel.config.parts import (
    NAME_SCHEMA,
    Schema,
    by_error,
    function,
    function_schema,
    is_function,
    lengths,
    only,
    or_null,
    table_schema,
)
from everkeel.config.schedules import read_schedule, schedule_schema
from everkeel.errors import ConfigError
from everkeel.runtime.settings import Count, Duration, Kind, Names, Number, Share, is_name

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


# ------------------------------------------------------------------ errors


def _errors(value: Any, names: Names) -> Any:
    listed = value if isinstance(value, list) else [value]
    if not listed or not all(is_name(one) or is_function(one) for one in listed):
        raise ValueError("must be the name of an exception class, or a list of such names")
    found = tuple(function(one, names) if is_function(one) else names.error(one.strip()) for one in listed)
    return found if isinstance(value, list) else found[0]


def _errors_schema() -> Schema:
    predicate = function_schema("a registered predicate on exceptions")
    one = {"anyOf": [NAME_SCHEMA, predicate]}
    return {
        "anyOf": [NAME_SCHEMA, predicate, {"type": "array", "items": one, "minItems": 1}],
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


# ------------------------------------------------------------------ budgets, alternatives


def _budget(value: Any, names: Names) -> Any:
    from everkeel.policies.retry.budget import RetryBudget

    what = "a table with ratio and floor, or the name of a registered RetryBudget"
    if is_name(value):
        return names.instance(value.strip(), RetryBudget)
    return RetryBudget(**only(value, what, ("ratio", "floor")))


def _budget_schema() -> Schema:
    table = table_schema({"ratio": Share(zero=True).schema(), "floor": Number(0).schema()})
    return {"anyOf": [NAME_SCHEMA, table]}


def _alternative(value: Any, names: Names) -> Any:
    """A literal, unless it is `{function: name}`; `{value: ...}` is a literal whatever is inside."""
    if is_function(value):
        return function(value, names)
    if isinstance(value, Mapping) and list(value) == ["value"]:
        return value["value"]
    return value


def _alternative_schema() -> Schema:
    alone = {"type": "object", "required": ["function"], "maxProperties": 1}
    return {
        "if": alone,
        "then": {"properties": {"function": NAME_SCHEMA}},
        "description": "a value, or {function: name}",
    }


def _alternatives(value: Any, names: Names) -> Any:
    """One alternative, or a list of them; in `{by_error: {TimeoutError: ...}}` each is for a class of errors."""
    listed = value if isinstance(value, list) else [value]
    if not listed or value is None:
        raise ValueError("must be an alternative, or a list with at least one: a value, or {function: name}")
    return tuple(_row(one, names) for one in listed)


def _row(value: Any, names: Names) -> Any:
    if isinstance(value, Mapping) and list(value) == ["by_error"]:
        return by_error(value["by_error"], names, _alternative)
    return _alternative(value, names)


def _alternatives_schema() -> Schema:
    rows: Schema = {"type": "object", "minProperties": 1, "propertyNames": NAME_SCHEMA}
    rows["additionalProperties"] = _alternative_schema()
    row: Schema = {
        "allOf": [
            _alternative_schema(),
            {
                "if": {"type": "object", "required": ["by_error"], "maxProperties": 1},
                "then": {"properties": {"by_error": rows}},
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
    return {"anyOf": [lengths(zero=False), {"type": "array", "items": lengths(), "minItems": 2, "maxItems": 2}]}


def _window(value: Any, names: Names) -> Any:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError("must be a list of two durations: from, until; null for no end")
    start, end = value
    return Duration(zero=True).parse(start, names), None if end is None else Duration(zero=True).parse(end, names)


def _window_schema() -> Schema:
    return {"type": "array", "prefixItems": [lengths(), or_null(lengths())], "minItems": 2, "maxItems": 2}


def _words(value: Any, names: Names) -> Any:
    what = "must be a list of strings or whole numbers"
    if not isinstance(value, list) or any(isinstance(one, bool) or not isinstance(one, str | int) for one in value):
        raise ValueError(what)
    return value


def _words_schema() -> Schema:
    return {"type": "array", "items": _KEY}


# ------------------------------------------------------------------ limits


def _cost(value: Any, names: Names) -> Any:
    return function(value, names) if is_function(value) else Count(at_least=1).parse(value, names)


def _keys(value: Any, names: Names) -> Any:
    return function(value, names) if is_function(value) else frozenset(_words(value, names))


def _limits(value: Any, names: Names) -> Any:
    if is_function(value):
        return function(value, names)
    if not isinstance(value, Mapping):
        raise ValueError("must be a table from key to limit, such as {acme: {permits: 100, per: 1s}}")
    return {key: _limit(one, names) for key, one in value.items()}


def _limit(value: Any, names: Names) -> Any:
    if isinstance(value, list) and 1 <= len(value) <= 3:
        value = dict(zip(("permits", "per", "burst"), value, strict=False))
    if not isinstance(value, Mapping):
        return Count(at_least=1).parse(value, names)
    table = only(value, "permits, or a table with permits, per and burst", ("permits", "per", "burst"), ("permits",))
    permits = Count(at_least=1).parse(table["permits"], names)
    per = Duration().parse(table["per"], names) if table.get("per") is not None else None
    burst = Count(at_least=1).parse(table["burst"], names) if "burst" in table else None
    return permits if per is None and burst is None else (permits, per) if burst is None else (permits, per, burst)


def _limits_schema() -> Schema:
    count = Count(at_least=1).schema()
    per = or_null(lengths(zero=False))
    table = table_schema({"permits": count, "per": per, "burst": count}, "permits")
    parts = {"type": "array", "prefixItems": [count, per, count], "minItems": 1, "maxItems": 3}
    # A table with the one key `function` names a function, so no key may be called that alone.
    limits = {"type": "object", "additionalProperties": {"anyOf": [count, table, parts]}}
    alone = {"type": "object", "required": ["function"], "maxProperties": 1}
    return {"if": alone, "then": function_schema(), "else": limits}


def _algorithm(value: Any, names: Names) -> Any:
    from everkeel.ratelimit.config import ALGORITHMS

    if value in ALGORITHMS if isinstance(value, str) else False:
        return value
    if not is_function(value):
        raise ValueError(f"must be {', '.join(ALGORITHMS)}, or {{function: name}}")
    return function(value, names)


def _algorithm_schema() -> Schema:
    from everkeel.ratelimit.config import ALGORITHMS

    return {"anyOf": [{"enum": list(ALGORITHMS)}, function_schema()]}


def _priorities(value: Any, names: Names) -> Any:
    if not isinstance(value, Mapping) or not value:
        raise ValueError("must be a table from priority, highest first, to its guaranteed share")
    return {key: Share(zero=True).parse(one, names) for key, one in value.items()}


def _priorities_schema() -> Schema:
    return {"type": "object", "minProperties": 1, "additionalProperties": Share(zero=True).schema()}


def _priority(value: Any, names: Names) -> Any:
    if is_function(value):
        return function(value, names)
    if not isinstance(value, str):
        raise ValueError("must be the name of a priority, or {function: name}")
    return value


def _seed(value: Any, names: Names) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _any(*schemas: Schema) -> Callable[[], Schema]:
    return lambda: {"anyOf": list(schemas)}


FORMS: dict[str, Form] = {
    "errors": Form(_errors, _errors_schema, _listed),
    "error_class": Form(_error_class, lambda: NAME_SCHEMA),
    "error_sources": Form(_errors, _errors_schema, _listed),
    "backoff": Form(read_backoff, lambda: {"$ref": "#/$defs/backoff"}),
    "jitter": Form(read_jitter, _any({"enum": ["full", "equal", "decorrelated"]}, lengths())),
    "delay": Form(read_delay, _any(lengths(), function_schema("of the attempt to start"))),
    "budget": Form(_budget, _budget_schema),
    "alternatives": Form(_alternatives, _alternatives_schema),
    "alternative": Form(_alternative, _alternative_schema),
    "function": Form(function, _any(NAME_SCHEMA, function_schema())),
    "span": Form(_span, _span_schema),
    "window": Form(_window, _window_schema),
    "words": Form(_words, _words_schema, _listed),
    "seed": Form(_seed, lambda: _KEY),
    "schedule": Form(read_schedule, schedule_schema),
    "cost": Form(_cost, _any(Count(at_least=1).schema(), function_schema())),
    "keys": Form(_keys, _any({"type": "array", "items": _KEY}, function_schema()), _listed),
    "limits": Form(_limits, _limits_schema),
    "algorithm": Form(_algorithm, _algorithm_schema),
    "priorities": Form(_priorities, _priorities_schema),
    "priority": Form(_priority, _any({"type": "string"}, function_schema())),
}

DEFINITIONS: dict[str, Callable[[], Schema]] = {"backoff": backoff_schema}
"""What schemas refer to by name, because it contains itself."""
