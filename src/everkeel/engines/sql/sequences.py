"""How far consumers have come in numbered events, in SQL: one row per consumer, source and key, changed by one
statement each."""

from __future__ import annotations

from typing import Any

from everkeel.engines.sequences import Reached
from everkeel.engines.sql.dialect import Dialect
from everkeel.engines.sql.inbox import SQLEngine
from everkeel.engines.sql.statement import Operation, Statement

POSTGRES_TABLES = (
    """
CREATE TABLE IF NOT EXISTS everkeel_sequences (
    consumer text NOT NULL,
    source text NOT NULL,
    key text NOT NULL,
    reached bigint NOT NULL,
    held bigint,
    held_since timestamptz,
    PRIMARY KEY (consumer, source, key)
)""",
)

SQLITE_TABLES = (
    """
CREATE TABLE IF NOT EXISTS everkeel_sequences (
    consumer TEXT NOT NULL,
    source TEXT NOT NULL,
    key TEXT NOT NULL,
    reached INTEGER NOT NULL,
    held INTEGER,
    held_since REAL,
    PRIMARY KEY (consumer, source, key)
) WITHOUT ROWID""",
)

_NUMBER = "CAST(:number AS bigint)"


class SQLSequences:
    """A `SequenceStore` in a database."""

    def __init__(self, engine: SQLEngine, dialect: Dialect) -> None:
        self._engine = engine
        seconds = dialect.seconds.format
        self._select = f"""
SELECT reached, held, {seconds(dialect.now)} - {seconds("held_since")} FROM everkeel_sequences
WHERE consumer = :consumer AND source = :source AND key = :key"""
        insert = "INSERT INTO everkeel_sequences AS s (consumer, source, key, reached"
        self._hold = f"""
{insert}, held, held_since) VALUES (:consumer, :source, :key, CAST(:before AS bigint), {_NUMBER}, {dialect.now})
ON CONFLICT (consumer, source, key) DO UPDATE SET
    held = CASE WHEN s.held < {_NUMBER} THEN s.held ELSE {_NUMBER} END,
    held_since = coalesce(s.held_since, {dialect.now})
WHERE s.reached < {_NUMBER} RETURNING reached"""
        self._tried = f"""
UPDATE everkeel_sequences SET held_since = {dialect.now}
WHERE consumer = :consumer AND source = :source AND key = :key AND held IS NOT NULL RETURNING reached"""
        advance = f"""
{insert}) VALUES (:consumer, :source, :key, {_NUMBER})
ON CONFLICT (consumer, source, key) DO UPDATE SET reached = {_NUMBER}, held = NULL, held_since = NULL
WHERE s.reached """
        self._advance = f"{advance} = {_NUMBER} - 1 RETURNING reached"
        self._skip = f"{advance} < {_NUMBER} RETURNING reached"

    def _one(self, text: str, consumer: str, source: str, key: str, **values: Any) -> Operation[Any]:
        values |= {"consumer": consumer, "source": source, "key": key}
        if ":now" in text:
            values["now"] = self._engine.clock.time()
        rows = yield Statement(text, values)
        return rows[0] if rows else None

    async def reached(self, consumer: str, source: str, key: str) -> Reached | None:
        row = await self._engine.run(self._one(self._select, consumer, source, key), write=False)
        if row is None:
            return None
        number, held, held_for = row
        return Reached(int(number), None if held is None else int(held), float(held_for or 0.0))

    async def hold(self, consumer: str, source: str, key: str, number: int, before: int) -> None:
        operation = self._one(self._hold, consumer, source, key, number=number, before=before)
        await self._engine.run(operation, durable=False)

    async def tried(self, consumer: str, source: str, key: str) -> None:
        await self._engine.run(self._one(self._tried, consumer, source, key), durable=False)

    async def advance(
        self, consumer: str, source: str, key: str, number: int, *, skip: bool = False, tx: Any = None
    ) -> bool:
        text = self._skip if skip else self._advance
        return await self._engine.run(self._one(text, consumer, source, key, number=number), tx) is not None
