"""What a version of the configuration consists of, and what it changed: pure, apart from asking the registry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from everkeel.config.layers import Layer, about, values
from everkeel.config.steps import Step
from everkeel.events import SettingChange
from everkeel.runtime.configured import AnyConfigured, Rebound
from everkeel.runtime.settings import Settings


@dataclass(slots=True, eq=False)
class Contents:
    """Everything one version says. Never changed once it is in force."""

    file: Layer = field(default_factory=Layer)
    environment: Layer = field(default_factory=Layer)
    live: Layer = field(default_factory=Layer)
    pipelines: dict[str, list[Step]] = field(default_factory=dict)
    source: str | None = None
    """The file it came from."""

    @property
    def layers(self) -> list[Layer]:
        """Weakest first."""
        return [self.file, self.environment, self.live]

    def overrides(self, policy_type: str, name: str) -> Mapping[str, Any]:
        """What it says about a policy: what `runtime.settings.overrides` asks."""
        return values(self.layers, policy_type, name)

    def says_the_same_as(self, other: Contents) -> bool:
        """Would changing to the other one change nothing, now or for policies yet to come?"""
        mine, theirs = _written(self), _written(other)
        return self.source == other.source and mine == theirs


def _written(contents: Contents) -> list[Any]:
    layers = [
        {identity: {setting: repr(entry.raw) for setting, entry in section.items()} for identity, section in sections}
        for sections in (layer.sections.items() for layer in contents.layers)
    ]
    steps = {
        name: [(step.policy_type, step.name, step.key, step.max_keys) for step in steps]
        for name, steps in contents.pipelines.items()
    }
    return [*layers, steps]


@dataclass(frozen=True, slots=True, eq=False)
class Version:
    """One version that was in force: what `history()` shows and `rollback()` returns to."""

    number: int
    at: datetime
    cause: str
    """load, reload, watch, change, or `rollback to 3`."""
    source: str | None
    """The file, if it came from one."""
    changes: tuple[SettingChange, ...]
    contents: Contents = field(repr=False)


class Effective(NamedTuple):
    """A setting's value, and where it comes from."""

    value: Any
    source: str
    """default, code, a file and its line, env and the variable, or live."""


def effective(policy: AnyConfigured, contents: Contents) -> dict[str, Effective]:
    """Every setting of a policy, with its source."""
    config = policy.config
    section = about(contents.layers, policy.type, policy.name) if policy.name is not None else {}
    made_by_file = policy.name is not None and (policy.type, policy.name) in {
        (step.policy_type, step.name) for steps in contents.pipelines.values() for step in steps
    }
    found: dict[str, Effective] = {}
    for setting in config.names():
        if setting in policy._live:
            source = "live"
        elif setting in section:
            source = section[setting].source
        else:
            source = "default" if made_by_file or _is_default(policy._code, setting) else "code"
        found[setting] = Effective(getattr(config, setting), source)
    return found


def _is_default(config: Settings, setting: str) -> bool:
    """Is it what one gets without saying anything? Code that says the default out loud cannot be told from that."""
    field_ = config.may_be_set()[setting]
    value = getattr(config, setting)
    default = field_.default
    if value is default or value == default:
        return True
    try:
        return bool(field_.metadata["kind"].check(default) == value)  # a default is kept as its kind makes it
    except (TypeError, ValueError):
        return False  # a setting without a default, or one whose default is None


def differences(rebound: Iterable[Rebound], contents: Contents) -> tuple[SettingChange, ...]:
    """What changed, setting by setting."""
    found: list[SettingChange] = []
    for policy, before, after in rebound:
        sources = effective(policy, contents)
        for setting in after.names():
            old, new = getattr(before, setting), getattr(after, setting)
            if old != new:
                found.append(SettingChange(policy.type, policy.name, setting, old, new, sources[setting].source))
    return tuple(found)
