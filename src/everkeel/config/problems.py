"""What is wrong with a configuration: all of it at once, each with its place, its value and what is allowed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypeAlias

Path: TypeAlias = tuple[str | int, ...]

_LONGEST = 80


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    >>> print(Problem("everkeel.yaml", 12, "retry.fetch.attempts", "must be at least 1", "0"))
    everkeel.yaml:12: retry.fetch.attempts must be at least 1 (got 0)
    """

    source: str
    """The file, or `environment`, or whatever else the value came from."""
    line: int | None
    """Counted from 1; None where nobody can tell."""
    path: str
    """The keys that lead there, with dots between; the variable's name in the environment."""
    message: str
    got: str | None = None
    """The value, as it was written."""

    def __str__(self) -> str:
        where = self.source if self.line is None else f"{self.source}:{self.line}"
        path = f" {self.path}" if self.path else ""
        got = "" if self.got is None else f" (got {self.got})"
        return f"{where}:{path} {self.message}{got}"


def shown(value: Any) -> str:
    """A value as a message shows it: not at any length."""
    text = repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def dotted_path(path: Path) -> str:
    """Keys as a message shows them: `pipelines.checkout[0].retry`; a key that has dots itself is in quotes."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            key = f'"{part}"' if "." in part else part
            text += f".{key}" if text else key
    return text


def did_you_mean(word: str, known: Iterable[str], otherwise: str = "", *, surely: bool = False) -> str:
    """A hint behind a message, where a known word is close enough."""
    close = get_close_matches(word, list(known), 1, cutoff=0.8 if surely else 0.6)
    return f"; did you mean {close[0]!r}?" if close else otherwise
