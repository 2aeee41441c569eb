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
    """One thing that must be so: `name` says it in a sentence that is true where it holds."""

    name: str
    expected: Any
    found: Any
    figure: str = ""
    """How much it is about, for those who read it."""

    @property
    def holds(self) -> bool:
        """Is it so?"""
        return bool(self.expected == self.found)

    @property
    def difference(self) -> str:
        """What is wrong; empty where nothing is."""
        if self.holds:
            return ""
        expected, found = self.expected, self.found
        if isinstance(expected, list) and isinstance(found, list):
            missing, extra = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
            lists = ((word, some) for word, some in (("missing", missing), ("too many", extra)) if some)
            return "; ".join(f"{word}: {', '.join(some[:5])}{', ...' * (len(some) > 5)}" for word, some in lists)
        if isinstance(expected, dict) and isinstance(found, dict):
            return ", ".join(f"{found[name]} in {name}" for name in found if found[name] != expected[name])
        return f"expected {expected}, found {found}"


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
    astray = sorted(
        f"{id} (saga {state}, order {found.get(str(id), ('unknown',))[0]})"
        for id, state in sagas
        if ends.get(str(state)) != found.get(str(id), ("",))[0]
    )
    return [
        Check("every order that was accepted is in the books", sorted(accepted), sorted(found), f"{len(found):,}"),
        Check("no order is still open", [], sorted(id for id, (status, _) in found.items() if status == "placed")),
        Check(
            "money charged equals orders confirmed", _money(sum(confirmed.values())), _money(sum(net.values())),
            _money(sum(confirmed.values())),
        ),
        Check(
            "what was paid for is what was confirmed",
            sorted(confirmed), sorted(id for id, sum_ in net.items() if sum_), f"{len(confirmed):,}",
        ),
        Check("nothing was charged or refunded twice", 0, sum(int(row[1]) > 2 for row in charges)),
        Check("goods are reserved for what was confirmed", sorted(confirmed), sorted(reserved), f"{len(confirmed):,}"),
        Check("goods stocked equal goods left and reserved", stocked, available + held, f"{stocked:,}"),
        Check("every saga ended as its order did", [], astray, f"{len(sagas):,}"),
        Check("every event was delivered", dict.fromkeys(books, 0), waiting),
        Check("every dead letter was dealt with", dict.fromkeys(books, 0), letters),
    ]  # fmt: skip


def _money(cents: int) -> str:
    return f"{cents / 100:,.2f}"
