"""What all subscriptions share: fetching ahead within bounds, waiting for more, giving back at the end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Generic, Self, TypeVar

from everkeel.errors import ConfigError
from everkeel.messaging.transports.protocol import Delivery
from everkeel.runtime.clock import Clock

D = TypeVar("D", bound="HeldDelivery")
T = TypeVar("T")


class HeldDelivery(Delivery):
    """A delivery that tells its subscription when it is settled, so that the next can be fetched."""

    __slots__ = ("_fetched_at", "_settled", "_subscription")

    _subscription: BufferedSubscription[Self]
    _fetched_at: float

    async def _last(self, word: Awaitable[T]) -> T:
        """Say our last word about it. It is out of our hands also where nobody hears it: then its lease ends it."""
        try:
            return await word
        finally:
            self._settle()

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
        self._fetching: set[asyncio.Task[Any]] = set()
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
                await self._give_back_behind(delivery)
            if self._fetching:
                await asyncio.wait(set(self._fetching))  # begun for somebody who no longer waits
                continue
            if self.held >= self.prefetch:
                self._free.clear()
                await self._free.wait()
                continue
            if not await self._fetch_more():
                await self._sheltered(self.wait())
        raise StopAsyncIteration

    async def _fetch_more(self) -> bool:
        """Fetch what there is room for; answers whether there was something."""
        fetched = await self._sheltered(self._fetched(self.prefetch - self.held), self._take_in)
        return bool(fetched)

    async def _fetched(self, limit: int) -> Sequence[D]:
        fetched = await self.fetch(limit)
        now = self.clock.monotonic()
        for delivery in fetched:
            delivery._subscription, delivery._fetched_at = self, now
        return fetched

    def _take_in(self, fetched: Sequence[D]) -> None:
        self.held += len(fetched)
        self._buffer.extend(fetched)

    async def _sheltered(self, work: Coroutine[Any, Any, T], keep: Callable[[T], object] | None = None) -> T:
        """Wait for work that goes over the network, so that cancelling us neither hangs in it nor loses its result.

        What is fetched while nobody waits any more is kept for the next who asks.
        """
        task = asyncio.ensure_future(work)
        if keep is not None:
            task.add_done_callback(lambda done: done.cancelled() or done.exception() or keep(done.result()))
            self._fetching.add(task)
            task.add_done_callback(self._fetching.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if keep is None:
                task.cancel()
            raise

    async def _still_held(self, delivery: D) -> bool:
        """One that waited here for long gets its time back before it is handed out; one that was lost is left out."""
        if self.clock.monotonic() - delivery._fetched_at < self.lease / 2 or await delivery.extend(self.lease):
            return True
        delivery._settle()
        return False

    async def _give_back_behind(self, lost: D) -> None:
        """What waits here behind a lost one of its key would overtake it."""
        behind = [one for one in self._buffer if one.key is not None and (one.topic, one.key) == (lost.topic, lost.key)]
        for one in behind:
            self._buffer.remove(one)
            await one.nack()

    def _let_go(self) -> None:
        self.held -= 1
        self._free.set()

    async def aclose(self) -> None:
        """Give back what was fetched and not handed out, and end."""
        self._closed = True
        self._free.set()
        for late in (await asyncio.wait(set(self._fetching), timeout=5.0))[1] if self._fetching else ():
            late.cancel()  # nobody answers; what it may have fetched comes again when its time is over
        while self._buffer:
            await self._buffer.pop().nack()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()
