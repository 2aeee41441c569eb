"""`everkeel config check` and `everkeel config show`; what asks a running service is in `remote_config`."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import MISSING
from typing import Any

from everkeel.cli import remote_config
from everkeel.cli.application import add_application, import_application
from everkeel.cli.output import FINE, NO, CommandError, add_json, complain, emit_json, emit_table, paint


def add(parser: argparse.ArgumentParser) -> None:
    """What may be done with configuration."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    check = actions.add_parser("check", help="find everything that is wrong with a file", allow_abbrev=False)
    check.description = "Find everything that is wrong with a file. Exit code 1 where anything is."
    check.add_argument("--env", action="store_true", help="check the variables EVERKEEL_*__* of the environment too")
    show = actions.add_parser("show", help="every setting in force, and where it comes from", allow_abbrev=False)
    show.description = (
        "Every setting in force, and where it comes from. Policies live in code: without --import or --app, "
        "the defaults of each type and what the file says are shown."
    )
    show.add_argument("--no-env", action="store_true", help="leave the environment out")
    show.add_argument("--type", help="only policies of this type, such as retry")
    for one in (check, show):
        one.add_argument("file", nargs="?", metavar="FILE", help="the file (default: the one in this directory)")
        add_application(one)
        add_json(one)
    remote_config.add_actions(actions)


def run(args: argparse.Namespace) -> int:
    """Do it."""
    if args.action in remote_config.ACTIONS:
        return remote_config.run(args)
    return _check(args) if args.action == "check" else _show(args)


# ------------------------------------------------------------------ check


def _check(args: argparse.Namespace) -> int:
    from everkeel import config

    imported = import_application(args)
    file = args.file or _default_file()
    if file is None:
        raise CommandError("there is no everkeel.yaml, .toml or .json here, and no [tool.everkeel] in pyproject.toml")
    problems = config.check(file, env=os.environ if args.env else None, complete=imported)
    if args.json:
        listed = [_as_data(problem) for problem in problems]
        emit_json({"file": str(file), "valid": not problems, "problems": listed})
    elif problems:
        complain(map(str, problems))
        total = f"{len(problems)} problem{'s' if len(problems) > 1 else ''} in {file}"
        complain(paint(total, "red", sys.stderr))
    else:
        print(f"{file}: {paint('fine', 'green')}")
    return NO if problems else FINE


def _default_file() -> Any:
    from everkeel.config.files import UnreadableError, find

    if os.environ.get("EVERKEEL_CONFIG"):
        return os.environ["EVERKEEL_CONFIG"]
    try:
        return find()
    except UnreadableError as error:
        raise CommandError(error.reason) from None


def _as_data(problem: Any) -> dict[str, Any]:
    fields = ("source", "line", "path", "message", "got")
    return {name: getattr(problem, name) for name in fields}


# ------------------------------------------------------------------ show


def _show(args: argparse.Namespace) -> int:
    from everkeel import config
    from everkeel.config.types import known_types
    from everkeel.errors import InvalidConfigurationError

    if args.type is not None and args.type not in known_types():
        raise CommandError(f"no type of policy is called {args.type!r}; there are {', '.join(known_types())}")
    import_application(args)
    try:
        loaded = config.load(args.file or _default_file(), env={} if args.no_env else None)
    except InvalidConfigurationError as error:
        if args.json:
            emit_json({"valid": False, "problems": [_as_data(problem) for problem in error.problems]})
            return NO
        raise
    policies = _policies(args.type)
    shown = policies or _without_code(loaded, args.type)
    if args.json:
        emit_json({"valid": True, "file": loaded.source, "version": loaded.version, "policies": shown})
    else:
        for one in shown:
            _print(one)
    return FINE


def _policies(only: str | None) -> list[dict[str, Any]]:
    from everkeel import config
    from everkeel.runtime.configured import everything

    found = []
    for policy in sorted(everything(), key=lambda one: (one.type, one.name or "")):
        if only in (None, policy.type):
            settings = config.effective(policy)
            shown = {name: {"value": config.render(value), "source": by} for name, (value, by) in settings.items()}
            found.append({"type": policy.type, "name": policy.name, "settings": shown})
    return found


def _without_code(loaded: Any, only: str | None) -> list[dict[str, Any]]:
    """The defaults of each type with what the file says about them, then what it says about single policies."""
    from everkeel import config
    from everkeel.config.layers import DEFAULT, about
    from everkeel.config.types import known_types, settings_class

    layers = loaded.contents.layers
    found = []
    for policy_type in [only] if only else known_types():
        said = about(layers, policy_type, DEFAULT)
        settings: dict[str, Any] = {}
        for name, field in settings_class(policy_type).may_be_set().items():
            if name in said:
                settings[name] = {"value": said[name].raw, "source": said[name].source}
            elif field.default is not MISSING:
                settings[name] = {"value": config.render(field.default), "source": "default"}
            else:
                settings[name] = {"value": None, "source": "required in code"}
        found.append({"type": policy_type, "name": DEFAULT, "settings": settings})
        for layer in layers:
            for (kind, name), section in sorted(layer.sections.items()):
                if kind == policy_type and name.lower() != DEFAULT:
                    rows = {key: {"value": entry.raw, "source": entry.source} for key, entry in section.items()}
                    found.append({"type": policy_type, "name": name, "settings": rows})
    return found


def _print(policy: dict[str, Any]) -> None:
    import json

    print(paint(f"{policy['type']} {policy['name']}", "bold"))
    rows = [
        (name, json.dumps(one["value"], ensure_ascii=False), one["source"]) for name, one in policy["settings"].items()
    ]
    emit_table(rows, indent="  ")
