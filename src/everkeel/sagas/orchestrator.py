"""What the user holds to run sagas: `Orchestrator(engine, saga, ...)`."""

from __future__ import annotations

import asyncio
import builtins
import os
import socket
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeVar
from uuid import uuid4

from everkeel import events
from everkeel.engines.rows import OutboxRow
from everkeel.engines.sagas import NewSaga, SagaRow, SagaStore
from everkeel.errors import ConfigError
from everkeel.messaging.commits import when_committed
from everkeel.messaging.event import Event
from everkeel.messaging.outbox import WAKEUP as OUTBOX
from everkeel.messaging.rows import row_of
from everkeel.runtime import events as hearing
from everkeel.runtime.clock import Clock
from everkeel.runtime.configured import Part
from everkeel.runtime.crash import crash_point
from everkeel.runtime.deadline import AMBIENT
from everkeel.runtime.events import Listener, Subscription
from everkeel.runtime.settings import Duration, Kind, Mode, Seconds
from everkeel.runtime.trouble import report as report_trouble
from everkeel.sagas import reporting
from everkeel.sagas.choreography import Tracker
from everkeel.sagas.coding import Codec, store_of
from everkeel.sagas.config import OrchestratorConfig
from everkeel.sagas.definition import Definitions, Saga
from everkeel.sagas.driver import Driver
from everkeel.sagas.handle import Handle
from everkeel.sagas.happenings import Done, Order
from everkeel.sagas.hearsay import Heard, note_late, pass_on
from everkeel.sagas.machine import Decision, begin
from everkeel.sagas.performing import Report
from everkeel.sagas.record import Record, StepRecord, encoded
from everkeel.sagas.service import WAKEUP
from everkeel.sagas.starting import check_known, check_same, checked_input, new_id
from everkeel.sagas.steps import checked
from everkeel.sagas.waiting import until_over
from everkeel.sagas.watching import Watcher
from everkeel.sagas.writer import Writer

if TYPE_CHECKING:
    from everkeel.messaging.consumer.consumer import Consumer

I = TypeVar("I")  # noqa: E741 - the input
S = TypeVar("S")
R = TypeVar("R")


class Orchestrator(Part[OrchestratorConfig]):
    """Runs sagas: starts them, carries them on after crashes of other processes, ends those whose time is over.

        async with Orchestrator(engine, order_saga) as orchestrator:
            receipt = await orchestrator.run(order_saga, Order(...), id="order-7")

    Any number of them may work on one engine. Each saga is in the hands of one at a time, by a lease; who loses it can
    write no more.

    Args:
        engine: Where sagas are kept: a `SQLiteEngine`, a `PostgresEngine`, a `MemoryEngine` for tests.
        *definitions: The sagas it can run, each version its own definition.
        name: Its identity in logs.
        lease: Seconds after which others take over what a process that died had in its hands.
        poll: Seconds between two looks for sagas that are due: timed out, left behind, or started elsewhere.
        batch: How many of them are taken at once.
        concurrency: How many sagas it has in its hands at most. More can be started; they wait their turn.
        threads: How many actions that are plain functions run at once.
        park_after: Seconds for which a saga of a version that is not known here is left to others, before it is parked
            for an operator to see. Sagas of types that are not known here at all are others' business.
        topic: Where events that steps emit are published unless they say otherwise.
        announce: Publish what happens to sagas (`saga.started`, `saga.completed`, ...) to this topic, over the outbox.
        source: The source of these events.
        retain: Seconds for which ended sagas are kept; a week. None: for ever.
        mode: "enforce", or "off": it takes no sagas into its hands, and leaves what is started to others. What it has
            already is carried on.
        codec: Turns what is kept of a saga (input, state, results, timeline) into another text and back: to encrypt it.
            `Sagas` and the other orchestrators need the same.
        clock: Where its time comes from, in place of the engine's.
    """

    type = "orchestrator"

    def __init__(
        self,
        engine: Any,
        *definitions: Any,
        name: str = "sagas",
        lease: Seconds = 30.0,
        poll: Seconds = 5.0,
        batch: int = 100,
        concurrency: int = 1000,
        threads: int = 32,
        park_after: Seconds = 60.0,
        topic: str = "sagas",
        announce: str | None = None,
        source: str = "/sagas",
        retain: Seconds | None = 7 * 86_400.0,
        codec: Codec | None = None,
        mode: Mode = "enforce",
        clock: Clock | None = None,
    ) -> None:
        values = {
            "mode": mode, "lease": lease, "poll": poll, "batch": batch, "concurrency": concurrency, "threads": threads,
            "park_after": park_after, "retain": retain,
        }  # fmt: skip
        super().__init__(name, OrchestratorConfig.make(name, values))
        self.engine = engine
        self.codec = codec
        self.store: SagaStore = store_of(engine, codec)
        self.clock: Clock = clock or engine.clock
        self.topic, self.announce, self.source = topic, announce, source
        self.definitions = Definitions()
        for definition in definitions:
            self.add(definition)
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
        self.sagas = Heard(self)
        """To look at sagas and tell them what to do."""
        self.tracker = Tracker(self)
        self._watcher = Watcher(self)
        self.writer = Writer(self.store)
        self.threads = self._new_threads()
        self.counts: Counter[tuple[str, str]] = Counter()
        """What this process has seen, by type and word."""
        self.stopping = self._stopped = False
        self._skew = 0.0
        self.drivers: dict[str, Driver] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._work: asyncio.Task[None] | None = None
        self.stir = asyncio.Event()

    def _take(self, new: OrchestratorConfig) -> None:
        super()._take(new)
        self.lease, self.poll, self.batch, self.concurrency = new.lease, new.poll, new.batch, new.concurrency
        self.park_after, self.retain = new.park_after, new.retain

    @property
    def takes(self) -> bool:
        """May it take another saga into its hands?"""
        return self.config.mode != "off" and not self.stopping and len(self.drivers) < self.concurrency

    def _checked(self, parameter: str, kind: Kind, value: Any) -> Any:
        return checked(f"orchestrator {self.name!r}", parameter, kind, value)

    def _new_threads(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self.config.threads, f"everkeel-{self.name}")

    def add(self, definition: Any) -> None:
        """Make a definition known."""
        if not hasattr(definition, "shape") or not hasattr(definition, "version"):
            raise ConfigError(f"orchestrator {self.name!r}", "definitions", "must be sagas", repr(definition))
        self.definitions.add(definition)

    # ------------------------------------------------------------------ starting sagas

    async def run(
        self,
        saga: Saga[I, S, R],
        input: I | None = None,
        *,
        id: str | None = None,
        correlation_id: str | None = None,
        deadline: Seconds | None = None,
        timeout: Seconds | None = None,
    ) -> R:
        """Start a saga, wait for its end and answer its result; see `start` and `Handle.result`."""
        handle = await self.start(saga, input, id=id, correlation_id=correlation_id, deadline=deadline)
        return await handle.result(timeout)

    async def start(
        self,
        saga: Saga[I, S, R],
        input: I | None = None,
        *,
        id: str | None = None,
        correlation_id: str | None = None,
        deadline: Seconds | None = None,
        tx: Any = None,
    ) -> Handle[R]:
        """Start a saga, and do not wait for it.

        Args:
            saga: Its definition.
            input: What it is about.
            id: Its identity. A second start with the same id and input answers the saga that is there.
            correlation_id: What it belongs to.
            deadline: Seconds for its way forward, in place of the definition's.
            tx: Your own transaction on the engine's database: the saga exists if you commit, and begins then.
        """
        check_known(self, saga, id)
        key = new_id(saga, id, correlation_id)
        given = checked_input(saga, input)
        within = saga.deadline if deadline is None else checked(f"saga {saga.name!r}", "deadline", Duration(), deadline)
        record = Record(
            id=key, type=saga.name, version=saga.version, input=given, data=saga.first_state(),
            correlation_id=correlation_id, redact=saga.redact,
        )  # fmt: skip
        mine = tx is None and self._work is not None and self.takes
        if mine:
            decision = begin(record, saga.shape, self.now())
        else:
            steps = {step.name: StepRecord() for step in saga.steps}
            decision = Decision(replace(record, steps=steps))
        new = NewSaga(
            id=key, type=saga.name, version=saga.version, kind="orchestrated", state=decision.record.state,
            document=encoded(decision.record), step=decision.record.current(), correlation_id=correlation_id,
            deadline=within, due=self.lease if mine else 0.0, owner=self.owner if mine else None,
            emit=self.rows(decision, ()),
        )  # fmt: skip
        crash_point("saga.before_create")
        row, created = await (self.writer.create(new) if tx is None else self.store.create(new, tx=tx))
        crash_point("saga.after_create")
        self.learn(row)
        if not created:
            check_same(row, saga, given)
        elif mine:
            self.saved(decision, emitted=bool(new.emit))
            decision = replace(
                decision, record=replace(decision.record, created_at=row.created_at, deadline_at=row.deadline_at)
            )
            if row.deadline_at is not None:
                look = row.deadline_at if decision.look_at is None else min(decision.look_at, row.deadline_at)
                decision = replace(decision, look_at=None if decision.record.ended else look)
            self.drive(saga, decision.record, row, decision)
        elif tx is None or not when_committed(tx, lambda _: self._wake()):
            self._wake()
        return Handle(self, saga, key, created=created)

    def _wake(self) -> None:
        self.engine.wakeup.notify(WAKEUP)
        self.stir.set()

    async def observe(self, event: Event, *, tx: Any = None) -> bool:
        """Take note of an event of a choreographed saga; False: it belongs to none that is known here."""
        return await self.tracker.observe(event, tx=tx)

    def follow(self, consumer: Consumer) -> None:
        """Have a consumer's events followed: all that a choreography knows."""
        self.tracker.follow(consumer)

    def handle(self, saga: Saga[Any, Any, R], id: str) -> Handle[R]:
        """A handle of a saga that was started before, perhaps elsewhere."""
        return Handle(self, saga, id, created=False)

    async def wait(self, id: str, timeout: Seconds | None = None) -> Record:
        """Wait until a saga has ended or cannot go on without an operator, whoever carries it on."""
        return await until_over(self, id, None if timeout is None else self._checked("timeout", Duration(), timeout))

    # ------------------------------------------------------------------ life

    async def __aenter__(self) -> Self:
        if self._work is not None:
            raise RuntimeError(f"orchestrator {self.name!r} is running already")
        self.stopping = False
        if self._stopped:
            self.threads, self._stopped = self._new_threads(), False
        self._work = asyncio.create_task(self._watcher.run(), name=f"orchestrator {self.name!r}")
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def serve(self) -> None:
        """Work until cancelled: for a process that only carries sagas on."""
        async with self:
            assert self._work is not None
            await asyncio.shield(self._work)

    async def stop(self, grace: Seconds = 10.0) -> None:
        """Take nothing more, let what is under way end for so many seconds, and leave the rest to others."""
        work, self._work = self._work, None
        if work is None:
            return
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        length = self._checked("grace", Duration(zero=True), grace)
        if self._tasks and length:
            if length > self.lease / 2:  # nobody holds on to them any more, and others must not begin them meanwhile
                await self._extend(list(self.drivers), self.lease + length)
            await asyncio.wait(set(self._tasks), timeout=length)
        self.stopping = True
        left = dict(self.drivers)
        for task in set(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._extend(list(left), 0.0)  # due now: others need not wait for the lease
        self.threads.shutdown(wait=False)
        self._stopped = True

    async def _extend(self, ids: list[str], seconds: float) -> None:
        try:
            await self.store.extend(self.owner, ids, seconds)
        except Exception as trouble:
            report_trouble(f"orchestrator {self.name!r} could not give back its sagas; their leases run out", trouble)

    def drive(self, saga: Any, record: Record, row: SagaRow, decision: Decision | None) -> None:
        """Carry a saga on; without a decision it was somebody else's before."""
        driver = Driver(self, saga, record, row.revision)
        self.drivers[row.id] = driver
        self.soon(driver.run(decision))

    def soon(self, work: Any) -> None:
        """Do it in a task of its own."""
        # A saga outlives the request that started it: that one's deadline is not the saga's.
        context = copy_context()
        context.run(AMBIENT.set, None)
        task = asyncio.get_running_loop().create_task(work, context=context)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            report_trouble(f"orchestrator {self.name!r} dropped a saga; it is taken up when its lease is over", error)

    # ------------------------------------------------------------------ for drivers

    def now(self) -> float:
        """The store's time, as far as we know it."""
        return self.clock.time() + self._skew

    def learn(self, row: SagaRow) -> None:
        """What time it is at the store."""
        self._skew = row.now - self.clock.time()

    def rows(self, decision: Decision, emitted: Iterable[tuple[Event, str | None]]) -> list[OutboxRow]:
        """What is written to the outbox together with a decision."""
        rows = [row_of(event, topic or self.topic) for event, topic in emitted]
        if self.announce is not None:
            said = reporting.announcements(decision.record, decision.entries, self.source)
            rows.extend(row_of(event, self.announce) for event in said)
        return rows

    def saved(self, decision: Decision, *, emitted: bool) -> None:
        """A decision of ours counts now: count it, and tell those who listen."""
        record = decision.record
        if emitted:
            self.engine.wakeup.notify(OUTBOX)
        heard = bool(self.subscriptions or hearing.everywhere)
        for entry in decision.entries:
            if (word := reporting.COUNTED.get(entry.what)) is not None:
                self.counts[record.type, word] += 1
            if heard and (event := reporting.event_of(record, entry)) is not None:
                hearing.tell(event, self.subscriptions)

    def driven(self, driver: Driver) -> None:
        """A saga is out of our hands."""
        if self.drivers.get(driver.record.id) is driver:
            del self.drivers[driver.record.id]
        if len(self.drivers) + 1 >= self.concurrency:
            self.stir.set()  # there was no room, and now there is

    def report_late(self, id: str, report: Report) -> None:
        """A step was done after we had stopped waiting for it."""
        if (driver := self.drivers.get(id)) is not None:
            driver.tell(report)
        elif isinstance(report.happening, Done):
            self.soon(note_late(self, id, report))

    def pass_on(self, id: str, order: Order, asked: asyncio.Future[Record]) -> None:
        """A saga that was ours is not, and somebody has asked us about it."""
        self.soon(pass_on(self, id, order, asked))

    def driver_of(self, id: str) -> Driver | None:
        """Who carries on a saga here, if anybody does."""
        return self.drivers.get(id)

    # ------------------------------------------------------------------ being watched

    def subscribe(self, listener: Listener, *types: builtins.type[events.Event]) -> Subscription:
        """Hear what happens to the sagas that are in this process's hands."""
        subscription = Subscription(listener, types, self._unsubscribe)
        self.subscriptions = (*self.subscriptions, subscription)
        return subscription

    def _unsubscribe(self, subscription: Subscription) -> None:
        self.subscriptions = tuple(other for other in self.subscriptions if other is not subscription)

    def snapshot(self) -> Mapping[str, Any]:
        """Numbers for exporters, the control plane and tests; counts are of this process, by type of saga."""
        by_type: dict[str, dict[str, int]] = {}
        for (type, word), count in self.counts.items():
            by_type.setdefault(type, {})[word] = count
        return {
            "name": self.name, "type": self.type, "owner": self.owner, "driving": len(self.drivers),
            "definitions": list(self.definitions.keys()), "clock_skew": self._skew, "counts": by_type,
        }  # fmt: skip

    def __repr__(self) -> str:
        return f"<Orchestrator {self.name!r} of {', '.join(self.definitions.keys())} on {self.engine.name}>"
