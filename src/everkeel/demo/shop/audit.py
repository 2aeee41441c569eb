"""The last look into the books: money, goods and promises must agree, whatever happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from everkeel.demo.shop.books import Books
from everkeel.engines.sagas import SagaState
from everkeel.messaging import DeadLetters, LetterFilter, Status

_OPEN = (Status.PENDING, Status.PARKED, Status.REPLAYED)


@dataclass(frozen=True)
class Check:
    """One thing that must be so."""

    name: str
    expected: Any
    found: Any

    @property
    def holds(self) -> bool:
        """Is it so?"""
        return bool(self.expected == self.found)


async def audit(books: Mapping[str, Books], accepted: Mapping[str, Mapping[str, Any]], stocked: int) -> list[Check]:
    """What must hold once the shop has come to rest. `stocked`: how many goods were ever put on the shelf."""
    orders, payments, inventory = books["orders"], books["payments"], books["inventory"]
    found = {
        str(row[0]): (str(row[1]), int(row[2])) for row in await orders.rows("SELECT id, status, amount FROM orders")
    }
    confirmed = {id: amount for id, (status, amount) in found.items() if status == "confirmed"}
    charges = await payments.rows("SELECT order_id, count(*), sum(amount) FROM ledger GROUP BY order_id")
    net = {str(row[0]): int(row[2]) for row in charges}
    reserved = {
        str(row[0]) for row in await inventory.rows("SELECT order_id FROM reservations WHERE status = 'reserved'")
    }
    held = await inventory.number("SELECT sum(count) FROM reservations WHERE status = 'reserved'")
    available = await inventory.number("SELECT sum(available) FROM stock")
    waiting = {name: (await one.engine.outbox.stats()).depth for name, one in books.items()}
    letters = {name: await DeadLetters(one.engine).count(LetterFilter(status=_OPEN)) for name, one in books.items()}
    ends: dict[str, str] = {SagaState.COMPLETED: "confirmed", SagaState.COMPENSATED: "cancelled"}
    sagas = await orders.rows("SELECT id, state FROM everkeel_sagas")
    astray = sorted(str(id) for id, state in sagas if ends.get(str(state)) != found.get(str(id), ("",))[0])
    return [
        Check("orders accepted and orders in the books", sorted(accepted), sorted(found)),
        Check("orders still open", 0, sum(status == "placed" for status, _ in found.values())),
        Check("money charged and orders confirmed", sum(confirmed.values()), sum(net.values())),
        Check(
            "orders paid for and orders confirmed", sorted(confirmed), sorted(id for id, sum_ in net.items() if sum_)
        ),
        Check("charges or refunds made twice", 0, sum(int(row[1]) > 2 for row in charges)),
        Check("goods reserved and orders confirmed", sorted(confirmed), sorted(reserved)),
        Check("goods stocked and goods left or reserved", stocked, available + held),
        Check("sagas that ended in another way than their orders", [], astray),
        Check("events not delivered", dict.fromkeys(books, 0), waiting),
        Check("dead letters not dealt with", dict.fromkeys(books, 0), letters),
    ]
