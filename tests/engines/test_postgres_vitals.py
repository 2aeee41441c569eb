"""What PostgreSQL says about itself: how far its clock is from ours, and what keeps it from cleaning up."""

from __future__ import annotations

import asyncio
import contextlib
import os

import asyncpg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everkeel.engines import PostgresEngine
from everkeel.engines.sql.statement import Statement, one
from everkeel.engines.vitals import certain_skew
from everkeel.runtime.clock import Clock
from everkeel.telemetry import StoreMetrics
from everkeel.telemetry.measuring import measure_all

SECONDS = st.floats(-1e6, 1e6)
SHORT = st.floats(0, 100)


@given(ours=SECONDS, skew=SECONDS, there=SHORT, back=SHORT)
def test_a_skew_is_never_overstated_and_never_off_by_more_than_the_round_trip(ours, skew, there, back):
    told = certain_skew(ours + there + skew, ours, ours + there + back)
    assert abs(told) <= abs(skew) + 1e-6
    assert abs(told - skew) <= there + back + 1e-6


class Skewed(Clock):
    """A clock that is wrong by so many seconds."""

    def __init__(self, seconds):
        self.time = lambda: Clock.time() + seconds


@pytest.mark.require_server("postgres")
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
@pytest.mark.parametrize("hours", [-1, 0, 1])
def test_a_clock_that_is_an_hour_wrong_is_seen(postgres_dsn, driver, hours):
    async def main():
        async with PostgresEngine(postgres_dsn, driver=driver, clock=Skewed(hours * 3600)) as engine:
            return (await engine.vitals()).clock_skew

    skew = asyncio.run(main())
    assert skew == pytest.approx(-3600 * hours, abs=600)  # however slowly this machine answers
    assert skew == 0 or hours  # and nobody's clock is wrong who only had to wait


WRITE = """
INSERT INTO everkeel_outbox (id, source, aggregatetype, type, attributes)
VALUES (gen_random_uuid(), '/', 't', 't', '')"""


@contextlib.asynccontextmanager
async def transaction(dsn, statement, isolation="read_committed"):
    connection = await asyncpg.connect(dsn)
    try:
        open_ = connection.transaction(isolation=isolation)
        await open_.start()
        await connection.execute(statement)
        yield connection
    finally:
        await connection.close()


@pytest.mark.require_server("postgres")
@pytest.mark.parametrize(
    ("statement", "isolation"),
    [
        ("SELECT count(*) FROM everkeel_outbox", "repeatable_read"),  # what it has read may not be cleaned up
        ("CREATE TABLE other (id integer)", "read_committed"),  # nor what is newer than what it wrote
    ],
)
def test_an_open_transaction_is_seen_by_its_age_and_by_what_it_holds_back(postgres_dsn, statement, isolation):
    async def main():
        async with PostgresEngine(postgres_dsn) as engine, transaction(postgres_dsn, statement, isolation) as holder:
            async with StoreMetrics(engine, name="orders") as watched:
                began = shown()
                other = await asyncpg.connect(postgres_dsn)
                for _ in range(20):
                    await other.execute(WRITE)
                await other.close()
                assert await watched.sample()
                held = shown()
            await holder.execute("ROLLBACK")
            return began, held, await engine.vitals()

    began, held, free = asyncio.run(main())
    assert set(began) == {"clock_skew", "oldest_transaction_age", "xmin_age"}
    assert held["oldest_transaction_age"] > began["oldest_transaction_age"] > 0
    assert held["xmin_age"] >= 20
    assert free.xmin_age < 20
    assert free.oldest_transaction < held["oldest_transaction_age"]


def shown():
    names = ("everkeel.store.clock_skew", "everkeel.store.oldest_transaction_age", "everkeel.store.xmin_age")
    return {one.name.rpartition(".")[2]: one.value for one in measure_all() if one.name in names}


@pytest.mark.require_server("postgres")
def test_what_a_transaction_of_another_role_holds_back_is_seen_too(postgres_dsn):
    """Of which an ordinary role may see nearly nothing, not even of what kind it is."""
    other = postgres_dsn.replace("//everkeel@", "//postgres@")
    ours = "EVERKEEL_TEST_POSTGRES" not in os.environ  # a server of somebody's own has roles of its own
    assert other != postgres_dsn or not ours

    async def main():
        async with (
            PostgresEngine(postgres_dsn) as engine,
            transaction(other, "SELECT count(*) FROM everkeel_outbox", "repeatable_read"),
        ):
            for _ in range(20):
                await engine.run(one(Statement(WRITE)))
            return await engine.vitals()

    vitals = asyncio.run(main())
    assert vitals.xmin_age >= 20
    assert vitals.oldest_transaction == 0 or not ours
