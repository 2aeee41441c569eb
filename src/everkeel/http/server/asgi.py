"""The types of ASGI, and reading what a request says. No framework is imported: a scope is a plain dict."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
Headers: TypeAlias = list[tuple[bytes, bytes]]

LONGEST_HEADER = 8192  # of ours; what is longer is not looked at


def header(scope: Scope, name: bytes) -> str | None:
    """The value of a header by its lower-case name; None where it is missing, absurdly long, or there more than once.

    A header that must occur once and occurs twice is read differently by every proxy on the way: it is worth nothing.

    >>> header({"headers": [(b"x-request-priority", b"low")]}, b"x-request-priority")
    'low'
    """
    found: bytes | None = None
    for field, value in scope["headers"]:
        if field == name:
            if found is not None:
                return None
            found = value
    return None if found is None or len(found) > LONGEST_HEADER else found.decode("latin-1")


def header_list(scope: Scope, name: bytes) -> str | None:
    """All values of a header that is a list, in the order they came, joined as one."""
    values = [value for field, value in scope["headers"] if field == name]
    return b",".join(values).decode("latin-1") if values else None


def path_of(scope: Scope) -> str:
    """The path as the application's routes know it: without the prefix that it is mounted under.

    >>> path_of({"path": "/api/orders", "root_path": "/api"})
    '/orders'
    """
    path, root = scope["path"], scope.get("root_path", "")
    if root and path.startswith(root) and path[len(root) : len(root) + 1] in ("", "/"):
        return path[len(root) :] or "/"
    return str(path)
