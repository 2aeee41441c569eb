"""`everkeel events`: what happens in a running service, as it happens."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from everkeel.cli.output import FINE, NO, complain, paint
from everkeel.cli.remote import Remote, add_remote, printable

_BAD = ("opened", "rejected", "gave_up", "timed_out", "lost")


def add(parser: argparse.ArgumentParser) -> None:
    """What to listen for."""
    parser.add_argument("--type", help="only of policies of this type")
    parser.add_argument("--name", help="only of policies whose name fits this pattern: 'orders.*'")
    parser.add_argument("--event", help="only these events: 'circuit_*'")
    parser.add_argument("--count", type=int, metavar="N", help="stop after so many")
    parser.epilog = (
        "Frequent events (rejected calls, retries) are told once per quarter of a second, with their number;\n"
        "successful calls are not told. With --json, one object per line.\n\n"
        "examples:\n  everkeel events --event 'circuit_*'\n"
        "  everkeel events --type rate_limit --json | jq .count"
    )
    add_remote(parser)


def run(args: argparse.Namespace) -> int:
    """Print until interrupted, or until the service ends it."""
    service = Remote.of(args)
    query = {"type": args.type, "name": args.name, "event": args.event}
    left = args.count
    again = True
    while again:
        again = False
        for kind, data in service.follow("/events", query):
            if kind != "happened":  # dropped, or bye
                again = data.get("again", False)
                if not again:
                    complain(f"the stream ended: {data['reason']}")
                break
            print(json.dumps(data, ensure_ascii=False) if args.json else _line(data))
            sys.stdout.flush()
            left = None if left is None else left - 1
            if left is not None and left <= 0:
                return FINE
    return NO


def _line(data: dict[str, Any]) -> str:
    event = data["event"]
    word = paint(event, "red") if event.endswith(_BAD) else paint(event, "bold")
    who = printable(" ".join(str(one) for one in (data["type"], data["name"]) if one is not None))
    key = "" if data["key"] is None else printable(f" [{data['key']}]")
    times = f" x{data['count']}" if data["count"] > 1 else ""
    details = printable(" ".join(f"{name}={value}" for name, value in data["details"].items() if value is not None))
    return f"{paint(data['time'], 'dim')} {word}{times} {who}{key} {paint(details, 'dim')}".rstrip()
