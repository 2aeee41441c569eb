"""Sagas in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from everkeel.engines.rows import OutboxRow
from everkeel.engines.sql.dialect import POSTGRES
from everkeel.engines.sql.sagas import SagaOperations, SQLSagas, Unpacking
from everkeel.engines.sql.statement import Operation

if TYPE_CHECKING:
    from everkeel.engines.postgres.engine import PostgresEngine


def _rows(parameter: str, columns: Sequence[tuple[str, str]]) -> str:
    named = ", ".join(f"{name} {type}" for name, type in columns)
    return f"(SELECT * FROM jsonb_to_recordset(CAST({parameter} AS jsonb)) AS t ({named}))"


class PostgresSagas(SQLSagas):
    """A `SagaStore` in PostgreSQL."""

    def __init__(self, engine: PostgresEngine) -> None:
        def append(rows: Sequence[OutboxRow]) -> Operation[None]:
            return engine.outbox._append(rows, 0.0)

        unpacking = Unpacking(_rows, "SELECT jsonb_array_elements_text(CAST({} AS jsonb))")
        super().__init__(engine, SagaOperations(POSTGRES, unpacking, engine, append))
