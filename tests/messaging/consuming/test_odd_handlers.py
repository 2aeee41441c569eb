"""Handlers that do what nobody would expect of them: the event is handled or counted as failed, and nobody hangs."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import subprocess
import sys
import threading

import pytest

from everkeel import retry, timeout
from everkeel.engines import SQLiteEngine
from everkeel.messaging import Consumer, Event, MemoryTransport, Message, SQLiteTransport
from everkeel.messaging.consumer import intake
from everkeel.messaging.consumer.threads import HandlerThreads, StuckHandlersError
from everkeel.messaging.transports.sqlite import SQLiteDelivery


@pytest.mark.parametrize("error", [StopIteration(), concurrent.futures.CancelledError(), asyncio.CancelledError()])
async def test_what_no_future_can_carry_out_of_a_thread_is_a_failure_like_any_other(world, error):
    consumer, calls = world.consumer(handle=False, attempts=2), []

    @consumer.on("OrderCreated")
    def handler(event):
        calls.append(event.id)
        raise error

    await world.publish(world.event())
    await world.live(consumer, 30)
    assert calls == ["e-1", "e-1"]
    assert (await world.the_letter()).row.reason == "attempts"


async def test_a_handler_that_waits_for_what_somebody_cancelled_has_failed(world):
    consumer, calls = world.consumer(handle=False, attempts=2), []

    @consumer.on("OrderCreated")
    async def handler(event, tx):
        calls.append(event.id)
        inner = asyncio.ensure_future(asyncio.sleep(60))
        inner.cancel()
        await inner

    await world.publish(world.event())
    await world.live(consumer, 30)
    assert calls == ["e-1", "e-1"]
    assert "was cancelled, and the handler was not" in (await world.the_letter()).row.error


async def test_a_plain_function_around_a_coroutine_function_is_awaited(world):
    consumer, done = world.consumer(handle=False), []

    async def handler(event):
        await asyncio.sleep(1)
        done.append(event.id)

    consumer.on("OrderCreated")(lambda event: handler(event))
    await world.publish(world.event())
    await world.live(consumer, 5)
    assert done == ["e-1"]


async def test_what_a_handler_does_to_the_data_no_other_attempt_and_no_other_consumer_sees(world):
    seen = []

    def taking(name, failures):
        consumer = world.consumer(name, handle=False, policies=retry(attempts=2, on=OSError, backoff=0.1))

        @consumer.on("OrderCreated")
        async def handler(event):
            seen.append(event.data.pop("n", None))
            if len(seen) < failures:
                raise OSError

        return consumer

    await world.publish(world.event())
    await world.live(taking("billing", 4), 10)
    await world.live(taking("shipping", 0), 10)
    assert seen == [1] * 5


async def test_a_handler_that_ends_for_nobody_does_not_keep_the_consumer_from_stopping(world, caplog):
    consumer, begun, ended = world.consumer(handle=False), asyncio.Event(), False

    @consumer.on("OrderCreated")
    async def handler(event):
        begun.set()
        while not ended:
            try:
                await asyncio.sleep(1)
            except asyncio.CancelledError:
                continue  # as nobody should

    await world.publish(world.event())
    await consumer.start()
    await begun.wait()
    before = asyncio.get_running_loop().time()
    with caplog.at_level(logging.ERROR, "everkeel.consumer"):
        await consumer.stop(grace=1)
    assert asyncio.get_running_loop().time() - before < 1 + intake._LAST_CHANCE + 1
    assert "1 handlers did not end when they were cancelled" in caplog.text

    done = world.consumer()
    await world.live(done, 200)  # nobody extends what it holds any more
    assert world.order == ["e-1"]
    ended = True
    await asyncio.sleep(2)


WEDGED = """
import asyncio, threading
from everkeel.messaging import Consumer, Event, MemoryTransport, Message

async def main():
    transport, begun = MemoryTransport(), asyncio.Event()
    consumer, loop = Consumer("billing", transport, topics="orders"), asyncio.get_running_loop()

    @consumer.on("OrderCreated")
    def handler(event):
        loop.call_soon_threadsafe(begun.set)
        threading.Event().wait()

    await transport.publish([Message("orders", Event("OrderCreated", source="/orders"))])
    await consumer.start()
    await begun.wait()
    await consumer.stop(grace=0)

asyncio.run(main())
"""


def test_a_thread_that_hangs_does_not_keep_the_process_from_ending():
    subprocess.run([sys.executable, "-c", WEDGED], check=True, timeout=60)


async def test_threads_that_were_given_up_on_are_bounded_and_healthy_calls_get_theirs(world):
    consumer, go_on, hung = world.consumer(handle=False, policies=timeout(1), concurrency=1), threading.Event(), []

    @consumer.on("OrderCreated")
    def handler(event):
        if event.data["n"] == "hangs" and len(hung) < 3:
            hung.append(event.id)
            go_on.wait(30)

    await world.publish(world.event("e-1", data={"n": "hangs"}), world.event("e-2"))
    try:
        await world.live(consumer, 60)
    finally:
        go_on.set()
    assert consumer.snapshot()["handled"] == 2


def test_no_thread_is_started_beyond_the_bound():
    threads, go_on = HandlerThreads("billing", 1), threading.Event()
    waiting = [threads.submit(go_on.wait, 30) for _ in range(33)]
    with pytest.raises(StuckHandlersError, match="33 calls of handlers occupy their threads"):
        threads.submit(int)
    go_on.set()
    concurrent.futures.wait(waiting, timeout=30)
    assert threads.submit(lambda: 7).result(30) == 7


def test_a_broker_that_does_not_hear_the_last_word_costs_no_place(tmp_path, monkeypatch):
    """Else each would be counted as held for ever, and after a few nothing more would be taken."""
    change, failures = SQLiteDelivery._change, iter(range(12))

    async def away(self, *args):
        if next(failures, None) is not None:
            raise OSError("away")
        return await change(self, *args)

    monkeypatch.setattr(SQLiteDelivery, "_change", away)

    async def main():
        async with SQLiteEngine(tmp_path / "events.db") as engine:
            transport, done = SQLiteTransport(engine, poll=0.02), asyncio.Event()
            consumer = Consumer("billing", transport, topics="orders", engine=engine, prefetch=2, concurrency=2,
                                lease=0.3, backoff=0.01)  # fmt: skip
            left = {str(number) for number in range(12)}

            @consumer.on("OrderCreated")
            async def handler(event):
                left.discard(event.id)
                if not left:
                    done.set()

            events = [Event("OrderCreated", source="/orders", id=id) for id in left]
            await transport.publish([Message("orders", event) for event in events])
            async with consumer, asyncio.timeout(20):
                await done.wait()

    asyncio.run(main())


def test_a_handler_that_was_given_up_on_cannot_write_into_the_next_transaction(tmp_path):
    """A plain function may have the connection itself in hands, and go on with it after its time is over."""

    async def main():
        async with SQLiteEngine(tmp_path / "events.db") as engine:
            async with engine.transaction() as tx:
                await tx.run(lambda connection: connection.execute("CREATE TABLE effects (x)"))
            transport, go_on, wrote = MemoryTransport(), threading.Event(), asyncio.Event()
            consumer = Consumer(
                "billing", transport, topics="orders", engine=engine, attempts=1, policies=timeout(0.05)
            )
            loop, errors = asyncio.get_running_loop(), []

            @consumer.on("OrderCreated")
            def handler(event, tx):
                connection = tx.connection
                go_on.wait(30)
                try:
                    connection.execute("INSERT INTO effects VALUES ('late')")
                except Exception as error:
                    errors.append(error)
                finally:
                    loop.call_soon_threadsafe(wrote.set)

            await transport.publish([Message("orders", Event("OrderCreated", source="/orders"))])
            async with consumer, asyncio.timeout(20):
                while not consumer.snapshot()["dead_lettered"]:  # noqa: ASYNC110 - a thread is at work
                    await asyncio.sleep(0.01)
                async with engine.transaction() as tx:
                    await tx.run(lambda connection: connection.execute("INSERT INTO effects VALUES ('mine')"))
                    go_on.set()
                    await wrote.wait()
            async with engine.transaction() as tx:
                rows = await tx.run(lambda connection: connection.execute("SELECT x FROM effects").fetchall())
            assert rows == [("mine",)]
            assert len(errors) == 1

    asyncio.run(main())
