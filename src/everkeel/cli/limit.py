"""`everkeel limit`: the rate limits of a running service."""

from __future__ import annotations

import argparse

from everkeel.cli.policies import report, show_list, show_one, text
from everkeel.cli.remote import Remote, add_actions, add_remote, assignments, need, path_of

ACTIONS = {
    "list": "all rate limits",
    "show": "one, with its settings and numbers",
    "set": "change it: permits=100 per=1m",
    "drain": "grant nothing for --seconds; without, empty it and no longer",
}


def add(parser: argparse.ArgumentParser) -> None:
    """The actions, and what they need."""
    add_actions(
        parser, ACTIONS, "limit", "limit set search permits=50 per=10s", "limit drain search --seconds 30 --key acme"
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="the limit's name")
    parser.add_argument("settings", nargs="*", metavar="SETTING=VALUE", help="set: what to change")
    parser.add_argument("--key", help="drain: for this key alone")
    parser.add_argument("--seconds", type=float, help="drain: for so long")
    add_remote(parser)


def run(args: argparse.Namespace) -> int:
    """Do it."""
    service = Remote.of(args)
    if args.action == "list":
        return show_list(service, args, "rate_limit")
    need(args, "name")
    if args.action == "show":
        return show_one(service, args, "rate_limit", args.name)
    if args.action == "set":
        settings = assignments(args.settings)
        answer = service.ask("PUT", path_of("config", "rate_limit", args.name), settings)
        now = ", ".join(f"{name}={text(answer['settings'].get(name))}" for name in settings)
        return report(args, answer, f"rate_limit {args.name}: {now}")
    body = {name: value for name, value in (("seconds", args.seconds), ("key", args.key)) if value is not None}
    answer = service.ask("POST", path_of("control", "rate_limit", args.name, "drain"), body)
    return report(args, answer, f"rate_limit {args.name}: drained")
