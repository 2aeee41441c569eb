"""`/metrics/base` as a plain ASGI application, for whoever scrapes Java services there already. Needs no library.

    GET /metrics/base                          every metric
    GET /metrics/base/ft.retry.calls.total     one of them

In Prometheus text, or in JSON where the client prefers `application/json`. It has no authentication of its own: serve
it where your other metrics are served.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from everkeel.microprofile.exposition import as_json, as_text, families
from everkeel.microprofile.metrics import METRICS, SCOPE, MetricRegistry, registry

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

TEXT = "text/plain; version=0.0.4; charset=utf-8"
JSON = "application/json"


def metrics_app(shown: MetricRegistry = registry) -> ASGIApp:
    """The application: mount it at `/metrics`, and it answers at `/metrics/base`; or serve it by itself.

    (Mounted at `/metrics/base` it works too, but frameworks redirect such a path to one with a slash at its end.)

    >>> app = metrics_app()
    """

    async def metrics(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":  # served by itself, without a framework around it
            return await _live(receive, send)
        if scope["type"] != "http":
            raise ValueError(f"metrics are served over http, not {scope['type']}")
        status, kind, text = _answer(shown, scope)
        body = text.encode()
        headers = [(b"content-length", str(len(body)).encode()), (b"vary", b"accept")]
        if kind:
            headers.append((b"content-type", kind.encode()))
        if status == 405:
            headers.append((b"allow", b"GET, HEAD"))
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    return metrics


def _answer(shown: MetricRegistry, scope: Scope) -> tuple[int, str, str]:
    """Status, content type and body."""
    if scope["method"] not in ("GET", "HEAD"):
        return 405, "", ""
    only = _asked_for(scope)
    if only is not None and only not in METRICS:
        return 404, TEXT, "no such metric\n"
    kind = preferred(_header(scope, b"accept"))
    if kind is None:
        return 406, TEXT, f"available as {TEXT.partition(';')[0]} and {JSON}\n"
    found = families(shown, only)
    if not found:
        return (204, "", "") if only is None else (404, TEXT, "no such metric\n")
    return (200, JSON, as_json(found)) if kind == JSON else (200, TEXT, as_text(found))


def _asked_for(scope: Scope) -> str | None:
    """The metric that is asked for by name, None for all. What it is mounted at is no part of that."""
    path = str(scope["path"]).removeprefix(str(scope.get("root_path", ""))).strip("/")
    for place in (f"metrics/{SCOPE}", SCOPE):
        if path == place or path.startswith(f"{place}/"):
            path = path.removeprefix(place).strip("/")
    return path or None


def _header(scope: Scope, name: bytes) -> str:
    """All headers of this name, as one."""
    return ",".join(value.decode("latin-1") for key, value in scope["headers"] if key == name)


def preferred(accept: str) -> str | None:
    """Which of the two forms an Accept header prefers: text where it has no preference, None where it takes neither."""
    best: tuple[float, str] | None = None
    for kind in (TEXT, JSON):
        quality = _quality(accept, kind.partition(";")[0])
        if quality > 0 and (best is None or quality > best[0]):
            best = quality, kind
    return best[1] if best is not None else None


def _quality(accept: str, kind: str) -> float:
    """How much a client wants this media type, by the most specific range that names it."""
    ranges = [part for part in accept.split(",") if part.strip()]
    if not ranges:
        return 1.0
    family = kind.partition("/")[0] + "/*"
    found: dict[str, float] = {}
    for one in ranges:
        media, *parameters = (part.strip().lower() for part in one.split(";"))
        found[media] = max(found.get(media, 0.0), _weight(parameters))
    for media in (kind, family, "*/*"):
        if media in found:
            return found[media]
    return 0.0


def _weight(parameters: list[str]) -> float:
    for parameter in parameters:
        if parameter.startswith("q="):
            try:
                return min(1.0, max(0.0, float(parameter[2:])))
            except ValueError:
                return 0.0  # as if it were not there, rather than an error of ours
    return 1.0


async def _live(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        if message["type"] == "lifespan.startup":
            await send({"type": "lifespan.startup.complete"})
        else:
            await send({"type": "lifespan.shutdown.complete"})
            return
