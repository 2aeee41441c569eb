"""What a store of idempotency records does. Every method is atomic; the store's own clock decides.

`everkeel.testing.contracts` has the tests that a store must pass, also one of yours.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from everkeel.idempotency.core import LEASE, RETAIN
from everkeel.idempotency.records import Begin, Record, State, StoreStats, Token
from everkeel.runtime.settings import Seconds


@runtime_checkable
class IdempotencyStore(Protocol):
    """Claim, complete, fail.

    `tx` is a transaction of the same database, where the store has one: then what is done in it and the word
    "completed" are committed together, or neither is. A store without transactions refuses one.

    >>> from everkeel.idempotency import MemoryIdempotencyStore
    >>> isinstance(MemoryIdempotencyStore(), IdempotencyStore)
    True
    """

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
        """May the work of this key be done now? `Fresh` is a claim for `lease` seconds, and counts as a try."""
        ...

    async def complete(self, token: Token, result: bytes | None = None, *, tx: Any = None) -> bool:
        """It is done: suppress it for `retain` seconds. False: the claim was lost, and nothing has changed."""
        ...

    async def fail(self, token: Token, *, refund: bool = False, tx: Any = None) -> bool:
        """It is not done: let the next one run. `refund`: do not count this try. False: the claim was lost."""
        ...

    async def extend(self, token: Token, lease: Seconds = LEASE) -> bool:
        """Still at it: hold the claim for `lease` seconds from now. False: it was lost."""
        ...

    async def get(self, scope: str, key: str) -> Record | None:
        """What is known about a key; None where that is nothing, or too old to count."""
        ...

    async def forget(self, scope: str, key: str, *, expect: State | None = None) -> bool:
        """Let a key run again as if it had never been seen. `expect`: only if it is in this state."""
        ...

    async def purge(self, limit: int = 1000) -> int:
        """Delete up to `limit` records that are over their time; answers how many."""
        ...

    async def stats(self, scope: str | None = None) -> StoreStats:
        """How many records there are that still count."""
        ...


class SyncIdempotencyStore(Protocol):
    """The same for code without an event loop. An asynchronous store offers its own as `store.sync`."""

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
        """See `IdempotencyStore.begin`; so for the others."""
        ...

    def complete(self, token: Token, result: bytes | None = None, *, tx: Any = None) -> bool: ...

    def fail(self, token: Token, *, refund: bool = False, tx: Any = None) -> bool: ...

    def extend(self, token: Token, lease: Seconds = LEASE) -> bool: ...

    def get(self, scope: str, key: str) -> Record | None: ...

    def forget(self, scope: str, key: str, *, expect: State | None = None) -> bool: ...

    def purge(self, limit: int = 1000) -> int: ...

    def stats(self, scope: str | None = None) -> StoreStats: ...
