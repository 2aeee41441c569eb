"""Carries one saga on: asks the machine, saves what it answers, then does it. Nothing is begun that is not saved."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from everkeel.engines.sagas import STOPPED, SagaChange, SagaRow
from everkeel.errors import SagaConflictError, SagaStateError
from everkeel.runtime.crash import crash_point
from everkeel.runtime.trouble import report as report_trouble
from everkeel.sagas.definition import Saga
from everkeel.sagas.happenings import Done, Failed, Happening, Order, Poisoned, TakenOver, Tick, UndoFailed, Undone
from everkeel.sagas.machine import Decision, decide
from everkeel.sagas.performing import Report, Try
from everkeel.sagas.record import Record, StepStatus, decoded, encoded

if TYPE_CHECKING:
    from everkeel.sagas.orchestrator import Orchestrator


class Driver:
    """One saga in this process's hands."""

    def __init__(self, host: Orchestrator, definition: Saga[Any, Any, Any], record: Record, revision: int) -> None:
        self.host, self.definition, self.record, self.revision = host, definition, record, revision
        loop = asyncio.get_running_loop()
        self.finished: asyncio.Future[Record] = loop.create_future()
        """The record, once the saga has ended or can go no further."""
        self.gone: asyncio.Future[None] = loop.create_future()
        """It is out of our hands."""
        self._tries: dict[tuple[str, bool], Try] = {}
        self._inbox: list[Report | Happening] = []
        self._asked: dict[int, asyncio.Future[Record]] = {}
        self._wake: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stale = False
        self._lost = False

    # ------------------------------------------------------------------ what others say

    def tell(self, what: Report | Happening) -> None:
        """Something happened."""
        self._inbox.append(what)
        self._stir()

    async def ask(self, order: Order) -> Record:
        """Somebody wants something; answers the record after it, or raises what the machine has against it."""
        future: asyncio.Future[Record] = asyncio.get_running_loop().create_future()
        self._asked[id(order)] = future
        self.tell(order)
        return await future

    def look_again(self) -> None:
        """Somebody else has changed it."""
        self._stale = True
        self._stir()

    def lose(self) -> None:
        """It is somebody else's now."""
        self._lost = True
        self._stir()

    def _stir(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    # ------------------------------------------------------------------ the work

    async def run(self, decision: Decision | None = None) -> None:
        """Carry it on until it rests; `decision` is the first one, saved already. None: it was taken over."""
        try:
            if decision is None:
                self._inbox[:0] = [TakenOver(), Tick()]
                decision = await self._settle(claimed=True)
            while decision is not None:
                self._carry_out(decision)
                self._resolve(decision)
                if decision.resting and not self._tries and not self._inbox:
                    return
                await self._something()
                decision = await self._settle()
        finally:
            self._let_go()

    def _carry_out(self, decision: Decision) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for launch in decision.launches:
            if launch.step in decision.cancels and not launch.undo:
                self.tell(Failed(launch.step, "interrupted before it began", 0.0, False))
            else:
                self._begin(launch)
        for step in decision.cancels:
            if attempt := self._tries.get((step, False)):
                attempt.interrupt("the saga has turned back")
        if decision.look_at is not None:
            loop = asyncio.get_running_loop()
            wait = max(0.0, decision.look_at - self.host.now()) + 0.0005
            if wait < 0.001 and not decision.entries:
                wait = 1.0  # it is past already, and we have just looked: whatever it is, do not look all the time
            self._timer = self.host.clock.later(loop, wait, lambda: self.tell(Tick()))

    def _begin(self, launch: Any) -> None:
        key = (launch.step, launch.undo)
        self._tries[key] = Try(self.host, self.definition, self.record, launch, self._reported)

    def _reported(self, attempt: Try, report: Report) -> None:
        key = (attempt.launch.step, attempt.launch.undo)
        if self._tries.get(key) is attempt:
            del self._tries[key]
        if self.gone.done():
            self.host.report_late(self.record.id, report)  # it would not be interrupted
        else:
            self.tell(report)

    async def _something(self) -> None:
        if self._inbox or self._stale or self._lost:
            return
        self._wake = asyncio.get_running_loop().create_future()
        try:
            await self._wake
        finally:
            self._wake = None

    async def _settle(self, *, claimed: bool = False) -> Decision | None:
        """Have the machine decide about everything that happened, and save its answer. None: it is no longer ours."""
        taken, self._inbox = self._inbox, []
        failures = 0
        while not self._lost:
            try:
                if self._stale:
                    row = await self.host.store.load(self.record.id)
                    if row is None or row.owner != self.host.owner:
                        break
                    self._reload(row, taken)
                refused: list[tuple[Happening, SagaStateError]] = []
                decision = self._decide([_happening(one) for one in taken], refused)
                for order, error in refused:
                    if (asked := self._asked.pop(id(order), None)) is not None and not asked.done():
                        asked.set_exception(error)
                if not decision.entries and decision.record == self.record and not (claimed and decision.resting):
                    return self._answered(taken, decision)
                emitted = self.host.rows(decision, self._wanted(taken, decision))
                crash_point("saga.before_save")
                saved = await self.host.writer.save(
                    change_of(decision, self.revision, keep=not decision.resting, emit=emitted)
                )
                crash_point("saga.after_save")
            except Exception as error:
                failures += 1
                if failures == 1:
                    report_trouble(f"saga {self.record.id!r} could not be saved; it will be tried again", error)
                await self.host.clock.asleep(min(5.0, 0.1 * 2**failures))
                self._stale = True
                continue
            if saved is not None:
                self.revision, self.record = saved, decision.record
                self.host.saved(decision, emitted=bool(emitted))
                return self._answered(taken, decision)
            self._stale = True
            self.host.counts[self.record.type, "conflicts"] += 1
        await self._lost_it(taken)
        return None

    def _decide(self, happenings: list[Happening], refused: list[tuple[Happening, SagaStateError]]) -> Decision:
        now = self.host.now()
        try:
            return decide(self.record, self.definition.shape, happenings, now, refused=refused)
        except Exception as error:  # a condition or a result function that raises: the next try would, too
            refused.clear()
            text = f"{type(error).__qualname__}: {error}"
            report_trouble(f"saga {self.record.id!r} is parked: its definition raised", error)
            return decide(self.record, None, [*happenings, Poisoned(text)], now, refused=refused)

    def _answered(self, taken: list[Report | Happening], decision: Decision) -> Decision:
        for one in taken:
            if (asked := self._asked.pop(id(one), None)) is not None and not asked.done():
                asked.set_result(decision.record)
        return decision

    def _wanted(self, taken: list[Report | Happening], decision: Decision) -> list[Any]:
        """The events of those reports that count: a second success of a step has nothing new to say."""
        events: list[Any] = []
        for one in taken:
            if not isinstance(one, Report) or not one.emitted:
                continue
            name = one.happening.step
            before, after = self.record.steps[name], decision.record.steps[name]
            if isinstance(one.happening, Done):
                counts = after.done and not before.done
            else:
                counts = isinstance(one.happening, Undone) and before.status is StepStatus.UNDOING
            if counts:
                events.extend(one.emitted)
        return events

    def _reload(self, row: SagaRow, taken: list[Report | Happening]) -> None:
        self.host.learn(row)
        self.record, self.revision, self._stale = decoded(row), row.revision, False
        # What the store says is under way and is not in our hands was never begun: the answer to the save that
        # announced it was lost on its way to us. A report of the action says nothing about the compensation: the save
        # whose answer was lost may be the one that took note of that report and began to undo the same step.
        told = {
            (one.happening.step, isinstance(one.happening, Undone | UndoFailed))
            for one in [*taken, *self._inbox]
            if isinstance(one, Report)
        }
        for name, step in self.record.steps.items():
            undo = step.status is StepStatus.UNDOING and step.not_before is None
            if (name, undo) in told or (name, undo) in self._tries:
                continue
            if undo:
                taken.append(UndoFailed(name, "it was announced and never begun"))
            elif step.status is StepStatus.RUNNING:
                taken.append(Failed(name, "it was announced and never begun", 0.0, False))

    async def _lost_it(self, taken: list[Report | Happening]) -> None:
        """Stop; but what is known to be done must not be forgotten, whoever works on it now."""
        self.host.counts[self.record.type, "lost"] += 1
        self.host.driven(self)  # first: else what is reported as late would be told to us, and forgotten with us
        for one in [*taken, *self._inbox]:
            if isinstance(one, Report) and isinstance(one.happening, Done):
                self.host.report_late(self.record.id, one)
            elif (asked := self._asked.pop(id(one), None)) is not None and not asked.done():
                assert isinstance(one, Order)
                self.host.pass_on(self.record.id, one, asked)
        self._inbox = []

    def _resolve(self, decision: Decision) -> None:
        record = decision.record
        if not self.finished.done() and (record.ended or record.state in STOPPED):
            self.finished.set_result(record)

    def _let_go(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for attempt in self._tries.values():
            attempt.task.cancel()
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(SagaConflictError(self.record.type, self.record.id, "it changed hands; ask again"))
        if not self.gone.done():
            self.gone.set_result(None)
        self.host.driven(self)


def _happening(one: Report | Happening) -> Happening:
    return one.happening if isinstance(one, Report) else one


def change_of(decision: Decision, revision: int, *, keep: bool, emit: Any = (), due: float | None = None) -> SagaChange:
    """What is written: the next revision of the row."""
    record = decision.record
    return SagaChange(
        id=record.id, expect=revision, state=record.state, document=encoded(record), cause=record.cause,
        step=record.current(), timed_out=record.timed_out, keep=keep, owner=None, due=due,
        deadline=decision.deadline, emit=emit,
    )  # fmt: skip
