"""The one place where the control plane reads and changes settings, by way of `everkeel.config`."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everkeel import config
from everkeel.config import process
from everkeel.config.control_options import CONTROL
from everkeel.config.forms import parse
from everkeel.config.names import ProcessNames
from everkeel.config.sections import meaning
from everkeel.config.types import known_types
from everkeel.control.problems import ProblemError
from everkeel.errors import ConfigError, InvalidConfigurationError
from everkeel.runtime.configured import AnyConfigured, Part, everything, parts
from everkeel.runtime.registry import Registry, registry

_changing = threading.Lock()
"""Held from the look at the version to the end of the change, so that of two writers with one version one loses.
Changes made by the program itself do not take it: `If-Match` is between people."""
_NOT_SETTINGS = {"self", "policy_type", "name"}
"""No policy has these, and `config.change` has parameters of these names."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a change did: `before` and `after` as JSON has it, `undo` as the policy had it."""

    before: dict[str, Any]
    after: dict[str, Any]
    undo: dict[str, Any]


def control_table() -> Mapping[str, Any]:
    """The table `control` of the configuration that was loaded: options of a plane, by their names."""
    loaded = process.current
    if loaded is None or not loaded.loaded:
        return {}
    table: Mapping[str, Any] = loaded.data.get(CONTROL) or {}  # it was checked when it was loaded
    return table


def all_of(policies: Registry) -> list[AnyConfigured]:
    """All that a plane may show and change: its policies, and the outboxes, relays and consumers of the process. Of
    several that share type and name the first stands for all: they are configured together."""
    found: dict[tuple[str, str | None], AnyConfigured] = {}
    for one in (*policies, *parts()):
        found.setdefault((one.type, one.name), one)
    return list(found.values())


def find(policies: Registry, kind: str, name: str) -> AnyConfigured | None:
    """The policy or part of this type and name."""
    policy = policies.get(kind, name)
    return policy or next((one for one in parts() if (one.type, one.name) == (kind, name)), None)


def settings_of(policy: AnyConfigured) -> dict[str, Any]:
    """Every setting in the form in which a file would write it; what only code can say, as a text that describes it."""
    return {name: config.render(getattr(policy.config, name)) for name in sorted(policy.config.names())}


def sources_of(policy: AnyConfigured) -> dict[str, str]:
    """Where the value of each setting comes from: `default`, `code`, a line of a file, a variable, or `live`."""
    return {name: one.source for name, one in sorted(config.effective(policy).items())}


def version_of(policy: AnyConfigured, settings: dict[str, Any] | None = None) -> str:
    """What the settings' entity tag holds: equal settings, equal version."""
    shown = settings_of(policy) if settings is None else settings
    text = json.dumps([policy.type, policy.name, shown], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def version_of_all(versions: Iterable[str]) -> str:
    """The same for the settings of all policies."""
    return hashlib.sha256("".join(versions).encode()).hexdigest()[:20]


def change(
    policy: AnyConfigured,
    settings: Mapping[str, Any],
    if_match: str | None = None,
    check: Callable[[dict[str, Any]], object] | None = None,
) -> Change:
    """Change some settings, all or none, unless somebody else did since the caller looked. Blocks: not for a loop.

    Values are what a file would say, or what code would. `check` is told the settings as they are right before the
    change, and may raise.
    """
    with _changing:
        if if_match is not None and if_match.strip() != "*":
            _must_be_in(if_match, version_of(policy), f"the settings of {policy.label}")
        if check is not None:
            check(settings_of(policy))
        return _change(policy, settings)


def _change(policy: AnyConfigured, settings: Mapping[str, Any]) -> Change:
    before, old = settings_of(policy), policy.config
    try:
        for name in _NOT_SETTINGS.intersection(settings):
            raise ConfigError(policy.label, None, f"has no setting {name!r}", None)
        _apply(policy, settings)
    except ConfigError as error:
        raise refused(error) from None
    names = [name for name in old.names() if name in settings or getattr(old, name) != getattr(policy.config, name)]
    after = settings_of(policy)
    return Change(
        {name: before[name] for name in names},
        {name: after[name] for name in names},
        {name: getattr(old, name) for name in names},
    )


def change_all(
    changes: Sequence[tuple[AnyConfigured, Mapping[str, Any]]],
    everyone: Iterable[AnyConfigured],
    if_match: str | None = None,
) -> list[Change]:
    """Change settings of several policies, all or none. Blocks: not for a loop."""
    with _changing:
        if if_match is not None and if_match.strip() != "*":
            _must_be_in(if_match, version_of_all(version_of(policy) for policy in everyone), "the settings")
        made: list[tuple[AnyConfigured, Change]] = []
        try:
            for policy, settings in changes:
                made.append((policy, _change(policy, settings)))
        except ProblemError:
            for policy, one in reversed(made):
                _apply(policy, one.undo)
            raise
        return [one for _, one in made]


def _apply(policy: AnyConfigured, settings: Mapping[str, Any]) -> None:
    """As a change of the configuration, which has a history and holds for a successor of the same name, where it can.

    There, what is said about `orders` holds for `orders.fetch` too, where that has no word of its own: a change that
    would reach others is made on the policy itself, as is one of a type that only the application knows.
    """
    name = str(policy.name)
    below = f"{name}."
    reaches = [other for other in everything() if other.type == policy.type and str(other.name).startswith(below)]
    listed = isinstance(policy, Part) or registry.get(policy.type, name) is policy
    unknown = policy.type not in known_types() or not listed
    if unknown or reaches or name == "default":
        policy.reconfigure(**_parsed(policy, settings))
        return
    try:
        config.change(policy.type, name, **settings)
    except InvalidConfigurationError:
        if all(_is_plain(value) for value in settings.values()):
            raise
        policy.reconfigure(**settings)  # what code had given and no file can say: a change that is taken back


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, str | bool | int | float | list | dict)


def _parsed(policy: AnyConfigured, settings: Mapping[str, Any]) -> dict[str, Any]:
    fields = policy.config.may_be_set()
    found = {}
    for key, given in settings.items():
        name, value = meaning(fields, key, given)  # `enabled: false` is `mode: off`
        field = fields.get(name)
        if field is None or not _is_plain(value) or (value is None and field.metadata["none"] is not None):
            found[name] = value  # right as it is, or the policy will say what is wrong
            continue
        try:
            found[name] = parse(field.metadata["kind"], value, ProcessNames())
        except ValueError as error:
            raise ConfigError(policy.label, name, str(error), repr(value)) from None
    return found


def _must_be_in(if_match: str, now: str, what: str) -> None:
    if now not in [tag.strip().strip('"') for tag in if_match.split(",")]:
        detail = f"{what} are no longer those you read; read them again"
        raise ProblemError(412, "changed-meanwhile", detail, headers={"ETag": f'"{now}"'})


def refused(error: ConfigError) -> ProblemError:
    """The answer to settings that are not allowed."""
    errors: list[dict[str, str]] = []
    if isinstance(error, InvalidConfigurationError):
        for problem in error.problems:
            if isinstance(problem, config.Problem):
                name = problem.path.rpartition(".")[2].strip('"')
                got = "" if problem.got is None else f" (got {problem.got})"
                errors.append({"pointer": f"/{name}", "detail": f"{name} {problem.message}{got}"})
    else:
        errors.append({"detail": str(error), **({"pointer": f"/{error.parameter}"} if error.parameter else {})})
    detail = "; ".join(one["detail"] for one in errors) or str(error)
    return ProblemError(422, "settings-not-allowed", detail, {"errors": errors})
