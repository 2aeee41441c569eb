"""One event that no transport survives, or that never finds its broker: it may hold up its key, and nobody else."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest

from everkeel.engines import MemoryEngine, SQLiteEngine
from everkeel.engines.rows import Claimed, Lease, OutboxRow
from everkeel.messaging import Event, FunctionTransport, Outbox
from everkeel.messaging.relay.core import SUSPECT, deadly, suspect
from everkeel.messaging.transports.protocol import OK
from everkeel.testing import Crashed


def event(id, key=None):
    return Event("tested", {"id": id}, source="/tests", id=id, key=key)


class Killing:
    """A transport that ends the process of whoever publishes a certain event with it."""

    name, durable, ordered = "killing", True, True

    def __init__(self, deadly):
        self.deadly = deadly
        self.sent: list[str] = []
        self.killed: list[list[str]] = []

    async def publish(self, messages):
        ids = [message.event.id for message in messages]
        if self.deadly in ids:
            self.killed.append(ids)
            self.victim.pause()  # the dead claim nothing more
            raise Crashed
        self.sent += ids
        return [OK] * len(ids)


@pytest.fixture(params=["memory", "sqlite"])
def engine(request, tmp_path, virtual_time):
    return MemoryEngine() if request.param == "memory" else SQLiteEngine(tmp_path / "outbox.db")


async def test_an_event_that_kills_its_relays_is_a_dead_letter_and_those_claimed_with_it_arrive(engine, virtual_time):
    transport = Killing("5")
    outbox = Outbox(engine, transport=transport)
    await outbox.write([event(str(n), key=f"key-{n % 7}") for n in range(20)])
    for _ in range(20):
        transport.victim = outbox.relay(lease=10, attempts=3)
        await transport.victim.flush()
        await asyncio.sleep(11)
    assert len(transport.killed) == SUSPECT + 3
    assert all(together == ["5"] for together in transport.killed[SUSPECT:])
    page = await engine.dead_letters.query(_all(), limit=10)
    assert [(letter.event_id, letter.reason, letter.attempts) for letter in page.letters] == [("5", "attempts", 6)]
    assert sorted(transport.sent, key=int) == [str(n) for n in range(20) if n not in (5, 12, 19)]
    assert (await outbox.stats()).parked == 2  # those of its key wait for it
    await engine.close()


def _all():
    from everkeel.engines.letters import LetterFilter

    return LetterFilter()


def claimed(attempt, failures):
    return Claimed(OutboxRow("1", "/s", "t", "topic", None, "{}", None), Lease(1, "token", attempt), failures, 0.0)


def test_failures_that_were_written_down_make_nobody_a_suspect():
    assert suspect([claimed(attempt=5, failures=4)]) is None
    assert suspect([claimed(attempt=5, failures=2)]) is not None
    assert not deadly(claimed(attempt=100, failures=0), attempts=None)
    assert deadly(claimed(attempt=8, failures=0), attempts=5)
    assert not deadly(claimed(attempt=7, failures=0), attempts=5)


@pytest.mark.parametrize("error", [ConnectionResetError("always"), TimeoutError("hangs")])
async def test_an_event_that_never_finds_its_broker_does_not_stand_in_the_way_of_its_topic(virtual_time, error):
    sent = []

    async def post(message):
        if message.event.id == "bad":
            raise error
        sent.append(message.event.id)

    outbox = Outbox(MemoryEngine(), transport=FunctionTransport(post))
    await outbox.write(event("bad", key="bad"))
    async with outbox.relay() as relay:
        for n in range(20):
            await outbox.write(event(str(n), key=str(n)))
            await asyncio.sleep(10)
        assert sent == [str(n) for n in range(20)]
        stats = await relay.stats()
    assert (stats.outbox.depth, stats.failed, stats.dead_lettered) == (1, 0, 0)


async def test_a_store_that_fails_in_the_middle_of_a_batch_makes_nobody_a_suspect(virtual_time):
    """What could not be written down is given back as soon as the store is there again, as if never claimed."""
    engine = MemoryEngine()
    sent = []

    async def post(message):
        sent.append(message.event.id)

    class Failing:
        def __getattr__(self, name):
            return getattr(engine.outbox, name)

        async def ack(self, leases):
            raise sqlite3.OperationalError("disk I/O error")

    outbox = Outbox(engine, transport=FunctionTransport(post))
    await outbox.write(event("1"))
    relay = outbox.relay()
    healthy, relay.store = relay.store, Failing()
    async with relay:
        await asyncio.sleep(20 * 60)
        assert len(sent) > SUSPECT + 5
        relay.store = healthy
        await asyncio.sleep(60)
        stats = await relay.stats()
    assert (stats.outbox.depth, stats.delivered, stats.dead_lettered) == (0, 1, 0)


def test_a_suspect_does_not_overtake_what_stands_before_it_in_its_key():
    """A replayed event begins to count anew; those parked behind it have seen relays die."""

    def claimed(seq, key, attempt):
        row = OutboxRow(str(seq), "/tests", "tested", "events", key, "{}", "{}")
        return Claimed(row, Lease(seq, "token", attempt), 0, 0.0)

    other, replayed, suspected = claimed(1, "other", 1), claimed(2, "k", 1), claimed(3, "k", SUSPECT + 1)
    assert suspect([other, replayed, suspected]) is replayed
    assert suspect([other, suspected]) is suspected
    assert suspect([other, claimed(4, None, SUSPECT + 1), claimed(5, None, 1)]).lease.seq == 4
