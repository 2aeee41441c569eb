"""Sagas in SQL: one row each. Many transitions are one statement, each of them a compare-and-set of its own."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from everkeel.engines.rows import OutboxRow
from everkeel.engines.sagas import (
    TERMINAL,
    NewSaga,
    SagaChange,
    SagaFilter,
    SagaRow,
    SagaRowPage,
    SagaState,
    SagaTypeStats,
    cursor_of,
    place_of,
    type_of,
)
from everkeel.engines.sql.dialect import Dialect
from everkeel.engines.sql.inbox import SQLEngine
from everkeel.engines.sql.saga_tables import ENDED, UNSETTLED, conditions
from everkeel.engines.sql.statement import Operation, Statement


@dataclass(frozen=True, slots=True)
class Unpacking:
    """How a database reads a list that is given as one JSON text."""

    rows: Callable[[str, Sequence[tuple[str, str]]], str]
    """A table of the parameter's objects, with columns of names and types."""
    texts: str
    """A query of the parameter's texts; `{}` is the parameter."""


_PLAIN = ("id", "type", "version", "kind", "state", "cause", "step", "revision", "correlation_id", "document",
          "timed_out", "owner")  # fmt: skip
_MOMENTS = ("created_at", "updated_at", "deadline_at", "due_at", "ended_at")
_NEW = (("id", "text"), ("type", "text"), ("version", "integer"), ("kind", "text"), ("state", "text"), ("step", "text"),
        ("correlation_id", "text"), ("document", "text"), ("owner", "text"), ("deadline", "double precision"),
        ("due", "double precision"))  # fmt: skip
_CHANGE = (("id", "text"), ("expect", "integer"), ("state", "text"), ("cause", "text"), ("step", "text"),
           ("document", "text"), ("timed_out", "integer"), ("keep", "integer"), ("owner", "text"),
           ("due", "double precision"), ("deadline", "double precision"))  # fmt: skip

Append = Callable[[Sequence[OutboxRow]], Operation[None]]


class SagaOperations:
    """Each method of the store as an operation."""

    def __init__(self, dialect: Dialect, unpacking: Unpacking, engine: SQLEngine, append: Append) -> None:
        self._dialect, self._engine, self._append, self._texts = dialect, engine, append, unpacking.texts
        now, later, seconds = dialect.now, dialect.later.format, dialect.seconds.format
        names = [f"s.{name}" for name in _PLAIN] + [seconds(f"s.{name}") for name in _MOMENTS]
        self._columns = f"{', '.join(names)}, {seconds(now)}"
        self._insert = f"""
INSERT INTO everkeel_sagas AS s (id, type, version, kind, state, step, revision, correlation_id, document, timed_out,
    owner, created_at, updated_at, deadline_at, due_at)
SELECT r.id, r.type, r.version, r.kind, r.state, r.step, 1, r.correlation_id, r.document, 0, r.owner, {now}, {now},
    {later("r.deadline")}, {later("r.due")}
FROM {unpacking.rows(":rows", _NEW)} AS r WHERE true
ON CONFLICT (id) DO NOTHING RETURNING {self._columns.replace("s.", "")}"""
        self._update = f"""
UPDATE everkeel_sagas SET state = r.state, cause = r.cause, step = r.step, document = r.document,
    timed_out = r.timed_out, revision = everkeel_sagas.revision + 1, updated_at = {now},
    owner = CASE WHEN r.keep = 1 THEN everkeel_sagas.owner ELSE r.owner END,
    due_at = CASE WHEN r.keep = 1 THEN everkeel_sagas.due_at ELSE {later("r.due")} END,
    deadline_at = CASE WHEN r.deadline IS NULL THEN everkeel_sagas.deadline_at ELSE {later("r.deadline")} END,
    ended_at = CASE WHEN r.state IN ({ENDED}) THEN coalesce(everkeel_sagas.ended_at, {now}) END
FROM {unpacking.rows(":rows", _CHANGE)} AS r
WHERE everkeel_sagas.id = r.id AND everkeel_sagas.revision = r.expect
  AND (everkeel_sagas.ended_at IS NULL OR everkeel_sagas.state = r.state)
RETURNING everkeel_sagas.id"""
        self._select = f"SELECT {self._columns} FROM everkeel_sagas AS s"
        self._skip_locked = " FOR UPDATE SKIP LOCKED" if dialect.for_update else ""

    def _statement(self, text: str, **values: Any) -> Statement:
        if ":now" in text:
            values["now"] = self._engine.clock.time()
        return Statement(text, values)

    # ------------------------------------------------------------------ writing

    def write(
        self, new: Sequence[NewSaga], changes: Sequence[SagaChange]
    ) -> Operation[tuple[list[tuple[SagaRow, bool]], list[int | None]]]:
        created = (yield from self._create(new)) if new else []
        saved = (yield from self._save(changes)) if changes else []
        return created, saved

    def _create(self, new: Sequence[NewSaga]) -> Operation[list[tuple[SagaRow, bool]]]:
        first = {saga.id: saga for saga in reversed(new)}
        rows = yield self._statement(self._insert, rows=_packed(list(first.values()), _NEW))
        made = {row.id: row for row in map(_row, rows)}
        emitted = [event for id in made for event in first[id].emit]
        if emitted:
            yield from self._append(emitted)
        answers: list[tuple[SagaRow, bool]] = []
        for saga in new:
            if saga.id in made and saga is first[saga.id]:
                answers.append((made[saga.id], True))
                continue
            there = yield from self.load(saga.id)
            assert there is not None  # it is in the way
            answers.append((there, False))
        return answers

    def _save(self, changes: Sequence[SagaChange]) -> Operation[list[int | None]]:
        answers: list[int | None] = [None] * len(changes)
        left = list(enumerate(changes))
        while left:  # one statement changes a row once: who wants the same one waits for the next round
            now_: dict[str, tuple[int, SagaChange]] = {}
            behind: list[tuple[int, SagaChange]] = []
            for place, change in left:
                if change.id in now_:
                    behind.append((place, change))
                else:
                    now_[change.id] = (place, change)
            batch = [change for _, change in now_.values()]
            # In one order, whoever writes: two batches that meet must not wait for each other's rows.
            batch.sort(key=lambda change: change.id)
            rows = yield self._statement(self._update, rows=_packed(batch, _CHANGE))
            emitted: list[OutboxRow] = []
            for (id,) in rows:
                place, change = now_[id]
                answers[place] = change.expect + 1
                emitted.extend(change.emit)
            if emitted:
                yield from self._append(emitted)
            left = behind
        return answers

    # ------------------------------------------------------------------ claims

    def claim_due(
        self,
        owner: str,
        limit: int,
        lease: float,
        known: Collection[str] | None,
        beside: Collection[str] | None,
        overdue: float,
    ) -> Operation[list[SagaRow]]:
        which, values = "", {}
        key, listed = "(type || '@' || CAST(version AS text))", self._texts.format
        if known is not None:
            which = f" AND {key} IN ({listed(':names')})"
            values = {"names": json.dumps(sorted(known))}
        if beside is not None:
            which += f" AND type IN ({listed(':types')}) AND {key} NOT IN ({listed(':others')})"
            values |= {"others": json.dumps(sorted(beside)), "types": json.dumps(sorted(map(type_of, beside)))}
        later = self._dialect.later.format
        lease_text, overdue_text = "CAST(:lease AS double precision)", "CAST(:ago AS double precision)"
        rows = yield self._statement(
            f"""
UPDATE everkeel_sagas SET owner = CAST(:owner AS text), due_at = {later(lease_text)}, revision = revision + 1
WHERE id IN (SELECT id FROM everkeel_sagas WHERE due_at <= {later(overdue_text)}{which}
    ORDER BY due_at LIMIT CAST(:limit AS integer){self._skip_locked})
RETURNING {self._columns.replace("s.", "")}""",
            owner=owner,
            limit=limit,
            lease=float(lease),
            ago=-float(overdue),
            **values,
        )
        return [_row(row) for row in rows]

    def extend(self, owner: str, ids: Collection[str], lease: float) -> Operation[Mapping[str, int]]:
        rows = yield self._statement(
            f"""
UPDATE everkeel_sagas SET due_at = {self._dialect.later.format("CAST(:lease AS double precision)")}
WHERE id IN ({self._texts.format(":ids")}) AND owner = CAST(:owner AS text) RETURNING id, revision""",
            owner=owner,
            lease=float(lease),
            ids=json.dumps(sorted(ids)),
        )
        return {id: int(revision) for id, revision in rows}

    def held(self, owner: str, ids: Collection[str]) -> Operation[Mapping[str, int]]:
        rows = yield self._statement(
            f"""
SELECT id, revision FROM everkeel_sagas
WHERE id IN ({self._texts.format(":ids")}) AND owner = CAST(:owner AS text)""",
            owner=owner,
            ids=json.dumps(sorted(ids)),
        )
        return {id: int(revision) for id, revision in rows}

    # ------------------------------------------------------------------ looking

    def load(self, id: str) -> Operation[SagaRow | None]:
        rows = yield self._statement(f"{self._select} WHERE s.id = :id", id=id)
        return _row(rows[0]) if rows else None

    def query(self, wanted: SagaFilter, limit: int, cursor: str | None) -> Operation[SagaRowPage]:
        parts, values = conditions(wanted, self._dialect)
        if cursor is not None:
            at, id = place_of(cursor)
            moment = self._dialect.moment.format("CAST(:cursor_at AS double precision)")
            parts.append(f"(s.created_at, s.id) < ({moment}, CAST(:cursor_id AS text))")
            values |= {"cursor_at": at, "cursor_id": id}
        where = f" WHERE {' AND '.join(parts)}" if parts else ""
        rows = yield self._statement(
            f"{self._select}{where} ORDER BY s.created_at DESC, s.id DESC LIMIT CAST(:limit AS integer)",
            **values,
            limit=limit + 1,
        )
        found = [_row(row) for row in rows[:limit]]
        return SagaRowPage(found, cursor_of(found[-1]) if len(rows) > limit else None)

    def count(self, wanted: SagaFilter) -> Operation[int]:
        parts, values = conditions(wanted, self._dialect)
        where = f" WHERE {' AND '.join(parts)}" if parts else ""
        rows = yield self._statement(f"SELECT count(*) FROM everkeel_sagas AS s{where}", **values)
        return int(rows[0][0])

    def stats(self) -> Operation[Mapping[str, SagaTypeStats]]:
        seconds = self._dialect.seconds.format
        lasted = f"{seconds('s.ended_at')} - {seconds('s.created_at')}"
        rows = yield self._statement(
            f"""
SELECT s.type, s.state, count(*), sum(s.timed_out), {seconds(self._dialect.now)} - min({seconds("s.created_at")}),
    sum({lasted}), max({lasted}), sum(CASE WHEN {UNSETTLED} THEN 1 ELSE 0 END)
FROM everkeel_sagas AS s GROUP BY s.type, s.state"""
        )
        return gathered(rows)

    def purge(self, older_than: float, limit: int) -> Operation[int]:
        ago = self._dialect.later.format("CAST(:ago AS double precision)")
        rows = yield self._statement(
            f"""
DELETE FROM everkeel_sagas WHERE id IN (
    SELECT s.id FROM everkeel_sagas AS s WHERE s.ended_at <= {ago} AND s.due_at IS NULL AND NOT ({UNSETTLED})
    ORDER BY s.ended_at LIMIT CAST(:limit AS integer)) RETURNING id""",
            ago=-float(older_than),
            limit=limit,
        )
        return len(rows)


def gathered(rows: Sequence[Sequence[Any]]) -> Mapping[str, SagaTypeStats]:
    """Numbers by type, from rows of type, state, count, timed out, age of the oldest, sum and most of durations, and
    unsettled."""
    grouped: dict[str, list[Sequence[Any]]] = {}
    for row in rows:
        grouped.setdefault(row[0], []).append(row)
    answer: dict[str, SagaTypeStats] = {}
    for type, mine in grouped.items():
        ended = [row for row in mine if row[5] is not None]
        number = sum(int(row[2]) for row in ended)
        answer[type] = SagaTypeStats(
            by_state={SagaState(row[1]): int(row[2]) for row in mine},
            timed_out=sum(int(row[3]) for row in mine),
            unsettled=sum(int(row[7]) for row in mine),
            oldest_active=max((float(row[4]) for row in mine if row[1] not in TERMINAL), default=0.0),
            mean_duration=sum(float(row[5]) for row in ended) / number if number else None,
            max_duration=max((float(row[6]) for row in ended), default=None),
        )
    return answer


def _packed(items: Sequence[Any], columns: Sequence[tuple[str, str]]) -> str:
    return json.dumps(
        [
            {name: int(value) if isinstance(value := getattr(item, name), bool) else value for name, _ in columns}
            for item in items
        ],
        ensure_ascii=False,
    )


def _row(row: Sequence[Any]) -> SagaRow:
    plain, moments = row[: len(_PLAIN)], row[len(_PLAIN) :]
    created, updated, deadline, due, ended, now = (None if one is None else float(one) for one in moments)
    assert created is not None
    assert updated is not None
    assert now is not None
    return SagaRow(
        id=plain[0], type=plain[1], version=int(plain[2]), kind=plain[3], state=SagaState(plain[4]), cause=plain[5],
        step=plain[6], revision=int(plain[7]), correlation_id=plain[8], document=plain[9], timed_out=bool(plain[10]),
        owner=plain[11], created_at=created, updated_at=updated, deadline_at=deadline, due_at=due, ended_at=ended,
        now=now,
    )  # fmt: skip


class SQLSagas:
    """A `SagaStore` in a database."""

    def __init__(self, engine: SQLEngine, operations: SagaOperations) -> None:
        self._engine, self._operations = engine, operations

    async def create(self, saga: NewSaga, *, tx: Any = None) -> tuple[SagaRow, bool]:
        created, _ = await self._engine.run(self._operations.write([saga], []), tx, atomic=True)
        return created[0]

    async def save(self, change: SagaChange, *, tx: Any = None) -> int | None:
        atomic = bool(change.emit)
        _, saved = await self._engine.run(self._operations.write([], [change]), tx, atomic=atomic)
        return saved[0]

    async def write(
        self, new: Sequence[NewSaga], changes: Sequence[SagaChange]
    ) -> tuple[list[tuple[SagaRow, bool]], list[int | None]]:
        return await self._engine.run(self._operations.write(new, changes), atomic=True)

    async def load(self, id: str, *, tx: Any = None) -> SagaRow | None:
        return await self._engine.run(self._operations.load(id), tx, write=False)

    async def claim_due(
        self,
        owner: str,
        limit: int,
        lease: float,
        *,
        known: Collection[str] | None = None,
        beside: Collection[str] | None = None,
        overdue: float = 0.0,
    ) -> list[SagaRow]:
        return await self._engine.run(self._operations.claim_due(owner, limit, lease, known, beside, overdue))

    async def extend(self, owner: str, ids: Collection[str], lease: float) -> Mapping[str, int]:
        return await self._engine.run(self._operations.extend(owner, ids, lease)) if ids else {}

    async def held(self, owner: str, ids: Collection[str]) -> Mapping[str, int]:
        return await self._engine.run(self._operations.held(owner, ids), write=False) if ids else {}

    async def query(self, wanted: SagaFilter, *, limit: int, cursor: str | None = None) -> SagaRowPage:
        return await self._engine.run(self._operations.query(wanted, limit, cursor), write=False)

    async def count(self, wanted: SagaFilter) -> int:
        return await self._engine.run(self._operations.count(wanted), write=False)

    async def stats(self) -> Mapping[str, SagaTypeStats]:
        return await self._engine.run(self._operations.stats(), write=False)

    async def purge(self, older_than: float, limit: int) -> int:
        return await self._engine.run(self._operations.purge(older_than, limit))
