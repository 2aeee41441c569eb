"""The outbox in memory: the lease queue, with a lock and the engine's clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from everkeel.engines.burying import new_letter
from everkeel.engines.memory.queue import BURIED, DELIVERED, PARKED, Entry, LeaseQueue
from everkeel.engines.memory.transaction import MemoryTransaction
from everkeel.engines.rows import Claimed, DeadLetterRow, ErrorInfo, Lease, OutboxRow, OutboxStats, Retry
from everkeel.errors import ConfigError

if TYPE_CHECKING:
    from everkeel.engines.memory.engine import MemoryEngine


class MemoryOutbox:
    """An `OutboxStore` that lives as long as its process."""

    def __init__(self, engine: MemoryEngine) -> None:
        self._engine = engine
        self._queue: LeaseQueue[OutboxRow] = LeaseQueue()
        self._known: dict[tuple[str, str, str], Entry[OutboxRow]] = {}

    async def append(self, rows: Sequence[OutboxRow], *, delay: float = 0.0, tx: Any = None) -> None:
        self.append_sync(rows, delay=delay, tx=tx)

    def append_sync(self, rows: Sequence[OutboxRow], *, delay: float = 0.0, tx: Any = None) -> None:
        if tx is None:
            self._append(rows, delay)
        else:
            _ours(tx).on_commit(lambda: self._append(rows, delay))

    def _append(self, rows: Sequence[OutboxRow], delay: float) -> None:
        now = self._engine.clock.time()
        with self._engine.lock:
            for row in rows:
                identity = (row.source, row.id, row.topic)
                known = self._known.get(identity)
                again = known is not None and row.epoch > known.item.epoch and known.state in (DELIVERED, BURIED)
                if known is not None and again and row.key != known.key:
                    self._drop(known)  # it leaves its line, and goes to the end of the other one
                    known = None
                if known is None:
                    self._known[identity] = self._queue.append(row, row.topic, row.key, now, delay)
                elif again:
                    self._queue.revive(known, row, now, delay)

    def known(self, source: str, id: str, topic: str) -> Entry[OutboxRow] | None:
        """What is kept of an event, delivered or not."""
        return self._known.get((source, id, topic))

    def behind(self, topic: str, key: str, place: Entry[OutboxRow] | None, since: float) -> Sequence[Entry[OutboxRow]]:
        """What came after an entry in its key; without one, what was written after a moment."""
        return [
            entry
            for entry in self._queue.entries()
            if (entry.topic, entry.key) == (topic, key)
            and (entry.created_at > since if place is None else entry.seq > place.seq)
        ]

    async def claim(self, owner: str, limit: int, lease: float, *, without: Collection[str] = ()) -> list[Claimed]:
        now = self._engine.clock.time()
        with self._engine.lock:
            taken = self._queue.claim(now, limit, lease, uuid4().hex, without)
            return [Claimed(entry.item, held, entry.failures, now - entry.created_at) for entry, held in taken]

    async def extend(self, leases: Sequence[Lease], seconds: float) -> frozenset[int]:
        with self._engine.lock:
            return self._queue.extend(leases, self._engine.clock.time(), seconds)

    async def ack(self, leases: Sequence[Lease]) -> frozenset[int]:
        now, keep = self._engine.clock.time(), self._engine.keep_delivered
        with self._engine.lock:
            delivered = [entry for lease in leases if (entry := self._queue.deliver(lease, now))]
            if not keep:
                for entry in delivered:
                    self._forget(entry)
        return frozenset(entry.seq for entry in delivered)

    async def retry(self, retries: Sequence[Retry]) -> frozenset[int]:
        now = self._engine.clock.time()
        with self._engine.lock:
            return frozenset(
                retry.lease.seq
                for retry in retries
                if self._queue.give_back(
                    retry.lease,
                    now + retry.delay,
                    counted=retry.counted,
                    error=f"{retry.error.type}: {retry.error.text}",
                )
            )

    async def release(self, leases: Sequence[Lease]) -> frozenset[int]:
        with self._engine.lock:
            return frozenset(lease.seq for lease in leases if self._queue.give_back(lease, None, counted=False))

    async def bury(
        self, lease: Lease, error: ErrorInfo, *, reason: str, consumer: str = "outbox", park: bool = True
    ) -> str | None:
        async with self._engine.transaction() as tx:
            with self._engine.lock:
                entry = self._queue.held(lease)
                if entry is None:
                    return None
            letter = new_letter(entry.item, error, reason=reason, consumer=consumer, attempts=entry.attempts)
            written: DeadLetterRow = await self._engine.dead_letters.put(letter, tx=tx)
            tx.on_commit(lambda: self._bury(entry, park))
        return written.id

    def _bury(self, entry: Entry[OutboxRow], park: bool) -> None:
        with self._engine.lock:
            self._queue.bury(entry, park=park)
            if entry.state != BURIED:
                self._known.pop((entry.item.source, entry.item.id, entry.item.topic), None)

    async def discard(self, source: str, id: str, topic: str, *, tx: Any = None) -> bool:
        with self._engine.lock:
            entry = self._known.get((source, id, topic))
            if entry is None or entry.state != BURIED:
                return False
        if tx is None:
            self._drop(entry)
        else:
            _ours(tx).on_commit(lambda: self._drop(entry))
        return True

    def _drop(self, entry: Entry[OutboxRow]) -> None:
        with self._engine.lock:
            self._forget(entry)
            if entry.key is not None:
                self._queue.unpark(entry.topic, entry.key)

    def _forget(self, entry: Entry[OutboxRow]) -> None:
        self._queue.remove(entry)
        self._known.pop((entry.item.source, entry.item.id, entry.item.topic), None)

    async def park(self, limit: int) -> int:
        with self._engine.lock:
            return self._queue.park(limit)

    async def stats(self) -> OutboxStats:
        now = self._engine.clock.time()
        with self._engine.lock:
            pending = list(self._queue.pending())
            parked = sum(entry.state == PARKED for entry in self._queue.entries())
        return OutboxStats(
            depth=len(pending),
            leased=sum(entry.leased(now) for entry in pending),
            delayed=sum(entry.available_at > now for entry in pending),
            parked=parked,
            oldest_age=max((now - entry.created_at for entry in pending), default=0.0),
            by_topic=Counter(entry.topic for entry in pending),
        )

    async def purge(self, older_than: float, limit: int) -> int:
        before = self._engine.clock.time() - older_than
        with self._engine.lock:
            old = [e for e in self._queue.entries() if e.state == DELIVERED and e.delivered_at < before][:limit]
            for entry in old:
                self._forget(entry)
        return len(old)


def _ours(tx: object) -> MemoryTransaction:
    if not isinstance(tx, MemoryTransaction):
        raise ConfigError("tx", None, "must come from MemoryEngine.transaction()", type(tx).__qualname__)
    return tx
