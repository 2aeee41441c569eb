"""Whose limit a request counts against: functions of its ASGI scope, to be given to a limiter as `key=`.

What they answer appears in events and logs, so a secret never is part of it: an API key becomes its digest here, before
anything else sees it.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Collection, Iterable
from hashlib import blake2b
from secrets import token_bytes
from typing import Any, Literal, TypeAlias

from everkeel.errors import ConfigError
from everkeel.http.server.addresses import TrustedProxies, household
from everkeel.http.server.asgi import Scope, header, header_list
from everkeel.http.server.templates import Templates

Key: TypeAlias = Callable[[Scope], str]

NOBODY = "unknown"
ELSEWHERE = "elsewhere"
"""The route of requests that belong to none: one for all, or whoever invents paths would have a limit for each."""


def digest(secret: str | bytes) -> str:
    """A short, stable name for something that must not be shown. The same in every process.

    >>> digest("sk-live-4242") == digest("sk-live-4242") != digest("sk-live-4243")
    True
    """
    data = secret.encode("utf-8", "surrogatepass") if isinstance(secret, str) else secret
    return blake2b(data, digest_size=12, person=b"everkeel").hexdigest()


def client_id(key: object) -> str | None:
    """What callers and logs are shown in place of a key.

    >>> client_id(None) is None
    True
    """
    return None if key is None else digest(key if isinstance(key, str) else repr(key))


def by_address(
    *,
    trusted: Iterable[str] = (),
    header: Literal["X-Forwarded-For", "Forwarded"] = "X-Forwarded-For",
    ipv6_prefix: int = 64,
) -> Key:
    """A limit for each client address.

    Headers of proxies are believed only when the connection comes from a network in `trusted`, and only the one header
    that your proxies set. Where the server rewrites the client's address itself (`uvicorn --proxy-headers`), leave
    `trusted` empty.

    Args:
        trusted: Your own proxies: addresses and networks, or "unix" for a Unix socket. Nobody by default: anybody can
            write a header.
        header: The header they add the client's address to.
        ipv6_prefix: IPv6 addresses that share so many bits share a limit, because a customer has at least 2**64.

    >>> key = by_address(trusted=["10.0.0.0/8"])
    >>> key({"client": ("10.0.0.7", 80), "headers": [(b"x-forwarded-for", b"203.0.113.9")]})
    'ip:203.0.113.9'
    """
    proxies = TrustedProxies(trusted)
    if header not in ("X-Forwarded-For", "Forwarded"):
        raise ConfigError("by_address", "header", "must be 'X-Forwarded-For' or 'Forwarded'", repr(header))
    if isinstance(ipv6_prefix, bool) or not isinstance(ipv6_prefix, int) or not 1 <= ipv6_prefix <= 128:
        raise ConfigError("by_address", "ipv6_prefix", "must be a whole number from 1 to 128", repr(ipv6_prefix))
    name, forwarded = header.lower().encode(), header == "Forwarded"

    def address(scope: Scope) -> str:
        peer = scope.get("client")
        whence = peer[0] if peer else None
        if proxies.trusts(whence):
            whence = proxies.client(whence, header_list(scope, name), forwarded=forwarded)
        return f"ip:{NOBODY if whence is None else household(whence, ipv6_prefix)}"

    return address


def by_api_key(
    name: str = "X-API-Key",
    *,
    known: Collection[str] | Callable[[str], bool] | None = None,
    otherwise: Key | None = None,
) -> Key:
    """A limit for each API key, of which only a digest is kept. Requests without one count by `otherwise`.

    Args:
        name: The header it comes in. `Authorization` works too: the whole value is the key.
        known: The keys there are, or a quick predicate. Without it anybody can invent a new key for each request and
            have a limit for each: then put a limit by address beside this one.
        otherwise: Whose limit a request without a (known) key counts against: by address, by default.

    >>> by_api_key()({"headers": [(b"x-api-key", b"sk-live-4242")]}) == "key:" + digest("sk-live-4242")
    True
    """
    field, anonymous, is_known = name.lower().encode("ascii"), otherwise or by_address(), _knows(known)

    def api_key(scope: Scope) -> str:
        value = header(scope, field)
        if not value or not is_known(value):
            return anonymous(scope)
        return f"key:{digest(value)}"

    return api_key


def _knows(known: Collection[str] | Callable[[str], bool] | None) -> Callable[[str], bool]:
    if known is None:
        return lambda value: True
    if callable(known):
        return known
    if isinstance(known, str):
        raise ConfigError("by_api_key", "known", "must be a collection of keys, or a predicate", "a string")
    # Keyed digests, with a key that nobody outside knows: how long a comparison takes says nothing about an API key.
    secret = token_bytes(32)

    def sealed(value: str) -> bytes:
        return hmac.digest(secret, value.encode("utf-8", "surrogatepass"), "sha256")

    seals = frozenset(sealed(one) for one in known)
    return lambda value: sealed(value) in seals


def by_user(user: Callable[[Scope], str | None] | None = None, *, otherwise: Key | None = None) -> Key:
    """A limit for each user, as an authentication middleware outside of this one has found out.

    Args:
        user: A function of the scope that answers the user's id, or None. By default `scope["user"]`, as Starlette and
            Litestar have it: its `identity`, `id` or `display_name`, if it is authenticated.
        otherwise: Whose limit a request without a user counts against: by address, by default.

    >>> by_user(lambda scope: scope["state"]["user"])({"state": {"user": "ann"}})
    'user:ann'
    """
    find, anonymous = user or _user_of, otherwise or by_address()

    def whose(scope: Scope) -> str:
        name = find(scope)
        return anonymous(scope) if name is None else f"user:{name}"

    return whose


def _user_of(scope: Scope) -> str | None:
    user: Any = scope.get("user")
    if user is None or not getattr(user, "is_authenticated", True):
        return None
    for name in ("identity", "id", "display_name"):
        try:
            value = getattr(user, name, None)
        except NotImplementedError:  # Starlette's base class: `identity` is for subclasses to say
            continue
        if value:
            return str(value)
    return user if isinstance(user, str) else None


def by_route(key: Key | None = None, *, templates: Iterable[str] = ()) -> Key:
    """A limit for each route template (`/orders/{id}`, whichever order), by itself or with another key.

    Args:
        key: Who is limited on each route; everybody together by default.
        templates: The routes there are. Without them the framework is asked: Starlette's and FastAPI's routes, or what
            Litestar has found already. A path that belongs to none counts as `elsewhere`, together with all others.

    >>> key = by_route(templates=["GET /orders/{id}"])
    >>> key({"method": "GET", "path": "/orders/7"}), key({"method": "GET", "path": "/no/such/thing"})
    ('route:GET /orders/{id}', 'route:elsewhere')
    """
    table = Templates.only(templates, "by_route")

    def route(scope: Scope) -> str:
        found = table.of(scope)
        name = found[0] if found is not None else ELSEWHERE if table else template_of(scope)
        return f"route:{name}" if key is None else f"route:{name} {key(scope)}"

    return route


def template_of(scope: Scope) -> str:
    """The route template of a request, as the framework knows it."""
    known = scope.get("path_template") or getattr(scope.get("route"), "path", None)
    if isinstance(known, str):
        return known
    routes = getattr(scope.get("app"), "routes", ())
    return _matching(routes, dict(scope)) or ELSEWHERE  # a copy: matching may leave notes there


def _matching(routes: Any, scope: Scope) -> str | None:
    """By duck typing, as Starlette's router does it: the first route whose `matches` is full (2) wins."""
    for route in routes:
        included = getattr(route, "effective_candidates", None)
        if included is not None:  # FastAPI's included routers: their routes know the whole path
            below = _matching(included(), scope)
            if below is not None:
                return below
            continue
        matches = getattr(route, "matches", None)
        if matches is None:
            continue
        match, child = matches(scope)
        if getattr(match, "value", 0) != 2:
            continue
        path = getattr(getattr(route, "starlette_route", None), "path", None) or getattr(route, "path", "")
        inner = getattr(route, "routes", None)
        if inner:  # mounted
            below = _matching(inner, {**scope, **child})
            return f"{path}{below}" if below is not None else f"{path}/{ELSEWHERE}"
        return path if isinstance(path, str) and path else None
    return None
