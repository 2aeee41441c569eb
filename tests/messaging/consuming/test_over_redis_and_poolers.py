"""The whole way with real servers: outbox, relay, Redis, consumer, dead letters; also through PgBouncer."""

from __future__ import annotations

import asyncio
import uuid
from contextlib import asynccontextmanager

import pytest

from everkeel.engines import PostgresEngine
from everkeel.errors import DeadLetterConflictError, DeadLetterStateError
from everkeel.messaging import Consumer, DeadLetters, Event, Outbox, RedisTransport

pytestmark = [
    pytest.mark.require_server("postgres"),
    pytest.mark.require_server("pgbouncer"),
    pytest.mark.require_server("redis"),
]

KEYS, EVENTS, BAD = 5, 40, 33


async def until(true, seconds=30.0):
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110 - counters tell nobody
            await asyncio.sleep(0.02)


@asynccontextmanager
async def engine_on(dsn, driver, pooler):
    if driver != "psycopg_pool":
        async with PostgresEngine(dsn, driver=driver, pooler=pooler, connections=8) as engine:
            yield engine
        return
    from psycopg_pool import AsyncConnectionPool

    options = {"prepare_threshold": None} if pooler else {}
    async with (
        AsyncConnectionPool(dsn, min_size=1, max_size=8, open=False, kwargs=options) as pool,
        PostgresEngine(pool=pool) as engine,
    ):
        yield engine


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg", "psycopg_pool"])
@pytest.mark.parametrize("pooler", [False, True], ids=["direct", "pgbouncer"])
def test_every_event_has_one_effect_in_the_order_of_its_key(driver, pooler, postgres_dsn, pgbouncer_dsn, redis_url):
    async def main():
        dsn = pgbouncer_dsn if pooler else postgres_dsn
        async with (
            engine_on(dsn, driver, pooler) as engine,
            RedisTransport(redis_url, prefix=uuid.uuid4().hex, poll=0.1) as transport,
        ):
            async with engine.transaction() as tx:
                await tx.execute("CREATE TABLE effects (n integer, key text, place serial)")
            outbox = Outbox(engine, transport=transport)
            consumers = [
                Consumer("billing", transport, topics="events", engine=engine, concurrency=3, attempts=2, backoff=0.02)
                for _ in range(2)
            ]
            healed = False

            async def bill(event, tx):
                n = event.data["n"]
                if n == BAD and not healed:
                    raise ValueError("not now")
                await tx.execute(f"INSERT INTO effects (n, key) VALUES ({n}, 'key-{n % KEYS}')")

            for consumer in consumers:
                consumer.on("billed")(bill)

            def count(name):
                return sum(consumer.counts[name] for consumer in consumers)

            first, second = consumers
            async with outbox.relay(poll=0.1), first, second:
                await outbox.write(
                    [Event("billed", {"n": n}, source="/t", id=str(n), key=f"key-{n % KEYS}") for n in range(EVENTS)]
                )
                await until(lambda: count("handled") == EVENTS - 1 and count("dead_lettered") == 1)
                letters = DeadLetters(engine)
                (letter,) = (await letters.list()).letters
                assert letter.row.event_id == str(BAD)
                healed = True
                answers = await asyncio.gather(
                    *(letters.replay(letter.id, actor=f"operator {n}", reason="fixed") for n in range(3)),
                    return_exceptions=True,
                )
                refused = [one for one in answers if isinstance(one, DeadLetterConflictError | DeadLetterStateError)]
                assert len(refused) == 2
                await until(lambda: count("handled") == EVENTS)
                assert (await letters.get(letter.id)).status == "resolved"
            async with engine.transaction() as tx:
                rows = await _rows(tx, "SELECT n, key FROM effects ORDER BY place")
            assert sorted(n for n, _ in rows) == list(range(EVENTS))
            for key in {key for _, key in rows}:
                line = [n for n, of in rows if of == key and n != BAD]
                assert line == sorted(line)

    asyncio.run(main())


async def _rows(tx, text):
    if hasattr(tx, "fetch"):
        return [tuple(row) for row in await tx.fetch(text)]
    return await (await tx.execute(text)).fetchall()
