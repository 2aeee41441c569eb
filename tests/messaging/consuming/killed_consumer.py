"""A process that consumes until it is killed: `python killed_consumer.py <broker file> <engine>`."""

from __future__ import annotations

import asyncio
import sys

from everkeel.engines import PostgresEngine, SQLiteEngine
from everkeel.messaging import Consumer, Inbox, SQLiteTransport


async def main(broker: str, where: str) -> None:
    postgres = where.startswith("postgres")
    engine = PostgresEngine(where) if postgres else SQLiteEngine(where)
    async with engine:
        consumer = Consumer(
            "billing", SQLiteTransport(broker, poll=0.02), topics="orders", engine=engine, attempts=1000, backoff=0.05,
            inbox=Inbox("billing", engine, lease=1.0), lease=1.0, concurrency=4,
        )  # fmt: skip

        @consumer.on("OrderCreated")
        async def bill(event, tx):
            if postgres:
                await tx.execute("INSERT INTO effects (id) VALUES ($1)", event.id)
            else:
                await tx.run(lambda connection: connection.execute("INSERT INTO effects (id) VALUES (?)", (event.id,)))
            await asyncio.sleep(0.01)

        await consumer.run()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
