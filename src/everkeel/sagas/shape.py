"""What the machine must know about a definition, and what it answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from everkeel.sagas.record import Entry, Record, StepRecord, StepStatus


@dataclass(frozen=True, slots=True)
class StepShape:
    """What the machine must know about a step."""

    name: str
    after: frozenset[str] = frozenset()
    """The steps that must be done (or skipped) before it begins."""
    undoable: bool = True
    """It has a compensation. Without one, there is nothing to undo."""
    pivot: bool = False
    attempts: int = 3
    undo_attempts: int = 5
    retry_unknown: bool = True
    """Try again, with the same key, when nobody knows whether a try had its effect."""
    when: Callable[[Record], bool] | None = None
    confirm_within: float = 30.0
    """Choreographed: how long to wait for the confirmation of a compensation before it is asked for again."""


@dataclass(frozen=True)
class Shape:
    """What the machine must know about a definition."""

    steps: tuple[StepShape, ...]
    choreographed: bool = False
    on_blocked: Literal["stop", "continue"] = "stop"
    result: Callable[[Record], Any] | None = None

    @cached_property
    def by_name(self) -> Mapping[str, StepShape]:
        """Each step by its name."""
        return {step.name: step for step in self.steps}

    def differs(self, record: Record) -> str | None:
        """Why a saga cannot be carried on with this definition: it began with other steps. None: it can."""
        if self.by_name.keys() == record.steps.keys():
            return None
        gone, new = record.steps.keys() - self.by_name.keys(), self.by_name.keys() - record.steps.keys()
        parts = [f"{', '.join(sorted(names))} {what}" for names, what in ((gone, "removed"), (new, "added")) if names]
        return (
            f"the steps of {record.type}@{record.version} have changed ({'; '.join(parts)}): raise its version instead"
        )

    @cached_property
    def behind(self) -> Mapping[str, frozenset[str]]:
        """The steps that come after each, directly or not: they are undone before it."""
        return followers({step.name: step.after for step in self.steps})


@dataclass(frozen=True, slots=True)
class Launch:
    """An action or a compensation to be started now."""

    step: str
    undo: bool
    attempt: int
    number: int = 0
    """Of a compensation: how many there were of this step, this one included."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The next record and what to do, once it is saved."""

    record: Record
    launches: tuple[Launch, ...] = ()
    cancels: tuple[str, ...] = ()
    """Steps whose actions are to be interrupted: nobody wants their results any more."""
    entries: tuple[Entry, ...] = ()
    """What is new in the timeline."""
    look_at: float | None = None
    """When something must be decided even if nothing happens."""
    deadline: float | None = None
    """It has so many seconds from now; None: as before."""
    resting: bool = False
    """Nothing is under way and nothing is waited for: until somebody asks, there is nothing to do."""


def followers(after: Mapping[str, Collection[str]]) -> dict[str, frozenset[str]]:
    """All that comes after each, directly or not; `after` says what each waits for, and none for itself."""
    direct: dict[str, list[str]] = {name: [] for name in after}
    for name, names in after.items():
        for other in set(names):
            direct[other].append(name)
    # In their order and then backwards: each once, however many ways lead to it, and however long they are.
    left = {name: len(set(names)) for name, names in after.items()}
    order = [name for name, number in left.items() if not number]
    for name in order:
        for one in direct[name]:
            left[one] -= 1
            if not left[one]:
                order.append(one)
    found: dict[str, frozenset[str]] = {}
    for name in reversed(order):
        found[name] = frozenset(direct[name]).union(*(found[one] for one in direct[name]))
    return found


def is_committed(shape: Shape, steps: Mapping[str, StepRecord]) -> bool:
    """Past its pivot; or at a pivot that cannot be undone and may have been done."""
    return any(
        step.pivot
        and (
            steps[step.name].status is StepStatus.DONE
            or (
                not step.undoable
                and (
                    steps[step.name].status is StepStatus.RUNNING
                    or (steps[step.name].maybe and steps[step.name].status is StepStatus.READY)
                )
            )
        )
        for step in shape.steps
    )
