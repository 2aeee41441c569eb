"""What type checkers make of events, outboxes and relays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_type

from everkeel.engines import Engine, MemoryEngine, OutboxStats, PostgresEngine, SQLiteEngine
from everkeel.messaging import Event, FunctionTransport, MemoryTransport, Message, Outbox, Relay, Transport


@dataclass
class Placed:
    order: int


event = Event("order.placed", Placed(7), source="/orders")
assert_type(event.data_as(Placed), Placed)
assert_type(event.key, str | None)
assert_type(event.replayed(), Event)
assert_type(event.caused("order.paid"), Event)

engines: list[Engine] = [MemoryEngine(), SQLiteEngine("events.db"), PostgresEngine("postgresql://localhost")]


async def post(message: Message) -> None:
    print(message.event.type)


transports: list[Transport] = [MemoryTransport(), FunctionTransport(post)]


async def use(outbox: Outbox) -> None:
    await outbox.write([event, event], topic="orders", delay=1.5)
    assert_type(await outbox.stats(), OutboxStats)
    async with outbox.relay() as relay:
        assert_type(relay, Relay)
        assert_type(await relay.flush(), int)


Event("order.placed")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
Outbox()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
