"""Every transport keeps the contract that is shipped with the package."""

from __future__ import annotations

import sqlite3
import uuid
from contextlib import asynccontextmanager

import pytest

from everkeel.messaging import MemoryTransport, RedisTransport, SQLiteTransport
from everkeel.testing.contracts.transport import TransportContract


class TestMemory(TransportContract):
    test_what_is_no_event_says_so_and_can_be_settled = None  # it takes events and nothing else

    @asynccontextmanager
    async def open(self):
        yield MemoryTransport()


class TestSQLite(TransportContract):
    moment = 0.5  # of real time, on machines that are busy

    @pytest.fixture(autouse=True)
    def _path(self, tmp_path):
        self.path = tmp_path / "events.db"

    @asynccontextmanager
    async def open(self):
        async with SQLiteTransport(self.path, poll=0.02) as transport:
            yield transport

    async def spoil(self, transport):
        await transport.engine.start()
        connection = sqlite3.connect(self.path)
        with connection:
            connection.execute(
                "INSERT INTO everkeel_groups (topic, name) VALUES ('events', 'g') ON CONFLICT DO NOTHING"
            )
            (seq,) = connection.execute(
                "INSERT INTO everkeel_messages (topic, body, published_at) "
                "VALUES ('events', 'no event', 0) RETURNING seq"
            ).fetchone()
            connection.execute(
                "INSERT INTO everkeel_deliveries (topic, consumer_group, seq, available_at) "
                "VALUES ('events', 'g', ?, 0)",
                (seq,),
            )
        connection.close()


@pytest.mark.require_server("redis")
class TestRedis(TransportContract):
    moment = 0.5

    test_a_rejected_event_holds_those_of_its_key_where_the_transport_orders = None  # it does not say it does

    @pytest.fixture(autouse=True)
    def _url(self, redis_url):
        self.url, self.prefix = redis_url, uuid.uuid4().hex

    @asynccontextmanager
    async def open(self):
        async with RedisTransport(self.url, prefix=self.prefix, poll=0.05) as transport:
            yield transport

    async def spoil(self, transport):
        await transport.client.xadd(transport.stream("events"), {"something": "else"})
