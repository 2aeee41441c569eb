"""Sagas in SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from everkeel.engines.rows import OutboxRow
from everkeel.engines.sql.dialect import SQLITE
from everkeel.engines.sql.sagas import SagaOperations, SQLSagas, Unpacking
from everkeel.engines.sql.statement import Operation

if TYPE_CHECKING:
    from everkeel.engines.sqlite.engine import SQLiteEngine


def _rows(parameter: str, columns: Sequence[tuple[str, str]]) -> str:
    taken = ", ".join(f"json_extract(value, '$.{name}') AS {name}" for name, _ in columns)
    return f"(SELECT {taken} FROM json_each({parameter}))"


class SQLiteSagas(SQLSagas):
    """A `SagaStore` in a SQLite file."""

    def __init__(self, engine: SQLiteEngine) -> None:
        def append(rows: Sequence[OutboxRow]) -> Operation[None]:
            return engine.outbox._append(rows, 0.0, engine.clock.time())

        unpacking = Unpacking(_rows, "SELECT value FROM json_each({})")
        super().__init__(engine, SagaOperations(SQLITE, unpacking, engine, append))
