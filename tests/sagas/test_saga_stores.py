"""Every engine's sagas keep the contract that is shipped with the package."""

from __future__ import annotations

from contextlib import asynccontextmanager
from uuid import uuid4

import psycopg
import pytest

from everkeel.engines import MemoryEngine, PostgresEngine, SQLiteEngine
from everkeel.testing import VirtualClock
from everkeel.testing.contracts.inbox import Opened
from everkeel.testing.contracts.sagas import SagasContract


class Virtual:
    """Stores whose clock is ours: time passes when the test says so."""

    @pytest.fixture(autouse=True)
    def _clock(self):
        self.clock = VirtualClock()

    async def let_pass(self, seconds: float) -> None:
        self.clock.advance(seconds + 0.001)


class TestMemory(Virtual, SagasContract):
    @asynccontextmanager
    async def open(self):
        async with MemoryEngine(clock=self.clock) as engine:
            yield Opened(engine.sagas, engine.transaction, engine)


class TestSQLite(Virtual, SagasContract):
    @pytest.fixture(autouse=True)
    def _path(self, tmp_path):
        self.path = tmp_path / "sagas.db"

    @asynccontextmanager
    async def open(self):
        async with SQLiteEngine(self.path, clock=self.clock) as engine:
            yield Opened(engine.sagas, engine.transaction, engine)


@pytest.fixture(scope="module")
def database(postgres_url):
    """One for all: to make one for each test would take longer than all tests together."""
    name = f"sagas_{uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f'create database "{name}"')
        yield f"{postgres_url.rsplit('/', 1)[0]}/{name}"
        connection.execute(f'drop database "{name}" with (force)')


@pytest.mark.require_server("postgres")
class InPostgres(SagasContract):
    driver: str

    @pytest.fixture(autouse=True)
    def _dsn(self, database):
        self.dsn = database

    @asynccontextmanager
    async def open(self):
        async with PostgresEngine(self.dsn, driver=self.driver) as engine:
            async with engine.transaction() as tx:
                await tx.execute("truncate everkeel_sagas, everkeel_outbox")
            yield Opened(engine.sagas, engine.transaction, engine)


class TestAsyncpg(InPostgres):
    driver = "asyncpg"


class TestPsycopg(InPostgres):
    driver = "psycopg"


del InPostgres
