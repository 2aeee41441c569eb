"""What an operation takes and answers, worked out once for the router, the handler, the client and the tests."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from everkeel.openapi.client import OperationClient
from everkeel.openapi.document import Document, Operation
from everkeel.openapi.generator.schemas import Type, Types
from everkeel.openapi.generator.source import literal
from everkeel.openapi.naming import Names, camel, snake

__all__ = ["Body", "Parameter", "Plan", "plan"]

_HOLE = re.compile(r"\{([^{}]*)\}")
# What an operation must not be called, beside what a client has already: names of the modules it stands in.
_OF_MODULES = (
    "router", "app", "handlers", "annotations", "part", "protection", "adaptive",
    "date", "datetime", "time", "timedelta",
)  # fmt: skip
_PLACES = {"path": "Path", "query": "Query", "header": "Header", "cookie": "Cookie"}


@dataclass(frozen=True)
class Parameter:
    """One parameter of an operation: `wire` is its name in HTTP, `name` in Python."""

    name: str
    wire: str
    place: str  # path, query, header, cookie
    type: Type
    required: bool
    default: str | None  # as source
    schema: Mapping[str, Any]

    @property
    def optional(self) -> bool:
        return not self.required and self.default is None

    def argument(self) -> str:
        """As it stands in a handler's or a client method's signature."""
        text = f"{self.type.text} | None" if self.optional else self.type.text  # the route has checked the bounds
        if self.required:
            return f"{self.name}: {text}"
        return f"{self.name}: {text} = {self.default or 'None'}"

    def route_argument(self) -> str:
        """As it stands in a route's signature, where FastAPI reads its place, its name and its bounds."""
        options = list(self.type.constraints)
        if self.place != "path" and self.wire != self.name:
            options.insert(0, f"alias={literal(self.wire)}")
        if self.place in ("query", "path") and not options and self.type.text in ("str", "int", "float", "bool"):
            return self.argument()
        text = self.type.or_none().text if self.optional and not self.type.constraints else self.type.text
        if self.optional and self.type.constraints:
            text += " | None"
        marked = f"Annotated[{text}, {_PLACES[self.place]}({', '.join(options)})]"
        return f"{self.name}: {marked}" + ("" if self.required else f" = {self.default or 'None'}")


@dataclass(frozen=True)
class Body:
    """A request body: a typed one, or (`type` None) the bare request for anything that is not JSON."""

    name: str
    type: Type | None
    required: bool
    media: str
    schema: Any


@dataclass(frozen=True)
class Plan:
    """All that the generated code says about one operation."""

    operation: Operation
    name: str
    group: str
    path: str  # with Python's names in its holes
    summary: str
    parameters: tuple[Parameter, ...]
    body: Body | None
    result: Type | None  # None: nothing; Response where it is not JSON
    status: int
    policies: Mapping[str, Mapping[str, Any]]

    def arguments(self) -> list[str]:
        """The signature of the handler and of the client's method: what must be given first, the rest by name."""
        first = [parameter.argument() for parameter in self.parameters if parameter.required]
        rest = [parameter.argument() for parameter in self.parameters if not parameter.required]
        if self.body is not None and self.body.type is not None:
            text = self.body.type.annotation
            if self.body.required:
                first.append(f"{self.body.name}: {text}")
            else:
                rest.append(f"{self.body.name}: {self.body.type.or_none().text} = None")
        return [*first, *(["*", *rest] if rest else [])]

    @property
    def returns(self) -> str:
        return "None" if self.result is None else self.result.annotation


def plan(document: Document, types: Types, policies: Mapping[str, Mapping[str, Any]]) -> list[Plan]:
    """The plan of every operation, in the document's order; `policies` by operation id."""
    names = Names(*_OF_MODULES, *(word for word in dir(OperationClient) if not word.startswith("_")))
    return [
        _planned(document, types, operation, names, policies.get(operation.id, {}))
        for operation in document.operations()
    ]


def _planned(document: Document, types: Types, operation: Operation, names: Names, policies: Mapping[str, Any]) -> Plan:
    name = names.give(snake(operation.id, "operation"))
    tags = operation.node.get("tags")
    group = snake(str(tags[0]), "default") if isinstance(tags, list) and tags else "default"
    path, parameters, taken = _parameters(document, types, operation)
    body = _body(document, types, operation, taken, camel(name))
    status, result = _result(document, types, operation, camel(name))
    summary = str(operation.node.get("summary") or operation.node.get("description") or "")
    return Plan(operation, name, group, path, summary, tuple(parameters), body, result, status, policies)


def _parameters(document: Document, types: Types, operation: Operation) -> tuple[str, list[Parameter], Names]:
    found: dict[tuple[str, str], tuple[Mapping[str, Any], str]] = {}
    for node, around in ((operation.path_item, operation.at.rpartition("/")[0]), (operation.node, operation.at)):
        written = node.get("parameters") or []
        if not isinstance(written, list):
            raise document.error(f"{around}/parameters", "must be a list", written)
        for number, item in enumerate(written):
            at = f"{around}/parameters/{number}"
            parameter = document.follow(item, at)
            if not isinstance(parameter, Mapping) or not isinstance(parameter.get("name"), str):
                raise document.error(at, "must be a parameter with a name", parameter)
            place = parameter.get("in")
            if place not in _PLACES:
                raise document.error(f"{at}/in", "must be path, query, header or cookie", place)
            found[place, parameter["name"]] = (parameter, at)
    taken = Names("request", "response", "handlers", "self", "body", "content", "media", "part", "answer")
    holes: dict[str, str] = {}
    for hole in _HOLE.findall(operation.path):
        holes.setdefault(hole, taken.give(snake(hole, "value")))
    parameters = []
    for hole, name in holes.items():  # a hole nobody described is a text
        node, at = found.pop(("path", hole), ({"schema": {"type": "string"}}, operation.at))
        parameters.append(_parameter(types, name, hole, "path", node, at))
    for (place, wire), (node, at) in found.items():
        if place == "path":
            raise document.error(at, "must be named in the path", wire)
        parameters.append(_parameter(types, taken.give(snake(wire, "value")), wire, place, node, at))
    path = _HOLE.sub(lambda match: "{" + holes[match.group(1)] + "}", operation.path)
    return path, parameters, taken


def _parameter(types: Types, name: str, wire: str, place: str, node: Mapping[str, Any], at: str) -> Parameter:
    schema = node.get("schema", {"type": "string"})
    kind = types.of(schema, f"{at}/schema", camel(name))
    resolved = types.document.follow(schema, at)
    resolved = resolved if isinstance(resolved, Mapping) else {}
    if kind.model or kind.text in ("Any", "bytes") or "dict[" in kind.text:
        kind = Type("str")  # an object in a query has no one spelling: the handler gets the text
    elif place in ("path", "header", "cookie") and kind.text.startswith("list["):
        kind = Type("str")
    kind = Type(kind.text.removesuffix(" | None"), kind.constraints)
    required = place == "path" or node.get("required") is True
    return Parameter(name, wire, place, kind, required, None if required else types.default(resolved, kind), resolved)


def _json(content: Any) -> tuple[str, Any] | None:
    """The JSON entry of a `content` mapping: its media type and its schema."""
    for media, entry in (content or {}).items() if isinstance(content, Mapping) else ():
        plain = str(media).split(";")[0].strip().lower()
        if plain == "application/json" or plain.endswith("+json"):
            return plain, entry.get("schema") if isinstance(entry, Mapping) else None
    return None


def _body(document: Document, types: Types, operation: Operation, taken: Names, name: str) -> Body | None:
    at = f"{operation.at}/requestBody"
    node = document.follow(operation.node.get("requestBody"), at)
    if node is None:
        return None
    if not isinstance(node, Mapping):
        raise document.error(at, "must be a request body", node)
    json = _json(node.get("content"))
    required = node.get("required") is True
    if json is None:
        media = next(iter(node.get("content") or {}), "application/octet-stream")
        return Body("request", None, required, str(media), None)
    found = types.of(json[1], f"{at}/content/{json[0].replace('/', '~1')}/schema", f"{name}Body")
    return Body("body", found, required, json[0], json[1])


def _result(document: Document, types: Types, operation: Operation, name: str) -> tuple[int, Type | None]:
    responses = operation.node.get("responses")
    if responses is not None and not isinstance(responses, Mapping):
        raise document.error(f"{operation.at}/responses", "must be a mapping of statuses", responses)
    good = sorted(int(str(status)) for status in responses or {} if re.fullmatch(r"2\d\d", str(status)))
    status = good[0] if good else 200
    entry = next((value for key, value in (responses or {}).items() if str(key) == str(status)), None)
    if entry is None:
        entry = next((value for key, value in (responses or {}).items() if str(key) in ("2XX", "default")), None)
    at = f"{operation.at}/responses/{status}"
    node = document.follow(entry, at)
    content = node.get("content") if isinstance(node, Mapping) else None
    if status in (204, 205) or not content:
        return status, None
    json = _json(content)
    if json is None:
        return status, Type("Response")
    return status, types.of(json[1], f"{at}/content/{json[0].replace('/', '~1')}/schema", f"{name}Result")
