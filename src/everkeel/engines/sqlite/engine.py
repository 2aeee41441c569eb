"""What the user holds: `SQLiteEngine(path)`."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any, Self, TypeVar, Unpack

from everkeel.engines.counts import StoreCounts, counted
from everkeel.engines.rows import Capabilities
from everkeel.engines.sql.drift import Shape, check_shapes, check_version, shapes
from everkeel.engines.sql.migrations import VERSION_TABLE, missing
from everkeel.engines.sql.runners import arun_on, run, run_on, runner_of
from everkeel.engines.sql.statement import How, Operation
from everkeel.engines.sqlite.connections import Connections
from everkeel.engines.sqlite.outbox import SQLiteOutbox
from everkeel.engines.sqlite.schema import CREATE_VERSIONS, MIGRATIONS
from everkeel.engines.wakeup import LocalWakeup
from everkeel.errors import ConfigError
from everkeel.runtime.clock import DEFAULT, Clock
from everkeel.runtime.settings import Seconds, seconds

T = TypeVar("T")


class SQLiteTransaction:
    """A transaction on a connection of its own, whose statements run in a thread. Made by `engine.transaction()`."""

    def __init__(self, connection: sqlite3.Connection, threads: ThreadPoolExecutor) -> None:
        self._connection = connection
        self.lent = False
        """Was the connection given away? Then whoever has it may use it after the end, and nobody else may have it."""
        self._threads = threads
        self._turn = threading.Lock()
        self.committed: list[Callable[[], object]] = []

    @property
    def connection(self) -> sqlite3.Connection:
        """The connection, for SQL of your own; use it through `run`, since it belongs to no thread in particular."""
        self.lent = True
        return self._connection

    def after_commit(self, act: Callable[[], object]) -> None:
        """Do this once everything is committed."""
        self.committed.append(act)

    async def run(self, act: Callable[[sqlite3.Connection], T]) -> T:
        """Call `act` with the connection in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._alone, act)

    async def end(self, act: Callable[[sqlite3.Connection], object]) -> None:
        """Commit or roll back, and wait for it also when cancelled: else it might never begin, and the lock stays."""
        ending = asyncio.get_running_loop().run_in_executor(self._threads, self._alone, act)
        try:
            await asyncio.shield(ending)
        except asyncio.CancelledError:
            await asyncio.wait({ending})
            ending.exception()  # what counts is that somebody wanted us to end
            raise

    def _alone(self, act: Callable[[sqlite3.Connection], T]) -> T:
        # One at a time: whoever awaited `act` may have been cancelled while the thread goes on, and what it wrote after
        # the rollback would be committed statement by statement.
        with self._turn:
            return act(self._connection)


class SQLiteEngine:
    """Everything in one SQLite file: for one machine, any number of processes, with nothing to install.

    Writing from your own connection to the same file makes the event part of your transaction.

    Args:
        path: The database file.
        keep_delivered: Seconds for which delivered events are kept; a day. 0: deleted at once.
        busy_timeout: How long to wait for another writer before the attempt fails (and is made again later).
        create_schema: Bring the tables up to date when the engine starts. False: an old schema is an error.
        validate: Look, when the engine starts, whether the tables are those this code knows: a missing table, column or
            index and a schema newer than the code are errors then, and not the first customer's.
        clock: Where its time comes from, in place of the default.
    """

    name = "sqlite"
    capabilities = Capabilities(transactional=True, durable="fsync", shared="machine", notify=False)

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        keep_delivered: Seconds = 86_400.0,
        busy_timeout: Seconds = 5.0,
        create_schema: bool = True,
        validate: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self.path = os.fspath(path)
        if self.path == ":memory:" or not self.path:
            raise ConfigError("SQLiteEngine", "path", "must be a file (for memory there is MemoryEngine)", repr(path))
        self.clock = clock or DEFAULT
        self.keep_delivered = seconds(keep_delivered)
        self.wakeup = LocalWakeup(self.clock)
        self.counts = StoreCounts()
        self.outbox = counted(SQLiteOutbox(self), "outbox", self.counts)
        """Events on their way out."""
        self._busy_timeout = seconds(busy_timeout)
        self._create_schema, self._validate = create_schema, validate
        self._connections = Connections(self.path, self._busy_timeout)
        self._connection: sqlite3.Connection | None = None
        self._undurable: sqlite3.Connection | None = None  # for what may be lost when the power fails
        # One thread for what the engine does itself: SQLite has one writer at a time anyway. Transactions have their
        # own, because one that is open must not stop the thread that the others wait for.
        self._thread: ThreadPoolExecutor | None = None
        self._transactions: ThreadPoolExecutor | None = None
        # Those who wait for the database must not take the threads in which whoever has it would come to its end.
        self._beginning: ThreadPoolExecutor | None = None
        self._starting = threading.Lock()

    # ------------------------------------------------------------------ stores

    @cached_property
    def inbox(self) -> Any:
        """What was already handled."""
        from everkeel.engines.sqlite.inbox import SQLiteInbox

        inbox = counted(SQLiteInbox(self), "inbox", self.counts)
        counted(inbox.sync, "inbox", self.counts)
        return inbox

    @cached_property
    def dead_letters(self) -> Any:
        """What was given up on."""
        from everkeel.engines.sqlite.dead_letters import SQLiteDeadLetters

        return counted(SQLiteDeadLetters(self), "dead_letter", self.counts)

    @cached_property
    def sagas(self) -> Any:
        """Sagas and where they are."""
        from everkeel.engines.sqlite.sagas import SQLiteSagas

        return counted(SQLiteSagas(self), "saga", self.counts)

    @cached_property
    def sequences(self) -> Any:
        """How far consumers have come in numbered events."""
        from everkeel.engines.sql.dialect import SQLITE
        from everkeel.engines.sql.sequences import SQLSequences

        return SQLSequences(self, SQLITE)

    # ------------------------------------------------------------------ running operations

    async def run(self, operation: Operation[T], tx: Any = None, **how: Unpack[How]) -> T:
        """Run an operation: in the caller's transaction, or in one of its own that nobody else writes beside. What
        writes is atomic here anyway."""
        if tx is None:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._started(), self._alone, operation, how)
        if isinstance(tx, SQLiteTransaction):
            return await tx.run(lambda connection: run(operation, runner_of(connection)[0]))
        return await arun_on(tx, operation)

    def run_sync(self, operation: Operation[T], tx: Any = None, **how: Unpack[How]) -> T:
        """The same for code without an event loop."""
        if tx is None:
            return self._started().submit(self._alone, operation, how).result()
        return run_on(tx, operation)

    def _alone(self, operation: Operation[T], how: How) -> T:
        write = how.get("write", True)
        connection = self._own(how.get("durable", True) or not write)
        runner = runner_of(connection)[0]
        if not write:
            return run(operation, runner)
        self._connections.enter()
        try:
            connection.execute("BEGIN IMMEDIATE")
            try:
                result = run(operation, runner)
                connection.commit()
            except BaseException:
                connection.rollback()  # also where the commit failed, or the next one could not begin
                raise
        finally:
            self._connections.leave()
        return result

    def _own(self, durable: bool) -> sqlite3.Connection:
        if durable:
            if self._connection is None:
                self._connection = self._connections.open()
            return self._connection
        if self._undurable is None:
            self._undurable = self._connections.open(durable=False)
        return self._undurable

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[SQLiteTransaction]:
        """Several writes as one."""
        self._started()
        assert self._transactions is not None
        assert self._beginning is not None
        loop = asyncio.get_running_loop()
        beginning = loop.run_in_executor(self._beginning, self._begin)
        try:
            connection = await asyncio.shield(beginning)
        except asyncio.CancelledError:
            # The thread begins it all the same, and an open transaction that nobody ends locks everybody out.
            beginning.add_done_callback(self._end_unused)
            raise
        tx = SQLiteTransaction(connection, self._transactions)
        try:
            yield tx
        except BaseException:
            await tx.end(lambda connection: self._connections.roll_back(connection, keep=not tx.lent))
            raise
        await tx.end(lambda connection: self._connections.commit(connection, keep=not tx.lent))
        for act in tx.committed:
            act()

    def _begin(self) -> sqlite3.Connection:
        return self._connections.begin()

    def _end_unused(self, beginning: asyncio.Future[sqlite3.Connection]) -> None:
        if not beginning.cancelled() and beginning.exception() is None:
            self._connections.roll_back(beginning.result())

    # ------------------------------------------------------------------ life

    def _started(self) -> ThreadPoolExecutor:
        with self._starting:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, "everkeel-sqlite")
                self._transactions = ThreadPoolExecutor(4, "everkeel-sqlite-tx")
                self._beginning = ThreadPoolExecutor(1, "everkeel-sqlite-begin")
                try:
                    self._thread.submit(self._migrate).result()
                except BaseException:
                    self._thread.shutdown()
                    self._thread = None
                    raise
            return self._thread

    def _migrate(self) -> None:
        self._connections = Connections(self.path, self._busy_timeout)  # anew: it may have been closed before
        connection = self._own(durable=True)
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.execute(CREATE_VERSIONS)
            (version,) = connection.execute(f"SELECT coalesce(max(version), 0) FROM {VERSION_TABLE}").fetchone()
            steps = missing(MIGRATIONS, version)
            if steps and not self._create_schema:
                raise ConfigError(
                    "SQLiteEngine", "path", f"has tables of version {version}, and {MIGRATIONS[-1].version} is needed: "
                    "apply the output of `everkeel schema sql sqlite`", repr(self.path)
                )  # fmt: skip
            for step in steps:
                for statement in step.statements:
                    connection.execute(statement)
                connection.execute(f"INSERT INTO {VERSION_TABLE} (version) VALUES (?)", (step.version,))
            if self._validate:
                check_version("SQLiteEngine", "path", MIGRATIONS, version)
                check_shapes("SQLiteEngine", "path", "sqlite", MIGRATIONS, _shapes(connection))
        except BaseException:
            connection.rollback()
            connection.close()
            self._connection = None
            raise
        connection.commit()

    async def start(self) -> None:
        """Open the file and bring its tables up to date."""
        await asyncio.get_running_loop().run_in_executor(None, self._started)

    async def close(self) -> None:
        """Close the file and end the threads."""
        with self._starting:
            threads, self._thread = (self._thread, self._transactions, self._beginning), None
        if threads[0] is None:
            return
        await asyncio.get_running_loop().run_in_executor(threads[0], self._close)
        for pool in threads:
            if pool is not None:
                pool.shutdown(wait=False)

    def _close(self) -> None:
        for connection in (self._connection, self._undurable):
            if connection is not None:
                connection.close()
        self._connection = self._undurable = None
        self._connections.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


def _shapes(connection: sqlite3.Connection) -> dict[str, Shape]:
    """What is there of our tables."""
    found: dict[str, Shape] = {}
    for table in shapes(MIGRATIONS):
        columns = connection.execute(f"SELECT name, pk FROM pragma_table_info('{table}')").fetchall()
        if not columns:
            continue
        shape = found[table] = Shape({name for name, _ in columns})
        # A key of one integer is the table itself, and has no index.
        shape.unique.add(tuple(name for name, place in sorted(columns, key=lambda one: one[1]) if place))
        indexes = connection.execute(f"SELECT name, \"unique\", partial FROM pragma_index_list('{table}')").fetchall()
        for name, unique, partial in indexes:
            shape.indexes.add(name)
            if unique and not partial:
                key = connection.execute("SELECT name FROM pragma_index_info(?) ORDER BY seqno", (name,))
                shape.unique.add(tuple(column for (column,) in key))
    return found
