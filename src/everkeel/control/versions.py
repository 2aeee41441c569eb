"""`If-Match`: act only on what was seen."""

from __future__ import annotations

from everkeel.control.problems import ProblemError
from everkeel.control.section import Exchange, Parameter


def if_match(thing: str) -> Parameter:
    """The header, for endpoints that change a thing that has versions."""
    text = f"Only if the {thing} is still this version; otherwise 412, and nothing happens."
    return Parameter("If-Match", {"type": "string"}, text, "header")


def version_of(exchange: Exchange, thing: str) -> int | None:
    """The version that the caller has seen; None where they do not care."""
    text = exchange.headers.get("If-Match", "").strip().removeprefix("W/").strip('"')
    if not text or text == "*":
        return None
    if not text.isascii() or not text.isdecimal() or len(text) > 15:
        raise ProblemError(412, "version-conflict", f"If-Match must be the version of a {thing}, in quotes")
    return int(text)
