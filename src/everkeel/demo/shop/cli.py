"""`everkeel demo`: the shop, its bad days, and the books at the end."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import Coroutine
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from everkeel.cli.output import FINE, NO, USAGE, CommandError

if TYPE_CHECKING:
    from everkeel.demo.shop.director import Report

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
    view = View(quiet=args.json)
    names = [name for name in SCENARIOS if not args.scenario or name in args.scenario]
    try:
        play = direct(
            names, engine=args.engine, transport=args.transport, orders=args.orders, view=view,
            keep_running=args.keep_running,
        )  # fmt: skip
        report = asyncio.run(_until_told(play))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM
    except RuntimeError as error:  # a service or a server that does not start: its log says why
        raise CommandError(str(error)) from error
    if args.json:
        print(report.as_json())
    else:
        view.audited(report.checks, report.right)
        view.logged(report.logs)
    return FINE if report.right else NO


async def _until_told(play: Coroutine[Any, Any, Report]) -> Report:
    """Whoever ends us with a signal must not leave services, servers and files behind."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await play
