"""JSON with the line of every key. The standard library reads the scalars; tables and lists are walked here, because it
tells neither where a key stands nor that one stands twice."""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from typing import Any

from everkeel.config.files import DEEPEST, UnreadableError
from everkeel.config.problems import Path

_SPACE = re.compile(r"[ \t\n\r]*")


def _refuse(word: str) -> Any:
    raise UnreadableError(f"has {word}, which is no number in JSON")


_SCALAR = json.JSONDecoder(parse_constant=_refuse)


def read_json(text: str) -> tuple[Any, dict[Path, int]]:
    """The data, and the line of every key."""
    walk = _Walk(text)
    value, end = walk.value(walk.skip(0), ())
    if walk.skip(end) != len(text):
        raise UnreadableError("has something behind its end", walk.line(walk.skip(end)))
    return value, walk.lines


class _Walk:
    def __init__(self, text: str) -> None:
        self.text, self.lines = text, dict[Path, int]()
        self._starts = [0, *(found.end() for found in re.finditer("\n", text))]

    def line(self, position: int) -> int:
        return bisect_right(self._starts, position)

    def skip(self, position: int) -> int:
        found = _SPACE.match(self.text, position)
        return position if found is None else found.end()

    def value(self, at: int, path: Path) -> tuple[Any, int]:
        if len(path) > DEEPEST:
            raise UnreadableError(f"is nested deeper than {DEEPEST} levels", self.line(at))
        self.lines.setdefault(path, self.line(at))
        begins = self.text[at : at + 1]
        if begins == "{":
            return self._table(at, path)
        if begins == "[":
            return self._list(at, path)
        return self._scalar(at)

    def _scalar(self, at: int) -> tuple[Any, int]:
        try:
            return _SCALAR.raw_decode(self.text, at)
        except json.JSONDecodeError as error:
            raise UnreadableError(f"is not JSON: {error.msg} at column {error.colno}", error.lineno) from None
        except UnreadableError as error:
            raise UnreadableError(error.reason, self.line(at)) from None
        except ValueError as error:  # a number of more digits than Python converts
            raise UnreadableError(f"is not JSON: {error}", self.line(at)) from None

    def _table(self, at: int, path: Path) -> tuple[dict[str, Any], int]:
        table: dict[str, Any] = {}
        at = self.skip(at + 1)
        while self.text[at : at + 1] != "}":
            begins = at
            if self.text[at : at + 1] != '"':
                raise UnreadableError("is not JSON: expected a key in double quotes", self.line(at))
            key, at = self._scalar(at)
            here = (*path, key)
            if key in table:
                first = self.lines[here]
                raise UnreadableError(f"stands twice, first in line {first}", self.line(begins), here)
            self.lines[here] = self.line(begins)
            at = self._expect(":", self.skip(at))
            table[key], at = self.value(self.skip(at), here)
            at = self._next(at, "}")
        return table, at + 1

    def _list(self, at: int, path: Path) -> tuple[list[Any], int]:
        items: list[Any] = []
        at = self.skip(at + 1)
        while self.text[at : at + 1] != "]":
            item, at = self.value(at, (*path, len(items)))
            items.append(item)
            at = self._next(at, "]")
        return items, at + 1

    def _next(self, at: int, end: str) -> int:
        """Behind a comma, where another item must follow, or at the end."""
        at = self.skip(at)
        if self.text[at : at + 1] == end:
            return at
        at = self.skip(self._expect(",", at))
        if self.text[at : at + 1] == end:
            raise UnreadableError("is not JSON: a comma with nothing behind it", self.line(at))
        return at

    def _expect(self, character: str, at: int) -> int:
        if self.text[at : at + 1] != character:
            raise UnreadableError(f"is not JSON: expected {character!r}", self.line(at))
        return at + 1
