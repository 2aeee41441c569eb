"""Idempotency records in the memory of this process: for tests, and for services of one process.

Several processes, and a restart, need a store that they share: see `everkeel.engines`.
"""

from __future__ import annotations

import heapq
import threading
from collections import OrderedDict
from secrets import token_hex
from typing import Any, TypeAlias

from everkeel.errors import ConfigError, IdempotencyFullError
from everkeel.idempotency import core
from everkeel.idempotency.core import LEASE, RETAIN
from everkeel.idempotency.records import Begin, Fresh, Record, State, StoreStats, Token
from everkeel.runtime.clock import DEFAULT, Clock
from everkeel.runtime.settings import Seconds

_Key: TypeAlias = tuple[str, str]
_SWEPT_AT_ONCE = 8  # more than the one record a claim adds: the backlog shrinks, and no caller pays for all of it


class MemoryRecords:
    """The records, for callers without an event loop. Safe across threads; `MemoryIdempotencyStore` is the async face.

    Bounded: at `max_records`, records over their time go first, then those of failed work, oldest first (what is
    lost with them is how often they were tried). Work in progress and completed work that is still retained are never
    dropped: if there is nothing else, `begin` refuses with `IdempotencyFullError`, which says when to come back.
    """

    def __init__(self, *, max_records: int = 100_000, clock: Clock | None = None) -> None:
        if isinstance(max_records, bool) or not isinstance(max_records, int) or max_records < 1:
            raise ConfigError("idempotency", "max_records", "must be a whole number of at least 1", repr(max_records))
        self.max_records = max_records
        self._clock = clock or DEFAULT
        self._lock = threading.Lock()  # never held while anything but a dictionary is touched
        self._records: dict[_Key, Record] = {}
        self._due: list[tuple[float, str, str]] = []  # one entry per record: when to look whether it is over its time
        self._failed: OrderedDict[_Key, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._records)

    def begin(
        self,
        scope: str,
        key: str,
        *,
        fingerprint: bytes | None = None,
        lease: Seconds = LEASE,
        retain: Seconds = RETAIN,
        epoch: int = 0,
        tx: Any = None,
    ) -> Begin:
        _refuse(tx)
        wanted = core.request(
            scope, key, fingerprint=fingerprint, lease=lease, retain=retain, epoch=epoch, nonce=token_hex(16)
        )
        with self._lock:
            now = self._clock.monotonic()
            record = self._records.get((scope, key))
            answer, after = core.begin(record, wanted, now)
            if isinstance(answer, Fresh) and after is not None:
                if record is None:
                    self._make_room(now)
                self._keep(after)
                if record is None:
                    self._watch(after, now)
            self._sweep(now, _SWEPT_AT_ONCE)
            return answer

    def complete(self, token: Token, result: bytes | None = None, *, tx: Any = None) -> bool:
        _refuse(tx)
        if result is not None and not isinstance(result, bytes):
            raise TypeError(f"the result to keep must be bytes or None, not {type(result).__name__}")
        with self._lock:
            record = self._records.get((token.scope, token.key))
            return self._keep(core.complete(record, token, result, self._clock.monotonic()))

    def fail(self, token: Token, *, refund: bool = False, tx: Any = None) -> bool:
        _refuse(tx)
        with self._lock:
            record = self._records.get((token.scope, token.key))
            return self._keep(core.fail(record, token, self._clock.monotonic(), refund=refund))

    def extend(self, token: Token, lease: Seconds = LEASE) -> bool:
        seconds = core.length("lease", lease)
        with self._lock:
            record = self._records.get((token.scope, token.key))
            return self._keep(core.extend(record, token, seconds, self._clock.monotonic()))

    def get(self, scope: str, key: str) -> Record | None:
        with self._lock:
            record = self._records.get((scope, key))
            return None if record is None or self._clock.monotonic() >= record.forgotten_at else record

    def forget(self, scope: str, key: str, *, expect: State | None = None) -> bool:
        with self._lock:
            record = self._records.get((scope, key))
            if record is None or (expect is not None and record.state is not expect):
                return False
            self._drop((scope, key))
            return True

    def purge(self, limit: int = 1000) -> int:
        with self._lock:
            return self._sweep(self._clock.monotonic(), limit)

    def stats(self, scope: str | None = None) -> StoreStats:
        with self._lock:
            now = self._clock.monotonic()
            counts = dict.fromkeys(State, 0)
            for record in self._records.values():
                if now < record.forgotten_at and scope in (None, record.scope):
                    counts[record.state] += 1
        return StoreStats(counts[State.IN_PROGRESS], counts[State.COMPLETED], counts[State.FAILED])

    # ------------------------------------------------------------------ under the lock

    def _keep(self, record: Record | None) -> bool:
        if record is None:
            return False
        key = (record.scope, record.key)
        self._records[key] = record
        if record.state is State.FAILED:
            self._failed[key] = None
        else:
            self._failed.pop(key, None)
        return True

    def _watch(self, record: Record, now: float) -> None:
        """Look again when it could be over its time at the earliest: work in progress may be completed this moment."""
        heapq.heappush(self._due, self._look(record, now))
        if len(self._due) > 2 * len(self._records) + 64:  # mostly of records that were dropped before their time
            self._due = [self._look(one, now) for one in self._records.values()]
            heapq.heapify(self._due)

    @staticmethod
    def _look(record: Record, now: float) -> tuple[float, str, str]:
        at = now + record.retain if record.state is State.IN_PROGRESS else record.forgotten_at
        return at, record.scope, record.key

    def _drop(self, key: _Key) -> None:
        del self._records[key]
        self._failed.pop(key, None)

    def _sweep(self, now: float, limit: int) -> int:
        """Drop what is over its time. An entry that came up too early goes back with the time its record has now."""
        dropped = 0
        while dropped < limit and self._due and self._due[0][0] <= now:
            _, scope, name = heapq.heappop(self._due)
            record = self._records.get((scope, name))
            if record is None:
                continue  # forgotten by hand, or dropped at the cap
            if record.forgotten_at <= now:
                self._drop((scope, name))
                dropped += 1
            else:
                heapq.heappush(self._due, self._look(record, now))
        return dropped

    def _make_room(self, now: float) -> None:
        if len(self._records) < self.max_records or self._sweep(now, 1):
            return
        if self._failed:
            self._drop(next(iter(self._failed)))
            return
        soonest = self._due[0][0] - now if self._due else None  # a bound from below: one of them may be over then
        raise IdempotencyFullError("memory", soonest, self.max_records)


def _refuse(tx: Any) -> None:
    if tx is not None:
        raise TypeError("the memory store of idempotency has no transactions: leave tx out")


class MemoryIdempotencyStore:
    """Idempotency records in memory, bounded; `sync` is the same store for code without an event loop.

    >>> import asyncio
    >>> from everkeel.idempotency import Duplicate, Fresh
    >>> store = MemoryIdempotencyStore()
    >>> async def twice():
    ...     first = await store.begin("payments", "order-7")
    ...     assert isinstance(first, Fresh)
    ...     await store.complete(first.token, b"receipt 1")
    ...     return await store.begin("payments", "order-7")
    >>> asyncio.run(twice())
    Duplicate(result=b'receipt 1')
    """

    def __init__(self, *, max_records: int = 100_000, clock: Clock | None = None) -> None:
        self.sync = MemoryRecords(max_records=max_records, clock=clock)

    def __len__(self) -> int:
        return len(self.sync)

    async def begin(
        self,
        scope: str,
        key: str,
        *,
        fingerprint: bytes | None = None,
        lease: Seconds = LEASE,
        retain: Seconds = RETAIN,
        epoch: int = 0,
        tx: Any = None,
    ) -> Begin:
        return self.sync.begin(scope, key, fingerprint=fingerprint, lease=lease, retain=retain, epoch=epoch, tx=tx)

    async def complete(self, token: Token, result: bytes | None = None, *, tx: Any = None) -> bool:
        return self.sync.complete(token, result, tx=tx)

    async def fail(self, token: Token, *, refund: bool = False, tx: Any = None) -> bool:
        return self.sync.fail(token, refund=refund, tx=tx)

    async def extend(self, token: Token, lease: Seconds = LEASE) -> bool:
        return self.sync.extend(token, lease)

    async def get(self, scope: str, key: str) -> Record | None:
        return self.sync.get(scope, key)

    async def forget(self, scope: str, key: str, *, expect: State | None = None) -> bool:
        return self.sync.forget(scope, key, expect=expect)

    async def purge(self, limit: int = 1000) -> int:
        return self.sync.purge(limit)

    async def stats(self, scope: str | None = None) -> StoreStats:
        return self.sync.stats(scope)
