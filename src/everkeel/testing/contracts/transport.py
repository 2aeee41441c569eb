"""What a transport must do, as tests. Subclass it next to your transport:

class TestMyTransport(TransportContract):
    @asynccontextmanager
    async def open(self):
        yield MyTransport(...)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from everkeel.errors import ConfigError, EventError
from everkeel.messaging.event import Event
from everkeel.messaging.transports.protocol import CONFIRMED, Delivery, Message, Transport


def message(n: int = 0, key: str | None = None, topic: str = "events") -> Message:
    """A message to be published."""
    return Message(topic, Event("tested", {"n": n}, source="/tests", id=f"e-{n}", key=key))


async def take(subscription: Any, count: int, within: float = 10.0) -> list[Delivery]:
    """So many deliveries, which must come."""
    async with asyncio.timeout(within):
        return [await anext(subscription) for _ in range(count)]


async def nothing_comes(subscription: Any, within: float = 0.05) -> bool:
    """Is there nothing to be had?"""
    try:
        await asyncio.wait_for(anext(subscription), within)
    except TimeoutError:
        return True
    return False


class TransportContract:
    """What is confirmed arrives, at every group, at least once."""

    moment: float = 0.3
    """A lease or a delay that is over soon. Nothing is expected to happen within it."""

    def open(self) -> AbstractAsyncContextManager[Transport]:
        """Open a transport that is empty: yours to write."""
        raise NotImplementedError("a contract needs `open`, an async context manager that yields a Transport")

    def run(self, test: Callable[[Any], Awaitable[None]]) -> None:
        """Run one test."""

        async def opened() -> None:
            async with self.open() as transport:
                await test(transport)

        asyncio.run(opened())

    async def let_pass(self, seconds: float) -> None:
        """Let so much of the transport's time pass, and a little more."""
        await asyncio.sleep(seconds * 1.2 + 0.02)

    def test_every_message_gets_an_answer(self) -> None:
        async def test(transport: Transport) -> None:
            answers = await transport.publish([message(n) for n in range(5)])
            assert [answer.result for answer in answers] == [CONFIRMED] * 5
            assert list(await transport.publish([])) == []

        self.run(test)

    def test_an_event_arrives_as_it_was_sent(self) -> None:
        async def test(transport: Transport) -> None:
            sent = Event(
                "order.placed", {"näme": "Ø", "n": [1, None, True]}, source="/örders", id="e-1", key="clé",
                correlation_id="c", extensions={"custom": "x", "count": 3},
            )  # fmt: skip
            binary = Event("file.stored", bytes(range(256)), source="/files", id="e-2", content_type="image/png")
            async with transport.subscribe("events", "g") as subscription:
                await transport.publish([Message("events", sent), Message("events", binary)])
                received = await take(subscription, 2)
            assert [delivery.event for delivery in received] == [sent, binary]
            assert [delivery.key for delivery in received] == ["clé", None]
            assert Event.from_json(received[0].body) == sent

        self.run(test)

    def test_a_group_that_comes_later_gets_what_is_still_there(self) -> None:
        async def test(transport: Transport) -> None:
            await transport.publish([message(1), message(2)])
            async with transport.subscribe("events", "late") as subscription:
                assert [d.event.data["n"] for d in await take(subscription, 2)] == [1, 2]

        self.run(test)

    def test_every_group_gets_everything(self) -> None:
        async def test(transport: Transport) -> None:
            async with transport.subscribe("events", "a") as one, transport.subscribe("events", "b") as two:
                await transport.publish([message(n) for n in range(3)])
                for subscription in (one, two):
                    received = await take(subscription, 3)
                    assert sorted(d.event.data["n"] for d in received) == [0, 1, 2]

        self.run(test)

    def test_consumers_of_a_group_share(self) -> None:
        async def test(transport: Transport) -> None:
            async with (
                transport.subscribe("events", "g", prefetch=2) as one,
                transport.subscribe("events", "g", prefetch=2) as two,
            ):
                await transport.publish([message(n) for n in range(4)])
                received = [*await take(one, 2), *await take(two, 2)]
            assert sorted(d.event.data["n"] for d in received) == [0, 1, 2, 3]

        self.run(test)

    def test_several_topics_can_be_subscribed_to(self) -> None:
        async def test(transport: Transport) -> None:
            async with transport.subscribe(["a", "b"], "g") as subscription:
                await transport.publish([message(1, topic="a"), message(2, topic="b"), message(3, topic="c")])
                assert {d.topic for d in await take(subscription, 2)} == {"a", "b"}
                assert await nothing_comes(subscription)

        self.run(test)

    def test_what_is_acknowledged_never_comes_again(self) -> None:
        async def test(transport: Transport) -> None:
            await transport.publish([message(1)])
            async with transport.subscribe("events", "g", lease=self.moment) as subscription:
                (delivery,) = await take(subscription, 1)
                assert await delivery.ack()
                assert not await delivery.ack()
            await self.let_pass(self.moment)
            async with transport.subscribe("events", "g") as subscription:
                assert await nothing_comes(subscription)

        self.run(test)

    def test_what_is_rejected_comes_again_not_before_its_delay(self) -> None:
        async def test(transport: Transport) -> None:
            await transport.publish([message(1)])
            async with transport.subscribe("events", "g") as subscription:
                (delivery,) = await take(subscription, 1)
                assert delivery.attempt == 1
                assert await delivery.nack(self.moment)
                assert await nothing_comes(subscription)
            await self.let_pass(self.moment)
            async with transport.subscribe("events", "g") as subscription:
                (again,) = await take(subscription, 1)
                assert (again.attempt, again.event.id) == (2, "e-1")

        self.run(test)

    def test_what_a_dead_consumer_held_comes_to_another(self) -> None:
        async def test(transport: Transport) -> None:
            await transport.publish([message(1)])
            dead = transport.subscribe("events", "g", lease=self.moment)
            (lost,) = await take(dead, 1)  # and then no word from it
            async with transport.subscribe("events", "g", lease=self.moment) as subscription:
                assert await nothing_comes(subscription)
                await self.let_pass(self.moment)
                (again,) = await take(subscription, 1)
                assert again.attempt == 2
                assert not await lost.ack()  # it is not its to settle any more
                assert not await lost.extend(60)
                assert not await lost.nack()
                assert await again.ack()

        self.run(test)

    def test_a_delivery_can_be_kept_for_longer(self) -> None:
        async def test(transport: Transport) -> None:
            await transport.publish([message(1)])
            async with (
                transport.subscribe("events", "g", lease=self.moment) as one,
                transport.subscribe("events", "g") as two,
            ):
                (delivery,) = await take(one, 1)
                assert await delivery.extend(60)
                await self.let_pass(self.moment)
                assert await nothing_comes(two)
                assert await delivery.ack()

        self.run(test)

    def test_no_more_is_held_than_asked_for(self) -> None:
        async def test(transport: Transport) -> None:
            await transport.publish([message(n) for n in range(5)])
            async with transport.subscribe("events", "g", prefetch=2) as subscription:
                first, _ = await take(subscription, 2)
                assert await nothing_comes(subscription)
                await first.ack()
                await take(subscription, 1)

        self.run(test)

    def test_a_closed_subscription_gives_back_what_it_did_not_hand_out(self) -> None:
        async def test(transport: Transport) -> None:
            await transport.publish([message(n) for n in range(3)])
            async with transport.subscribe("events", "g", prefetch=3) as subscription:
                (first,) = await take(subscription, 1)
                await first.ack()
            async with transport.subscribe("events", "g") as subscription:
                assert sorted(d.event.data["n"] for d in await take(subscription, 2)) == [1, 2]

        self.run(test)

    def test_one_key_comes_in_order(self) -> None:
        async def test(transport: Transport) -> None:
            await transport.publish([message(n, "k") for n in range(5)])
            received = []
            async with transport.subscribe("events", "g") as subscription:
                for _ in range(5):
                    (delivery,) = await take(subscription, 1)
                    received.append(delivery.event.data["n"])
                    await delivery.ack()
            assert received == [0, 1, 2, 3, 4]

        self.run(test)

    def test_a_rejected_event_holds_those_of_its_key_where_the_transport_orders(self) -> None:
        async def test(transport: Transport) -> None:
            assert transport.ordered, "set this test to None for a transport that does not order"
            await transport.publish([message(1, "k"), message(2, "k"), message(3, "other")])
            async with transport.subscribe("events", "g") as one, transport.subscribe("events", "g") as two:
                held = {d.event.data["n"]: d for d in await take(one, 2)}
                assert set(held) == {1, 3}
                assert await nothing_comes(two)
                await held[1].nack(self.moment)
                assert await nothing_comes(two)
                await self.let_pass(self.moment)
                (again,) = await take(two, 1)
                assert again.event.data["n"] == 1
                await again.ack()
                (follower,) = await take(two, 1)
                assert follower.event.data["n"] == 2

        self.run(test)

    def test_what_is_set_aside_lets_others_of_its_key_pass_and_comes_again(self) -> None:
        async def test(transport: Transport) -> None:
            await transport.publish([message(1, "k"), message(2, "k"), message(3, "k")])
            async with transport.subscribe("events", "g", prefetch=1) as one:
                (early,) = await take(one, 1)
                assert early.event.data["n"] == 1
                assert await early.set_aside(self.moment)
                assert not await early.set_aside(self.moment)  # it is not its to settle any more
                (second,) = await take(one, 1)
                assert second.event.data["n"] == 2
                await self.let_pass(self.moment)
                async with transport.subscribe("events", "g", prefetch=1) as two:
                    (again,) = await take(two, 1)  # while others of its key are in somebody's hands
                    assert (again.event.data["n"], again.key, again.attempt) == (1, "k", 2)
                    await again.ack()
                await second.ack()
                (third,) = await take(one, 1)
                assert third.event.data["n"] == 3
                await third.ack()

        self.run(test)

    def test_wrong_settings_are_an_error_at_once(self) -> None:
        async def test(transport: Transport) -> None:
            for wrong in ({"prefetch": 0}, {"lease": 0}):
                with pytest.raises(ConfigError):
                    transport.subscribe("events", "g", **wrong)  # type: ignore[arg-type]  # on purpose
            with pytest.raises(ConfigError):
                transport.subscribe([], "g")

        self.run(test)

    async def spoil(self, transport: Any) -> None:
        """Put something that is no event into the topic `events`: yours to write.

        Where nobody can do that, set `test_what_is_no_event_says_so_and_can_be_settled = None`.
        """
        raise NotImplementedError("the contract needs `spoil`")

    def test_what_is_no_event_says_so_and_can_be_settled(self) -> None:
        async def test(transport: Transport) -> None:
            async with transport.subscribe("events", "g") as subscription:
                await self.spoil(transport)
                (delivery,) = await take(subscription, 1)
                with pytest.raises(EventError):
                    _ = delivery.event
                assert await delivery.ack()

        self.run(test)

    def test_a_consumer_that_is_cancelled_while_it_fetches_loses_nothing(self) -> None:
        async def test(transport: Transport) -> None:
            async with transport.subscribe("events", "g") as subscription:
                for delay in (0.0, 0.001, 0.003, 0.01):
                    waiting = asyncio.ensure_future(anext(subscription))
                    await asyncio.sleep(delay)
                    waiting.cancel()
                    await asyncio.gather(waiting, return_exceptions=True)
                await transport.publish([message(n) for n in range(3)])
                waiting = asyncio.ensure_future(anext(subscription))
                await asyncio.sleep(0)
                waiting.cancel()
                ended = await asyncio.gather(waiting, return_exceptions=True)
                received = [done for done in ended if isinstance(done, Delivery)]
                received += await take(subscription, 3 - len(received))
            assert sorted(delivery.event.data["n"] for delivery in received) == [0, 1, 2]

        self.run(test)
