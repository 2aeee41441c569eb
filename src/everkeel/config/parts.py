"""What the forms of configuration are made of: names, functions, tables, lengths of time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from everkeel.runtime import durations
from everkeel.runtime.settings import NAME, Names, is_name

Schema: TypeAlias = dict[str, Any]

NAME_SCHEMA: Schema = {"type": "string", "pattern": NAME}


def is_function(value: Any) -> bool:
    """Is it `{function: name}`?"""
    return isinstance(value, Mapping) and list(value) == ["function"]


def function(value: Any, names: Names) -> Callable[..., Any]:
    """The registered function that it names."""
    name = value["function"] if is_function(value) else value
    if not is_name(name):
        raise ValueError("must be the name of a registered function, as in {function: name}")
    return names.function(name.strip())


def table_schema(properties: Schema, *required: str) -> Schema:
    """A table with these keys and no others."""
    rules: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**rules, "required": list(required)} if required else rules


def function_schema(what: str = "a registered function") -> Schema:
    """What `function` takes."""
    return table_schema({"function": {**NAME_SCHEMA, "description": what}}, "function")


def or_null(schema: Schema) -> Schema:
    """The same, or nothing."""
    return {"anyOf": [schema, {"type": "null"}]}


def only(value: Any, what: str, known: tuple[str, ...], required: tuple[str, ...] = ()) -> Mapping[str, Any]:
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


def lengths(zero: bool = True) -> Schema:
    """A length of time."""
    return durations.schema(zero=zero)


def by_error(value: Any, names: Names, inner: Callable[[Any, Names], Any]) -> Any:
    """A table from exception class to what `inner` makes of each value."""
    if not isinstance(value, Mapping) or not value or not all(is_name(key) for key in value):
        raise ValueError("must be a table from the name of an exception class, such as {TimeoutError: 1s}")
    return {names.error(key.strip()): inner(one, names) for key, one in value.items()}
