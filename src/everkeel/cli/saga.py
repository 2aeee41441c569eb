"""`everkeel saga`: draw what is defined; see the sagas of a running service, and help those that are stuck."""

from __future__ import annotations

import argparse
import json
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from everkeel.cli.application import add_application, import_module, load_attribute
from everkeel.cli.output import FINE, USAGE, CommandError, emit_json, emit_table, paint
from everkeel.cli.policies import report, text
from everkeel.cli.remote import Remote, add_remote, need, path_of

if TYPE_CHECKING:
    from everkeel.sagas.diagram import Drawable

ACTIONS = {
    "list": "those that fit the filters; first those that need somebody",
    "count": "how many fit the filters",
    "show": "one, whole; or, with --import or --app, the definition of this name, drawn",
    "retry-compensation": "try to undo STEP of a saga again",
    "skip-step": "leave STEP as it is, although it could not be undone; needs --reason",
    "mark-done": "STEP was undone by hand; needs --reason",
    "cancel": "turn back: undo what was done",
    "resume": "go on with a parked saga where it stopped",
    "fail": "give up on a parked or blocked saga for good; needs --reason",
}
ABOUT_STEPS = ("retry-compensation", "skip-step", "mark-done")
FILTERS = ("type", "state", "correlation", "cause")
FORMATS = ("text", "mermaid", "svg")
LATE = "compensated, undo failed"
_COLOURS = {
    LATE: "red",
    "compensation_blocked": "red", "parked": "red", "failed": "red", "undo_failed": "red", "rejected": "red",
    "compensating": "yellow", "undoing": "yellow", "unknown": "yellow", "completed": "green", "done": "green",
}  # fmt: skip


def add(parser: argparse.ArgumentParser) -> None:
    """The actions, and what they need."""
    parser.add_argument("action", nargs="?", choices=ACTIONS, default="list", help="what to do (default: list)")
    parser.add_argument("id", nargs="?", metavar="ID", help="of the saga; show: or the name of a definition")
    parser.add_argument("step", nargs="?", metavar="STEP", help="the step it is about")
    for what in FILTERS:
        parser.add_argument(f"--{what}", metavar=what.upper(), help=f"list, count: only those of this {what}")
    parser.add_argument("--attention", action="store_true", help="list, count: only those that wait for an operator")
    parser.add_argument("--limit", type=int, default=50, help="list: how many (default: 50)")
    parser.add_argument("--reason", help="why; kept in the saga's timeline")
    parser.add_argument("--revision", type=int, metavar="N", help="act only if the saga is still at this revision")
    parser.add_argument("--format", choices=FORMATS, default="text", help="show a definition: how (default: text)")
    add_application(parser)
    listed = "\n".join(f"  {word:18} {what}" for word, what in ACTIONS.items())
    parser.epilog = (
        f"actions:\n{listed}\n\nexamples:\n  everkeel saga --attention\n  everkeel saga show order-7\n"
        "  everkeel saga retry-compensation order-7 charge --reason 'the bank is back'\n"
        "  everkeel saga show order --import shop.sagas --format svg > order.svg"
    )
    add_remote(parser)


def run(args: argparse.Namespace) -> int:
    """Do it."""
    if args.modules or args.app is not None:
        return _draw(args)
    service = Remote.of(args)
    wanted = {what: getattr(args, what) for what in FILTERS}
    if args.attention:
        wanted["attention"] = "true"
    match args.action:
        case "list":
            return _list(service, args, wanted)
        case "count":
            answer = service.get("/sagas/count", **wanted)
            return report(args, answer, str(answer["count"]))
        case "show":
            need(args, "id")
            return _show(service, args)
    return _act(service, args)


def _act(service: Remote, args: argparse.Namespace) -> int:
    need(args, "id", *(["step"] if args.action in ABOUT_STEPS else []))
    if args.action not in ABOUT_STEPS and args.step is not None:
        raise CommandError(f"{args.action} is about a whole saga, not about a step (got {args.step!r})", USAGE)
    if args.action in ("skip-step", "mark-done", "fail"):
        need(args, "reason")
    body = {what: getattr(args, what) for what in ("step", "reason") if getattr(args, what) is not None}
    seen = {} if args.revision is None else {"If-Match": f'"{args.revision}"'}
    answer = service.ask("POST", path_of("sagas", args.id, args.action), body, headers=seen)
    return report(args, answer, f"{text(args.id)}: {painted(answer['state'])}")


# ------------------------------------------------------------------ a running service


def _list(service: Remote, args: argparse.Namespace, wanted: dict[str, Any]) -> int:
    answer = service.get("/sagas", limit=args.limit, **wanted)
    if wanted["state"] is None and not args.attention:  # those that need somebody first, as the dashboard has it
        first = service.get("/sagas", limit=args.limit, attention="true", **wanted)
        known = {one["id"] for one in first["sagas"]}
        answer["sagas"] = [*first["sagas"], *(one for one in answer["sagas"] if one["id"] not in known)]
    if args.json:
        emit_json(answer)
    elif not answer["sagas"]:
        print("no sagas" + (" fit" if any(wanted.values()) else ""))
    else:
        rows = [("STATE", "TYPE", "ID", "STEP", "STARTED", "CAUSE")]
        for one in answer["sagas"]:
            step, cause = one["step"] or "", one["cause"] or ""
            rows.append(
                (stands(one), text(one["type"]), text(one["id"]), text(step), one["created_at"][:19], text(cause))
            )
        emit_table(rows)
        if answer["next"]:
            print(paint("there are more: raise --limit, or filter", "dim"))
    return FINE


def _show(service: Remote, args: argparse.Namespace) -> int:
    saga = service.get(path_of("sagas", args.id))
    if args.json:
        emit_json(saga)
        return FINE
    cause = f" ({text(saga['cause'])})" if saga["cause"] else ""
    print(f"{paint(text(saga['type']) + ' ' + text(saga['id']), 'bold')}: {painted(stands(saga))}{cause}")
    facts = ("version", "revision", "correlation_id", "created_at", "deadline_at", "ended_at", "error", "failed_step")
    emit_table([(name.replace("_", " "), text(saga[name])) for name in facts if saga[name] is not None], indent="  ")
    print(paint("steps", "bold"))
    emit_table([_step(step) for step in saga["steps"]], indent="  ")
    print(paint("timeline", "bold"))
    emit_table([_line(entry) for entry in saga["timeline"]], indent="  ")
    if saga["dead_letters"]:
        print(paint("dead letters", "bold"))
        told = ("id", "status", "consumer", "event_type")
        emit_table([tuple(text(letter[name]) for name in told) for letter in saga["dead_letters"]], indent="  ")
    print(paint("data", "bold"))
    for line in json.dumps(saga["untrusted"], indent=2, ensure_ascii=False).splitlines():
        print(f"  {text(line)}")
    if saga["actions"]:
        print(paint("what can be done", "bold"))
        for action in saga["actions"]:
            for step in action.get("steps") or [""]:
                reason = " --reason ..." if action["reason"] == "required" else ""
                print(f"  everkeel saga {action['action']} {text(args.id)} {text(step)}".rstrip() + reason)
    return FINE


def _step(step: dict[str, Any]) -> tuple[str, ...]:
    tries = f"{step['attempts']} tries" if step["attempts"] != 1 else "1 try"
    undo = f", {step['undo_attempts']} to undo it" if step["undo_attempts"] else ""
    return text(step["name"]), step["status"], tries + undo, text(step["error"] or "")


def _line(entry: dict[str, Any]) -> tuple[str, ...]:
    attempt = f" (try {entry['attempt']})" if (entry["attempt"] or 0) > 1 else ""
    words = [f"by {text(entry['actor'])}" if entry["actor"] else "", text(entry["detail"] or "")]
    return (
        entry["at"],
        entry["what"].replace("_", " ") + attempt,
        text(entry["step"] or ""),
        ": ".join(filter(None, words)),
    )


def stands(saga: dict[str, Any]) -> str:
    """Where a saga is; one that has ended may wait for somebody, too."""
    return LATE if saga["attention"] and saga["state"] == "compensated" else str(saga["state"])


def painted(state: str) -> str:
    """A state in its colour, on a terminal."""
    return paint(state, _COLOURS[state]) if state in _COLOURS else state


# ------------------------------------------------------------------ definitions


def _draw(args: argparse.Namespace) -> int:
    from everkeel.sagas import diagram

    if args.action not in ("show", "list"):
        raise CommandError(f"--import and --app are for show and list; {args.action} is about a running service", USAGE)
    given, found = _definitions(args)
    names = ", ".join(sorted(found)) or "none"
    if args.action == "list" or (args.id is None and given is None):
        if args.json:
            emit_json({"definitions": sorted(found)})
        else:
            print("\n".join(sorted(found)) or "no sagas are defined there")
        return FINE
    what = given if args.id is None else found.get(args.id) or _latest(found, args.id)
    if what is None:
        raise CommandError(f"no definition {args.id!r} there; there are {names}")
    draw = {"text": diagram.to_text, "mermaid": diagram.to_mermaid, "svg": diagram.to_svg}[args.format]
    print(draw(what).rstrip("\n"))
    return FINE


def _definitions(args: argparse.Namespace) -> tuple[Drawable | None, dict[str, Drawable]]:
    """What `--app` names, if that can be drawn; and everything that can, of the modules that were asked for and of
    those that they imported: sagas by `name@version`, registries by the names of their variables."""
    before = set(sys.modules)
    things: list[tuple[str, Any]] = []
    named: list[ModuleType] = []
    given = None
    if args.app is not None:
        thing = load_attribute(args.app)
        module, _, attribute = args.app.partition(":")
        things.append((attribute, thing))
        named.append(sys.modules[module])
        given = next((what for _, what in _defined_by(attribute, thing)), None)
    named += [import_module(name) for name in args.modules]
    new = [module for name, module in sys.modules.items() if name not in before and not name.startswith("everkeel.")]
    things += [pair for module in [*named, *new] for pair in list(vars(module).items())]
    found: dict[str, Drawable] = {}
    for name, thing in things:
        for key, what in _defined_by(name, thing):
            found.setdefault(key, what)
    return given, found


def _defined_by(name: str, thing: Any) -> list[tuple[str, Drawable]]:
    from everkeel.sagas import Choreography, CompensationRegistry, Orchestrator, Saga

    if isinstance(thing, Saga | Choreography):
        return [(f"{thing.name}@{thing.version}", thing)]
    if isinstance(thing, CompensationRegistry):
        return [(name, thing)]
    if isinstance(thing, Orchestrator):
        return [(f"{one.name}@{one.version}", one) for one in thing.definitions.by_key.values()]
    return []


def _latest(found: dict[str, Drawable], name: str) -> Drawable | None:
    versions = [key for key in found if key.rpartition("@")[0] == name]
    return found[max(versions, key=lambda key: int(key.rpartition("@")[2]))] if versions else None
