"""The control plane as an ASGI application: finds the endpoint, lets in who may, and answers in one form."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeAlias

from everkeel.control.access import HOW_TO, Principal, Sessions, Token, Tokens, tokens_of_environment
from everkeel.control.admission import Admission
from everkeel.control.audit import AuditLog, Entry
from everkeel.control.board import plain
from everkeel.control.configuration import control_table
from everkeel.control.feed import Feed
from everkeel.control.limits import ABSENT, Doors, read_json
from everkeel.control.openapi import document
from everkeel.control.problems import ProblemError
from everkeel.control.readiness import Readiness, Unready
from everkeel.control.section import Answer, Endpoint, Exchange, Section
from everkeel.control.shapes import faults, from_text
from everkeel.errors import ConfigError
from everkeel.http.server.asgi import path_of
from everkeel.runtime.clock import DEFAULT, Clock
from everkeel.runtime.registry import Registry
from everkeel.runtime.registry import registry as everyone
from everkeel.runtime.trouble import report
from everkeel.telemetry.extras import missing

try:
    from starlette.requests import ClientDisconnect, Request
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send
except ImportError as error:  # pragma: no cover - the tests have it
    raise missing("everkeel.control", "starlette", "starlette") from error

_log = logging.getLogger("everkeel.control")

Authenticate: TypeAlias = Callable[[Request], "Principal | Awaitable[Principal | None] | None"]

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
"""On every answer that does not say otherwise itself."""


class ControlPlane:
    """See the policies of this process, and change them, over HTTP: an ASGI application.

    It is closed until it knows whom to let in: without tokens and without `authenticate`, only `/liveness` answers. Run
    it alone (`everkeel serve`), mount it (`app.mount("/everkeel", plane)`), or put it beside an application
    (`plane.beside(app)`), whose requests it leaves alone. It shows the policies of its own process only.

    Args:
        prefix: Where it lives, below where it is mounted. Mounted at the very prefix, it does not expect it twice.
        tokens: Who may, by bearer token: `Token("ops", "operator", secret)`, or tables of a configuration file.
            None: those in the environment variable `EVERKEEL_CONTROL_TOKENS`, and in the table `control` of the
            configuration that was loaded. `enable_metrics` to `public_readiness` may stand there too.
        authenticate: A function, sync or async, of the Starlette request: a `Principal`, or None for nobody. Asked when
            no token and no session of ours is there. A sync one runs in a thread.
        enable_metrics: False leaves out `metrics`, `snapshot` and `stream`.
        enable_control: False leaves out everything that changes anything.
        readiness: Which policies make the service unready while they are open: patterns of `type/name`, as
            `"circuit_breaker/payments"`, or a function of the policy that answers why. None of them by default: a
            service whose dependency is down is seldom better off without any instance that could say so.
        public_readiness: True lets `/readiness` answer without credentials, and without saying why.
        max_body: Bytes a request may have.
        requests_per_second: What each caller may ask; twice as much at once.
        strangers_per_second: The same for each address without valid credentials.
        session_length: Seconds until the session of a page ends.
        secure_cookies: Send session cookies over HTTPS only. None: as the request that begins the session came.
        max_streams: How many live streams there may be.
        on_audit: Called with every entry of the audit log.
        registry: Whose policies; all named ones by default.

    >>> plane = ControlPlane(tokens=[Token("ops", "operator", "a-secret-of-16-or-more")])
    >>> sorted({section.name for section in plane.sections})[:3]
    ['audit', 'config', 'control']
    """

    def __init__(
        self,
        *,
        prefix: str = "/everkeel",
        tokens: Iterable[Token | Mapping[str, Any]] | None = None,
        authenticate: Authenticate | None = None,
        enable_metrics: bool | None = None,
        enable_control: bool | None = None,
        readiness: Iterable[str] | Unready | None = None,
        public_readiness: bool | None = None,
        max_body: int = 64 * 1024,
        requests_per_second: int = 50,
        strangers_per_second: int = 20,
        session_length: float = 8 * 3600.0,
        secure_cookies: bool | None = None,
        max_streams: int = 32,
        on_audit: Callable[[dict[str, Any]], object] | None = None,
        registry: Registry = everyone,
        clock: Clock | None = None,
    ) -> None:
        if prefix and (not prefix.startswith("/") or prefix.endswith("/")):
            raise ConfigError(
                "control plane", "prefix", "must be empty, or begin with / and not end with it", repr(prefix)
            )
        table = control_table()
        self.prefix = prefix
        self.clock = clock or DEFAULT
        self.registry = registry
        self.enabled = {
            "metrics": _flag("enable_metrics", enable_metrics, table, default=True),
            "control": _flag("enable_control", enable_control, table, default=True),
        }
        public_readiness = _flag("public_readiness", public_readiness, table, default=False)
        self.readiness = Readiness(table.get("readiness", ()) if readiness is None else readiness)
        self.max_body = max_body
        self.audit = AuditLog(on_audit)
        self.feed = Feed(registry, self.clock, max_streams)
        self.started_at = self.clock.monotonic()
        known = Tokens([*tokens_of_environment(), *table.get("tokens", ())] if tokens is None else tokens)
        self.admission = Admission(
            known,
            Sessions(session_length),
            authenticate,
            Doors(requests_per_second, strangers_per_second, clock),
            self.clock,
            secure_cookies=secure_cookies,
            path=prefix or "/",
        )
        if not known and authenticate is None:
            _log.warning("the control plane is closed, only /liveness answers: %s", HOW_TO)
        self.sections: list[Section] = []
        self._routes: dict[str, tuple[re.Pattern[str], dict[str, Endpoint]]] = {}
        from everkeel.control.sections import own_sections

        for section in own_sections(public_readiness=public_readiness):
            self.add_section(section)

    # ------------------------------------------------------------------ parts

    def add_section(self, section: Section) -> None:
        """Add a part: its endpoints, their roles, and their place in the OpenAPI document.

        What is switched off for this plane is left out. A path and method that is there already is a `ConfigError`.
        """
        kept = [one for one in section.endpoints if all(self.enabled[part] for part in one.parts)]
        for endpoint in kept:
            _, methods = self._routes.get(endpoint.path, (None, {}))
            if endpoint.method in methods:
                raise ConfigError(
                    f"section {section.name!r}", None, f"{endpoint.method} {endpoint.path} is there already", None
                )
        for endpoint in kept:
            self._routes.setdefault(endpoint.path, (endpoint.pattern(), {}))[1][endpoint.method] = endpoint
        if kept:
            self.sections.append(Section(section.name, section.description, kept, section.schemas))

    @property
    def endpoints(self) -> list[Endpoint]:
        """Everything it answers to."""
        return [endpoint for section in self.sections for endpoint in section.endpoints]

    @property
    def stream_headers(self) -> dict[str, str]:
        """The headers of a live stream, which is no Starlette response."""
        return dict(HEADERS)

    def openapi(self) -> dict[str, Any]:
        """Its OpenAPI document."""
        return document(self.sections, self.prefix)

    def beside(self, app: ASGIApp) -> ASGIApp:
        """An application that has this plane at its prefix, and is `app` everywhere else."""
        if not self.prefix:
            raise ConfigError("control plane", "prefix", "must not be empty beside an application", "''")

        async def both(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http" and self._below_prefix(scope) is not None:
                await self(scope, receive, send)
            else:
                await app(scope, receive, send)

        return both

    def note(
        self,
        exchange: Exchange,
        action: str,
        type: str | None = None,
        name: str | None = None,
        before: Mapping[str, Any] | None = None,
        after: Mapping[str, Any] | None = None,
        undo: Mapping[str, Any] | None = None,
    ) -> Entry:
        """Write into the audit log what a handler did, and for whom."""
        values = (plain(before or {}), plain(after or {}))
        return self.audit.record(self.clock.time(), exchange.who, action, type, name, *values, undo)

    # ------------------------------------------------------------------ ASGI

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or go through a lifespan."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        elif scope["type"] == "http":
            response = await self._answer(Request(scope, receive))
            if scope["method"] == "HEAD" and isinstance(response, Response):
                response.body = b""
            await response(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            kind = (await receive())["type"]
            if kind == "lifespan.shutdown":
                self.feed.close("the server is stopping")
            await send({"type": f"{kind}.complete"})
            if kind == "lifespan.shutdown":
                return

    def _below_prefix(self, scope: Scope) -> str | None:
        """The path below the prefix; None where the request is not for us."""
        path = path_of(scope)  # some servers and frameworks leave the root path in it, others do not
        if self.prefix and scope.get("root_path", "").endswith(self.prefix):
            return path
        if path == self.prefix or path.startswith(self.prefix + "/"):
            return path[len(self.prefix) :]
        return None

    async def _answer(self, request: Request) -> Any:
        try:
            response = await self._respond(request)
        except ProblemError as problem:
            response = _problem(problem)
        except ConfigError as error:
            response = _problem(ProblemError(422, "settings-not-allowed", str(error)))
        except ClientDisconnect:
            response = Response(status_code=400)  # nobody reads it
        except Exception as error:
            report(f"the control plane failed to answer {request.method} {request.scope['path']!r}", error)
            response = _problem(ProblemError(500, "internal", "the control plane failed; its log says how"))
        if isinstance(response, Response):
            for name, value in HEADERS.items():
                response.headers.setdefault(name, value)
        return response

    async def _respond(self, request: Request) -> Any:
        endpoint, path = self._find(request)
        principal = await self.admission.admit(request, endpoint)
        query = _query(endpoint, request)
        headers = {one.name: request.headers[one.name] for one in endpoint.parameters if _is_there(one, request)}
        body = await self._body(endpoint, request) if endpoint.changes else None
        exchange = Exchange(self, request, principal, path, query, headers, body)
        return _response(endpoint, await endpoint.handle(exchange))

    def _find(self, request: Request) -> tuple[Endpoint, dict[str, str]]:
        below = self._below_prefix(request.scope)
        allowed: set[str] = set()
        for pattern, methods in self._routes.values():
            match = None if below is None else pattern.fullmatch(below)
            if match is None:
                continue
            endpoint = methods.get("GET" if request.method == "HEAD" else request.method)
            if endpoint is not None and request.method == "HEAD" and endpoint.media == "text/event-stream":
                endpoint = None  # a stream without a body would be a connection that is open for nothing
            if endpoint is not None:
                return endpoint, match.groupdict()
            allowed |= set(methods)
        if allowed:
            detail = f"this path does not have {request.method}"
            raise ProblemError(405, "method-not-allowed", detail, headers={"Allow": ", ".join(sorted(allowed))})
        raise ProblemError(404, "no-such-path", "there is nothing at this path; /openapi.json says what there is")

    async def _body(self, endpoint: Endpoint, request: Request) -> Any:
        body = await read_json(request, self.max_body)
        if endpoint.body is None:
            return None
        if body is ABSENT:
            if endpoint.body_required:
                raise ProblemError(400, "invalid-body", "this needs a JSON body")
            return None
        wrong = [{"pointer": pointer, "detail": text} for pointer, text in faults(endpoint.body, body)]
        if wrong:
            first = wrong[0]
            where = f"{first['pointer']}: " if first["pointer"] else "the body "
            raise ProblemError(400, "invalid-body", f"{where}{first['detail']}", {"errors": wrong})
        return body


def _flag(name: str, given: bool | None, table: Mapping[str, Any], *, default: bool) -> bool:
    value = table.get(name, default) if given is None else given
    if not isinstance(value, bool):
        raise ConfigError("control plane", name, "must be true or false", repr(value))
    return value


def _is_there(parameter: Any, request: Request) -> bool:
    return parameter.where == "header" and parameter.name in request.headers


def _query(endpoint: Endpoint, request: Request) -> dict[str, Any]:
    declared = {one.name: one for one in endpoint.parameters if one.where == "query"}
    values: dict[str, Any] = {}
    wrong = []
    for name, text in request.query_params.multi_items():
        if name not in declared:
            known = f"; there is {', '.join(sorted(declared))}" if declared else "; there are none"
            wrong.append({"parameter": name, "detail": f"no such parameter{known}"})
        elif name in values:
            wrong.append({"parameter": name, "detail": "is given twice"})
        else:
            values[name] = from_text(declared[name].schema, text)
            wrong += [{"parameter": name, "detail": one} for _, one in faults(declared[name].schema, values[name])]
    wrong += [
        {"parameter": name, "detail": "is required"}
        for name, one in declared.items()
        if one.required and name not in values
    ]
    if wrong:
        raise ProblemError(
            400, "invalid-parameter", f"{wrong[0]['parameter']}: {wrong[0]['detail']}", {"errors": wrong}
        )
    return values


def _response(endpoint: Endpoint, answer: Any) -> Any:
    if isinstance(answer, Response) or (callable(answer) and not isinstance(answer, Answer)):
        return answer
    if not isinstance(answer, Answer):
        answer = Answer(answer)
    status = answer.status or endpoint.status
    if status == 204:
        return Response(status_code=204, headers=dict(answer.headers))
    return _json(answer.value, status, answer.headers, "application/json")


def _json(value: Any, status: int, headers: Mapping[str, str], media: str) -> Response:
    # In ASCII: a key or a name may hold what UTF-8 cannot write.
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Response(text.encode("ascii"), status_code=status, headers=dict(headers), media_type=media)


def _problem(problem: ProblemError) -> Response:
    return _json(problem.body(), problem.status, problem.headers, "application/problem+json")


async def answer_of(function: Callable[..., Any], *args: Any) -> Any:
    """What a function of the application answers, sync or async; a sync one runs in a thread, and may block there."""
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004
        return await function(*args)
    answer = await asyncio.to_thread(function, *args)
    return await answer if inspect.isawaitable(answer) else answer
