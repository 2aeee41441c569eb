"""What the user holds to deliver events: `Relay(outbox)`."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self
from uuid import uuid4

from everkeel.engines.letters import OUTBOX
from everkeel.engines.rows import Claimed, OutboxStats
from everkeel.messaging.dead_letters.service import DeadLetters
from everkeel.messaging.outbox import WAKEUP, Outbox
from everkeel.messaging.relay.batch import Batch
from everkeel.messaging.relay.config import RelayConfig
from everkeel.messaging.relay.core import TopicHealth, by_topic, leases, suspect
from everkeel.messaging.relay.ending import PATIENCE, ended, within
from everkeel.messaging.relay.numbers import Counters, RelayStats, attempted, waiting, working
from everkeel.messaging.relay.pacing import Pacing
from everkeel.runtime.backoff import Backoff, Jitter, exponential
from everkeel.runtime.clock import Clock
from everkeel.runtime.configured import Part
from everkeel.runtime.crash import crash_point
from everkeel.runtime.settings import Mode, Seconds, seconds
from everkeel.runtime.trouble import report, warn
from everkeel.telemetry.names import Measurement, label

if TYPE_CHECKING:
    from everkeel.messaging.transports.protocol import Transport


WATCH = 10.0
"""Seconds between two looks at what waits, for those who scrape."""


class Relay(Part[RelayConfig]):
    """Delivers what the outbox holds: at least once, in order per key, several keys and topics beside each other.

    Run it as a block or with `await relay.run()`. Several relays, in one process or on many machines, share the work.

    It wakes when something is written and polls as the safety net. An event that a transport refuses is tried again
    with growing delays, and after `attempts` failures becomes a dead letter; later events of its key then wait for it.
    A transport that is away counts against no event: the topic is left alone for a while, for as long as it takes.
    An event whose relay dies twice is published alone from then on, and after `attempts` more deaths is a dead letter.

    Args:
        outbox: What to deliver.
        transport: How; the outbox's own by default.
        batch: How many events are claimed at once.
        poll: Seconds between two looks when nobody signals.
        lease: Seconds for which a claim holds without being renewed: how long events of a relay that died wait.
        attempts: Failures after which an event becomes a dead letter. None: never.
        backoff: Delay after the n-th failure of an event.
        jitter: Randomness of the delays.
        outage_backoff: Delay after the n-th time in a row that a topic could not be reached.
        concurrency: How many batches are published at once.
        per_topic: How many of them of one topic, so that a slow topic leaves room for the others.
        publish_timeout: Seconds after which a transport that does not answer counts as away.
        park: Let later events of a dead letter's key wait until it is replayed or discarded. False: they go on.
        maintenance: Seconds between two rounds of purging what was delivered.
        dead_letters: By whose settings dead letters of the outbox are kept; 7 days by default.
        name: Its identity in messages; the outbox's by default.
        mode: "enforce", or "off": it delivers nothing.
        clock: Where its time comes from, in place of the outbox's.
    """

    type = "relay"

    def __init__(
        self,
        outbox: Outbox,
        *,
        transport: Transport | None = None,
        batch: int = 100,
        poll: Seconds = 1.0,
        lease: Seconds = 30.0,
        attempts: int | None = 5,
        backoff: Backoff | Any = exponential(1.0, factor=2, max=60),
        jitter: Jitter = "full",
        outage_backoff: Backoff | Any = exponential(0.5, factor=2, max=30),
        concurrency: int = 8,
        per_topic: int = 2,
        publish_timeout: Seconds = 30.0,
        park: bool = True,
        maintenance: Seconds = 60.0,
        dead_letters: DeadLetters | None = None,
        name: str | None = None,
        mode: Mode = "enforce",
        clock: Clock | None = None,
    ) -> None:
        values = {
            "batch": batch, "poll": poll, "lease": lease, "attempts": attempts, "backoff": backoff, "jitter": jitter,
            "outage_backoff": outage_backoff, "concurrency": concurrency, "per_topic": per_topic,
            "publish_timeout": publish_timeout, "park": park, "maintenance": maintenance, "mode": mode,
        }  # fmt: skip
        name = name or outbox.name
        super().__init__(name, RelayConfig.make(name, values))
        self.outbox = outbox
        self.store = outbox.engine.outbox
        self._transport = transport
        if dead_letters is None and hasattr(outbox.engine, "dead_letters"):
            dead_letters = DeadLetters(outbox.engine)
        self._letters = dead_letters
        self.clock = clock or outbox.clock
        self.counters = Counters()
        self.pacing = Pacing(lambda: self.config, self.clock)
        self.owner = f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex[:8]}"
        self.paused = self.config.mode == "off"
        self._health: dict[str, TopicHealth] = {}
        self._batches: set[asyncio.Task[None]] = set()
        self._held: dict[asyncio.Task[None], list[Claimed]] = {}
        self._abandoned: list[Claimed] = []  # what we could not write down the end of, for want of the store
        self._one_by_one = False
        self._unwritten = 0  # batches in a row whose end could not be written down
        self._resting_until = 0.0
        self._stir = asyncio.Event()
        self._stopping = False
        self._ends_at = 0.0
        self._overdue = asyncio.Event()  # what is not done by now is given up
        self._ended_running = asyncio.Event()
        self._ended_running.set()
        self._running: asyncio.Task[None] | None = None
        self._warned = False
        self._store_failures = 0
        self._seen: OutboxStats | None = None

    def _take(self, new: RelayConfig) -> None:
        switched = new.mode != self.config.mode
        super()._take(new)
        if switched:  # a pause of an operator stays one, whatever else is changed
            self.paused = new.mode == "off"

    @property
    def transport(self) -> Transport | None:
        """How events travel; the outbox's transport unless the relay has its own. May be set at any time."""
        return self._transport or self.outbox.transport

    @transport.setter
    def transport(self, transport: Transport | None) -> None:
        self._transport = transport
        self._stir.set()

    # ------------------------------------------------------------------ life

    async def run(self) -> None:
        """Deliver until stopped or cancelled; what is under way then is finished or given back."""
        self._begin()
        await self._run()

    def _begin(self) -> None:
        self._stopping = False
        self._overdue.clear()
        self._ended_running.clear()

    async def _run(self) -> None:
        helpers = [
            asyncio.ensure_future(self._listen()),
            asyncio.ensure_future(self._maintain()),
            asyncio.ensure_future(self._watch()),
        ]
        looping = asyncio.ensure_future(self._loop())
        overdue = asyncio.ensure_future(self._overdue.wait())
        try:
            # Not simply awaited: a claim from a store that has gone silent ends when the network says so, or never.
            await asyncio.wait({looping, overdue}, return_when=asyncio.FIRST_COMPLETED)
            if looping.done():
                await looping
        finally:
            try:
                await ended([looping, overdue, *helpers])
                await self._finish(max(0.0, self._ends_at - self.clock.monotonic()) if self._stopping else 0.0)
            finally:
                self._ended_running.set()

    async def _loop(self) -> None:
        while not self._stopping:
            self._stir.clear()
            if await self._claim():
                continue
            await self._wait()

    async def stop(self, within: Seconds = 10.0) -> None:
        """Claim nothing more, finish what is under way within so many seconds, and give back the rest. It ends a few
        seconds later at most, whatever has gone silent; leases that could not be given back run out by themselves."""
        length = seconds(within)
        self._ends_at = self.clock.monotonic() + length
        self._stopping = True
        self._stir.set()
        timer = self.clock.later(asyncio.get_running_loop(), length, self._overdue.set)
        try:
            await self._ended_running.wait()
        finally:
            timer.cancel()
        if self._running is not None:
            running, self._running = self._running, None
            await running

    async def _finish(self, within_seconds: float) -> None:
        if self._batches:
            await asyncio.wait(set(self._batches), timeout=within_seconds)
        held = [claimed for rows in self._held.values() for claimed in rows]
        await ended(set(self._batches))
        if held:
            await within(PATIENCE[0], self._give_back(held))

    async def _give_back(self, held: list[Claimed]) -> None:
        await self.store.release(leases(held))

    async def __aenter__(self) -> Self:
        self._begin()  # here and not in the task: whoever leaves the block at once stops what has not begun yet
        self._running = asyncio.ensure_future(self._run())
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    def pause(self) -> None:
        """Claim nothing until `resume`; what is under way goes on."""
        self.paused = True

    def resume(self) -> None:
        """Go on."""
        self.paused = False
        self._stir.set()

    async def flush(self) -> int:
        """Deliver what is due now and return how many that were: for tests, scripts and scheduled jobs."""
        before = self.counters.delivered
        self._stopping = False
        while await self._claim(raising=True) or self._batches:
            if self._batches:
                await asyncio.wait(set(self._batches), return_when=asyncio.FIRST_COMPLETED)
        return self.counters.delivered - before

    async def stats(self) -> RelayStats:
        """The relay's counters, and what the store says is waiting."""
        mine = {name: getattr(self.counters, name) for name in Counters.__slots__}
        return RelayStats(outbox=await self.store.stats(), in_flight=self._in_flight(), paused=self.paused, **mine)

    def snapshot(self) -> dict[str, float]:
        """The numbers by their metrics' names, such as `everkeel.outbox.depth{state=due}`, for whoever scrapes without
        an exporter: what this relay counted, and what the store said was waiting when it was last asked, which a
        running relay does every ten seconds."""
        seen = [] if self._seen is None else waiting(self._seen)
        return {label(one): float(one.value) for one in (*attempted(self.counters), *self.measure(), *seen)}

    def measure(self) -> Iterator[Measurement]:
        """What only this relay knows: for `StoreMetrics(engine, relays=[relay])`."""
        return working(self.counters, self._in_flight(), self.paused)

    def _in_flight(self) -> int:
        return sum(map(len, self._held.values()))

    async def _watch(self) -> None:
        while True:
            with suppress(Exception):  # claims say when the store is away
                self._seen = await self.store.stats()
            await self.clock.asleep(WATCH)

    # ------------------------------------------------------------------ claiming

    async def _claim(self, *, raising: bool = False) -> bool:
        """Claim and start what is due; answers whether it is worth asking again at once."""
        most = 1 if self._one_by_one else self.config.concurrency
        now = self.clock.monotonic()
        if self.paused or not self._has_transport() or len(self._batches) >= most or now < self._resting_until:
            return False
        closed = [topic for topic, health in self._health.items() if health.closed(now, self.config.per_topic)]
        try:
            await self._release_abandoned()
            claimed = await self.store.claim(self.owner, self.config.batch, self.config.lease, without=closed)
        except Exception as error:
            if raising:
                raise
            await self._store_is_away(error)
            return False
        self._store_failures = 0
        if self._stopping and claimed:  # told to stop while we asked
            await self.store.release(leases(claimed))
            return False
        crash_point("relay.after_claim")
        alone = suspect(claimed)
        self._one_by_one = alone is not None
        if alone is not None:
            claimed = await self._only(alone, claimed)
        for topic, rows in by_topic(claimed).items():
            self._start(topic, rows)
        return len(claimed) == self.config.batch

    async def _only(self, alone: Claimed, claimed: list[Claimed]) -> list[Claimed]:
        """One event that may kill us, with nothing beside it: the rest must not share its fate, nor its count."""
        kept = [] if self._batches else [alone]  # with something under way, wait for its end and ask again
        rest = [one for one in claimed if one not in kept]
        try:
            await self.store.release(leases(rest))
        except Exception as error:
            self._abandoned.extend(rest)
            report(f"relay {self.name!r} could not give back what it had claimed", error)
        return kept

    async def _release_abandoned(self) -> None:
        """A store that was away is no dead relay: what we had goes back as if we had never had it."""
        if self._abandoned:
            await self.store.release(leases(self._abandoned))
            self._abandoned.clear()

    def _has_transport(self) -> bool:
        if self.transport is not None:
            return True
        if not self._warned:
            self._warned = True
            warn("relay %r has no transport: events are kept in the outbox and delivered when there is one", self.name)
        return False

    async def _store_is_away(self, error: Exception) -> None:
        self._store_failures += 1
        delay = self.config.outage_backoff.delay(self._store_failures)
        if self._store_failures == 1:
            report(f"relay {self.name!r} cannot reach its outbox and goes on trying", error)
        await self._wait(delay)

    def _start(self, topic: str, rows: list[Claimed]) -> None:
        health = self._health.setdefault(topic, TopicHealth())
        health.in_flight += 1
        task = asyncio.ensure_future(Batch(self, rows, health).deliver())
        self._batches.add(task)
        self._held[task] = rows
        task.add_done_callback(lambda done: self._ended(done, topic, health))

    def _ended(self, task: asyncio.Task[None], topic: str, health: TopicHealth) -> None:
        health.in_flight -= 1
        if health.in_flight == 0 and health.window is None:
            self._health.pop(topic, None)  # nothing to remember about it, and topics may be many
        self._batches.discard(task)
        held = self._held.pop(task, [])
        self._stir.set()
        if task.cancelled():
            return
        if (error := task.exception()) is None:
            self._unwritten = 0
        else:
            # The store is away in the middle of it. What was not written down is delivered again.
            if isinstance(error, Exception):
                self._abandoned.extend(held)
                self._rest()
            report(f"relay {self.name!r} could not write down what became of a batch", error)

    def _rest(self) -> None:
        """Who publishes without being able to write it down sends the same again and again: not so fast."""
        self._unwritten += 1
        delay = self.config.outage_backoff.delay(self._unwritten)
        self._resting_until = max(self._resting_until, self.clock.monotonic() + delay)
        self.pacing.due_in(delay)

    # ------------------------------------------------------------------ waiting

    async def _wait(self, seconds: float | None = None) -> None:
        """Wait until there may be work: a signal, the end of a batch, a delay that is over, or the poll."""
        timeout = self.pacing.look_in(self._health.values()) if seconds is None else seconds
        loop = asyncio.get_running_loop()
        timer = self.clock.later(loop, timeout, self._stir.set)
        try:
            await self._stir.wait()
        finally:
            timer.cancel()

    async def _listen(self) -> None:
        while True:
            if await self.outbox.engine.wakeup.wait(WAKEUP, 3600.0):
                self._stir.set()

    async def _maintain(self) -> None:
        while True:
            await self.clock.asleep(self.config.maintenance * (0.75 + 0.5 * self.clock.random()))
            try:
                await self.maintain()
            except Exception as error:
                report(f"relay {self.name!r} could not clean up", error)

    async def maintain(self, step: int = 1000) -> int:
        """Purge what was delivered long enough ago, in steps small enough to disturb nobody; answers how many. Dead
        letters of the outbox that are too old are purged as well."""
        await self.store.park(step)
        keep: float = getattr(self.outbox.engine, "keep_delivered", 86_400.0)
        purged = 0
        while (gone := await self.store.purge(keep, step)) > 0:
            purged += gone
            self.counters.purged += gone
            if gone < step:
                break
            await self.clock.asleep(0.05)
        if self._letters is not None:
            await self._letters.purge(consumer=OUTBOX)
        return purged

    def __repr__(self) -> str:
        return f"<Relay {self.name!r} of {self.outbox!r}>"
