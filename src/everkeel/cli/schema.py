"""`everkeel schema config`: JSON Schemas, for editors and for checks elsewhere."""

from __future__ import annotations

import argparse
from importlib import import_module

from everkeel.cli.output import FINE, emit_json

SCHEMAS = {"config": ("everkeel.config.schemas", "schema")}
"""What has a schema, and the function that makes it."""


def add(parser: argparse.ArgumentParser) -> None:
    """Which one."""
    parser.add_argument("what", choices=sorted(SCHEMAS), help="what the schema describes")


def run(args: argparse.Namespace) -> int:
    """Print it."""
    module, function = SCHEMAS[args.what]
    emit_json(getattr(import_module(module), function)())
    return FINE
