"""The table `control` of a file: options of the control plane, which takes them when it is made.

They are checked with the rest of the file, so that a role nobody has is found before a deployment and not by it. What a
token is stays out of every message.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everkeel.config.files import Document
from everkeel.config.problems import Path, did_you_mean

CONTROL = "control"
ROLES = ("viewer", "operator", "admin")
SHORTEST_TOKEN = 16
_FLAGS = ("enable_control", "enable_metrics", "public_readiness")
_SECRETS = ("token", "token_env", "sha256")
OPTIONS = (*_FLAGS, "readiness", "tokens")

_PATTERN = {"type": "string", "pattern": "/"}
_TOKEN: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name", "role"],
    "properties": {
        "name": {"type": "string", "minLength": 1, "description": "who it is, for the audit log"},
        "role": {"enum": list(ROLES)},
        "token": {"type": "string", "minLength": SHORTEST_TOKEN, "description": "the secret itself"},
        "token_env": {"type": "string", "minLength": 1, "description": "the environment variable that has the secret"},
        "sha256": {"type": "string", "pattern": "^[0-9a-fA-F]{64}$", "description": "the secret's digest"},
    },
    "oneOf": [{"required": [one]} for one in _SECRETS],
}
SCHEMA: dict[str, Any] = {
    "type": ["object", "null"],
    "additionalProperties": False,
    "description": "options of the control plane: its tokens above all",
    "properties": {
        **{flag: {"type": "boolean"} for flag in _FLAGS},
        "readiness": {
            "anyOf": [_PATTERN, {"type": "array", "items": _PATTERN}],
            "description": "which policies make the service unready while they are open, as circuit_breaker/payments",
        },
        "tokens": {"type": "array", "items": _TOKEN},
    },
}


def read_control(document: Document) -> None:
    """Check the table; what is wrong joins the document's problems."""
    table = document.data.get(CONTROL)
    if table is None:
        return
    if not isinstance(table, Mapping):
        document.wrong((CONTROL,), f"must be a table of {', '.join(OPTIONS)}")
        return
    for name, value in table.items():
        path: Path = (CONTROL, name)
        if name not in OPTIONS:
            hint = did_you_mean(str(name), OPTIONS, f"; it has {', '.join(OPTIONS)}")
            document.wrong(path, f"is no option of the control plane{hint}")
        elif name in _FLAGS and not isinstance(value, bool):
            document.wrong(path, "must be true or false", value)
        elif name == "readiness":
            _read_readiness(document, path, value)
        elif name == "tokens":
            _read_tokens(document, path, value)


def _read_readiness(document: Document, path: Path, value: Any) -> None:
    patterns = value if isinstance(value, list) else [value]
    if not all(isinstance(pattern, str) and "/" in pattern for pattern in patterns):
        document.wrong(path, "must be patterns of type/name, such as circuit_breaker/payments", value)


def _read_tokens(document: Document, path: Path, value: Any) -> None:
    if not isinstance(value, list):
        document.wrong(path, "must be a list of tables, each with name, role, and token, token_env or sha256")
        return
    names: list[str] = []
    for number, token in enumerate(value):
        here = (*path, number)
        if not isinstance(token, Mapping):
            document.wrong(here, "must be a table with name, role, and token, token_env or sha256")
            continue
        for key in token:
            if key not in ("name", "role", *_SECRETS):
                document.wrong((*here, key), f"is nothing a token has; it has name, role, {', '.join(_SECRETS)}")
        _read_token(document, here, token)
        if token.get("name") in names:
            document.wrong((*here, "name"), "must be different for each token", token["name"])
        names.append(token.get("name", ""))


def _read_token(document: Document, path: Path, token: Mapping[str, Any]) -> None:
    name, role = token.get("name"), token.get("role")
    if not isinstance(name, str) or not name:
        document.wrong((*path, "name"), "must be a text that is not empty", name)
    if not isinstance(role, str) or role.lower() not in ROLES:
        document.wrong((*path, "role"), f"must be one of {', '.join(ROLES)}", role)
    given = [word for word in _SECRETS if token.get(word) is not None]
    if len(given) != 1:
        document.wrong(path, "must have exactly one of token, token_env and sha256")
        return
    secret = token[given[0]]
    if not isinstance(secret, str) or not secret:
        document.wrong((*path, given[0]), "must be a text that is not empty")
    elif given == ["token"] and len(secret) < SHORTEST_TOKEN:
        document.wrong((*path, "token"), f"must have at least {SHORTEST_TOKEN} characters")
    elif given == ["sha256"] and (len(secret) != 64 or not set(secret.lower()) <= set("0123456789abcdef")):
        document.wrong((*path, "sha256"), "must be 64 hexadecimal digits")
