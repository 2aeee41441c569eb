"""The same history gives the same answers in SQL as in the pure lease queue."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everkeel.engines import ErrorInfo, MemoryEngine, PostgresEngine, SQLiteEngine
from everkeel.engines.rows import OutboxRow, Retry
from everkeel.testing import VirtualClock

KEYS = st.sampled_from([None, None, "a", "b", "c"])
CHOICES = st.integers(0, 20)

STEPS = st.one_of(
    st.tuples(st.just("append"), st.lists(KEYS, min_size=1, max_size=4), st.sampled_from([0.0, 0.0, 50.0])),
    st.tuples(st.just("claim"), st.integers(1, 5), st.sampled_from([(), ("other",)])),
    st.tuples(st.just("ack"), CHOICES, st.integers(1, 3)),
    st.tuples(st.just("release"), CHOICES, st.integers(1, 3)),
    st.tuples(st.just("retry"), CHOICES, st.sampled_from([0.0, 50.0]), st.booleans()),
    st.tuples(st.just("bury"), CHOICES, st.booleans()),
    st.tuples(st.just("replay"), CHOICES),
    st.tuples(st.just("discard"), CHOICES),
    st.tuples(st.just("park")),
)
PASSING = st.tuples(st.just("pass"), st.sampled_from([1.0, 40.0, 100.0]))


def row(number: int, key: str | None, epoch: int = 0) -> OutboxRow:
    topic = "other" if number % 5 == 0 else "events"
    return OutboxRow(str(number), "/tests", "tested", topic, key, "{}", "{}", None, epoch)


async def live_through(engine, history, clock) -> list[object]:
    """Everything the store answered, in words that do not depend on which store it is."""
    store, answers, written = engine.outbox, [], {}
    held = []
    for what, *details in history:
        if what == "append":
            keys, delay = details
            rows = [row(len(written) + place, key) for place, key in enumerate(keys)]
            written |= {one.id: one for one in rows}
            await store.append(rows, delay=delay)
        elif what == "claim":
            claimed = await store.claim("me", details[0], 30.0, without=details[1])
            held += claimed
            # Rows that are due at the same moment may come in any order but that of their keys.
            answers.append(sorted((one.row.id, one.lease.attempt, one.failures, one.row.epoch) for one in claimed))
            for key in "abc":
                ours = [one.lease.seq for one in claimed if (one.row.key, one.row.topic) == (key, "events")]
                assert ours == sorted(ours)
        elif what in ("ack", "release", "retry", "bury"):
            if not held:
                continue
            chosen = [
                held[(details[0] + n) % len(held)] for n in range(details[1] if what in ("ack", "release") else 1)
            ]
            chosen = list({one.lease.seq: one for one in chosen}.values())
            leases = [one.lease for one in chosen]
            by_seq = {one.lease.seq: one.row.id for one in chosen}
            if what == "ack":
                answers.append(sorted(by_seq[seq] for seq in await store.ack(leases)))
            elif what == "release":
                answers.append(sorted(by_seq[seq] for seq in await store.release(leases)))
            elif what == "retry":
                retry = Retry(leases[0], details[1], ErrorInfo.of("no"), details[2])
                answers.append(sorted(by_seq[seq] for seq in await store.retry([retry])))
            else:
                buried = await store.bury(leases[0], ErrorInfo.of("no"), reason="attempts", park=details[1])
                answers.append(buried is not None)
        elif what in ("replay", "discard") and written:
            one = list(written.values())[details[0] % len(written)]
            if what == "discard":
                answers.append(await store.discard(one.source, one.id, one.topic))
            else:
                written[one.id] = row(int(one.id), one.key, one.epoch + 1)
                await store.append([written[one.id]])
        elif what == "park":
            await store.park(100)
        elif what == "pass":
            clock.advance(details[0])
        stats = await store.stats()
        answers.append((what, stats.depth, stats.leased, stats.parked, dict(stats.by_topic)))
    return answers


@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEPS | PASSING, max_size=25))
def test_sqlite_answers_as_the_lease_queue_does(history):
    async def main(make):
        clock = VirtualClock()
        async with make(clock) as engine:
            return await live_through(engine, history, clock)

    with tempfile.TemporaryDirectory() as folder:
        expected = asyncio.run(main(lambda clock: MemoryEngine(clock=clock)))
        assert asyncio.run(main(lambda clock: SQLiteEngine(Path(folder) / "db", clock=clock))) == expected


@pytest.mark.require_server("postgres")
def test_postgresql_answers_as_the_lease_queue_does(postgres_dsn):
    async def prepare():
        async with PostgresEngine(postgres_dsn):
            pass

    asyncio.run(prepare())

    @settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
    @given(st.lists(STEPS, max_size=25))  # its time is its own: delays and leases never end here
    def agree(history):
        async def in_memory():
            clock = VirtualClock()
            async with MemoryEngine(clock=clock) as engine:
                return await live_through(engine, history, clock)

        async def in_postgresql():
            async with PostgresEngine(postgres_dsn, pooler=True) as engine:
                engine.outbox._thorough_at = float("-inf")
                return await live_through(engine, history, VirtualClock())

        with psycopg.connect(postgres_dsn, autocommit=True) as connection:
            connection.execute("TRUNCATE everkeel_outbox, everkeel_dead_letters")
        assert asyncio.run(in_postgresql()) == asyncio.run(in_memory())

    agree()
