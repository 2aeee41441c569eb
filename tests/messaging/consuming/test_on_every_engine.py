"""The whole way on every engine, with a relay and in real time: outbox, consumer, dead letter, replay, followers."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from everkeel import NotRetryable
from everkeel.engines import MemoryEngine, PostgresEngine, SQLiteEngine
from everkeel.engines.letters import LetterFilter, Status
from everkeel.errors import DeadLetterConflictError, DeadLetterNotFoundError, DeadLetterStateError
from everkeel.messaging import Consumer, DeadLetters, Event, MemoryTransport, Outbox, Relay

ENGINES = ["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.require_server("postgres"))]


class Refused(NotRetryable):
    """A business rejection."""


@pytest.fixture(params=ENGINES)
def make_engine(request, tmp_path):
    if request.param == "memory":
        return MemoryEngine
    if request.param == "sqlite":
        return lambda: SQLiteEngine(tmp_path / "events.db")
    dsn = request.getfixturevalue("postgres_dsn")
    return lambda: PostgresEngine(dsn)


class Shop:
    def __init__(self, engine) -> None:
        self.engine, self.transport = engine, MemoryTransport()
        self.outbox = Outbox(engine, transport=self.transport, topic="orders")
        self.letters = DeadLetters(engine)
        self.refuse: set[str] = set()
        self.handled: list[str] = []
        self.consumer = Consumer(
            "billing", self.transport, topics="orders", engine=engine, dead_letters=self.letters, park_followers=True
        )

        @self.consumer.on("OrderCreated")
        async def bill(event, tx):
            if event.id in self.refuse:
                raise Refused(event.id)
            self.handled.append(event.id)

    async def produce(self, *ids: str) -> None:
        async with self.engine.transaction() as tx:
            await self.outbox.write([Event("OrderCreated", {}, source="/orders", id=id, key="k") for id in ids], tx=tx)
        self.engine.wakeup.notify("outbox")

    async def until(self, condition) -> None:
        for _ in range(400):
            if await condition():
                return
            await asyncio.sleep(0.025)
        raise AssertionError(f"never came: {self.handled}, {(await self.letters.list()).letters}")

    async def count(self, *statuses: Status) -> int:
        return await self.letters.count(LetterFilter(status=statuses))


def on_a_shop(make_engine, test) -> None:
    @asynccontextmanager
    async def open_shop():
        async with make_engine() as engine:
            shop = Shop(engine)
            async with shop.consumer, Relay(shop.outbox, poll=0.05):
                yield shop

    async def main() -> None:
        async with open_shop() as shop:
            await test(shop)

    asyncio.run(main())


def test_a_dead_letter_is_replayed_by_one_of_eight_operators_and_its_followers_follow_in_order(make_engine):
    async def test(shop: Shop) -> None:
        shop.refuse = {"e-1"}
        await shop.produce("e-1", "e-2", "e-3")

        async def all_there() -> bool:
            return await shop.count(Status.PENDING) == 1 and await shop.count(Status.PARKED) == 2

        await shop.until(all_there)
        (letter,) = (await shop.letters.list(LetterFilter(status=(Status.PENDING,)))).letters
        shop.refuse.clear()
        replays = [shop.letters.replay(letter.id, actor=f"op-{n}", version=letter.version) for n in range(8)]
        results = await asyncio.gather(*replays, return_exceptions=True)
        refused = [one for one in results if isinstance(one, Exception)]
        assert len(refused) == 7
        assert {type(one) for one in refused} <= {DeadLetterConflictError, DeadLetterStateError}

        async def all_handled() -> bool:
            return await shop.count(Status.RESOLVED) == 3

        await shop.until(all_handled)
        assert shop.handled == ["e-1", "e-2", "e-3"]

    on_a_shop(make_engine, test)


def test_discarding_lets_followers_go_and_a_plan_replays_the_rest(make_engine):
    async def test(shop: Shop) -> None:
        shop.refuse = {"e-1", "e-2"}
        await shop.produce("e-1", "e-2", "e-3")

        async def first_is_buried() -> bool:
            return await shop.count(Status.PENDING) == 1 and await shop.count(Status.PARKED) == 2

        await shop.until(first_is_buried)
        (first,) = (await shop.letters.list(LetterFilter(status=(Status.PENDING,)))).letters
        await shop.letters.discard(first.id, actor="ann", reason="no use")

        async def second_is_buried() -> bool:
            pending = (await shop.letters.list(LetterFilter(status=(Status.PENDING,)))).letters
            return [one.row.event_id for one in pending] == ["e-2"] and await shop.count(Status.PARKED) == 1

        await shop.until(second_is_buried)
        shop.refuse.clear()
        report = await shop.letters.apply(await shop.letters.plan_replay(), actor="ann", rate=100)
        assert len(report.replayed) == 1

        async def done() -> bool:
            return shop.handled == ["e-2", "e-3"] and await shop.count(Status.RESOLVED) == 2

        await shop.until(done)
        tally = await shop.letters.tally()
        assert sum(tally.values()) == await shop.letters.count()
        assert tally["billing", "rejected", "discarded"] == 1

    on_a_shop(make_engine, test)


def test_an_error_with_characters_that_no_database_takes_can_be_given_up_on_looked_for_and_discarded(make_engine):
    async def main() -> None:
        async with make_engine() as engine:
            letters = DeadLetters(engine)
            error = ValueError("caf\udce9 \x00 au lait")
            error.add_note("\x00\ud800")
            event = Event("OrderCreated", {}, source="/orders", id="e-1", key="k")
            letter = await letters.bury(event, consumer="billing", topic="orders", reason="attempts", error=error)
            assert letter.row.error == "caf\ufffd \ufffd au lait"
            assert await letters.count(LetterFilter(key="\x00")) == 0
            with pytest.raises(DeadLetterNotFoundError):
                await letters.get("\x00\ud800")
            await letters.discard(letter.id, actor="ann\x00", reason="\udce9")
            assert (await letters.audit(letter.id))[-1].actor == "ann\ufffd"

    asyncio.run(main())
