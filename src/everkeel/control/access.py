"""Who may do what: roles, bearer tokens, and the signed cookie of a page's session. No HTTP in here.

Secrets are kept as SHA-256 digests and compared in constant time, each of them every time, so that neither a dump of
this process nor the time an answer takes gives one away.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from everkeel.config.control_options import SHORTEST_TOKEN
from everkeel.errors import ConfigError

ENVIRONMENT = "EVERKEEL_CONTROL_TOKENS"
HOW_TO = (
    f"set {ENVIRONMENT}='name:role:token' (role: viewer, operator or admin; several with commas; a token has at least "
    "16 characters: python -c 'import secrets; print(secrets.token_urlsafe(32))'), or pass tokens= or authenticate="
)


class Role(IntEnum):
    """What somebody may do; each role may do what those before it may.

    `VIEWER` reads. `OPERATOR` acts in an incident: modes, circuits, limits, counters. `ADMIN` changes settings, and
    takes changes back.

    >>> Role.of("operator") >= Role.VIEWER
    True
    """

    VIEWER = 1
    OPERATOR = 2
    ADMIN = 3

    @classmethod
    def of(cls, value: str | Role) -> Role:
        """The role of this name."""
        if isinstance(value, Role):
            return value
        try:
            return cls[value.upper()]
        except (KeyError, AttributeError):
            raise ConfigError("control plane", "role", "must be 'viewer', 'operator' or 'admin'", repr(value)) from None

    def __str__(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Principal:
    """Whom a request speaks for: what `authenticate=` answers, and what the audit log names."""

    name: str
    role: Role

    def __post_init__(self) -> None:
        object.__setattr__(self, "role", Role.of(self.role))


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token. The secret itself is not kept, only its digest, and neither is ever shown.

    >>> Token("ops", "operator", "a-secret-of-at-least-16-characters")
    Token(name='ops', role=<Role.OPERATOR: 2>)
    """

    name: str
    role: Role
    digest: bytes = field(repr=False)

    def __init__(self, name: str, role: str | Role, secret: str | None = None, *, sha256: str | None = None) -> None:
        """`sha256`: the secret's digest in hexadecimal, for a configuration that shall not contain the secret."""
        owner = f"control plane token {name!r}"
        if not isinstance(name, str) or not name:
            raise ConfigError("control plane token", "name", "must be a non-empty string", repr(name))
        if (secret is None) == (sha256 is None):
            raise ConfigError(owner, None, "needs either the secret or its sha256", None)
        if secret is not None and (not isinstance(secret, str) or len(secret) < SHORTEST_TOKEN):
            # The value is not shown, short as it is.
            raise ConfigError(owner, "secret", f"must have at least {SHORTEST_TOKEN} characters", None)
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "role", Role.of(role))
        object.__setattr__(self, "digest", _digest(secret) if secret is not None else _from_hex(owner, str(sha256)))


def _from_hex(owner: str, text: str) -> bytes:
    try:
        digest = bytes.fromhex(text)
    except ValueError:
        digest = b""
    if len(digest) != 32:
        raise ConfigError(owner, "sha256", "must be 64 hexadecimal digits", None)
    return digest


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def read_token(value: Token | Mapping[str, Any]) -> Token:
    """A token from a table of a configuration file: `name`, `role`, and `token`, `token_env` or `sha256`."""
    if isinstance(value, Token):
        return value
    known = {"name", "role", "token", "token_env", "sha256"}
    if not isinstance(value, Mapping) or not known.issuperset(value):
        raise ConfigError("control plane", "tokens", f"must be tables of {', '.join(sorted(known))}", None)
    name, secret = value.get("name", ""), value.get("token")
    if "token_env" in value:
        secret = os.environ.get(str(value["token_env"]))
        if secret is None:
            raise ConfigError(
                f"control plane token {name!r}", "token_env", f"names {value['token_env']!r}, which is not set", None
            )
    return Token(name, value.get("role", ""), secret, sha256=value.get("sha256"))


def tokens_of_environment(text: str | None = None) -> list[Token]:
    """The tokens in `EVERKEEL_CONTROL_TOKENS`: `name:role:secret`, several with commas."""
    text = os.environ.get(ENVIRONMENT, "") if text is None else text
    found = []
    for number, part in enumerate(filter(None, (one.strip() for one in text.split(","))), 1):
        pieces = part.split(":", 2)
        if len(pieces) != 3:
            raise ConfigError("control plane", ENVIRONMENT, f"must be name:role:token; part {number} is not", None)
        found.append(Token(*pieces))
    return found


class Tokens:
    """The tokens a plane knows."""

    def __init__(self, tokens: Iterable[Token | Mapping[str, Any]]) -> None:
        self._tokens = [read_token(token) for token in tokens]
        names = [token.name for token in self._tokens]
        for name in names:
            if names.count(name) > 1:
                raise ConfigError(
                    "control plane", "tokens", f"must have different names ({name!r} is there twice)", None
                )

    def __bool__(self) -> bool:
        return bool(self._tokens)

    def find(self, secret: str) -> Token | None:
        """Whose secret this is. Looks at all of them, whichever it is."""
        digest, found = _digest(secret), None
        for token in self._tokens:
            if hmac.compare_digest(token.digest, digest):
                found = token
        return found

    def named(self, name: str, mark: str) -> Token | None:
        """The token of this name, if it is still the same one."""
        for token in self._tokens:
            if token.name == name and hmac.compare_digest(_mark(token), mark):
                return token
        return None


def _mark(token: Token) -> str:
    return hashlib.sha256(b"session\0" + token.digest).hexdigest()[:16]


class Sessions:
    """Signed, expiring session cookies. Nothing is stored but the sessions that were ended early.

    The secret is random and this process's own: a restart ends every session, and no secret needs a place to live.
    """

    MOST_ENDED = 10_000

    def __init__(self, length: float) -> None:
        self.length = length
        self._secret = secrets.token_bytes(32)
        self._ended: dict[str, float] = {}

    def begin(self, principal: Principal, token: Token | None, now: float) -> str:
        """The cookie of a new session."""
        claims = {
            "id": secrets.token_hex(8),
            "name": principal.name,
            "role": str(principal.role),
            "token": None if token is None else _mark(token),
            "end": now + self.length,
        }
        payload = urlsafe_b64encode(json.dumps(claims).encode()).decode()
        return f"{payload}.{self._sign(payload)}"

    def read(self, cookie: str, tokens: Tokens, now: float) -> Principal | None:
        """Whose session this is; None where it was not signed here, is over, or its token is no longer known."""
        claims = self._claims(cookie)
        if claims is None or claims["end"] <= now or claims["id"] in self._ended:
            return None
        if claims["token"] is not None and tokens.named(claims["name"], claims["token"]) is None:
            return None
        return Principal(claims["name"], Role.of(claims["role"]))

    def end(self, cookie: str, now: float) -> None:
        """Let a session be over before its time."""
        claims = self._claims(cookie)
        if claims is None:
            return
        self._ended = {one: end for one, end in self._ended.items() if end > now}
        if len(self._ended) < self.MOST_ENDED:
            self._ended[claims["id"]] = claims["end"]
        else:  # nobody logs out so often: end all sessions rather than forget that one was ended
            self._secret, self._ended = secrets.token_bytes(32), {}

    def _sign(self, payload: str) -> str:
        return hmac.new(self._secret, payload.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()

    def _claims(self, cookie: str) -> dict[str, Any] | None:
        payload, _, signature = cookie.partition(".")
        if not hmac.compare_digest(self._sign(payload).encode(), signature.encode("utf-8", "surrogatepass")):
            return None
        claims: dict[str, Any] = json.loads(urlsafe_b64decode(payload))  # ours: the signature says so
        return claims
