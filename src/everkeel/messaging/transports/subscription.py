"""What all subscriptions share: fetching ahead within bounds, waiting for more, giving back at the end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Generic, Self, TypeVar

from everkeel.errors import ConfigError
from everkeel.messaging.transports.protocol import Delivery
from everkeel.runtime.clock import Clock

D = TypeVar("D", bound="HeldDelivery")


class HeldDelivery(Delivery):
    """A delivery that tells its subscription when it is settled, so that the next can be fetched."""

    __slots__ = ("_fetched_at", "_settled", "_subscription")

    _subscription: BufferedSubscription[Self]
    _fetched_at: float

    def _settle(self) -> None:
        if not getattr(self, "_settled", False):
            self._settled = True
            self._subscription._let_go()


class BufferedSubscription(Generic[D]):
    """An async iterator over deliveries; a transport says how to fetch some and how to wait for more."""

    def __init__(self, topics: str | Sequence[str], group: str, *, prefetch: int, lease: float, clock: Clock) -> None:
        self.topics = (topics,) if isinstance(topics, str) else tuple(topics)
        self.group = group
        if not self.topics or not all(self.topics):
            raise ConfigError(f"subscription of {group!r}", "topics", "must name at least one topic", repr(topics))
        if not isinstance(prefetch, int) or prefetch < 1:
            raise ConfigError(f"subscription of {group!r}", "prefetch", "must be at least 1", repr(prefetch))
        if not lease > 0:
            raise ConfigError(f"subscription of {group!r}", "lease", "must be more than 0 seconds", repr(lease))
        self.prefetch, self.lease = prefetch, lease
        self.clock = clock
        self.held = 0
        """Deliveries fetched and not settled: those handed out and those waiting here."""
        self._buffer: deque[D] = deque()
        self._free = asyncio.Event()
        self._closed = False

    # ------------------------------------------------------------------ what a transport adds

    async def fetch(self, limit: int) -> Sequence[D]:
        """Take up to `limit` deliveries that are due; none when there are none."""
        raise NotImplementedError

    async def wait(self) -> None:
        """Wait until it may be worth fetching again."""
        raise NotImplementedError

    # ------------------------------------------------------------------ the iterator

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> D:
        while not self._closed:
            while self._buffer:
                delivery = self._buffer.popleft()
                if await self._still_held(delivery):
                    return delivery
            if self.held >= self.prefetch:
                self._free.clear()
                await self._free.wait()
                continue
            fetched = await self.fetch(self.prefetch - self.held)
            now = self.clock.monotonic()
            for delivery in fetched:
                delivery._subscription, delivery._fetched_at = self, now
            self.held += len(fetched)
            self._buffer.extend(fetched)
            if not fetched:
                await self.wait()
        raise StopAsyncIteration

    async def _still_held(self, delivery: D) -> bool:
        """One that waited here for long gets its time back before it is handed out; one that was lost is left out."""
        if self.clock.monotonic() - delivery._fetched_at < self.lease / 2 or await delivery.extend(self.lease):
            return True
        delivery._settle()
        return False

    def _let_go(self) -> None:
        self.held -= 1
        self._free.set()

    async def aclose(self) -> None:
        """Give back what was fetched and not handed out, and end."""
        self._closed = True
        self._free.set()
        while self._buffer:
            await self._buffer.pop().nack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()
