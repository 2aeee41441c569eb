"""How every command speaks: results on standard output (as JSON on request), trouble as one line on standard error.

Exit codes, the same for every command:

    0    it is done, or the answer is yes
    1    the answer is no: problems were found, or it could not be done
    2    the command line is wrong
    130  interrupted from the keyboard
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from everkeel.errors import EverkeelError

FINE, NO, USAGE, INTERRUPTED = 0, 1, 2, 130

_CODES = {"red": "31", "green": "32", "yellow": "33", "blue": "34", "bold": "1", "dim": "2"}


class CommandError(EverkeelError):
    """A command cannot do what was asked: `everkeel: <message>` on standard error, and the exit code.

    >>> raise CommandError("no such file: 'orders.yaml'")
    Traceback (most recent call last):
    everkeel.cli.output.CommandError: no such file: 'orders.yaml'
    """

    def __init__(self, message: str, code: int = NO) -> None:
        super().__init__(message, code)

    @property
    def policy(self) -> None:
        """None: no policy raised this."""
        return None

    @property
    def code(self) -> int:
        """The exit code."""
        return int(self.args[1])

    def __str__(self) -> str:
        return str(self.args[0])


def add_json(parser: argparse.ArgumentParser) -> None:
    """`--json`, for commands whose answer programs may want to read."""
    parser.add_argument("--json", action="store_true", help="answer as JSON")


def emit_json(value: Any) -> None:
    """The whole answer as JSON."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def emit_table(rows: Sequence[Sequence[str]], *, indent: str = "") -> None:
    """Rows whose columns line up, the last one ragged."""
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(len(rows[0]) - 1)] if rows else []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=False)]
        print((indent + "  ".join([*cells, row[-1]])).rstrip())


def complain(lines: Iterable[str] | str) -> None:
    """Lines on standard error."""
    for line in (lines,) if isinstance(lines, str) else lines:
        print(line, file=sys.stderr)


def coloured(stream: TextIO) -> bool:
    """May colours be used there? On a terminal only, and not where NO_COLOR is set (https://no-color.org)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()


def paint(text: str, colour: str, stream: TextIO | None = None) -> str:
    """`text` in a colour (red, green, yellow, blue, bold, dim) where the stream can show it."""
    if not coloured(stream or sys.stdout):
        return text
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m"
