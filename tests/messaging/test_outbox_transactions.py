"""An event and the change it is about are committed together or not at all, whatever the caller's connection is."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest

from everkeel.engines import MemoryEngine, PostgresEngine, SQLiteEngine
from everkeel.engines.sqlite.schema import sql as sqlite_schema
from everkeel.errors import ConfigError
from everkeel.messaging import Event, Outbox
from everkeel.testing import Crashed, crash_at

ORDERS = "CREATE TABLE orders (id integer PRIMARY KEY)"
ADD = "INSERT INTO orders VALUES (1)"
COUNT = "SELECT count(*) FROM orders"


def placed(n: int = 1) -> Event:
    return Event("order.placed", {"order": n}, source="/orders", id=f"e-{n}", key="order-1")


async def depth(outbox: Outbox) -> int:
    return (await outbox.stats()).depth


# ------------------------------------------------------------------ PostgreSQL: every driver and SQLAlchemy over it


class Asyncpg:
    """Each of these adds an order and an event, and then commits or fails."""

    async def run(self, outbox, dsn, fail):
        import asyncpg

        connection = await asyncpg.connect(dsn)
        try:
            async with connection.transaction():
                await connection.execute(ADD)
                await outbox.write(placed(), tx=connection)
                fail()
        finally:
            await connection.close()


class AsyncpgPool:
    async def run(self, outbox, dsn, fail):
        import asyncpg

        async with asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool, pool.acquire() as connection:
            async with connection.transaction():
                await connection.execute(ADD)
                await outbox.write(placed(), tx=connection)
                fail()


class PsycopgAsync:
    async def run(self, outbox, dsn, fail):
        import psycopg

        async with await psycopg.AsyncConnection.connect(dsn) as connection:  # commits at the end, or rolls back
            await connection.execute(ADD)
            await outbox.write(placed(), tx=connection)
            fail()


class PsycopgSync:
    async def run(self, outbox, dsn, fail):
        import psycopg
        from psycopg.rows import dict_row

        def work():
            with psycopg.connect(dsn, row_factory=dict_row) as connection:
                connection.execute(ADD)
                outbox.write_sync(placed(), tx=connection)
                fail()

        await asyncio.to_thread(work)


class SQLAlchemySession:
    driver = "psycopg"

    async def run(self, outbox, dsn, fail):
        from sqlalchemy import create_engine, text
        from sqlalchemy.orm import Session

        engine = create_engine(dsn.replace("postgresql://", f"postgresql+{self.driver}://"))

        def work():
            with Session(engine) as session, session.begin():
                session.execute(text(ADD))
                outbox.write_sync(placed(), tx=session)
                fail()

        try:
            await asyncio.to_thread(work)
        finally:
            engine.dispose()


class SQLAlchemyConnection:
    async def run(self, outbox, dsn, fail):
        from sqlalchemy import create_engine, text

        engine = create_engine(dsn.replace("postgresql://", "postgresql+psycopg://"))

        def work():
            with engine.begin() as connection:
                connection.execute(text(ADD))
                outbox.write_sync(placed(), tx=connection)
                fail()

        try:
            await asyncio.to_thread(work)
        finally:
            engine.dispose()


class SQLAlchemyAsyncSession:
    driver = "asyncpg"

    async def run(self, outbox, dsn, fail):
        from sqlalchemy import text
        from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

        engine = create_async_engine(dsn.replace("postgresql://", f"postgresql+{self.driver}://"))
        try:
            async with AsyncSession(engine) as session, session.begin():
                await session.execute(text(ADD))
                await outbox.write(placed(), tx=session)
                fail()
        finally:
            await engine.dispose()


class SQLAlchemyAsyncSessionOnPsycopg(SQLAlchemyAsyncSession):
    driver = "psycopg"


class SQLAlchemyAsyncConnection:
    async def run(self, outbox, dsn, fail):
        from sqlalchemy import text
        from sqlalchemy.ext.asyncio import create_async_engine

        engine = create_async_engine(dsn.replace("postgresql://", "postgresql+asyncpg://"))
        try:
            async with engine.begin() as connection:
                await connection.execute(text(ADD))
                await outbox.write(placed(), tx=connection)
                fail()
        finally:
            await engine.dispose()


CALLERS = [
    Asyncpg, AsyncpgPool, PsycopgAsync, PsycopgSync, SQLAlchemySession, SQLAlchemyConnection, SQLAlchemyAsyncSession,
    SQLAlchemyAsyncSessionOnPsycopg, SQLAlchemyAsyncConnection,
]  # fmt: skip


@pytest.mark.require_server("postgres")
@pytest.mark.parametrize("caller", CALLERS)
def test_in_postgresql_the_event_and_the_order_are_one(caller, postgres_dsn):
    def crash():
        raise Crashed

    async def main():
        import psycopg

        with psycopg.connect(postgres_dsn, autocommit=True) as connection:
            connection.execute(ORDERS)
            async with PostgresEngine(postgres_dsn, serialise_keys=True) as engine:
                outbox = Outbox(engine)
                with pytest.raises(Crashed):
                    await caller().run(outbox, postgres_dsn, crash)
                assert (connection.execute(COUNT).fetchone()[0], await depth(outbox)) == (0, 0)
                await caller().run(outbox, postgres_dsn, lambda: None)
                assert (connection.execute(COUNT).fetchone()[0], await depth(outbox)) == (1, 1)
                (claimed,) = await engine.outbox.claim("me", 10, 60)
                assert (claimed.row.id, claimed.row.payload) == ("e-1", '{"order":1}')

    asyncio.run(main())


@pytest.mark.require_server("postgres")
@pytest.mark.parametrize("caller", [SQLAlchemySession, SQLAlchemyAsyncSession])
def test_a_session_wakes_the_relay_when_it_has_committed_and_not_when_it_rolled_back(caller, postgres_dsn):
    def crash():
        raise Crashed

    async def main():
        import psycopg

        with psycopg.connect(postgres_dsn, autocommit=True) as connection:
            connection.execute(ORDERS)
        async with PostgresEngine(postgres_dsn, listen_dsn=None, pooler=True) as engine:  # nobody listens
            outbox = Outbox(engine)
            with pytest.raises(Crashed):
                await caller().run(outbox, postgres_dsn, crash)
            assert not await engine.wakeup.wait("outbox", 0.01)
            await caller().run(outbox, postgres_dsn, lambda: None)
            assert await engine.wakeup.wait("outbox", 5)

    asyncio.run(main())


@pytest.mark.require_server("postgres")
@pytest.mark.parametrize("connect", ["asyncpg", "psycopg"])
def test_a_transaction_of_the_outbox_wakes_the_relay_of_another_process(connect, postgres_dsn):
    async def main():
        import asyncpg
        import psycopg

        async with PostgresEngine(postgres_dsn) as here, PostgresEngine(postgres_dsn) as elsewhere:
            await asyncio.wait_for(elsewhere.listener.connected.wait(), 10)
            while await elsewhere.wakeup.wait("outbox", 0.05):
                pass
            outbox = Outbox(here)
            if connect == "asyncpg":
                connection = await asyncpg.connect(postgres_dsn)
            else:
                connection = await psycopg.AsyncConnection.connect(postgres_dsn)
            async with outbox.transaction(connection) as tx:
                await outbox.write(placed(), tx=tx)
            assert await elsewhere.wakeup.wait("outbox", 10)
            assert await depth(outbox) == 1
            await connection.close()

    asyncio.run(main())


@pytest.mark.require_server("pgbouncer")
def test_behind_pgbouncer_in_transaction_mode_writing_works_with_every_driver(pgbouncer_dsn, postgres_dsn):
    async def main():
        import asyncpg
        import psycopg

        async with PostgresEngine(pgbouncer_dsn, pooler=True, listen_dsn=postgres_dsn) as engine:
            outbox = Outbox(engine)
            connection = await asyncpg.connect(pgbouncer_dsn, statement_cache_size=0)
            async with outbox.transaction(connection) as tx:
                await outbox.write(placed(1), tx=tx)
            await connection.close()
            async with await psycopg.AsyncConnection.connect(pgbouncer_dsn, prepare_threshold=None) as connection:
                await outbox.write(placed(2), tx=connection)
            assert await depth(outbox) == 2

    asyncio.run(main())


# ------------------------------------------------------------------ SQLite


@pytest.mark.parametrize("fails", [False, True])
def test_in_sqlite_the_event_and_the_order_are_one(tmp_path, fails):
    async def main():
        async with SQLiteEngine(tmp_path / "db") as engine:
            outbox = Outbox(engine)
            connection = sqlite3.connect(tmp_path / "db")
            connection.execute(ORDERS)

            def work():
                with connection:
                    connection.execute(ADD)
                    outbox.write_sync(placed(), tx=connection)
                    if fails:
                        raise Crashed

            if fails:
                with pytest.raises(Crashed):
                    work()
            else:
                work()
            expected = 0 if fails else 1
            assert (connection.execute(COUNT).fetchone()[0], await depth(outbox)) == (expected, expected)
            connection.close()

    asyncio.run(main())


def test_in_sqlite_a_session_of_sqlalchemy_takes_the_event_along(tmp_path):
    from sqlalchemy import create_engine, text
    from sqlalchemy.orm import Session

    async def main():
        async with SQLiteEngine(tmp_path / "db") as engine:
            outbox = Outbox(engine)
            alchemy = create_engine(f"sqlite:///{tmp_path / 'db'}")
            with Session(alchemy) as session:
                session.execute(text(ORDERS))
                session.execute(text(ADD))
                outbox.write_sync(placed(), tx=session)
                session.rollback()
                assert await depth(outbox) == 0
                outbox.write_sync(placed(), tx=session)
                session.commit()
            alchemy.dispose()
            assert await depth(outbox) == 1

    asyncio.run(main())


def test_the_printed_schema_is_all_that_sqlite_needs(tmp_path):
    connection = sqlite3.connect(tmp_path / "db")
    connection.executescript(sqlite_schema())
    connection.close()

    async def main():
        async with SQLiteEngine(tmp_path / "db", create_schema=False) as engine:
            await Outbox(engine).write(placed())
            assert await depth(Outbox(engine)) == 1

    asyncio.run(main())


def test_a_transaction_of_the_outbox_is_also_one_of_the_engines_own(tmp_path):
    async def main(engine):
        async with engine:
            outbox = Outbox(engine)
            with pytest.raises(Crashed), crash_at("outbox.before_commit"):
                async with outbox.transaction() as tx:
                    await outbox.write(placed(), tx=tx)
            assert await depth(outbox) == 0
            async with outbox.transaction() as tx:
                await outbox.write(placed(), tx=tx)
            assert await depth(outbox) == 1
            assert await engine.wakeup.wait("outbox", 1)

    asyncio.run(main(MemoryEngine()))
    asyncio.run(main(SQLiteEngine(tmp_path / "db")))


# ------------------------------------------------------------------ what is no transaction


@pytest.mark.parametrize("tx", [object(), "BEGIN", 7])
def test_what_is_no_connection_is_an_error_that_says_what_is(tmp_path, tx):
    async def main():
        async with SQLiteEngine(tmp_path / "db") as engine:
            with pytest.raises(ConfigError, match="must be a connection of asyncpg, psycopg or sqlite3"):
                await Outbox(engine).write(placed(), tx=tx)
        async with MemoryEngine() as engine:
            with pytest.raises(ConfigError, match=r"must come from MemoryEngine.transaction\(\)"):
                await Outbox(engine).write(placed(), tx=tx)

    asyncio.run(main())


@pytest.mark.require_server("postgres")
def test_a_connection_that_is_awaited_is_refused_where_nothing_is(postgres_dsn):
    async def main():
        import asyncpg

        async with PostgresEngine(postgres_dsn) as engine:
            connection = await asyncpg.connect(postgres_dsn)
            async with connection.transaction():
                with pytest.raises(ConfigError, match="must be a connection that blocks"):
                    Outbox(engine).write_sync(placed(), tx=connection)
            with pytest.raises(ConfigError, match="tx is needed where nothing is awaited"):
                Outbox(engine).write_sync(placed())
            await connection.close()

    asyncio.run(main())


# ------------------------------------------------------------------ processes without an event loop


@pytest.mark.require_server("postgres")
@pytest.mark.parametrize("with_sqlalchemy", [False, True])
def test_a_process_without_an_event_loop_wakes_the_relays_of_others(postgres_dsn, with_sqlalchemy):
    import psycopg

    def write_without_a_loop():
        outbox = Outbox(PostgresEngine(postgres_dsn))  # never started: there is no loop in this thread
        if with_sqlalchemy:
            from sqlalchemy import create_engine
            from sqlalchemy.orm import Session

            database = create_engine(postgres_dsn.replace("postgresql://", "postgresql+psycopg://"))
            with Session(database) as session, session.begin():
                outbox.write_sync(placed(), tx=session)
            database.dispose()
        else:
            with psycopg.connect(postgres_dsn) as connection, outbox.transaction_sync(connection) as tx:
                outbox.write_sync(placed(), tx=tx)

    async def main():
        async with PostgresEngine(postgres_dsn) as engine:
            await asyncio.wait_for(engine.listener.connected.wait(), 10)
            while await engine.wakeup.wait("outbox", 0.05):
                pass
            await asyncio.to_thread(write_without_a_loop)
            assert await engine.wakeup.wait("outbox", 10)
            assert await depth(Outbox(engine)) == 1

    asyncio.run(main())


@pytest.mark.require_server("postgres")
@pytest.mark.parametrize("connect", ["asyncpg", "psycopg"])
def test_a_process_that_only_writes_wakes_the_relays_of_others(postgres_dsn, connect):
    async def main():
        import asyncpg
        import psycopg

        async with PostgresEngine(postgres_dsn) as elsewhere:
            await asyncio.wait_for(elsewhere.listener.connected.wait(), 10)
            while await elsewhere.wakeup.wait("outbox", 0.05):
                pass
            outbox = Outbox(PostgresEngine(postgres_dsn))  # never started: all it needs is the caller's connection
            if connect == "asyncpg":
                connection = await asyncpg.connect(postgres_dsn)
            else:
                connection = await psycopg.AsyncConnection.connect(postgres_dsn)
            async with outbox.transaction(connection) as tx:
                await outbox.write(placed(), tx=tx)
            assert await elsewhere.wakeup.wait("outbox", 10)
            await connection.close()

    asyncio.run(main())


@pytest.mark.require_server("postgres")
@pytest.mark.parametrize("started", [False, True])
def test_a_session_whose_pool_has_one_connection_commits_and_wakes(postgres_dsn, started):
    """In the middle of a commit there is no second connection to be had, and a commit that was made must not raise."""
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session

    database = create_engine(
        postgres_dsn.replace("postgresql://", "postgresql+psycopg://"), pool_size=1, max_overflow=0, pool_timeout=5
    )

    def write(engine):
        with Session(database) as session:
            for n in (1, 2):  # a session is used again
                with session.begin():
                    Outbox(engine).write_sync(placed(n), tx=session)

    async def main():
        async with PostgresEngine(postgres_dsn) as engine:
            await asyncio.wait_for(engine.listener.connected.wait(), 10)
            while await engine.wakeup.wait("outbox", 0.05):
                pass
            await asyncio.to_thread(write, engine if started else PostgresEngine(postgres_dsn))
            assert await engine.wakeup.wait("outbox", 10)
            assert await depth(Outbox(engine)) == 2

    asyncio.run(main())
    database.dispose()


@pytest.mark.require_server("postgres")
def test_a_commit_that_was_made_does_not_raise_because_nobody_could_be_woken(postgres_dsn, caplog):
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session

    async def start():
        async with PostgresEngine(postgres_dsn):
            pass

    def refuse():
        raise OSError("the server is gone")

    asyncio.run(start())
    database = create_engine(postgres_dsn.replace("postgresql://", "postgresql+psycopg://"))
    with Session(database) as session, session.begin():
        Outbox(PostgresEngine(postgres_dsn)).write_sync(placed(), tx=session)
        database.connect = refuse
    assert "could not wake relays of other processes: the server is gone" in caplog.text
    database.dispose()


# ------------------------------------------------------------------ connections in no transaction


@pytest.mark.require_server("postgres")
def test_sqlalchemy_that_commits_each_statement_is_refused(postgres_dsn):
    from sqlalchemy import create_engine
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
    from sqlalchemy.orm import Session

    outbox = Outbox(PostgresEngine(postgres_dsn))
    address = postgres_dsn.replace("postgresql://", "postgresql+psycopg://")
    plain, alone = create_engine(address), create_engine(address, isolation_level="AUTOCOMMIT")
    for database in (alone, plain.execution_options(isolation_level="AUTOCOMMIT")):
        with Session(database) as session, database.connect() as connection:
            for tx in (session, connection):
                with pytest.raises(ConfigError, match="must be in a transaction"):
                    outbox.write_sync(placed(), tx=tx)
    plain.dispose()
    alone.dispose()

    async def main():
        database = create_async_engine(address, isolation_level="AUTOCOMMIT")
        for tx in (AsyncSession(database), AsyncConnection(database)):
            with pytest.raises(ConfigError, match="must be in a transaction"):
                await outbox.write(placed(), tx=tx)
        with pytest.raises(ConfigError, match="pool must not commit each statement by itself"):
            PostgresEngine(pool=database)
        await database.dispose()

    asyncio.run(main())


@pytest.mark.require_server("postgres")
def test_a_transaction_on_another_kind_of_database_is_refused(postgres_dsn, tmp_path):
    import psycopg
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session

    there, here = Outbox(PostgresEngine(postgres_dsn)), Outbox(SQLiteEngine(tmp_path / "db"))
    file = create_engine(f"sqlite:///{tmp_path / 'db'}")
    own = sqlite3.connect(tmp_path / "db")
    with psycopg.connect(postgres_dsn) as connection, Session(file) as session:
        with pytest.raises(ConfigError, match="must be on the database of the engine, which is sqlite") as caught:
            here.write_sync(placed(), tx=connection)
        assert "got psycopg.Connection on postgresql" in str(caught.value)
        for tx in (session, own):
            with pytest.raises(ConfigError, match="must be on the database of the engine, which is postgresql"):
                there.write_sync(placed(), tx=tx)
    own.close()
    file.dispose()


@pytest.mark.require_server("postgres")
def test_an_engine_that_was_not_started_says_so(postgres_dsn):
    async def main():
        with pytest.raises(RuntimeError, match="PostgresEngine is not started"):
            await Outbox(PostgresEngine(postgres_dsn, driver="asyncpg")).write(placed())

    asyncio.run(main())


@pytest.mark.require_server("postgres")
def test_a_connection_in_no_transaction_is_refused_because_the_event_would_be_alone(postgres_dsn, tmp_path):
    async def main():
        import asyncpg
        import psycopg

        async with PostgresEngine(postgres_dsn) as engine:
            outbox = Outbox(engine)
            connection = await asyncpg.connect(postgres_dsn)
            with pytest.raises(ConfigError, match="must be in a transaction, or the event would be written alone"):
                await outbox.write(placed(), tx=connection)
            await connection.close()
            with (
                psycopg.connect(postgres_dsn, autocommit=True) as connection,
                pytest.raises(ConfigError, match="must be in a transaction"),
            ):
                outbox.write_sync(placed(), tx=connection)
            assert await depth(outbox) == 0
        async with SQLiteEngine(tmp_path / "db") as engine:
            connection = sqlite3.connect(tmp_path / "db", isolation_level=None)
            with pytest.raises(ConfigError, match="must be in a transaction"):
                Outbox(engine).write_sync(placed(), tx=connection)
            connection.close()

    asyncio.run(main())


# ------------------------------------------------------------------ pools that the caller has


@pytest.mark.require_server("postgres")
@pytest.mark.parametrize("kind", ["asyncpg", "sqlalchemy+asyncpg", "sqlalchemy+psycopg"])
def test_the_engine_can_use_a_pool_of_the_callers(postgres_dsn, kind):
    from everkeel.messaging import MemoryTransport

    async def use(pool):
        async with PostgresEngine(pool=pool) as engine:
            assert not engine.capabilities.notify  # nobody listens on a pool that is not ours
            outbox = Outbox(engine, transport=MemoryTransport())
            async with outbox.transaction() as tx:
                await outbox.write([placed(1), placed(2)], tx=tx)
            with pytest.raises(Crashed), crash_at("outbox.before_commit"):
                async with outbox.transaction() as tx:
                    await outbox.write(placed(3), tx=tx)
            assert await outbox.relay().flush() == 2
            (claimed,) = [await outbox.write(placed(4)), *await engine.outbox.claim("me", 1, 60)][1:]
            from everkeel.engines import ErrorInfo

            assert await engine.outbox.bury(claimed.lease, ErrorInfo.of("no"), reason="attempts")

    async def main():
        if kind == "asyncpg":
            import asyncpg

            async with asyncpg.create_pool(postgres_dsn, min_size=1, max_size=2) as pool:
                await use(pool)
        else:
            from sqlalchemy.ext.asyncio import create_async_engine

            pool = create_async_engine(postgres_dsn.replace("postgresql", kind.replace("sqlalchemy", "postgresql")))
            try:
                await use(pool)
            finally:
                await pool.dispose()

    asyncio.run(main())


@pytest.mark.require_server("postgres")
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_one_connection_is_enough_and_who_waits_for_a_second_one_is_told(postgres_dsn, driver, monkeypatch):
    from everkeel.engines import ErrorInfo
    from everkeel.messaging import MemoryTransport

    async def main():
        async with PostgresEngine(postgres_dsn, driver=driver, connections=1) as engine:
            outbox = Outbox(engine, transport=MemoryTransport())
            async with asyncio.timeout(30), outbox.relay(poll=0.02):
                await asyncio.gather(*(outbox.write(placed(n)) for n in range(20)))
                async with outbox.transaction() as tx:
                    await outbox.write(placed(20), tx=tx)
                while await depth(outbox):  # noqa: ASYNC110 - what we wait for happens in a server
                    await asyncio.sleep(0.02)
            await outbox.write(placed(21))
            (claimed,) = await engine.outbox.claim("me", 1, 60)
            assert await engine.outbox.bury(claimed.lease, ErrorInfo.of("no"), reason="attempts")
            monkeypatch.setattr("everkeel.engines.postgres.connections.ACQUIRE", 0.05)
            async with engine.transaction() as tx:
                with pytest.raises(TimeoutError, match="writes without giving it as tx waits for a second one"):
                    await outbox.write(placed(22))
                await outbox.write(placed(23), tx=tx)
            assert await depth(outbox) == 1

    asyncio.run(main())


def test_what_is_no_pool_is_an_error_that_says_what_is():
    with pytest.raises(ConfigError, match="pool must be asyncpg's Pool"):
        PostgresEngine(pool=object())
    with pytest.raises(ConfigError, match="needs either a dsn or a pool"):
        PostgresEngine()


def test_whoever_wrote_into_a_session_is_told_of_its_commit(tmp_path):
    from sqlalchemy import create_engine
    from sqlalchemy.orm import Session

    from everkeel.messaging.commits import when_committed

    database = create_engine(f"sqlite:///{tmp_path / 'db'}")
    told: list[str] = []
    with Session(database) as session:
        for name in ("an outbox", "a saga"):
            assert when_committed(session, lambda connect, name=name: told.append(name))
        session.commit()
        session.commit()
    database.dispose()
    assert told == ["an outbox", "a saga"]
