"""From the document's schemas to types: an annotation for each use, a pydantic model for each object.

Objects become models, texts with an `enum` become enumerations, everything else is written out where it is used.
What pydantic cannot check (a pattern with look-around, a schema that contains itself outside a model) is left open
with a comment rather than guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from everkeel.openapi.document import Document
from everkeel.openapi.generator.source import called, docstring, literal
from everkeel.openapi.naming import Names, camel, snake
from everkeel.telemetry.extras import missing

try:
    from pydantic_core import SchemaError, SchemaValidator, core_schema
except ImportError:  # pragma: no cover - in environments without it
    raise missing("everkeel.openapi.generator", "pydantic", "fastapi") from None

__all__ = ["Type", "Types"]

# What a field must not be called: pydantic's own names, and types that its neighbours may need.
_OF_BASE_MODEL = frozenset(
    [
        "date",
        "datetime",
        "time",
        "timedelta",
        "construct",
        "copy",
        "dict",
        "from_orm",
        "json",
        "parse_file",
        "parse_obj",
        "parse_raw",
        "schema",
        "schema_json",
        "update_forward_refs",
        "validate",
        "fields",
        "config",
        "root",
    ]
)
_FORMATS = {
    "date-time": "datetime", "date": "date", "time": "time", "duration": "timedelta", "uuid": "UUID",
    "decimal": "Decimal", "binary": "bytes",
}  # fmt: skip
_HOMES = {
    "datetime": "datetime", "date": "datetime", "time": "datetime", "timedelta": "datetime", "UUID": "uuid",
    "Decimal": "decimal", "Any": "typing", "Literal": "typing", "Annotated": "typing", "Field": "pydantic",
    "StrEnum": "enum",
}  # fmt: skip


@dataclass(frozen=True)
class Type:
    """A type as written in an annotation: its expression and the constraints a `Field`, `Query` or `Path` takes."""

    text: str
    constraints: tuple[str, ...] = ()
    model: bool = False  # an object: for a body, never for a query parameter

    @property
    def annotation(self) -> str:
        """The type with its constraints, as it stands in a model or inside another type."""
        return f"Annotated[{self.text}, Field({', '.join(self.constraints)})]" if self.constraints else self.text

    def or_none(self) -> Type:
        """The same, or None."""
        if self.text == "Any" or self.text.endswith("| None") or self.text == "None":
            return self
        return Type(f"{self.annotation} | None", (), self.model)


ANY = Type("Any")


@dataclass
class _Model:
    name: str
    lines: list[str]


@dataclass
class Types:
    """The types of one document. Ask `of(schema)` for each use; `models()` is the source of all that were needed."""

    document: Document
    names: Names = field(default_factory=lambda: Names(*_HOMES, "BaseModel", "ConfigDict"))

    def __post_init__(self) -> None:
        self._named: dict[str, str] = {}  # where a schema stands -> the class made of it
        self._models: dict[str, _Model] = {}  # in the order in which they were finished
        self._enums: dict[str, dict[str, str]] = {}  # enumeration -> value -> member
        self._inside: list[str] = []
        self._used: set[str] = set()
        components = self.document.root.get("components")
        schemas = components.get("schemas") if isinstance(components, Mapping) else None
        if schemas is not None and not isinstance(schemas, Mapping):
            raise self.document.error("#/components/schemas", "must be a mapping", schemas)
        for name in schemas or {}:
            self.of({"$ref": f"#/components/schemas/{str(name).replace('~', '~0').replace('/', '~1')}"}, "#", str(name))

    # ------------------------------------------------------------ types

    def of(self, schema: Any, at: str, name: str) -> Type:
        """The type of a schema. `name` is what a model would be called if one must be made."""
        if schema is True or schema == {} or schema is None:
            return self._plain("Any")
        if not isinstance(schema, Mapping):
            raise self.document.error(at, "must be a schema", schema)
        if "$ref" in schema:
            reference = unquote(str(schema["$ref"]))  # one spelling for one place
            target = self.document.follow(schema, at)
            if reference in self._named:
                found = Type(self._named[reference], (), reference not in self._enums_at())
                return found.or_none() if self._nullable(target, reference) else found
            if reference in self._inside:  # contains itself and is no model: left open
                return self._plain("Any")
            self._inside.append(reference)
            try:
                return self.of(target, reference, camel(reference.rpartition("/")[2]))
            finally:
                self._inside.pop()
        return self._described(schema, at, name)

    def _enums_at(self) -> set[str]:
        return {place for place, name in self._named.items() if name in self._enums}

    def _nullable(self, schema: Any, at: str) -> bool:
        """May it be null? The class made of a schema cannot say so: every use of it must."""
        if not isinstance(schema, Mapping):
            return False
        values = schema.get("enum")
        return self._kinds(schema, at)[1] or (isinstance(values, list) and None in values)

    def _described(self, schema: Mapping[str, Any], at: str, name: str) -> Type:
        kinds, nullable = self._kinds(schema, at)
        found = self._whole(schema, kinds, at, name)
        return found.or_none() if nullable else found

    def _kinds(self, schema: Mapping[str, Any], at: str) -> tuple[list[str], bool]:
        written = schema.get("type")
        kinds = [written] if isinstance(written, str) else list(written or [])
        if not all(isinstance(kind, str) for kind in kinds):
            raise self.document.error(f"{at}/type", "must be a type's name, or a list of them", written)
        nullable = "null" in kinds or schema.get("nullable") is True
        kinds = [kind for kind in kinds if kind != "null"]
        if not kinds and ("properties" in schema or "additionalProperties" in schema):
            kinds = ["object"]
        if not kinds and "items" in schema:
            kinds = ["array"]
        return kinds, nullable

    def _whole(self, schema: Mapping[str, Any], kinds: list[str], at: str, name: str) -> Type:
        if "const" in schema:
            return self._choice([schema["const"]])
        if isinstance(schema.get("enum"), list) and schema["enum"]:
            return self._enumeration(schema["enum"], at, name, schema)
        if isinstance(schema.get("allOf"), list):
            return self._all_of(schema, at, name)
        for word in ("oneOf", "anyOf"):
            if isinstance(schema.get(word), list) and schema[word]:
                return self._union(
                    [self.of(part, f"{at}/{word}/{n}", f"{name}{n + 1}") for n, part in enumerate(schema[word])]
                )
        if not kinds:
            return self._plain("Any")
        return self._union([self._simple(kind, schema, at, name) for kind in kinds])

    def _union(self, types: list[Type]) -> Type:
        if len(types) == 1:
            return types[0]
        parts = list(dict.fromkeys(part.annotation for part in types))
        if "Any" in parts:
            return self._plain("Any")
        nothing = "None" in parts
        text = " | ".join([part for part in parts if part != "None"] + ["None"] * nothing)
        return Type(text, (), any(part.model for part in types))

    def _simple(self, kind: str, schema: Mapping[str, Any], at: str, name: str) -> Type:
        match kind:
            case "string":
                return self._string(schema)
            case "integer" | "number":
                return self._number(kind, schema)
            case "boolean":
                return Type("bool")
            case "null":
                return Type("None")
            case "array":
                item = self.of(schema.get("items", {}), f"{at}/items", f"{name}Item")
                bounds = _bounds(schema, {"minItems": "min_length", "maxItems": "max_length"}, int)
                return self._with(Type(f"list[{item.annotation}]", bounds, item.model))
            case "object":
                return self._object(schema, at, name)
        raise self.document.error(f"{at}/type", "must be string, integer, number, boolean, array, object or null", kind)

    def _string(self, schema: Mapping[str, Any]) -> Type:
        kind = _FORMATS.get(str(schema.get("format")), "str")
        if kind != "str":
            return self._plain(kind)
        bounds = list(_bounds(schema, {"minLength": "min_length", "maxLength": "max_length"}, int))
        pattern = schema.get("pattern")
        if isinstance(pattern, str) and _checkable(pattern):
            bounds.append(f"pattern={literal(pattern)}")
        return self._with(Type("str", tuple(bounds)))

    def _number(self, kind: str, schema: Mapping[str, Any]) -> Type:
        words = {"multipleOf": "multiple_of"}
        for word, inclusive, exclusive in (("imum", "ge", "gt"), ("imum", "le", "lt")):
            side = "min" if inclusive == "ge" else "max"
            # 3.0 says exclusiveMinimum: true beside minimum; 3.1 says exclusiveMinimum: 3.
            if schema.get(f"exclusive{side.capitalize()}{word}") is True:
                words[f"{side}{word}"] = exclusive
            else:
                words[f"{side}{word}"] = inclusive
                words[f"exclusive{side.capitalize()}{word}"] = exclusive
        number = int if kind == "integer" else float
        return self._with(Type("int" if kind == "integer" else "float", _bounds(schema, words, number)))

    def _choice(self, values: list[Any]) -> Type:
        simple = [value for value in values if value is None or isinstance(value, str | int | bool)]
        if len(simple) != len(values):
            return self._plain("Any")
        nothing = None in simple
        text = ", ".join(dict.fromkeys(literal(value) for value in simple if value is not None))
        self._used.add("Literal")
        found = Type(f"Literal[{text}]") if text else Type("None")
        return found.or_none() if nothing else found

    def _enumeration(self, values: list[Any], at: str, name: str, schema: Mapping[str, Any]) -> Type:
        texts = [value for value in values if value is not None]
        named = at.startswith("#/components/schemas/") and at.count("/") == 3
        if not named or not texts or not all(isinstance(value, str) for value in texts):
            return self._choice(values)
        own = self.names.give(camel(name), "")
        self._named[at] = own
        members = Names("name", "value", "mro")
        self._enums[own] = {value: members.give(snake(value, "empty").upper()) for value in dict.fromkeys(texts)}
        self._used.add("StrEnum")
        lines = [f"class {own}(StrEnum):", docstring(schema.get("description", ""), 4, f"The values of {own}."), ""]
        lines += [f"    {member} = {literal(value)}" for value, member in self._enums[own].items()]
        self._models[own] = _Model(own, lines)
        found = Type(own)
        return found.or_none() if None in values else found

    # ------------------------------------------------------------ objects

    def _all_of(self, schema: Mapping[str, Any], at: str, name: str) -> Type:
        parts = schema["allOf"]
        rest = {key: value for key, value in schema.items() if key in ("properties", "required", "type")}
        if len(parts) == 1 and not rest.get("properties"):
            return self.of(parts[0], f"{at}/allOf/0", name)
        merged = self._merged(schema, at, [])
        if not merged["properties"]:
            return self.of(parts[0], f"{at}/allOf/0", name) if parts else self._plain("Any")
        return self._object({**merged, "type": "object"}, at, name)

    def _merged(self, schema: Mapping[str, Any], at: str, seen: list[str]) -> dict[str, Any]:
        """The properties of an object and of everything its `allOf` brings."""
        properties: dict[str, Any] = {}
        required: list[str] = []
        for number, part in enumerate(schema.get("allOf") or []):
            place = f"{at}/allOf/{number}"
            if isinstance(part, Mapping) and isinstance(part.get("$ref"), str):
                if part["$ref"] in seen:
                    raise self.document.error(place, "must not contain itself", part["$ref"])
                inner = self._merged(self.document.follow(part, place), place, [*seen, part["$ref"]])
            elif isinstance(part, Mapping):
                inner = self._merged(part, place, seen)
            else:
                raise self.document.error(place, "must be a schema", part)
            properties |= inner["properties"]
            required += inner["required"]
        properties |= _mapping(schema.get("properties"))
        required += [name for name in schema.get("required") or [] if isinstance(name, str)]
        described = {"description": schema["description"]} if "description" in schema else {}
        return {"properties": properties, "required": required, **described}

    def _object(self, schema: Mapping[str, Any], at: str, name: str) -> Type:
        properties = _mapping(schema.get("properties"))
        others = schema.get("additionalProperties")
        if not properties:
            value = (
                self.of(others, f"{at}/additionalProperties", f"{name}Value") if isinstance(others, Mapping) else ANY
            )
            self._used.update({"Any"} if value.text == "Any" else ())
            return Type(f"dict[str, {value.annotation}]", (), True)
        own = self.names.give(camel(name), "")
        self._named[at] = own  # before its fields: they may refer back to it
        self._models[own] = _Model(own, [])
        lines = [f"class {own}(BaseModel):", docstring(schema.get("description", ""), 4, f"{own}."), ""]
        given = self._fields(properties, set(_texts(schema.get("required"))), at, own)
        options = []
        if any("alias=" in line for line in given):
            options.append("populate_by_name=True")
        if others is False:
            options.append('extra="forbid"')
        elif others:
            options.append('extra="allow"')
        if options:
            lines += [f"    model_config = ConfigDict({', '.join(options)})", ""]
        del self._models[own]  # again, now: after the models it needed
        self._models[own] = _Model(own, lines + given)
        return Type(own, (), True)

    def _fields(self, properties: Mapping[str, Any], required: set[str], at: str, own: str) -> list[str]:
        names = Names(*_OF_BASE_MODEL, "model_config")
        lines = []
        for key, schema in properties.items():
            key = str(key)
            plain = snake(key, "field")
            if plain in _OF_BASE_MODEL or plain.startswith("model_"):
                plain += "_"
            name = names.give(plain)
            found = self.of(schema, f"{at}/properties/{key}", f"{own}{camel(key, 'Field')}")
            described = schema if isinstance(schema, Mapping) else {}
            options = list(found.constraints)
            text = found.text
            default = self.default(described, found)
            if default is None and key not in required:
                text = found.or_none().text if found.constraints == () else f"{found.text} | None"
                default = "None"
                if found.text == "Any":
                    text = "Any"
            if name != key:
                options.insert(0, f"alias={literal(key)}")
            if not options:
                lines.append(f"    {name}: {text}" + (f" = {default}" if default is not None else ""))
                continue
            self._used.add("Field")
            first = [] if default is None else [f"default={default}"]
            lines.append(called(f"{name}: {text} = Field", [*first, *options], indent=4))
        return lines

    def default(self, schema: Mapping[str, Any], found: Type) -> str | None:
        """The default as source, or None where there is none that fits the type."""
        if "default" not in schema:
            return None
        value = schema["default"]
        if value is None:
            return "None" if found.text.endswith("None") else None
        base = found.text.removesuffix(" | None")
        if base in self._enums:
            return f"{base}.{self._enums[base][value]}" if value in self._enums[base] else None
        fitting: dict[str, Any] = {"str": str, "int": int, "bool": bool, "float": (int, float), "Any": object}
        if (
            base in fitting
            and isinstance(value, fitting[base])
            and (base in ("bool", "Any") or not isinstance(value, bool))
        ):
            return literal(value)
        if base.startswith("Literal[") and isinstance(value, str | int):
            return literal(value) if literal(value) in base else None
        return None

    # ------------------------------------------------------------ source

    def _plain(self, text: str) -> Type:
        if text in _HOMES:
            self._used.add(text)
        return Type(text)

    def _with(self, found: Type) -> Type:
        if found.constraints:
            self._used.update({"Annotated", "Field"})
        return found

    @property
    def model_names(self) -> list[str]:
        """Every class of the models module."""
        return sorted(self._models)

    def imports_of(self, source: str) -> list[str]:
        """The import lines that a piece of source needs for the types written in it."""
        words = set(re.findall(r"[A-Za-z_]\w*", re.sub(r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\'', "", source)))
        needed: dict[str, list[str]] = {}
        for name, home in _HOMES.items():
            if name in words:
                needed.setdefault(home, []).append(name)
        return [
            f"from {home} import {', '.join(sorted(names, key=_as_sorted))}" for home, names in sorted(needed.items())
        ]

    def models(self) -> str:
        """The source of the models module."""
        body = "\n\n\n".join("\n".join(model.lines) for model in self._models.values())
        imports = [line for line in self.imports_of(body) if not line.startswith("from pydantic")]
        pydantic = [name for name in ("BaseModel", "ConfigDict", "Field") if re.search(rf"\b{name}\b", body)]
        if pydantic:
            imports += (
                ["", f"from pydantic import {', '.join(pydantic)}"]
                if imports
                else [f"from pydantic import {', '.join(pydantic)}"]
            )
        return "\n".join(["from __future__ import annotations", "", *imports, "", "", body, ""]) if body else ""


def _as_sorted(name: str) -> tuple[bool, str]:
    return (name[0].islower(), name)


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _texts(value: Any) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _bounds(schema: Mapping[str, Any], words: Mapping[str, str], number: type) -> tuple[str, ...]:
    found = []
    for word, argument in words.items():
        value = schema.get(word)
        if isinstance(value, int | float) and not isinstance(value, bool):
            if number is int and value == int(value):
                value = int(value)
            found.append(f"{argument}={literal(value)}")
    return tuple(found)


def _checkable(pattern: str) -> bool:
    """Does pydantic understand it? Its regular expressions are Rust's, without look-around and back-references."""
    try:
        SchemaValidator(core_schema.str_schema(pattern=pattern))
    except SchemaError:
        return False
    return True
