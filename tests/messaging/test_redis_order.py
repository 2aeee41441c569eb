"""Over Redis a key keeps its order, though its groups know nothing of keys: also when consumers die."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections import defaultdict

import pytest

from everkeel.messaging import Event, Message, RedisTransport

pytestmark = pytest.mark.require_server("redis")


@pytest.fixture
def transport_of(redis_url):
    prefix = uuid.uuid4().hex

    @contextlib.asynccontextmanager
    async def make():
        async with RedisTransport(redis_url, prefix=prefix, poll=0.02) as transport:
            yield transport

    return make


def message(n, key=None):
    return Message("events", Event("tested", {"n": n}, source="/tests", id=str(n), key=key))


async def take(subscription, count):
    async with asyncio.timeout(30):
        return [await anext(subscription) for _ in range(count)]


def numbers(deliveries):
    return [delivery.event.data["n"] for delivery in deliveries]


def test_who_is_started_again_gets_a_key_in_order_once_the_lease_of_the_dead_is_over(transport_of):
    async def main():
        async with transport_of() as transport:
            await transport.publish([message(n, "k") for n in (1, 2)])
            dead = transport.subscribe("events", "g", consumer="same name", lease=1.0)
            assert numbers(await take(dead, 2)) == [1, 2]
            await transport.publish([message(3, "k"), message(4, "other"), message(5, "k"), message(6)])
            alive = transport.subscribe("events", "g", consumer="same name", lease=30)
            came = []
            for _ in range(6):
                (delivery,) = await take(alive, 1)
                came.append(delivery.event.data["n"])
                await delivery.ack()
            assert sorted(came[:2]) == [4, 6]  # who has nothing to do with the key waits for nobody
            assert came[2:] == [1, 2, 3, 5]

    asyncio.run(main())


def test_what_stands_behind_an_event_in_other_hands_comes_when_that_is_settled(transport_of):
    async def main():
        async with transport_of() as transport:
            await transport.publish([message(n, "k") for n in (1, 2, 3)])
            one, two = (transport.subscribe("events", "g", lease=30, prefetch=2) for _ in range(2))
            first, second = await take(one, 2)
            assert numbers([first, second]) == [1, 2]  # one consumer may have several, and sees to their order itself
            waiting = asyncio.ensure_future(anext(two))
            await first.ack()
            await asyncio.wait({waiting}, timeout=0.2)
            assert not waiting.done()
            await second.nack(0.2)
            async with asyncio.timeout(30):
                again = await waiting
            assert numbers([again]) == [2]
            await again.ack()
            assert numbers(await take(two, 1)) == [3]

    asyncio.run(main())


def test_consumers_of_which_some_die_see_every_key_in_order(transport_of):
    async def main():
        seen: dict[str, list[int]] = defaultdict(list)
        left = {str(n) for n in range(300)}
        all_seen = asyncio.Event()

        async def consume(transport, lives_for):
            subscription = transport.subscribe("events", "g", prefetch=7, lease=1.0)
            async for delivery in subscription:
                if lives_for == 0:
                    return  # with deliveries in its hands and in its buffer
                lives_for -= 1
                event = delivery.event
                if event.id in left:
                    left.discard(event.id)
                    seen[event.key].append(event.data["n"])
                await delivery.ack()
                if not left:
                    all_seen.set()

        async with transport_of() as transport:
            await transport.publish([message(n, f"k{n % 5}") for n in range(300)])
            lives = [3, 10, 17, 24, 31, 100_000, 100_000]
            consumers = [asyncio.ensure_future(consume(transport, life)) for life in lives]
            async with asyncio.timeout(50):
                await all_seen.wait()
            for consumer in consumers:
                consumer.cancel()
            await asyncio.gather(*consumers, return_exceptions=True)
        assert sum(map(len, seen.values())) == 300
        assert all(order == sorted(order) for order in seen.values())

    asyncio.run(main())
