"""However many rows there are, the relay needs the same memory to deliver them, and the purge takes all of them."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from pathlib import Path

import pytest

from everkeel.engines import PostgresEngine, SQLiteEngine
from everkeel.engines.sql.statement import Statement, one
from everkeel.messaging import Event, Outbox
from everkeel.messaging.transports.protocol import OK

AT_ONCE = 1000


class Counting:
    """A transport that keeps nothing."""

    def __init__(self):
        self.published = 0

    async def publish(self, messages):
        self.published += len(messages)
        return [OK] * len(messages)


async def deliver_and_purge(engine, rows, measure):
    """Write so many, deliver and purge them; answers what `measure` said while they were delivered."""
    transport = Counting()
    outbox = Outbox(engine, transport=transport)
    for start in range(0, rows, AT_ONCE):
        several = range(start, min(start + AT_ONCE, rows))
        await outbox.write([Event("tested", {"n": n}, source="/tests", key=f"k{n % 50}") for n in several])
    gc.collect()
    with measure as found:
        assert await outbox.relay().flush() == rows == transport.published
    await asyncio.sleep(0.01)
    assert await outbox.relay().maintain() == rows
    assert (await outbox.stats()).depth == 0
    return found


class TracedPeak:
    def __enter__(self):
        tracemalloc.start()
        self.bytes = 0
        return self

    def __exit__(self, *error):
        self.bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()


class ResidentGrowth:
    """By how much the process grew meanwhile, in bytes, as the system sees it."""

    def __enter__(self):
        self._before = resident()
        return self

    def __exit__(self, *error):
        self.bytes = resident() - self._before


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def check_flat(make_engine):
    async def main():
        async with make_engine() as engine:
            await deliver_and_purge(engine, 300, TracedPeak())  # what is made once is made
            few = await deliver_and_purge(engine, 500, TracedPeak())
            many = await deliver_and_purge(engine, 4000, TracedPeak())
            # Two batches may be on their way at once, or one. Eight times the rows would be eight times the memory.
            assert many.bytes < 3 * few.bytes, (few.bytes, many.bytes)

    asyncio.run(main())


def test_on_sqlite_memory_does_not_grow_with_the_number_of_rows(tmp_path):
    check_flat(lambda: SQLiteEngine(tmp_path / "events.db", keep_delivered=0.001))


@pytest.mark.require_server("postgres")
def test_on_postgresql_memory_does_not_grow_with_the_number_of_rows(postgres_dsn):
    check_flat(lambda: PostgresEngine(postgres_dsn, keep_delivered=0.001))


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.require_server("postgres")
def test_a_million_rows_are_delivered_and_purged_with_flat_memory(postgres_dsn):
    async def main():
        async with PostgresEngine(postgres_dsn, keep_delivered=0.001) as engine:
            await deliver_and_purge(engine, 10_000, ResidentGrowth())
            growth = await deliver_and_purge(engine, 1_000_000, ResidentGrowth())
            assert growth.bytes < 32 * 1024 * 1024, growth.bytes
            (left,) = (await engine.run(one(Statement("SELECT count(*) FROM everkeel_outbox"))))[0]
            assert left == 0

    asyncio.run(main())
