"""Group commit: transitions of many sagas that are ready together are written in one transaction.

Each is still a compare-and-set of its own. While one batch is being written the next gathers, so that a busy process
commits a few times per second and an idle one at once.
"""

from __future__ import annotations

import asyncio
from typing import Any

from everkeel.engines.sagas import NewSaga, SagaChange, SagaRow, SagaStore

MOST = 500
"""Transitions in one transaction, at most: others want to write too."""


class Writer:
    """Writes for all sagas that are driven on one event loop."""

    def __init__(self, store: SagaStore) -> None:
        self._store = store
        self._waiting: list[tuple[NewSaga | SagaChange, asyncio.Future[Any]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def create(self, saga: NewSaga) -> tuple[SagaRow, bool]:
        """As `SagaStore.create`."""
        answer: tuple[SagaRow, bool] = await self._asked(saga)
        return answer

    async def save(self, change: SagaChange) -> int | None:
        """As `SagaStore.save`."""
        answer: int | None = await self._asked(change)
        return answer

    def _asked(self, what: NewSaga | SagaChange) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((what, future))
        if self._writing is None:
            self._writing = loop.create_task(self._write())
        return future

    async def _write(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
                await self._write_batch(batch)
        finally:
            self._writing = None

    async def _write_batch(self, batch: list[tuple[NewSaga | SagaChange, asyncio.Future[Any]]]) -> None:
        new = [(what, future) for what, future in batch if isinstance(what, NewSaga)]
        changes = [(what, future) for what, future in batch if isinstance(what, SagaChange)]
        try:
            created, saved = await self._store.write([what for what, _ in new], [what for what, _ in changes])
        except BaseException as error:
            if len(batch) > 1 and isinstance(error, Exception) and not _away(error):
                for one in batch:  # somebody in it cannot be written, and the others must not suffer for it
                    await self._write_batch([one])
                return
            for _, future in batch:
                if not future.done():
                    if isinstance(error, asyncio.CancelledError):
                        future.cancel()
                    else:
                        future.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        for (_, future), answer in zip(new, created, strict=True):
            if not future.done():
                future.set_result(answer)
        for (_, asked), revision in zip(changes, saved, strict=True):
            if not asked.done():
                asked.set_result(revision)


def _away(error: Exception) -> bool:
    """Is it the store that cannot be reached, rather than something that it will not take?"""
    return isinstance(error, OSError) or any(
        word in type(error).__name__ for word in ("Connection", "Interface", "Operational", "Shutdown")
    )
