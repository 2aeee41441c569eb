"""What the user holds to write events: `Outbox(engine)`."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from everkeel.engines.protocols import Engine
from everkeel.engines.rows import OutboxRow, OutboxStats
from everkeel.engines.sql.runners import begun, begun_sync, need_transaction
from everkeel.errors import ConfigError, EventError, PublishError
from everkeel.messaging.commits import when_committed
from everkeel.messaging.event import Event, checked_topic
from everkeel.messaging.rows import row_of
from everkeel.messaging.tracing import sending, traced
from everkeel.messaging.transports.protocol import CONFIRMED, Message, Published, Transport
from everkeel.runtime import events as hearing
from everkeel.runtime.clock import Clock
from everkeel.runtime.configured import Part
from everkeel.runtime.crash import crash_point
from everkeel.runtime.events import Listener, Subscription
from everkeel.runtime.settings import Choice, Count, Duration, Mode, Seconds, Settings, setting
from everkeel.runtime.trouble import warn

if TYPE_CHECKING:
    from everkeel import events
    from everkeel.messaging.relay.relay import Relay

WAKEUP = "outbox"
"""What relays listen to."""

MOST_DELAY = 1e9
"""Seconds for which an event can be held back: thirty years, within what every store can write as a moment."""

Topic: TypeAlias = str | Callable[[Event], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class OutboxConfig(Settings):
    """The settings of an outbox; `Outbox` says what each is for."""

    policy_type: ClassVar[str] = "outbox"

    mode: Mode = setting(Choice("enforce", "off"), default="enforce")  # an event is written, or it is not
    max_size: int = setting(Count(at_least=1), default=1_048_576)


class Outbox(Part[OutboxConfig]):
    """Writes events into the transaction that changes the data they are about, so that neither exists alone.

    A `Relay` delivers them afterwards, at least once, in order per key. With `mode="off"` (in configuration `enabled:
    false`) there is no outbox: events are published at once, and an error says if that did not work.

    Args:
        engine: Where events are kept: a `SQLiteEngine`, a `PostgresEngine`, a `MemoryEngine`.
        transport: How they travel. Without one they are kept, and delivered when there is one.
        name: Its identity in errors, events and metrics.
        topic: Where events are published unless `write` says otherwise: one topic, or a function of the event. One
            topic for everything keeps the order of a key across types of events.
        max_size: Bytes that an event may have, envelope included; 1 MiB. What is larger belongs into a file that the
            event points to.
        mode: "enforce", or "off".
        clock: Where its time comes from, in place of the engine's.

    >>> import asyncio
    >>> from everkeel.engines import MemoryEngine
    >>> async def main() -> int:
    ...     async with MemoryEngine() as engine:
    ...         outbox = Outbox(engine)
    ...         await outbox.write(Event("order.placed", {"order": 7}, source="/orders", key="order-7"))
    ...         return (await outbox.stats()).depth
    >>> asyncio.run(main())
    1
    """

    type = "outbox"

    def __init__(
        self,
        engine: Engine,
        *,
        transport: Transport | None = None,
        name: str = "outbox",
        topic: Topic = "events",
        max_size: int = 1_048_576,
        mode: Mode = "enforce",
        clock: Clock | None = None,
    ) -> None:
        super().__init__(name, OutboxConfig.make(name, {"max_size": max_size, "mode": mode}))
        self.engine = engine
        self.transport = transport
        self.topic = topic
        self.clock = clock or engine.clock
        able = engine.capabilities
        if self.config.mode == "enforce" and able.durable == "replicated" and not able.linearizable:
            raise ConfigError(f"outbox {name!r}", "engine", "must not lose what it has confirmed", engine.name)

    # ------------------------------------------------------------------ writing

    async def write(
        self, event: Event | Iterable[Event], *, tx: Any = None, topic: str | None = None, delay: Seconds = 0.0
    ) -> None:
        """Write an event, or several in their order, in the transaction `tx`.

        Args:
            event: What happened.
            tx: Your transaction: a connection of asyncpg, psycopg or sqlite3, or a session or connection of SQLAlchemy,
                on the engine's database. Without one the event is written in a transaction of its own.
            topic: Where to publish it, in place of the outbox's own choice.
            delay: Seconds before which it is not delivered.
        """
        events = self._several(event)
        rows, wait = self._rows(events, topic), self._wait(delay)
        if self.config.mode == "off":
            await self._publish(events, rows)
            return
        if tx is not None:
            need_transaction(tx, self.engine.name)
        crash_point("outbox.before_write")
        await self.engine.outbox.append(rows, delay=wait, tx=tx)
        crash_point("outbox.after_write")
        self._written(rows, tx)

    def write_sync(
        self, event: Event | Iterable[Event], *, tx: Any = None, topic: str | None = None, delay: Seconds = 0.0
    ) -> None:
        """`write` for code without an event loop."""
        events = self._several(event)
        rows, wait = self._rows(events, topic), self._wait(delay)
        if self.config.mode == "off":
            self._publish_sync(events, rows)
            return
        if tx is not None:
            need_transaction(tx, self.engine.name)
        crash_point("outbox.before_write")
        self.engine.outbox.append_sync(rows, delay=wait, tx=tx)
        crash_point("outbox.after_write")
        self._written(rows, tx)

    def _several(self, event: Event | Iterable[Event]) -> list[Event]:
        # Whatever can be walked through, once: a generator that is looked at first has nothing left to write.
        events = list(event) if isinstance(event, Iterable) and not isinstance(event, Event) else [event]
        for one in events:
            if not isinstance(one, Event):
                raise EventError(f"outbox {self.name!r}", f"writes events (got {type(one).__qualname__})")
        return [traced(one) for one in events]

    def _rows(self, events: Sequence[Event], topic: str | None) -> list[OutboxRow]:
        rows = []
        for event in events:
            chosen = topic
            if chosen is None:
                chosen = self.topic(event) if callable(self.topic) else self.topic
            row = row_of(event, checked_topic(chosen, f"event {event.type!r}"))
            size = len(row.attributes) + len(event.body or b"")
            if size > self.config.max_size:
                raise EventError(
                    f"event {event.type!r}", f"has {size} bytes, and outbox {self.name!r} allows {self.config.max_size}"
                )
            rows.append(row)
        return rows

    def _wait(self, delay: Seconds) -> float:
        """The delay, if the store can keep it: a wrong one must not be what aborts the caller's transaction."""
        try:
            wait = Duration(zero=True).check(delay)
            if wait > MOST_DELAY:
                raise ValueError(f"must be at most {MOST_DELAY:g} seconds")
        except ValueError as error:
            raise ConfigError(f"outbox {self.name!r}", "delay", str(error), repr(delay)) from None
        return wait

    def _written(self, rows: Sequence[OutboxRow], tx: Any) -> None:
        if tx is None:
            self.wake()
        else:
            when_committed(tx, self._wake_over)
        if self.subscriptions or hearing.everywhere:
            from everkeel.events import EventWritten

            for row in rows:
                self.tell(EventWritten(
                    policy=self.name, policy_type=self.type, event_id=row.id, event_type=row.type, topic=row.topic
                ))  # fmt: skip

    def _publish_sync(self, events: Sequence[Event], rows: Sequence[OutboxRow]) -> None:
        if asyncio._get_running_loop() is not None:
            raise ConfigError(
                f"outbox {self.name!r}", "mode", "is off, and within an event loop only `await outbox.write(...)` can "
                "wait for the transport", None
            )  # fmt: skip
        asyncio.run(self._publish(events, rows))

    async def _publish(self, events: Sequence[Event], rows: Sequence[OutboxRow]) -> None:
        if self.transport is None:
            raise ConfigError(f"outbox {self.name!r}", "transport", "is needed where the outbox is off", "None")
        messages = [Message(row.topic, event) for row, event in zip(rows, events, strict=True)]
        with sending(messages, system=getattr(self.transport, "name", "everkeel")):
            results: Sequence[Published] = await self.transport.publish(messages)
            for event, published in zip(events, results, strict=True):
                if published.result is not CONFIRMED:
                    why = str(published.error or "no reason given")
                    error = PublishError(self.name, f"event {event.type!r}", published.result.value, why)
                    raise error from published.error

    # ------------------------------------------------------------------ transactions that wake the relay

    @asynccontextmanager
    async def transaction(self, connection: Any = None) -> AsyncIterator[Any]:
        """A transaction on your connection whose events are delivered at once: the relay is woken when it is committed.

        A transaction of your own that you give to `write` is as safe; its events may wait for the next poll.

            async with outbox.transaction(connection) as tx:
                await connection.execute("INSERT INTO orders ...")
                await outbox.write(event, tx=tx)
        """
        if connection is None:
            async with self.engine.transaction() as tx:
                yield tx
                crash_point("outbox.before_commit")
        else:
            async with begun(connection):
                yield connection
                crash_point("outbox.before_commit")
        crash_point("outbox.after_commit")
        through = getattr(self.engine.wakeup, "anotify_through", None)
        if through is None or connection is None:
            self.wake()
            return
        try:
            await through(WAKEUP, connection)
        except Exception as error:
            self._unheard(error)

    @contextmanager
    def transaction_sync(self, connection: Any) -> Iterator[Any]:
        """`transaction` for code without an event loop."""
        with begun_sync(connection):
            yield connection
            crash_point("outbox.before_commit")
        crash_point("outbox.after_commit")
        self._wake_over(lambda: nullcontext(connection))

    def _wake_over(self, connect: Callable[[], AbstractContextManager[Any]] | None = None) -> None:
        """Wake relays: over a connection of the caller's where there is no event loop to do it from. Nothing is raised
        here, for what the caller wanted has been committed."""
        through = getattr(self.engine.wakeup, "notify_through", None)
        if through is None or connect is None:
            self.wake()
            return
        try:
            through(WAKEUP, connect)
        except Exception as error:
            self._unheard(error)

    def _unheard(self, error: Exception) -> None:
        # The events are written; who polls will see them.
        warn("outbox %r could not wake relays of other processes: %s", self.name, error)

    def wake(self) -> None:
        """Tell relays that there is something to deliver: those of this process at once, others a moment later."""
        self.engine.wakeup.notify(WAKEUP)

    # ------------------------------------------------------------------ the rest

    def relay(self, **settings: Any) -> Relay:
        """A relay that delivers what is written here; see `Relay` for its settings."""
        from everkeel.messaging.relay.relay import Relay

        return Relay(self, **settings)

    async def stats(self) -> OutboxStats:
        """How much waits, how old the oldest is: counted by the store."""
        return await self.engine.outbox.stats()

    def subscribe(self, listener: Listener, *types: builtins.type[events.Event]) -> Subscription:
        """Hear what happens to the events of this outbox: written, delivered, failed, dead-lettered."""
        subscription = Subscription(listener, types, self._unsubscribe)
        self.subscriptions = (*self.subscriptions, subscription)
        return subscription

    def _unsubscribe(self, subscription: Subscription) -> None:
        self.subscriptions = tuple(other for other in self.subscriptions if other is not subscription)

    @property
    def heard(self) -> bool:
        """Does anybody listen?"""
        return bool(self.subscriptions or hearing.everywhere)

    def tell(self, event: events.Event) -> None:
        """Tell those who listen."""
        hearing.tell(event, self.subscriptions)

    def __repr__(self) -> str:
        return f"<Outbox {self.name!r} on {self.engine.name}>"
