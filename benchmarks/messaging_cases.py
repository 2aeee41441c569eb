"""One case of `messaging.py`, in a process of its own: `python messaging_cases.py <case> <dsn> <events>`.

Every case does the same job on an empty database of its own: write events of 256 bytes, each in a transaction; take a
backlog out of the table again, hand each event with its data decoded to a function that does nothing, and write down
that it is done; and, with nothing else to do, hand over one event right after its commit. Prints what that took.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, process_time

DATA = {"order": 0, "pad": "x" * 230}
WRITERS = 4
BATCH = 100


class Counter:
    """What events are handed to."""

    def __init__(self) -> None:
        self.count = 0
        self.wanted = 0
        self.reached = asyncio.Event()

    def __call__(self, data: dict[str, object]) -> None:
        assert data["pad"] == DATA["pad"]
        self.count += 1
        if self.count == self.wanted:
            self.reached.set()

    async def until(self, more: int, act: Callable[[], Awaitable[object]] | None = None) -> None:
        self.wanted = self.count + more
        self.reached.clear()
        if act is not None:
            await act()
        if self.count < self.wanted:
            await self.reached.wait()


class Case:
    """What is measured. A write is one transaction with one event; `fill` writes many at once; `working` delivers."""

    def __init__(self, dsn: str) -> None:
        self.dsn, self.handed = dsn, Counter()


class Everkeel(Case):
    keys: int | None = None

    @asynccontextmanager
    async def ready(self):
        import asyncpg

        from everkeel.engines import PostgresEngine
        from everkeel.messaging import FunctionTransport, Outbox

        async def hand_over(message) -> None:
            self.handed(message.event.data)

        self.number = 0
        async with PostgresEngine(self.dsn, keep_delivered=0) as engine, asyncpg.create_pool(self.dsn) as self.pool:
            self.outbox = Outbox(engine, transport=FunctionTransport(hand_over))
            yield

    def event(self):
        from everkeel.messaging import Event

        self.number += 1
        key = None if self.keys is None else f"k{self.number % self.keys}"
        return Event("order.placed", DATA, source="/bench", key=key)

    async def write(self) -> None:
        async with self.pool.acquire() as connection, self.outbox.transaction(connection) as tx:
            await self.outbox.write(self.event(), tx=tx)

    async def fill(self, count: int) -> None:
        await self.outbox.write([self.event() for _ in range(count)])

    @asynccontextmanager
    async def working(self):
        async with self.outbox.relay(batch=BATCH):
            yield


class EverkeelKeys(Everkeel):
    keys = 200


class FaststreamOutbox(Case):
    @asynccontextmanager
    async def ready(self):
        from faststream_outbox import OutboxBroker, make_outbox_table
        from sqlalchemy import MetaData
        from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine

        metadata = MetaData()
        table = make_outbox_table(metadata, table_name="outbox")
        self.engine = create_async_engine(self.dsn.replace("postgresql://", "postgresql+asyncpg://"), pool_size=10)
        async with self.engine.begin() as connection:
            await connection.run_sync(metadata.create_all)
        self.broker = OutboxBroker(self.engine, outbox_table=table, logger=None)

        @self.broker.subscriber(
            "orders", fetch_batch_size=BATCH, terminal_flush_batch_size=BATCH, min_fetch_interval=0.01
        )
        async def handle(body: dict) -> None:
            self.handed(body)

        self.sessions = async_sessionmaker(self.engine, expire_on_commit=False)
        yield
        await self.engine.dispose()

    async def write(self) -> None:
        async with self.sessions() as session, session.begin():
            await self.broker.publish(DATA, queue="orders", session=session)

    async def fill(self, count: int) -> None:
        async with self.sessions() as session, session.begin():
            await self.broker.publish_batch(*[DATA] * count, queue="orders", session=session)

    @asynccontextmanager
    async def working(self):
        await self.broker.start()
        yield
        await self.broker.stop()


class PgQueuer(Case):
    @asynccontextmanager
    async def ready(self):
        import asyncpg
        from pgqueuer.db import AsyncpgDriver
        from pgqueuer.qm import QueueManager
        from pgqueuer.queries import Queries

        async with asyncpg.create_pool(self.dsn) as self.pool:
            own = await asyncpg.connect(self.dsn)
            await Queries(AsyncpgDriver(own)).install()
            self.queries, self.driver = Queries, AsyncpgDriver
            self.manager = QueueManager(Queries(AsyncpgDriver(own)))

            @self.manager.entrypoint("orders")
            async def handle(job) -> None:
                self.handed(json.loads(job.payload))

            yield
            await own.close()

    async def write(self) -> None:
        async with self.pool.acquire() as connection, connection.transaction():
            await self.queries(self.driver(connection)).enqueue("orders", json.dumps(DATA).encode())

    async def fill(self, count: int) -> None:
        async with self.pool.acquire() as connection, connection.transaction():
            await self.queries(self.driver(connection)).enqueue(
                ["orders"] * count, [json.dumps(DATA).encode() for _ in range(count)], [0] * count
            )

    @asynccontextmanager
    async def working(self):
        running = asyncio.ensure_future(self.manager.run(batch_size=BATCH))
        yield
        self.manager.shutdown.set()
        await asyncio.wait({running}, timeout=60)


CASES: dict[str, tuple[str, str, type[Case]]] = {
    "everkeel": ("ours", "everkeel", Everkeel),
    "everkeel, 200 keys in order": ("ours", "everkeel", EverkeelKeys),
    "faststream-outbox": ("peer", "faststream-outbox", FaststreamOutbox),
    "PgQueuer": ("peer", "pgqueuer", PgQueuer),
}


def server_time() -> float:
    """Seconds of processor time that the server and all it has started have had so far."""
    server = os.environ.get("EVERKEEL_BENCH_SERVER", "")
    ticks = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if folder.name == server:
            ticks += sum(map(int, fields[11:15]))  # with those of its children that have ended
        elif fields[1] == server:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


async def measure(case: Case, events: int) -> dict[str, float]:
    async with case.ready():
        writes = max(events // 20, 100)

        async def writer() -> None:
            for _ in range(writes // WRITERS):
                await case.write()

        began = perf_counter()
        await asyncio.gather(*(writer() for _ in range(WRITERS)))
        written = (writes // WRITERS) * WRITERS / (perf_counter() - began)
        for _ in range(0, events, 500):
            await case.fill(500)
        backlog = (writes // WRITERS) * WRITERS + -(-events // 500) * 500
        case.handed.wanted = backlog
        began, spent, served = perf_counter(), process_time(), server_time()
        async with case.working():
            await case.handed.reached.wait()
            delivered = backlog / (perf_counter() - began)
            spent, served = process_time() - spent, server_time() - served
            await asyncio.sleep(0.5)
            waits = []
            for _ in range(100):
                began = perf_counter()
                committed: list[float] = []

                async def write(committed: list[float] = committed) -> None:
                    await case.write()
                    committed.append(perf_counter())

                await case.handed.until(1, write)
                waits.append(1000 * max(perf_counter() - committed[0], 0.0))
                await asyncio.sleep(0.01)
    return {
        "written": written, "delivered": delivered, "cpu": 1e6 * spent / backlog,
        "server": 1e6 * served / backlog,
        "p50": median(waits), "p99": quantiles(waits, n=100)[98],
    }  # fmt: skip


if __name__ == "__main__":
    name, dsn, events = sys.argv[1:]
    print(json.dumps(asyncio.run(measure(CASES[name][2](dsn), int(events)))))
