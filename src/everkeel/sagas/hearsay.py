"""What an orchestrator is told about sagas: of those in its hands it hears at once; of others it is written down."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from everkeel.engines.rows import OutboxRow
from everkeel.sagas.driver import change_of
from everkeel.sagas.happenings import Order
from everkeel.sagas.machine import Decision, decide
from everkeel.sagas.performing import Report
from everkeel.sagas.record import Record, decoded
from everkeel.sagas.service import ORDERS, Sagas
from everkeel.sagas.view import SagaView

if TYPE_CHECKING:
    from everkeel.sagas.orchestrator import Orchestrator


class Heard(Sagas):
    """An operator's view that tells this process at once what is wanted of a saga in its hands."""

    def __init__(self, host: Orchestrator) -> None:
        super().__init__(host.engine, codec=host.codec)
        self._host = host

    async def order(self, id: str, order: Order, *, revision: int | None = None) -> SagaView:
        driver = self._host.driver_of(id)
        if driver is None:
            return await super().order(id, order, revision=revision)
        if revision is not None:
            # Only the store can say whether it is still the last one; whoever has the saga in hand is told afterwards.
            answer = await super().order(id, order, revision=revision)
            driver.look_again()
            return answer
        await driver.ask(order)
        return await self.get(id)

    def announced(self, decision: Decision) -> Sequence[OutboxRow]:
        return self._host.rows(decision, ())

    def written(self, decision: Decision, *, emitted: bool) -> None:
        self._host.saved(decision, emitted=emitted)


async def note_late(host: Orchestrator, id: str, report: Report) -> None:
    """Write down that a step was done after we had stopped waiting for it, and the saga was in our hands no more."""
    while (row := await host.store.load(id)) is not None:
        decision = decide(decoded(row), None, report.happening, row.now)
        if not decision.entries:
            return
        held = row.owner is not None and row.due_at is not None and row.due_at > row.now
        emitted = host.rows(decision, report.emitted)
        change = change_of(decision, row.revision, keep=held, due=None if decision.resting else 0.0, emit=emitted)
        if await host.store.save(change) is not None:
            host.saved(decision, emitted=bool(emitted))
            host.stir.set()
            host.engine.wakeup.notify(ORDERS)
            return


async def pass_on(host: Orchestrator, id: str, order: Order, asked: asyncio.Future[Record]) -> None:
    """A saga that was ours is not, and somebody has asked us about it: let the store know."""
    try:
        await Sagas.order(host.sagas, id, order)
        row = await host.store.load(id)
        assert row is not None
        if not asked.done():
            asked.set_result(decoded(row))
    except Exception as error:
        if not asked.done():
            asked.set_exception(error)
