"""One valid value for a schema, for the generated tests; None where none can be made (a pattern without an example)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from everkeel.openapi.document import Document

__all__ = ["NO_SAMPLE", "sample"]

NO_SAMPLE = object()

_BY_FORMAT = {
    "date-time": "2026-01-02T03:04:05Z", "date": "2026-01-02", "time": "03:04:05Z", "duration": "PT1S",
    "uuid": "00000000-0000-4000-8000-000000000000", "decimal": "1.5", "email": "someone@example.com",
    "uri": "https://example.com/", "ipv4": "192.0.2.1", "ipv6": "2001:db8::1", "hostname": "example.com",
}  # fmt: skip


def sample(document: Document, schema: Any, depth: int = 0) -> Any:
    """A JSON value the schema accepts, or `NO_SAMPLE`."""
    schema = document.follow(schema, "#")
    if not isinstance(schema, Mapping):
        return "value"
    for word in ("example", "default", "const"):
        if word in schema and schema[word] is not None:
            return schema[word]
    for word in ("examples", "enum"):
        if isinstance(schema.get(word), list) and schema[word]:
            return schema[word][0]
    if depth > 8:
        return NO_SAMPLE
    if isinstance(schema.get("allOf"), list):
        return _all_of(document, schema, depth)
    for word in ("oneOf", "anyOf"):
        if isinstance(schema.get(word), list) and schema[word]:
            found = (sample(document, part, depth + 1) for part in schema[word])
            return next((value for value in found if value is not NO_SAMPLE), NO_SAMPLE)
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((one for one in kind if one != "null"), None)
    if kind is None and "properties" in schema:
        kind = "object"
    match kind:
        case "integer" | "number":
            return _number(schema, kind)
        case "boolean":
            return True
        case "array":
            return _array(document, schema, depth)
        case "object":
            return _object(document, schema, depth)
        case "string":
            return _string(schema)
    return "value"


def _all_of(document: Document, schema: Mapping[str, Any], depth: int) -> Any:
    merged: dict[str, Any] = {}
    for part in [*schema["allOf"], {key: value for key, value in schema.items() if key != "allOf"}]:
        resolved = document.follow(part, "#")
        if isinstance(resolved, Mapping) and ("properties" in resolved or "allOf" in resolved):
            value = sample(document, resolved, depth + 1)
            if not isinstance(value, dict):
                return NO_SAMPLE
            merged |= value
        elif isinstance(resolved, Mapping) and resolved.get("type") not in (None, "object"):
            return sample(document, resolved, depth + 1)
    return merged


def _string(schema: Mapping[str, Any]) -> Any:
    if isinstance(schema.get("pattern"), str):
        return NO_SAMPLE
    text = _BY_FORMAT.get(str(schema.get("format")), "text")
    least, most = schema.get("minLength"), schema.get("maxLength")
    if isinstance(least, int) and len(text) < least:
        text = text.ljust(least, "x")
    return text[:most] if isinstance(most, int) else text


def _number(schema: Mapping[str, Any], kind: str) -> Any:
    least = schema.get("minimum", schema.get("exclusiveMinimum"))
    most = schema.get("maximum", schema.get("exclusiveMaximum"))
    step = schema.get("multipleOf")
    low = least if isinstance(least, int | float) and not isinstance(least, bool) else None
    high = most if isinstance(most, int | float) and not isinstance(most, bool) else None
    if low is not None and high is not None:
        value: float = (low + high) / 2
    elif low is not None:
        value = low + 1
    else:
        value = high - 1 if high is not None else 1
    if isinstance(step, int | float) and step > 0:
        value = math.ceil(value / step) * step
    return int(value) if kind == "integer" else float(value)


def _array(document: Document, schema: Mapping[str, Any], depth: int) -> Any:
    count = schema.get("minItems", 0)
    item = sample(document, schema.get("items", {}), depth + 1) if count else None
    return NO_SAMPLE if item is NO_SAMPLE else [item] * int(count)


def _object(document: Document, schema: Mapping[str, Any], depth: int) -> Any:
    properties = schema.get("properties") or {}
    value = {}
    for name in schema.get("required") or []:
        value[name] = sample(document, properties.get(name, {}), depth + 1)
        if value[name] is NO_SAMPLE:
            return NO_SAMPLE
    return value
