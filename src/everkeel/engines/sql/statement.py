"""A store's operation as a generator of statements: written once, run by sync and async connections alike.

    def _touch(seqs: list[int]) -> Operation[int]:
        rows = yield Statement("UPDATE ... WHERE seq = ANY(:seqs) RETURNING seq", {"seqs": seqs})
        return len(rows)

Parameters are written `:name`; each driver gets them in its own style.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar

T = TypeVar("T")

Rows: TypeAlias = Sequence[Sequence[Any]]
Style: TypeAlias = Literal["named", "dollar", "pyformat"]


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL and the values of its parameters."""

    text: str
    values: Mapping[str, Any] = field(default_factory=dict)


Operation: TypeAlias = Generator[Statement, Rows, T]


class How(TypedDict, total=False):
    """What an engine is told about an operation besides what to do; each engine looks at what matters to it."""

    write: bool
    """False: it only reads, and need not wait for writers."""
    atomic: bool
    """True: it is more than one statement, and all of them count or none."""
    durable: bool
    """False: it is not waited for until it is on the disk. For leases, which nobody holds any more after the power
    failed; a process that dies loses nothing."""


observers: list[Callable[[str], object]] = []
"""Told the text of every statement that is run; for tests that count them."""

_PARAMETER = re.compile(r"(?<![:\w]):([a-z_][a-z0-9_]*)")


@lru_cache(maxsize=512)
def _rendered(text: str, style: Style) -> tuple[str, tuple[str, ...]]:
    names: list[str] = []

    def dollar(match: re.Match[str]) -> str:
        name = match[1]
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    if style == "dollar":
        return _PARAMETER.sub(dollar, text), tuple(names)
    if style == "pyformat":
        return _PARAMETER.sub(r"%(\1)s", text.replace("%", "%%")), ()
    return text, ()


def rendered(statement: Statement, style: Style) -> tuple[str, Any]:
    """The text in a driver's own style, and its parameters: a tuple for `$1`, otherwise a mapping.

    >>> rendered(Statement("SELECT :a::int + :b + :a", {"a": 1, "b": 2}), "dollar")
    ('SELECT $1::int + $2 + $1', (1, 2))
    >>> rendered(Statement("SELECT :a % 2", {"a": 1}), "pyformat")
    ('SELECT %(a)s %% 2', {'a': 1})
    """
    text, names = _rendered(statement.text, style)
    if style == "dollar":
        return text, tuple(statement.values[name] for name in names)
    return text, dict(statement.values)


def one(statement: Statement) -> Operation[Rows]:
    """The operation that is one statement, answering its rows."""
    return (yield statement)
