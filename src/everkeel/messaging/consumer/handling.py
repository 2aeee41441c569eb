"""One delivery from beginning to end: claim, handle, complete; or again later; or dead letters. Never nothing.

The order of what is written is what makes it safe. Completed before acknowledged: a crash between the two brings the
event again, and the inbox knows it. Buried before acknowledged: a crash brings it again, and it is buried already.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from hashlib import sha256
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from everkeel.errors import (
    ClaimLostError,
    DeadLettersFullError,
    EventError,
    IdempotencyMismatchError,
    NotRetryable,
    TooEarlyError,
)
from everkeel.idempotency.records import Duplicate, Fresh, InProgress, Mismatch, Token
from everkeel.messaging.consumer import reporting
from everkeel.messaging.consumer.core import Redeliver, after_failure, spent
from everkeel.messaging.consumer.handlers import Context, Handler, announced, undecodable
from everkeel.messaging.consumer.held import Again, Held, StoreAwayError
from everkeel.messaging.consumer.sequence import OutOfTurnError, Turn, number_of, wait_for
from everkeel.messaging.consumer.threads import HandlerThreads, blocking
from everkeel.messaging.event import Event
from everkeel.messaging.inbox import fingerprint_of, key_of
from everkeel.messaging.rows import row_of
from everkeel.messaging.tracing import processing
from everkeel.runtime.crash import crash_point

if TYPE_CHECKING:
    from everkeel.messaging.consumer.consumer import Consumer

_STILL_AWAITED = ("parked", "mismatch")
"""Why a letter may be written of a number that is still to come: it waits in line, or has the identity of another."""
_LOOK_AGAIN = 5.0
"""How long at most until a duplicate of what is in progress elsewhere looks whether it is done."""


class Handling:
    """How a consumer handles one delivery."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._threads = HandlerThreads(consumer.name, consumer.concurrency)
        self._since = consumer.clock.monotonic()

    async def handle(self, held: Held) -> None:
        """Handle it and acknowledge it; `Again` where it must be handled once more later."""
        consumer, delivery = self._consumer, held.delivery
        try:
            event = delivery.event
        except Exception as error:  # an EventError; any other is poison too, and would come again for ever
            event = undecodable(delivery.body, delivery.topic, delivery.key)
            await self._bury(held, event, "poison", error, delivery.attempt)
            return
        handler = consumer.handler_for(event.type)
        if event.attributes.get("replayfor", consumer.name) != consumer.name:
            consumer.counts["ignored"] += 1
            await delivery.ack()  # a replay for another consumer
            return
        if handler is None:
            await self._ignored(held, event)
            return
        rest = handler.paused_until - consumer.clock.monotonic()
        if rest > 0:
            raise Again(rest)
        if await self._parked(held, event):
            return
        if consumer.sequence is not None and not await self._in_turn(held, event):
            return
        await self._claimed(held, event, handler)

    async def _ignored(self, held: Held, event: Event) -> None:
        """An event of a type that nobody handles here. It has its number all the same, which others wait for."""
        consumer = self._consumer
        if consumer.sequence is not None and event.sequence is not None:
            try:
                number = number_of(event)
            except EventError:
                number = None  # nobody waits for that
            if number is not None:
                turn, _ = await consumer.sequence.turn(event, number, consumer.rules.patience, self._up_for)
                if turn is Turn.EARLY:
                    self._hold_back(held)
                await consumer.sequence.skip(event, number)
        consumer.counts["ignored"] += 1
        await held.delivery.ack()

    # ------------------------------------------------------------------ may it run?

    async def _in_turn(self, held: Held, event: Event) -> bool:
        """Is it its turn, by its number? False: it was given up on. `Again`: it is set aside until then."""
        consumer = self._consumer
        assert consumer.sequence is not None
        try:
            held.number = number_of(event)
        except EventError as error:
            await self._bury(held, event, "poison", error, held.delivery.attempt)
            return False
        turn, why = await consumer.sequence.turn(event, held.number, consumer.rules.patience, self._up_for)
        if turn is Turn.EARLY:
            reporting.early(consumer, event, why)
            self._hold_back(held)
        if turn is Turn.OVERDUE:
            await self._bury(held, event, "early", TooEarlyError(consumer.name, None, why), 0)
            return False
        # A replay is somebody's decision to handle it now, whatever has passed it.
        held.late = EventError(f"event {event.type!r}", why) if turn is Turn.LATE and not event.replay_epoch else None
        return True

    @property
    def _up_for(self) -> float:
        return self._consumer.clock.monotonic() - self._since

    def _hold_back(self, held: Held) -> None:
        consumer = self._consumer
        consumer.counts["early"] += 1
        raise Again(wait_for(held.delivery.attempt, consumer.clock.random()), aside=True)

    async def _parked(self, held: Held, event: Event) -> bool:
        consumer = self._consumer
        if not consumer.park_followers or event.key is None or consumer.dead_letters is None:
            return False
        topic = held.delivery.topic
        front = await consumer.dead_letters.store.blocking(consumer.name, topic, event.key, event.source, event.id)
        if front is None:
            return False
        await self._bury(held, event, "parked", None, 0, behind=front.id)
        return True

    async def _claimed(self, held: Held, event: Event, handler: Handler) -> None:
        consumer = self._consumer
        inbox, key = consumer.inbox, key_of(event)
        answer = await inbox.store.begin(
            inbox.scope, key, fingerprint=fingerprint_of(event), lease=inbox.lease, retain=inbox.retain,
            epoch=event.replay_epoch,
        )  # fmt: skip
        crash_point("consumer.after_claim")
        match answer:
            case Duplicate():
                consumer.counts["duplicates"] += 1
                reporting.duplicate(consumer, event)
                if event.replay_epoch and consumer.dead_letters is not None:
                    await consumer.dead_letters.settle(event, consumer=consumer.name, topic=held.delivery.topic)
                if consumer.sequence is not None and held.number is not None:
                    await consumer.sequence.skip(event, held.number)  # in case the inbox keeps its word elsewhere
                await held.delivery.ack()
            case InProgress(retry_after):
                consumer.counts["in_progress"] += 1
                raise Again(min(retry_after, _LOOK_AGAIN))
            case Mismatch():
                # It has the identity of another event, whose letter there may be: it is kept under one of its own.
                own = Event._made(
                    f"{event.id}~{sha256(fingerprint_of(event)).hexdigest()[:12]}",
                    event.source, event.type, event.attributes, event.body,
                )  # fmt: skip
                await self._bury(held, own, "mismatch", IdempotencyMismatchError(inbox.scope, key), 0)
            case Fresh(token, attempt):
                held.token = token
                if held.late is not None:  # and it was not handled before, as far as the inbox remembers
                    await self._bury(held, event, "late", held.late, attempt - 1)
                    return
                await self._run(held, event, handler, token, attempt)

    # ------------------------------------------------------------------ run it

    async def _run(self, held: Held, event: Event, handler: Handler, token: Token, attempt: int) -> None:
        consumer, topic = self._consumer, held.delivery.topic
        if spent(attempt, consumer.rules):
            died = RuntimeError(
                f"{attempt - 1} attempts were begun and none succeeded; its handler may have died in them"
            )
            await self._bury(held, event, "attempts", died, attempt - 1)
            return
        try:
            system = getattr(consumer.transport, "name", "everkeel")
            with processing(event, consumer=consumer.name, topic=topic, system=system, attempt=attempt):
                await self._attempts(held, event, handler, token, attempt)
        except ClaimLostError as error:
            if error.args != (token.scope, token.key):
                await self._failed(held, event, handler, error, attempt)
                return
            held.token = None
            consumer.counts["lost"] += 1
            reporting.lost(consumer, event)
            raise Again(_LOOK_AGAIN) from None  # whoever has it now may finish it, or not
        except OutOfTurnError:
            await self.release(held, refund=True)
            raise Again(0.0, aside=True) from None
        except Exception as error:
            await self._failed(held, event, handler, error, attempt)
            return
        held.token = None
        handler.pauses = 0
        consumer.counts["handled"] += 1
        crash_point("consumer.before_ack")
        await held.delivery.ack()
        crash_point("consumer.after_ack")

    async def _attempts(self, held: Held, event: Event, handler: Handler, token: Token, attempt: int) -> None:
        """The handler within its policies. In a transaction, each attempt of a retry has one of its own."""
        consumer, topic = self._consumer, held.delivery.topic
        policies = handler.policies or consumer.policies
        once = self._in_transaction if handler.transactional else self._call
        arguments = (event, handler, Context(consumer.name, topic, attempt, token, None, held.number))
        if policies is None:
            await once(*arguments)
        else:
            await policies.acall(once, *arguments)
        if handler.transactional:
            return
        crash_point("consumer.after_effect")
        await self._complete(event, token, held.number)
        crash_point("consumer.after_complete")
        await self._settled(event, topic, token, None)

    async def _complete(self, event: Event, token: Token, number: int | None) -> None:
        """Its effect is there: say so, and that those behind it may go."""
        consumer = self._consumer
        if consumer.sequence is None or number is None:
            if not await consumer.inbox.store.complete(token):
                raise ClaimLostError(token.scope, token.key)
            return
        assert consumer.engine is not None  # checked when the consumer was made
        async with consumer.engine.transaction() as tx:
            own = tx if consumer.inbox.engine is consumer.engine else None
            if not await consumer.inbox.store.complete(token, tx=own):
                raise ClaimLostError(token.scope, token.key)
            await consumer.sequence.skip(event, number, tx)

    async def _in_transaction(self, event: Event, handler: Handler, context: Context) -> None:
        consumer, token = self._consumer, context.token
        engine = consumer.engine
        assert engine is not None  # checked when the handler was registered
        elsewhere = consumer.dead_letters is not None and consumer.dead_letters.engine is not engine
        try:
            async with AsyncExitStack() as stack:
                try:
                    tx = await stack.enter_async_context(engine.transaction())
                except Exception as error:  # nothing was tried: no reason to count it
                    raise StoreAwayError(consumer.name, None) from error
                within = replace(context, tx=tx)
                await self._call(event, handler, within)
                if consumer.sequence is not None and context.number is not None:
                    await consumer.sequence.done(event, context.number, tx)
                await consumer.inbox.complete_in(tx, token)
                if not elsewhere:
                    await self._settled(event, context.topic, token, tx)
        except ClaimLostError:
            # An attempt before this one may have been committed without our hearing of it.
            if not await consumer.inbox.committed(token):
                raise
        crash_point("consumer.after_commit")
        if elsewhere:  # in another database: not before the effect is certain
            await self._settled(event, context.topic, token, None)

    async def _settled(self, event: Event, topic: str, token: Token, tx: Any) -> None:
        """Close the letters of an event that was handled after all. One that was never tried before has none."""
        letters = self._consumer.dead_letters
        if letters is not None and (event.replay_epoch or token.fence > 1):
            await letters.settle(event, consumer=self._consumer.name, topic=topic, tx=tx)

    async def _call(self, event: Event, handler: Handler, context: Context) -> None:
        arguments = handler.arguments(context)
        event = event.unread()  # what a handler does to the data is not for the next attempt or consumer to find
        try:
            if handler.awaited:
                await handler.fn(event, **arguments)
                return
            loop = asyncio.get_running_loop()
            result = await loop.run_in_executor(self._threads, blocking, handler.fn, event, arguments)
            if isawaitable(result):  # a plain function around a coroutine function: its work is still to be done
                await result
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Nobody cancelled us: it waited for something that was. Taken for our end, it would never be counted.
            raise RuntimeError("what the handler waited for was cancelled, and the handler was not") from error

    # ------------------------------------------------------------------ it failed

    async def _failed(self, held: Held, event: Event, handler: Handler, error: Exception, attempt: int) -> None:
        consumer = self._consumer
        age = 0.0 if event.time is None else consumer.clock.time() - event.time.timestamp()
        ending = after_failure(
            error, attempt, age, consumer.clock.random(), consumer.rules,
            pauses=handler.pauses, outage=handler.outage(handler.policies or consumer.policies),
        )  # fmt: skip
        if isinstance(ending, Redeliver):
            consumer.counts["redelivered"] += 1
            if ending.pause:
                self._pause(handler, error, ending.delay)
            else:
                reporting.redelivered(consumer, event, error, attempt, ending.delay)
            await self.release(held, refund=not ending.charged)
            if consumer.sequence is not None and held.number is not None:
                await consumer.sequence.tried(event)
            raise Again(ending.delay)
        rejected = isinstance(error, NotRetryable) and consumer.on_rejected is not None
        if rejected and await self._rejected(held, event, error):
            return
        await self._bury(held, event, ending.reason, error, attempt)

    def _pause(self, handler: Handler, error: Exception, delay: float) -> None:
        """Nothing of this handler's need be tried before then. Said once, not by each that runs at the same time."""
        now = self._consumer.clock.monotonic()
        if handler.paused_until <= now:
            handler.pauses += 1
            reporting.paused(self._consumer, handler, error, delay)
        handler.paused_until = max(handler.paused_until, now + delay)

    async def _rejected(self, held: Held, event: Event, error: Exception) -> bool:
        """Tell whoever compensates; True: they have dealt with it, and it is handled."""
        consumer, token = self._consumer, held.token
        assert consumer.on_rejected is not None
        try:
            told = consumer.on_rejected(event, error)
            dealt = bool(await told if isawaitable(told) else told)
        except Exception as trouble:
            reporting.trouble(consumer, "on_rejected raised; the event goes to the dead letters", trouble)
            return False
        if not dealt or token is None:
            return False
        consumer.counts["rejected"] += 1
        await self._complete(event, token, held.number)  # or a redelivery would have it rejected, and undone, once more
        await self._settled(event, held.delivery.topic, token, None)
        held.token = None
        await held.delivery.ack()
        return True

    async def release(self, held: Held, *, refund: bool) -> None:
        """Let go of the claim. If that fails, the lease does it later."""
        token, held.token = held.token, None
        if token is None:
            return
        try:
            await self._consumer.inbox.store.fail(token, refund=refund)
        except Exception as trouble:
            reporting.trouble(self._consumer, "could not release a claim; its lease will", trouble)

    async def _bury(
        self,
        held: Held,
        event: Event,
        reason: str,
        error: BaseException | None,
        attempts: int,
        *,
        behind: str | None = None,
    ) -> None:
        consumer, delivery = self._consumer, held.delivery
        if consumer.dead_letters is None:
            reporting.no_dead_letters(consumer, event, reason, error)
            await self.release(held, refund=False)
            raise Again(consumer.rules.backoff.delay(max(attempts, 1)))
        together = consumer.engine is consumer.dead_letters.engine
        passed = None if reason in _STILL_AWAITED else held.number
        try:
            async with consumer.dead_letters.transaction() as tx:
                letter = await consumer.dead_letters.bury(
                    event, consumer=consumer.name, topic=delivery.topic, reason=reason, error=error,
                    attempts=attempts, behind=behind, tx=tx,
                )  # fmt: skip
                if consumer.dead_letter_topic is not None and behind is None:
                    copy = announced(event, letter.id, reason, consumer.name)
                    await consumer.dead_letters.engine.outbox.append([row_of(copy, consumer.dead_letter_topic)], tx=tx)
                if held.token is not None and consumer.inbox.engine is consumer.dead_letters.engine:
                    await consumer.inbox.store.fail(held.token, tx=tx)
                    held.token = None
                if together and passed is not None and consumer.sequence is not None:
                    await consumer.sequence.skip(event, passed, tx)  # those behind it need not wait for it
                crash_point("bury.before_commit")
        except Exception as trouble:
            # Never logged and dropped: it stays with the broker, and the next try may find the store well again.
            reporting.not_buried(consumer, event, reason, error, trouble)
            consumer.counts["not_buried"] += 1
            await self.release(held, refund=True)
            full = isinstance(trouble, DeadLettersFullError)  # no hurry: somebody must deal with some of them first
            delay = consumer.rules.max_pause if full else consumer.rules.backoff.delay(max(attempts, 1))
            raise Again(delay) from trouble
        crash_point("bury.after_commit")
        if not together and passed is not None and consumer.sequence is not None:
            await consumer.sequence.skip(event, passed)
        await self.release(held, refund=False)
        if letter.known:  # a copy that came late, or we died before we could acknowledge it
            reporting.known(consumer, event, letter.id)
        else:
            consumer.counts["parked" if behind else "dead_lettered"] += 1
            reporting.buried(consumer, event, letter.id, reason, error, attempts)
        if consumer.dead_letter_topic is not None:
            consumer.dead_letters.engine.wakeup.notify("outbox")
        await delivery.ack()
