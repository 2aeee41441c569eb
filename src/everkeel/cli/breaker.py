"""`everkeel breaker`: the circuits of a running service, by hand."""

from __future__ import annotations

import argparse

from everkeel.cli.policies import painted, report, show_list, show_one
from everkeel.cli.remote import Remote, add_actions, add_remote, need, path_of

ACTIONS = {
    "list": "all circuit breakers",
    "show": "one, with its settings, numbers, and keys that are not closed",
    "open": "reject every call until told otherwise (force_open)",
    "force-closed": "let every call pass until told otherwise, whatever happens",
    "half-open": "let a few probes find out now",
    "close": "close it; from then on it judges as ever",
    "reset": "close it and forget what it saw",
}
_WORDS = {"open": "force_open", "force-closed": "force_closed", "half-open": "half_open"}


def add(parser: argparse.ArgumentParser) -> None:
    """The actions, and what they need."""
    add_actions(parser, ACTIONS, "breaker --state open", "breaker open payments", "breaker reset tenants --key acme")
    parser.add_argument("name", nargs="?", metavar="NAME", help="the breaker's name")
    parser.add_argument("--key", help="one circuit of a breaker that has one for each key")
    parser.add_argument("--state", dest="only_state", metavar="STATE", help="list: only this state")
    add_remote(parser)


def run(args: argparse.Namespace) -> int:
    """Do it."""
    service = Remote.of(args)
    if args.action == "list":
        return show_list(service, args, "circuit_breaker")
    need(args, "name")
    if args.action == "show":
        return show_one(service, args, "circuit_breaker", args.name)
    path = path_of("control", "circuit_breaker", args.name, _WORDS.get(args.action, str(args.action)))
    answer = service.ask("POST", path, None if args.key is None else {"key": args.key})
    change = answer["changed"]
    key = "" if args.key is None else f" [{args.key}]"
    before, after = change["before"].get("state"), change["after"].get("state")
    return report(args, answer, f"circuit_breaker {args.name}{key}: {before or 'new'} -> {painted(str(after))}")
