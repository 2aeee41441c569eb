"""What handling an event costs on SQLite: one commit that waits for the disk, and no waiting for our own locks."""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter

import pytest

from everkeel.engines import SQLiteEngine
from everkeel.engines.sql.statement import observers
from everkeel.messaging import Consumer, Event, MemoryTransport, Message, SQLiteTransport

FULL = 2


@pytest.fixture
def commits(monkeypatch) -> Counter[bool]:
    """Commits of all connections that are opened from now on: True counts those that wait for the disk."""
    counts: Counter[bool] = Counter()

    class Counting(sqlite3.Connection):
        def commit(self) -> None:
            counts[self.execute("PRAGMA synchronous").fetchone()[0] == FULL] += 1
            super().commit()

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", lambda *args, **named: connect(*args, factory=Counting, **named))
    return counts


@pytest.mark.parametrize("transport", ["memory", "sqlite"])
@pytest.mark.parametrize("in_transaction", [True, False])
def test_an_event_costs_one_commit_that_waits_for_the_disk(tmp_path, commits, transport, in_transaction):
    async def main() -> None:
        async with SQLiteEngine(tmp_path / "events.db") as engine:
            carrier = SQLiteTransport(engine) if transport == "sqlite" else MemoryTransport()
            events = [Event("OrderCreated", {}, source="/orders", key=f"k{n % 4}") for n in range(20)]
            await carrier.publish([Message("orders", event) for event in events])
            consumer = Consumer("billing", carrier, topics="orders", engine=engine)
            left, done = {event.id for event in events}, asyncio.Event()

            def handled(event: Event) -> None:
                left.discard(event.id)
                if not left:
                    done.set()

            if in_transaction:

                @consumer.on("OrderCreated")
                async def bill(event, tx):
                    await tx.run(lambda connection: connection.execute("SELECT 1"))
                    handled(event)

            else:

                @consumer.on("OrderCreated")
                async def call(event):
                    handled(event)

            commits.clear()
            async with consumer:
                async with asyncio.timeout(30):
                    await done.wait()
            joining = 1 if transport == "sqlite" else 0
            assert commits[True] == len(events) + joining
            # The claim; with the transport also to fetch and to acknowledge, the last of each key wakes in vain.
            assert commits[False] <= len(events) * (1 if transport == "memory" else 5)

    asyncio.run(main())


def test_a_completed_event_is_on_the_disk_before_it_is_acknowledged(tmp_path, commits):
    """Claims and acknowledgements may be lost with the power; that an event was handled may not."""

    async def main() -> None:
        async with SQLiteEngine(tmp_path / "events.db") as engine:
            answer = await engine.inbox.begin("billing", "e-1")
            commits.clear()
            assert await engine.inbox.complete(answer.token)
            assert commits == {True: 1}

    asyncio.run(main())


@pytest.mark.parametrize(("in_sequence_from", "statements"), [(None, 2), (1, 4)])
def test_an_event_costs_a_claim_and_its_end_and_in_sequence_a_look_and_a_step(tmp_path, in_sequence_from, statements):
    async def main() -> None:
        async with SQLiteEngine(tmp_path / "events.db") as engine:
            carrier, done, seen = MemoryTransport(), asyncio.Event(), []
            options = {"topics": "orders", "engine": engine, "in_sequence_from": in_sequence_from}
            consumer = Consumer("billing", carrier, **options)

            @consumer.on("OrderCreated")
            async def bill(event, tx):
                if event.sequence == "20":
                    done.set()

            numbers = [str(number) for number in range(1, 21)]
            events = [Event("OrderCreated", {}, source="/orders", key="k", sequence=number) for number in numbers]
            await carrier.publish([Message("orders", event) for event in events])
            observers.append(seen.append)
            try:
                async with consumer:
                    async with asyncio.timeout(30):
                        await done.wait()
            finally:
                observers.remove(seen.append)
            assert len(seen) == statements * len(events), seen[:8]

    asyncio.run(main())
