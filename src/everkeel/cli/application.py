"""`--import` and `--app`: the user's own code, imported because the user said so and for no other reason."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import Any

from everkeel.cli.output import NO, USAGE, CommandError
from everkeel.errors import EverkeelError


def add_application(parser: argparse.ArgumentParser) -> None:
    """The two options, for commands that need to know the application's policies."""
    parser.add_argument(
        "--import", dest="modules", action="append", default=[], metavar="MODULE", help="import this module first"
    )
    parser.add_argument(
        "--app", metavar="MODULE:ATTRIBUTE", help="import this application first, as a server would: shop.main:app"
    )


def import_application(args: argparse.Namespace) -> bool:
    """Import what was asked for, from the working directory too; answers whether there was anything."""
    names = list(args.modules)
    if args.app is not None:
        load_attribute(args.app)
    for name in names:
        import_module(name)
    return bool(names or args.app)


def load_attribute(name: str) -> Any:
    """What `module:attribute` stands for."""
    module, colon, attribute = name.partition(":")
    if not colon or not module or not attribute:
        raise CommandError(f"must be written module:attribute, as in shop.main:app (got {name!r})", USAGE)
    found: Any = import_module(module)
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise CommandError(f"module {module!r} has no {attribute!r}")
        found = getattr(found, part)
    return found


def import_module(name: str) -> Any:
    """A module of the user's; what goes wrong in it is one line that says so."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does; a command that was installed does not
    try:
        return importlib.import_module(name)
    except EverkeelError:
        raise
    except Exception as error:
        raise CommandError(f"importing {name!r} failed: {type(error).__name__}: {error}", NO) from error
