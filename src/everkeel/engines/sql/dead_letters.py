"""Dead letters in SQL: each method an operation of a few statements, which its engine runs in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from everkeel.engines.letters import (
    FINISHED,
    PARKED_REASON,
    UNRESOLVED,
    AuditRow,
    Change,
    LetterFilter,
    LetterPage,
    NewLetter,
    Status,
    cursor_of,
    may_become,
    place_of,
)
from everkeel.engines.rows import DeadLetterRow
from everkeel.engines.sql.dialect import Dialect
from everkeel.engines.sql.inbox import SQLEngine
from everkeel.engines.sql.letter_tables import POSTGRES_TABLES as POSTGRES_TABLES
from everkeel.engines.sql.letter_tables import SQLITE_TABLES as SQLITE_TABLES
from everkeel.engines.sql.statement import Operation, Statement
from everkeel.errors import DeadLetterStateError

_UNRESOLVED = ", ".join(f"'{status.value}'" for status in UNRESOLVED)
_FINISHED = ", ".join(f"'{status.value}'" for status in FINISHED)
_SAME = "{0}.consumer = d.consumer AND {0}.source = d.source AND {0}.event_id = d.event_id AND {0}.topic = d.topic"
_IDENTITY = "consumer = :consumer AND source = :source AND event_id = :event_id AND topic = :topic"
_AT_ONCE = 200
_COLUMNS = (
    "id", "consumer", "status", "topic", "key", "source", "event_id", "event_type", "epoch", "attributes", "payload",
    "encoding", "reason", "error_type", "error", "traceback", "attempts", "saga_id", "correlation_id", "behind",
)  # fmt: skip


class DeadLetterOperations:
    """Each method of the store as an operation."""

    def __init__(self, dialect: Dialect, engine: SQLEngine) -> None:
        self._dialect, self._engine = dialect, engine
        seconds = dialect.seconds.format
        before = f"FROM everkeel_dead_letters AS p WHERE {_SAME.format('p')} AND p.epoch"
        self._select = f"""
SELECT {", ".join(f"d.{name}" for name in _COLUMNS)}, {seconds("d.created_at")}, {seconds("d.failed_at")},
    {seconds("d.updated_at")}, d.version, d.position,
    (SELECT count(*) {before} < d.epoch AND p.reason <> '{PARKED_REASON}')
        + CASE WHEN d.status IN ('replayed', 'resolved') AND d.reason <> '{PARKED_REASON}' THEN 1 ELSE 0 END,
    (SELECT {seconds("min(p.failed_at)")} {before} <= d.epoch)
FROM everkeel_dead_letters AS d"""
        now = dialect.now
        self._insert = f"""
INSERT INTO everkeel_dead_letters ({", ".join(_COLUMNS)}, created_at, failed_at, updated_at, position)
VALUES ({", ".join(f":{name}" for name in _COLUMNS)}, {now}, {now}, {now},
    coalesce(CAST(:position AS bigint), {dialect.next_position}))
ON CONFLICT (consumer, source, event_id, topic, epoch) DO NOTHING RETURNING id"""
        self._audit = f"""
INSERT INTO everkeel_dead_letter_audit (letter, at, was, became, actor, kind, reason)
VALUES (:letter, {now}, :was, :became, :actor, :kind, :reason)"""
        self._move = f"""
UPDATE everkeel_dead_letters SET status = :after, version = version + 1, updated_at = {now}
WHERE id = :id AND status = :before"""
        # Whoever else deletes at this moment deletes others.
        skip = f"{dialect.for_update} OF d SKIP LOCKED" if dialect.for_update else ""
        self._delete = f"""
INSERT INTO everkeel_dead_letter_audit (letter, at, was, became, actor, kind, reason)
SELECT id, {now}, status, NULL, :actor, :kind, :reason FROM everkeel_dead_letters
WHERE id IN (SELECT d.id FROM everkeel_dead_letters AS d
    WHERE d.status IN ({_FINISHED}) AND (d.status <> 'superseded' OR NOT EXISTS (
        SELECT 1 FROM everkeel_dead_letters AS p WHERE {_SAME.format("p")} AND p.status IN ({_UNRESOLVED}))){{}}
    ORDER BY d.updated_at LIMIT :limit{skip})
RETURNING letter"""
        self._expired = f" AND d.updated_at <= {dialect.later.format(':ago')}"
        self._forget_trail = f"""
DELETE FROM everkeel_dead_letter_audit WHERE letter IN (
    SELECT letter FROM everkeel_dead_letter_audit
    WHERE became IS NULL AND at <= {dialect.later.format(":ago")} LIMIT :limit)"""

    def _statement(self, text: str, **values: Any) -> Statement:
        if ":now" in text:
            values["now"] = self._engine.clock.time()
        return Statement(text, values)

    def _noted(self, letter: str, was: Status | None, became: Status, change: Change) -> Statement:
        return self._statement(
            self._audit,
            letter=letter,
            was=None if was is None else was.value,
            became=became.value,
            actor=change.actor,
            kind=change.kind,
            reason=change.reason,
        )

    # ------------------------------------------------------------------ writing

    def put(self, letter: NewLetter) -> Operation[DeadLetterRow]:
        identity = _identity(letter.consumer, letter.source, letter.event_id, letter.topic)
        while True:
            known = yield Statement(
                f"SELECT id, epoch, status, position FROM everkeel_dead_letters WHERE {_IDENTITY} "
                f"ORDER BY epoch DESC{self._dialect.for_update}",
                identity,
            )
            if known and known[0][1] >= letter.epoch:
                row = yield from self.get(known[0][0])
                assert row is not None  # we hold it
                return row
            id = letter.id
            values = {name: getattr(letter, name) for name in _COLUMNS if name not in ("id", "status")}
            written = yield self._statement(
                self._insert,
                **values,
                id=id,
                status=letter.status.value,
                position=min((row[3] for row in known), default=None),
            )
            if written:
                break  # else somebody wrote the same at the same time: look again
        yield self._noted(id, None, letter.status, letter.change)
        for older, _, status, _ in known:
            if Status(status) in UNRESOLVED:
                yield from self._moved(older, Status(status), Status.SUPERSEDED, letter.change)
        row = yield from self.get(id)
        assert row is not None
        return row

    def transition(
        self, id: str, before: Status, after: Status, change: Change, version: int | None, key: str | None
    ) -> Operation[DeadLetterRow | None]:
        if not may_become(before, after):
            raise DeadLetterStateError(id, before.value, after.value)
        if not (yield from self._moved(id, before, after, change, version)):
            return None
        if key is not None:
            yield Statement("UPDATE everkeel_dead_letters SET key = :key WHERE id = :id", {"id": id, "key": key})
        return (yield from self.get(id))

    def _moved(
        self, id: str, before: Status, after: Status, change: Change, version: int | None = None
    ) -> Operation[bool]:
        text = self._move
        values: dict[str, Any] = {"id": id, "before": before.value, "after": after.value}
        if version is not None:
            text, values = f"{text} AND version = :version", {**values, "version": version}
        if not (yield self._statement(f"{text} RETURNING id", **values)):
            return False
        yield self._noted(id, before, after, change)
        return True

    def settle(self, consumer: str, source: str, event_id: str, topic: str) -> Operation[list[Status]]:
        open_ = yield Statement(
            f"SELECT id, status FROM everkeel_dead_letters WHERE {_IDENTITY} AND status IN ({_UNRESOLVED})",
            _identity(consumer, source, event_id, topic),
        )
        settled: list[Status] = []
        for id, status in open_:
            change = Change(actor=consumer, reason="handled")
            if (yield from self._moved(id, Status(status), Status.RESOLVED, change)):
                settled.append(Status(status))
        return settled

    def next_epoch(self, row: DeadLetterRow) -> Operation[int | None]:
        event = {"source": row.source, "event_id": row.event_id, "topic": row.topic}
        lock = self._dialect.for_update
        letters = yield Statement(
            "SELECT epoch FROM everkeel_dead_letters "
            f"WHERE source = :source AND event_id = :event_id AND topic = :topic ORDER BY id{lock}",
            event,
        )
        leaving = yield Statement(
            "SELECT epoch, state FROM everkeel_outbox WHERE source = :source AND id = :event_id "
            f"AND aggregatetype = :topic{lock}",
            event,
        )
        if any(state == 0 for _, state in leaving):
            return None
        return max(int(epoch) for epoch, *_ in [*letters, *leaving, (row.epoch,)]) + 1

    def purge(self, older_than: float, limit: int, change: Change, consumer: str | None) -> Operation[int]:
        gone = yield from self._deleted(limit, change, consumer, self._expired, ago=-float(older_than))
        yield self._statement(self._forget_trail, ago=-float(older_than), limit=limit)
        return gone

    def make_room(self, consumer: str, limit: int, change: Change) -> Operation[int]:
        return (yield from self._deleted(limit, change, consumer, ""))

    def _deleted(self, limit: int, change: Change, consumer: str | None, which: str, **values: Any) -> Operation[int]:
        if consumer is not None:
            which, values = f"{which} AND d.consumer = :consumer", {**values, "consumer": consumer}
        values |= {"actor": change.actor, "kind": change.kind, "reason": change.reason, "limit": limit}
        gone = yield self._statement(self._delete.format(which), **values)
        for start in range(0, len(gone), _AT_ONCE):
            ids = {f"id_{place}": id for place, (id,) in enumerate(gone[start : start + _AT_ONCE])}
            named = ", ".join(f":{name}" for name in ids)
            yield Statement(f"DELETE FROM everkeel_dead_letters WHERE id IN ({named})", ids)
        return len(gone)

    # ------------------------------------------------------------------ reading

    def get(self, id: str) -> Operation[DeadLetterRow | None]:
        rows = yield Statement(f"{self._select} WHERE d.id = :id", {"id": id})
        return _row(rows[0]) if rows else None

    def query(self, wanted: LetterFilter, limit: int, cursor: str | None, oldest_first: bool) -> Operation[LetterPage]:
        after, order = (">", "ASC") if oldest_first else ("<", "DESC")
        where, values = self._where(wanted)
        if cursor is not None:
            at, id = place_of(cursor)
            where.append(f"(d.failed_at, d.id) {after} ({self._dialect.moment.format(':after_at')}, :after_id)")
            values.update(after_at=at, after_id=id)
        rows = yield Statement(
            f"{self._select}{_all(where)} ORDER BY d.failed_at {order}, d.id {order} LIMIT :limit",
            {**values, "limit": limit + 1},
        )
        letters = [_row(row) for row in rows]
        return LetterPage(letters[:limit], cursor_of(letters[limit - 1]) if len(letters) > limit else None)

    def count(self, wanted: LetterFilter) -> Operation[int]:
        where, values = self._where(wanted)
        rows = yield Statement(f"SELECT count(*) FROM everkeel_dead_letters AS d{_all(where)}", values)
        return int(rows[0][0])

    def tally(self) -> Operation[dict[tuple[str, str, str], int]]:
        rows = yield Statement(
            "SELECT consumer, reason, status, count(*) FROM everkeel_dead_letters GROUP BY consumer, reason, status"
        )
        return {(consumer, reason, status): int(count) for consumer, reason, status, count in rows}

    def oldest(self) -> Operation[dict[str, float]]:
        seconds = self._dialect.seconds.format
        rows = yield self._statement(
            f"SELECT consumer, {seconds(self._dialect.now)} - {seconds('min(created_at)')} FROM everkeel_dead_letters "
            f"WHERE status IN ({_UNRESOLVED}) GROUP BY consumer"
        )
        return {consumer: max(0.0, float(age)) for consumer, age in rows}

    def _where(self, wanted: LetterFilter) -> tuple[list[str], dict[str, Any]]:
        named = {
            "consumer": wanted.consumer, "event_type": wanted.type, "topic": wanted.topic, "key": wanted.key,
            "source": wanted.source, "event_id": wanted.event_id, "saga_id": wanted.saga,
            "correlation_id": wanted.correlation, "reason": wanted.reason,
        }  # fmt: skip
        values: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
        where = [f"d.{name} = :{name}" for name in values]
        if wanted.status is not None:
            states = {f"status_{place}": Status(status).value for place, status in enumerate(wanted.status)}
            where.append(f"d.status IN ({', '.join(f':{name}' for name in states)})" if states else "false")
            values.update(states)
        if wanted.error is not None:
            where.append(f"(d.error_type = :error OR {self._dialect.last_word} = :error)")
            values["error"] = wanted.error
        for name, compared, moment in (("since", ">=", wanted.since), ("until", "<", wanted.until)):
            if moment is not None:
                where.append(f"d.failed_at {compared} {self._dialect.moment.format(f':{name}')}")
                values[name] = float(moment)
        if wanted.older_than is not None:
            text = f"d.failed_at <= {self._dialect.later.format(':ago')}"
            where.append(text)
            values |= self._statement(text, ago=-float(wanted.older_than)).values
        return where, values

    def blocking(
        self, consumer: str, topic: str, key: str, source: str, event_id: str
    ) -> Operation[DeadLetterRow | None]:
        mine = f"SELECT min(position) FROM everkeel_dead_letters WHERE {_IDENTITY}"
        rows = yield Statement(
            f"{self._select} WHERE d.consumer = :consumer AND d.topic = :topic AND d.key = :key "
            f"AND d.status IN ({_UNRESOLVED}) AND NOT (d.source = :source AND d.event_id = :event_id) "
            f"AND d.position < coalesce(({mine}), d.position + 1) ORDER BY d.position LIMIT 1",
            {**_identity(consumer, source, event_id, topic), "key": key},
        )
        return _row(rows[0]) if rows else None

    def parked(self, consumer: str, topic: str, key: str, limit: int) -> Operation[list[DeadLetterRow]]:
        rows = yield Statement(
            f"{self._select} WHERE d.consumer = :consumer AND d.topic = :topic AND d.key = :key "
            f"AND d.status IN ({_UNRESOLVED}) ORDER BY d.position LIMIT :limit",
            {"consumer": consumer, "topic": topic, "key": key, "limit": limit},
        )
        return list(takewhile(lambda row: row.status == Status.PARKED.value, map(_row, rows)))

    def parked_keys(self, consumer: str, limit: int) -> Operation[list[tuple[str, str]]]:
        rows = yield Statement(
            f"""
SELECT DISTINCT d.topic, d.key FROM everkeel_dead_letters AS d
WHERE d.consumer = :consumer AND d.key IS NOT NULL AND d.status = 'parked' AND NOT EXISTS (
    SELECT 1 FROM everkeel_dead_letters AS p
    WHERE p.consumer = d.consumer AND p.topic = d.topic AND p.key = d.key AND p.key IS NOT NULL
      AND p.status IN ({_UNRESOLVED}) AND p.position < d.position)
LIMIT :limit""",
            {"consumer": consumer, "limit": limit},
        )
        return [(topic, key) for topic, key in rows]

    def audit(self, id: str) -> Operation[list[AuditRow]]:
        rows = yield Statement(
            f"SELECT seq, letter, {self._dialect.seconds.format('at')}, was, became, actor, kind, reason "
            "FROM everkeel_dead_letter_audit WHERE letter = :id ORDER BY seq",
            {"id": id},
        )
        return [
            AuditRow(seq=seq, letter=letter, at=at, before=was, after=became, actor=actor, kind=kind, reason=reason)
            for seq, letter, at, was, became, actor, kind, reason in rows
        ]


def _identity(consumer: str, source: str, event_id: str, topic: str) -> dict[str, Any]:
    return {"consumer": consumer, "source": source, "event_id": event_id, "topic": topic}


def _all(where: list[str]) -> str:
    return f" WHERE {' AND '.join(where)}" if where else ""


def _row(values: Sequence[Any]) -> DeadLetterRow:
    named = dict(zip(_COLUMNS, values, strict=False))
    created_at, failed_at, updated_at, version, position, replays, first_failed_at = values[len(_COLUMNS) :]
    return DeadLetterRow(
        **named,
        created_at=float(created_at),
        failed_at=float(failed_at),
        updated_at=float(updated_at),
        version=int(version),
        position=int(position),
        replays=int(replays),
        first_failed_at=float(first_failed_at),
    )
