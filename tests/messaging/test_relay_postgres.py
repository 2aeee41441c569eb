"""The relay on a real PostgreSQL: what only a server, several connections and a network can show."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections import Counter, defaultdict
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from everkeel.engines import PostgresEngine
from everkeel.engines.sql.statement import Statement, observers, one
from everkeel.messaging import Event, MemoryTransport, Outbox
from everkeel.messaging.transports.protocol import OK

pytestmark = pytest.mark.require_server("postgres")


def event(id, key=None):
    return Event("tested", {"id": id}, source="/tests", id=str(id), key=key)


async def until(look, satisfied, within=30.0):
    """Look again and again, until satisfied."""
    async with asyncio.timeout(within):
        while not satisfied(await look()):  # noqa: ASYNC110 - what we wait for happens in a server
            await asyncio.sleep(0.02)


def published(transport):
    async def count():
        return len(transport.published["events"])

    return count


@contextlib.contextmanager
def statements():
    """The statements that are run meanwhile."""
    seen: list[str] = []
    observers.append(seen.append)
    try:
        yield seen
    finally:
        observers.remove(seen.append)


def test_an_event_whose_transaction_commits_late_is_not_skipped(postgres_dsn):
    async def main():
        import asyncpg

        transport = MemoryTransport()
        async with PostgresEngine(postgres_dsn) as engine:
            outbox = Outbox(engine, transport=transport)
            relay = outbox.relay()
            early, late = await asyncpg.connect(postgres_dsn), await asyncpg.connect(postgres_dsn)
            slow = early.transaction()
            await slow.start()
            await outbox.write(event("first"), tx=early)  # the lower number, committed last
            async with late.transaction():
                await outbox.write(event("second"), tx=late)
            assert await relay.flush() == 1
            await slow.commit()
            assert await relay.flush() == 1
            assert [sent.id for sent in transport.published["events"]] == ["second", "first"]
            await early.close()
            await late.close()

    asyncio.run(main())


def test_with_serialised_keys_the_order_of_a_key_is_the_order_of_commits(postgres_dsn):
    async def main():
        import asyncpg

        transport = MemoryTransport()
        async with PostgresEngine(postgres_dsn, serialise_keys=True) as engine:
            outbox = Outbox(engine, transport=transport)
            one_, two = await asyncpg.connect(postgres_dsn), await asyncpg.connect(postgres_dsn)
            slow = one_.transaction()
            await slow.start()
            await outbox.write(event("first", "k"), tx=one_)

            async def second():
                async with two.transaction():
                    await outbox.write(event("second", "k"), tx=two)

            writing = asyncio.ensure_future(second())
            waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
            await until(lambda: engine.run(one(Statement(waits))), lambda rows: rows[0][0])
            await slow.commit()
            await writing
            await outbox.relay().flush()
            assert [sent.id for sent in transport.published["events"]] == ["first", "second"]
            await one_.close()
            await two.close()

    asyncio.run(main())


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_relays_on_several_machines_keep_the_order_of_every_key_and_share_nothing(postgres_dsn, driver):
    async def main():
        sent: list[Event] = []

        class Recording(MemoryTransport):
            async def publish(self, messages):
                for message in messages:
                    await asyncio.sleep(0)  # let the others in between
                    sent.append(message.event)
                return [OK] * len(messages)

        async with contextlib.AsyncExitStack() as stack:
            engines = [await stack.enter_async_context(PostgresEngine(postgres_dsn, driver=driver)) for _ in range(4)]
            for start in range(0, 800, 200):
                await Outbox(engines[0]).write([event(n, f"k{n % 10}") for n in range(start, start + 200)])
            relays = [Outbox(engine, transport=Recording()).relay(batch=13, poll=0.05) for engine in engines]
            for relay in relays:
                await stack.enter_async_context(relay)
            await until(engines[0].outbox.stats, lambda stats: not stats.depth)
        by_key = defaultdict(list)
        for one_ in sent:
            by_key[one_.key].append(int(one_.id))
        assert Counter(one_.id for one_ in sent).most_common(1)[0][1] == 1
        assert sum(map(len, by_key.values())) == 800
        assert all(numbers == sorted(numbers) for numbers in by_key.values())

    asyncio.run(main())


def test_relays_of_two_processes_share_the_work(postgres_dsn):
    program = Path(__file__).with_name("relay_process.py")

    async def main():
        import asyncpg

        connection = await asyncpg.connect(postgres_dsn)
        await connection.execute("CREATE TABLE published (seq serial, pid integer, id text, key text)")
        async with PostgresEngine(postgres_dsn) as engine:
            outbox = Outbox(engine)
            await outbox.write([event(n, f"k{n % 20}") for n in range(200)])
            processes = [
                await asyncio.create_subprocess_exec(sys.executable, program, postgres_dsn, "2") for _ in range(2)
            ]
            try:
                await until(outbox.stats, lambda stats: not stats.depth, within=50)
            finally:
                for process in processes:
                    process.kill()
                    await process.wait()
        rows = await connection.fetch("SELECT pid, id, key FROM published ORDER BY seq")
        await connection.close()
        return [process.pid for process in processes], rows

    pids, rows = asyncio.run(main())
    assert {row["pid"] for row in rows} == set(pids)
    assert sorted(int(row["id"]) for row in rows) == list(range(200))  # each once
    for key in {row["key"] for row in rows}:
        numbers = [int(row["id"]) for row in rows if row["key"] == key]
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("keys", [None, 200, 1])
def test_a_delivered_event_costs_a_twentieth_of_a_statement(postgres_dsn, keys):
    async def main():
        async with PostgresEngine(postgres_dsn) as engine:
            outbox = Outbox(engine, transport=MemoryTransport())
            with statements() as written:
                for start in range(0, 2000, 500):
                    await outbox.write(
                        [event(n, None if keys is None else f"k{n % keys}") for n in range(start, start + 500)]
                    )
            assert len([text for text in written if "INSERT" in text]) == 4  # the others are signals
            with statements() as seen:
                assert await outbox.relay().flush() == 2000
            assert len(seen) / 2000 <= 0.05, Counter(text.split("(")[0][:60] for text in seen)

    asyncio.run(main())


def test_a_write_in_the_callers_transaction_sends_no_notification(postgres_dsn):
    async def main():
        import asyncpg

        async with PostgresEngine(postgres_dsn) as engine:
            outbox = Outbox(engine)
            connection = await asyncpg.connect(postgres_dsn)
            with statements() as seen:
                async with connection.transaction():
                    await outbox.write(event("1"), tx=connection)
                await asyncio.sleep(0.1)
            assert len(seen) == 1
            assert "notify" not in seen[0]
            await connection.close()

    asyncio.run(main())


def test_many_signals_become_few_notifications(postgres_dsn):
    async def main():
        async with PostgresEngine(postgres_dsn) as engine:
            with statements() as seen:
                for _ in range(100):
                    engine.wakeup.notify("outbox")
                await asyncio.sleep(0.2)
            assert 1 <= len(seen) <= 2

    asyncio.run(main())


def test_a_long_transaction_elsewhere_does_not_stop_delivery(postgres_dsn):
    async def main():
        import asyncpg

        async with PostgresEngine(postgres_dsn) as engine:
            outbox = Outbox(engine, transport=MemoryTransport())
            holder = await asyncpg.connect(postgres_dsn)
            reading = holder.transaction(isolation="repeatable_read")
            await reading.start()
            await holder.fetch("SELECT count(*) FROM everkeel_outbox")
            relay = outbox.relay()
            for start in range(0, 1000, 100):
                await outbox.write([event(n, f"k{n % 7}") for n in range(start, start + 100)])
                assert await relay.flush() == 100
            await reading.rollback()
            await holder.close()

    asyncio.run(main())


# ------------------------------------------------------------------ a network that fails


class Proxy:
    """Between us and the server: passes everything on until it is told to swallow it, or to cut."""

    def __init__(self, dsn):
        address = urlsplit(dsn)
        self.target = (address.hostname, address.port or 5432)
        self.dsn = dsn
        self.deaf = False
        self.writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        port = self.server.sockets[0].getsockname()[1]
        address = urlsplit(self.dsn)
        user = f"{address.username}@" if address.username else ""
        self.address = f"postgresql://{user}127.0.0.1:{port}{address.path}"
        return self

    async def serve(self, reader, writer):
        there_reader, there_writer = await asyncio.open_connection(*self.target)
        self.writers += [writer, there_writer]
        await asyncio.gather(self.pass_on(reader, there_writer), self.pass_on(there_reader, writer))

    async def pass_on(self, reader, writer):
        with contextlib.suppress(OSError):
            while chunk := await reader.read(65536):
                if not self.deaf:
                    writer.write(chunk)
            writer.close()

    def cut(self):
        for writer in self.writers:
            writer.transport.abort()
        self.writers.clear()

    async def __aexit__(self, *error):
        self.cut()
        self.server.close()


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_a_listening_connection_that_went_silent_costs_the_poll_interval(postgres_dsn, driver):
    async def main():
        transport = MemoryTransport()
        async with Proxy(postgres_dsn) as proxy:
            writer = PostgresEngine(postgres_dsn, driver=driver)
            reader = PostgresEngine(postgres_dsn, listen_dsn=proxy.address, driver=driver)
            async with writer, reader:
                await asyncio.wait_for(reader.listener.connected.wait(), 10)
                proxy.deaf = True  # nothing arrives any more, and the connection looks healthy
                async with Outbox(reader, transport=transport).relay(poll=0.2):
                    await Outbox(writer).write(event("1"))
                    await until(published(transport), lambda count: count == 1)

    asyncio.run(main())


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_a_listening_connection_that_went_silent_is_noticed_and_replaced(postgres_dsn, driver, monkeypatch):
    monkeypatch.setattr("everkeel.engines.postgres.wakeup.KEEPALIVE", 0.05)
    monkeypatch.setattr("everkeel.engines.postgres.wakeup.ANSWER", 0.2)

    async def main():
        async with Proxy(postgres_dsn) as proxy:
            engine = PostgresEngine(postgres_dsn, listen_dsn=proxy.address, driver=driver)
            async with engine, PostgresEngine(postgres_dsn, pooler=True) as elsewhere:
                listening = engine.listener.connected

                async def connected():
                    return listening.is_set()

                await until(connected, lambda yes: yes)
                proxy.deaf = True
                await until(connected, lambda yes: not yes)
                proxy.deaf = False
                waiting = [asyncio.ensure_future(engine.wakeup.wait(topic, 20)) for topic in ("outbox", "sagas")]
                await until(connected, lambda yes: yes)
                assert await asyncio.gather(*waiting) == [True, True]  # whatever was signalled meanwhile
                while await engine.wakeup.wait("outbox", 0.05):
                    pass
                elsewhere.wakeup.notify("outbox")
                assert await engine.wakeup.wait("outbox", 20)

    asyncio.run(main())


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_the_kernel_is_told_to_notice_a_server_that_vanished(postgres_dsn, driver):
    async def main():
        async with PostgresEngine(postgres_dsn, driver=driver) as engine, engine.transaction() as connection:
            if driver == "asyncpg":
                descriptor = connection._transport.get_extra_info("socket").fileno()
            else:
                descriptor = connection.fileno()
            with socket.socket(fileno=os.dup(descriptor)) as found:
                assert found.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                return [found.getsockopt(socket.IPPROTO_TCP, option) for option in OPTIONS]

    assert asyncio.run(main()) == [15, 5, 3, 30_000]


OPTIONS = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_with_a_database_that_went_silent_relay_and_engine_end_in_time(postgres_dsn, driver, monkeypatch):
    monkeypatch.setattr("everkeel.messaging.relay.ending.PATIENCE", (0.1, 0.1))
    monkeypatch.setattr("everkeel.engines.postgres.connections.CLOSE", 0.1)

    async def main():
        async with Proxy(postgres_dsn) as proxy:
            engine = PostgresEngine(proxy.address, listen_dsn=postgres_dsn, driver=driver)
            await engine.start()
            outbox = Outbox(engine, transport=MemoryTransport())
            relay = outbox.relay(poll=0.02)
            async with asyncio.timeout(30), relay:
                await outbox.write(event("1"))
                await until(outbox.stats, lambda stats: not stats.depth)
                proxy.deaf = True
                await asyncio.sleep(0.1)  # it asks, and nobody answers
                await relay.stop(within=0.1)
                await engine.close()

    asyncio.run(main())


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_a_database_whose_connections_are_cut_is_reached_again(postgres_dsn, driver, caplog):
    async def main():
        transport = MemoryTransport()
        async with Proxy(postgres_dsn) as proxy:
            async with PostgresEngine(proxy.address, driver=driver) as engine:
                outbox = Outbox(engine, transport=transport)
                async with outbox.relay(poll=0.1, outage_backoff=0.05):
                    await outbox.write(event("1"))
                    await asyncio.sleep(0.2)
                    proxy.cut()
                    async with PostgresEngine(postgres_dsn) as direct:
                        await Outbox(direct).write(event("2"))
                    await until(published(transport), lambda count: count >= 2)

    asyncio.run(main())
