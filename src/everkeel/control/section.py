"""What a part of the control plane is made of: a `Section`, endpoints with a role each.

The plane's own parts are sections, and so are those that other packages or the application add:

    plane.add_section(
        Section("dead_letters", "Events that were given up on.", [
            Endpoint("GET", "/dead-letters", list_them, role=Role.VIEWER, summary="All dead letters",
                     answer={"type": "object"}),
        ])
    )

A handler is told an `Exchange` (who asks, the parameters and the body, all of them checked against their schemas) and
answers a value for JSON, an `Answer` with headers, or a Starlette response. It never sees a request that may not be
made.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from everkeel.control.access import Principal, Role
from everkeel.control.shapes import Schema, must_be_checkable
from everkeel.errors import ConfigError

if TYPE_CHECKING:
    from starlette.requests import Request

    from everkeel.control.plane import ControlPlane

Part: TypeAlias = Literal["metrics", "control"]
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
PAGE_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
}
"""For a section that answers a page of its own: files of this origin, nothing inline, in nobody's frame."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A query parameter or a request header of an endpoint."""

    name: str
    schema: Schema
    description: str
    where: Literal["query", "header"] = "query"
    required: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer that needs more than its JSON: headers, or another status than the endpoint's own."""

    value: Any
    headers: Mapping[str, str] = field(default_factory=dict)
    status: int | None = None


@dataclass(slots=True)
class Exchange:
    """One request that may be made, with everything in it checked."""

    plane: ControlPlane
    request: Request
    principal: Principal | None
    """Who asks; None only where the endpoint is open to everybody and nobody said who they are."""
    path: dict[str, str]
    query: dict[str, Any]
    headers: dict[str, str]
    """The headers that the endpoint declares, as far as they were sent, by their declared names."""
    body: Any

    @property
    def who(self) -> str:
        """The name for the audit log."""
        return "anybody" if self.principal is None else self.principal.name


Handler: TypeAlias = Callable[[Exchange], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one path, below the plane's prefix.

    Args:
        method: GET, POST, PUT, PATCH or DELETE.
        path: As OpenAPI writes it; "/" is the prefix itself. A parameter `{name}` may contain slashes, since names of
            policies may.
        handle: An async function of the `Exchange`.
        role: The least role that may; None opens it to everybody, without credentials.
        summary: One line for the document.
        operation: Its `operationId`; made of method and path by default.
        answer: The schema of the JSON it answers; None: an empty 204, unless `media` says otherwise.
        media: Another media type than JSON: `text/event-stream`, `text/html`.
        body: The schema of the JSON it takes; requests that do not fit it never arrive.
        body_required: False where the body may be left out; the handler then gets None.
        parameters: Query parameters and headers. Query parameters that are not declared are refused.
        problems: Statuses of problems it answers with, beside those that everything can (400, 401, 403, 429, ...).
        parts: `metrics` and `control` can be switched off for a whole plane; it is there where none of its own is.
        limited: False where requests without credentials are not counted: for files of a page, of which it loads many.
        probe: For orchestrators: answers however many requests there are, and (with no role) where nobody is let in.
        headers: Response headers for the document, with their descriptions.
        schemas: Named schemas that `answer` refers to, as `#/components/schemas/...`.
    """

    method: str
    path: str
    handle: Handler
    role: Role | None
    summary: str
    description: str = ""
    operation: str = ""
    answer: Schema | None = None
    status: int = 200
    media: str = "application/json"
    body: Schema | None = None
    body_required: bool = True
    parameters: Sequence[Parameter] = ()
    problems: Sequence[int] = ()
    parts: Sequence[Part] = ()
    limited: bool = True
    probe: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = f"endpoint {self.method} {self.path}"
        if self.method not in METHODS:
            raise ConfigError(where, "method", f"must be one of {', '.join(METHODS)}", repr(self.method))
        if self.path != "/" and not re.fullmatch(r"(/([a-z0-9._-]+|\{[a-z_]+\}))+", self.path):
            raise ConfigError(where, "path", "must be made of /words and /{parameters}", repr(self.path))
        try:
            for parameter in self.parameters:
                must_be_checkable(parameter.schema, parameter.name)
            if self.body is not None:
                must_be_checkable(self.body, "body")
        except ValueError as error:
            raise ConfigError(where, None, str(error), None) from None
        if self.answer is None and self.media == "application/json" and self.status == 200:
            object.__setattr__(self, "status", 204)
        if not self.operation:
            words = re.sub(r"[^a-z0-9]+", "_", self.path.lower()).strip("_")
            object.__setattr__(self, "operation", f"{self.method.lower()}_{words}")

    @property
    def changes(self) -> bool:
        """Does it change anything?"""
        return self.method != "GET"

    def pattern(self) -> re.Pattern[str]:
        """What its paths look like, decoded."""
        if self.path == "/":
            return re.compile("/?")
        text = re.escape(self.path).replace(r"\{", "{").replace(r"\}", "}")
        text = text.replace("{name}", "(?P<name>.+)")  # names of policies may have slashes
        return re.compile(re.sub(r"\{([a-z_]+)\}", r"(?P<\1>[^/]+)", text), re.DOTALL)

    @property
    def path_parameters(self) -> list[str]:
        """The names of the parameters in its path."""
        return re.findall(r"\{([a-z_]+)\}", self.path)


@dataclass(frozen=True, slots=True)
class Section:
    """Endpoints that belong together; its name is their tag in the document.

    `schemas` are named for the document: refer to one as `{"$ref": "#/components/schemas/Name"}` in an `answer`.
    """

    name: str
    description: str
    endpoints: Sequence[Endpoint]
    schemas: Mapping[str, Schema] = field(default_factory=dict)
