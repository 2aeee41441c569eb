"""The books of the shop: three services, three sets of tables. The same SQL on SQLite and PostgreSQL.

Every entry is idempotent by the order it is about, and every undoing leaves a mark even where there was nothing to
undo: a charge that arrives after its refund must find that it is not wanted any more.

Each begins with the one statement that decides, so that of two who come at the same moment only one does it. A look
before it (`SELECT`, then `INSERT`) would let both do it, on a database that lets them run side by side.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everkeel.engines.sql.statement import Operation, Rows, Statement, one
from everkeel.errors import NotRetryable

INVENTORY = (
    "CREATE TABLE IF NOT EXISTS stock (item TEXT PRIMARY KEY, available INTEGER NOT NULL CHECK (available >= 0))",
    "CREATE TABLE IF NOT EXISTS reservations (order_id TEXT PRIMARY KEY, item TEXT NOT NULL, count INTEGER NOT NULL, "
    "status TEXT NOT NULL)",
)
PAYMENTS = (
    "CREATE TABLE IF NOT EXISTS payments (order_id TEXT PRIMARY KEY, amount INTEGER NOT NULL, status TEXT NOT NULL)",
    "CREATE TABLE IF NOT EXISTS ledger (id TEXT PRIMARY KEY, order_id TEXT NOT NULL, amount INTEGER NOT NULL)",
)
ORDERS = (
    "CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, item TEXT NOT NULL, count INTEGER NOT NULL, "
    "amount INTEGER NOT NULL, style TEXT NOT NULL, status TEXT NOT NULL)",
    "CREATE INDEX IF NOT EXISTS orders_open ON orders (id) WHERE status = 'placed'",
)
TABLES = {"inventory": INVENTORY, "payments": PAYMENTS, "orders": ORDERS}


class OutOfStockError(NotRetryable):
    """There is not enough of it: a business answer, and no reason to try again."""


class CardRefusedError(NotRetryable):
    """The bank says no to this customer: a business answer, too."""


class WithdrawnError(NotRetryable):
    """The order was given up before this arrived."""


class Books:
    """The tables of one service, on its engine. `tx` makes an entry part of somebody's transaction."""

    def __init__(self, engine: Any, service: str) -> None:
        self.engine, self._tables = engine, TABLES[service]

    async def open(self) -> None:
        """Make the tables."""
        await self.engine.run(_all(self._tables), atomic=True)

    async def rows(self, text: str, tx: Any = None, **values: Any) -> Rows:
        """The rows of a query."""
        found: Rows = await self.engine.run(one(Statement(text, values)), tx)
        return found

    async def number(self, text: str, tx: Any = None, **values: Any) -> int:
        """The one number a query answers; 0 where there is none."""
        found = await self.rows(text, tx, **values)
        return int(found[0][0] or 0) if found else 0

    async def enter(self, operation: Operation[Any], tx: Any = None) -> Any:
        """Make an entry, whole or not at all."""
        return await self.engine.run(operation, tx, atomic=tx is None)


def _all(statements: Sequence[str]) -> Operation[None]:
    for statement in statements:
        yield Statement(statement)


# ------------------------------------------------------------------ inventory


def restock(item: str, count: int) -> Operation[None]:
    """Put so many on the shelf."""
    yield Statement(
        "INSERT INTO stock (item, available) VALUES (:item, :count) "
        "ON CONFLICT (item) DO UPDATE SET available = stock.available + excluded.available",
        {"item": item, "count": count},
    )


def reserve(order: str, item: str, count: int) -> Operation[str]:
    """Set goods aside for an order; once, however often it is asked."""
    ours = yield Statement(
        "INSERT INTO reservations (order_id, item, count, status) VALUES (:order, :item, :count, 'reserved') "
        "ON CONFLICT (order_id) DO NOTHING RETURNING order_id",
        {"order": order, "item": item, "count": count},
    )
    if not ours:
        before = yield Statement("SELECT status FROM reservations WHERE order_id = :order", {"order": order})
        if before[0][0] == "released":
            raise WithdrawnError(f"order {order} was given up")
        return "again"
    taken = yield Statement(
        "UPDATE stock SET available = available - :count WHERE item = :item AND available >= :count RETURNING item",
        {"item": item, "count": count},
    )
    if not taken:
        raise OutOfStockError(f"not enough {item} for order {order}")  # and the reservation is not made, either
    return "reserved"


def release(order: str) -> Operation[str]:
    """Put goods back, as many as were set aside; where none were, see to it that none will be."""
    mark = yield Statement(
        "INSERT INTO reservations (order_id, item, count, status) VALUES (:order, '', 0, 'released') "
        "ON CONFLICT (order_id) DO NOTHING RETURNING order_id",
        {"order": order},
    )
    if mark:
        return "prevented"
    # Of two who release at the same moment, one finds the row as it was: it puts the goods back.
    held = yield Statement(
        "UPDATE reservations SET status = 'released' WHERE order_id = :order AND status = 'reserved' "
        "RETURNING item, count",
        {"order": order},
    )
    if not held:
        return "again"
    yield from restock(*held[0])
    return "released"


# ------------------------------------------------------------------ payments

LIMIT = 100_000
"""Cents that a card of this town's bank pays at once."""


def charge(order: str, amount: int) -> Operation[str]:
    """Take the money for an order; once, however often it is asked."""
    if amount > LIMIT:
        raise CardRefusedError(f"the bank refuses {amount / 100:.2f} for order {order}")
    ours = yield Statement(
        "INSERT INTO payments (order_id, amount, status) VALUES (:order, :amount, 'charged') "
        "ON CONFLICT (order_id) DO NOTHING RETURNING order_id",
        {"order": order, "amount": amount},
    )
    if not ours:
        before = yield Statement("SELECT status FROM payments WHERE order_id = :order", {"order": order})
        if before[0][0] == "refunded":
            raise WithdrawnError(f"order {order} was given up")
        return "again"
    yield Statement(
        "INSERT INTO ledger (id, order_id, amount) VALUES (:id, :order, :amount)",
        {"id": f"{order}:charge", "order": order, "amount": amount},
    )
    return "charged"


def refund(order: str) -> Operation[str]:
    """Give the money back, as much as was taken; where none was, see to it that none will be."""
    mark = yield Statement(
        "INSERT INTO payments (order_id, amount, status) VALUES (:order, 0, 'refunded') "
        "ON CONFLICT (order_id) DO NOTHING RETURNING order_id",
        {"order": order},
    )
    if mark:
        return "prevented"
    taken = yield Statement(
        "UPDATE payments SET status = 'refunded' WHERE order_id = :order AND status = 'charged' RETURNING amount",
        {"order": order},
    )
    if not taken:
        return "again"
    yield Statement(
        "INSERT INTO ledger (id, order_id, amount) VALUES (:id, :order, :amount)",
        {"id": f"{order}:refund", "order": order, "amount": -taken[0][0]},
    )
    return "refunded"


# ------------------------------------------------------------------ orders


def place(order: str, item: str, count: int, amount: int, style: str) -> Operation[bool]:
    """Take an order; False if it was taken before."""
    taken = yield Statement(
        "INSERT INTO orders (id, item, count, amount, style, status) "
        "VALUES (:order, :item, :count, :amount, :style, 'placed') ON CONFLICT (id) DO NOTHING RETURNING id",
        {"order": order, "item": item, "count": count, "amount": amount, "style": style},
    )
    return bool(taken)


def settle(order: str, status: str) -> Operation[bool]:
    """Confirm or cancel an order that is open; False if that was decided before."""
    changed = yield Statement(
        "UPDATE orders SET status = :status WHERE id = :order AND status = 'placed' RETURNING id",
        {"order": order, "status": status},
    )
    return bool(changed)
