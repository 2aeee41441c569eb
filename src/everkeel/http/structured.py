"""Structured fields (RFC 9651) as far as our headers need them: lists of items with parameters, and their writing.

What does not parse is None as a whole, as the standard asks: half a field must not be taken for the field. Inner lists
occur in none of our headers and count as malformed. Nothing here raises on what a peer sent.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

_LONGEST = 8192  # more than any server sends in earnest; what is longer is not looked at

_SPACES = re.compile(r"[ \t]*")
_KEY = re.compile(r"[a-z*][a-z0-9_\-.*]*")
_NUMBER = re.compile(r"-?(?:[0-9]{1,12}\.[0-9]{1,3}(?![0-9.])|[0-9]{1,15}(?![0-9.]))")
_STRING = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])*)"')
_TOKEN = re.compile(r"[A-Za-z*][!#$%&'*+\-.^_`|~0-9A-Za-z:/]*")
_BYTES = re.compile(r":([A-Za-z0-9+/=]*):")
_BOOLEAN = re.compile(r"\?([01])")
_DATE = re.compile(r"@(-?[0-9]{1,15})(?![0-9.])")
_ESCAPED = re.compile(r"\\(.)")
_PRINTABLE = re.compile(r"[ -~]*")

Bare: TypeAlias = str | int | float | bool
"""A value. Tokens, byte sequences (still in base64) and strings are all text to us; a date is its number."""


class Item(NamedTuple):
    """A value with its parameters: `"default";r=50;t=30`."""

    value: Bare
    parameters: Mapping[str, Bare]


def parse_list(text: str) -> tuple[Item, ...] | None:
    """The items of a list; None where any part of it is malformed.

    >>> parse_list('"default";r=50;t=30, "daily";r=7')[1]
    Item(value='daily', parameters={'r': 7})
    >>> parse_list('"default";r=') is None
    True
    """
    reader = _Reader(text)
    items: list[Item] = []
    while not reader.at_end():
        value = reader.bare()
        parameters = None if value is None else reader.parameters()
        if value is None or parameters is None or not reader.comma():
            return None
        items.append(Item(value, parameters))
    return None if reader.broken else tuple(items)


def parse_dictionary(text: str) -> dict[str, Bare] | None:
    """A dictionary's values by key, their parameters left out; None where any part of it is malformed.

    >>> parse_dictionary("limit=100, remaining=50, reset=30")
    {'limit': 100, 'remaining': 50, 'reset': 30}
    """
    reader = _Reader(text)
    entries: dict[str, Bare] = {}
    while not reader.at_end():
        key = reader.take(_KEY)
        value: Bare | None = True
        if key is not None and reader.literal("="):
            value = reader.bare()
        if key is None or value is None or reader.parameters() is None or not reader.comma():
            return None
        entries[key] = value
    return None if reader.broken else entries


def parse_string(text: str) -> str | None:
    """A field that is one string, whatever its parameters; None where it is not one.

    >>> parse_string('"8e03978e-40d5"')
    '8e03978e-40d5'
    """
    items = parse_list(text)
    if items is None or len(items) != 1 or not text.lstrip(" \t").startswith('"'):
        return None
    return str(items[0].value)


def write_string(value: str) -> str:
    r"""A string as a field has it. ValueError for what it cannot hold: anything but printable ASCII.

    >>> print(write_string('say "hi"'))
    "say \"hi\""
    """
    if _PRINTABLE.fullmatch(value) is None:
        raise ValueError(f"must be printable ASCII to stand in a header (got {value!r})")
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


class _Reader:
    """A position in the text, which only moves forward."""

    __slots__ = ("at", "broken", "text")

    def __init__(self, text: str) -> None:
        self.text = text.strip(" \t")
        self.at = 0
        self.broken = len(self.text) > _LONGEST

    def at_end(self) -> bool:
        return self.broken or self.at >= len(self.text)

    def take(self, pattern: re.Pattern[str]) -> str | None:
        """What matches here, or its group if it has one."""
        found = pattern.match(self.text, self.at)
        if found is None:
            return None
        self.at = found.end()
        return found[pattern.groups]

    def literal(self, character: str) -> bool:
        if not self.text.startswith(character, self.at):
            return False
        self.at += 1
        return True

    def comma(self) -> bool:
        """Past what separates two members; False where something else stands here, or nothing follows the comma."""
        self.take(_SPACES)
        if self.at_end():
            return True
        if not self.literal(","):
            return False
        self.take(_SPACES)
        return not self.at_end()

    def bare(self) -> Bare | None:
        first = self.text[self.at : self.at + 1]
        if first == '"':
            text = self.take(_STRING)
            return None if text is None else _ESCAPED.sub(r"\1", text)
        if first == ":":
            return self.take(_BYTES)
        if first == "?":
            flag = self.take(_BOOLEAN)
            return None if flag is None else flag == "1"
        if first == "@":
            date = self.take(_DATE)
            return None if date is None else int(date)
        if first == "-" or ("0" <= first <= "9"):
            number = self.take(_NUMBER)
            return None if number is None else float(number) if "." in number else int(number)
        return self.take(_TOKEN)

    def parameters(self) -> dict[str, Bare] | None:
        found: dict[str, Bare] = {}
        while self.literal(";"):
            self.take(_SPACES)
            key = self.take(_KEY)
            if key is None:
                return None
            value = self.bare() if self.literal("=") else True
            if value is None:
                return None
            found[key] = value
        return found
