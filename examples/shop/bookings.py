"""A shop of your own from the demo's parts: bookings of boats, with a saga in one process.

    python examples/shop/bookings.py

It keeps the demo's books and rules (`everkeel.demo.shop.books`) and puts another saga on top: reserve a boat, charge a
deposit, confirm. What cannot be paid for is put back.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from everkeel.demo.shop import books
from everkeel.demo.shop.books import Books
from everkeel.engines import SQLiteEngine
from everkeel.errors import SagaCompensatedError
from everkeel.sagas import Context, Orchestrator, Saga, Step


class Harbour:
    """Boats and deposits in one database. In the demo, each is a service of its own."""

    def __init__(self, engine: SQLiteEngine) -> None:
        self.boats, self.deposits = Books(engine, "inventory"), Books(engine, "payments")
        self.saga: Saga[dict[str, int], dict[str, int], str] = Saga(
            "booking",
            Step("reserve", self.reserve, self.release),
            Step("charge", self.charge, self.refund),
            Step("confirm", self.confirm, pivot=True),
            deadline=60,
        )

    async def reserve(self, context: Context[dict[str, int], dict[str, int]]) -> None:
        await self.boats.enter(books.reserve(context.saga_id, "boat", 1))

    async def release(self, context: Context[dict[str, int], dict[str, int]]) -> None:
        await self.boats.enter(books.release(context.saga_id))

    async def charge(self, context: Context[dict[str, int], dict[str, int]]) -> None:
        await self.deposits.enter(books.charge(context.saga_id, context.input["deposit"]))

    async def refund(self, context: Context[dict[str, int], dict[str, int]]) -> None:
        await self.deposits.enter(books.refund(context.saga_id))

    async def confirm(self, context: Context[dict[str, int], dict[str, int]]) -> str:
        return f"{context.saga_id} is booked"


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with SQLiteEngine(Path(folder) / "harbour.db") as engine:
            harbour = Harbour(engine)
            await harbour.boats.open()
            await harbour.deposits.open()
            await harbour.boats.enter(books.restock("boat", 2))
            async with Orchestrator(engine, harbour.saga) as orchestrator:
                for who, deposit in (("ada", 20_000), ("bob", books.LIMIT + 1), ("eve", 20_000), ("joe", 20_000)):
                    try:
                        booked = await orchestrator.run(harbour.saga, {"deposit": deposit}, id=who)
                        print(booked)
                    except SagaCompensatedError as error:
                        print(f"{who} is not: {error}")
            print(await harbour.boats.number("SELECT available FROM stock"), "boats left,", end=" ")
            print(await harbour.deposits.number("SELECT sum(amount) FROM ledger") // 100, "taken in deposits")


if __name__ == "__main__":
    asyncio.run(main())
