"""Whose connection it is, found out by looking at it: no driver is imported that the caller has not imported already.

asyncpg, psycopg (sync and async), sqlite3, and SQLAlchemy's sessions and connections (sync and async) on top of them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol, TypeAlias, TypeVar

from everkeel.engines.sql.statement import Operation, Rows, Statement, Style, observers, rendered
from everkeel.errors import ConfigError

T = TypeVar("T")


class SyncRunner(Protocol):
    """Runs statements on a connection that blocks."""

    def execute(self, statement: Statement) -> Rows: ...


class AsyncRunner(Protocol):
    """Runs statements on a connection that is awaited."""

    async def execute(self, statement: Statement) -> Rows: ...


class _Asyncpg:
    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def execute(self, statement: Statement) -> Rows:
        text, values = rendered(statement, "dollar")
        return await self.connection.fetch(text, *values)  # type: ignore[no-any-return]


class _Psycopg:
    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def execute(self, statement: Statement) -> Rows:
        # A cursor of our own making: the connection's row factory may be the caller's idea of a row.
        text, values = rendered(statement, "pyformat")
        with self.connection.cursor(row_factory=_tuples) as cursor:
            cursor.execute(text, values)
            return cursor.fetchall() if cursor.description else ()


class _AsyncPsycopg:
    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def execute(self, statement: Statement) -> Rows:
        text, values = rendered(statement, "pyformat")
        async with self.connection.cursor(row_factory=_tuples) as cursor:
            await cursor.execute(text, values)
            return await cursor.fetchall() if cursor.description else ()


def _tuples(cursor: Any) -> Any:
    return tuple


class _SQLite:
    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def execute(self, statement: Statement) -> Rows:
        text, values = rendered(statement, "named")
        cursor = self.connection.cursor()
        cursor.row_factory = None
        try:
            return cursor.execute(text, values).fetchall()  # type: ignore[no-any-return]
        finally:
            cursor.close()


_SQLALCHEMY_STYLES: dict[str, Style] = {
    "asyncpg": "dollar",
    "psycopg": "pyformat",
    "psycopg_async": "pyformat",
    "psycopg2": "pyformat",
    "pysqlite": "named",
    "aiosqlite": "named",
}


def _style_of(connection: Any) -> Style:
    driver = connection.dialect.driver
    try:
        return _SQLALCHEMY_STYLES[driver]
    except KeyError:
        known = ", ".join(sorted(_SQLALCHEMY_STYLES))
        raise ConfigError("tx", None, f"must use one of the drivers {known}", f"SQLAlchemy on {driver!r}") from None


class _SQLAlchemy:
    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def execute(self, statement: Statement) -> Rows:
        # A session joins its transaction, beginning one as it would for a query of its own.
        connection = self.connection
        if hasattr(connection, "get_bind"):
            connection = connection.connection()
        result = connection.exec_driver_sql(*rendered(statement, _style_of(connection)))
        return result.fetchall() if result.returns_rows else ()


class _AsyncSQLAlchemy:
    def __init__(self, connection: Any) -> None:
        self.connection = connection

    async def execute(self, statement: Statement) -> Rows:
        connection = self.connection
        if hasattr(connection, "get_bind"):
            connection = await connection.connection()
        result = await connection.exec_driver_sql(*rendered(statement, _style_of(connection)))
        return result.fetchall() if result.returns_rows else ()


Runner: TypeAlias = SyncRunner | AsyncRunner

_KINDS: dict[tuple[str, str], tuple[type[Any], bool]] = {
    ("asyncpg", "Connection"): (_Asyncpg, True),
    ("asyncpg", "PoolConnectionProxy"): (_Asyncpg, True),
    ("psycopg", "Connection"): (_Psycopg, False),
    ("psycopg", "AsyncConnection"): (_AsyncPsycopg, True),
    ("sqlite3", "Connection"): (_SQLite, False),
    ("sqlalchemy", "Session"): (_SQLAlchemy, False),
    ("sqlalchemy", "scoped_session"): (_SQLAlchemy, False),
    ("sqlalchemy", "Connection"): (_SQLAlchemy, False),
    ("sqlalchemy", "AsyncSession"): (_AsyncSQLAlchemy, True),
    ("sqlalchemy", "async_scoped_session"): (_AsyncSQLAlchemy, True),
    ("sqlalchemy", "AsyncConnection"): (_AsyncSQLAlchemy, True),
}


_DATABASES = {"asyncpg": "postgresql", "psycopg": "postgresql", "sqlite3": "sqlite"}


def kind_of(tx: object) -> tuple[str, str] | None:
    """The library and class a connection is recognised by; None for anything else.

    >>> import sqlite3
    >>> kind_of(sqlite3.connect(":memory:"))
    ('sqlite3', 'Connection')
    """
    for cls in type(tx).__mro__:
        kind = (cls.__module__.partition(".")[0], cls.__name__)
        if kind in _KINDS:
            return kind
    return None


def runner_of(tx: object) -> tuple[Any, bool]:
    """Who runs statements on the caller's connection, and whether it must be awaited; a `ConfigError` if nobody can."""
    kind = kind_of(tx)
    if kind is None:
        raise ConfigError(
            "tx",
            None,
            "must be a connection of asyncpg, psycopg or sqlite3, or a session or connection of SQLAlchemy",
            f"{type(tx).__module__}.{type(tx).__qualname__}",
        )
    runner, awaited = _KINDS[kind]
    return runner(tx), awaited


def run(operation: Operation[T], runner: SyncRunner) -> T:
    """Run an operation on a connection that blocks."""
    rows: Rows | None = None
    try:
        while True:
            statement = operation.send(rows) if rows is not None else next(operation)
            for observer in observers:
                observer(statement.text)
            rows = runner.execute(statement)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


async def arun(operation: Operation[T], runner: Any) -> T:
    """Run an operation on a connection of either kind. One that blocks is used right here, in its own thread."""
    rows: Rows | None = None
    try:
        while True:
            statement = operation.send(rows) if rows is not None else next(operation)
            for observer in observers:
                observer(statement.text)
            found = runner.execute(statement)
            rows = await found if hasattr(found, "__await__") else found
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


def run_on(tx: object, operation: Operation[T]) -> T:
    """Run an operation in the caller's transaction, in code that does not await."""
    runner, awaited = runner_of(tx)
    if awaited:
        raise ConfigError(
            "tx", None, "must be a connection that blocks, in a call that is not awaited", f"{type(tx).__qualname__}"
        )
    return run(operation, runner)


async def arun_on(tx: object, operation: Operation[T]) -> T:
    """Run an operation in the caller's transaction."""
    runner, _ = runner_of(tx)
    return await arun(operation, runner)


def need_transaction(tx: Any, database: str | None = None) -> None:
    """A `ConfigError` for a connection that would commit each statement by itself: then nothing would be one. And for
    one to another kind of database than the engine's, `sqlite` or `postgresql`."""
    library, name = kind_of(tx) or ("", "")
    found = _DATABASES.get(library) or (_dialect_of(tx) if library == "sqlalchemy" else None)
    if found is not None and database in _DATABASES.values() and found != database:
        raise ConfigError(
            "tx", None, f"must be on the database of the engine, which is {database}", f"{library}.{name} on {found}"
        )
    if library == "asyncpg":
        alone = not tx.is_in_transaction()
    elif library == "psycopg":
        alone = tx.autocommit and tx.info.transaction_status.name == "IDLE"
    elif library == "sqlite3":
        autocommit = tx.isolation_level is None or getattr(tx, "autocommit", None) is True
        alone = autocommit and not tx.in_transaction
    else:
        alone = library == "sqlalchemy" and autocommits(tx)
    if alone:
        raise ConfigError(
            "tx", None, "must be in a transaction, or the event would be written alone", f"{library}.{name}"
        )


def _bind_of(tx: Any) -> Any:
    """What a session or connection of SQLAlchemy's works on; None where it has several databases, by class."""
    if hasattr(tx, "registry"):
        tx = tx.registry()
    for name in ("sync_session", "sync_connection", "sync_engine"):
        tx = getattr(tx, name, None) or tx
    return tx.bind if hasattr(tx, "get_bind") else tx


def _dialect_of(tx: Any) -> str | None:
    bind = _bind_of(tx)
    return None if bind is None else str(bind.dialect.name)


def autocommits(tx: Any) -> bool:
    """Does this session, connection or engine of SQLAlchemy commit each statement by itself?"""
    bind = _bind_of(tx)
    if bind is None:
        return False
    level = bind.get_execution_options().get("isolation_level")
    return (level or getattr(bind.dialect, "_on_connect_isolation_level", None)) == "AUTOCOMMIT"


def in_transaction(connection: Any) -> bool:
    """Is a transaction open on this connection?"""
    library, _ = kind_of(connection) or ("", "")
    if library == "asyncpg":
        return bool(connection.is_in_transaction())
    if library == "psycopg":
        return bool(connection.info.transaction_status.name != "IDLE")
    if library == "sqlalchemy":
        return bool(connection.in_transaction())
    return bool(getattr(connection, "in_transaction", False))


@asynccontextmanager
async def begun(connection: Any) -> AsyncIterator[None]:
    """A transaction on the caller's connection: committed when the block ends well, rolled back when it does not."""
    library, name = kind_of(connection) or ("", "")
    if (library in ("asyncpg", "psycopg") and name != "Connection") or library == "asyncpg":
        async with connection.transaction():
            yield
    elif library == "sqlalchemy" and name.lower().startswith("async"):
        async with connection.begin():
            yield
    else:
        with begun_sync(connection):
            yield


@contextmanager
def begun_sync(connection: Any) -> Iterator[None]:
    """The same on a connection that blocks."""
    library, _ = kind_of(connection) or ("", "")
    if library == "psycopg":
        with connection.transaction():
            yield
    elif library == "sqlalchemy":
        with connection.begin():
            yield
    elif library == "sqlite3":
        if connection.in_transaction:
            raise ConfigError("tx", None, "must not be in a transaction already", "a sqlite3 connection that is in one")
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            connection.rollback()
            raise
        connection.commit()
    else:
        runner_of(connection)  # says what is wrong
        raise ConfigError("tx", None, "must be a connection that blocks here", type(connection).__qualname__)
