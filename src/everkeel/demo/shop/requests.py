"""What the services of the shop accept: a request that says something else gets a 400, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request

Kind = tuple[str, Callable[[Any], bool]]
"""What a field must be, in words and in code."""

TEXT: Kind = ("a text of 1 to 200 characters", lambda value: isinstance(value, str) and 1 <= len(value) <= 200)
NUMBER: Kind = ("a whole number above 0", lambda value: type(value) is int and 0 < value < 2**31)
YES_OR_NO: Kind = ("true or false", lambda value: isinstance(value, bool))


def one_of(*values: str) -> Kind:
    """One of these words."""
    return (f"one of {', '.join(values)}", lambda value: isinstance(value, str) and value in values)


async def body_of(request: Request, *, optional: bool = False, **wanted: Kind) -> dict[str, Any]:
    """The body of a request, whose fields are what is wanted; `optional`: or are not there."""
    try:
        body = await request.json()
    except ValueError:
        raise HTTPException(400, "the body must be JSON") from None
    if not isinstance(body, dict):
        raise HTTPException(400, "the body must be a JSON object")
    for name, (what, fits) in wanted.items():
        if name not in body and optional:
            continue
        if name not in body or not fits(body[name]):
            got = f"got {body[name]!r}"[:80] if name in body else "it is missing"
            raise HTTPException(400, f"{name} must be {what} ({got})")
    return body
