"""Doing something once, however often it is asked for: claim, do it, complete.

`Idempotency` is what most code needs. Stores, and what stands on one (an inbox, HTTP's Idempotency-Key), use the
protocol itself: `begin` answers `Fresh`, `Duplicate`, `InProgress` or `Mismatch`; `complete`, `fail` and `extend` take
the token of a fresh claim, and do nothing for one that was lost.
"""

from everkeel.idempotency.core import LEASE, RETAIN
from everkeel.idempotency.guard import Claim, Idempotency, Once
from everkeel.idempotency.memory import MemoryIdempotencyStore, MemoryRecords
from everkeel.idempotency.records import (
    Begin,
    Duplicate,
    Fresh,
    InProgress,
    Mismatch,
    Record,
    State,
    StoreStats,
    Token,
)
from everkeel.idempotency.store import IdempotencyStore, SyncIdempotencyStore

__all__ = [
    "LEASE", "RETAIN", "Begin", "Claim", "Duplicate", "Fresh", "Idempotency", "IdempotencyStore", "InProgress",
    "MemoryIdempotencyStore", "MemoryRecords", "Mismatch", "Once", "Record", "State", "StoreStats",
    "SyncIdempotencyStore", "Token",
]  # fmt: skip
