"""TOML with the line of most keys. The standard library reads it and says no word about lines, so they are looked for:
a header or a key at the beginning of a line. What it does not find has the line of the table around it."""

from __future__ import annotations

import re
import tomllib
from datetime import date, datetime, time
from typing import Any

from everkeel.config.files import UnreadableError
from everkeel.config.problems import Path

_HEADER = re.compile(r"\s*\[([^\[\]]+)\]\s*(#.*)?$")
_KEY = re.compile(r"""\s*((?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|"[^"]*"|'[^']*'))*)\s*=""")
_LINE = re.compile(r" \(at line (\d+), column (\d+)\)$")


def read_toml(text: str) -> tuple[Any, dict[Path, int]]:
    """The data, and the line of every key that begins one."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _LINE.search(str(error))
        reason = _LINE.sub("", str(error))
        raise UnreadableError(f"is not TOML: {reason}", int(found[1]) if found else None) from None
    except ValueError as error:  # a number of more digits than Python converts
        raise UnreadableError(f"is not TOML: {error}") from None
    return _plain(data), _lines(text, data)


def _lines(text: str, data: dict[str, Any]) -> dict[Path, int]:
    lines: dict[Path, int] = {}
    table: Path = ()
    for number, line in enumerate(text.splitlines(), 1):
        if found := _HEADER.match(line):
            path = table = _path(found[1])
        elif found := _KEY.match(line):
            path = (*table, *_path(found[1]))
        else:
            continue
        for end in range(1, len(path) + 1):  # `retry.fetch.attempts = 5` is where `retry` is, too
            if _is_there(data, path[:end]):  # a line of a text, or of a list, may look like a key
                lines.setdefault(path[:end], number)
    return lines


def _path(text: str) -> Path:
    try:
        inside: Any = tomllib.loads(f"{text} = 1")
    except tomllib.TOMLDecodeError:
        return ()
    path: list[str] = []
    while isinstance(inside, dict):
        ((key, inside),) = inside.items()
        path.append(key)
    return tuple(path)


def _is_there(data: Any, path: Path) -> bool:
    for key in path:
        if not isinstance(data, dict) or key not in data:
            return False
        data = data[key]
    return True


def _plain(value: Any) -> Any:
    """TOML's moments and times as the texts that the other formats have."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value.isoformat() if isinstance(value, datetime | date | time) else value
