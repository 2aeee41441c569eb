"""From settings as a document writes them to policies: read by the rules of configuration, each error at its place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from everkeel.compose.guards import ORDER
from everkeel.config import files
from everkeel.config.names import ProcessNames
from everkeel.config.problems import Path, did_you_mean
from everkeel.config.sections import read_section
from everkeel.config.steps import own_keys
from everkeel.config.types import policy_class, settings_class
from everkeel.errors import ConfigError
from everkeel.openapi.resilience import Placed
from everkeel.runtime.policy import AnyPolicy
from everkeel.runtime.settings import Settings

__all__ = ["KINDS", "Wanted", "answered", "checked"]

KINDS = tuple(word for word, _, _ in ORDER)

Complain = Callable[[str, str, object], ConfigError]
"""Makes the error for a value at a place: what `Document.error` does."""


def answered(error: BaseException) -> bool:
    """True for an exception that is an answer and not trouble: an HTTP error below 500, and 501.

    What `retry`, breakers and the like ignore unless the document says otherwise: a customer who asks for an order
    that does not exist must not open a circuit. Any exception with a `status_code` is understood, so those of FastAPI,
    Starlette and Litestar are.
    """
    status = getattr(error, "status_code", None)
    return isinstance(status, int) and (status < 500 or status == 501)


@dataclass(frozen=True)
class Wanted:
    """A policy whose settings are known to be right. `make` makes it, and registers it by its name."""

    kind: str
    name: str
    config: Settings
    more: Mapping[str, Any]

    def make(self) -> AnyPolicy:
        """The policy; a second of the same name is a ConfigError."""
        return policy_class(self.kind)(self.name, self.config, **self.more)


def checked(policies: Mapping[str, Placed], operation: str, complain: Complain) -> list[Wanted]:
    """The policies of an operation, none of them made yet; ConfigError where something is wrong, at its place."""
    return [_checked(kind, placed, operation, complain) for kind, placed in policies.items()]


def _checked(kind: str, placed: Placed, operation: str, complain: Complain) -> Wanted:
    if kind not in KINDS:
        hint = did_you_mean(kind, KINDS, f"; there are {', '.join(KINDS)}")
        raise complain(placed.at, f"is no policy{hint}", placed.plain)
    own = own_keys(kind)
    notes = _Notes("x-resilience")
    given = {setting: value for setting, value in placed.plain.items() if setting not in own}
    section = read_section(notes, (), kind, given, ProcessNames())
    for path, message, value in notes.found:
        raise complain(_place(placed, path), message, value)
    values = {setting: entry.known(kind, operation) for setting, entry in section.items()}
    fields = settings_class(kind).may_be_set()
    if "ignore" in fields and "ignore" not in values:
        values["ignore"] = answered
    name, more = operation, dict[str, Any]()
    for word in own:
        if word in placed.settings:
            value, at = placed.settings[word]
            if word == "max_keys":
                more[word] = value
            elif not isinstance(value, str) or not value:
                raise complain(at, "must be a name", value)
            elif word == "name":
                name = value
            else:
                more[word] = _function(value, at, complain)
    try:
        config = settings_class(kind).make(name, values)
    except ConfigError as error:  # two settings that contradict each other, or one that is missing
        parameter = error.parameter
        at = placed.settings[parameter][1] if parameter in placed.settings else placed.at
        raise complain(at, f"{parameter or ''} {error.allowed}".strip(), placed.plain) from None
    except TypeError as error:
        raise complain(placed.at, _missing(error), placed.plain) from None
    return Wanted(kind, name, config, more)


def _missing(error: TypeError) -> str:
    """Python's own words about a setting without a default, in ours."""
    names = [part for part in str(error).split("'")[1::2] if part.isidentifier()]
    return f"needs {', '.join(names)}" if names else str(error)


def _function(value: str, at: str, complain: Complain) -> Callable[..., Any]:
    try:
        return ProcessNames().function(value)
    except ValueError as error:
        raise complain(at, str(error), value) from None


def _place(placed: Placed, path: Path) -> str:
    if path and path[0] in placed.settings:
        return "/".join([placed.settings[str(path[0])][1], *map(str, path[1:])])
    return placed.at


@dataclass(slots=True)
class _Notes(files.Document):
    """What configuration's reader finds wrong, with the place as it was told."""

    found: list[tuple[Path, str, Any]] = field(default_factory=list)

    def wrong(self, path: Path, message: str, *value: Any) -> None:
        self.found.append((path, message, value[0] if value else None))
