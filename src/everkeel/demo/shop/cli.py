"""`everkeel demo`: the shop, its bad days, and the books at the end."""

from __future__ import annotations

import argparse
import asyncio
import logging
from importlib.util import find_spec

from everkeel.cli.output import FINE, NO, USAGE, CommandError

NEEDS = ("httpx2", "starlette", "uvicorn", "yaml")  # each is an extra of the same name


def add(parser: argparse.ArgumentParser) -> None:
    """What may be chosen."""
    from everkeel.demo.shop.scenarios import SCENARIOS

    parser.add_argument(
        "--engine", choices=("sqlite", "postgres"), default="sqlite", help="where each service keeps its data"
    )
    parser.add_argument(
        "--transport", choices=("sqlite", "redis", "memory"), default="sqlite",
        help="how events travel; memory: all services in one process, and none can be killed",
    )  # fmt: skip
    parser.add_argument(
        "--scenario",
        action="append",
        choices=sorted(SCENARIOS),
        metavar="NAME",
        help=f"only this one (several may be given): {', '.join(SCENARIOS)}",
    )
    parser.add_argument(
        "--orders", type=int, default=12, metavar="N", help="how many orders a scenario has (default: 12)"
    )
    parser.add_argument("--keep-running", action="store_true", help="begin again when it is over, until Ctrl+C")
    parser.add_argument("--json", action="store_true", help="the report as JSON, and nothing else")


def run(args: argparse.Namespace) -> int:
    """Play it; the exit status says whether the books are right."""
    if lacking := [library for library in NEEDS if find_spec(library) is None]:
        raise CommandError(f"everkeel demo needs {', '.join(lacking)}: pip install everkeel[{','.join(NEEDS)}]")
    from everkeel.demo.shop.director import direct
    from everkeel.demo.shop.scenarios import SCENARIOS
    from everkeel.demo.shop.view import View
    from everkeel.testing import servers

    if args.orders < 1:
        raise CommandError("--orders must be at least 1", USAGE)
    for wanted, name in ((args.engine == "postgres", "postgres"), (args.transport == "redis", "redis")):
        if wanted and servers.missing(name):
            raise CommandError(f"{name} is not installed on this machine (`make servers` installs it)")
    if args.json:
        logging.disable(logging.CRITICAL)
    view = View(quiet=args.json)
    names = [name for name in SCENARIOS if not args.scenario or name in args.scenario]
    try:
        report = asyncio.run(
            direct(
                names, engine=args.engine, transport=args.transport, orders=args.orders, view=view,
                keep_running=args.keep_running,
            )
        )  # fmt: skip
    except KeyboardInterrupt:
        return 130
    if args.json:
        print(report.as_json())
    else:
        view.audited(report.checks, report.right)
    return FINE if report.right else NO
