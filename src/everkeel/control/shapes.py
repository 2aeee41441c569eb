"""The part of JSON Schema that requests are checked by: the very schemas that the OpenAPI document shows.

Enough for the bodies and parameters of a control plane, and no dependency: `type`, `enum`, `const`, `minimum`,
`maximum`, `exclusiveMinimum`, `minLength`, `maxLength`, `pattern`, `properties`, `required`, `additionalProperties`,
`minProperties` and `items`. A schema with any other keyword that would restrict a value is refused when a section is
added, rather than promised in the document and not kept.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

Schema: TypeAlias = Mapping[str, Any]

_KNOWN = {
    "type", "enum", "const", "minimum", "maximum", "exclusiveMinimum", "minLength", "maxLength", "pattern",
    "properties", "required", "additionalProperties", "minProperties", "items",
}  # fmt: skip
_SAYING = {"description", "title", "default", "examples", "example", "format", "deprecated", "readOnly"}

_TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_A = {"object": "an object", "array": "an array", "integer": "an integer", "null": "null"}


def faults(schema: Schema, value: Any, pointer: str = "") -> Iterator[tuple[str, str]]:
    """Where and how a value is not what the schema says: pairs of a JSON pointer and a sentence.

    >>> list(faults({"type": "object", "required": ["seconds"]}, {}))
    [('', "must have 'seconds'")]
    """
    if "type" in schema and not _is(value, schema["type"]):
        names = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
        yield pointer, "must be " + " or ".join(_A.get(name, f"a {name}") for name in names)
        return
    if "enum" in schema and value not in schema["enum"]:
        yield pointer, "must be one of " + ", ".join(map(str, schema["enum"]))
    if "const" in schema and value != schema["const"]:
        yield pointer, f"must be {schema['const']!r}"
    if isinstance(value, str):
        yield from _of_text(schema, value, pointer)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from _of_number(schema, value, pointer)
    elif isinstance(value, dict):
        yield from _of_object(schema, value, pointer)
    elif isinstance(value, list) and "items" in schema:
        for index, item in enumerate(value):
            yield from faults(schema["items"], item, f"{pointer}/{index}")


def _is(value: Any, wanted: str | list[str]) -> bool:
    for name in (wanted,) if isinstance(wanted, str) else wanted:
        if isinstance(value, bool):
            if name == "boolean":
                return True
        elif isinstance(value, _TYPES[name]):
            return True
        elif name == "integer" and isinstance(value, float) and value.is_integer():
            return True  # JSON has one kind of number: 1.0 is an integer
    return False


def _of_text(schema: Schema, value: str, pointer: str) -> Iterator[tuple[str, str]]:
    if len(value) < schema.get("minLength", 0):
        yield pointer, f"must have at least {schema['minLength']} characters"
    if len(value) > schema.get("maxLength", math.inf):
        yield pointer, f"must have at most {schema['maxLength']} characters"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield pointer, f"must match {schema['pattern']}"


def _of_number(schema: Schema, value: float, pointer: str) -> Iterator[tuple[str, str]]:
    if value < schema.get("minimum", -math.inf):
        yield pointer, f"must be at least {schema['minimum']}"
    if value > schema.get("maximum", math.inf):
        yield pointer, f"must be at most {schema['maximum']}"
    if value <= schema.get("exclusiveMinimum", -math.inf):
        yield pointer, f"must be more than {schema['exclusiveMinimum']}"


def _of_object(schema: Schema, value: dict[str, Any], pointer: str) -> Iterator[tuple[str, str]]:
    properties = schema.get("properties", {})
    for name in schema.get("required", ()):
        if name not in value:
            yield pointer, f"must have {name!r}"
    if len(value) < schema.get("minProperties", 0):
        yield pointer, "must not be empty"
    for name, one in value.items():
        place = f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}"
        if name in properties:
            yield from faults(properties[name], one, place)
        elif schema.get("additionalProperties", True) is False:
            yield place, "is not known here" + (f"; there is {', '.join(sorted(properties))}" if properties else "")


def must_be_checkable(schema: Schema, where: str) -> None:
    """Raise where a schema promises what `faults` does not look at."""
    for word in schema:
        if word not in _KNOWN and word not in _SAYING:
            raise ValueError(f"{where}: the schema keyword {word!r} is not checked by the control plane")
    for name, one in schema.get("properties", {}).items():
        must_be_checkable(one, f"{where}.{name}")
    if "items" in schema:
        must_be_checkable(schema["items"], f"{where}[]")


def from_text(schema: Schema, text: str) -> Any:
    """A query parameter's text as the value its schema speaks of; the text itself where it is none."""
    wanted = schema.get("type", "string")
    if wanted == "boolean":
        return {"true": True, "false": False}.get(text, text)
    if wanted == "integer" and re.fullmatch(r"-?[0-9]{1,18}", text):
        return int(text)
    if wanted == "number" and re.fullmatch(r"-?[0-9]{1,18}(\.[0-9]{1,18})?", text):
        return float(text)
    return text
