"""`everkeel dlq`: events that a running service gave up on."""

from __future__ import annotations

import argparse
import json
from typing import Any

from everkeel.cli.output import FINE, USAGE, CommandError, emit_json, emit_table, paint
from everkeel.cli.policies import report, text
from everkeel.cli.remote import Remote, add_remote, need, path_of

ACTIONS = {
    "list": "those that fit the filters, the newest failure first",
    "count": "how many fit the filters",
    "show": "one, whole: its event, its error, who did what to it",
    "replay": "send one again, or (without ID) all that fit the filters: a dry run until --yes",
    "reopen": "let one wait again whose replay got lost; needs --reason",
    "discard": "give up on one for good; needs --reason",
}
FILTERS = ("consumer", "status", "type", "error", "topic", "key", "source", "event_id", "saga", "correlation")
PAGE = 500


def add(parser: argparse.ArgumentParser) -> None:
    """The actions, and what they need."""
    parser.add_argument("action", nargs="?", choices=ACTIONS, default="list", help="what to do (default: list)")
    parser.add_argument("id", nargs="?", metavar="ID", help="of the dead letter")
    for what in FILTERS:
        words = what.replace("_", " ")
        parser.add_argument(f"--{words.replace(' ', '-')}", metavar=what.upper(), help=f"only those of this {words}")
    parser.add_argument("--limit", type=int, default=50, help="list: how many (default: 50)")
    parser.add_argument("--reason", help="why; kept in the letter's history")
    parser.add_argument("--edit", metavar="JSON", help="replay: other data in place of the event's")
    parser.add_argument("--to-key", metavar="KEY", help="replay: another key in place of the event's")
    parser.add_argument("--force", action="store_true", help="replay: beyond the limit of replays, or out of turn")
    parser.add_argument("--rate", type=float, help="replay many: so many a second (default: 10)")
    parser.add_argument("--yes", action="store_true", help="replay many: do it")
    listed = "\n".join(f"  {word:8} {what}" for word, what in ACTIONS.items())
    parser.epilog = (
        f"actions:\n{listed}\n\nexamples:\n  everkeel dlq --consumer payments --status pending\n"
        "  everkeel dlq show 01J8Z7\n  everkeel dlq replay 01J8Z7 --reason 'account fixed'\n"
        "  everkeel dlq replay --type order.placed --yes\n  everkeel dlq discard 01J8Z7 --reason 'test order'"
    )
    add_remote(parser)


def run(args: argparse.Namespace) -> int:
    """Do it."""
    service = Remote.of(args)
    wanted = {what: getattr(args, what) for what in FILTERS}
    match args.action:
        case "list":
            return _list(service, args, wanted)
        case "count":
            answer = service.get("/dlq/count", **wanted)
            return report(args, answer, str(answer["count"]))
        case "show":
            need(args, "id")
            return _show(service, args)
        case "replay" if args.id is None:
            return _replay_many(service, args, wanted)
        case "replay":
            answer = service.ask("POST", path_of("dlq", args.id, "replay"), _body(args))
            return report(args, answer, f"{args.id}: {answer['status']}, replay {answer['replays']}")
    need(args, "id", "reason")
    if args.action == "reopen":
        answer = service.ask("POST", path_of("dlq", args.id, "reopen"), {"reason": args.reason})
        return report(args, answer, f"{args.id}: {answer['status']}")
    answer = service.ask("DELETE", path_of("dlq", args.id), query={"reason": args.reason})
    return report(args, answer, f"{args.id}: {answer['status']}")


def _body(args: argparse.Namespace) -> dict[str, Any]:
    body: dict[str, Any] = {"force": True} if args.force else {}
    if args.reason:
        body["reason"] = args.reason
    if args.to_key is not None:
        body["key"] = args.to_key
    if args.edit is not None:
        try:
            body["edit"] = json.loads(args.edit)
        except ValueError as error:
            raise CommandError(f"--edit must be JSON: {error}", USAGE) from None
    return body


def _list(service: Remote, args: argparse.Namespace, wanted: dict[str, Any]) -> int:
    answer = service.get("/dlq", limit=min(args.limit, PAGE), **wanted)
    while answer["next"] and len(answer["letters"]) < args.limit:
        rest = min(args.limit - len(answer["letters"]), PAGE)
        more = service.get("/dlq", limit=rest, cursor=answer["next"], **wanted)
        answer = {"letters": [*answer["letters"], *more["letters"]], "next": more["next"]}
    if args.json:
        emit_json(answer)
    elif not answer["letters"]:
        print("no dead letters" + (" fit" if any(wanted.values()) else ""))
    else:
        rows = [("ID", "STATUS", "CONSUMER", "TYPE", "FAILED", "REPLAYS", "ERROR")]
        for one in answer["letters"]:
            error = one["untrusted"]["error"].partition("\n")[0]
            rows.append(
                (
                    one["id"], one["status"], text(one["consumer"]), text(one["event"]["type"]), one["failed_at"][:19],
                    str(one["replays"]), text(error)[:80],
                )
            )  # fmt: skip
        emit_table(rows)
        if answer["next"]:
            print(paint("there are more: raise --limit, or filter", "dim"))
    return FINE


def _show(service: Remote, args: argparse.Namespace) -> int:
    letter = service.get(path_of("dlq", args.id))
    history = service.get(path_of("dlq", args.id, "audit"))["entries"]
    if args.json:
        emit_json({**letter, "history": history})
        return FINE
    outside, newer = letter.pop("untrusted"), letter.pop("newer")
    print(paint(f"{letter['event']['type']} {letter['event']['id']}", "bold") + f": {letter['status']}")
    emit_table([(name, text(value)) for name, value in letter.items() if value is not None], indent="  ")
    if letter["key"] is not None:
        print(paint("newer events of its key", "bold"))
        print(f"  {_newer(newer)}")
    print(paint("error", "bold"))
    for line in [*outside["error"].splitlines(), *outside["traceback"].splitlines()]:
        print(f"  {text(line)}")
    print(paint("data", "bold"))
    for line in json.dumps(outside["data"], indent=2, ensure_ascii=False).splitlines():
        print(f"  {text(line)}")
    print(paint("history", "bold"))
    rows = []
    for one in history:
        change = f"{one['before'] or 'new'} -> {one['after'] or 'deleted'}"
        rows.append((one["at"][:19], text(one["actor"]), change, text(one["reason"])))
    emit_table(rows, indent="  ")
    return FINE


def _newer(told: dict[str, Any], whom: str = "it") -> str:
    """What came behind a letter, or the letters of a plan, in the same key."""
    handled, waiting = told["handled"], told["waiting"]
    if told["exact"]:
        since = f"{handled} handled since" if handled else "none was handled since"
    elif handled:
        since = f"at least {handled} handled since"
    else:
        since = "it is not known whether any was handled since"
    return f"{since}, {waiting} waiting behind {whom}" if waiting else since


def _replay_many(service: Remote, args: argparse.Namespace, wanted: dict[str, Any]) -> int:
    given = {what: value for what, value in wanted.items() if value is not None and what != "status"}
    body: dict[str, Any] = {"filter": given, "dry_run": not args.yes}
    if args.rate is not None:
        body["rate"] = args.rate
    if args.reason:
        body["reason"] = args.reason
    plan = service.ask("POST", "/dlq/replay", body)
    done = "are being replayed" if args.yes else "would be replayed (--yes does it)"
    line = f"{plan['count']} {done}, {plan['over_limit']} were replayed too often already"
    if plan["more"]:
        line += f", and {plan['more']} more fit: then once again"
    if not args.json and plan["count"]:
        for what in ("consumer", "type", "error"):
            print(f"by {what}: " + ", ".join(f"{text(name)} {number}" for name, number in plan[f"by_{what}"].items()))
        print(f"newer events on the same keys: {_newer(plan['newer'], 'them')}")
    return report(args, plan, line)
