"""Sagas as stores keep them: one row each, changed by compare-and-set; filters, pages, and what a store must do.

A store knows a saga's identity, its state and when somebody must look at it next. What its steps have done is a
document that only `everkeel.sagas` reads.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, Protocol, TypeAlias

from everkeel.engines.rows import OutboxRow
from everkeel.errors import ConfigError

Kind: TypeAlias = Literal["orchestrated", "choreographed"]


class SagaState(StrEnum):
    """Where a saga is. `COMPLETED`, `COMPENSATED` and `FAILED` are final."""

    PENDING = "pending"
    """Written down; nobody has begun."""
    RUNNING = "running"
    """On its way forward."""
    COMPLETED = "completed"
    """Every step is done."""
    COMPENSATING = "compensating"
    """On its way back: what was done, or may have been, is being undone."""
    COMPENSATED = "compensated"
    """Everything that had to be undone is confirmed to be."""
    COMPENSATION_BLOCKED = "compensation_blocked"
    """A compensation failed as often as it may: an operator retries it, skips it or marks it as done."""
    PARKED = "parked"
    """Nobody can go on by themselves: a definition that is unknown or was changed, a document that cannot be read, a
    step after the pivot that was rejected. An operator resumes it, or gives it up."""
    FAILED = "failed"
    """Given up on by an operator, with a reason."""


TERMINAL = frozenset({SagaState.COMPLETED, SagaState.COMPENSATED, SagaState.FAILED})
"""Whoever is there stays there."""
STOPPED = frozenset({SagaState.COMPENSATION_BLOCKED, SagaState.PARKED})
"""Where nothing more happens until an operator says so."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SagaRow:
    """One saga: the columns of `everkeel_sagas`. Moments are seconds since 1970 by the store's clock."""

    id: str
    type: str
    version: int
    """Of the definition it began with."""
    kind: Kind
    state: SagaState
    cause: str | None
    """Why it turned back or stopped: rejected, failed, timed_out, cancelled, operator, ..."""
    step: str | None
    """The step it is at; several are separated by commas."""
    revision: int
    """Grows with every change; what a compare-and-set compares."""
    correlation_id: str | None
    document: str
    timed_out: bool
    owner: str | None
    """Who works on it, until `due_at`."""
    created_at: float
    updated_at: float
    deadline_at: float | None
    due_at: float | None
    """When somebody must look at it: the end of a lease, of a delay, of its time. None: not before somebody asks."""
    ended_at: float | None
    now: float
    """The store's time when the row was read."""

    @property
    def unsettled(self) -> bool:
        """Has it ended, and a step that was done late could not be undone? Its state stays; somebody must decide.

        Nobody is to look at it by themselves, and yet it is at a step.
        """
        return self.state is SagaState.COMPENSATED and self.due_at is None and self.step is not None

    @property
    def attention(self) -> bool:
        """Does it wait for an operator?"""
        return self.state in STOPPED or self.unsettled


@dataclass(frozen=True, kw_only=True, slots=True)
class NewSaga:
    """A saga to be written down, if there is none of its id."""

    id: str
    type: str
    version: int
    kind: Kind
    state: SagaState
    document: str
    step: str | None = None
    correlation_id: str | None = None
    deadline: float | None = None
    """Seconds from now."""
    due: float | None = 0.0
    """Seconds from now after which somebody else may take it; None: nobody."""
    owner: str | None = None
    emit: Sequence[OutboxRow] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class SagaChange:
    """The next revision of a saga, if `expect` is still the last one, and the events that belong to it."""

    id: str
    expect: int
    state: SagaState
    document: str
    cause: str | None = None
    step: str | None = None
    timed_out: bool = False
    keep: bool = True
    """Leave owner and due time as they are: the lease goes on. Else they become:"""
    owner: str | None = None
    due: float | None = None
    deadline: float | None = None
    """Its time ends so many seconds from now; None: as before."""
    emit: Sequence[OutboxRow] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class SagaFilter:
    """Which sagas: those that fit everything given; `since` and `until` bound their start (seconds of 1970)."""

    type: str | None = None
    kind: Kind | None = None
    state: Collection[SagaState] | None = None
    active: bool | None = None
    """True: those that have not ended."""
    cause: str | None = None
    step: str | None = None
    correlation: str | None = None
    timed_out: bool | None = None
    attention: bool | None = None
    """True: those that wait for an operator, because they cannot go on or a late step could not be undone."""
    since: float | None = None
    until: float | None = None
    older_than: float | None = None
    """Started at least so many seconds ago, by the store's clock."""

    def matches(self, row: SagaRow, now: float) -> bool:
        """Does a saga fit? Stores with a query language of their own say the same in it."""
        pairs = (
            (self.type, row.type),
            (self.kind, row.kind),
            (self.cause, row.cause),
            (self.correlation, row.correlation_id),
            (self.timed_out, row.timed_out),
            (self.attention, row.attention),
        )
        return (
            all(wanted is None or wanted == had for wanted, had in pairs)
            and (self.state is None or row.state in self.state)
            and (self.active is None or self.active == (row.state not in TERMINAL))
            and (self.step is None or f",{self.step}," in f",{row.step or ''},")
            and (self.since is None or row.created_at >= self.since)
            and (self.until is None or row.created_at < self.until)
            and (self.older_than is None or row.created_at <= now - self.older_than)
        )


@dataclass(frozen=True, slots=True)
class SagaRowPage:
    """Some sagas, the newest first, and where the next ones begin; `next` is None at the end."""

    rows: Sequence[SagaRow]
    next: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class SagaTypeStats:
    """The sagas of one type that are kept, counted by the store."""

    by_state: Mapping[SagaState, int] = field(default_factory=dict)
    timed_out: int = 0
    unsettled: int = 0
    """How many have ended with a late step that could not be undone: they wait for an operator."""
    oldest_active: float = 0.0
    """Seconds since the oldest saga began that has not ended; 0 when there is none."""
    mean_duration: float | None = None
    """Seconds from start to end of those that have ended."""
    max_duration: float | None = None

    @property
    def total(self) -> int:
        """How many there are."""
        return sum(self.by_state.values())

    @property
    def active(self) -> int:
        """How many have not ended."""
        return sum(count for state, count in self.by_state.items() if state not in TERMINAL)


def cursor_of(row: SagaRow) -> str:
    """A place in the list that stays right while sagas come and go: it names the last one seen."""
    return urlsafe_b64encode(json.dumps([row.created_at, row.id]).encode()).decode().rstrip("=")


def place_of(cursor: str) -> tuple[float, str]:
    """What a cursor says; a `ConfigError` for one that is none."""
    try:
        at, id = json.loads(urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4)))
        return float(at), str(id)
    except (ValueError, TypeError, AttributeError):
        raise ConfigError("sagas", "cursor", "must be one that a page gave", repr(cursor)[:80]) from None


def kind_key(type: str, version: int) -> str:
    """A definition's identity, as claims name it."""
    return f"{type}@{version}"


def type_of(key: str) -> str:
    """The type in a definition's identity."""
    return key.rpartition("@")[0]


class SagaStore(Protocol):
    """Where sagas are kept. Every method is atomic; `tx` is a transaction of the same engine or the caller's own."""

    async def create(self, saga: NewSaga, *, tx: Any = None) -> tuple[SagaRow, bool]:
        """Write a saga down, with its events, unless there is one of its id; answers what is there now, and whether
        that is the new one."""
        ...

    async def save(self, change: SagaChange, *, tx: Any = None) -> int | None:
        """The next revision, together with its events, if nobody was faster; answers its number, or None."""
        ...

    async def write(
        self, new: Sequence[NewSaga], changes: Sequence[SagaChange]
    ) -> tuple[list[tuple[SagaRow, bool]], list[int | None]]:
        """Many of both in one transaction, each decided for itself."""
        ...

    async def load(self, id: str, *, tx: Any = None) -> SagaRow | None:
        """One saga."""
        ...

    async def claim_due(
        self, owner: str, limit: int, lease: float, *,
        known: Collection[str] | None = None, beside: Collection[str] | None = None, overdue: float = 0.0,
    ) -> list[SagaRow]:  # fmt: skip
        """Take up to `limit` sagas at which somebody must look, for `lease` seconds. Each claim is a revision, so that
        whoever held one before can write no more.

        Only definitions that are `known` (as `kind_key` names them), or only other versions of the types that are in
        `beside`; only what is due for at least `overdue` seconds.
        """
        ...

    async def extend(self, owner: str, ids: Collection[str], lease: float) -> Mapping[str, int]:
        """Hold on for `lease` seconds from now; answers those still held, with their revisions."""
        ...

    async def held(self, owner: str, ids: Collection[str]) -> Mapping[str, int]:
        """Those of them that `owner` holds, with their revisions; nothing is written."""
        ...

    async def query(self, wanted: SagaFilter, *, limit: int, cursor: str | None = None) -> SagaRowPage:
        """A page of sagas, the newest first."""
        ...

    async def count(self, wanted: SagaFilter) -> int:
        """How many there are."""
        ...

    async def stats(self) -> Mapping[str, SagaTypeStats]:
        """What is in there, by type, counted now."""
        ...

    async def purge(self, older_than: float, limit: int) -> int:
        """Delete up to `limit` sagas that ended so many seconds ago, and of which nothing is left to do: by us, or
        by an operator (`unsettled`)."""
        ...
