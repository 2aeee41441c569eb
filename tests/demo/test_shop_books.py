"""The books of the shop: whatever is asked, how often and in whatever order, goods and money are conserved."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everkeel.demo.shop import books
from everkeel.demo.shop.books import Books, CardRefusedError, OutOfStockError, WithdrawnError
from everkeel.engines import PostgresEngine
from everkeel.engines.sql.runners import run, runner_of
from everkeel.errors import NotRetryable

ORDERS = ("a", "b", "c")
COUNTS = {"a": 1, "b": 2, "c": 3}
AMOUNTS = {"a": 100, "b": 2_500, "c": books.LIMIT + 1}


class Shop:
    """The books of inventory and payments in memory, one transaction for each entry."""

    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        for table in (*books.INVENTORY, *books.PAYMENTS, *books.ORDERS):
            self.connection.execute(table)

    def enter(self, entry):
        self.connection.execute("BEGIN")
        try:
            answer = run(entry, runner_of(self.connection)[0])
        except BaseException:
            self.connection.execute("ROLLBACK")
            raise
        self.connection.execute("COMMIT")
        return answer

    def number(self, query: str) -> int:
        return self.connection.execute(query).fetchone()[0] or 0


@pytest.fixture
def shop():
    shop = Shop()
    with closing(shop.connection):
        yield shop


def entry_of(what: str, order: str):
    return {
        "reserve": lambda: books.reserve(order, "lantern", COUNTS[order]),
        "release": lambda: books.release(order),
        "charge": lambda: books.charge(order, AMOUNTS[order]),
        "refund": lambda: books.refund(order),
    }[what]()


ACTS = st.tuples(st.sampled_from(["reserve", "release", "charge", "refund", "restock"]), st.sampled_from(ORDERS))


@given(acts=st.lists(ACTS, max_size=40), stock=st.integers(0, 5))
@settings(max_examples=150, deadline=None)
def test_goods_and_money_are_conserved_whatever_is_asked_in_whatever_order(acts, stock) -> None:
    shop = Shop()
    with closing(shop.connection):
        shop.enter(books.restock("lantern", stock))
        undone: set[tuple[str, str]] = set()
        for what, order in acts:
            if what == "restock":
                shop.enter(books.restock("lantern", 1))
                stock += 1
                continue
            with suppress(NotRetryable):
                shop.enter(entry_of(what, order))
            if what in ("release", "refund"):
                undone.add((what, order))
            held = shop.number("SELECT sum(count) FROM reservations WHERE status = 'reserved'")
            assert shop.number("SELECT sum(available) FROM stock") + held == stock
            for one in ORDERS:
                net = shop.number(f"SELECT sum(amount) FROM ledger WHERE order_id = '{one}'")
                assert net in (0, AMOUNTS[one])
                assert shop.number(f"SELECT count(*) FROM ledger WHERE order_id = '{one}'") <= 2
                if ("refund", one) in undone:
                    assert net == 0
                if ("release", one) in undone:
                    assert not shop.number(
                        f"SELECT count(*) FROM reservations WHERE order_id = '{one}' AND status = 'reserved'"
                    )


def test_an_entry_that_is_made_twice_is_made_once(shop) -> None:
    shop.enter(books.restock("lantern", 5))
    for what, first in (
        ("reserve", "reserved"),
        ("charge", "charged"),
        ("refund", "refunded"),
        ("release", "released"),
    ):
        assert [shop.enter(entry_of(what, "b")) for _ in range(3)] == [first, "again", "again"]
    assert shop.number("SELECT sum(available) FROM stock") == 5


def test_what_was_undone_before_it_was_done_is_never_done(shop) -> None:
    shop.enter(books.restock("lantern", 5))
    assert shop.enter(books.release("a")) == "prevented"
    assert shop.enter(books.refund("a")) == "prevented"
    for what in ("reserve", "charge"):
        with pytest.raises(WithdrawnError, match="order a was given up"):
            shop.enter(entry_of(what, "a"))


def test_a_release_puts_back_what_was_set_aside_however_much_that_was(shop) -> None:
    shop.enter(books.restock("lantern", 5))
    shop.enter(books.reserve("x", "lantern", 4))
    shop.enter(books.release("x"))
    assert shop.number("SELECT available FROM stock") == 5


def test_business_answers_change_nothing(shop) -> None:
    shop.enter(books.restock("lantern", 2))
    with pytest.raises(OutOfStockError, match="not enough lantern for order c"):
        shop.enter(entry_of("reserve", "c"))
    with pytest.raises(CardRefusedError, match=r"refuses 1000\.01 for order c"):
        shop.enter(entry_of("charge", "c"))
    assert shop.number("SELECT count(*) FROM reservations") == shop.number("SELECT count(*) FROM payments") == 0


def test_an_order_is_placed_once_and_settled_once(shop) -> None:
    assert [shop.enter(books.place("a", "lantern", 1, 100, "orchestrated")) for _ in range(2)] == [True, False]
    assert shop.enter(books.settle("a", "confirmed"))
    assert not shop.enter(books.settle("a", "cancelled"))
    assert shop.connection.execute("SELECT status FROM orders").fetchone() == ("confirmed",)


@pytest.mark.require_server("postgres")
def test_of_those_who_come_at_the_same_moment_one_does_it(postgres_dsn) -> None:
    """PostgreSQL lets them run side by side; a look before the act would let several of them act."""
    at_once, orders = 6, [f"order-{number}" for number in range(12)]

    async def main() -> None:
        async with PostgresEngine(postgres_dsn, connections=at_once) as engine:
            inventory, payments = Books(engine, "inventory"), Books(engine, "payments")
            await inventory.open()
            await payments.open()
            await inventory.enter(books.restock("lantern", 100))

            async def all_at_once(entries) -> list[str]:
                return sorted(await asyncio.gather(*(inventory.enter(entry) for entry in entries)))

            for order in orders:
                for make, done in (
                    (lambda order: books.reserve(order, "lantern", 2), "reserved"),
                    (books.release, "released"),
                    (lambda order: books.charge(order, 100), "charged"),
                    (books.refund, "refunded"),
                ):
                    answers = await all_at_once([make(order) for _ in range(at_once)])
                    assert answers == sorted([done, *["again"] * (at_once - 1)])
                assert await all_at_once([books.release(f"{order}-unknown") for _ in range(at_once)]) == sorted(
                    ["prevented", *["again"] * (at_once - 1)]
                )
            assert await inventory.number("SELECT available FROM stock") == 100
            assert await payments.number("SELECT sum(amount) FROM ledger") == 0

    asyncio.run(main())
