"""Stores and brokers that fail around a handler, lanes that are left in the middle, wrong registrations."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import pytest

from everkeel.errors import ConfigError
from everkeel.idempotency import InProgress
from everkeel.messaging import Consumer
from everkeel.messaging.consumer.intake import Lanes
from everkeel.messaging.inbox import key_of
from everkeel.messaging.transports.protocol import Delivery
from everkeel.testing import wait_until_idle

LANE = ("orders", "k")


class Unreadable:
    """Something to call that does not say how."""

    __signature__ = "nothing that Python understands"

    def __call__(self, event): ...


async def test_a_lane_is_left_in_order_and_by_who_gives_up_waiting(virtual_time):
    lanes, order = Lanes(), []

    async def pass_through(name):
        await lanes.enter(LANE)
        order.append(name)
        await asyncio.sleep(1)
        lanes.leave(LANE)

    tasks = [asyncio.create_task(pass_through(name)) for name in "abcd"]
    await wait_until_idle()
    tasks[1].cancel()
    await asyncio.sleep(10)
    assert order == ["a", "c", "d"]
    assert len(lanes) == 0


async def test_who_is_cancelled_in_the_moment_of_its_turn_passes_the_turn_on(virtual_time):
    lanes = Lanes()
    await lanes.enter(LANE)
    second = asyncio.create_task(lanes.enter(LANE))
    third = asyncio.create_task(lanes.enter(LANE))
    await wait_until_idle()
    lanes.leave(LANE)  # it is the second's turn, and it does not know yet
    second.cancel()
    await wait_until_idle()
    assert second.cancelled()
    assert third.done()
    lanes.leave(LANE)
    assert len(lanes) == 0


async def test_a_database_without_a_transaction_to_give_costs_no_attempt(world, caplog):
    consumer = world.consumer(attempts=2)
    real, away = world.engine.transaction, True

    @asynccontextmanager
    async def transaction():
        if away:
            raise ConnectionError("too many connections")
        async with real() as tx:
            yield tx

    world.engine.transaction = transaction
    await world.publish(world.event())
    async with consumer:
        await asyncio.sleep(600)
        record = await world.engine.inbox.get("billing", key_of(world.event()))
        assert record.attempts == 0
        assert "no transaction to be had: too many connections" in caplog.text
        away = False
        await asyncio.sleep(60)
    assert world.effects == {("billing", "e-1"): 1}


async def test_nobody_takes_a_key_whose_claim_a_transaction_is_ending_even_if_its_lease_is_over(world, virtual_time):
    inbox = world.engine.inbox
    token = (await inbox.begin("s", "k", lease=10)).token
    async with world.engine.transaction() as tx:
        assert await inbox.complete(token, b"done", tx=tx)
        assert not await inbox.fail(token, tx=tx)  # it ends once
        virtual_time.advance(100)
        assert isinstance(await inbox.begin("s", "k"), InProgress)
    assert (await inbox.begin("s", "k")).result == b"done"


async def test_a_heartbeat_that_fails_is_told_and_beats_on(world, caplog):
    consumer = world.consumer(handle=False, lease=9)

    @consumer.on("OrderCreated")
    async def slow(event):
        await asyncio.sleep(30)
        world.did("billing", event)

    failures, beats, acked = [ConnectionError("no answer")], [], []

    class Shaky(Delivery):
        async def extend(self, seconds):
            if failures:
                raise failures.pop()
            beats.append(seconds)
            return True

        async def ack(self):
            acked.append(1)
            return True

    await consumer.process(Shaky("orders", "billing", None, world.event(), 1))
    assert "could not extend" in caplog.text
    assert (len(beats), acked) == (8, [1])
    assert world.effects == {("billing", "e-1"): 1}
    await consumer.stop()


async def test_a_broker_that_takes_nothing_back_is_told_and_its_lease_does_it(world, caplog):
    class Deaf(Delivery):
        async def ack(self):
            raise ConnectionError("gone")

        async def nack(self, delay=0.0):
            raise ConnectionError("gone")

    consumer = world.consumer()
    event = world.event()
    await consumer.process(Deaf("orders", "billing", None, event, 1))
    assert world.effects == {("billing", "e-1"): 1}  # handled, and not acknowledged: the inbox will know it
    assert "could not give" in caplog.text
    await world.publish(event)
    await world.live(world.consumer(), 5)
    assert world.effects == {("billing", "e-1"): 1}


async def test_a_broker_that_is_away_when_the_consumer_stops_does_not_keep_it(world, caplog):
    consumer = world.consumer()
    subscribe = consumer.subscribe

    def away():
        subscription = subscribe()

        async def aclose() -> None:
            raise OSError("away")

        subscription.aclose = aclose
        return subscription

    consumer.subscribe = away
    await consumer.start()
    await world.publish(world.event())
    await asyncio.sleep(5)
    async with asyncio.timeout(60):
        await consumer.stop()
    assert world.order == ["e-1"]
    assert "the transport failed at the end" in caplog.text


async def test_a_subscription_that_ends_is_asked_for_again(world):
    consumer = world.consumer()
    real, made = consumer.subscribe, []

    def subscribe():
        subscription = real()
        made.append(subscription)
        if len(made) == 1:
            asyncio.get_running_loop().call_later(1, lambda: asyncio.ensure_future(subscription.aclose()))
        return subscription

    consumer.subscribe = subscribe
    async with consumer:
        await asyncio.sleep(5)
        await world.publish(world.event())
        await asyncio.sleep(5)
    assert len(made) == 2
    assert world.effects == {("billing", "e-1"): 1}


async def test_an_error_of_a_claim_that_is_not_ours_is_a_failure_like_any_other(world):
    from everkeel.errors import ClaimLostError

    world.failing["e-1"] = ClaimLostError("payments", "order-7")  # of an inbox that the handler uses itself
    await world.publish(world.event())
    await world.live(world.consumer(), 5)
    assert (await world.the_letter()).row.reason == "rejected"


async def test_housekeeping_that_fails_is_told_and_tried_again(world, caplog):
    consumer = world.consumer()

    async def purge(limit=1000):
        raise ConnectionError("away")

    consumer.inbox.store.purge = purge
    async with consumer:
        await asyncio.sleep(150)
    assert caplog.text.count("could not tidy up") == 2


def test_wrong_registrations_are_refused(world):
    consumer = world.consumer(handle=False)
    with pytest.raises(ConfigError, match="needs the types of its events"):
        consumer.on()
    with pytest.raises(ConfigError, match="needs the types of its events"):

        @consumer.on  # without types, which would be registered for nothing
        def handler(event): ...

    with pytest.raises(ConfigError, match="must be a policy, a pipeline or a guard"):
        consumer.on("OrderCreated", policies=7)(lambda event: None)
    with pytest.raises(ConfigError, match="must have a signature that can be read"):
        consumer.on("OrderCreated")(Unreadable())
    world.engine.name = "postgresql"
    with pytest.raises(ConfigError, match="must be a coroutine function to have tx"):
        consumer.on("OrderCreated")(lambda event, tx: None)


def test_an_inbox_of_another_engine_is_refused(world):
    from everkeel.engines import MemoryEngine
    from everkeel.messaging import Inbox

    with pytest.raises(ConfigError, match="inbox must be of the consumer's own engine"):
        world.consumer(inbox=Inbox("billing", MemoryEngine()))
    with pytest.raises(ConfigError, match="must be an engine or a store of idempotency records"):
        Inbox("billing", object())
    Consumer("alone", world.transport, topics="orders", inbox=Inbox("alone", world.engine))
