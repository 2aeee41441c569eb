"""Which entry of a table of routes a request belongs to. Pure: told method and path, answers the entry.

"/search"                   every method
"POST /orders/{id}"         one segment of whatever kind
"/files/{path:path}"        all that follows
"/static/*"                 the same
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

from everkeel.errors import ConfigError
from everkeel.http.server.asgi import Scope, path_of

T = TypeVar("T")

_ROUTE = re.compile(r"(?:([A-Z]+) )?(/\S*)")
_PARAMETER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)(?::([a-z]+))?\}|\*$")


class Templates(Generic[T]):
    """A table from route templates to values. A path without parameters wins; otherwise the first that fits.

    >>> table = Templates({"/orders/{id}": "any order", "POST /orders/new": "a new one"}, "routes")
    >>> table.find("GET", "/orders/7"), table.find("POST", "/orders/new"), table.find("GET", "/")
    (('/orders/{id}', 'any order'), ('POST /orders/new', 'a new one'), None)
    """

    __slots__ = ("_exact", "_patterns")

    def __init__(self, table: Mapping[str, T], owner: str) -> None:
        self._exact: dict[str, list[tuple[str | None, str, T]]] = {}
        self._patterns: list[tuple[str | None, re.Pattern[str], str, T]] = []
        for template, value in table.items():
            found = _ROUTE.fullmatch(template) if isinstance(template, str) else None
            if found is None:
                allowed = "must be a path such as '/orders/{id}', or a method and a path such as 'POST /orders'"
                raise ConfigError(owner, "route", allowed, repr(template))
            method, path = found.groups()
            if _PARAMETER.search(path):
                self._patterns.append((method, _compiled(path), template, value))
            else:
                self._exact.setdefault(path, []).append((method, template, value))
        for entries in self._exact.values():
            entries.sort(key=lambda entry: entry[0] is None)  # the one that names the method first

    @classmethod
    def only(cls, templates: Iterable[str], owner: str) -> Templates[bool]:
        """A table that only says whether a request is in it."""
        return Templates(dict.fromkeys(templates, True), owner)

    def __bool__(self) -> bool:
        return bool(self._exact or self._patterns)

    def of(self, scope: Scope) -> tuple[str, T] | None:
        """The template that a request belongs to, and its value."""
        return self.find(scope.get("method", "GET"), path_of(scope))

    def find(self, method: str, path: str) -> tuple[str, T] | None:
        """The same for a method and a path. HEAD belongs to GET."""
        if method == "HEAD":
            method = "GET"
        for wanted, template, value in self._exact.get(path, ()):
            if wanted is None or wanted == method:
                return template, value
        for wanted, pattern, template, value in self._patterns:
            if (wanted is None or wanted == method) and pattern.fullmatch(path):
                return template, value
        return None


def _compiled(path: str) -> re.Pattern[str]:
    parts, end = [], 0
    for found in _PARAMETER.finditer(path):
        parts.append(re.escape(path[end : found.start()]))
        parts.append(".*" if found[0] == "*" or found[2] == "path" else "[^/]+")
        end = found.end()
    parts.append(re.escape(path[end:]))
    return re.compile("".join(parts), re.DOTALL)
