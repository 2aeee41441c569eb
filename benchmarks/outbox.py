"""How many events a second a relay delivers, and how soon after the write: by hand, in the development environment.

    .venv/bin/python benchmarks/outbox.py [events]

The transport is one in memory, so that what is measured is the outbox: writing, claiming, acknowledging. PostgreSQL is
a server of this machine with its default settings (fsync on), and shares the cores with the relay.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter

from everkeel.engines import MemoryEngine, PostgresEngine, SQLiteEngine
from everkeel.engines.sql.statement import observers
from everkeel.messaging import Event, MemoryTransport, Outbox
from everkeel.testing import servers

CASES = {"no keys": None, "2000 keys": 2000, "200 keys": 200, "one key": 1}


class Counting(MemoryTransport):
    """Says when something was published."""

    def __init__(self) -> None:
        super().__init__(retain=1)
        self.came = asyncio.Event()

    async def publish(self, messages):
        self.came.set()
        return await super().publish(messages)


async def deliver(engine, count: int, keys: int | None) -> None:
    async with engine:
        transport = Counting()
        outbox = Outbox(engine, transport=transport)
        began = perf_counter()
        for start in range(0, count, 500):
            await outbox.write(
                [
                    Event("order.placed", {"n": n, "pad": "x" * 200}, source="/bench", key=keys and f"k{n % keys}")
                    for n in range(start, min(start + 500, count))
                ]
            )
        written = perf_counter() - began
        statements: list[str] = []
        observers.append(statements.append)
        relay = outbox.relay()
        began = perf_counter()
        assert await relay.flush() == count
        delivered = perf_counter() - began
        observers.remove(statements.append)
        waits = []
        async with relay:
            await asyncio.sleep(0.2)
            for _ in range(50):
                transport.came.clear()
                began = perf_counter()
                await outbox.write(Event("order.placed", source="/bench"))
                await transport.came.wait()
                waits.append(1000 * (perf_counter() - began))
                await asyncio.sleep(0.01)
        print(
            f"{engine.name:12} {count / written:10,.0f} {count / delivered:10,.0f} {len(statements) / count:12.3f}"
            f" {median(waits):10.2f} {quantiles(waits, n=100)[98]:8.2f}",
            flush=True,
        )


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    with servers.postgres() as server, tempfile.TemporaryDirectory() as folder:
        import psycopg

        for number, (case, keys) in enumerate(CASES.items()):
            print(f"\n{case}, {count:,} events of 250 bytes, batches of 100")
            print("engine        written/s delivered/s statements/ev   p50 ms   p99 ms (write to publish, idle)")
            asyncio.run(deliver(MemoryEngine(), min(count, 5000), keys))
            asyncio.run(deliver(SQLiteEngine(Path(folder) / f"{number}.db"), min(count, 5000), keys))
            with psycopg.connect(server.address, autocommit=True) as connection:
                connection.execute(f"CREATE DATABASE bench{number}")
            address = f"{server.address.rsplit('/', 1)[0]}/bench{number}"
            asyncio.run(deliver(PostgresEngine(address), count, keys))


if __name__ == "__main__":
    main()
