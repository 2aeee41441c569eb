"""A process with a relay and nothing else: `python relay_process.py <dsn> <how many relays there are>`.

What it publishes it writes into the table `published`, with its process id; its first waits until every relay has one.
"""

from __future__ import annotations

import asyncio
import os
import sys

import asyncpg

from everkeel.engines import PostgresEngine
from everkeel.messaging import FunctionTransport, Outbox


async def main(dsn: str, relays: int) -> None:
    pool = await asyncpg.create_pool(dsn, min_size=1, max_size=5)
    met = False

    async def publish(message):
        nonlocal met
        await pool.execute(
            "INSERT INTO published (pid, id, key) VALUES ($1, $2, $3)", os.getpid(), message.event.id, message.key
        )
        while not met:
            met = await pool.fetchval("SELECT count(DISTINCT pid) = $1 FROM published", relays)
            await asyncio.sleep(0.01)

    async with PostgresEngine(dsn) as engine:
        await Outbox(engine, transport=FunctionTransport(publish)).relay(batch=5, poll=0.1).run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
