"""Dead letters in a database, as services call them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from everkeel.engines.letters import AuditRow, Change, LetterFilter, LetterPage, Newer, NewLetter, Status
from everkeel.engines.rows import DeadLetterRow
from everkeel.engines.sql.dead_letters import DeadLetterOperations
from everkeel.engines.sql.dialect import Dialect
from everkeel.engines.sql.inbox import SQLEngine
from everkeel.engines.sql.newer import newer
from everkeel.engines.sql.statement import Operation

T = TypeVar("T")


class SQLDeadLetters:
    """A `DeadLetterStore` in a database."""

    def __init__(self, engine: SQLEngine, dialect: Dialect) -> None:
        self._engine, self._dialect, self._operations = engine, dialect, DeadLetterOperations(dialect, engine)

    async def _change(self, operation: Operation[T], tx: Any = None) -> T:
        return await self._engine.run(operation, tx, atomic=True)

    async def put(self, letter: NewLetter, *, tx: Any = None) -> DeadLetterRow:
        return await self._change(self._operations.put(letter), tx)

    async def get(self, id: str) -> DeadLetterRow | None:
        return await self._engine.run(self._operations.get(id), write=False)

    async def query(
        self, wanted: LetterFilter, *, limit: int, cursor: str | None = None, oldest_first: bool = False
    ) -> LetterPage:
        return await self._engine.run(self._operations.query(wanted, limit, cursor, oldest_first), write=False)

    async def count(self, wanted: LetterFilter, *, tx: Any = None) -> int:
        return await self._engine.run(self._operations.count(wanted), tx, write=False)

    async def tally(self) -> Mapping[tuple[str, str, str], int]:
        return await self._engine.run(self._operations.tally(), write=False)

    async def oldest(self) -> Mapping[str, float]:
        return await self._engine.run(self._operations.oldest(), write=False)

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
        return await self._change(self._operations.transition(id, before, after, change, version, key), tx)

    async def next_epoch(self, row: DeadLetterRow, *, tx: Any) -> int | None:
        return await self._change(self._operations.next_epoch(row), tx)

    async def settle(self, consumer: str, source: str, event_id: str, topic: str, *, tx: Any = None) -> list[Status]:
        return await self._change(self._operations.settle(consumer, source, event_id, topic), tx)

    async def blocking(
        self, consumer: str, topic: str, key: str, source: str, event_id: str, *, tx: Any = None
    ) -> DeadLetterRow | None:
        operation = self._operations.blocking(consumer, topic, key, source, event_id)
        return await self._engine.run(operation, tx, write=False)

    async def parked(self, consumer: str, topic: str, key: str, *, limit: int, tx: Any = None) -> list[DeadLetterRow]:
        return await self._engine.run(self._operations.parked(consumer, topic, key, limit), tx, write=False)

    async def parked_keys(self, consumer: str, limit: int) -> Sequence[tuple[str, str]]:
        return await self._engine.run(self._operations.parked_keys(consumer, limit), write=False)

    async def audit(self, id: str) -> Sequence[AuditRow]:
        return await self._engine.run(self._operations.audit(id), write=False)

    async def newer(self, row: DeadLetterRow) -> Newer:
        return await self._engine.run(newer(self._engine, self._dialect, row), write=False)

    async def purge(self, older_than: float, limit: int, change: Change, *, consumer: str | None = None) -> int:
        return await self._change(self._operations.purge(older_than, limit, change, consumer))

    async def make_room(self, consumer: str, limit: int, change: Change, *, tx: Any = None) -> int:
        return await self._change(self._operations.make_room(consumer, limit, change), tx)
