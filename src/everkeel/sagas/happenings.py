"""What can happen to a saga: what the machine is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from everkeel.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Begun:
    """Somebody begins to work on it; `input` is what it is about, where that was not known before."""

    input: Any = None


@dataclass(frozen=True, slots=True)
class Done:
    """A step's action succeeded; `changes` are the fields of the shared state that it changed."""

    step: str
    result: Any = None
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rejected:
    """A step's action said no, for a business reason: nothing was done, and asking again does not help."""

    step: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """A try of a step's action failed. `maybe`: it may have had its effect. `delay`: seconds before the next try."""

    step: str
    error: str = ""
    delay: float = 0.0
    maybe: bool = True


@dataclass(frozen=True, slots=True)
class Undone:
    """A step's compensation is confirmed; `number` says which one, where that is known; `changes` as of `Done`."""

    step: str
    number: int | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UndoFailed:
    """A try of a step's compensation failed; `final`: trying again cannot help."""

    step: str
    error: str = ""
    delay: float = 0.0
    final: bool = False


@dataclass(frozen=True, slots=True)
class TakenOver:
    """Somebody else works on it now: what was under way is lost, and may have had its effect."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Poisoned:
    """Nobody can go on: no definition for it, or one that raises."""

    error: str
    cause: str = "poison"


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """What an operator, or the caller, wants to be done."""

    actor: str = "everkeel"
    reason: str = ""

    def __post_init__(self) -> None:
        for name in ("actor", "reason", "step"):
            value = getattr(self, name, "")
            if not isinstance(value, str):
                raise ConfigError(f"sagas.{word_of(self)}", name, "must be a text", repr(value))


@dataclass(frozen=True, kw_only=True, slots=True)
class Cancel(Order):
    """Turn back."""

    cause: str = "cancelled"


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryUndo(Order):
    """Try a failed compensation again."""

    step: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SkipUndo(Order):
    """Leave a step as it is, although it could not be undone."""

    step: str


@dataclass(frozen=True, kw_only=True, slots=True)
class MarkUndone(Order):
    """A step was undone by hand."""

    step: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Resume(Order):
    """Go on with a parked saga where it stopped."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Abandon(Order):
    """Give up on it for good."""


Happening: TypeAlias = Begun | Done | Rejected | Failed | Undone | UndoFailed | TakenOver | Tick | Poisoned | Order


def word_of(happening: object) -> str:
    """What it is called in errors and timelines."""
    words = {"SkipUndo": "skip", "RetryUndo": "retry", "MarkUndone": "mark_done", "Abandon": "fail"}
    name = type(happening).__name__
    return words.get(name, name.lower())
