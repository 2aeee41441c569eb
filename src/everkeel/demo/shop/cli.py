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
    from everkeel.demo.shop.view import View

NEEDS = {
    "httpx2": "httpx2", "starlette": "starlette", "uvicorn": "uvicorn", "yaml": "yaml",
    "prometheus_client": "prometheus",
}  # fmt: skip
"""What it imports, and the extra that brings it."""
ALSO = {"postgres": {"asyncpg": "asyncpg", "psycopg": "psycopg"}, "redis": {"redis": "redis"}}
"""What it needs for an engine or a transport."""
MOST = 200
"""Orders of a scenario: ten times as many come in a load spike, each a task in this process."""


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
        "--orders",
        type=int,
        default=12,
        metavar="N",
        help=f"how many orders a scenario has (default: 12; at most {MOST})",
    )
    parser.add_argument("--keep-running", action="store_true", help="begin again when it is over, until Ctrl+C")
    parser.add_argument("--json", action="store_true", help="the report as JSON, and nothing else")


def run(args: argparse.Namespace) -> int:
    """Play it; the exit status says whether the books are right."""
    needs = {**NEEDS, **ALSO.get(args.engine, {}), **ALSO.get(args.transport, {})}
    if any(find_spec(library) is None for library in needs):
        lacking = ", ".join(library for library in needs if find_spec(library) is None)
        raise CommandError(f"everkeel demo needs {lacking}: pip install 'everkeel[{','.join(needs.values())}]'")
    from everkeel.demo.shop.director import Report, direct
    from everkeel.demo.shop.scenarios import SCENARIOS
    from everkeel.demo.shop.view import View
    from everkeel.testing import servers

    if not 1 <= args.orders <= MOST:
        raise CommandError(f"--orders must be at least 1 and at most {MOST} (got {args.orders})", USAGE)
    for wanted, name in ((args.engine == "postgres", "postgres"), (args.transport == "redis", "redis")):
        if wanted and servers.missing(name):
            raise CommandError(f"{name} is not installed on this machine (`make servers` installs it)")
    view, report = View(quiet=args.json), Report(args.engine, args.transport)
    names = [name for name in SCENARIOS if not args.scenario or name in args.scenario]
    ended = 0
    try:
        play = direct(report, names, orders=args.orders, view=view, keep_running=args.keep_running)
        asyncio.run(_until_told(play))
    except KeyboardInterrupt:
        ended = signal.SIGINT
    except asyncio.CancelledError:
        ended = signal.SIGTERM
    except RuntimeError as error:  # a service or a server that does not start: its log says why
        raise CommandError(str(error)) from error
    _tell(report, view, as_json=args.json, ended=bool(ended))
    return 128 + ended if ended else FINE if report.right else NO


def _tell(report: Report, view: View, *, as_json: bool, ended: bool) -> None:
    """The end; where somebody ended it, as far as it came."""
    if as_json:
        print(report.as_json())
        return
    if report.outcomes:
        view.table(report.outcomes)
    if ended:
        view.interrupted(report.rounds)
    else:
        view.audited(report.checks, report.right)
        view.logged(report.logs)


async def _until_told(play: Coroutine[Any, Any, Report]) -> Report:
    """Whoever ends us with a signal must not leave services, servers and files behind."""
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    return await play
