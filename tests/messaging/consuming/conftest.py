"""A small world in memory and virtual time: producers, a broker, an engine, a relay, and consumers that may crash."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import contextmanager

import pytest

from everkeel.engines import MemoryEngine
from everkeel.messaging import Consumer, DeadLetters, Event, MemoryTransport, Message
from everkeel.messaging.rows import event_of
from everkeel.runtime import crash


class Crash(BaseException):
    """The process is gone: nothing that catches Exception sees it, and nothing is tidied up."""


class World:
    def __init__(self) -> None:
        self.engine = MemoryEngine()
        self.transport = MemoryTransport()
        self.letters = DeadLetters(self.engine)
        self.effects: Counter[tuple[str, str]] = Counter()
        self.order: list[str] = []
        self.failing: dict[str, object] = {}
        """What handling an event raises, by its id: an exception for ever, or a list of them, one each time."""

    def event(self, id: str = "e-1", *, key: str | None = None, data=None, type: str = "OrderCreated", **more) -> Event:
        return Event(type, {"n": 1} if data is None else data, source="/orders", id=id, key=key, **more)

    async def publish(self, *events: Event, topic: str = "orders") -> None:
        await self.transport.publish([Message(topic, event) for event in events])

    def consumer(self, name: str = "billing", *, handle: bool = True, **settings) -> Consumer:
        """A consumer whose effects are committed with the record; `handle=False`: the test registers its own."""
        settings = {"topics": "orders", "engine": self.engine, "dead_letters": self.letters, **settings}
        consumer = Consumer(name, self.transport, **settings)
        if handle:

            @consumer.on("OrderCreated")
            async def handler(event, tx):
                self.fail_if_told(event)
                tx.on_commit(lambda: self.did(name, event))

        return consumer

    def fail_if_told(self, event: Event) -> None:
        told = self.failing.get(event.id)
        if isinstance(told, list):
            told = told.pop(0) if told else None
        if told is not None:
            raise told

    def did(self, consumer: str, event: Event) -> None:
        self.effects[consumer, event.id] += 1
        self.order.append(event.id)

    async def relay(self) -> int:
        """Deliver what the outbox holds; answers how many."""
        claimed = await self.engine.outbox.claim("relay", 1000, 30)
        for one in claimed:
            await self.publish(event_of(one.row), topic=one.row.topic)
            await self.engine.outbox.ack([one.lease])
        return len(claimed)

    async def live(self, consumer: Consumer, seconds: float = 120.0) -> None:
        """Let a consumer and the relay work for a while."""
        async with consumer:
            end = asyncio.get_running_loop().time() + seconds
            while asyncio.get_running_loop().time() < end:
                await asyncio.sleep(1)
                await self.relay()

    async def one(self, consumer: Consumer):
        """The next delivery for a consumer, by hand."""
        return await consumer.subscribe().__anext__()

    @contextmanager
    def crash_at(self, point: str):
        """The process dies when it passes this point."""

        def hook(name: str) -> None:
            if name == point:
                crash.hook = None
                raise Crash(name)

        crash.hook = hook
        try:
            yield
        finally:
            crash.hook = None

    async def crashes(self, consumer: Consumer, point: str) -> None:
        """Handle one delivery in a process that dies at this point."""
        delivery = await self.one(consumer)
        with self.crash_at(point), pytest.raises(Crash):
            await consumer.process(delivery)

    async def the_letter(self, **wanted):
        """The only dead letter."""
        page = await self.letters.list()
        assert len(page.letters) == 1, page.letters
        return page.letters[0]


@pytest.fixture
def world(virtual_time) -> World:
    return World()
