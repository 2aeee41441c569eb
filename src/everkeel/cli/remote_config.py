"""`everkeel config get|set|audit|rollback`: the settings of a running service, and who changed them."""

from __future__ import annotations

import argparse
from typing import Any

from everkeel.cli.output import FINE, emit_json, emit_table
from everkeel.cli.policies import print_settings, report, text
from everkeel.cli.remote import Remote, add_remote, assignments, path_of

ACTIONS = ("get", "set", "audit", "rollback")


def add_actions(actions: Any) -> None:
    """The actions that need a running service."""
    get = actions.add_parser("get", help="the settings of a policy of a running service", allow_abbrev=False)
    set_ = actions.add_parser("set", help="change settings in a running service, all or none", allow_abbrev=False)
    for one in (get, set_):
        one.add_argument("type", metavar="TYPE", help="such as retry")
        one.add_argument("name", metavar="NAME", help="the policy's name")
    set_.add_argument("settings", nargs="+", metavar="SETTING=VALUE", help="what to change: attempts=5")
    set_.add_argument("--if-match", metavar="VERSION", help="only if the settings are still this version (see get)")
    set_.epilog = "example:\n  everkeel config set retry orders.fetch attempts=5 max_duration=500ms"
    audit = actions.add_parser("audit", help="who changed what in a running service", allow_abbrev=False)
    audit.add_argument("--limit", type=int, default=20, help="how many, newest first (default: 20)")
    back = actions.add_parser("rollback", help="take a change of settings back", allow_abbrev=False)
    back.add_argument("id", metavar="ID", help="which change: its number in `everkeel config audit`")
    back.add_argument("--force", action="store_true", help="even where the same settings changed again since")
    for one in (get, set_, audit, back):
        add_remote(one)


def run(args: argparse.Namespace) -> int:
    """Do it."""
    service = Remote.of(args)
    if args.action == "audit":
        return _audit(service, args)
    if args.action == "rollback":
        answer = service.ask("POST", path_of("audit", args.id, "rollback"), {"force": args.force})
        return report(args, answer, f"{answer['type']} {answer['name']}: {_assigned(answer['after'])}")
    path = path_of("config", args.type, args.name)
    if args.action == "set":
        settings = assignments(args.settings)
        headers = {} if args.if_match is None else {"If-Match": args.if_match}
        answer = service.ask("PUT", path, settings, headers=headers)
        now = {name: answer["settings"].get(name) for name in settings}
        return report(args, answer, f"{args.type} {args.name}: {_assigned(now)}")
    answer = service.get(path)
    if args.json:
        emit_json(answer)
    else:
        print(f"{args.type} {args.name}, version {answer['version']}")
        print_settings(answer)
    return FINE


def _audit(service: Remote, args: argparse.Namespace) -> int:
    answer = service.get("/audit", limit=args.limit)
    if args.json:
        emit_json(answer)
    elif not answer["entries"]:
        print("no changes")
    else:
        rows = [("ID", "TIME", "WHO", "ACTION", "POLICY", "BEFORE -> AFTER")]
        for one in answer["entries"]:
            policy = text(f"{one['type']} {one['name']}") if one["name"] is not None else ""
            change = f"{_assigned(one['before'])} -> {_assigned(one['after'])}"
            rows.append((str(one["id"]), one["time"], one["who"], one["action"], policy, change))
        emit_table(rows)
    return FINE


def _assigned(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={text(value)}" for name, value in values.items())
