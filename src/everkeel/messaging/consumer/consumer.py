"""What the user holds: `Consumer(...)`, whose handlers run once per event."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from everkeel.engines.protocols import Engine
from everkeel.engines.sequences import MOST_NUMBER
from everkeel.errors import ConfigError
from everkeel.idempotency import core as idempotency
from everkeel.idempotency.memory import MemoryIdempotencyStore
from everkeel.messaging.consumer import reporting
from everkeel.messaging.consumer.config import ConsumerConfig
from everkeel.messaging.consumer.core import Rules
from everkeel.messaging.consumer.handlers import Guarding, Handler, handler_of
from everkeel.messaging.consumer.intake import Intake
from everkeel.messaging.consumer.sequence import InSequence
from everkeel.messaging.dead_letters.service import DeadLetters
from everkeel.messaging.event import Event
from everkeel.messaging.inbox import Inbox
from everkeel.messaging.transports.protocol import Delivery, Subscription, Transport
from everkeel.runtime.backoff import Backoff, exponential
from everkeel.runtime.clock import DEFAULT, Clock
from everkeel.runtime.configured import Part
from everkeel.runtime.settings import Duration, Mode, Seconds

if TYPE_CHECKING:
    F = TypeVar("F", bound=Callable[..., Any])

HOUSEKEEPING = 60.0


class Consumer(Part[ConsumerConfig]):
    """Handles events: each once, in order per key, a few at a time; what cannot be handled becomes a dead letter.

    ::

        consumer = Consumer("billing", transport, topics="orders", engine=engine)

        @consumer.on("OrderCreated")
        async def bill(event, tx):
            await tx.execute("INSERT INTO invoices ...", event.data["order"])

        await consumer.run()

    A handler that takes `tx` does its work in a transaction of the engine, together with the record that the event was
    handled: its effects happen exactly once. One that does not is run at least once: if the process dies after the
    effect and before the record is written, it runs again. It can ask for `context` and pass `context.key` on.

    Args:
        name: Who handles: the scope of the inbox, and the transport's group.
        transport: Where deliveries come from.
        topics: What to receive.
        engine: Where the inbox and the dead letters are kept. Without one the inbox is in this process's memory, and
            there are no dead letters: what cannot be handled stays with the broker.
        inbox: An inbox of your own, in place of the engine's.
        dead_letters: Dead letters of your own settings, in place of the engine's.
        policies: A policy, a pipeline or a guard around every handler; a handler may have its own.
        attempts: How often an event is tried before it is given up on, crashed tries included.
        backoff: How long between tries: 1 s, doubling up to a minute. Other keys are not kept waiting.
        concurrency: How many handlers run at once.
        prefetch: How many deliveries are held at most, waiting ones included; twice the concurrency.
        lease: For how long the transport lends a delivery; extended while it is in our hands.
        patience: How long an event may be too early (`TooEarlyError`, `in_sequence_from`) before it is given up on.
        max_pause: How long at most a handler pauses when one of its policies says no.
        park_followers: Set events aside that come behind a dead letter of their key, and let them follow, in order,
            when that is handled or discarded. Costs a look at the dead letters for each event with a key.
        in_sequence_from: Take the events of each source and key in the order of their `sequence`, whose first number
            is this; "any": whichever comes first. One that comes early is set aside at no cost, until its turn or until
            nothing has moved for as long as `patience`; then it is a dead letter, and those behind it go on.
        dead_letter_topic: Publish a copy of each dead letter's event to this topic, through the outbox.
        on_rejected: Told of events that a handler rejects (`NotRetryable`): `on_rejected(event, error)`. Answer True
            (perhaps after awaiting) if it is dealt with, as a saga does that compensates; else it is a dead letter.
            After a crash in between it is told again.
        mode: "enforce", or "off": it takes nothing, and what comes waits with the broker.
        clock: Where its time comes from, in place of the engine's.
    """

    type = "consumer"

    def __init__(
        self,
        name: str,
        transport: Transport,
        *,
        topics: str | Sequence[str],
        engine: Engine | None = None,
        inbox: Inbox | None = None,
        dead_letters: DeadLetters | None = None,
        policies: Guarding | None = None,
        attempts: int = 5,
        backoff: Backoff | Seconds = exponential(1.0, factor=2.0, max=60.0),
        concurrency: int = 10,
        prefetch: int | None = None,
        lease: Seconds = 60.0,
        patience: Seconds = 3600.0,
        max_pause: Seconds = 30.0,
        park_followers: bool = False,
        in_sequence_from: int | Literal["any"] | None = None,
        dead_letter_topic: str | None = None,
        on_rejected: Callable[[Event, Exception], bool | Awaitable[bool | None] | None] | None = None,
        mode: Mode = "enforce",
        clock: Clock | None = None,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise ConfigError("consumer", "name", "must be a non-empty string", repr(name))
        values = {
            "mode": mode, "attempts": attempts, "backoff": backoff, "concurrency": concurrency, "prefetch": prefetch,
            "lease": lease, "patience": patience, "max_pause": max_pause, "park_followers": park_followers,
        }  # fmt: skip
        super().__init__(name, ConsumerConfig.make(name, values))
        self.transport = transport
        listed = tuple(topics) if isinstance(topics, Iterable) else ()
        self.topics = (topics,) if isinstance(topics, str) else listed
        if not self.topics or not all(isinstance(topic, str) and topic for topic in self.topics):
            raise ConfigError(self.label, "topics", "must name at least one topic", repr(topics))
        parts = {
            "transport": (transport, "subscribe", "a transport"), "engine": (engine, "transaction", "an engine"),
            "inbox": (inbox, "retain", "an Inbox"), "dead_letters": (dead_letters, "bury", "DeadLetters"),
            "on_rejected": (on_rejected, "__call__", "a function of an event and an error"),
        }  # fmt: skip
        for parameter, (given, has, what) in parts.items():
            if not hasattr(given, has) and (given is not None or parameter == "transport"):
                raise ConfigError(self.label, parameter, f"must be {what}", repr(given))
        if dead_letter_topic is not None and not (isinstance(dead_letter_topic, str) and dead_letter_topic):
            raise ConfigError(self.label, "dead_letter_topic", "must name a topic", repr(dead_letter_topic))
        self.engine = engine
        self.clock = clock or (DEFAULT if engine is None else engine.clock)
        if policies is not None and not hasattr(policies, "acall"):
            raise ConfigError(self.label, "policies", "must be a policy, a pipeline or a guard", repr(policies))
        self.policies = policies
        if inbox is None:
            keeper = MemoryIdempotencyStore(clock=self.clock) if engine is None else engine
            inbox = Inbox(name, keeper, lease=idempotency.LEASE, retain=idempotency.RETAIN, clock=self.clock)
        self.inbox = inbox
        self.dead_letters = DeadLetters(engine) if dead_letters is None and engine is not None else dead_letters
        self.dead_letter_topic, self.on_rejected = dead_letter_topic, on_rejected
        self._check_together()
        self.sequence = self._sequence(in_sequence_from)
        self.counts: Counter[str] = Counter()
        self._handlers: dict[str, Handler] = {}
        self._intake: Intake | None = None
        self._task: asyncio.Task[None] | None = None

    def _take(self, new: ConsumerConfig) -> None:
        super()._take(new)
        self.rules: Rules = new.rules

    @property
    def concurrency(self) -> int:
        """How many handlers run at once; a change holds from the next start."""
        return self.config.concurrency

    @property
    def prefetch(self) -> int:
        """How many deliveries are held at most; a change holds from the next start."""
        return self.config.prefetch or 2 * self.config.concurrency

    @property
    def lease(self) -> float:
        """For how long the transport lends a delivery."""
        return self.config.lease

    @property
    def park_followers(self) -> bool:
        """Do events wait behind a dead letter of their key?"""
        return self.config.park_followers

    def _sequence(self, first: int | str | None) -> InSequence | None:
        if first is None:
            return None
        if first != "any" and (isinstance(first, bool) or not isinstance(first, int) or not 0 <= first <= MOST_NUMBER):
            allowed = 'must be the number a key begins with, "any", or None'
            raise ConfigError(self.label, "in_sequence_from", allowed, repr(first))
        store = getattr(self.engine, "sequences", None)
        if store is None:
            raise ConfigError(self.label, "in_sequence_from", "needs an engine that keeps how far each key is", None)
        return InSequence(self.name, store, first if isinstance(first, int) else None)

    def _check_together(self) -> None:
        letters = self.dead_letters
        if letters is not None and self.inbox.retain < letters.retain:
            # Else a letter replayed on its last day could meet an inbox that has forgotten that it was handled.
            allowed = f"must remember for at least as long as dead letters are kept ({letters.retain:g} s)"
            raise ConfigError(self.label, "inbox", allowed, f"{self.inbox.retain:g} s")
        if letters is None and (self.park_followers or self.dead_letter_topic is not None):
            needs = "park_followers" if self.park_followers else "dead_letter_topic"
            raise ConfigError(self.label, needs, "needs dead letters: give the consumer an engine", None)
        if self.engine is not None and self.inbox.engine not in (None, self.engine):
            raise ConfigError(self.label, "inbox", "must be of the consumer's own engine", None)

    # ------------------------------------------------------------------ handlers

    def on(self, *types: str, policies: Guarding | None = None) -> Callable[[F], F]:
        """Register a handler for events of these types; `"*"` is for all that have no other.

        The function takes the event, and by name `tx` (a transaction) and `context`, if it wants them. It may be a
        coroutine function or a plain one, which runs in a thread.
        """

        if not types or not all(isinstance(one, str) and one for one in types):  # perhaps @consumer.on without types
            raise ConfigError(
                self.label, "handler", "needs the types of its events: @consumer.on('OrderCreated')", repr(types)
            )

        def register(fn: F) -> F:
            handler = handler_of(fn, types, policies, self.label)
            if handler.transactional:
                self._may_have_a_transaction(handler)
            for one in types:
                if one in self._handlers:
                    allowed = "has a handler already; for a second one, make another consumer"
                    raise ConfigError(self.label, f"type {one!r}", allowed, None)
            self._handlers.update(dict.fromkeys(types, handler))
            return fn

        return register

    def _may_have_a_transaction(self, handler: Handler) -> None:
        name = getattr(handler.fn, "__qualname__", repr(handler.fn))
        if self.engine is None or not self.inbox.transactional:
            allowed = "cannot have tx: that needs an engine with transactions for the inbox"
            raise ConfigError(self.label, f"handler {name}", allowed, None)
        if not handler.awaited and self.engine.name == "postgresql":
            allowed = "must be a coroutine function to have tx, whose connection is awaited"
            raise ConfigError(self.label, f"handler {name}", allowed, None)

    def handler_for(self, type: str) -> Handler | None:
        """Who handles events of this type; None: nobody, and they are acknowledged."""
        return self._handlers.get(type) or self._handlers.get("*")

    def handlers(self) -> Sequence[Handler]:
        """All handlers, each once."""
        return list({id(handler): handler for handler in self._handlers.values()}.values())

    # ------------------------------------------------------------------ running

    async def run(self) -> None:
        """Consume until cancelled; then let what is under way end, for half a minute, and give the rest back."""
        await self.start()
        try:
            assert self._task is not None
            await asyncio.shield(self._task)
        finally:
            await self.stop()

    async def start(self) -> None:
        """Begin to consume, in the background."""
        if self._task is not None:
            raise RuntimeError(f"{self.label} is running already")
        if not self._handlers:
            raise ConfigError(
                self.label, None, "has no handlers: register some with @consumer.on('OrderCreated')", None
            )
        self._look_at_connections()
        self._intake = Intake(self)
        self._task = asyncio.create_task(self._work(self._intake), name=self.label)

    def _look_at_connections(self) -> None:
        """Handlers that hold all connections in their transactions leave none for the heartbeats of their claims."""
        most = getattr(self.engine, "most_connections", None)
        if most is not None and most <= self.concurrency and any(one.transactional for one in self.handlers()):
            reporting.few_connections(self, most)

    async def _work(self, intake: Intake) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(intake.pull())
            group.create_task(self._keep_house())

    async def stop(self, grace: Seconds = 30.0) -> None:
        """Take nothing more, let handlers end for `grace` seconds, cancel and give back the others."""
        seconds = Duration(zero=True).check(grace)
        task, self._task = self._task, None
        intake, self._intake = self._intake, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        if intake is not None:
            await intake.drain(seconds)

    async def process(self, delivery: Delivery) -> None:
        """Handle one delivery, to its end: for transports of your own that push. `run` does this for all there are."""
        if self._intake is None:
            self._intake = Intake(self)
        await self._intake.process(delivery)

    def subscribe(self) -> Subscription:
        """Ask the transport for deliveries."""
        return self.transport.subscribe(self.topics, self.name, prefetch=self.prefetch, lease=self.lease)

    async def _keep_house(self) -> None:
        """Forget what is over its time, and let parked events go that have nothing left to wait for."""
        while True:
            await self.clock.asleep(HOUSEKEEPING)
            try:
                await self.inbox.store.purge()
                if self.dead_letters is not None:
                    await self.dead_letters.purge(consumer=self.name)
                    if self.park_followers:
                        await self.dead_letters.release_followers(self.name)
            except Exception as error:
                reporting.trouble(self, "could not tidy up; it will be tried again", error)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.stop()

    # ------------------------------------------------------------------ being watched

    def snapshot(self) -> dict[str, Any]:
        """Numbers for exporters, the control plane and tests; counts are of this process."""
        names = (
            "handled", "duplicates", "in_progress", "redelivered", "dead_lettered", "parked", "rejected", "lost",
            "not_buried", "ignored", "early",
        )  # fmt: skip
        now = self.clock.monotonic()
        return {
            "name": self.name,
            "type": "consumer",
            "topics": list(self.topics),
            "running": len(self._intake.running) if self._intake is not None else 0,
            "paused": sorted(one for one, handler in self._handlers.items() if handler.paused_until > now),
            **{name: self.counts[name] for name in names},
        }

    def __repr__(self) -> str:
        return f"<{self.label} of {', '.join(self.topics)}>"
