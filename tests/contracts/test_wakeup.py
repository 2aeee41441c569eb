"""Every engine's signal keeps the contract that is shipped with the package."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from everkeel.engines import MemoryEngine, PostgresEngine, SQLiteEngine
from everkeel.testing.contracts.wakeup import WakeupContract


class TestMemory(WakeupContract):
    @asynccontextmanager
    async def open(self):
        async with MemoryEngine() as engine:
            yield engine.wakeup


class TestSQLite(WakeupContract):
    @pytest.fixture(autouse=True)
    def _path(self, tmp_path):
        self.path = tmp_path / "events.db"

    @asynccontextmanager
    async def open(self):
        async with SQLiteEngine(self.path) as engine:
            yield engine.wakeup


@pytest.mark.require_server("postgres")
class InPostgres(WakeupContract):
    driver: str

    @pytest.fixture(autouse=True)
    def _dsn(self, emptied_dsn):
        self.dsn = emptied_dsn

    @asynccontextmanager
    async def open(self):
        async with PostgresEngine(self.dsn, driver=self.driver) as engine:
            await asyncio.wait_for(engine.listener.connected.wait(), 10)  # which wakes whoever waits already
            yield engine.wakeup

    def test_another_process_is_woken(self):
        async def test():
            async with (
                PostgresEngine(self.dsn, driver=self.driver) as here,
                PostgresEngine(self.dsn, driver=self.driver) as there,
            ):
                await asyncio.wait_for(there.listener.connected.wait(), 10)
                await there.wakeup.wait("outbox", 0.05)  # what it hears when it begins to listen
                waiting = asyncio.ensure_future(there.wakeup.wait("outbox", 30))
                await asyncio.sleep(0)
                for _ in range(50):
                    here.wakeup.notify("outbox")
                assert await waiting

        asyncio.run(test())

    def test_a_listening_connection_that_was_cut_is_replaced(self):
        async def test():
            async with PostgresEngine(self.dsn, driver=self.driver) as engine:
                listener = engine.listener
                await asyncio.wait_for(listener.connected.wait(), 10)
                while await engine.wakeup.wait("outbox", 0.05):
                    pass
                from everkeel.engines.sql.statement import Statement, one

                cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query ILIKE 'LISTEN%'"
                assert await engine.run(one(Statement(cut)))
                assert await engine.wakeup.wait("outbox", 20)  # what it hears when it listens again

        asyncio.run(test())


class TestPostgresWithAsyncpg(InPostgres):
    driver = "asyncpg"


class TestPostgresWithPsycopg(InPostgres):
    driver = "psycopg"
