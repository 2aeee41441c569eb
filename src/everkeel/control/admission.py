"""Who is let in: bearer token, then session cookie, then the application's own way, and what a cookie may not do."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from everkeel.control.access import Principal, Sessions, Token, Tokens
from everkeel.control.problems import ProblemError
from everkeel.control.section import Endpoint
from everkeel.runtime.trouble import report

if TYPE_CHECKING:
    from starlette.requests import Request

    from everkeel.control.limits import Doors
    from everkeel.runtime.clock import Clock

_log = logging.getLogger("everkeel.control")

COOKIE = "everkeel_session"
OURS = "X-Everkeel-Request"
"""A header that only a script of the same origin can send without asking us first, which we never allow."""


class Admission:
    """Decides about each request, before anything else of it is looked at."""

    def __init__(
        self,
        tokens: Tokens,
        sessions: Sessions,
        authenticate: Callable[[Request], Any] | None,
        doors: Doors,
        clock: Clock,
        *,
        secure_cookies: bool | None,
        path: str,
    ) -> None:
        self._tokens, self._sessions, self._authenticate = tokens, sessions, authenticate
        self._doors, self._clock = doors, clock
        self._secure, self._path = secure_cookies, path

    @property
    def asks_application(self) -> bool:
        """Has the application a way of its own to tell who somebody is?"""
        return self._authenticate is not None

    async def admit(self, request: Request, endpoint: Endpoint) -> Principal | None:
        """Whom the request speaks for; a problem where it may not be made."""
        principal, by_cookie = self._known(request)
        if endpoint.role is None:
            if endpoint.limited and not endpoint.probe:
                self._pass(principal, request)
            if self._nobody_can() and not endpoint.probe:
                raise _closed()
            return principal
        self._pass(principal, request)
        if principal is None:
            principal = await self._stranger(request)
            by_cookie = not request.headers.get("authorization", "").lower().startswith("bearer ")
        if by_cookie and endpoint.changes:
            must_be_our_page(request)
        if principal.role < endpoint.role:
            detail = f"this needs the role {endpoint.role}; {principal.name!r} has the role {principal.role}"
            raise ProblemError(403, "role-does-not-suffice", detail)
        return principal

    def _pass(self, principal: Principal | None, request: Request) -> None:
        if principal is not None:
            self._doors.pass_known(principal.name)
        else:
            self._doors.pass_stranger(_address(request))

    def _known(self, request: Request) -> tuple[Principal | None, bool]:
        """By token or by cookie; and whether it was the cookie."""
        authorization = request.headers.get("authorization")
        if authorization is not None:  # whoever says who they are is believed that or nothing
            scheme, _, secret = authorization.partition(" ")
            token = self._tokens.find(secret.strip()) if scheme.lower() == "bearer" else None
            return (None if token is None else Principal(token.name, token.role)), False
        cookie = request.cookies.get(cookie_name(request))
        if cookie is None:
            return None, False
        return self._sessions.read(cookie, self._tokens, self._clock.time()), True

    async def _stranger(self, request: Request) -> Principal:
        principal = await self._by_application(request)
        if principal is not None:
            return principal
        if self._nobody_can():
            raise _closed()
        if "authorization" in request.headers or cookie_name(request) in request.cookies:
            _log.warning(
                "wrong credentials from %s for %s %r", _address(request), request.method, request.scope["path"]
            )
            raise _unauthorised("wrong-credentials", "these credentials are not known, or over")
        raise _unauthorised("no-credentials", "send Authorization: Bearer <token>")

    def _nobody_can(self) -> bool:
        return not self._tokens and self._authenticate is None

    async def _by_application(self, request: Request) -> Principal | None:
        if self._authenticate is None:
            return None
        from everkeel.control.plane import answer_of

        try:
            principal = await answer_of(self._authenticate, request)
        except Exception as error:
            report("authenticate= raised; the request is refused", error)
            return None
        if principal is not None and not isinstance(principal, Principal):
            report("authenticate= must answer a Principal or None", TypeError(type(principal).__name__))
            return None
        return principal

    # ------------------------------------------------------------------ sessions

    async def begin_session(self, request: Request, secret: str | None) -> tuple[Principal, str]:
        """A session for whoever has this token, or whom the application knows: the principal, and the cookie to set."""
        token: Token | None = None
        if secret is not None:
            token = self._tokens.find(secret)
            principal = None if token is None else Principal(token.name, token.role)
        else:
            principal = await self._by_application(request)
        if principal is None:
            _log.warning("wrong credentials from %s for a session", _address(request))
            raise _unauthorised("wrong-credentials", "this token is not known")
        value = self._sessions.begin(principal, token, self._clock.time())
        return principal, self._cookie(request, value, int(self._sessions.length))

    def end_session(self, request: Request) -> str:
        """End the session of this request; the cookie that makes the browser forget it."""
        cookie = request.cookies.get(cookie_name(request))
        if cookie is not None:
            self._sessions.end(cookie, self._clock.time())
        return self._cookie(request, "", 0)

    def _cookie(self, request: Request, value: str, seconds: int) -> str:
        secure = request.url.scheme == "https" if self._secure is None else self._secure
        path = request.scope.get("root_path", "") or ""
        place = path if path.endswith(self._path) else path + self._path
        flags = f"; Path={place}; Max-Age={seconds}; HttpOnly; SameSite=Strict"
        return f"{cookie_name(request)}={value}{flags}{'; Secure' if secure else ''}"


def cookie_name(request: Request) -> str:
    """What the cookie is called at this address.

    A host's cookies are for all of its ports, and there may be a service on each, as on a developer's machine: signing
    in to one must not end the session of another.
    """
    port = request.headers.get("host", "").rpartition(":")[2]
    return f"{COOKIE}_{port}" if port.isdecimal() and len(port) <= 5 else COOKIE


def must_be_our_page(request: Request) -> None:
    """A change by cookie must come from a page of our own origin: the browser says so, in two ways.

    The same goes for whatever the application accepts, bearer tokens apart: it may be something that browsers send by
    themselves (its own cookie, a password, what a proxy adds), for whichever page.
    """
    detail = f"changes without a bearer token need the header {OURS}: 1, and if by a page, one of this origin"
    problem = ProblemError(403, "not-our-page", detail)
    if OURS not in request.headers:
        raise problem
    site = request.headers.get("sec-fetch-site")
    if site is not None:
        if site != "same-origin":
            raise problem
        return
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
        raise problem


def _closed() -> ProblemError:
    detail = "no credentials are configured, so nobody is let in; the service's log says how to set some"
    return _unauthorised("closed", detail)


def _unauthorised(kind: str, detail: str) -> ProblemError:
    return ProblemError(401, kind, detail, headers={"WWW-Authenticate": 'Bearer realm="everkeel"'})


def _address(request: Request) -> str:
    return request.client.host if request.client is not None else "unknown"
