"""What was already handled, in PostgreSQL."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from everkeel.engines.sql.dialect import POSTGRES
from everkeel.engines.sql.inbox import InboxOperations, SQLInbox, SyncSQLInbox
from everkeel.engines.sql.runners import run_on
from everkeel.engines.sql.statement import How, Operation
from everkeel.errors import ConfigError

if TYPE_CHECKING:
    from everkeel.engines.postgres.engine import PostgresEngine

T = TypeVar("T")


class PostgresInbox(SQLInbox):
    """An `IdempotencyStore` in PostgreSQL. `sync` has connections of its own, by psycopg, one for each thread."""

    def __init__(self, engine: PostgresEngine) -> None:
        super().__init__(engine, POSTGRES)
        self._threads = _PerThread(engine)
        self.sync = SyncSQLInbox(self._threads, InboxOperations(POSTGRES, engine.clock))

    def close(self) -> None:
        """Close the connections of `sync`, those of all threads."""
        self._threads.close()


class _PerThread:
    """Runs operations on a psycopg connection of the calling thread: code without an event loop has no pool of ours."""

    def __init__(self, engine: PostgresEngine) -> None:
        self.clock, self._dsn, self._pooler = engine.clock, engine._settings[0], engine._settings[4]
        self._mine = threading.local()
        self._all: weakref.WeakSet[Any] = weakref.WeakSet()
        self._lock = threading.Lock()

    async def run(self, operation: Operation[T], tx: Any = None, **how: Unpack[How]) -> T:
        raise TypeError("this is the inbox for code without an event loop")

    def run_sync(self, operation: Operation[T], tx: Any = None, **how: Unpack[How]) -> T:
        return run_on(self._connection() if tx is None else tx, operation)

    def _connection(self) -> Any:
        connection = getattr(self._mine, "connection", None)
        if connection is not None and not connection.closed:
            return connection
        if self._dsn is None:
            raise ConfigError("PostgresEngine", "dsn", "is needed where nothing is awaited and no tx is given", "None")
        try:
            import psycopg
        except ImportError as error:
            raise ImportError("an inbox without an event loop needs psycopg: pip install everkeel[psycopg]") from error
        options: dict[str, Any] = {"prepare_threshold": None} if self._pooler else {}
        connection = self._mine.connection = psycopg.connect(self._dsn, autocommit=True, **options)
        with self._lock:
            self._all.add(connection)
        return connection

    def close(self) -> None:
        with self._lock:
            connections = list(self._all)
        for connection in connections:
            connection.close()
