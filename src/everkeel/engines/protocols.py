"""What an engine must do: small protocols, each with a contract suite in `everkeel.testing.contracts`.

Every method is atomic on its own. `tx` is the caller's own transaction, where the engine can take part in it. Times
are lengths in seconds; the moment they are measured from is the store's own, never the caller's clock.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol, Self, runtime_checkable

from everkeel.engines.rows import Capabilities, Claimed, ErrorInfo, Lease, OutboxRow, OutboxStats, Retry
from everkeel.runtime.clock import Clock


class OutboxStore(Protocol):
    """Events on their way out. A lease's token fences every write that ends or changes a claim."""

    async def append(self, rows: Sequence[OutboxRow], *, delay: float = 0.0, tx: Any = None) -> None:
        """Keep rows, in their order. The same event for the same topic a second time is not kept again, unless its
        epoch is higher: then it takes its old place and is delivered once more, and those parked behind it follow."""
        ...

    def append_sync(self, rows: Sequence[OutboxRow], *, delay: float = 0.0, tx: Any = None) -> None:
        """The same for code without an event loop."""
        ...

    async def claim(self, owner: str, limit: int, lease: float, *, without: Collection[str] = ()) -> list[Claimed]:
        """Take up to `limit` rows that are due, none of the topics `without`.

        Of a key only what stands at its front: its first row and those right behind it, in order, and nothing while
        an earlier row of the key is leased, delayed or dead-lettered. Claims that ran out are claimable again.
        """
        ...

    async def extend(self, leases: Sequence[Lease], seconds: float) -> frozenset[int]:
        """Hold on for `seconds` from now; answers the seqs still held."""
        ...

    async def ack(self, leases: Sequence[Lease]) -> frozenset[int]:
        """Mark as delivered; answers the seqs that were still held. The others are somebody else's, untouched."""
        ...

    async def retry(self, retries: Sequence[Retry]) -> frozenset[int]:
        """Give rows back, due after their delay."""
        ...

    async def release(self, leases: Sequence[Lease]) -> frozenset[int]:
        """Give rows back as if they had never been claimed."""
        ...

    async def bury(
        self, lease: Lease, error: ErrorInfo, *, reason: str, consumer: str = "outbox", park: bool = True
    ) -> str | None:
        """Move a row to the dead letters, atomically; answers the dead letter's id, or None if the lease was lost.

        With `park`, later rows of its key wait until the dead letter is replayed or discarded.
        """
        ...

    async def discard(self, source: str, id: str, topic: str, *, tx: Any = None) -> bool:
        """Forget a buried row and let those parked behind it go; False if there is none."""
        ...

    async def park(self, limit: int) -> int:
        """Set aside up to `limit` rows that came in behind a buried one, so that claims need not step over them."""
        ...

    async def stats(self) -> OutboxStats:
        """What is in there, counted now."""
        ...

    async def purge(self, older_than: float, limit: int) -> int:
        """Delete up to `limit` rows delivered longer ago than that; answers how many. Never one that waits."""
        ...


class Wakeup(Protocol):
    """A hint that there is work. Losing every one of them costs no more than the time until the next poll."""

    def notify(self, topic: str) -> None:
        """Wake who waits, from any thread, without blocking; other processes are told soon after."""
        ...

    async def wait(self, topic: str, timeout: float) -> bool:
        """Wait for a hint, at most `timeout` seconds; answers whether there was one. May return early."""
        ...


@runtime_checkable
class Engine(Protocol):
    """Where state is kept. The stores of inbox, dead letters and sagas are attributes of the same engine."""

    name: str
    capabilities: Capabilities
    clock: Clock

    @property
    def outbox(self) -> OutboxStore:
        """Events on their way out."""
        ...

    @property
    def wakeup(self) -> Wakeup:
        """The signal."""
        ...

    def transaction(self) -> AbstractAsyncContextManager[Any]:
        """A transaction of the engine's own, to be given to several stores as `tx`."""
        ...

    async def start(self) -> None:
        """Connect, and bring the schema up to date."""
        ...

    async def close(self) -> None:
        """Let go of connections and threads."""
        ...

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *error: object) -> None: ...
