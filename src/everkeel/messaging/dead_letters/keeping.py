"""Writing dead letters and sending them on their way again: what consumers and operators share."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from everkeel.engines.letters import OUTBOX, Change, DeadLetterStore, LetterFilter, NewLetter, Status
from everkeel.engines.protocols import Engine
from everkeel.engines.rows import DeadLetterRow, ErrorInfo, OutboxRow, storable
from everkeel.errors import DeadLettersFullError
from everkeel.messaging.dead_letters import telling
from everkeel.messaging.dead_letters.failure import Redactor, summary
from everkeel.messaging.dead_letters.letter import DeadLetter
from everkeel.messaging.dead_letters.room import Room
from everkeel.messaging.event import Event
from everkeel.messaging.rows import attributes_of, payload_of
from everkeel.runtime.crash import crash_point

WAKEUP = "outbox"
"""The signal that relays wait for."""
_FOLLOWERS_AT_ONCE = 100


class Changed(Exception):  # noqa: N818 - never leaves the package: it rolls a transaction back
    """A letter is not what it was thought to be."""


class Keeping:
    """Dead letters as they are written, settled, and sent again."""

    engine: Engine
    store: DeadLetterStore
    redactor: Redactor
    room: Room | None

    def _seen(self, row: DeadLetterRow) -> DeadLetter:
        return DeadLetter(row, self.redactor)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        """A transaction for a letter and what goes with it; None where the engine has none."""
        if not self.engine.capabilities.transactional:
            yield None
            return
        async with self.engine.transaction() as tx:
            yield tx

    async def bury(
        self,
        event: Event,
        *,
        consumer: str,
        topic: str,
        reason: str,
        error: BaseException | None = None,
        attempts: int = 0,
        behind: str | None = None,
        tx: Any = None,
    ) -> DeadLetter:
        """Keep an event that a consumer gives up on; with `behind`, one that must wait for that letter.

        Writing the same failure twice changes nothing. Where there is no room for another letter, finished ones make
        way; a `DeadLettersFullError` where none is finished: then the event must stay where it is.
        """
        await self._make_room(event, consumer, topic, tx)
        payload, encoding = payload_of(event)
        info = ErrorInfo.of(error)
        letter = NewLetter(
            consumer=consumer,
            topic=topic,
            key=event.key,
            source=event.source,
            event_id=event.id,
            event_type=event.type,
            epoch=event.replay_epoch,
            attributes=attributes_of(event),
            payload=payload,
            encoding=encoding,
            reason=reason,
            error_type=info.type,
            error=storable(self.redactor.text(info.text, event)),
            traceback="" if error is None else storable(self.redactor.text(summary(error), event)),
            attempts=attempts,
            status=Status.PENDING if behind is None else Status.PARKED,
            saga_id=event.saga_id,
            correlation_id=event.correlation_id,
            behind=behind,
            change=Change(actor=consumer, reason=reason),
        )
        return replace(self._seen(await self.store.put(letter, tx=tx)), new=letter.id)

    async def _make_room(self, event: Event, consumer: str, topic: str, tx: Any) -> None:
        room, now = self.room, self.engine.clock.monotonic()
        if room is None or room.takes(consumer, now):
            return
        if not room.is_full(consumer, now):
            count = await self.store.count(LetterFilter(consumer=consumer), tx=tx)
            if count >= room.most:
                change = Change(actor=consumer, reason=f"made room: {room.most} letters are kept")
                count -= await self.store.make_room(consumer, count - room.most + room.step, change, tx=tx)
            if count < room.most:
                room.counted(consumer, count, now)
                return
            room.filled(consumer, now)
        # What comes back from a replay, and a second copy, has its place already: they must not be turned away.
        known = LetterFilter(consumer=consumer, source=event.source, event_id=event.id, topic=topic)
        if not await self.store.count(known, tx=tx):
            raise DeadLettersFullError(consumer, room.most)

    async def settle(self, event: Event, *, consumer: str, topic: str, tx: Any = None) -> None:
        """The event was handled: its letters are resolved, and those parked behind it may follow."""
        settled = await self.store.settle(consumer, event.source, event.id, topic, tx=tx)
        if settled and event.key is not None:
            await self._in(tx, lambda tx: self._release(consumer, topic, str(event.key), tx))
        telling.resolved(consumer, event.id, event.type, settled)

    async def release_followers(self, consumer: str, limit: int = 100) -> int:
        """Let parked events go that have nothing left to wait for; answers how many. Consumers do it by themselves."""
        released = 0
        for topic, key in await self.store.parked_keys(consumer, limit):
            async with self.engine.transaction() as tx:
                released += await self._release(consumer, topic, key, tx)
        if released:
            self.engine.wakeup.notify(WAKEUP)
        return released

    async def _in(self, tx: Any, act: Callable[[Any], Awaitable[object]]) -> None:
        if tx is not None:
            await act(tx)
            return
        async with self.engine.transaction() as own:
            await act(own)
        self.engine.wakeup.notify(WAKEUP)

    async def _release(self, consumer: str, topic: str, key: str, tx: Any) -> int:
        rows = await self.store.parked(consumer, topic, key, limit=_FOLLOWERS_AT_ONCE, tx=tx)
        released = 0
        for row in rows:  # one by one: their order in the outbox is the order in which they came
            change = Change(actor=consumer, reason="what it waited for is done")
            try:
                if not (epoch := await self._send(row, change, tx)):
                    break  # it is in the outbox for somebody else; the next look at parked keys finds it
            except Changed:
                break  # somebody else lets them go at this moment
            released += 1
            telling.replayed(row, change, epoch)
        return released

    # ------------------------------------------------------------------ sending them again

    async def _send(
        self, row: DeadLetterRow, change: Change, tx: Any, *, edited: str | None = None, key: str | None = None
    ) -> int:
        """Move a letter to `REPLAYED` and its event into the outbox; answers the epoch, 0 where the outbox must be
        waited for. `Changed`: somebody else was faster, and the transaction must not be committed.

        With `key` it goes behind the events of that key, and those that waited behind it in its old one may go.
        """
        epoch = await self.store.next_epoch(row, tx=tx)
        if epoch is None:
            return 0
        before, old = Status(row.status), row.key
        if key not in (None, old):
            change = replace(change, reason=f"{change.reason} (key {old!r} -> {key!r})".strip())
        moved = await self.store.transition(
            row.id, before, Status.REPLAYED, change, version=row.version, key=key, tx=tx
        )
        if moved is None:
            raise Changed
        attributes: dict[str, Any] = json.loads(row.attributes)
        attributes["replayepoch"] = epoch
        if row.consumer != OUTBOX:
            attributes["replayfor"] = row.consumer
        payload, encoding = (row.payload, row.encoding) if edited is None else (edited, None)
        if edited is not None:
            attributes["datacontenttype"] = "application/json"
        lane = key or old
        if lane is not None:
            attributes["partitionkey"] = lane  # also where an earlier replay, which got lost, had changed it
        text = json.dumps(attributes, ensure_ascii=False, separators=(",", ":"))
        crash_point("replay.before_append")
        again = OutboxRow(row.event_id, row.source, row.event_type, row.topic, lane, text, payload, encoding, epoch)
        await self.engine.outbox.append([again], tx=tx)
        if old is not None and lane != old and row.consumer != OUTBOX:
            await self._release(row.consumer, row.topic, old, tx)
        crash_point("replay.before_commit")
        return epoch
