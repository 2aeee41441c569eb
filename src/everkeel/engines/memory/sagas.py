"""Sagas in memory, with transactions of the memory engine."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from everkeel.engines.memory.transaction import MemoryTransaction
from everkeel.engines.sagas import (
    TERMINAL,
    NewSaga,
    SagaChange,
    SagaFilter,
    SagaRow,
    SagaRowPage,
    SagaTypeStats,
    cursor_of,
    kind_key,
    place_of,
    type_of,
)
from everkeel.engines.sql.sagas import gathered
from everkeel.errors import ConfigError

if TYPE_CHECKING:
    from everkeel.engines.memory.engine import MemoryEngine


class MemorySagas:
    """A `SagaStore` that lives as long as its process."""

    def __init__(self, engine: MemoryEngine) -> None:
        self._engine = engine
        self._rows: dict[str, SagaRow] = {}
        self._open: set[str] = set()  # written by a transaction that has not ended: nobody else may touch or claim them

    # ------------------------------------------------------------------ writing

    async def create(self, saga: NewSaga, *, tx: Any = None) -> tuple[SagaRow, bool]:
        with self._engine.lock:
            return self._create(saga, tx)

    async def save(self, change: SagaChange, *, tx: Any = None) -> int | None:
        with self._engine.lock:
            return self._save(change, tx)

    async def write(
        self, new: Sequence[NewSaga], changes: Sequence[SagaChange]
    ) -> tuple[list[tuple[SagaRow, bool]], list[int | None]]:
        with self._engine.lock:
            return [self._create(saga, None) for saga in new], [self._save(change, None) for change in changes]

    def _create(self, saga: NewSaga, tx: Any) -> tuple[SagaRow, bool]:
        known = self._rows.get(saga.id)
        if known is not None:
            return self._seen(known), False
        now = self._engine.clock.time()
        row = SagaRow(
            id=saga.id, type=saga.type, version=saga.version, kind=saga.kind, state=saga.state, cause=None,
            step=saga.step, revision=1, correlation_id=saga.correlation_id, document=saga.document, timed_out=False,
            owner=saga.owner, created_at=now, updated_at=now,
            deadline_at=None if saga.deadline is None else now + saga.deadline,
            due_at=None if saga.due is None else now + saga.due, ended_at=None, now=now,
        )  # fmt: skip
        self._keep(row, None, tx)
        self._emit(saga.emit, tx)
        return row, True

    def _save(self, change: SagaChange, tx: Any) -> int | None:
        known = self._rows.get(change.id)
        if known is None or known.revision != change.expect or (known.id in self._open and tx is None):
            return None
        if known.state in TERMINAL and change.state != known.state:
            return None
        now = self._engine.clock.time()
        row = replace(
            known, state=change.state, cause=change.cause, step=change.step, document=change.document,
            timed_out=change.timed_out, revision=known.revision + 1, updated_at=now,
            ended_at=(known.ended_at or now) if change.state in TERMINAL else None,
            deadline_at=known.deadline_at if change.deadline is None else now + change.deadline,
        )  # fmt: skip
        if not change.keep:
            row = replace(row, owner=change.owner, due_at=None if change.due is None else now + change.due)
        self._keep(row, known, tx)
        self._emit(change.emit, tx)
        return row.revision

    def _keep(self, row: SagaRow, before: SagaRow | None, tx: Any) -> None:
        self._rows[row.id] = row
        if tx is None:
            return
        self._open.add(row.id)
        _ours(tx).on_commit(lambda: self._open.discard(row.id))
        _ours(tx).on_rollback(lambda: self._restore(row.id, before))

    def _restore(self, id: str, before: SagaRow | None) -> None:
        self._open.discard(id)
        if before is None:
            self._rows.pop(id, None)
        else:
            self._rows[id] = before

    def _emit(self, rows: Sequence[Any], tx: Any) -> None:
        if rows:
            self._engine.outbox.append_sync(rows, tx=tx)

    # ------------------------------------------------------------------ claims

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
        with self._engine.lock:
            now = self._engine.clock.time()
            types = {type_of(name) for name in beside or ()}

            def due(row: SagaRow) -> bool:
                name = kind_key(row.type, row.version)
                return (
                    row.due_at is not None
                    and row.due_at <= now - overdue
                    and (known is None or name in known)
                    and (beside is None or (name not in beside and row.type in types))
                    and row.id not in self._open
                )

            found = sorted(filter(due, self._rows.values()), key=lambda row: row.due_at or 0.0)[:limit]
            taken = [replace(row, owner=owner, due_at=now + lease, revision=row.revision + 1) for row in found]
            self._rows.update({row.id: row for row in taken})
            return [self._seen(row) for row in taken]

    async def extend(self, owner: str, ids: Collection[str], lease: float) -> Mapping[str, int]:
        with self._engine.lock:
            now = self._engine.clock.time()
            held = [row for id in ids if (row := self._rows.get(id)) is not None and row.owner == owner]
            self._rows.update({row.id: replace(row, due_at=now + lease) for row in held})
            return {row.id: row.revision for row in held}

    async def held(self, owner: str, ids: Collection[str]) -> Mapping[str, int]:
        with self._engine.lock:
            rows = (self._rows.get(id) for id in ids)
            return {row.id: row.revision for row in rows if row is not None and row.owner == owner}

    # ------------------------------------------------------------------ looking

    def _seen(self, row: SagaRow) -> SagaRow:
        return replace(row, now=self._engine.clock.time())

    async def load(self, id: str, *, tx: Any = None) -> SagaRow | None:
        with self._engine.lock:
            row = self._rows.get(id)
            return None if row is None else self._seen(row)

    async def query(self, wanted: SagaFilter, *, limit: int, cursor: str | None = None) -> SagaRowPage:
        after = None if cursor is None else place_of(cursor)
        with self._engine.lock:
            now = self._engine.clock.time()
            found = [row for row in self._rows.values() if wanted.matches(row, now)]
            found.sort(key=_place, reverse=True)
            if after is not None:
                found = [row for row in found if _place(row) < after]
            rows = [self._seen(row) for row in found[:limit]]
        return SagaRowPage(rows, cursor_of(rows[-1]) if len(found) > limit else None)

    async def count(self, wanted: SagaFilter) -> int:
        with self._engine.lock:
            now = self._engine.clock.time()
            return sum(wanted.matches(row, now) for row in self._rows.values())

    async def stats(self) -> Mapping[str, SagaTypeStats]:
        with self._engine.lock:
            now = self._engine.clock.time()
            grouped: dict[tuple[str, str], list[SagaRow]] = {}
            for row in self._rows.values():
                grouped.setdefault((row.type, row.state), []).append(row)
            lines: list[tuple[Any, ...]] = []
            for (type, state), rows in grouped.items():
                lasted = [row.ended_at - row.created_at for row in rows if row.ended_at is not None]
                oldest = now - min(row.created_at for row in rows)
                timed_out, unsettled = sum(row.timed_out for row in rows), sum(row.unsettled for row in rows)
                lines.append(
                    (type, state, len(rows), timed_out, oldest, sum(lasted) if lasted else None,
                     max(lasted, default=None), unsettled)
                )  # fmt: skip
        return gathered(lines)

    async def purge(self, older_than: float, limit: int) -> int:
        with self._engine.lock:
            now = self._engine.clock.time()
            old = [
                row
                for row in self._rows.values()
                if row.ended_at is not None
                and row.ended_at <= now - older_than
                and row.due_at is None
                and not row.unsettled
            ]
            old.sort(key=lambda row: row.ended_at or 0.0)
            for row in old[:limit]:
                del self._rows[row.id]
            return len(old[:limit])


def _place(row: SagaRow) -> tuple[float, str]:
    return row.created_at, row.id


def _ours(tx: object) -> MemoryTransaction:
    if not isinstance(tx, MemoryTransaction):
        raise ConfigError("tx", None, "must come from MemoryEngine.transaction()", type(tx).__qualname__)
    return tx
