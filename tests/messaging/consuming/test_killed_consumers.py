"""Real processes, real stores, and kill -9 in the middle: every event has its effect exactly once, in order."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from everkeel.messaging import Event, Message, SQLiteTransport

SCRIPT = Path(__file__).with_name("killed_consumer.py")
CREATE = "CREATE TABLE effects (seq {} PRIMARY KEY, id text)"


class SQLite:
    def __init__(self, path: Path) -> None:
        self.where = str(path)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute(CREATE.format("INTEGER"))

    def effects(self) -> list[str]:
        with closing(sqlite3.connect(self.where, timeout=30)) as connection:
            return [id for (id,) in connection.execute("SELECT id FROM effects ORDER BY seq")]


class Postgres:
    def __init__(self, dsn: str) -> None:
        import psycopg

        self.where, self._connect = dsn, psycopg.connect
        with self._connect(dsn, autocommit=True) as connection:
            connection.execute(CREATE.format("bigint GENERATED ALWAYS AS IDENTITY"))

    def effects(self) -> list[str]:
        with self._connect(self.where, autocommit=True) as connection:
            return [id for (id,) in connection.execute("SELECT id FROM effects ORDER BY seq")]


def publish(broker: Path, events: int) -> None:
    async def main() -> None:
        transport = SQLiteTransport(broker)
        await transport.subscribe("orders", "billing").aclose()
        for number in range(events):
            event = Event("OrderCreated", {"n": number}, source="/orders", id=f"e-{number}", key=f"k-{number % 5}")
            copies = 2 if number % 7 == 0 else 1  # brokers do that, too
            await transport.publish([Message("orders", event)] * copies)
        await transport.close()

    asyncio.run(main())


def consume_and_kill(broker: Path, store: SQLite | Postgres, events: int, kills: int) -> None:
    chance = random.Random(7)
    killed, deadline = 0, time.monotonic() + 45
    while len(set(store.effects())) < events:
        before = len(store.effects())
        process = subprocess.Popen([sys.executable, str(SCRIPT), str(broker), store.where])
        try:
            # Killed after it has done something, and at a moment nobody chose.
            while process.poll() is None and time.monotonic() < deadline:
                done = len(store.effects())
                if done >= events or (killed < kills and done > before):
                    break
                time.sleep(0.01)
            time.sleep(chance.random() * 0.05)
        finally:
            process.kill()
            process.wait()
        killed += 1
        assert time.monotonic() < deadline, f"{len(store.effects())} of {events} effects"
    assert killed > kills


def check(store: SQLite | Postgres, events: int) -> None:
    effects = store.effects()
    assert Counter(effects) == {f"e-{number}": 1 for number in range(events)}
    for key in range(5):
        numbers = [int(id[2:]) for id in effects if int(id[2:]) % 5 == key]
        assert numbers == sorted(numbers)


def test_killed_consumers_on_sqlite_have_every_effect_exactly_once(tmp_path):
    store = SQLite(tmp_path / "shop.db")
    publish(tmp_path / "broker.db", 40)
    consume_and_kill(tmp_path / "broker.db", store, 40, kills=2)
    check(store, 40)


@pytest.mark.require_server("postgres")
def test_killed_consumers_on_postgresql_have_every_effect_exactly_once(tmp_path, postgres_dsn):
    store = Postgres(postgres_dsn)
    publish(tmp_path / "broker.db", 40)
    consume_and_kill(tmp_path / "broker.db", store, 40, kills=2)
    check(store, 40)


@pytest.mark.slow
@pytest.mark.require_server("postgres")
def test_consumers_killed_over_and_over_have_every_effect_exactly_once(tmp_path, postgres_dsn):
    store = Postgres(postgres_dsn)
    publish(tmp_path / "broker.db", 150)
    consume_and_kill(tmp_path / "broker.db", store, 150, kills=10)
    check(store, 150)
