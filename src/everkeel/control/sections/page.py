"""The dashboard: a page and its files, from the package, open to everybody because nothing in them is known to anybody.

What it shows it asks for like any other caller: with a session, and with that session's role.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Any

from starlette.responses import RedirectResponse, Response

from everkeel.control.problems import ProblemError
from everkeel.control.section import PAGE_HEADERS, Endpoint, Exchange, Section

KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@cache
def _files() -> dict[str, tuple[bytes, str, str]]:
    """Every file of the page by its name: contents, media type, entity tag."""
    found = {}
    for file in files("everkeel.control").joinpath("page").iterdir():
        kind = KINDS.get("." + file.name.rpartition(".")[2])
        if kind is not None:
            contents = file.read_bytes()
            found[file.name] = (contents, kind, f'"{hashlib.sha256(contents).hexdigest()[:20]}"')
    return found


def _answer(exchange: Exchange, name: str) -> Response:
    contents, kind, tag = _files()[name]
    headers = {**PAGE_HEADERS, "ETag": tag, "Cache-Control": "no-cache"}  # asked for again, sent only when it changed
    if tag in exchange.request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(contents, media_type=kind, headers=headers)


async def page(exchange: Exchange) -> Any:
    """The page itself, at the prefix with a slash behind it: its files are named relative to it."""
    path = exchange.request.url.path
    if not path.endswith("/"):
        return RedirectResponse(f"{path.rpartition('/')[2]}/", status_code=307)
    return _answer(exchange, "index.html")


async def asset(exchange: Exchange) -> Any:
    """One of its files."""
    name = exchange.path["file"]
    if name not in _files() or name == "index.html":
        raise ProblemError(404, "no-such-file", "the page has no such file")
    return _answer(exchange, name)


async def whoami(exchange: Exchange) -> Any:
    """Whose session this is, without making an error of having none; and whether the application may know better."""
    principal = exchange.principal
    return {
        "name": None if principal is None else principal.name,
        "role": None if principal is None else str(principal.role),
        "application": exchange.plane.admission.asks_application,
    }


_WHO = {
    "type": "object",
    "required": ["name", "role", "application"],
    "properties": {
        "name": {"type": ["string", "null"]},
        "role": {"type": ["string", "null"]},
        "application": {"type": "boolean", "description": "May a session begin without a token?"},
    },
}


def section() -> Section:
    """The part people look at."""
    return Section(
        "page",
        "The dashboard.",
        [
            Endpoint("GET", "/", page, None, "The dashboard", media="text/html", limited=False),
            Endpoint("GET", "/whoami", whoami, None, "Whose session is this? Also without one", answer=_WHO),
            Endpoint("GET", "/assets/{file}", asset, None, "A file of the dashboard", media="*/*", limited=False),
        ],
    )
