"""Finds the command, lets its module add its arguments, runs it, and turns trouble into one line and an exit code."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence

import everkeel
from everkeel.cli.commands import COMMANDS, load
from everkeel.cli.output import INTERRUPTED, NO, USAGE, CommandError, complain, paint
from everkeel.errors import EverkeelError


def main(argv: Sequence[str] | None = None) -> int:
    """Run `everkeel` with these arguments (default: those of the process); answers the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _reader_left()
    except CommandError as error:
        return _failed(error, error.code)
    except EverkeelError as error:
        return _failed(error, NO)
    except (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError) as error:
        return _failed(f"{error.strerror}: {error.filename!r}" if error.filename else error, NO)


def _run(arguments: list[str]) -> int:
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    known = chosen if chosen in COMMANDS else None
    if chosen is not None and known is None:
        raise CommandError(f"no command {chosen!r}{_meant(chosen)}", USAGE)
    parser = build([known] if known else [])
    try:
        args = parser.parse_args(arguments)
    except SystemExit as end:  # argparse has said why, or has shown its help
        return end.code if isinstance(end.code, int) else USAGE
    if known is None:
        parser.print_help(sys.stderr)
        return USAGE
    code = load(known).run(args)
    sys.stdout.flush()  # a reader that has left is noticed here, not while the interpreter ends
    return code


def build(filled: Iterable[str]) -> argparse.ArgumentParser:
    """The parser, with the arguments of some commands filled in: the others' modules are not imported."""
    filled = set(filled)
    parser = argparse.ArgumentParser(
        prog="everkeel",
        description="Resilience for Python services: configuration, checks and tools.",
        epilog="Exit codes: 0 fine, 1 the answer is no or something failed, 2 wrong usage.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"everkeel {everkeel.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")
    for name, command in sorted(COMMANDS.items()):
        one = commands.add_parser(name, help=command.help, description=_sentence(command.help), allow_abbrev=False)
        if name in filled:
            load(name).add(one)
    return parser


def _meant(word: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(word, COMMANDS, 1)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(sorted(COMMANDS))}"


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def _failed(error: object, code: int) -> int:
    complain(f"{paint('everkeel:', 'red', sys.stderr)} {error}")
    return code


def _reader_left() -> int:
    """`everkeel config show | head`: nobody wants the rest, and that is no error worth a message."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + 13  # as if SIGPIPE had ended it, which is what shells expect
