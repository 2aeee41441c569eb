"""The whole way behind PgBouncer in transaction mode, and clocks that are an hour wrong."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter

import pytest

from everkeel.engines import PostgresEngine
from everkeel.messaging import Consumer, Event, MemoryTransport, Message, Outbox, RedisTransport
from everkeel.runtime.clock import Clock


def event(n, key=None):
    return Event("tested", {"n": n}, source="/tests", id=str(n), key=key)


async def until(satisfied):
    async with asyncio.timeout(50):
        while not await satisfied():  # noqa: ASYNC110 - what we wait for happens in a server
            await asyncio.sleep(0.02)


class Skewed(Clock):
    """A clock that is wrong by so many seconds."""

    def __init__(self, seconds):
        self.time = lambda: Clock.time() + seconds
        self.monotonic = lambda: Clock.monotonic() + seconds


async def shop(writing, handling, connection):
    """Forty events from an outbox over a relay to a consumer, each twice; answers effects in their order."""
    await connection.execute("CREATE TABLE effects (seq bigint GENERATED ALWAYS AS IDENTITY, n integer)")
    transport = MemoryTransport()
    outbox = Outbox(writing, transport=transport, topic="events")
    consumer = Consumer("billing", transport, topics="events", engine=handling, backoff=0.05)

    @consumer.on("tested")
    async def bill(event, tx):
        await tx.execute("INSERT INTO effects (n) VALUES ($1)", event.data["n"])

    async with outbox.relay(poll=0.05, batch=7), consumer:
        for n in range(40):
            async with outbox.transaction() as tx:
                await outbox.write(event(n, f"k{n % 3}"), tx=tx)

        async def published():
            return len(transport.published["events"]) >= 40

        await until(published)
        await transport.publish([Message("events", event(n, f"k{n % 3}")) for n in range(40)])

        async def settled():
            counts = consumer.snapshot()
            return counts["handled"] + counts["duplicates"] >= 80

        await until(settled)
    return [row["n"] for row in await connection.fetch("SELECT n FROM effects ORDER BY seq")]


def once_and_in_order(effects):
    assert Counter(effects) == dict.fromkeys(range(40), 1)
    for key in range(3):
        of_key = [n for n in effects if n % 3 == key]
        assert of_key == sorted(of_key)


@pytest.mark.require_server("postgres")
@pytest.mark.require_server("pgbouncer")
def test_behind_pgbouncer_in_transaction_mode_every_event_has_one_effect_in_order(postgres_dsn, pgbouncer_dsn):
    async def main():
        import asyncpg

        connection = await asyncpg.connect(postgres_dsn)
        async with PostgresEngine(pgbouncer_dsn, pooler=True) as engine:
            once_and_in_order(await shop(engine, engine, connection))
        await connection.close()

    asyncio.run(main())


@pytest.mark.require_server("postgres")
@pytest.mark.parametrize("hours", [-1, 1])
def test_relays_and_consumers_whose_clocks_are_an_hour_apart_share_the_work(postgres_dsn, hours):
    async def main():
        import asyncpg

        connection = await asyncpg.connect(postgres_dsn)
        async with (
            PostgresEngine(postgres_dsn) as right,
            PostgresEngine(postgres_dsn, clock=Skewed(hours * 3600)) as wrong,
        ):
            once_and_in_order(await shop(right, wrong, connection))
        await connection.close()

    asyncio.run(main())


@pytest.mark.require_server("redis")
@pytest.mark.parametrize("hours", [-1, 1])
def test_over_redis_the_servers_clock_decides_however_wrong_ours_is(redis_url, hours):
    async def main():
        prefix = uuid.uuid4().hex
        async with (
            RedisTransport(redis_url, prefix=prefix, poll=0.02) as right,
            RedisTransport(redis_url, prefix=prefix, poll=0.02, clock=Skewed(hours * 3600)) as wrong,
        ):
            await wrong.publish([Message("events", event(1)), Message("events", event(2))])
            one, two = right.subscribe("events", "g", lease=60), wrong.subscribe("events", "g", lease=60)
            first, second = await anext(one), await anext(one)
            waiting = asyncio.ensure_future(anext(two))
            await asyncio.wait({waiting}, timeout=0.3)
            assert not waiting.done()  # the leases of the other are not over
            await first.nack(0.1)
            async with asyncio.timeout(30):
                assert (await waiting).event.id == first.event.id
            assert await second.ack()

    asyncio.run(main())
