"""What was given up on, in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, takewhile
from typing import TYPE_CHECKING, Any, TypeVar

from everkeel.engines.letters import (
    FINISHED,
    OUTBOX,
    PARKED_REASON,
    UNRESOLVED,
    AuditRow,
    Change,
    LetterFilter,
    LetterPage,
    Newer,
    NewLetter,
    Status,
    cursor_of,
    may_become,
    place_of,
)
from everkeel.engines.memory.queue import DELIVERED, PARKED, PENDING
from everkeel.engines.memory.transaction import MemoryTransaction
from everkeel.engines.rows import DeadLetterRow, inbox_key
from everkeel.errors import ConfigError, DeadLetterStateError
from everkeel.idempotency.memory import MemoryRecords
from everkeel.idempotency.records import State, StoreStats

if TYPE_CHECKING:
    from everkeel.engines.memory.engine import MemoryEngine

K = TypeVar("K")


class MemoryDeadLetters:
    """A `DeadLetterStore` that lives as long as its process.

    Changes in a transaction are seen at once and undone by a rollback: whoever loses a race because of one that is
    then rolled back has lost it to nobody, and tries again.
    """

    def __init__(self, engine: MemoryEngine) -> None:
        self._engine = engine
        self._rows = engine.dead_letter_rows
        self._events: dict[tuple[str, str, str, str], set[str]] = {}  # ids by event, and by key
        self._lanes: dict[tuple[str, str, str | None], set[str]] = {}
        self._trail: list[AuditRow] = []
        self._numbers, self._places = count(1), count(1)

    # ------------------------------------------------------------------ writing

    async def put(self, letter: NewLetter, *, tx: Any = None) -> DeadLetterRow:
        undo = _undo(tx)
        with self._engine.lock:
            known = self._of_event(letter.consumer, letter.source, letter.event_id, letter.topic)
            if known and known[-1].epoch >= letter.epoch:
                return self._seen(known[-1])
            now = self._engine.clock.time()
            row = DeadLetterRow(
                id=letter.id, consumer=letter.consumer, status=letter.status.value, topic=letter.topic,
                key=letter.key, source=letter.source, event_id=letter.event_id, event_type=letter.event_type,
                epoch=letter.epoch, attributes=letter.attributes, payload=letter.payload, encoding=letter.encoding,
                reason=letter.reason, error_type=letter.error_type, error=letter.error, traceback=letter.traceback,
                attempts=letter.attempts, saga_id=letter.saga_id, correlation_id=letter.correlation_id,
                behind=letter.behind, created_at=now, failed_at=now, updated_at=now,
                position=min((one.position for one in known if one.position), default=0) or next(self._places),
            )  # fmt: skip
            self._keep(row)
            undo(lambda: self._drop(row.id))
            self._note(row.id, None, letter.status, letter.change, undo)
            for older in known:
                if Status(older.status) in UNRESOLVED:
                    self._move(older, Status.SUPERSEDED, letter.change, undo)
            return self._seen(row)

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
        undo = _undo(tx)
        if not may_become(before, after):
            raise DeadLetterStateError(id, before.value, after.value)
        with self._engine.lock:
            row = self._rows.get(id)
            if row is None or row.status != before.value or version not in (None, row.version):
                return None
            return self._seen(self._move(row, after, change, undo, key))

    async def settle(self, consumer: str, source: str, event_id: str, topic: str, *, tx: Any = None) -> list[Status]:
        undo = _undo(tx)
        with self._engine.lock:
            letters = self._of_event(consumer, source, event_id, topic)
            unresolved = [row for row in letters if Status(row.status) in UNRESOLVED]
            for row in unresolved:
                self._move(row, Status.RESOLVED, Change(actor=consumer, reason="handled"), undo)
            return [Status(row.status) for row in unresolved]

    async def next_epoch(self, row: DeadLetterRow, *, tx: Any) -> int | None:
        event = (row.source, row.event_id, row.topic)
        with self._engine.lock:
            leaving = self._engine.outbox.known(*event)
            if leaving is not None and leaving.state == PENDING:
                return None
            epochs = [one.epoch for one in self._rows.values() if (one.source, one.event_id, one.topic) == event]
            return max([*epochs, row.epoch, leaving.item.epoch if leaving is not None else 0]) + 1

    async def purge(self, older_than: float, limit: int, change: Change, *, consumer: str | None = None) -> int:
        with self._engine.lock:
            before = self._engine.clock.time() - older_than
            forgotten = {one.letter for one in self._trail if one.after is None and one.at <= before}
            self._trail[:] = [one for one in self._trail if one.letter not in forgotten]
            return self._delete(consumer, before, limit, change, _undo(None))

    async def make_room(self, consumer: str, limit: int, change: Change, *, tx: Any = None) -> int:
        undo = _undo(tx)
        with self._engine.lock:
            return self._delete(consumer, self._engine.clock.time(), limit, change, undo)

    def _delete(
        self,
        consumer: str | None,
        before: float,
        limit: int,
        change: Change,
        undo: Callable[[Callable[[], object]], object],
    ) -> int:
        unresolved = {_identity(row) for row in self._rows.values() if Status(row.status) in UNRESOLVED}
        old = [
            row
            for row in self._rows.values()
            if row.status in FINISHED
            and row.updated_at <= before
            and consumer in (None, row.consumer)
            and not (row.status == Status.SUPERSEDED and _identity(row) in unresolved)
        ]
        old = sorted(old, key=lambda row: row.updated_at)[:limit]
        for row in old:
            self._drop(row.id)
            undo(partial(self._keep, row))
            self._note(row.id, Status(row.status), None, change, undo)
        return len(old)

    # ------------------------------------------------------------------ reading

    async def get(self, id: str) -> DeadLetterRow | None:
        with self._engine.lock:
            row = self._rows.get(id)
            return None if row is None else self._seen(row)

    async def query(
        self, wanted: LetterFilter, *, limit: int, cursor: str | None = None, oldest_first: bool = False
    ) -> LetterPage:
        after = None if cursor is None else place_of(cursor)
        with self._engine.lock:
            now = self._engine.clock.time()
            found = [row for row in self._rows.values() if wanted.matches(row, now)]
            found.sort(key=_place, reverse=not oldest_first)
            if after is not None:
                found = [row for row in found if (_place(row) > after if oldest_first else _place(row) < after)]
            letters = [self._seen(row) for row in found[:limit]]
        return LetterPage(letters, cursor_of(letters[-1]) if len(found) > limit else None)

    async def count(self, wanted: LetterFilter, *, tx: Any = None) -> int:
        with self._engine.lock:
            now = self._engine.clock.time()
            return sum(wanted.matches(row, now) for row in self._rows.values())

    async def tally(self) -> Mapping[tuple[str, str, str], int]:
        with self._engine.lock:
            return Counter((row.consumer, row.reason, row.status) for row in self._rows.values())

    async def oldest(self) -> Mapping[str, float]:
        found: dict[str, float] = {}
        with self._engine.lock:
            now = self._engine.clock.time()
            for row in self._rows.values():
                if Status(row.status) in UNRESOLVED:
                    found[row.consumer] = max(found.get(row.consumer, 0.0), now - row.created_at)
        return found

    async def blocking(
        self, consumer: str, topic: str, key: str, source: str, event_id: str, *, tx: Any = None
    ) -> DeadLetterRow | None:
        with self._engine.lock:
            mine = [row.position for row in self._of_event(consumer, source, event_id, topic)]
            before = [
                row
                for row in self._of_key(consumer, topic, key)
                if (row.source, row.event_id) != (source, event_id) and (not mine or row.position < min(mine))
            ]
            return self._seen(before[0]) if before else None

    async def parked(self, consumer: str, topic: str, key: str, *, limit: int, tx: Any = None) -> list[DeadLetterRow]:
        with self._engine.lock:
            front = self._of_key(consumer, topic, key)[:limit]
            return [self._seen(row) for row in takewhile(lambda row: row.status == Status.PARKED, front)]

    async def parked_keys(self, consumer: str, limit: int) -> Sequence[tuple[str, str]]:
        with self._engine.lock:
            keys = {
                (row.topic, row.key): None
                for row in self._rows.values()
                if row.consumer == consumer and row.key is not None and row.status == Status.PARKED
            }
            free = [
                (topic, key) for topic, key in keys if self._of_key(consumer, topic, key)[0].status == Status.PARKED
            ]
            return free[:limit]

    async def newer(self, row: DeadLetterRow) -> Newer:
        if row.key is None:
            return Newer(exact=True)
        own, lane = (row.source, row.event_id), (row.consumer, row.topic, row.key)
        with self._engine.lock:
            lane_rows = (self._rows[id] for id in self._lanes.get(lane, ()))
            behind = [one for one in lane_rows if one.position > row.position]
            place = self._engine.outbox.known(*own, row.topic)
            age = 0.0 if place is None else self._engine.clock.time() - place.created_at
            later = self._engine.outbox.behind(row.topic, row.key, place, row.first_failed_at)
        waiting = {(one.source, one.event_id) for one in behind if Status(one.status) in UNRESOLVED} - {own}
        handled = {(one.source, one.event_id) for one in behind if one.status == Status.RESOLVED} - {own}
        sent = {(entry.item.source, entry.item.id) for entry in later if entry.state == DELIVERED} - {own}
        exact = place is not None and age < self._engine.keep_delivered
        if row.consumer == OUTBOX:
            waiting |= {(entry.item.source, entry.item.id) for entry in later if entry.state in (PENDING, PARKED)}
            handled |= sent
        else:
            inbox: MemoryRecords = self._engine.inbox.sync
            exact = exact and inbox.stats(row.consumer) != StoreStats(0, 0, 0)
            records = {event: inbox.get(row.consumer, inbox_key(*event)) for event in sent}
            handled |= {event for event, record in records.items() if record and record.state is State.COMPLETED}
        return Newer(waiting=len(waiting - handled), handled=len(handled), exact=exact)

    async def audit(self, id: str) -> Sequence[AuditRow]:
        with self._engine.lock:
            return [one for one in self._trail if one.letter == id]

    # ------------------------------------------------------------------ under the lock

    def _keep(self, row: DeadLetterRow) -> None:
        """Write a row, or write over it; found by its event and by its key."""
        self._drop(row.id)
        self._rows[row.id] = row
        self._events.setdefault(_identity(row), set()).add(row.id)
        self._lanes.setdefault(_lane(row), set()).add(row.id)

    def _drop(self, id: str) -> None:
        row = self._rows.pop(id, None)
        if row is not None:
            _strike(self._events, _identity(row), id)
            _strike(self._lanes, _lane(row), id)

    def _of_event(self, consumer: str, source: str, event_id: str, topic: str) -> list[DeadLetterRow]:
        rows = (self._rows[id] for id in self._events.get((consumer, source, event_id, topic), ()))
        return sorted(rows, key=lambda row: row.epoch)

    def _of_key(self, consumer: str, topic: str, key: str) -> list[DeadLetterRow]:
        rows = (self._rows[id] for id in self._lanes.get((consumer, topic, key), ()))
        return sorted((row for row in rows if Status(row.status) in UNRESOLVED), key=lambda row: row.position)

    def _seen(self, row: DeadLetterRow) -> DeadLetterRow:
        """The letter with what only its earlier letters know: how often it was replayed, and when it failed first."""
        earlier = [one for one in self._of_event(*_identity(row)) if one.epoch < row.epoch]
        replays = sum(one.reason != PARKED_REASON for one in earlier)
        if row.status in (Status.REPLAYED, Status.RESOLVED) and row.reason != PARKED_REASON:
            replays += 1
        return replace(row, replays=replays, first_failed_at=min(one.failed_at for one in [*earlier, row]))

    def _move(
        self,
        row: DeadLetterRow,
        after: Status,
        change: Change,
        undo: Callable[[Callable[[], object]], object],
        key: str | None = None,
    ) -> DeadLetterRow:
        now = self._engine.clock.time()
        moved = replace(row, status=after.value, version=row.version + 1, updated_at=now, key=key or row.key)
        self._keep(moved)
        undo(lambda: self._keep(row))
        self._note(row.id, Status(row.status), after, change, undo)
        return moved

    def _note(
        self,
        letter: str,
        before: Status | None,
        after: Status | None,
        change: Change,
        undo: Callable[[Callable[[], object]], object],
    ) -> None:
        line = AuditRow(
            seq=next(self._numbers), letter=letter, at=self._engine.clock.time(),
            before=None if before is None else before.value, after=None if after is None else after.value,
            actor=change.actor, kind=change.kind, reason=change.reason,
        )  # fmt: skip
        self._trail.append(line)
        undo(lambda: self._trail.remove(line))


def _place(row: DeadLetterRow) -> tuple[float, str]:
    return row.failed_at, row.id


def _identity(row: DeadLetterRow) -> tuple[str, str, str, str]:
    return row.consumer, row.source, row.event_id, row.topic


def _lane(row: DeadLetterRow) -> tuple[str, str, str | None]:
    return row.consumer, row.topic, row.key


def _strike(index: dict[K, set[str]], place: K, id: str) -> None:
    index[place].discard(id)
    if not index[place]:
        del index[place]


def _undo(tx: object) -> Callable[[Callable[[], object]], object]:
    """Where to say how a change is undone."""
    if tx is None:
        return lambda act: None
    if not isinstance(tx, MemoryTransaction):
        raise ConfigError("tx", None, "must come from MemoryEngine.transaction()", type(tx).__qualname__)
    return tx.on_rollback
