"""How far consumers have come in numbered events, in memory."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from everkeel.engines.memory.transaction import MemoryTransaction
from everkeel.engines.sequences import Reached
from everkeel.errors import ConfigError

if TYPE_CHECKING:
    from everkeel.engines.memory.engine import MemoryEngine

_Key: TypeAlias = tuple[str, str, str]


class MemorySequences:
    """A `SequenceStore` that lives as long as its process; made by `MemoryEngine.sequences`."""

    def __init__(self, engine: MemoryEngine) -> None:
        self._clock = engine.clock
        self._lock = threading.Lock()
        self._reached: dict[_Key, Reached] = {}
        self._since: dict[_Key, float] = {}  # when the first of those came that are held
        self._changing: set[_Key] = set()  # belongs to an open transaction, as a row of a database would

    async def reached(self, consumer: str, source: str, key: str) -> Reached | None:
        with self._lock:
            found, since = self._reached.get((consumer, source, key)), self._since.get((consumer, source, key))
        if found is None or since is None:
            return found
        return replace(found, held_for=self._clock.monotonic() - since)

    async def hold(self, consumer: str, source: str, key: str, number: int, before: int) -> None:
        row = (consumer, source, key)
        with self._lock:
            found = self._reached.get(row, Reached(before))
            if number > found.number:
                held = number if found.held is None else min(found.held, number)
                self._reached[row] = replace(found, held=held)
                self._since.setdefault(row, self._clock.monotonic())

    async def tried(self, consumer: str, source: str, key: str) -> None:
        row = (consumer, source, key)
        with self._lock:
            if row in self._since:
                self._since[row] = self._clock.monotonic()

    async def advance(
        self, consumer: str, source: str, key: str, number: int, *, skip: bool = False, tx: Any = None
    ) -> bool:
        row = (consumer, source, key)
        if tx is not None and not isinstance(tx, MemoryTransaction):
            raise ConfigError("tx", None, "must come from MemoryEngine.transaction()", type(tx).__qualname__)
        with self._lock:
            found = self._reached.get(row)
            if row in self._changing:
                return False
            if found is not None and not (found.number < number if skip else found.number == number - 1):
                return False
            if tx is None:
                self._set(row, number)
                return True
            self._changing.add(row)
        tx.on_commit(lambda: self._end(row, number))
        tx.on_rollback(lambda: self._end(row, None))
        return True

    def _set(self, row: _Key, number: int) -> None:
        self._reached[row] = Reached(number)
        self._since.pop(row, None)

    def _end(self, row: _Key, number: int | None) -> None:
        with self._lock:
            self._changing.discard(row)
            if number is not None:
                self._set(row, number)
