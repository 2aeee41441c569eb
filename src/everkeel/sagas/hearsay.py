"""What an orchestrator is told about sagas: of those in its hands it hears at once; of others it is written down."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from everkeel.engines.rows import OutboxRow
from everkeel.runtime.trouble import report as report_trouble
from everkeel.sagas.driver import change_of
from everkeel.sagas.happenings import Order
from everkeel.sagas.machine import Decision, decide
from everkeel.sagas.performing import Report
from everkeel.sagas.record import Record, decoded
from everkeel.sagas.service import ORDERS, WAKEUP, Sagas
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
    failures = 0
    while True:
        try:
            if await _noted(host, id, report):
                return
        except ValueError:
            raise  # its document cannot be read: it would not help to try again
        except Exception as error:
            # Nobody else knows of this success. While the store is away it must not be forgotten.
            failures += 1
            if failures == 1:
                report_trouble(f"a late success of saga {id!r} could not be noted; it will be tried again", error)
            await host.clock.asleep(min(5.0, 0.1 * 2**failures))


async def _noted(host: Orchestrator, id: str, report: Report) -> bool:
    row = await host.store.load(id)
    if row is None:
        return True
    decision = decide(decoded(row), None, report.happening, row.now)
    if not decision.entries:
        return True
    held = row.owner is not None and row.due_at is not None and row.due_at > row.now
    emitted = host.rows(decision, report.emitted)
    change = change_of(decision, row.revision, keep=held, due=None if decision.resting else 0.0, emit=emitted)
    if await host.store.save(change) is None:
        return False
    host.saved(decision, emitted=bool(emitted))
    host.stir.set()
    host.engine.wakeup.notify(ORDERS)
    host.engine.wakeup.notify(WAKEUP)
    return True


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
