"""Live changes as a layer: the strongest one, made by `config.change`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everkeel.config.layers import DEFAULT, Entry, Layer
from everkeel.config.names import ProcessNames
from everkeel.config.problems import Problem, did_you_mean, shown
from everkeel.config.sections import checked, entry_for, meaning, which_setting
from everkeel.config.types import known_types, settings_class

SOURCE = "live"


def changed(
    live: Layer, policy_type: str, name: str, given: Mapping[str, Any]
) -> tuple[Layer, list[str], list[Problem]]:
    """The live layer with some values changed, the settings it is about, and what is wrong with them."""
    if policy_type not in known_types():
        hint = did_you_mean(policy_type, known_types())
        return live, [], [Problem(SOURCE, None, policy_type, f"is no type of policy{hint}")]
    if not isinstance(name, str) or not name:
        allowed = f"must have the name of a policy, or {DEFAULT!r}"
        return live, [], [Problem(SOURCE, None, policy_type, allowed, shown(name))]
    settings = settings_class(policy_type)
    fields = settings.may_be_set()
    section = dict(live.sections.get((policy_type, name), {}))
    problems: list[Problem] = []
    about: list[str] = []
    for key, raw in given.items():
        path = f"{policy_type}.{name}.{key}"
        if key not in fields and key != "enabled":
            message = f"is no setting of {policy_type}{which_setting(key, fields)}"
            problems.append(Problem(SOURCE, None, path, message))
            continue
        setting, meant = meaning(fields, key, raw)
        entry = entry_for(settings, setting, meant, SOURCE, path)
        complaint = checked(entry, ProcessNames())
        if complaint is not None and not _as_code_has_it(entry):
            problems.append(Problem(SOURCE, None, path, complaint, shown(raw)))
        section[setting] = entry
        about.append(setting)
    return Layer({**live.sections, (policy_type, name): section}), about, problems


def _as_code_has_it(entry: Entry) -> bool:
    """A live change may also be given what code would give: a class, a backoff, a function."""
    if entry.raw is None or isinstance(entry.raw, str | bool | int | float | list | dict):
        return False
    try:
        entry.value = entry.kind.check(entry.raw)
    except (TypeError, ValueError):
        return False
    return True
