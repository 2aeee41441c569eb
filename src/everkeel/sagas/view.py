"""What people and programs see of a saga: read-only, without the definition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everkeel.engines.sagas import TERMINAL, Kind, SagaRow, SagaState
from everkeel.sagas.hiding import hidden
from everkeel.sagas.record import Entry, Record, StepRecord, decoded


@dataclass(frozen=True, kw_only=True, slots=True)
class SagaSummary:
    """A line in a list of sagas."""

    id: str
    type: str
    version: int
    kind: Kind
    state: SagaState
    cause: str | None
    step: str | None
    correlation_id: str | None
    timed_out: bool
    owner: str | None
    created_at: float
    updated_at: float
    deadline_at: float | None
    ended_at: float | None
    revision: int
    attention: bool
    """It waits for an operator; also where it has ended, and a late step could not be undone."""

    @property
    def ended(self) -> bool:
        """Is it in a final state?"""
        return self.state in TERMINAL

    @property
    def duration(self) -> float:
        """Seconds from its start to its end, or to its last change."""
        return (self.ended_at or self.updated_at) - self.created_at

    @classmethod
    def of(cls, row: SagaRow) -> SagaSummary:
        """What a row says."""
        return cls(**{name: getattr(row, name) for name in cls.__slots__})


@dataclass(frozen=True, slots=True)
class SagaView:
    """One saga with its steps and everything that happened to it."""

    summary: SagaSummary
    steps: Mapping[str, StepRecord]
    """Each step, in the order of the definition."""
    input: Any
    data: Mapping[str, Any]
    """What its steps share."""
    result: Any
    error: str | None
    failed_step: str | None
    committed: bool
    """Past its pivot."""
    timeline: Sequence[Entry]

    @property
    def id(self) -> str:
        """Which saga."""
        return self.summary.id

    @property
    def type(self) -> str:
        """What kind."""
        return self.summary.type

    @property
    def state(self) -> SagaState:
        """Where it is."""
        return self.summary.state

    @classmethod
    def of(cls, row: SagaRow, *, reveal: bool = False) -> SagaView:
        """What a row and its document say, without the values of fields that nobody may see; of a document that cannot
        be read, nothing."""
        try:
            record = decoded(row)
        except ValueError as error:
            record = Record(id=row.id, type=row.type, version=row.version, error=str(error))
        view = cls(
            SagaSummary.of(row), record.steps, record.input, record.data, record.result, record.error,
            record.failed_step, record.committed, record.timeline,
        )  # fmt: skip
        return view if reveal else hidden(view, record.redact)


@dataclass(frozen=True, slots=True)
class SagaPage:
    """Some sagas, the newest first, and where the next ones begin; `next` is None at the end."""

    sagas: Sequence[SagaSummary]
    next: str | None = None
