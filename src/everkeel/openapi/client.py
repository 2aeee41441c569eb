"""What generated clients stand on: an adaptive client that calls operations and reads their answers as models."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, time
from enum import Enum
from typing import Any, TypedDict, Unpack
from urllib.parse import quote

from everkeel.http.adaptive import AsyncAdaptiveClient

__all__ = ["OperationClient", "part"]


def part(value: object) -> str:
    """A value as one segment of a path: nothing in it can reach another segment.

    >>> part("a/../b?c")
    'a%2F..%2Fb%3Fc'
    """
    text = quote(_text(value), safe="")
    return text.replace(".", "%2E") if text in (".", "..") else text


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return str(value.value)
    return value.isoformat() if isinstance(value, datetime | date | time) else str(value)


def _given(values: Mapping[str, Any] | None) -> dict[str, Any]:
    """What is not None, as texts; a list stays one, so that its name is repeated."""
    found: dict[str, Any] = {}
    for name, value in (values or {}).items():
        if isinstance(value, list | tuple | set):
            found[name] = [_text(item) for item in value]
        elif value is not None:
            found[name] = _text(value)
    return found


class Parts(TypedDict, total=False):
    """What a request is made of, beside its method and path; what is None is left out."""

    query: Mapping[str, Any]
    headers: Mapping[str, Any]
    cookies: Mapping[str, Any]
    body: Any
    """Sent as JSON, unless `media` names a relative of it."""
    content: bytes | None
    media: str | None


class OperationClient(AsyncAdaptiveClient):
    """An `AsyncAdaptiveClient` whose methods are operations. Generated clients derive from it.

    It goes at the server's pace, raises what `raise_for_status` of the library raises for any other status, and reads
    answers by pydantic. `client=` takes an `AsyncClient` of httpx2 or httpx, for example one with a
    `ResilientTransport`.
    """

    async def call(self, method: str, path: str, *, returns: Any = None, **parts: Unpack[Parts]) -> Any:
        """Call one operation; the answer as what `returns` says, or None where it says nothing."""
        answer = await self.fetch(method, path, **parts)
        if returns is None:
            return None
        from pydantic import TypeAdapter

        return TypeAdapter(returns).validate_json(answer)

    async def fetch(self, method: str, path: str, **parts: Unpack[Parts]) -> bytes:
        """Call an operation; its answer as bytes, for what is not JSON."""
        sent: dict[str, Any] = {"params": _given(parts.get("query")), "headers": _given(parts.get("headers"))}
        if crumbs := _given(parts.get("cookies")):
            sent["headers"]["Cookie"] = "; ".join(f"{name}={quote(value)}" for name, value in crumbs.items())
        content, body, media = parts.get("content"), parts.get("body"), parts.get("media")
        if content is not None:
            sent["content"] = content
            sent["headers"].setdefault("Content-Type", media or "application/octet-stream")
        elif body is not None:
            sent["content"] = _as_json(body)
            sent["headers"].setdefault("Content-Type", media or "application/json")
        response = await self.adaptive.acall(self._sent, method, path, sent)
        response.raise_for_status()
        found: bytes = response.content
        return found

    async def _sent(self, method: str, path: str, sent: Mapping[str, Any]) -> Any:
        return await self._client.request(method, f"{self._base_url}{path}", **sent)


def _as_json(body: Any) -> bytes:
    """What was given, and no more: a property left out is not the same as one that is null."""
    from pydantic import TypeAdapter

    return TypeAdapter(Any).dump_json(body, by_alias=True, exclude_unset=True)
