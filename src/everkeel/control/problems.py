"""Errors as RFC 9457 problem details: one shape for everything that goes wrong, readable by people and programs."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, cast

from everkeel.errors import EverkeelError

_URN = "urn:everkeel:problem:"


class ProblemError(EverkeelError):
    """A request that cannot be answered as asked; a handler of a section raises it, the plane answers with it.

    `kind` is a word that programs can rely on, `detail` a sentence for whoever reads it at night. Anything in `extra`
    becomes a member of the answer's body.

    >>> ProblemError(404, "no-such-policy", "there is no retry 'fetch'").body()["type"]
    'urn:everkeel:problem:no-such-policy'
    """

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        extra: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, kind, detail, dict(extra or {}), dict(headers or {}))

    @property
    def policy(self) -> None:
        """None: no policy raised this."""
        return None

    @property
    def status(self) -> int:
        """The HTTP status."""
        return cast("int", self.args[0])

    @property
    def detail(self) -> str:
        """What is wrong with this very request."""
        return cast("str", self.args[2])

    @property
    def headers(self) -> dict[str, str]:
        """Headers the answer has."""
        return cast("dict[str, str]", self.args[4])

    def __str__(self) -> str:
        return self.detail

    def body(self) -> dict[str, Any]:
        """The problem as JSON has it."""
        status, kind, detail, extra, _ = self.args
        return {"type": _URN + kind, "title": HTTPStatus(status).phrase, "status": status, "detail": detail, **extra}


SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "Problem details (RFC 9457).",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "format": "uri"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "errors": {
            "type": "array",
            "description": "What is wrong, thing by thing: `pointer` (RFC 6901) says where in the body.",
            "items": {
                "type": "object",
                "required": ["detail"],
                "properties": {
                    "pointer": {"type": "string"},
                    "parameter": {"type": "string"},
                    "detail": {"type": "string"},
                },
            },
        },
    },
}
