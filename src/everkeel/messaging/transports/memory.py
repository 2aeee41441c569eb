"""Events within one process: for tests, and for modules that talk as services would."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from uuid import uuid4

from everkeel.engines.memory.queue import LeaseQueue
from everkeel.engines.rows import Lease
from everkeel.engines.wakeup import LocalWakeup
from everkeel.messaging.event import Event
from everkeel.messaging.transports.protocol import OK, Message, Published
from everkeel.messaging.transports.subscription import BufferedSubscription, HeldDelivery
from everkeel.runtime.clock import DEFAULT, Clock


class MemoryTransport:
    """Every group gets every event of its topics, each one at a time per key, as long as the process lives.

    Args:
        retain: How many of the last events of a topic are kept for groups that subscribe later.
        clock: Where its time comes from, in place of the default.
    """

    name = "memory"
    durable = False
    ordered = True

    def __init__(self, *, retain: int = 10_000, clock: Clock | None = None) -> None:
        self.clock = clock or DEFAULT
        self.published: defaultdict[str, deque[Event]] = defaultdict(lambda: deque(maxlen=retain))
        """The last events of each topic."""
        self._lock = threading.RLock()
        self._groups: dict[tuple[str, str], LeaseQueue[Event]] = {}
        self._wakeup = LocalWakeup(self.clock)
        self._waiting: set[str] = set()

    async def publish(self, messages: Sequence[Message]) -> Sequence[Published]:
        now = self.clock.time()
        with self._lock:
            for message in messages:
                self.published[message.topic].append(message.event)
                for (topic, _), queue in self._groups.items():
                    if topic == message.topic:
                        queue.append(message.event, topic, message.key, now)
        self.wake()
        return [OK] * len(messages)

    def subscribe(
        self,
        topics: str | Sequence[str],
        group: str,
        *,
        consumer: str | None = None,
        prefetch: int = 100,
        lease: float = 60.0,
    ) -> MemorySubscription:
        subscription = MemorySubscription(self, topics, group, prefetch=prefetch, lease=lease, clock=self.clock)
        with self._lock:
            for topic in subscription.topics:
                if (topic, group) not in self._groups:
                    queue = self._groups[topic, group] = LeaseQueue()
                    for event in self.published[topic]:
                        queue.append(event, topic, event.key, self.clock.time())
        return subscription

    def queues(self, topics: Iterable[str], group: str) -> list[LeaseQueue[Event]]:
        """What a group has not settled yet."""
        return [self._groups[topic, group] for topic in topics]

    def wake(self) -> None:
        """Tell every subscription to look."""
        with self._lock:
            waiting = list(self._waiting)
        for name in waiting:
            self._wakeup.notify(name)

    async def close(self) -> None:
        """Nothing to do."""


class MemorySubscription(BufferedSubscription["MemoryDelivery"]):
    """Deliveries of one consumer."""

    def __init__(
        self, transport: MemoryTransport, topics: str | Sequence[str], group: str, *,
        prefetch: int, lease: float, clock: Clock,
    ) -> None:  # fmt: skip
        super().__init__(topics, group, prefetch=prefetch, lease=lease, clock=clock)
        self.transport = transport
        self._name = uuid4().hex
        transport._waiting.add(self._name)

    async def fetch(self, limit: int) -> Sequence[MemoryDelivery]:
        now, found = self.clock.time(), list[MemoryDelivery]()
        with self.transport._lock:
            for queue in self.transport.queues(self.topics, self.group):
                taken = queue.claim(now, limit - len(found), self.lease, uuid4().hex, behind=False)
                for entry, lease in taken:
                    delivery = MemoryDelivery(entry.topic, self.group, entry.item.key, entry.item, entry.attempts)
                    delivery.queue, delivery.lease = queue, lease
                    found.append(delivery)
                if len(found) == limit:
                    break
        return found

    async def wait(self) -> None:
        now = self.clock.time()
        with self.transport._lock:
            queues = self.transport.queues(self.topics, self.group)
            due = min((due for queue in queues if (due := queue.next_due(now)) is not None), default=None)
        # A hair later than due: a lease that ends now is still held now.
        await self.transport._wakeup.wait(self._name, None if due is None else max(due - now, 0.0) + 1e-3)

    async def aclose(self) -> None:
        await super().aclose()
        self.transport._waiting.discard(self._name)
        self.transport._wakeup.notify(self._name)


class MemoryDelivery(HeldDelivery):
    """One event for one consumer."""

    __slots__ = ("lease", "queue")

    queue: LeaseQueue[Event]
    lease: Lease

    async def ack(self) -> bool:
        transport = self._subscription.transport  # type: ignore[attr-defined]  # a MemorySubscription
        with transport._lock:
            entry = self.queue.deliver(self.lease, 0.0)
            if entry is not None:
                self.queue.remove(entry)
        self._settle()
        transport.wake()  # the next of its key may go now
        return entry is not None

    async def nack(self, delay: float = 0.0) -> bool:
        transport = self._subscription.transport  # type: ignore[attr-defined]
        with transport._lock:
            kept = self.queue.give_back(self.lease, transport.clock.time() + delay, counted=True)
        self._settle()
        transport.wake()
        return kept

    async def set_aside(self, delay: float) -> bool:
        with self._subscription.transport._lock:  # type: ignore[attr-defined]
            self.queue.set_aside(self.lease)
        return await self.nack(delay)

    async def extend(self, seconds: float) -> bool:
        transport = self._subscription.transport  # type: ignore[attr-defined]
        with transport._lock:
            return bool(self.queue.extend([self.lease], transport.clock.time(), seconds))
