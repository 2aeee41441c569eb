"""Sagas that are kept encoded: a codec of yours, around any store. What the store itself looks for stays readable: id,
type, state, cause, step, correlation and moments. What was written before there was a codec is read as it is."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from everkeel.engines.sagas import NewSaga, SagaChange, SagaFilter, SagaRow, SagaRowPage, SagaStore, SagaTypeStats
from everkeel.runtime.trouble import report
from everkeel.sagas.record import CODED

T = TypeVar("T", NewSaga, SagaChange)


class Codec(Protocol):
    """Turns a document into another text and back. It is called from the event loop, for every transition: be quick."""

    def encode(self, text: str) -> str:
        """What is kept."""
        ...

    def decode(self, text: str) -> str:
        """What it was; any exception where it cannot be told. A key that was retired must still be known here."""
        ...


def store_of(engine: Any, codec: Codec | None) -> SagaStore:
    """Where an engine keeps its sagas, with a codec around it if there is one."""
    store: SagaStore = engine.sagas
    return store if codec is None else Coded(store, codec)


class Coded:
    """A `SagaStore` whose documents are encoded."""

    def __init__(self, store: SagaStore, codec: Codec) -> None:
        self._store, self._codec = store, codec

    def _in(self, one: T) -> T:
        if one.document.startswith(CODED):
            return one  # it could not be decoded here, and goes back as it was
        return replace(one, document=CODED + self._codec.encode(one.document))

    def _out(self, row: SagaRow) -> SagaRow:
        if not row.document.startswith(CODED):
            return row
        try:
            return replace(row, document=self._codec.decode(row.document.removeprefix(CODED)))
        except Exception as error:
            # Left as it is: whoever reads it says which saga it is, and parks that one. The others must not suffer.
            report(f"saga {row.id!r} could not be decoded", error)
            return row

    async def create(self, saga: NewSaga, *, tx: Any = None) -> tuple[SagaRow, bool]:
        row, created = await self._store.create(self._in(saga), tx=tx)
        return self._out(row), created

    async def save(self, change: SagaChange, *, tx: Any = None) -> int | None:
        return await self._store.save(self._in(change), tx=tx)

    async def write(
        self, new: Sequence[NewSaga], changes: Sequence[SagaChange]
    ) -> tuple[list[tuple[SagaRow, bool]], list[int | None]]:
        created, saved = await self._store.write([self._in(one) for one in new], [self._in(one) for one in changes])
        return [(self._out(row), is_new) for row, is_new in created], saved

    async def load(self, id: str, *, tx: Any = None) -> SagaRow | None:
        row = await self._store.load(id, tx=tx)
        return None if row is None else self._out(row)

    async def claim_due(
        self, owner: str, limit: int, lease: float, *,
        known: Collection[str] | None = None, beside: Collection[str] | None = None, overdue: float = 0.0,
    ) -> list[SagaRow]:  # fmt: skip
        rows = await self._store.claim_due(owner, limit, lease, known=known, beside=beside, overdue=overdue)
        return [self._out(row) for row in rows]

    async def extend(self, owner: str, ids: Collection[str], lease: float) -> Mapping[str, int]:
        return await self._store.extend(owner, ids, lease)

    async def held(self, owner: str, ids: Collection[str]) -> Mapping[str, int]:
        return await self._store.held(owner, ids)

    async def query(self, wanted: SagaFilter, *, limit: int, cursor: str | None = None) -> SagaRowPage:
        return await self._store.query(wanted, limit=limit, cursor=cursor)  # lists show nothing of the documents

    async def count(self, wanted: SagaFilter) -> int:
        return await self._store.count(wanted)

    async def stats(self) -> Mapping[str, SagaTypeStats]:
        return await self._store.stats()

    async def purge(self, older_than: float, limit: int) -> int:
        return await self._store.purge(older_than, limit)
