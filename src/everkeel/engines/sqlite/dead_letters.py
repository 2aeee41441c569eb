"""What was given up on, in SQLite."""

from __future__ import annotations

from everkeel.engines.sql.dialect import SQLITE
from everkeel.engines.sql.inbox import SQLEngine
from everkeel.engines.sql.letter_store import SQLDeadLetters


class SQLiteDeadLetters(SQLDeadLetters):
    """A `DeadLetterStore` in a SQLite file."""

    def __init__(self, engine: SQLEngine) -> None:
        super().__init__(engine, SQLITE)
