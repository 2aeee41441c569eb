"""What waits in the stores, and what happened to it, for the same exporters that show policies.

Depths and ages are what the store itself said at the last sample. They are never counted up and down here: such a
number is wrong after the first restart. What can only be counted (written, delivered, replayed, ...) is counted from
events.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, Self

from everkeel.errors import ConfigError
from everkeel.runtime.clock import Clock
from everkeel.runtime.settings import Duration, Seconds
from everkeel.runtime.trouble import report, warn
from everkeel.telemetry import measuring
from everkeel.telemetry.happened import EventCounts
from everkeel.telemetry.names import Measurement, identity

if TYPE_CHECKING:
    from everkeel.engines.protocols import Engine

EVERY = 5.0

OUTCOMES = (
    "handled", "duplicates", "in_progress", "redelivered", "dead_lettered", "parked", "rejected", "lost", "not_buried",
    "ignored", "early",
)  # fmt: skip
"""What consumers count."""


class Consuming(Protocol):
    """A consumer, as far as it is measured."""

    name: str

    def snapshot(self) -> dict[str, Any]:
        """Its numbers."""
        ...


class Relaying(Protocol):
    """A relay, as far as it is measured."""

    name: str

    def measure(self) -> Iterable[Measurement]:
        """What only it knows."""
        ...


class StoreMetrics:
    """Reads the stores of an engine every few seconds, while it runs, and counts what happens to events and sagas.

    The numbers are shown by every exporter of this process: `PolicyCollector`, `EverkeelInstrumentor`. All processes
    that share a store say the same about it, so add up what they count, and take the maximum of its depths and ages;
    or run this in one of them, such as the one with the relay.

    A sample that fails changes nothing: the last numbers stay, `everkeel.store.sample_age` grows, and it is reported
    once. So a dashboard does not fall to zero because a database is away.

    Args:
        engine: Whose outbox, dead letters and sagas to read.
        name: The attribute `store` of its numbers; the engine's name by default. Two engines of one kind in one process
            need names of their own.
        every: Seconds between two samples; 5. Each is a few aggregate queries.
        consumers: Consumers whose counts (handled, redelivered, lost, ...) are shown too.
        relays: Relays of this process whose numbers (paused, in flight, outages, purged) are shown too.
        clock: Where its time comes from, in place of the engine's.

    >>> import asyncio
    >>> from everkeel.engines import MemoryEngine
    >>> from everkeel.telemetry.measuring import measure_all
    >>> async def main() -> None:
    ...     async with MemoryEngine() as engine, StoreMetrics(engine):
    ...         depths = [row for row in measure_all() if row.name == "everkeel.outbox.depth"]
    ...         print([(row.attributes["state"], row.value) for row in depths])
    >>> asyncio.run(main())
    [('due', 0), ('leased', 0), ('delayed', 0), ('parked', 0)]
    """

    def __init__(
        self,
        engine: Engine,
        *,
        name: str | None = None,
        every: Seconds = EVERY,
        consumers: Iterable[Consuming] = (),
        relays: Iterable[Relaying] = (),
        clock: Clock | None = None,
    ) -> None:
        self.engine = engine
        self.name = engine.name if name is None else name
        if not isinstance(self.name, str) or not self.name:
            raise ConfigError("store metrics", "name", "must be a non-empty string", repr(name))
        try:
            self.every = Duration().check(every)
        except ValueError as error:
            raise ConfigError(f"store metrics {self.name!r}", "every", str(error), repr(every)) from None
        self.consumers, self.relays = tuple(consumers), tuple(relays)
        self.clock = clock or engine.clock
        self._last: dict[str, list[Measurement]] = {}
        self._seen: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], None]] = {}
        self._sampled_at = self.clock.monotonic()
        self._failing = False
        self._task: asyncio.Task[None] | None = None

    # ------------------------------------------------------------------ running

    async def start(self) -> None:
        """Take the first sample, and go on in the background."""
        if self._task is not None:
            raise RuntimeError(f"store metrics {self.name!r} run already")
        self._sampled_at = self.clock.monotonic()  # how long it has been in vain, if the first one fails
        _begin(self)
        try:
            await self.sample()
            self._task = asyncio.create_task(self._run(), name=f"store metrics {self.name!r}")
        except BaseException:
            _end(self)
            raise

    async def stop(self) -> None:
        """Sample no more, and show nothing any more."""
        task, self._task = self._task, None
        if task is not None:
            _end(self)
            task.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait({task})

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    async def _run(self) -> None:
        while True:
            await self.clock.asleep(self.every)
            await self.sample()

    # ------------------------------------------------------------------ reading the stores

    async def sample(self) -> bool:
        """Read every store now; answers whether all of them could be."""
        trouble: Exception | None = None
        parts = {
            "outbox": self._outbox, "dead letters": self._dead_letters, "sagas": self._sagas, "database": self._vitals,
        }  # fmt: skip
        for part, read in parts.items():
            try:
                measured = await read()
            except Exception as error:
                trouble = trouble or error
            else:
                self._last[part] = self._with_those_gone(part, measured)
        if trouble is None:
            self._sampled_at = self.clock.monotonic()
            if self._failing:
                warn("store metrics %r: the stores can be read again", self.name)
        elif not self._failing:  # once, and not every few seconds for as long as a database is away
            report(f"store metrics {self.name!r}: the stores cannot be read; their last numbers stay", trouble)
        self._failing = trouble is not None
        return trouble is None

    async def _outbox(self) -> list[Measurement]:
        from everkeel.messaging.relay.numbers import waiting

        who = self._who("outbox", "outbox")
        return [_of(who, one) for one in waiting(await self.engine.outbox.stats())]

    async def _dead_letters(self) -> list[Measurement]:
        store = getattr(self.engine, "dead_letters", None)
        if store is None:
            return []
        from everkeel.engines.letters import UNRESOLVED

        tally = await store.tally()
        found = [
            Measurement(
                "everkeel.dlq.depth", count, {**self._who(consumer, "dead_letters"), "reason": reason, "status": status}
            )
            for (consumer, reason, status), count in tally.items()
        ]
        ages = await store.oldest()
        found += [
            Measurement("everkeel.dlq.oldest_age", age, self._who(consumer, "dead_letters"))
            for consumer, age in ages.items()
        ]
        for watched in self.consumers:
            name, most = watched.name, getattr(getattr(watched, "dead_letters", None), "most", None)
            if most is not None:
                counts = (n for (who, _, status), n in tally.items() if who == name and status in UNRESOLVED)
                found.append(Measurement("everkeel.dlq.filled", sum(counts) / most, self._who(name, "dead_letters")))
        return found

    async def _sagas(self) -> list[Measurement]:
        store = getattr(self.engine, "sagas", None)
        if store is None:
            return []
        from everkeel.engines.sagas import TERMINAL

        found = []
        for type, stats in (await store.stats()).items():
            who = self._who(type, "saga")
            for state, count in stats.by_state.items():
                if state not in TERMINAL:
                    found.append(Measurement("everkeel.saga.active", count, {**who, "state": state.value}))
            found.append(Measurement("everkeel.saga.oldest_age", stats.oldest_active, who))
            found.append(Measurement("everkeel.saga.unsettled", stats.unsettled, who))
        return found

    async def _vitals(self) -> list[Measurement]:
        ask = getattr(self.engine, "vitals", None)
        if ask is None:  # a database within this process: its clock is ours
            return []
        vitals, who = await ask(), self._who(self.name, "store")
        return [
            Measurement("everkeel.store.clock_skew", vitals.clock_skew, who),
            Measurement("everkeel.store.oldest_transaction_age", vitals.oldest_transaction, who),
            Measurement("everkeel.store.xmin_age", vitals.xmin_age, who),
        ]

    def _who(self, name: str, type: str) -> dict[str, str]:
        return {**identity(name, type), "store": self.name}

    def _with_those_gone(self, part: str, measured: list[Measurement]) -> list[Measurement]:
        """What was there in an earlier sample and is gone is zero: else a graph would stop where it should fall."""
        seen = self._seen.setdefault(part, {})
        now = {(row.name, tuple(row.attributes.items())) for row in measured}
        gone = [Measurement(name, 0, dict(attributes)) for name, attributes in seen if (name, attributes) not in now]
        seen.update(dict.fromkeys(now))
        return [*measured, *gone]

    # ------------------------------------------------------------------ being read

    def measure(self) -> Iterator[Measurement]:
        """The last numbers of the stores, and what its consumers, its relays and the engine counted."""
        for rows in list(self._last.values()):
            yield from rows
        for consumer in self.consumers:
            snapshot, who = consumer.snapshot(), identity(consumer.name, "consumer")
            for outcome in OUTCOMES:
                yield Measurement("everkeel.consumer.events", snapshot[outcome], {**who, "outcome": outcome})
        for relay in self.relays:
            who = self._who(relay.name, "relay")
            yield from (_of(who, one) for one in relay.measure())
        counts = getattr(self.engine, "counts", None)
        if counts is not None:
            who = self._who(self.name, "store")
            for kind, number in counts.conflicts.items():
                yield Measurement("everkeel.store.conflicts", number, {**who, "kind": kind})
            for scope, results in counts.begun.items():
                for result, number in results.items():
                    yield Measurement("everkeel.inbox.begin", number, {**self._who(scope, "inbox"), "result": result})
            for type, number in counts.sagas_claimed.items():
                yield Measurement("everkeel.saga.claimed", number, self._who(type, "saga"))
        age = max(0.0, self.clock.monotonic() - self._sampled_at)
        yield Measurement("everkeel.store.sample_age", age, self._who(self.name, "store"))


def _of(who: dict[str, str], one: Measurement) -> Measurement:
    return Measurement(one.name, one.value, {**who, **one.attributes})


# ------------------------------------------------------------------ those that run in this process

_running: tuple[StoreMetrics, ...] = ()
_counts: EventCounts | None = None
_changing = threading.Lock()


def _begin(one: StoreMetrics) -> None:
    """Let exporters read it. However many run, what happens is counted once."""
    global _running, _counts
    with _changing:
        if any(other.name == one.name for other in _running):
            allowed = "must differ from that of other store metrics in this process"
            raise ConfigError(f"store metrics {one.name!r}", "name", allowed, repr(one.name))
        _running = (*_running, one)
        if _counts is None:
            _counts = EventCounts()
            measuring.sources = (*measuring.sources, _measure)


def _end(one: StoreMetrics) -> None:
    global _running, _counts
    with _changing:
        _running = tuple(other for other in _running if other is not one)
        if not _running and _counts is not None:
            _counts.close()
            _counts = None
            measuring.sources = tuple(source for source in measuring.sources if source is not _measure)


def _measure() -> Iterator[Measurement]:
    counts = _counts
    if counts is not None:
        yield from counts.measure()
    for one in _running:
        yield from one.measure()


def _after_fork() -> None:
    """No task of the parent runs here: what it showed would be old for ever."""
    global _changing
    _changing = threading.Lock()
    for one in _running:
        _end(one)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
