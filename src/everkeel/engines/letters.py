"""Dead letters as stores keep them: their states and who may follow whom, filters, pages, and the trail of changes.

A letter is one failure of one event in one consumer. Replaying it sends the event again with a higher epoch; if that
fails too, a new letter is written, and the old one says so. So no letter is ever rewritten, only its status moves on.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf, isnan
from typing import Any, Literal, Protocol
from uuid import uuid4

from everkeel.engines.rows import DeadLetterRow, storable
from everkeel.errors import ConfigError


class Status(StrEnum):
    """What became of a dead letter."""

    PENDING = "pending"
    """Waits for somebody to replay or discard it."""
    PARKED = "parked"
    """Never tried: it came behind a dead letter of its key, and follows when that one is done."""
    REPLAYED = "replayed"
    """On its way again; nobody knows yet how it ends."""
    RESOLVED = "resolved"
    """Replayed, and handled."""
    SUPERSEDED = "superseded"
    """It came back: a newer letter of the same event has the rest of the story."""
    DISCARDED = "discarded"
    """Given up on by somebody, with a reason."""


UNRESOLVED = (Status.PENDING, Status.PARKED, Status.REPLAYED)
"""Those that hold up later events of their key, where followers are parked."""

FINISHED = (Status.RESOLVED, Status.SUPERSEDED, Status.DISCARDED)
"""Those that only wait to be purged."""

OUTBOX = "outbox"
"""The consumer of letters that never left: the relay buried them."""

PARKED_REASON = "parked"
"""Why a letter was written that is no failure; such letters are no replays that count."""

TRANSITIONS: Mapping[Status, frozenset[Status]] = {
    Status.PENDING: frozenset({Status.REPLAYED, Status.RESOLVED, Status.SUPERSEDED, Status.DISCARDED}),
    Status.PARKED: frozenset({Status.REPLAYED, Status.RESOLVED, Status.SUPERSEDED, Status.DISCARDED}),
    Status.REPLAYED: frozenset({Status.RESOLVED, Status.SUPERSEDED, Status.PENDING}),
    Status.RESOLVED: frozenset(),
    Status.SUPERSEDED: frozenset(),
    Status.DISCARDED: frozenset(),
}
"""From where to where. Who is resolved, discarded or succeeded by a newer letter stays so."""


def may_become(before: Status, after: Status) -> bool:
    """Is this a change that can happen?

    >>> may_become(Status.DISCARDED, Status.REPLAYED)
    False
    """
    return after in TRANSITIONS[before]


ActorKind = Literal["human", "agent", "auto"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """Who wants a letter's status changed, and why."""

    actor: str = "everkeel"
    kind: ActorKind = "auto"
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class AuditRow:
    """One line of the trail: every change of a letter leaves one, in the same transaction."""

    seq: int
    letter: str
    at: float
    before: str | None
    """None: the letter was written."""
    after: str | None
    """None: the letter was deleted, its time being over."""
    actor: str
    kind: str
    reason: str


_TEXTS = ("consumer", "type", "error", "topic", "key", "source", "event_id", "saga", "correlation", "reason")


@dataclass(frozen=True, kw_only=True, slots=True)
class LetterFilter:
    """Which letters: those that fit everything given; `since` and `until` bound the last failure (seconds of 1970)."""

    consumer: str | None = None
    status: Collection[Status] | Status | None = None
    """One, or several of which it has one."""
    type: str | None = None
    error: str | None = None
    """The class of the error, with or without its module."""
    topic: str | None = None
    key: str | None = None
    source: str | None = None
    event_id: str | None = None
    saga: str | None = None
    correlation: str | None = None
    reason: str | None = None
    since: float | None = None
    until: float | None = None
    older_than: float | None = None
    """The last failure is at least so many seconds ago, by the store's clock."""

    def __post_init__(self) -> None:
        if self.status is not None:
            given = [self.status] if isinstance(self.status, str) else self.status
            try:
                object.__setattr__(self, "status", tuple(Status(one) for one in given))
            except (TypeError, ValueError):
                allowed = f"must be some of {', '.join(Status)}"
                raise ConfigError("dead letters", "status", allowed, repr(self.status)) from None
        for name in _TEXTS:  # what no store can keep is found in none, which is no error
            if isinstance(value := getattr(self, name), str):
                object.__setattr__(self, name, storable(value))
        for name in ("since", "until"):
            if (moment := getattr(self, name)) is not None:
                try:
                    object.__setattr__(self, name, within_calendars(float(moment)))
                except (TypeError, ValueError):
                    raise ConfigError("dead letters", name, "must be seconds since 1970", repr(moment)) from None
        if self.older_than is not None and not 0 <= self.older_than < inf:
            raise ConfigError("dead letters", "older_than", "must be seconds, at least 0", repr(self.older_than))

    def matches(self, row: DeadLetterRow, now: float) -> bool:
        """Does a letter fit? Stores with a query language of their own say the same in it."""
        pairs = (
            (self.consumer, row.consumer),
            (self.type, row.event_type),
            (self.topic, row.topic),
            (self.key, row.key),
            (self.source, row.source),
            (self.event_id, row.event_id),
            (self.saga, row.saga_id),
            (self.correlation, row.correlation_id),
            (self.reason, row.reason),
        )
        return (
            all(wanted is None or wanted == had for wanted, had in pairs)
            and (self.status is None or Status(row.status) in self.status)
            and (self.error is None or self.error in (row.error_type, row.error_type.rpartition(".")[2]))
            and (self.since is None or row.failed_at >= self.since)
            and (self.until is None or row.failed_at < self.until)
            and (self.older_than is None or row.failed_at <= now - self.older_than)
        )


LOOKED_AT = 5_000
"""How many later rows of an outbox are looked at for newer events of a letter's key: to look must not take long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Newer:
    """What became of the events behind a letter in its key: a replay now would come after those that were handled."""

    waiting: int = 0
    """Events of the same key that wait behind it: letters that are not finished, rows parked in the outbox."""
    handled: int = 0
    """Newer events of the same key that its consumer has handled; for letters of the outbox, that were sent."""
    exact: bool = False
    """Are these all? If not, there may be more handled ones that this store knows nothing of: the event was written to
    the outbox of another database, or so long ago that rows behind it were purged, or too many rows came since."""


@dataclass(frozen=True, slots=True)
class LetterPage:
    """Some letters, and where the next ones begin; `next` is None at the end."""

    letters: Sequence[DeadLetterRow]
    next: str | None = None


def within_calendars(moment: float) -> float:
    """A moment that a database has a date for; what is beyond is as good as the first or the last one."""
    if isnan(moment):
        raise ValueError("not a number is no moment")
    return min(max(moment, 0.0), 253_402_300_799.0)


def cursor_of(row: DeadLetterRow) -> str:
    """A place in the list that stays right while letters come and go: it names the last one seen."""
    return urlsafe_b64encode(json.dumps([row.failed_at, row.id]).encode()).decode().rstrip("=")


def place_of(cursor: str) -> tuple[float, str]:
    """What a cursor says; a `ConfigError` for one that is none."""
    try:
        at, id = json.loads(urlsafe_b64decode(cursor.encode() + b"=" * (-len(cursor) % 4)))
        return within_calendars(float(at)), storable(str(id))
    except (ValueError, TypeError, AttributeError):
        raise ConfigError("dead letters", "cursor", "must be one that a page gave", repr(cursor)[:80]) from None


@dataclass(frozen=True, kw_only=True, slots=True)
class NewLetter:
    """What is written when an event is given up on, or parked. The store adds its place and times."""

    consumer: str
    topic: str
    key: str | None
    source: str
    event_id: str
    event_type: str
    epoch: int
    attributes: str
    payload: str | None
    encoding: Literal["base64"] | None
    reason: str
    error_type: str = ""
    error: str = ""
    traceback: str = ""
    attempts: int = 0
    status: Status = Status.PENDING
    saga_id: str | None = None
    correlation_id: str | None = None
    behind: str | None = None
    change: Change = field(default_factory=Change)
    id: str = field(default_factory=lambda: str(uuid4()))
    """The letter's own id, if it is written. Where there is one of this failure already, that one keeps its own."""


class DeadLetterStore(Protocol):
    """Where given-up events are kept. Every method is atomic; every change is a compare-and-set with an audit row.

    `tx` is a transaction of the same engine: a replay is a change of status and a row in the outbox, or neither.
    """

    async def put(self, letter: NewLetter, *, tx: Any = None) -> DeadLetterRow:
        """Keep a letter. If there is one for the same consumer, event and topic with this epoch or a higher one, the
        failure is an old story: nothing changes, and that letter is the answer. Those with a lower epoch that are not
        finished become `SUPERSEDED`."""
        ...

    async def get(self, id: str) -> DeadLetterRow | None:
        """One letter."""
        ...

    async def query(
        self, wanted: LetterFilter, *, limit: int, cursor: str | None = None, oldest_first: bool = False
    ) -> LetterPage:
        """A page of letters, the last failure first, or the other way round."""
        ...

    async def count(self, wanted: LetterFilter, *, tx: Any = None) -> int:
        """How many there are."""
        ...

    async def tally(self) -> Mapping[tuple[str, str, str], int]:
        """How many there are of each consumer, reason and status: what a gauge shows is asked of the store."""
        ...

    async def oldest(self) -> Mapping[str, float]:
        """For each consumer, how many seconds ago its oldest letter was written that is still unresolved."""
        ...

    async def transition(
        self,
        id: str,
        before: Status,
        after: Status,
        change: Change,
        *,
        version: int | None = None,
        key: str | None = None,
        tx: Any = None,
    ) -> DeadLetterRow | None:
        """Move a letter on, if it is (still) where it is thought to be; None if not: somebody else was faster.

        With `key` it leaves the line of its key for that of another one.
        """
        ...

    async def next_epoch(self, row: DeadLetterRow, *, tx: Any) -> int | None:
        """An epoch higher than every one of this event, in any consumer; two transactions never get the same.

        None: the event is on its way for another consumer and has not left the outbox; to append it would be no use.
        """
        ...

    async def settle(self, consumer: str, source: str, event_id: str, topic: str, *, tx: Any = None) -> list[Status]:
        """The event was handled: its letters that wait or are on their way are `RESOLVED`. Answers what they were."""
        ...

    async def blocking(
        self, consumer: str, topic: str, key: str, source: str, event_id: str, *, tx: Any = None
    ) -> DeadLetterRow | None:
        """The first letter of the key that must be done before this event; None: it may run."""
        ...

    async def parked(self, consumer: str, topic: str, key: str, *, limit: int, tx: Any = None) -> list[DeadLetterRow]:
        """The parked letters at the front of the key, in their order; none while something else is before them."""
        ...

    async def parked_keys(self, consumer: str, limit: int) -> Sequence[tuple[str, str]]:
        """Topics and keys of which a parked letter is at the front, with nothing left to wait for."""
        ...

    async def audit(self, id: str) -> Sequence[AuditRow]:
        """What happened to a letter, the first change first; also after it was purged."""
        ...

    async def newer(self, row: DeadLetterRow) -> Newer:
        """What became of the events that came behind this one in its key, as far as this store can know."""
        ...

    async def purge(self, older_than: float, limit: int, change: Change, *, consumer: str | None = None) -> int:
        """Delete up to `limit` finished letters whose last change is so many seconds ago, with a line in the trail; and
        the trail of those deleted as long ago. Answers how many letters. With `consumer`, only that one's letters.

        A letter that was `SUPERSEDED` stays until the newest of its event is finished: it says how often that one was
        replayed.
        """
        ...

    async def make_room(self, consumer: str, limit: int, change: Change, *, tx: Any = None) -> int:
        """Delete up to `limit` finished letters of a consumer, whatever their age, the longest finished first, with a
        line in the trail, which stays. Answers how many; never one that still waits."""
        ...
