"""`everkeel policies`: see the policies of a running service, and let them act, watch or be off."""

from __future__ import annotations

import argparse
from typing import Any

from everkeel.cli.output import FINE, emit_json, emit_table, paint
from everkeel.cli.remote import Remote, add_actions, add_remote, need, path_of, printable

ACTIONS = {
    "list": "all of them, or those that --type, --name, --mode and --state let through",
    "show": "one, with its settings and numbers",
    "enable": "let it act",
    "disable": "switch it off: its calls are plain calls",
    "shadow": "let it only watch, and count what it would have done",
    "reset": "let its counters begin at zero",
}


def add(parser: argparse.ArgumentParser) -> None:
    """The actions, and what they need."""
    add_actions(
        parser,
        ACTIONS,
        "policies --state open",
        "policies show retry orders.fetch",
        "policies shadow rate_limit search",
    )
    parser.add_argument("type", nargs="?", metavar="TYPE", help="such as retry or circuit_breaker")
    parser.add_argument("name", nargs="?", metavar="NAME", help="the policy's name")
    for what in ("type", "name", "mode", "state"):
        parser.add_argument(f"--{what}", dest=f"only_{what}", metavar=what.upper(), help=f"list: only this {what}")
    add_remote(parser)


def run(args: argparse.Namespace) -> int:
    """Do it."""
    service = Remote.of(args)
    if args.action == "list":
        return show_list(service, args, args.only_type or args.type)
    need(args, "type", "name")
    if args.action == "show":
        return show_one(service, args, args.type, args.name)
    if args.action == "reset":
        answer = service.ask("DELETE", path_of("metrics", args.type, args.name))
        done = "its counters begin at zero"
    else:
        answer = service.ask("POST", path_of("control", args.type, args.name, args.action))
        done = f"{answer['changed']['before'].get('mode')} -> {painted(answer['mode'])}"
    return report(args, answer, f"{args.type} {args.name}: {done}")


def report(args: argparse.Namespace, answer: Any, line: str) -> int:
    """The answer as JSON on request, and one line otherwise."""
    if args.json:
        emit_json(answer)
    else:
        print(line)
    return FINE


def show_list(service: Remote, args: argparse.Namespace, policy_type: str | None) -> int:
    """A table, with calls per second where the service shows numbers."""
    query = {what: getattr(args, f"only_{what}", None) for what in ("name", "mode", "state")}
    answer = service.get("/policies", type=policy_type, **query)
    if args.json:
        emit_json(answer)
    elif not answer["policies"]:
        print("no policies" + (" fit" if policy_type or any(query.values()) else ""))
    else:
        rows = [("TYPE", "NAME", "MODE", "STATE")]
        found = answer["policies"]
        rows += [(one["type"], text(one["name"]), one["mode"], painted(one["state"] or "")) for one in found]
        emit_table(rows)
    return FINE


def show_one(service: Remote, args: argparse.Namespace, policy_type: str, name: str) -> int:
    """Its settings with their sources, then its numbers."""
    policy = service.get(path_of("policies", policy_type, name))
    settings = service.get(path_of("config", policy_type, name))
    numbers = service.get(path_of("metrics", policy_type, name))
    if args.json:
        emit_json({**policy, "sources": settings["sources"], "metrics": numbers["metrics"]})
        return FINE
    state = f", {painted(policy['state'])}" if policy["state"] else ""
    print(f"{paint(f'{policy_type} {name}', 'bold')}: {painted(policy['mode'])}{state}")
    print_settings(settings)
    print(paint("numbers", "bold"))
    emit_table([(key, text(value)) for key, value in numbers["metrics"].items() if key != "mode"], indent="  ")
    if policy["shut_keys"]:
        print(paint("keys", "bold"))
        emit_table([(text(key), painted(one)) for key, one in policy["shut_keys"].items()], indent="  ")
    return FINE


def print_settings(config: Any) -> None:
    """Settings, each with where it comes from."""
    print(paint("settings", "bold"))
    rows = [(name, text(value), config["sources"].get(name, "")) for name, value in config["settings"].items()]
    emit_table(rows, indent="  ")


def text(value: Any) -> str:
    """A value on one line."""
    import json

    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


_COLOURS = {"open": "red", "off": "red", "half_open": "yellow", "shadow": "yellow", "closed": "green"}


def painted(word: str) -> str:
    """A mode or a state in its colour, on a terminal."""
    return paint(word, _COLOURS[word]) if word in _COLOURS else word
