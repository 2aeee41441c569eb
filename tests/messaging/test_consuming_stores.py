"""Every engine's inbox and dead letters keep the contracts that are shipped with the package."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest

from everkeel.engines import MemoryEngine, PostgresEngine, SQLiteEngine
from everkeel.engines.sql.statement import Statement
from everkeel.idempotency import Fresh, InProgress, MemoryIdempotencyStore
from everkeel.runtime.clock import Clock
from everkeel.testing import VirtualClock
from everkeel.testing.contracts.dead_letters import DeadLettersContract, letter
from everkeel.testing.contracts.inbox import InboxContract, InboxTransactionContract, Opened
from everkeel.testing.contracts.sequences import SequencesContract


class Virtual:
    """Stores whose clock is ours: time passes when the test says so."""

    @pytest.fixture(autouse=True)
    def _clock(self):
        self.clock = VirtualClock()

    async def let_pass(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def opened_of(self, engine, store: str) -> Opened:
        return Opened(getattr(engine, store), engine.transaction, engine)


class TestMemoryIdempotencyStore(Virtual, InboxContract):
    @asynccontextmanager
    async def open(self):
        yield Opened(MemoryIdempotencyStore(clock=self.clock))


class InMemory(Virtual):
    store: str

    @asynccontextmanager
    async def open(self):
        async with MemoryEngine(clock=self.clock) as engine:
            yield self.opened_of(engine, self.store)


class TestMemoryInbox(InMemory, InboxContract, InboxTransactionContract):
    store = "inbox"


class TestMemorySequences(InMemory, SequencesContract):
    store = "sequences"


class TestMemoryDeadLetters(InMemory, DeadLettersContract):
    store = "dead_letters"


class InSQLite(Virtual):
    store: str

    @pytest.fixture(autouse=True)
    def _path(self, tmp_path):
        self.path = tmp_path / "events.db"

    @asynccontextmanager
    async def open(self):
        async with SQLiteEngine(self.path, clock=self.clock) as engine:
            yield self.opened_of(engine, self.store)


class TestSQLiteInbox(InSQLite, InboxContract, InboxTransactionContract):
    store = "inbox"


class TestSQLiteSequences(InSQLite, SequencesContract):
    store = "sequences"


class TestSQLiteDeadLetters(InSQLite, DeadLettersContract):
    store = "dead_letters"


@pytest.fixture(scope="module")
def database(postgres_url):
    """One for all: to make one for each test would take longer than all tests together."""
    import psycopg

    name = f"contract_{uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f'create database "{name}"')
        yield f"{postgres_url.rsplit('/', 1)[0]}/{name}"
        connection.execute(f'drop database "{name}" with (force)')


def emptied():
    tables = ("outbox", "inbox", "dead_letters", "dead_letter_audit", "sequences")
    yield Statement(f"TRUNCATE {', '.join(f'everkeel_{table}' for table in tables)}")


@pytest.mark.require_server("postgres")
class InPostgres:
    store: str
    driver: str

    @pytest.fixture(autouse=True)
    def _dsn(self, database):
        self.dsn = database

    @asynccontextmanager
    async def open(self):
        async with PostgresEngine(self.dsn, driver=self.driver) as engine:
            await engine.run(emptied())
            yield Opened(getattr(engine, self.store), engine.transaction, engine)


class TestPostgresSequencesWithAsyncpg(InPostgres, SequencesContract):
    store, driver = "sequences", "asyncpg"


class TestPostgresSequencesWithPsycopg(InPostgres, SequencesContract):
    store, driver = "sequences", "psycopg"


class TestPostgresInboxWithAsyncpg(InPostgres, InboxContract, InboxTransactionContract):
    store, driver = "inbox", "asyncpg"

    @pytest.mark.parametrize("skew", [-3600.0, 3600.0])
    def test_the_servers_clock_decides_however_wrong_ours_is(self, skew):
        class Skewed(Clock):
            time = staticmethod(lambda: Clock.time() + skew)
            monotonic = staticmethod(lambda: Clock.monotonic() + skew)

        scope = f"skewed by {skew:g}"  # the database may be that of other tests too

        async def test():
            async with (
                PostgresEngine(self.dsn) as right,
                PostgresEngine(self.dsn, clock=Skewed()) as wrong,
            ):
                held = await right.inbox.begin(scope, "held", lease=60)
                assert isinstance(await wrong.inbox.begin(scope, "held"), InProgress)
                lapsed = await wrong.inbox.begin(scope, "lapsed", lease=0.05)
                await asyncio.sleep(0.1)
                assert isinstance(await right.inbox.begin(scope, "lapsed"), Fresh)
                assert not await wrong.inbox.complete(lapsed.token)
                assert await right.inbox.complete(held.token)
                await wrong.dead_letters.put(letter())
                from everkeel.engines.letters import LetterFilter

                assert await right.dead_letters.count(LetterFilter(older_than=60)) == 0

        asyncio.run(test())


class TestPostgresInboxWithPsycopg(InPostgres, InboxContract, InboxTransactionContract):
    store, driver = "inbox", "psycopg"


class TestPostgresDeadLettersWithAsyncpg(InPostgres, DeadLettersContract):
    store, driver = "dead_letters", "asyncpg"


class TestPostgresDeadLettersWithPsycopg(InPostgres, DeadLettersContract):
    store, driver = "dead_letters", "psycopg"


@pytest.mark.require_server("postgres")
def test_in_postgresql_code_without_an_event_loop_shares_the_records(database):
    from everkeel.idempotency import Idempotency

    async def schema():
        async with PostgresEngine(database) as engine:
            await engine.run(emptied())

    asyncio.run(schema())
    engine = PostgresEngine(database)
    guard = Idempotency("s", engine.inbox)
    with guard.once("k") as claim:
        assert claim.fresh
        claim.keep(b"done")
    with guard.once("k") as claim:
        assert (claim.fresh, claim.result) == (False, b"done")
    token = engine.inbox.sync.begin("s", "other").token
    assert engine.inbox.sync.extend(token, 5)
    assert engine.inbox.sync.fail(token)
    assert engine.inbox.sync.stats("s").completed == 1
    assert engine.inbox.sync.get("s", "other").attempts == 1
    assert engine.inbox.sync.forget("s", "other")
    assert engine.inbox.sync.purge() == 0
    (connection,) = engine.inbox._threads._all
    asyncio.run(engine.close())
    assert connection.closed


def test_in_sqlite_code_without_an_event_loop_shares_the_records(tmp_path):
    from everkeel.idempotency import Idempotency

    async def life():
        async with SQLiteEngine(tmp_path / "events.db") as engine:
            await asyncio.to_thread(once, engine)

    def once(engine):
        guard = Idempotency("s", engine.inbox)
        for fresh in (True, False):
            with guard.once("k") as claim:
                assert claim.fresh is fresh
        assert engine.inbox.sync.stats().completed == 1

    asyncio.run(life())
