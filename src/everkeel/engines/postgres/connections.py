"""Where the engine's own connections come from: a pool we make with asyncpg or psycopg, or one the caller has."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Literal, Protocol, TypeAlias

from everkeel.engines.postgres.sockets import libpq_options, watch
from everkeel.engines.sql.runners import autocommits, begun
from everkeel.errors import ConfigError

Driver: TypeAlias = Literal["asyncpg", "psycopg"]

CLOSE = 5.0
"""Seconds for which connections may be waited for that somebody still uses when the engine is closed."""


ACQUIRE = 30.0
"""Seconds for which a connection is waited for. Whoever holds one while waiting for another may wait for itself."""


def _none_free(most: int) -> str:
    return (
        f"no connection within {ACQUIRE:g} s: the server does not answer, or all {most} are in use; code that holds a "
        "transaction and writes without giving it as tx waits for a second one (see connections of PostgresEngine)"
    )


class Connections(Protocol):
    """Lends connections that are in no transaction, and commit each statement by itself."""

    async def start(self) -> None: ...

    def acquire(self) -> Any: ...

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """A connection in a transaction that ends with the block."""
        ...

    async def close(self) -> None: ...


class _Transactions:
    """A transaction on any connection that is lent."""

    acquire: Any
    _begin: Any = None

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        if self._begin is not None:
            async with self._begin() as connection:
                yield connection
        else:
            async with self.acquire() as connection, begun(connection):
                yield connection


async def _watched(connection: Any) -> None:
    watch(connection)


class AsyncpgConnections(_Transactions):
    """A pool of asyncpg's."""

    def __init__(self, dsn: str, most: int, *, pooler: bool) -> None:
        self._dsn, self._most = dsn, most
        # Behind a pooler in transaction mode the next statement may run on another server connection, which knows
        # nothing of statements prepared on this one.
        self._options: dict[str, Any] = {"statement_cache_size": 0} if pooler else {}
        self._pool: Any = None

    async def start(self) -> None:
        import asyncpg  # type: ignore[import-untyped]  # it ships no types

        self._pool = await asyncpg.create_pool(
            self._dsn, min_size=0, max_size=self._most, init=_watched, **self._options
        )

    def acquire(self) -> Any:
        if self._pool is None:
            raise RuntimeError("PostgresEngine is not started: `async with engine:` or `await engine.start()`")
        return self._acquire()

    @asynccontextmanager
    async def _acquire(self) -> AsyncIterator[Any]:
        try:
            connection = await self._pool.acquire(timeout=ACQUIRE)
        except TimeoutError:
            raise TimeoutError(_none_free(self._most)) from None
        try:
            yield connection
        finally:
            await self._pool.release(connection)

    async def close(self) -> None:
        if self._pool is not None:
            # Who was cut off in the middle of a statement gives its connection back when the server says something.
            try:
                async with asyncio.timeout(CLOSE):
                    await self._pool.close()
            except TimeoutError:
                self._pool.terminate()


class PsycopgConnections(_Transactions):
    """A few connections of psycopg's, kept open between uses."""

    def __init__(self, dsn: str, most: int, *, pooler: bool) -> None:
        self._dsn, self._most = dsn, most
        self._options = {**libpq_options(dsn), **({"prepare_threshold": None} if pooler else {})}
        self._places = asyncio.Semaphore(most)
        self._idle: list[Any] = []

    async def start(self) -> None:
        async with self.acquire():
            pass  # a wrong address is an error now, not at the first event

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Any]:
        import psycopg

        try:
            async with asyncio.timeout(ACQUIRE):
                await self._places.acquire()
        except TimeoutError:
            raise TimeoutError(_none_free(self._most)) from None
        try:
            while self._idle and self._idle[-1].closed:
                self._idle.pop()
            if self._idle:
                connection = self._idle.pop()
            else:
                connection = await psycopg.AsyncConnection.connect(self._dsn, autocommit=True, **self._options)
            try:
                yield connection
            except BaseException:
                await connection.close()  # in a state nobody knows; the next one is cheap compared with a wrong one
                raise
            self._idle.append(connection)
        finally:
            self._places.release()

    async def close(self) -> None:
        while self._idle:
            await self._idle.pop().close()


class GivenPool(_Transactions):
    """The caller's own pool: asyncpg's, psycopg_pool's, or an AsyncEngine of SQLAlchemy's."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        kind = {(cls.__module__.partition(".")[0], cls.__name__) for cls in type(pool).__mro__}
        if ("asyncpg", "Pool") in kind:
            self.acquire = pool.acquire
        elif ("psycopg_pool", "AsyncConnectionPool") in kind:
            self.acquire = self._from_psycopg
        elif ("sqlalchemy", "AsyncEngine") in kind:
            if autocommits(pool):
                raise ConfigError(
                    "PostgresEngine", "pool", "must not commit each statement by itself", "isolation_level='AUTOCOMMIT'"
                )
            self.acquire = pool.execution_options(isolation_level="AUTOCOMMIT").connect
            self._begin = pool.begin
        else:
            raise ConfigError(
                "PostgresEngine", "pool",
                "must be asyncpg's Pool, psycopg_pool's AsyncConnectionPool or SQLAlchemy's AsyncEngine",
                type(pool).__qualname__,
            )  # fmt: skip

    @asynccontextmanager
    async def _from_psycopg(self) -> AsyncIterator[Any]:
        async with self._pool.connection() as connection:
            before = connection.autocommit
            await connection.set_autocommit(True)
            try:
                yield connection
            finally:
                if not connection.closed:
                    await connection.set_autocommit(before)

    async def start(self) -> None:
        """It is the caller's to open."""

    async def close(self) -> None:
        """It is the caller's to close."""


def connections(dsn: str | None, pool: Any, driver: Driver | None, most: int, *, pooler: bool) -> Connections:
    """What the engine was told to use."""
    if (dsn is None) == (pool is None):
        raise ConfigError("PostgresEngine", None, "needs either a dsn or a pool, and not both", None)
    if pool is not None:
        return GivenPool(pool)
    assert dsn is not None
    if (driver or installed_driver()) == "asyncpg":
        return AsyncpgConnections(dsn, most, pooler=pooler)
    return PsycopgConnections(dsn, most, pooler=pooler)


def installed_driver() -> Driver:
    """asyncpg, which is the faster one, or else psycopg."""
    from importlib.util import find_spec

    if find_spec("asyncpg"):
        return "asyncpg"
    if find_spec("psycopg"):
        return "psycopg"
    raise ImportError("PostgresEngine needs a driver: pip install everkeel[asyncpg] or everkeel[psycopg]")
