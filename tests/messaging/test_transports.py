"""What is particular to one transport: real servers that refuse or vanish, processes that are killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import uuid
from urllib.parse import urlsplit

import pytest

from everkeel.engines import MemoryEngine, SQLiteEngine
from everkeel.engines.letters import LetterFilter
from everkeel.errors import ConfigError
from everkeel.messaging import Event, FunctionTransport, Message, Outbox, RedisTransport, SQLiteTransport
from everkeel.messaging.transports.protocol import CONFIRMED, FATAL, RETRYABLE, UNKNOWN
from everkeel.testing import servers

CHILD = """
import asyncio, sys
from everkeel.messaging import RedisTransport, SQLiteTransport

async def main(kind, where, prefix):
    transport = SQLiteTransport(where) if kind == "sqlite" else RedisTransport(where, prefix=prefix)
    async with transport.subscribe("events", "g", lease=0.5) as subscription:
        async for delivery in subscription:
            print(delivery.event.id, flush=True)
            await asyncio.sleep(3600)

asyncio.run(main(*sys.argv[1:]))
"""


def message(n, key=None, topic="events"):
    return Message(topic, Event("tested", {"n": n}, source="/tests", id=f"e-{n}", key=key))


def killed_consumer(*where):
    """A process that takes one delivery and is killed while it holds it."""
    child = subprocess.Popen([sys.executable, "-c", CHILD, *where], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "e-1\n"
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()


async def redelivered(transport):
    async with transport.subscribe("events", "g", lease=0.5) as subscription, asyncio.timeout(20):
        return await anext(subscription)


def test_what_a_killed_process_held_comes_to_another_through_sqlite(tmp_path):
    async def publish():
        async with SQLiteTransport(tmp_path / "db") as transport:
            await transport.publish([message(1)])

    async def receive():
        async with SQLiteTransport(tmp_path / "db", poll=0.02) as transport:
            delivery = await redelivered(transport)
            assert (delivery.event.id, delivery.attempt) == ("e-1", 2)
            assert await delivery.ack()

    asyncio.run(publish())
    killed_consumer("sqlite", str(tmp_path / "db"), "")
    asyncio.run(receive())


@pytest.mark.require_server("redis")
def test_what_a_killed_process_held_comes_to_another_over_redis(redis_url):
    prefix = uuid.uuid4().hex

    async def publish():
        async with RedisTransport(redis_url, prefix=prefix) as transport:
            await transport.publish([message(1)])

    async def receive():
        async with RedisTransport(redis_url, prefix=prefix, poll=0.05) as transport:
            delivery = await redelivered(transport)
            assert (delivery.event.id, delivery.attempt) == ("e-1", 2)
            assert await delivery.ack()
            # Nothing is left of it beside the stream.
            _, moments, holders = transport.keys("events", "g")
            assert await transport.client.exists(moments, holders) == 0

    asyncio.run(publish())
    killed_consumer("redis", redis_url, prefix)
    asyncio.run(receive())


def test_a_busy_sqlite_file_is_an_outage_and_nobodys_fault(tmp_path):
    import sqlite3

    async def main():
        engine = SQLiteEngine(tmp_path / "db", busy_timeout=0.01)
        transport = SQLiteTransport(engine)
        async with engine:
            other = sqlite3.connect(tmp_path / "db", isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            (answer,) = await transport.publish([message(1)])
            assert (answer.result, answer.outage) == (RETRYABLE, True)
            other.rollback()
            other.close()
            (answer,) = await transport.publish([message(1)])
            assert answer.result is CONFIRMED

    asyncio.run(main())


def test_old_messages_are_purged_once_every_group_has_them(tmp_path):
    async def main():
        async with SQLiteTransport(tmp_path / "db", retain=0.0, poll=0.02) as transport:
            await transport.publish([message(n) for n in range(3)])
            async with transport.subscribe("events", "g") as subscription:
                first = await anext(subscription)
                await asyncio.sleep(0.01)
                assert await transport.purge() == 0
                await first.ack()
                assert await transport.purge() == 1

    asyncio.run(main())


# ------------------------------------------------------------------ Redis


@pytest.mark.require_server("redis")
def test_a_redis_that_nobody_reaches_leaves_everything_unknown():
    async def main():
        async with RedisTransport("redis://127.0.0.1:1") as transport:
            answers = await transport.publish([message(1), message(2)])
            assert [(answer.result, answer.outage) for answer in answers] == [(UNKNOWN, True)] * 2

    asyncio.run(main())


@pytest.mark.require_server("redis")
def test_an_answer_that_is_lost_is_unknown_although_redis_has_the_message(redis_url):
    async def main():
        address, deaf = urlsplit(redis_url), False

        async def serve(reader, writer):
            there_reader, there_writer = await asyncio.open_connection(address.hostname, address.port)

            async def back():
                while chunk := await there_reader.read(65536):
                    if not deaf:
                        writer.write(chunk)

            backwards = asyncio.ensure_future(back())
            with contextlib.suppress(OSError):
                while chunk := await reader.read(65536):
                    there_writer.write(chunk)
            backwards.cancel()
            there_writer.close()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        prefix = uuid.uuid4().hex
        from redis.asyncio import Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        client = Redis(host="127.0.0.1", port=port, socket_timeout=0.3, retry=Retry(NoBackoff(), 0))
        transport = RedisTransport(client, prefix=prefix)
        (answer,) = await transport.publish([message(1)])
        assert answer.result is CONFIRMED
        deaf = True
        (answer,) = await transport.publish([message(2)])
        assert (answer.result, answer.outage) == (UNKNOWN, True)
        async with RedisTransport(redis_url, prefix=prefix) as direct:
            assert await direct.client.xlen(direct.stream("events")) == 2
        await client.aclose()
        server.close()

    asyncio.run(main())


@pytest.mark.require_server("redis")
@pytest.mark.parametrize("without", ["-xadd", "-evalsha -eval -script|load"])
def test_a_redis_that_allows_nothing_for_a_while_counts_against_nobody(redis_url, without):
    """Rights that are taken away by mistake are given back; until then nothing may be buried for it."""

    async def main():
        from redis.asyncio import Redis

        name, prefix = uuid.uuid4().hex, uuid.uuid4().hex
        async with RedisTransport(redis_url, prefix=prefix) as allowed:
            rights = ["on", ">secret", "~*", "+@all"]
            await allowed.client.execute_command("ACL", "SETUSER", name, *rights, *without.split())
            client = Redis.from_url(redis_url, username=name, password="secret")
            transport = RedisTransport(client, prefix=prefix)
            (answer,) = await transport.publish([message(1)])
            assert (answer.result, answer.outage) == (RETRYABLE, True)
            await allowed.client.execute_command("ACL", "SETUSER", name, *rights)
            (answer,) = await transport.publish([message(1)])
            assert answer.result is CONFIRMED
            await client.aclose()
            await allowed.client.execute_command("ACL", "DELUSER", name)

    asyncio.run(main())


@pytest.mark.require_server("redis")
def test_what_a_durable_redis_confirmed_is_there_after_it_was_killed():
    """Confirmed events, who was given them and how often, the order of their key: all of it outlives the server."""

    async def main():
        with servers.redis(durable=True) as server:
            async with RedisTransport(server.address) as transport:
                answers = await transport.publish([message(n, key="one") for n in range(3)])
                assert [answer.result for answer in answers] == [CONFIRMED] * 3
                async with transport.subscribe("events", "billing", prefetch=1, lease=0.2) as before:
                    await anext(before)
                    server.kill()
            server.start()
            async with (
                RedisTransport(server.address) as transport,
                transport.subscribe("events", "billing", prefetch=1) as after,
            ):
                came = []
                for _ in range(3):
                    delivery = await anext(after)
                    came.append((delivery.event.data["n"], delivery.attempt))
                    await delivery.ack()
                assert came == [(0, 2), (1, 1), (2, 1)]

    asyncio.run(main())


@pytest.mark.require_server("redis")
def test_a_redis_that_is_full_counts_against_nobody_and_a_wrong_key_is_fatal(redis_url):
    async def main():
        async with RedisTransport(redis_url, prefix=uuid.uuid4().hex) as transport:
            await transport.client.set(transport.stream("taken"), "by something else")
            wrong, fine = await transport.publish([message(1, topic="taken"), message(2)])
            assert (wrong.result, fine.result) == (FATAL, CONFIRMED)
            before = (await transport.client.config_get("maxmemory"))["maxmemory"]
            await transport.client.config_set("maxmemory", 1)
            try:
                (answer,) = await transport.publish([message(3)])
            finally:
                await transport.client.config_set("maxmemory", before)
            assert (answer.result, answer.outage) == (RETRYABLE, True)
            (answer,) = await transport.publish([message(3)])
            assert answer.result is CONFIRMED

    asyncio.run(main())


@pytest.mark.require_server("redis")
def test_from_the_outbox_over_redis_to_a_consumer(redis_url, tmp_path):
    async def main():
        async with (
            SQLiteEngine(tmp_path / "db") as engine,
            RedisTransport(redis_url, prefix=uuid.uuid4().hex, poll=0.05) as transport,
        ):
            outbox = Outbox(engine, transport=transport)
            async with outbox.relay(), transport.subscribe("events", "g") as subscription:
                await outbox.write([message(n, "k").event for n in range(50)])
                received = []
                async with asyncio.timeout(20):
                    while len(received) < 50:
                        delivery = await anext(subscription)
                        received.append(delivery.event.data["n"])
                        await delivery.ack()
            assert received == list(range(50))

    asyncio.run(main())


# ------------------------------------------------------------------ a function


async def test_a_function_publishes_keys_in_order_and_beside_each_other(virtual_time):
    began: list[str] = []

    async def publish(message):
        began.append(message.event.id)
        await asyncio.sleep(1)

    transport = FunctionTransport(publish, concurrency=10)
    answers = await transport.publish([message(1, "a"), message(2, "a"), message(3, "b"), message(4)])
    assert [answer.result for answer in answers] == [CONFIRMED] * 4
    assert virtual_time.monotonic() == 2
    assert began.index("e-2") == 3


async def test_errors_of_a_function_say_whose_fault_it_is(virtual_time):
    errors = {"e-1": ConnectionError("away"), "e-2": ValueError("never"), "e-3": KeyError("not now")}

    async def publish(message):
        if error := errors.get(message.event.id):
            raise error

    transport = FunctionTransport(publish, fatal=ValueError)
    answers = await transport.publish([message(1), message(2), message(3), message(4)])
    assert [(answer.result, answer.outage) for answer in answers] == [
        (UNKNOWN, True), (FATAL, False), (RETRYABLE, False), (CONFIRMED, False),
    ]  # fmt: skip


async def test_behind_a_failed_message_of_a_key_nothing_of_it_is_published(virtual_time):
    published: list[str] = []

    async def publish(message):
        if message.event.id == "e-1":
            raise KeyError("not now")
        published.append(message.event.id)

    outbox = Outbox(MemoryEngine(), transport=FunctionTransport(publish))
    await outbox.write([message(1, "a").event, message(2, "a").event, message(3, "b").event])
    await outbox.relay(attempts=1).flush()
    assert published == ["e-3"]
    assert await outbox.engine.dead_letters.count(LetterFilter()) == 1


def test_a_function_cannot_be_subscribed_to():
    async def publish(message):
        pass

    with pytest.raises(ConfigError, match="only publishes; consumers need another transport"):
        FunctionTransport(publish).subscribe("events", "g")
    with pytest.raises(ConfigError, match="concurrency must be at least 1"):
        FunctionTransport(publish, concurrency=0)
