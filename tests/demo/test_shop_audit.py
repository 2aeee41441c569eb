"""The audit of the shop: an auditor who never says no proves nothing."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everkeel.demo.shop import books
from everkeel.demo.shop.audit import Check, audit
from everkeel.demo.shop.books import Books
from everkeel.engines import SQLiteEngine
from everkeel.engines.sagas import NewSaga, SagaState
from everkeel.engines.sql.statement import Statement, one
from everkeel.messaging import Event, Outbox

STOCKED = 50


class Shop:
    """Books that balance: `confirmed` and `cancelled` orders by their numbers."""

    def __init__(self, folder) -> None:
        self.folder = folder
        self.books: dict[str, Books] = {}
        self.accepted: dict[str, dict[str, object]] = {}

    async def __aenter__(self):
        self.stack = AsyncExitStack()
        for name in books.TABLES:
            engine = await self.stack.enter_async_context(SQLiteEngine(self.folder / f"{name}.db"))
            self.books[name] = Books(engine, name)
            await self.books[name].open()
        await self.books["inventory"].enter(books.restock("lantern", STOCKED))
        for number in range(4):
            await self.order(f"order-{number}", "confirmed" if number % 2 else "cancelled")
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stack.aclose()

    async def order(self, id: str, end: str) -> None:
        self.accepted[id] = {}
        await self.books["orders"].enter(books.place(id, "lantern", 2, 2_400, "orchestrated"))
        await self.books["inventory"].enter(books.reserve(id, "lantern", 2))
        await self.books["payments"].enter(books.charge(id, 2_400))
        if end == "cancelled":
            await self.books["payments"].enter(books.refund(id))
            await self.books["inventory"].enter(books.release(id))
        await self.books["orders"].enter(books.settle(id, end))
        state = SagaState.COMPLETED if end == "confirmed" else SagaState.COMPENSATED
        saga = NewSaga(id=id, type="t", version=1, kind="orchestrated", state=state, document="{}", due=None)
        await self.books["orders"].engine.sagas.create(saga)

    async def tamper(self, service: str, statement: str) -> None:
        await self.books[service].engine.run(one(Statement(statement)))

    async def wrong(self) -> set[str]:
        return {check.name for check in await audit(self.books, self.accepted, STOCKED) if not check.holds}


TAMPERED = {
    "an order is lost": (
        "orders", "DELETE FROM orders WHERE id = 'order-0'", "every order that was accepted is in the books",
    ),
    "an order nobody placed": (
        "orders", "INSERT INTO orders VALUES ('ghost', 'lantern', 1, 1, 'x', 'cancelled')",
        "every order that was accepted is in the books",
    ),
    "an order that stays open": (
        "orders", "UPDATE orders SET status = 'placed' WHERE id = 'order-0'", "no order is still open",
    ),
    "a confirmed order that nobody paid for": (
        "payments", "DELETE FROM ledger WHERE order_id = 'order-1'", "what was paid for is what was confirmed",
    ),
    "money kept for a cancelled order": (
        "payments", "DELETE FROM ledger WHERE id = 'order-0:refund'", "money charged equals orders confirmed",
    ),
    "the wrong sum": (
        "payments", "UPDATE ledger SET amount = 1 WHERE id = 'order-1:charge'", "money charged equals orders confirmed",
    ),
    "charged twice and returned once": (
        "payments", "INSERT INTO ledger VALUES ('more', 'order-0', 2400)", "nothing was charged or refunded twice",
    ),
    "goods kept for a cancelled order": (
        "inventory", "UPDATE reservations SET status = 'reserved' WHERE order_id = 'order-0'",
        "goods are reserved for what was confirmed",
    ),
    "goods promised twice": (
        "inventory", "UPDATE reservations SET status = 'released' WHERE order_id = 'order-1'",
        "goods are reserved for what was confirmed",
    ),
    "goods from nowhere": ("inventory", "UPDATE stock SET available = available + 1",
                           "goods stocked equal goods left and reserved"),
    "goods gone": ("inventory", "UPDATE stock SET available = available - 1",
                   "goods stocked equal goods left and reserved"),
    "a saga that says otherwise": (
        "orders", "UPDATE everkeel_sagas SET state = 'completed' WHERE id = 'order-0'",
        "every saga ended as its order did",
    ),
    "a saga that is stuck": (
        "orders", "UPDATE everkeel_sagas SET state = 'compensation_blocked' WHERE id = 'order-0'",
        "every saga ended as its order did",
    ),
}  # fmt: skip


def test_books_that_balance_pass(tmp_path) -> None:
    async def main() -> set[str]:
        async with Shop(tmp_path) as shop:
            return await shop.wrong()

    assert asyncio.run(main()) == set()


@pytest.mark.parametrize("what", TAMPERED)
def test_a_wrong_book_is_found(tmp_path, what) -> None:
    service, statement, check = TAMPERED[what]

    async def main() -> set[str]:
        async with Shop(tmp_path) as shop:
            await shop.tamper(service, statement)
            return await shop.wrong()

    assert check in asyncio.run(main())


@given(number=st.integers(0, 3), table=st.sampled_from(["ledger", "reservations"]), by=st.sampled_from([-1, 1, 7]))
@settings(max_examples=12, deadline=None)
def test_any_wrong_number_in_a_live_entry_is_found(tmp_path_factory, number, table, by) -> None:
    service, column = {"ledger": ("payments", "amount"), "reservations": ("inventory", "count")}[table]
    confirmed = number % 2

    async def main() -> set[str]:
        async with Shop(tmp_path_factory.mktemp("shop")) as shop:
            where = f"order_id = 'order-{number}'"
            await shop.tamper(service, f"UPDATE {table} SET {column} = {column} + {by} WHERE {where}")
            return await shop.wrong()

    # A cancelled order holds no goods any more: what its reservation was about says nothing.
    assert bool(asyncio.run(main())) == (bool(confirmed) or table == "ledger")


@pytest.mark.parametrize(
    ("expected", "found", "difference"),
    [
        (3, 3, ""),
        (3, 4, "expected 3, found 4"),
        (["a", "b"], ["b", "c"], "missing: a; too many: c"),
        ([], list("abcdefg"), "too many: a, b, c, d, e, ..."),
        ({"orders": 0, "payments": 0}, {"orders": 0, "payments": 2}, "2 in payments"),
    ],
)
def test_what_is_wrong_is_said_in_a_few_words(expected, found, difference) -> None:
    assert Check("a thing", expected, found).difference == difference


def test_an_event_that_nobody_has_delivered_is_found(tmp_path) -> None:
    async def main() -> set[str]:
        async with Shop(tmp_path) as shop:
            outbox = Outbox(shop.books["payments"].engine, topic="shop")
            await outbox.write(Event("PaymentTaken", source="/payments"))
            return await shop.wrong()

    assert asyncio.run(main()) == {"every event was delivered"}
