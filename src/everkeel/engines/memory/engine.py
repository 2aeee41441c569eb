"""What the user holds: `MemoryEngine()`."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cached_property
from typing import Any, Self

from everkeel.engines.counts import StoreCounts, counted
from everkeel.engines.memory.outbox import MemoryOutbox
from everkeel.engines.memory.transaction import MemoryTransaction
from everkeel.engines.rows import Capabilities, DeadLetterRow
from everkeel.engines.wakeup import LocalWakeup
from everkeel.runtime.clock import DEFAULT, Clock
from everkeel.runtime.settings import Seconds, seconds


class MemoryEngine:
    """Everything in this process's memory: for tests, and for what may be lost when the process ends.

    Args:
        keep_delivered: Seconds for which delivered events are remembered; a day. 0: forgotten at once.
        clock: Where its time comes from, in place of the default.
    """

    name = "memory"
    capabilities = Capabilities(transactional=True, durable="memory", shared="process", notify=False)

    def __init__(self, *, keep_delivered: Seconds = 86_400.0, clock: Clock | None = None) -> None:
        self.clock = clock or DEFAULT
        self.keep_delivered = seconds(keep_delivered)
        self.lock = threading.RLock()
        """Held while stores change what they keep: never across an await, and never while user code runs."""
        self.dead_letter_rows: dict[str, DeadLetterRow] = {}
        """Given-up events by their id; the outbox buries into it, the dead-letter store reads and changes it."""
        self.wakeup = LocalWakeup(self.clock)
        self.counts = StoreCounts()
        self.outbox = counted(MemoryOutbox(self), "outbox", self.counts)
        """Events on their way out."""

    @cached_property
    def inbox(self) -> Any:
        """What was already handled."""
        from everkeel.engines.memory.inbox import MemoryInbox

        inbox = MemoryInbox(self)
        counted(inbox.sync, "inbox", self.counts)  # which the other face calls
        return inbox

    @cached_property
    def dead_letters(self) -> Any:
        """What was given up on."""
        from everkeel.engines.memory.dead_letters import MemoryDeadLetters

        return counted(MemoryDeadLetters(self), "dead_letter", self.counts)

    @cached_property
    def sagas(self) -> Any:
        """Sagas and where they are."""
        from everkeel.engines.memory.sagas import MemorySagas

        return counted(MemorySagas(self), "saga", self.counts)

    @cached_property
    def sequences(self) -> Any:
        """How far consumers have come in numbered events."""
        from everkeel.engines.memory.sequences import MemorySequences

        return MemorySequences(self)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[MemoryTransaction]:
        """Several writes as one."""
        tx = MemoryTransaction()
        try:
            yield tx
        except BaseException:
            with self.lock:
                tx.rollback()
            raise
        with self.lock:
            tx.commit()

    async def start(self) -> None:
        """Nothing to do."""

    async def close(self) -> None:
        """Nothing to do: what is in memory stays as long as the object."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
