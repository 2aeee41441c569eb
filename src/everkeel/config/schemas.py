"""The JSON Schema of a file of configuration, for editors: made from the same kinds that read it."""

from __future__ import annotations

from dataclasses import MISSING
from typing import Any

from everkeel.config.control_options import CONTROL, SCHEMA
from everkeel.config.forms import DEFINITIONS, form_of
from everkeel.config.parts import Schema
from everkeel.config.rendering import render
from everkeel.config.steps import LITERALS, own_keys
from everkeel.config.types import PARTS, SHORTHAND, policy_types, settings_class
from everkeel.runtime.settings import NAME, Flag

DIALECT = "https://json-schema.org/draft/2020-12/schema"


def schema() -> Schema:
    """What a file may say, as a JSON Schema (draft 2020-12).

    It knows every type of policy and every setting. What depends on more than one value, or on the application's code
    (do two settings contradict each other, is there a class of that name), only `config.check` can tell.

    >>> schema()["properties"]["retry"]["additionalProperties"]
    {'$ref': '#/$defs/retry'}
    """
    types = policy_types()
    properties: Schema = {"$schema": {"type": "string"}}
    definitions: Schema = {name: make() for name, make in DEFINITIONS.items()}
    for policy_type in types:
        properties[policy_type] = _by_name(policy_type, f"{policy_type} policies")
        definitions[policy_type] = _section(policy_type, {})
        definitions[f"{policy_type}_step"] = _step(policy_type)
    for part in sorted(PARTS):
        properties[part] = _by_name(part, f"each {part}")
        definitions[part] = _section(part, {})
    properties["pipelines"] = {
        "type": ["object", "null"],
        "propertyNames": {"minLength": 1},
        "additionalProperties": {"type": "array", "items": {"$ref": "#/$defs/step"}, "minItems": 1},
        "description": "pipelines by name: policies, outermost first",
    }
    properties[CONTROL] = SCHEMA
    steps = {one: {"$ref": f"#/$defs/{one}_step"} for one in types}
    one_of_them = {"type": "object", "properties": steps, "additionalProperties": False}
    definitions["step"] = {"anyOf": [{"enum": types}, {**one_of_them, "minProperties": 1, "maxProperties": 1}]}
    return {
        "$schema": DIALECT,
        "title": "Everkeel configuration",
        "type": ["object", "null"],
        "properties": properties,
        "additionalProperties": False,
        "$defs": definitions,
    }


def _by_name(kind: str, whose: str) -> Schema:
    return {
        "type": ["object", "null"],
        "propertyNames": {"minLength": 1},
        "additionalProperties": {"$ref": f"#/$defs/{kind}"},
        "description": f"settings of {whose} by name; 'default' for all of them",
    }


def _section(policy_type: str, more: Schema) -> Schema:
    fields = settings_class(policy_type).may_be_set()
    properties = {name: _setting(field) for name, field in fields.items()}
    section: Schema = {"type": ["object", "null"], "additionalProperties": False}
    if "enabled" not in fields:
        properties["enabled"] = {**Flag().schema(), "description": "false: mode off"}
        section["not"] = {"type": "object", "required": ["enabled", "mode"]}
    return {**section, "properties": {**properties, **more}}


def _setting(field: Any) -> Schema:
    none = field.metadata["none"]
    found = form_of(field.metadata["kind"]).schema()
    if none is not None:
        found = {"anyOf": [found, {"type": "null", "description": none}]}
    if field.default is not MISSING and (field.default is not None or none is not None):
        default = render(field.default)
        if default is not None or field.default is None:
            found = {**found, "default": default}
    return found


def _step(policy_type: str) -> Schema:
    own: Schema = {
        "name": {"type": "string", "minLength": 1, "description": "the policy of this name, made here or in code"},
        "key": {"type": "string", "pattern": NAME, "description": "a registered function of the call's arguments"},
        "max_keys": {"type": "integer", "minimum": 1},
    }
    section = _section(policy_type, {key: own[key] for key in own_keys(policy_type)})
    ways: list[Schema] = [section, {"const": True}]
    if policy_type in SHORTHAND:
        main = _setting(settings_class(policy_type).may_be_set()[SHORTHAND[policy_type]])
        bare: Schema = {"not": {"anyOf": [{"type": "object"}, {"const": False}]}}
        if policy_type == "fallback":
            literal = {"type": "object", "minProperties": 1, "propertyNames": {"enum": list(LITERALS)}}
            bare = {"anyOf": [bare, literal]}
        ways.append({"allOf": [bare, main]})
    return {"anyOf": ways}
