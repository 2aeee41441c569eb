"""Events over Redis Streams."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import Any, Self
from uuid import uuid4

from everkeel.messaging.transports import redis_scripts as scripts
from everkeel.messaging.transports.protocol import FATAL, OK, RETRYABLE, Message, Published, unknown
from everkeel.messaging.transports.subscription import BufferedSubscription, HeldDelivery
from everkeel.runtime.clock import DEFAULT, Clock
from everkeel.runtime.settings import Seconds, seconds

_NEVER = ("WRONGTYPE", "bulk length", "maximum allowed size")
"""What errors say that will be the same next time: the name is taken by something else, or the message is too large.
Everything else (no memory, no permission, a server that is loading or read-only) says nothing about the message."""


class RedisTransport:
    """Every group gets every event of its topics and shares it among its consumers, over Redis 7.0 or newer.

    Each key comes in order, also when consumers die or several share the work: while one of them has events of a key,
    or one of it waits for its time, the others are given none of it. A consumer may hold several of a key, and handles
    them in the order in which they came. A key that moves from one consumer to another may wait for `poll`.

    What Redis confirms is as durable as Redis is configured to be: without an append-only file a restart loses it, and
    with `appendfsync everysec` up to a second. The outbox keeps what was delivered for a day, for that reason too.

    Args:
        client: A `redis.asyncio.Redis`, or a URL to make one from.
        prefix: What the keys begin with.
        poll: Seconds that a blocked read takes at most, so that delays and expired leases are seen in time.
        retain: Seconds for which messages stay in the stream, consumed or not; a week. Longer than any outage of yours.
        clock: For waiting. What is due when is decided by Redis's clock.
    """

    name = "redis"
    durable = True
    ordered = False

    def __init__(
        self,
        client: Any,
        *,
        prefix: str = "everkeel",
        poll: Seconds = 0.5,
        retain: Seconds = 7 * 86_400.0,
        clock: Clock | None = None,
    ) -> None:
        self._owned = isinstance(client, str)
        if isinstance(client, str):
            try:
                from redis.asyncio import Redis
            except ImportError:
                raise ImportError("RedisTransport needs redis: pip install everkeel[redis]") from None
            client = Redis.from_url(client)
        self.client = client
        self.prefix = prefix
        self.clock = clock or DEFAULT
        self.poll, self.retain = seconds(poll), seconds(retain)
        self._publish = client.register_script(scripts.PUBLISH)
        self.fetch_script = client.register_script(scripts.FETCH)
        self.ack_script = client.register_script(scripts.ACK)
        self.postpone_script = client.register_script(scripts.POSTPONE)

    def stream(self, topic: str) -> str:
        """The stream of a topic; the braces keep what belongs to it on one node of a cluster."""
        return f"{self.prefix}:{{{topic}}}"

    def keys(self, topic: str, group: str) -> list[str]:
        """What a group needs of a topic."""
        stream = self.stream(topic)
        return [stream, f"{stream}:{group}:moments", f"{stream}:{group}:holders"]

    async def publish(self, messages: Sequence[Message]) -> Sequence[Published]:
        results: dict[int, Published] = {}
        by_topic: dict[str, list[int]] = {}
        for place, message in enumerate(messages):
            by_topic.setdefault(message.topic, []).append(place)
        for topic, places in by_topic.items():
            values: list[Any] = [ceil(self.retain * 1000)]
            for place in places:
                values += (messages[place].key or "", messages[place].event.to_json())
            results.update(zip(places, await self._publish_to(topic, values, len(places)), strict=True))
        return [results[place] for place in range(len(messages))]

    async def _publish_to(self, topic: str, values: list[Any], count: int) -> list[Published]:
        from redis.exceptions import RedisError, ResponseError

        try:
            answers = await self._publish(keys=[self.stream(topic)], args=values)
        except ResponseError as error:
            return [_refused(error)] * count
        except (RedisError, OSError) as error:
            return [unknown(error)] * count  # it may have done it before the connection went
        return [OK if answer == b"ok" or answer == "ok" else _answered(answer) for answer in answers]

    def subscribe(
        self,
        topics: str | Sequence[str],
        group: str,
        *,
        consumer: str | None = None,
        prefetch: int = 100,
        lease: float = 60.0,
    ) -> RedisSubscription:
        return RedisSubscription(self, topics, group, consumer, prefetch=prefetch, lease=lease)

    async def join(self, topics: Sequence[str], group: str) -> None:
        """Let a group have what is published from now on, and what is still there."""
        from redis.exceptions import ResponseError

        for topic in topics:
            try:
                await self.client.xgroup_create(self.stream(topic), group, id="0", mkstream=True)
            except ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise

    async def close(self) -> None:
        """Close the client, unless it is yours."""
        if self._owned:
            await self.client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class RedisSubscription(BufferedSubscription["RedisDelivery"]):
    """Deliveries of one consumer."""

    def __init__(
        self, transport: RedisTransport, topics: str | Sequence[str], group: str, consumer: str | None, *,
        prefetch: int, lease: float,
    ) -> None:  # fmt: skip
        super().__init__(topics, group, prefetch=prefetch, lease=lease, clock=transport.clock)
        self.transport = transport
        self.consumer = consumer or uuid4().hex
        self._session = uuid4().hex  # not the name: whoever is started again with it has nothing in hands
        self._joined = False
        self._seen: dict[str, Any] = {}  # the last id the group was given, per topic

    async def fetch(self, limit: int) -> Sequence[RedisDelivery]:
        if not self._joined:
            await self.transport.join(self.topics, self.group)
            self._joined = True
        found: list[RedisDelivery] = []
        for topic in self.topics:
            if len(found) < limit:
                found.extend(await self._fetch(topic, limit - len(found)))
        return found

    async def _fetch(self, topic: str, limit: int) -> list[RedisDelivery]:
        token = f"{self._session}:{uuid4().hex}"
        *entries, self._seen[topic] = await self.transport.fetch_script(
            keys=self.transport.keys(topic, self.group),
            args=[self.group, self.consumer, self._session, token, ceil(self.lease * 1000), limit],
        )
        return [self._delivery(topic, entry, token) for entry in entries]

    def _delivery(self, topic: str, entry: Sequence[Any], token: str) -> RedisDelivery:
        id, tries, key, body = entry
        body = body.encode() if isinstance(body, str) else body
        key = key.decode() if isinstance(key, bytes) else key
        delivery = RedisDelivery(topic, self.group, key or None, body, tries)
        delivery.id, delivery.token = id, token
        return delivery

    async def wait(self) -> None:
        # Returns at once if something came behind what the group was given; it is fetched by the script.
        streams = {self.transport.stream(topic): seen for topic, seen in self._seen.items()}
        await self.transport.client.xread(streams, count=1, block=max(1, ceil(self.transport.poll * 1000)))


class RedisDelivery(HeldDelivery):
    """One event for one consumer."""

    __slots__ = ("id", "token")

    id: Any
    token: str

    @property
    def _transport(self) -> RedisTransport:
        transport: RedisTransport = self._subscription.transport  # type: ignore[attr-defined]  # ours
        return transport

    async def ack(self) -> bool:
        transport = self._transport
        keys, args = transport.keys(self.topic, self.group), [self.group, self.id, self.token]
        return bool(await self._last(transport.ack_script(keys=keys, args=args)))

    async def nack(self, delay: float = 0.0) -> bool:
        return await self._last(self._postpone(delay, "release"))

    async def set_aside(self, delay: float) -> bool:
        return await self._last(self._postpone(delay, "aside"))

    async def extend(self, seconds: float) -> bool:
        return await self._postpone(seconds, "keep")

    async def _postpone(self, seconds: float, what: str) -> bool:
        transport = self._transport
        args = [self.group, self.id, self.token, ceil(seconds * 1000), what]
        return bool(await transport.postpone_script(keys=transport.keys(self.topic, self.group), args=args))


def _answered(answer: Any) -> Published:
    text = answer.decode() if isinstance(answer, bytes) else str(answer)
    if text == "held":
        return Published(RETRYABLE, RuntimeError("an earlier event of its key was not published"), outage=True)
    return _refused(RuntimeError(text))


def _refused(error: Exception) -> Published:
    if any(word in str(error) for word in _NEVER):
        return Published(FATAL, error)
    return Published(RETRYABLE, error, outage=True)
