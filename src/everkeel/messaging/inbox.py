"""What this consumer has handled: idempotency by event, in the same transaction as the effect where there is one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

from everkeel.engines.protocols import Engine
from everkeel.engines.rows import inbox_key
from everkeel.errors import ClaimLostError, ConfigError
from everkeel.idempotency import core
from everkeel.idempotency.guard import Claim, Idempotency, Once
from everkeel.idempotency.records import State, Token
from everkeel.idempotency.store import IdempotencyStore
from everkeel.messaging.event import Event
from everkeel.runtime.clock import Clock
from everkeel.runtime.crash import crash_point
from everkeel.runtime.settings import Seconds


class TransactionClaim(Claim):
    """A claim whose work is done in a transaction: `tx` is None where there is nothing to do."""

    __slots__ = ("tx",)

    def __init__(self, claim: Claim, tx: Any) -> None:
        super().__init__(claim.answer)
        self.tx = tx


class Inbox(Idempotency):
    """What a consumer has handled, by the events' source and id; other consumers of the same events do not matter.

    Use it alone where you have a consumer of your own; `everkeel.messaging.Consumer` has one inside.

    Args:
        consumer: Who handles the events; the scope of the keys.
        engine: Where records are kept; a store of idempotency records will do as well, without transactions.
        lease: How long a crashed handler keeps others waiting; extended while one is at work.
        retain: How long a handled event is remembered. At least as long as dead letters are kept.

    >>> import asyncio
    >>> from everkeel.engines import MemoryEngine
    >>> from everkeel.messaging import Event, Inbox
    >>> inbox = Inbox("billing", MemoryEngine())
    >>> placed = Event("order.placed", {"order": 7}, source="/orders", id="e-1")
    >>> async def handle(event):
    ...     async with inbox.once(event) as claim:
    ...         return "billed" if claim.fresh else "seen before"
    >>> asyncio.run(handle(placed)), asyncio.run(handle(placed))
    ('billed', 'seen before')
    """

    def __init__(
        self,
        consumer: str,
        engine: Engine | IdempotencyStore,
        *,
        lease: Seconds = core.LEASE,
        retain: Seconds = core.RETAIN,
        heartbeat: bool = True,
        clock: Clock | None = None,
    ) -> None:
        store = getattr(engine, "inbox", engine)
        if not isinstance(store, IdempotencyStore):
            raise ConfigError("inbox", "engine", "must be an engine or a store of idempotency records", repr(engine))
        self.engine: Engine | None = engine if isinstance(engine, Engine) else None
        clock = clock or getattr(engine, "clock", None)
        super().__init__(consumer, store, lease=lease, retain=retain, heartbeat=heartbeat, clock=clock)

    @property
    def transactional(self) -> bool:
        """Can an effect and the word "handled" be committed together?"""
        return self.engine is not None and self.engine.capabilities.transactional

    def once(self, key: str | Event, *, fingerprint: bytes | None = None, epoch: int | None = None) -> Once:
        """A block for the work of one event, or of any key: `async with inbox.once(event) as claim: ...`."""
        if isinstance(key, Event):
            fingerprint = fingerprint_of(key) if fingerprint is None else fingerprint
            epoch = key.replay_epoch if epoch is None else epoch
            key = key_of(key)
        return super().once(key, fingerprint=fingerprint, epoch=epoch or 0)

    @asynccontextmanager
    async def transaction(self, event: Event) -> AsyncIterator[TransactionClaim]:
        """A block whose effects, made in `claim.tx`, are committed together with the record: exactly once.

        async with inbox.transaction(event) as claim:
            if claim.fresh:
                await claim.tx.execute("UPDATE accounts ...")
        """
        if self.engine is None or not self.transactional:
            raise TypeError(f"inbox {self.scope!r} has no engine with transactions: use once(), which is at least once")
        block = self.once(event)
        claim = await block.__aenter__()
        try:
            if claim.token is None:
                yield TransactionClaim(claim, None)
            else:
                async with self.engine.transaction() as tx:
                    given = TransactionClaim(claim, tx)
                    yield given
                    await self.complete_in(tx, claim.token, given.result)
                block.ended()
        except BaseException as error:
            await block.__aexit__(type(error), error, error.__traceback__)
            raise
        await block.__aexit__(None, None, None)

    async def complete_in(self, tx: Any, token: Token, result: bytes | None = None) -> None:
        """Complete a claim within a transaction; a `ClaimLostError`, which must roll it back, where it was lost."""
        crash_point("consumer.after_effect")
        if not await self.store.complete(token, result, tx=tx):
            raise ClaimLostError(token.scope, token.key)
        crash_point("consumer.before_commit")

    async def committed(self, token: Token) -> bool:
        """Was this very claim completed? Asked where a commit gave no answer, or a claim seems to be lost."""
        record = await self.store.get(token.scope, token.key)
        return record is not None and record.state is State.COMPLETED and record.nonce == token.nonce


def key_of(event: Event) -> str:
    """The key of an event: its source and its id, which only together identify it.

    >>> key_of(Event("order.placed", source="/orders", id="e-1"))
    '["/orders","e-1"]'
    """
    return inbox_key(event.source, event.id)


def fingerprint_of(event: Event) -> bytes:
    """A digest of what an event says: the same id with another one is a mistake of its producer's."""
    return sha256(event.type.encode() + b"\0" + (event.body or b"")).digest()
