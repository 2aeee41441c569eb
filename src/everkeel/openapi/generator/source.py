"""Writing Python source that cannot be anything but what was meant, already laid out as ruff formats it.

Values from a document are only ever written by `literal`, `docstring` and `comment`; names only after `naming.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["WIDTH", "assigned", "called", "comment", "docstring", "literal", "one_line", "prose"]

WIDTH = 120

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]+")


def text_literal(value: str) -> str:
    """A text as a literal in double quotes, every character that is not printable escaped."""
    body = value.encode("unicode_escape").decode("ascii") if _CONTROL.search(value) else value.replace("\\", "\\\\")
    if '"' in body and "'" not in body:
        return f"'{body}'"
    return '"' + body.replace('"', '\\"') + '"'


def literal(value: Any, indent: int = 0, room: int = WIDTH) -> str:
    """A JSON value as a Python literal; on several lines where it does not fit into `room` columns."""
    if value is None or isinstance(value, bool):
        return repr(value)
    if isinstance(value, str):
        return text_literal(value)
    if isinstance(value, int | float):
        if value != value or value in (float("inf"), float("-inf")):
            raise ValueError(f"no literal for {value!r}")
        return repr(value)
    if isinstance(value, Mapping):
        parts = [(f"{text_literal(str(key))}: ", item) for key, item in value.items()]
        return _bracketed("{", parts, "}", indent, room)
    if isinstance(value, tuple):
        return _bracketed("(", [("", item) for item in value], ")", indent, room)
    if isinstance(value, Sequence):
        return _bracketed("[", [("", item) for item in value], "]", indent, room)
    raise ValueError(f"no literal for a {type(value).__name__}")


def _bracketed(opening: str, parts: list[tuple[str, Any]], closing: str, indent: int, room: int) -> str:
    flat = opening + ", ".join(label + literal(item, 0, 10**6) for label, item in parts) + closing
    if len(flat) <= room or not parts:
        return flat
    inner = indent + 4
    pad = " " * inner
    lines = [f"{pad}{label}{literal(item, inner, WIDTH - inner - len(label) - 1)}," for label, item in parts]
    return opening + "\n" + "\n".join(lines) + "\n" + " " * indent + closing


def called(head: str, arguments: Sequence[str], tail: str = "", indent: int = 0) -> str:
    """`head(arguments)tail` on one line where it fits, else one argument to a line."""
    flat = f"{' ' * indent}{head}({', '.join(arguments)}){tail}"
    if len(flat) <= WIDTH and "\n" not in flat:
        return flat
    pad = " " * (indent + 4)
    together = f"{pad}{', '.join(arguments)}"
    if len(together) <= WIDTH and "\n" not in together:
        return f"{' ' * indent}{head}(\n{together}\n{' ' * indent}){tail}"
    lines = "".join(f"{pad}{argument},\n" for argument in arguments)
    return f"{' ' * indent}{head}(\n{lines}{' ' * indent}){tail}"


def assigned(name: str, value: Any, indent: int = 0) -> str:
    """`name = value`, as a literal."""
    return f"{' ' * indent}{name} = {literal(value, indent, WIDTH - indent - len(name) - 3)}"


def one_line(value: object, width: int = 100) -> str:
    """A text from a document, on one line, without anything that is not printable."""
    text = " ".join(_CONTROL.sub(" ", str(value)).split())
    return text if len(text) <= width else text[: width - 3].rstrip() + "..."


def docstring(value: object, indent: int = 4, otherwise: str = "") -> str:
    """A docstring of one line. Quotes and backslashes become what cannot end it."""
    text = one_line(value, WIDTH - indent - 8) or one_line(otherwise, WIDTH - indent - 8)
    return f'{" " * indent}"""{prose(text)}"""'


def prose(text: str) -> str:
    """A text that may stand between three quotes."""
    return text.replace("\\", "/").replace('"', "'")


def comment(value: object, indent: int = 0) -> str:
    """A comment of one line."""
    return f"{' ' * indent}# {one_line(value, WIDTH - indent - 2)}"
