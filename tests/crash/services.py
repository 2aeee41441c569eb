"""The processes that are killed: two producers, a relay, two consumers and an operator of a small shop.

Loaded by path, and run by `nursery.py` in a process of its own for each. What a process is for:

- `orders`, `orders_sync`: write an order and its event in one transaction, with and without an event loop.
- `relay`: delivers. The broker refuses some events, which makes dead letters of them.
- `billing`: its effect is in the transaction of the inbox: exactly once. It rejects some events.
- `mailing`: its effect is a line in a file: at least once.
- `operator`: replays what was given up on, and discards what is hopeless.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import time
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

import everkeel
from everkeel.engines import PostgresEngine, SQLiteEngine
from everkeel.errors import NotRetryable
from everkeel.events import DuplicateSuppressed
from everkeel.messaging import (
    Consumer,
    DeadLetters,
    Event,
    Inbox,
    LetterFilter,
    Outbox,
    RedisTransport,
    SQLiteTransport,
    Status,
)
from everkeel.messaging.transports.protocol import FATAL, Published

TOPIC = "orders"
KEYS = 6
BACKLOG = 120
"""Producers pause while so many orders wait for their effect, so that a run ends soon after its last kill."""
LEASE = 1.5
"""Of everything. Short, so that the work of the dead is soon taken over; a slow machine may lose one now and then."""

ORDERS = "CREATE TABLE orders (id text PRIMARY KEY, producer text, n integer, key text, kind text)"
EFFECTS = "CREATE TABLE effects (seq {identity} PRIMARY KEY, id text, key text)"


@dataclass(frozen=True)
class Shop:
    """Where everything is."""

    folder: str
    database: str
    broker: str

    @property
    def postgres(self) -> bool:
        return self.database.startswith("postgresql")

    def engine(self):
        if self.postgres:
            return PostgresEngine(self.database, connections=6)
        return SQLiteEngine(self.database, busy_timeout=30)

    def transport(self):
        if self.broker.startswith("redis"):
            return RedisTransport(self.broker, poll=0.05)
        return SQLiteTransport(SQLiteEngine(self.broker, busy_timeout=30), poll=0.02)

    def connect(self):
        """A connection that blocks and commits each statement."""
        if self.postgres:
            import psycopg

            return psycopg.connect(self.database, autocommit=True)
        return sqlite3.connect(self.database, timeout=30, isolation_level=None)

    def set_up(self) -> None:
        async def make_tables() -> None:
            async with self.engine():
                pass  # or a producer without an event loop, which makes none, could be there before all others

        asyncio.run(make_tables())
        with closing(self.connect()) as connection:
            if not self.postgres:
                connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(ORDERS)
            connection.execute(
                EFFECTS.format(identity="bigint GENERATED ALWAYS AS IDENTITY" if self.postgres else "INTEGER")
            )

    def stopping(self) -> bool:
        return (Path(self.folder) / "stop").exists()

    def note(self, file: str, line: str) -> None:
        """Append a line in one write, which a kill leaves whole or undone."""
        with open(Path(self.folder) / file, "ab", buffering=0) as out:
            out.write(f"{line}\n".encode())


def kind_of(n: int) -> str:
    if n % 29 == 17:
        return "hopeless"
    if n % 7 == 3:
        return "refused"
    return "rejected" if n % 7 == 5 else "plain"


def event_of(producer: str, n: int) -> Event:
    key = None if n % 9 == 8 else f"{producer}-{n % KEYS}"
    return Event("OrderPlaced", {"n": n, "kind": kind_of(n)}, source=f"/{producer}", id=f"{producer}-{n}", key=key)


# ------------------------------------------------------------------ producers


class Progress:
    """How far a producer has come, asked of the database: what it remembers may not be so."""

    def __init__(self, shop: Shop, producer: str) -> None:
        self._shop, self._producer = shop, producer

    def next_number(self) -> int:
        with closing(self._shop.connect()) as connection:
            mine = f"SELECT coalesce(max(n), 0) FROM orders WHERE producer = '{self._producer}'"
            return connection.execute(mine).fetchone()[0] + 1

    def must_wait(self) -> bool:
        with closing(self._shop.connect()) as connection:
            return connection.execute(
                "SELECT (SELECT count(*) FROM orders WHERE kind <> 'hopeless') - (SELECT count(*) FROM effects)"
            ).fetchone()[0] > BACKLOG  # fmt: skip


def numbers(shop: Shop, producer: str):
    progress = Progress(shop, producer)
    n = progress.next_number()
    while not shop.stopping():
        if progress.must_wait():
            time.sleep(0.05)
            continue
        yield n
        n += 1


def row_of(event: Event) -> tuple:
    producer, _, n = event.id.rpartition("-")
    return (event.id, producer, int(n), event.key, event.data["kind"])


async def orders(shop: Shop) -> None:
    async with shop.engine() as engine:
        outbox = Outbox(engine, topic=TOPIC)
        for n in numbers(shop, "orders"):
            event = event_of("orders", n)
            async with outbox.transaction() as tx:
                if shop.postgres:
                    await tx.execute("INSERT INTO orders VALUES ($1, $2, $3, $4, $5)", *row_of(event))
                else:
                    await tx.run(
                        lambda connection, row=row_of(event): connection.execute(
                            "INSERT INTO orders VALUES (?, ?, ?, ?, ?)", row
                        )
                    )
                await outbox.write(event, tx=tx)
            await asyncio.sleep(0.002)


async def orders_sync(shop: Shop) -> None:
    place = "%s" if shop.postgres else "?"
    insert = f"INSERT INTO orders VALUES ({', '.join([place] * 5)})"
    outbox = Outbox(shop.engine(), topic=TOPIC)
    with closing(shop.connect()) as connection:
        for n in numbers(shop, "orders_sync"):
            event = event_of("orders_sync", n)
            with outbox.transaction_sync(connection) as tx:
                connection.execute(insert, row_of(event))
                outbox.write_sync(event, tx=tx)
            time.sleep(0.002)  # noqa: ASYNC251 - there is no event loop in this process but the one it was started in


# ------------------------------------------------------------------ the relay


class Picky:
    """A broker that refuses some events for good, until they are replayed."""

    def __init__(self, inner) -> None:
        self._inner = inner

    async def publish(self, messages):
        refused = {
            place
            for place, message in enumerate(messages)
            if message.event.data["kind"] == "refused" and not message.event.replay_epoch
        }
        # As a transport must: behind what it refuses, nothing of the same key.
        keys, held = set(), set()
        for place, message in enumerate(messages):
            if message.key is not None and message.key in keys:
                held.add(place)
            elif place in refused:
                keys.add(message.key)
        sent = [place for place in range(len(messages)) if place not in refused and place not in held]
        answers = dict(zip(sent, await self._inner.publish([messages[place] for place in sent]), strict=True))
        no = Published(FATAL, ValueError("refused"))
        later = Published(everkeel.messaging.Result.RETRYABLE, RuntimeError("behind a refused one"))
        return [answers.get(place, no if place in refused else later) for place in range(len(messages))]


async def relay(shop: Shop) -> None:
    async with shop.engine() as engine:
        outbox = Outbox(engine, topic=TOPIC, transport=Picky(shop.transport()))
        await outbox.relay(
            batch=20, poll=0.05, lease=LEASE, attempts=50, backoff=0.05, outage_backoff=0.1, maintenance=1.0
        ).run()


# ------------------------------------------------------------------ consumers


@asynccontextmanager
async def consumer_of(shop: Shop, name: str, **settings):
    everkeel.subscribe(lambda told: shop.note(f"suppressed.{name}", told.event_id), DuplicateSuppressed)
    async with shop.engine() as engine:
        yield Consumer(
            name, shop.transport(), topics=TOPIC, engine=engine, inbox=Inbox(name, engine, lease=LEASE), lease=LEASE,
            attempts=20, backoff=0.05, concurrency=4, **settings,
        )  # fmt: skip


async def billing(shop: Shop) -> None:
    async with consumer_of(shop, "billing", park_followers=True) as consumer:

        @consumer.on("OrderPlaced")
        async def bill(event, tx):
            kind = event.data["kind"]
            if kind == "hopeless" or (kind == "rejected" and not event.replay_epoch):
                raise NotRetryable(f"{kind}: {event.id}")
            if shop.postgres:
                await tx.execute("INSERT INTO effects (id, key) VALUES ($1, $2)", event.id, event.key)
            else:
                await tx.run(
                    lambda connection: connection.execute(
                        "INSERT INTO effects (id, key) VALUES (?, ?)", (event.id, event.key)
                    )
                )

        await consumer.run()


async def mailing(shop: Shop) -> None:
    async with consumer_of(shop, "mailing") as consumer:

        @consumer.on("OrderPlaced")
        async def mail(event):
            shop.note("mailed", event.id)

        await consumer.run()


# ------------------------------------------------------------------ the operator


async def operator(shop: Shop) -> None:
    async with shop.engine() as engine:
        letters = DeadLetters(engine)
        while True:
            page = await letters.list(LetterFilter(status=(Status.PENDING,)), limit=20)
            for letter in reversed(page.letters):  # the oldest first
                try:
                    if '"hopeless"' in (letter.row.payload or ""):
                        await letters.discard(letter.id, actor="operator", reason="hopeless")
                    else:
                        await letters.replay(letter.id, actor="operator", reason="again", force=True)
                except everkeel.errors.EverkeelError:
                    continue  # on its way for another consumer, or changed meanwhile: the next look tells
            await letters.release_followers("billing")
            await asyncio.sleep(0.05)


ROLES = {
    "orders": orders,
    "orders_sync": orders_sync,
    "relay": relay,
    "billing": billing,
    "mailing": mailing,
    "operator": operator,
}


def run(role: str, shop: Shop) -> None:
    """Be one of them, until killed or no longer needed."""
    asyncio.run(ROLES[role](shop))
    os._exit(0)
