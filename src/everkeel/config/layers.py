"""Which value wins: pure, told the layers. Weakest first: file, environment, live changes; the code is below them all.

The stronger layer wins. Within one layer the most specific place does: `default` for a type, then each dotted prefix of
the policy's name (module, class, method), then the name itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from everkeel.config.forms import parse
from everkeel.config.names import NotYetError, ProcessNames
from everkeel.config.problems import shown
from everkeel.errors import ConfigError
from everkeel.runtime.settings import Kind, Names, label

DEFAULT = "default"
_UNREAD: Any = object()


@dataclass(slots=True, eq=False)
class Entry:
    """One value that somebody wrote somewhere: plain data, and what it stands for once that is known."""

    raw: Any
    kind: Kind
    may_be_none: bool
    source: str
    """Where it stands, as `config.effective` shows it: `everkeel.yaml:12`, `env EVERKEEL_...`, `live`."""
    path: str
    value: Any = field(default=_UNREAD)

    def read(self, names: Names) -> Any:
        """What it stands for; ValueError where it is not allowed, NotYetError where a name is not known yet."""
        if self.value is _UNREAD:
            self.value = None if self.raw is None and self.may_be_none else parse(self.kind, self.raw, names)
        return self.value

    def known(self, policy_type: str, name: str) -> Any:
        """The same for a policy that needs it now: what is wrong is a ConfigError that says where it stands."""
        try:
            return self.read(ProcessNames())
        except ValueError as error:
            owner = f"{self.source}: {self.path}: {label(policy_type, name)}"
            raise ConfigError(owner, None, str(error), shown(self.raw)) from None

    def same_as(self, other: Entry) -> bool:
        """Was the same thing written, wherever it stands?"""
        return type(self.raw) is type(other.raw) and self.raw == other.raw and self.kind is other.kind


Section: TypeAlias = dict[str, Entry]


@dataclass(slots=True, eq=False)
class Layer:
    """Sections by type and name. `spelled`: how this layer writes the name of a policy."""

    sections: dict[tuple[str, str], Section] = field(default_factory=dict)
    spelled: Callable[[str], str] = str

    def about(self, policy_type: str, name: str) -> Section:
        """What this layer says about a policy, the most specific place winning."""
        found: Section = {}
        for place in places(name):
            found.update(self.sections.get((policy_type, self.spelled(place)), {}))
        return found

    def keep_from(self, older: Layer) -> None:
        """Where the same was written before, let it be the very same: a budget keeps what it counted."""
        for identity, section in self.sections.items():
            before = older.sections.get(identity, {})
            for setting, entry in section.items():
                if setting in before and entry.same_as(before[setting]):
                    entry.value = before[setting].value


def places(name: str) -> list[str]:
    """Where a policy of this name may be configured, weakest first.

    >>> places("shop.orders.Client.fetch")
    ['default', 'shop', 'shop.orders', 'shop.orders.Client', 'shop.orders.Client.fetch']
    """
    whole, hash_, _ = name.partition("#")  # `fetch#2`: the second unnamed policy of one type on one function
    parts = whole.split(".")
    found = [DEFAULT, *(".".join(parts[:end]) for end in range(1, len(parts) + 1))]
    return [*found, name] if hash_ else found


def in_environment(name: str) -> str:
    """How variables write a name: capitals; a dot is two underscores, any run of other characters is one.

    >>> in_environment("shop.orders-v2.Client.__call__")
    'SHOP__ORDERS_V2__CLIENT__CALL'
    """
    parts = (re.sub(r"[^A-Z0-9]+", "_", part.upper()).strip("_") for part in name.split("."))
    return "__".join(part for part in parts if part)


def about(layers: Sequence[Layer], policy_type: str, name: str) -> Section:
    """What all layers say about a policy, the stronger layer winning."""
    found: Section = {}
    for layer in layers:
        found.update(layer.about(policy_type, name))
    return found


def values(layers: Sequence[Layer], policy_type: str, name: str) -> Mapping[str, Any]:
    """The same as values: what a policy binds to."""
    section = about(layers, policy_type, name)
    return {setting: entry.known(policy_type, name) for setting, entry in section.items()}


__all__ = ["DEFAULT", "Entry", "Layer", "NotYetError", "Section", "about", "in_environment", "places", "values"]
