"""What was already handled, in SQLite."""

from __future__ import annotations

from everkeel.engines.sql.dialect import SQLITE
from everkeel.engines.sql.inbox import SQLEngine, SQLInbox


class SQLiteInbox(SQLInbox):
    """An `IdempotencyStore` in a SQLite file."""

    def __init__(self, engine: SQLEngine) -> None:
        super().__init__(engine, SQLITE)
