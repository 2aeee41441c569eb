"""Java's `.properties` format, read as `java.util.Properties` reads it: a file can be shared with Java services.

Not INI: a key may contain `[` and `/` and ends at the first unescaped `=`, `:` or blank, a value keeps its trailing
blanks, a backslash at the end of a line joins it with the next, and `\\u00e9` is a character.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_LINE_END = re.compile(r"\r\n|\r|\n")  # and no others: str.splitlines would also break at form feeds and the like
_BLANK = " \t\f"
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_HEX = re.compile(r"[0-9A-Fa-f]{4}")


def parse_properties(text: str) -> dict[str, str]:
    """The properties in `text`; of a key given twice, the last. ValueError names the line of a malformed escape.

    >>> parse_properties("# shared with the Java services\\nRetry/maxRetries = 2\\nTimeout/unit: SECONDS")
    {'Retry/maxRetries': '2', 'Timeout/unit': 'SECONDS'}
    """
    found: dict[str, str] = {}
    for number, line in _logical_lines(text):
        key, value = _split(line)
        try:
            found[_unescape(key)] = _unescape(value)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    return found


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines as they are meant: joined where one ends in a backslash, without comments and blank ones."""
    parts: list[str] = []
    first = 0
    for number, natural in enumerate(_LINE_END.split(text), 1):
        line = natural.lstrip(_BLANK)
        if not parts:
            if not line or line[0] in "#!":  # a comment cannot be continued, and a continuation cannot be a comment
                continue
            first = number
        backslashes = len(line) - len(line.rstrip("\\"))
        if backslashes % 2:
            parts.append(line[:-1])
            continue
        yield first, "".join(parts) + line
        parts = []
    if any(parts):
        yield first, "".join(parts)  # the file ends in a backslash


def _split(line: str) -> tuple[str, str]:
    end = 0
    while end < len(line) and line[end] not in "=:" and line[end] not in _BLANK:
        end += 2 if line[end] == "\\" else 1
    rest = line[end:].lstrip(_BLANK)
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(_BLANK)
    return line[:end], rest


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    parts: list[str] = []
    at = 0
    while at < len(text):
        character = text[at]
        at += 1
        if character != "\\":
            parts.append(character)
            continue
        escaped = text[at : at + 1]
        at += 1
        if escaped == "u":
            digits = _HEX.match(text, at)
            if digits is None:
                raise ValueError(f"\\u must be followed by four hexadecimal digits (got {text[at : at + 4]!r})")
            parts.append(chr(int(digits.group(), 16)))
            at += 4
        else:
            parts.append(_ESCAPES.get(escaped, escaped))
    # Characters beyond the first plane are written as two escapes, a surrogate pair: one character in Python.
    return "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
