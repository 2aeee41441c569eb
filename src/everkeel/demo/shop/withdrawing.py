"""The deadline of choreographed orders: nobody is in charge of them, so somebody must look at the clock.

Every process may do so: an order is cancelled by one of them, in the transaction that tells the others to undo their
part.
"""

from __future__ import annotations

import asyncio
from typing import Any, Self

from everkeel.demo.shop import books
from everkeel.demo.shop.books import Books
from everkeel.messaging import Event, Outbox
from everkeel.runtime.clock import DEFAULT
from everkeel.runtime.trouble import report


class Withdrawing:
    """Looks for orders that take too long. An async context manager: it works as long as the block."""

    def __init__(self, orders: Books, outbox: Outbox, deadline: float) -> None:
        self._orders, self._outbox, self._deadline = orders, outbox, deadline
        self._seen: dict[str, float] = {}
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.ensure_future(self._watch())
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _watch(self) -> None:
        while True:
            await DEFAULT.asleep(0.5)
            try:
                await self._look()
            except Exception as error:
                report("looking for orders that take too long failed; it is tried again", error)

    async def _look(self) -> None:
        rows = await self._orders.rows(
            "SELECT id, item, count, amount, style FROM orders WHERE status = 'placed' AND style = 'choreographed'"
        )
        now, open_ = DEFAULT.monotonic(), {str(row[0]): row for row in rows}
        self._seen = {id: self._seen.get(id, now) for id in open_}
        for id, since in self._seen.items():
            if now - since > self._deadline:
                names = ("id", "item", "count", "amount", "style")
                await self._withdraw(dict(zip(names, open_[id], strict=True)))

    async def _withdraw(self, order: dict[str, Any]) -> None:
        async with self._orders.engine.transaction() as tx:
            if await self._orders.enter(books.settle(order["id"], "cancelled"), tx):
                told = Event("OrderWithdrawn", order, source="/orders", id=f"{order['id']}:withdrawn", key=order["id"])
                await self._outbox.write(told, tx=tx)
        self._outbox.wake()
