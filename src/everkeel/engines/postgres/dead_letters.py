"""What was given up on, in PostgreSQL."""

from __future__ import annotations

from everkeel.engines.sql.dialect import POSTGRES
from everkeel.engines.sql.inbox import SQLEngine
from everkeel.engines.sql.letter_store import SQLDeadLetters


class PostgresDeadLetters(SQLDeadLetters):
    """A `DeadLetterStore` in PostgreSQL."""

    def __init__(self, engine: SQLEngine) -> None:
        super().__init__(engine, POSTGRES)
