"""Every engine's outbox keeps the contract that is shipped with the package."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from everkeel.engines import MemoryEngine, PostgresEngine, SQLiteEngine
from everkeel.runtime.clock import Clock
from everkeel.testing import VirtualClock
from everkeel.testing.contracts.inbox import Opened
from everkeel.testing.contracts.outbox import OutboxContract, claim, ids, row


class Virtual:
    """Stores whose clock is ours: time passes when the test says so."""

    @pytest.fixture(autouse=True)
    def _clock(self):
        self.clock = VirtualClock()

    async def let_pass(self, seconds):
        self.clock.advance(seconds + 0.01)


class TestMemory(Virtual, OutboxContract):
    @asynccontextmanager
    async def open(self):
        async with MemoryEngine(clock=self.clock) as engine:
            yield Opened(engine.outbox, engine.transaction, engine)


class TestSQLite(Virtual, OutboxContract):
    rows_of_the_race = 100

    @pytest.fixture(autouse=True)
    def _path(self, tmp_path):
        self.path = tmp_path / "events.db"

    @asynccontextmanager
    async def open(self):
        async with SQLiteEngine(self.path, clock=self.clock) as engine:
            yield Opened(engine.outbox, engine.transaction, engine)


@pytest.mark.require_server("postgres")
class InPostgres(OutboxContract):
    options: dict[str, object]
    moment = 0.5  # of real time, on machines that are busy

    @pytest.fixture(autouse=True)
    def _dsn(self, emptied_dsn):
        self.dsn = emptied_dsn

    @asynccontextmanager
    async def open(self):
        async with PostgresEngine(self.dsn, **self.options) as engine:
            yield Opened(engine.outbox, engine.transaction, engine)


class TestPostgresWithAsyncpg(InPostgres):
    options = {"driver": "asyncpg"}  # noqa: RUF012

    @pytest.mark.parametrize("skew", [-3600.0, 3600.0])
    def test_the_servers_clock_decides_however_wrong_ours_is(self, skew):
        class Skewed(Clock):
            time = staticmethod(lambda: Clock.time() + skew)
            monotonic = staticmethod(lambda: Clock.monotonic() + skew)

        async def test():
            async with PostgresEngine(self.dsn) as right, PostgresEngine(self.dsn, clock=Skewed()) as wrong:
                await wrong.outbox.append([row("1")])
                await wrong.outbox.append([row("later")], delay=60)
                (held,) = await claim(wrong.outbox)
                assert await claim(right.outbox) == []
                assert await claim(wrong.outbox) == []
                assert await right.outbox.ack([held.lease])
                assert (await wrong.outbox.stats()).oldest_age < 60

        asyncio.run(test())

    def test_a_key_that_fills_the_view_does_not_hide_the_others(self):
        async def test():
            async with PostgresEngine(self.dsn) as engine:
                await engine.outbox.append([row(f"hot{n}", "hot") for n in range(500)])
                await claim(engine.outbox, 1)  # by a relay that dies now
                await engine.outbox.append([row("cold", "cold")])
                assert ids(await claim(engine.outbox, 10)) == ["cold"]

        asyncio.run(test())


class TestPostgresWithPsycopg(InPostgres):
    options = {"driver": "psycopg"}  # noqa: RUF012


@pytest.mark.slow
class TestPostgresWithSerialisedKeysAndNothingKept(InPostgres):
    options = {"serialise_keys": True, "keep_delivered": 0}  # noqa: RUF012

    # What rests on delivered rows being kept is not promised here.
    test_a_delivered_event_is_not_taken_again = None
    test_a_purge_is_bounded_and_never_takes_what_waits = None


@pytest.mark.require_server("pgbouncer")
class TestPostgresBehindPgBouncer(InPostgres):
    options = {"pooler": True}  # noqa: RUF012

    @pytest.fixture(autouse=True)
    def _dsn(self, emptied_dsn, pgbouncer_url):
        self.dsn = f"{pgbouncer_url.rsplit('/', 1)[0]}/{emptied_dsn.rsplit('/', 1)[1]}"
