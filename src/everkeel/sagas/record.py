"""A saga's record: what each step has done, and what happened when. The machine makes the next one of the last."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from everkeel.engines.sagas import TERMINAL, Kind, SagaRow, SagaState

T = TypeVar("T")

MOST_ENTRIES = 500
"""Lines of the timeline that are kept, the newest."""
MOST_TEXT = 2000
"""Characters kept of an error or a reason."""
CODED = "coded:"
"""What a document begins with that was encoded; see `everkeel.sagas.coding`."""


class StepStatus(StrEnum):
    """Where a step is."""

    READY = "ready"
    """Not begun, or waiting for its next try."""
    RUNNING = "running"
    """Its action is under way; from here on its compensation counts as registered."""
    DONE = "done"
    SKIPPED = "skipped"
    """Its condition said that it is not needed."""
    REJECTED = "rejected"
    """It said no, and nothing was done."""
    UNKNOWN = "unknown"
    """It may have been done: the answer never came. It is compensated like one that was."""
    LATE_DONE = "late_done"
    """It was done after the saga had turned back."""
    UNDOING = "undoing"
    UNDONE = "undone"
    """Its compensation is confirmed."""
    UNDO_FAILED = "undo_failed"
    """Its compensation failed as often as it may."""
    UNDO_SKIPPED = "undo_skipped"
    """An operator decided, with a reason, that it stays as it is."""


TO_UNDO = frozenset({StepStatus.DONE, StepStatus.UNKNOWN, StepStatus.LATE_DONE})
"""What a saga that turns back must undo."""
PASSED = frozenset({StepStatus.DONE, StepStatus.SKIPPED})
"""What lets the next steps begin."""


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of one saga."""

    status: StepStatus = StepStatus.READY
    attempts: int = 0
    """How often its action was begun."""
    undo_attempts: int = 0
    """How often its compensation was begun, since an operator last said so."""
    undos: int = 0
    """How often it was begun altogether: what tells a confirmation from an older one."""
    series: int = 0
    """How often a success came to light after its undoing had begun: each time it is undone under a key of its own."""
    maybe: bool = False
    """Some try may have had its effect without our being told."""
    done: bool = False
    """Its success is known, whatever became of it later."""
    again: bool = False
    """A success came to light while it was being undone: it must be undone once more."""
    result: Any = None
    error: str | None = None
    not_before: float | None = None
    """When to try again, or to stop waiting for a confirmation."""
    started_at: float | None = None
    ended_at: float | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a saga's timeline."""

    at: float
    what: str
    step: str | None = None
    detail: str | None = None
    actor: str | None = None
    attempt: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """A saga as the machine knows it."""

    id: str
    type: str
    version: int
    kind: Kind = "orchestrated"
    state: SagaState = SagaState.PENDING
    cause: str | None = None
    steps: Mapping[str, StepRecord] = field(default_factory=dict)
    input: Any = None
    data: Mapping[str, Any] = field(default_factory=dict)
    """The state that steps share, as JSON values."""
    result: Any = None
    error: str | None = None
    """What made it turn back."""
    failed_step: str | None = None
    correlation_id: str | None = None
    created_at: float | None = None
    """When it was written down; None until that is known."""
    deadline_at: float | None = None
    timed_out: bool = False
    committed: bool = False
    """It is past its pivot: only forward from here."""
    parked_from: SagaState | None = None
    redact: tuple[str, ...] = ()
    """Names of fields whose values nobody may see."""
    timeline: tuple[Entry, ...] = ()
    written: str = field(default="", compare=False, repr=False)
    """The timeline as it is written, so that each line is written once; empty: it must be made."""

    @property
    def ended(self) -> bool:
        """Is it in a final state?"""
        return self.state in TERMINAL

    def current(self) -> str | None:
        """The steps something is happening to, as lists show them."""
        busy = (StepStatus.RUNNING, StepStatus.UNDOING, StepStatus.UNDO_FAILED)
        names = [name for name, step in self.steps.items() if step.status in busy]
        if not names and self.state is SagaState.RUNNING:
            names = [name for name, step in self.steps.items() if step.status is StepStatus.READY][:1]
        return ",".join(names) or None


# ------------------------------------------------------------------ as a document


def encoded(record: Record) -> str:
    """The part of a record that is kept as a document; the rest has columns of its own."""
    steps = {name: _sparse(step) for name, step in record.steps.items()}
    whole: dict[str, Any] = {"steps": steps}
    for name in ("input", "data", "result", "error", "failed_step", "committed", "parked_from", "redact"):
        value = getattr(record, name)
        if value:
            whole[name] = value
    if record.input is not None:
        whole["input"] = record.input
    if record.result is not None:
        whole["result"] = record.result
    timeline = record.written or written(record.timeline)
    return f'{_dumped(whole)[:-1]},"timeline":[{timeline}]}}'


def written(timeline: Iterable[Entry]) -> str:
    """Lines of a timeline as they are written."""
    return ",".join([_dumped(_line(entry)) for entry in timeline])


# ASCII: half of a surrogate pair in somebody's error message is no text that a database takes.
_dumped = json.JSONEncoder(separators=(",", ":")).encode
_set = object.__setattr__


def evolve(one: T, **changes: Any) -> T:
    """`dataclasses.replace` for values with slots that check nothing: several times as fast, and it is done often."""
    cls = type(one)
    new = object.__new__(cls)
    for name in cls.__slots__:  # type: ignore[attr-defined]  # they have
        _set(new, name, changes[name] if name in changes else getattr(one, name))
    return new


def decoded(row: SagaRow) -> Record:
    """The record that a row holds; ValueError where its document cannot be read."""
    if row.document.startswith(CODED):
        raise ValueError(
            f"the document of saga {row.id!r} is encoded: it takes the codec it was written with to read it"
        )
    try:
        whole = json.loads(row.document)
        steps = {name: _step(fields) for name, fields in whole["steps"].items()}
        timeline = tuple(Entry(*line) for line in whole["timeline"])
        parked_from = whole.get("parked_from")
        if parked_from is None and row.state is SagaState.PARKED:  # by somebody who could not read it, and left it
            parked_from = SagaState.COMPENSATING if _turned_back(steps, timeline) else SagaState.RUNNING
        return Record(
            id=row.id, type=row.type, version=row.version, kind=row.kind, state=row.state, cause=row.cause, steps=steps,
            input=whole.get("input"), data=whole.get("data", {}), result=whole.get("result"), error=whole.get("error"),
            failed_step=whole.get("failed_step"), correlation_id=row.correlation_id, created_at=row.created_at,
            deadline_at=row.deadline_at,
            timed_out=row.timed_out, committed=whole.get("committed", False),
            parked_from=None if parked_from is None else SagaState(parked_from),
            redact=tuple(whole.get("redact", ())), timeline=timeline,
        )  # fmt: skip
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"the document of saga {row.id!r} cannot be read: {error!r}") from error


_DEFAULTS = StepRecord()
_FIELDS = ("attempts", "undo_attempts", "undos", "series", "maybe", "done", "again", "result", "error", "not_before",
           "started_at", "ended_at")  # fmt: skip


_NUMBERS = ("attempts", "undo_attempts", "undos", "series")


def _sparse(step: StepRecord) -> dict[str, Any]:
    fields: dict[str, Any] = {"status": step.status}
    for name in _FIELDS:
        value = getattr(step, name)
        if value is not None and value is not False and not (name in _NUMBERS and value == 0):
            fields[name] = value
    return fields


def _turned_back(steps: Mapping[str, StepRecord], timeline: Iterable[Entry]) -> bool:
    undo = (StepStatus.UNDOING, StepStatus.UNDONE, StepStatus.UNDO_FAILED, StepStatus.UNDO_SKIPPED)
    return any(step.status in undo for step in steps.values()) or any(line.what == "compensating" for line in timeline)


def _step(fields: dict[str, Any]) -> StepRecord:
    given = {name: value for name, value in fields.items() if name in _FIELDS}
    return evolve(_DEFAULTS, **given, status=StepStatus(fields["status"]))


def _line(entry: Entry) -> list[Any]:
    line: list[Any] = [entry.at, entry.what, entry.step, entry.detail, entry.actor, entry.attempt]
    while line[-1] is None:
        line.pop()
    return line
