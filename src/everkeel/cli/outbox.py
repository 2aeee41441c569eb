"""`everkeel outbox`: events on their way out of a running service."""

from __future__ import annotations

import argparse

from everkeel.cli.output import FINE, emit_json, emit_table
from everkeel.cli.policies import report, text
from everkeel.cli.remote import Remote, add_remote

ACTIONS = {
    "stats": "what waits, and how long it has waited",
    "pause": "publish nothing until it is resumed; nothing is lost",
    "resume": "publish again",
}


def add(parser: argparse.ArgumentParser) -> None:
    """The actions."""
    parser.add_argument("action", nargs="?", choices=ACTIONS, default="stats", help="what to do (default: stats)")
    listed = "\n".join(f"  {word:8} {what}" for word, what in ACTIONS.items())
    parser.epilog = f"actions:\n{listed}"
    add_remote(parser)


def run(args: argparse.Namespace) -> int:
    """Do it."""
    service = Remote.of(args)
    if args.action != "stats":
        answer = service.ask("POST", f"/outbox/{args.action}")
        return report(args, answer, "paused" if answer["paused"] else "running")
    answer = service.get("/outbox/stats")
    if args.json:
        emit_json(answer)
        return FINE
    relay = answer.pop("relay")
    topics = answer.pop("by_topic")
    emit_table([(name.replace("_", " "), text(value)) for name, value in answer.items()])
    emit_table([(f"topic {topic}", str(depth)) for topic, depth in topics.items()])
    print("relay: " + ("none in this process" if relay is None else "paused" if relay["paused"] else "running"))
    return FINE
