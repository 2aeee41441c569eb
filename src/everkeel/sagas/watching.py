"""Looks for sagas that are due (timed out, left behind, started elsewhere), and holds on to those in our hands."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from everkeel.engines.sagas import SagaRow, kind_key
from everkeel.messaging.rows import row_of
from everkeel.runtime.crash import crash_point
from everkeel.runtime.trouble import report as report_trouble
from everkeel.sagas.choreography import Choreography
from everkeel.sagas.driver import Driver, change_of
from everkeel.sagas.happenings import Poisoned, Tick
from everkeel.sagas.machine import decide
from everkeel.sagas.record import Record, decoded
from everkeel.sagas.service import ORDERS, WAKEUP

if TYPE_CHECKING:
    from everkeel.sagas.orchestrator import Orchestrator

LOOK = 1.0
"""Seconds between two looks at the sagas in our hands, at most, where other processes cannot wake us."""


class Watcher:
    """An orchestrator's eyes: the detector of which there is one in every process."""

    def __init__(self, host: Orchestrator) -> None:
        self._host = host

    async def run(self) -> None:
        """Look until cancelled."""
        host = self._host
        helpers = [
            asyncio.ensure_future(one)
            for one in (self._hold_on(), self._listen(), self._hear_orders(), self._keep_house())
        ]
        try:
            while True:
                host.stir.clear()
                more = await self._guarded(self.look(), "could not look for sagas that are due")
                if more:
                    continue
                timer = host.clock.later(asyncio.get_running_loop(), host.poll, host.stir.set)
                try:
                    await host.stir.wait()
                finally:
                    timer.cancel()
        finally:
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)

    async def _guarded(self, work: Any, what: str) -> Any:
        host = self._host
        try:
            return await work
        except Exception as error:
            report_trouble(f"orchestrator {host.name!r} {what}; it goes on trying", error)
            return None

    async def look(self) -> bool:
        """Take over what is due: timed out, left behind, started elsewhere. Answers whether there may be more."""
        host = self._host
        room = min(host.batch, host.concurrency - len(host.drivers))
        if not host.takes:
            return False
        rows = await host.store.claim_due(host.owner, room, host.lease, known=host.definitions.keys())
        crash_point("saga.after_claim")
        for row in rows:
            host.learn(row)
            self._take_over(row)
        strangers = await host.store.claim_due(
            host.owner, host.batch, host.lease, beside=host.definitions.keys(), overdue=host.park_after
        )
        for row in strangers:
            await self._park(row, f"no definition of {kind_key(row.type, row.version)}", "unknown_definition")
        return len(rows) == room

    def _take_over(self, row: SagaRow) -> None:
        host = self._host
        definition = host.definitions.get(row.type, row.version)
        known = host.drivers.get(row.id)
        if known is not None:
            known.lose()  # our own lease ran out, and we have it again: begin anew
        try:
            record = decoded(row)
        except ValueError as error:
            host.soon(self._park(row, str(error), "poison"))
            return
        assert definition is not None  # only what is known was claimed
        if (why := definition.shape.differs(record)) is not None:
            host.soon(self._park(row, why, "changed_definition"))
            return
        if isinstance(definition, Choreography):
            host.soon(self._attend(definition, row, record))
        else:
            host.drive(definition, record, row, None)

    async def _park(self, row: SagaRow, why: str, cause: str) -> None:
        host = self._host
        try:
            record = decoded(row)
        except ValueError:
            record = Record(id=row.id, type=row.type, version=row.version, kind=row.kind, state=row.state)
        decision = decide(record, None, Poisoned(why, cause), host.now())
        change = change_of(decision, row.revision, keep=False)
        if not record.steps:
            change = replace(change, document=row.document)  # what we cannot read may be read by somebody else
        if await host.store.save(change) is not None:
            host.saved(decision, emitted=False)

    async def _attend(self, definition: Choreography, row: SagaRow, record: Record) -> None:
        """Choreographed: its time is over, or a confirmation is missing."""
        host = self._host
        decision = decide(record, definition.shape, Tick(), host.now())
        emitted = definition.commands(decision)
        rows = [*host.rows(decision, ()), *(row_of(event, topic) for event, topic in emitted)]
        due = None if decision.look_at is None else max(0.0, decision.look_at - host.now())
        if await host.store.save(change_of(decision, row.revision, keep=False, due=due, emit=rows)) is not None:
            host.saved(decision, emitted=bool(rows))

    async def _hold_on(self) -> None:
        """Keep the leases of what is in our hands, and hear of those that others have changed or taken."""
        host = self._host
        while True:
            await host.clock.asleep(host.lease / 3)
            drivers = dict(host.drivers)
            held = await self._guarded(host.store.extend(host.owner, list(drivers), host.lease), "could not hold on")
            self._compare(drivers, held)

    async def _hear_orders(self) -> None:
        """What others want of sagas in our hands: a step under way must hear of a cancel before it ends by itself.

        Told by the engine where it can tell other processes; where it cannot, seen when we look.
        """
        host = self._host
        pause = host.poll if host.engine.capabilities.notify else min(host.poll, LOOK)
        while True:
            heard = await self._guarded(host.engine.wakeup.wait(ORDERS, pause), "could not hear what is wanted")
            if heard is None:
                await host.clock.asleep(host.poll)
            drivers = dict(host.drivers)
            if drivers:
                held = await self._guarded(host.store.held(host.owner, list(drivers)), "could not look at its sagas")
                self._compare(drivers, held)

    def _compare(self, drivers: Mapping[str, Driver], held: Mapping[str, int] | None) -> None:
        """Tell drivers what the store says about their sagas; None: it says nothing."""
        if held is None:
            return
        for id, driver in drivers.items():
            if id not in held:
                driver.lose()
            elif held[id] > driver.revision:
                driver.look_again()

    async def _listen(self) -> None:
        host = self._host
        while True:
            heard = await self._guarded(host.engine.wakeup.wait(WAKEUP, 3600.0), "could not hear of new sagas")
            if heard:
                host.stir.set()
            elif heard is None:
                await host.clock.asleep(host.poll)

    async def _keep_house(self) -> None:
        host = self._host
        while host.retain is not None:
            await host.clock.asleep(60.0 * (0.75 + 0.5 * host.clock.random()))
            while await self._guarded(host.store.purge(host.retain, 1000), "could not purge") == 1000:
                await host.clock.asleep(0.05)
