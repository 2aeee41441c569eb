"""`everkeel schema config`: JSON Schemas, for editors and checks. `everkeel schema sql`: tables as SQL."""

from __future__ import annotations

import argparse
from importlib import import_module

from everkeel.cli.output import FINE, emit_json

SCHEMAS = {"config": ("everkeel.config.schemas", "schema")}
"""What has a JSON Schema, and the function that makes it."""

TABLES = {"postgresql": "everkeel.engines.postgres.schema", "sqlite": "everkeel.engines.sqlite.schema"}
"""Whose tables can be printed, and the module that knows them."""


def add(parser: argparse.ArgumentParser) -> None:
    """Which one."""
    kinds = parser.add_subparsers(dest="what", required=True, metavar="|".join(sorted([*SCHEMAS, "sql"])))
    for name in sorted(SCHEMAS):
        kinds.add_parser(name, help=f"the JSON Schema of {name}")
    tables = kinds.add_parser("sql", help="the tables of an engine, for those who run their migrations themselves")
    tables.add_argument("dialect", choices=sorted(TABLES), help="whose SQL")


def run(args: argparse.Namespace) -> int:
    """Print it."""
    if args.what == "sql":
        print(import_module(TABLES[args.dialect]).sql(), end="")
        return FINE
    module, function = SCHEMAS[args.what]
    emit_json(getattr(import_module(module), function)())
    return FINE
