"""What was already handled, in PostgreSQL."""

from __future__ import annotations

from everkeel.engines.sql.dialect import POSTGRES
from everkeel.engines.sql.inbox import SQLEngine, SQLInbox


class PostgresInbox(SQLInbox):
    """An `IdempotencyStore` in PostgreSQL."""

    def __init__(self, engine: SQLEngine) -> None:
        super().__init__(engine, POSTGRES)
