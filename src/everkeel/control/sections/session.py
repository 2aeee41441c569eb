"""Who am I; the session of a page; and the document about all of this."""

from __future__ import annotations

from typing import Any

from everkeel.control.access import Role
from everkeel.control.section import Answer, Endpoint, Exchange, Section

_WHO = {
    "type": "object",
    "required": ["name", "role"],
    "properties": {"name": {"type": "string"}, "role": {"enum": [str(role) for role in Role]}},
}


async def begin(exchange: Exchange) -> Any:
    """Exchange a token for a cookie that scripts cannot read."""
    secret = (exchange.body or {}).get("token")
    principal, cookie = await exchange.plane.admission.begin_session(exchange.request, secret)
    return Answer({"name": principal.name, "role": str(principal.role)}, {"Set-Cookie": cookie})


async def who(exchange: Exchange) -> Any:
    """The name and the role."""
    principal = exchange.principal
    return None if principal is None else {"name": principal.name, "role": str(principal.role)}


async def end(exchange: Exchange) -> Any:
    """The cookie is worth nothing from now on, whoever has a copy of it."""
    return Answer(None, {"Set-Cookie": exchange.plane.admission.end_session(exchange.request)})


async def openapi(exchange: Exchange) -> Any:
    """The document."""
    return exchange.plane.openapi()


def section() -> Section:
    """The part about callers."""
    return Section(
        "session",
        "Sessions of pages, and this document.",
        [
            Endpoint(
                "POST", "/session", begin, None, "Begin the session of a page",
                description=(
                    "Takes a token, or, without one, whatever the application's `authenticate` accepts. The cookie is "
                    "HttpOnly and SameSite=Strict, signed with a secret of this process, and expires."
                ),
                answer=_WHO, body_required=False, problems=(401,),
                body={
                    "type": "object",
                    "additionalProperties": False,
                    "properties": {"token": {"type": "string", "minLength": 1, "maxLength": 1000}},
                },
                headers={"Set-Cookie": "The session."},
            ),
            Endpoint("GET", "/session", who, Role.VIEWER, "Who am I?", answer=_WHO),
            Endpoint("DELETE", "/session", end, Role.VIEWER, "End the session"),
            Endpoint(
                "GET", "/openapi.json", openapi, Role.VIEWER, "This document", answer={"type": "object"},
            ),
        ],
    )  # fmt: skip
