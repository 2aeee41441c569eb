"""An OpenAPI document as it was written: its operations, its references, and where each thing stands.

Told: a path, a mapping, or text. Answers: operations in the document's order, and any `$ref` inside it followed.
It never fetches anything: a reference to another document is an error that says so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import unquote

from everkeel.errors import ConfigError

__all__ = ["METHODS", "Document", "Operation"]

METHODS = ("get", "put", "post", "delete", "options", "head", "patch", "trace")


Lines: TypeAlias = Mapping[tuple[str | int, ...], int]


def pointer(*parts: object) -> str:
    """Where something stands, as a JSON pointer: `#/paths/~1orders/get`."""
    return "#" + "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


@dataclass(frozen=True)
class Operation:
    """One operation: what it is called, and the parts of the document that describe it."""

    id: str
    method: str
    path: str
    at: str
    node: Mapping[str, Any] = field(repr=False)
    path_item: Mapping[str, Any] = field(repr=False)


class Document:
    """A 3.0 or 3.1 document. Make one with `Document.read(path)` or `Document(mapping)`."""

    def __init__(self, root: Mapping[str, Any], name: str = "OpenAPI document", lines: Lines | None = None):
        self.name = name
        self._lines = lines or {}
        if not isinstance(root, Mapping):
            raise self.error("#", "must be a mapping", type(root).__name__)
        self.root = root
        version = root.get("openapi")
        if not isinstance(version, str) or not version.startswith(("3.0", "3.1")):
            raise self.error("#/openapi", "must be a version 3.0 or 3.1", version)
        if not isinstance(root.get("info"), Mapping):
            raise self.error("#/info", "must be a mapping with title and version", root.get("info"))
        if not isinstance(root.get("paths", {}), Mapping):
            raise self.error("#/paths", "must be a mapping", root.get("paths"))

    @classmethod
    def read(cls, path: str | Path) -> Document:
        """A document from a file in JSON or YAML; errors say file and line."""
        from everkeel.openapi.reading import read

        root, lines = read(Path(path))
        return cls(root, str(path), lines)

    @classmethod
    def of(cls, source: Document | Mapping[str, Any] | str | Path) -> Document:
        """Whatever the caller has: a document, a mapping, or the path of a file."""
        if isinstance(source, Document):
            return source
        return cls(source) if isinstance(source, Mapping) else cls.read(source)

    @property
    def title(self) -> str:
        return str(self.root["info"].get("title") or "Service")

    @property
    def version(self) -> str:
        return str(self.root["info"].get("version") or "0.1.0")

    def error(self, at: str, allowed: str, value: object) -> ConfigError:
        """The error for a value at a place of the document, with file and line where the file told them."""
        line = self._line(at)
        where = f"{self.name}:{line}" if line is not None else self.name
        shown = repr(value)
        return ConfigError(where, at, allowed, shown if len(shown) <= 200 else shown[:200] + "...")

    def _line(self, at: str) -> int | None:
        """The line of a place, or of the nearest place around it that is known."""
        keys = [part.replace("~1", "/").replace("~0", "~") for part in at.lstrip("#").split("/")[1:]]
        path: list[str | int] = []
        found = self._lines.get(())
        for key in keys:
            named, numbered = (*path, key), (*path, int(key)) if key.isdigit() else None
            if named in self._lines:
                path.append(key)
            elif numbered is not None and numbered in self._lines:
                path.append(int(key))
            else:
                break
            found = self._lines[tuple(path)]
        return found

    # ------------------------------------------------------------ references

    def follow(self, node: Any, at: str) -> Any:
        """What `node` stands for: itself, or what its `$ref` leads to, however many hops."""
        seen: list[str] = []
        while isinstance(node, Mapping) and "$ref" in node:
            reference = node["$ref"]
            if not isinstance(reference, str):
                raise self.error(f"{at}/$ref", "must be a reference such as '#/components/schemas/Order'", reference)
            if reference in seen:
                raise self.error(f"{at}/$ref", "must not lead back to itself", " -> ".join([*seen, reference]))
            seen.append(reference)
            node = self.at(reference, f"{at}/$ref")
        return node

    def at(self, reference: str, origin: str = "#") -> Any:
        """What stands at a JSON pointer of this document."""
        if not reference.startswith("#"):
            raise self.error(origin, "must stay inside the document (begin with '#/'): nothing is fetched", reference)
        node: Any = self.root
        for part in reference[1:].split("/")[1:]:
            key = unquote(part).replace("~1", "/").replace("~0", "~")  # a pointer in a URI: `%7Bid%7D` is `{id}`
            if isinstance(node, Mapping) and key in node:
                node = node[key]
            elif isinstance(node, list) and key.isdigit() and int(key) < len(node):
                node = node[int(key)]
            else:
                raise self.error(origin, "must lead to something in the document", reference)
        return node

    # ------------------------------------------------------------ operations

    def operations(self) -> list[Operation]:
        """Every operation, in the document's order, each with an id of its own."""
        found: dict[str, Operation] = {}
        for path, item in self.root.get("paths", {}).items():
            for operation in self._of_path(path, item):
                if operation.id in found:
                    raise self.error(
                        f"{operation.at}/operationId",
                        f"must be unique: {found[operation.id].at} has it too",
                        operation.id,
                    )
                found[operation.id] = operation
        return list(found.values())

    def _of_path(self, path: Any, item: Any) -> Iterator[Operation]:
        place = pointer("paths", path)
        if not isinstance(path, str) or not path.startswith("/"):
            raise self.error(place, "must begin with '/'", path)
        item = self.follow(item, place)
        if not isinstance(item, Mapping):
            raise self.error(place, "must be a mapping of methods", item)
        for method in METHODS:
            if method not in item:
                continue
            at = pointer("paths", path, method)
            node = item[method]
            if not isinstance(node, Mapping):
                raise self.error(at, "must be a mapping", node)
            name = node.get("operationId", f"{method}_{path.strip('/') or 'root'}")
            if not isinstance(name, str) or not name:
                raise self.error(f"{at}/operationId", "must be a text that is not empty", name)
            yield Operation(name, method, path, at, node, item)
