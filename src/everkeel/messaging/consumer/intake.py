"""From a subscription to handlers: bounded, in order per key, kept alive while it takes long, and ended in time."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from everkeel.messaging.consumer import reporting
from everkeel.messaging.consumer.handling import Handling
from everkeel.messaging.consumer.held import Again, Held
from everkeel.messaging.transports.protocol import Delivery, Subscription

if TYPE_CHECKING:
    from everkeel.messaging.consumer.consumer import Consumer

_LAST_CHANCE = 5.0
"""Seconds for handlers that were cancelled to end, and for what they hold to be given back."""


class Lanes:
    """One at a time per key, in the order they came, for transports that do not see to it themselves."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], deque[asyncio.Future[None]]] = {}

    async def enter(self, lane: tuple[str, str]) -> None:
        """Wait until it is this one's turn."""
        queue = self._waiting.get(lane)
        if queue is None:
            self._waiting[lane] = deque()
            return
        turn = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.leave(lane)  # it was our turn in the very moment we were cancelled
            elif turn in queue:
                queue.remove(turn)
            raise

    def leave(self, lane: tuple[str, str]) -> None:
        """Let the next one go."""
        queue = self._waiting[lane]
        while queue:
            turn = queue.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._waiting[lane]

    def __len__(self) -> int:
        return len(self._waiting)


class Intake:
    """Takes deliveries and sees each of them through."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self.handling = Handling(consumer)
        self.lanes = Lanes()
        self.running: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(consumer.concurrency)
        self._failures = 0
        self._over = False

    # ------------------------------------------------------------------ all of them

    async def pull(self) -> None:
        """Take deliveries until cancelled. A transport that fails is asked again, with growing delays."""
        consumer = self._consumer
        while True:
            try:
                async with consumer.subscribe() as subscription:
                    await self._take_all(subscription)
            except Exception as error:
                task = asyncio.current_task()
                if task is not None and task.cancelling():  # it failed while we let go of it: that is no reason to stay
                    reporting.trouble(consumer, "the transport failed at the end; what it lent comes again", error)
                    raise asyncio.CancelledError from None
                self._failures += 1
                delay = min(30.0, 0.5 * 2 ** min(self._failures, 10))
                reporting.trouble(consumer, f"the transport failed; asking again in {delay:g} s", error)
                await consumer.clock.asleep(delay)

    async def _take_all(self, subscription: Subscription) -> None:
        while True:
            await self._until_somebody_may()
            try:
                delivery = await subscription.__anext__()
            except StopAsyncIteration:
                await self._consumer.clock.asleep(1.0)
                return
            self._failures = 0
            task = asyncio.create_task(self.process(delivery), name=f"{self._consumer.name}: {delivery!r}")
            self.running.add(task)
            task.add_done_callback(self.running.discard)

    async def _until_somebody_may(self) -> None:
        """While the consumer is off or every handler paused, take nothing: what is not taken waits with the broker."""
        consumer = self._consumer
        while True:
            if consumer.config.mode == "off":
                await consumer.clock.asleep(0.25)  # whoever changes it may be in another thread, which cannot wake us
                continue
            handlers = consumer.handlers()
            rest = min((one.paused_until for one in handlers), default=0.0) - consumer.clock.monotonic()
            if rest <= 0:
                return
            await consumer.clock.asleep(rest)

    # ------------------------------------------------------------------ one of them

    async def process(self, delivery: Delivery) -> None:
        """See one delivery through, keeping it ours meanwhile. Where all fails, it comes again when its lease ends."""
        consumer, held = self._consumer, Held(delivery)
        ordered = getattr(consumer.transport, "ordered", False)
        lane = None if ordered or delivery.key is None else (delivery.topic, delivery.key)
        beat = asyncio.create_task(self._beats(held), name=f"{consumer.name}: heartbeat")
        try:
            if lane is not None:
                await self.lanes.enter(lane)
            try:
                await self._until_done(held, hold=lane is not None)
            finally:
                if lane is not None:
                    self.lanes.leave(lane)
        except asyncio.CancelledError:
            await asyncio.shield(self._give_back(held))
            raise
        except Exception as error:
            reporting.trouble(consumer, f"could not give {delivery!r} back; its lease will", error)
        finally:
            beat.cancel()

    async def _until_done(self, held: Held, *, hold: bool) -> None:
        consumer, failures = self._consumer, 0
        while True:
            try:
                async with self._places:
                    await self.handling.handle(held)
                return
            except Again as again:
                if again.aside:
                    await held.delivery.set_aside(again.delay)
                    return
                delay = again.delay
            except Exception as error:  # not the handler's: a store or the broker is away
                failures += 1
                delay = consumer.rules.backoff.delay(max(failures, held.delivery.attempt))
                reporting.trouble(consumer, f"could not handle {held.delivery!r}; it comes again", error)
                await self.handling.release(held, refund=True)
            if not hold:
                await held.delivery.nack(delay)  # the transport lets nothing of its key overtake it
                return
            await consumer.clock.asleep(delay)  # here others of its key wait behind it

    async def _beats(self, held: Held) -> None:
        consumer = self._consumer
        inbox = consumer.inbox
        while True:
            await consumer.clock.asleep(min(consumer.lease, inbox.lease) / 3)
            if self._over:
                return  # left behind, and not to be waited for by others either
            try:
                if held.token is not None:
                    await inbox.store.extend(held.token, inbox.lease)
                await held.delivery.extend(consumer.lease)
            except Exception as error:  # the next beat may work
                reporting.trouble(consumer, f"could not extend {held.delivery!r}", error)

    async def _give_back(self, held: Held) -> None:
        await self.handling.release(held, refund=True)
        try:
            await held.delivery.nack()
        except Exception as error:
            reporting.trouble(self._consumer, f"could not give {held.delivery!r} back; its lease will", error)

    # ------------------------------------------------------------------ the end

    async def drain(self, grace: float) -> None:
        """Let those under way end, for so many seconds; what has not ended by then is cancelled and given back.

        A handler that does not end even then is left behind: what it holds is free when its leases end.
        """
        if not self.running:
            return
        loop = asyncio.get_running_loop()
        over = self._consumer.clock.future(loop)
        timer = self._consumer.clock.later(loop, grace, lambda: None if over.done() else over.set_result(None))
        all_done = asyncio.ensure_future(asyncio.wait(set(self.running)))
        try:
            await asyncio.wait({over, all_done}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            all_done.cancel()
            left = set(self.running)
            for task in left:
                task.cancel()
            if left:
                _, left = await asyncio.wait(left, timeout=_LAST_CHANCE)
            if left:
                self._over = True
                reporting.left_behind(self._consumer, len(left))
