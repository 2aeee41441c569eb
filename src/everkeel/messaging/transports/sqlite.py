"""Events between processes of one machine, through a SQLite file."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Sequence
from typing import Any, Self
from uuid import uuid4

from everkeel.engines.sql.statement import Operation, Statement
from everkeel.engines.sqlite.engine import SQLiteEngine
from everkeel.engines.wakeup import LocalWakeup
from everkeel.messaging.transports.protocol import OK, RETRYABLE, Message, Published
from everkeel.messaging.transports.subscription import BufferedSubscription, HeldDelivery
from everkeel.runtime.clock import Clock
from everkeel.runtime.settings import Seconds, seconds

_FANNED_OUT = """
INSERT INTO everkeel_deliveries (topic, consumer_group, seq, key, available_at)
SELECT m.topic, g.name, m.seq, m.key, :now FROM everkeel_messages AS m
JOIN everkeel_groups AS g ON g.topic = m.topic
WHERE m.seq IN (SELECT value FROM json_each(:seqs))"""

# The front of each key: what has no earlier delivery of its key that is not settled, whoever has that one.
_FRONTS = """
SELECT d.topic, d.seq FROM everkeel_deliveries AS d
WHERE d.consumer_group = :group AND d.topic IN (SELECT value FROM json_each(:topics))
  AND d.available_at <= :now AND (d.lease_until IS NULL OR d.lease_until < :now)
  AND (d.key IS NULL OR NOT EXISTS (
        SELECT 1 FROM everkeel_deliveries AS e
        WHERE e.topic = d.topic AND e.consumer_group = d.consumer_group AND e.key = d.key AND e.seq < d.seq))
ORDER BY d.available_at, d.seq LIMIT :limit"""

_HELD = "topic = :topic AND consumer_group = :group AND seq = :seq AND lease_token = :token RETURNING seq"


class SQLiteTransport:
    """Every group gets every event of its topics, each one at a time per key, across the processes of one machine.

    Args:
        file: The database file, or a `SQLiteEngine` on it.
        poll: Seconds between two looks for what other processes published. Within a process nobody waits for it.
        retain: Seconds for which events are kept for groups that subscribe later; a week.
        clock: Where its time comes from, in place of the default.
    """

    name = "sqlite"
    durable = True
    ordered = True

    def __init__(
        self,
        file: str | os.PathLike[str] | SQLiteEngine,
        *,
        poll: Seconds = 0.1,
        retain: Seconds = 7 * 86_400.0,
        clock: Clock | None = None,
    ) -> None:
        self._owned = not isinstance(file, SQLiteEngine)
        self.engine = file if isinstance(file, SQLiteEngine) else SQLiteEngine(file, clock=clock)
        self.clock = clock or self.engine.clock
        self.poll, self.retain = seconds(poll), seconds(retain)
        self.wakeup = LocalWakeup(self.clock)
        self.waiting: set[str] = set()

    async def publish(self, messages: Sequence[Message]) -> Sequence[Published]:
        try:
            await self.engine.run(self._publish(messages, self.clock.time()))
        except sqlite3.OperationalError as error:  # locked for too long, disk full: nothing was written
            return [Published(RETRYABLE, error, outage=True)] * len(messages)
        self.wake()
        return [OK] * len(messages)

    def _publish(self, messages: Sequence[Message], now: float) -> Operation[None]:
        seqs: list[int] = []
        for message in messages:
            rows = yield Statement(
                "INSERT INTO everkeel_messages (topic, key, body, published_at) VALUES (:topic, :key, :body, :now) "
                "RETURNING seq",
                {"topic": message.topic, "key": message.key, "body": message.event.to_json(), "now": now},
            )
            seqs.append(rows[0][0])
        yield Statement(_FANNED_OUT, {"seqs": json.dumps(seqs), "now": now})

    def subscribe(
        self,
        topics: str | Sequence[str],
        group: str,
        *,
        consumer: str | None = None,
        prefetch: int = 100,
        lease: float = 60.0,
    ) -> SQLiteSubscription:
        return SQLiteSubscription(self, topics, group, prefetch=prefetch, lease=lease)

    async def join(self, topics: Sequence[str], group: str) -> None:
        """Let a group have what is published from now on, and what is still there."""
        await self.engine.run(_join(topics, group, self.clock.time()))

    async def purge(self, limit: int = 1000) -> int:
        """Delete up to `limit` events that are older than `retain` and that no group still needs."""
        statement = Statement(
            "DELETE FROM everkeel_messages WHERE seq IN (SELECT m.seq FROM everkeel_messages AS m WHERE "
            "m.published_at < :before AND NOT EXISTS (SELECT 1 FROM everkeel_deliveries AS d WHERE d.topic = m.topic "
            "AND d.seq = m.seq) ORDER BY m.seq LIMIT :limit) RETURNING seq",
            {"before": self.clock.time() - self.retain, "limit": limit},
        )
        return await self.engine.run(_count(statement))

    def wake(self) -> None:
        """Tell the subscriptions of this process to look."""
        for name in tuple(self.waiting):
            self.wakeup.notify(name)

    async def close(self) -> None:
        """Close the file, unless it came with an engine of yours."""
        if self._owned:
            await self.engine.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


class SQLiteSubscription(BufferedSubscription["SQLiteDelivery"]):
    """Deliveries of one consumer."""

    def __init__(
        self, transport: SQLiteTransport, topics: str | Sequence[str], group: str, *, prefetch: int, lease: float
    ) -> None:
        super().__init__(topics, group, prefetch=prefetch, lease=lease, clock=transport.clock)
        self.transport = transport
        self._joined = False
        self._name = uuid4().hex
        transport.waiting.add(self._name)

    async def fetch(self, limit: int) -> Sequence[SQLiteDelivery]:
        if not self._joined:
            await self.transport.join(self.topics, self.group)
            self._joined = True
        token = uuid4().hex
        now = self.clock.time()
        # Not waited for until it is on the disk: when the power fails, nobody holds anything any more.
        fetching = _fetch(self.topics, self.group, limit, self.lease, token, now)
        rows = await self.transport.engine.run(fetching, durable=False)
        return [self._delivery(row, token) for row in rows]

    def _delivery(self, row: Sequence[Any], token: str) -> SQLiteDelivery:
        topic, seq, key, body, attempts = row
        body = body.encode() if isinstance(body, str) else body  # whoever writes into our tables may write text
        delivery = SQLiteDelivery(topic, self.group, key, body, attempts)
        delivery.seq, delivery.token = seq, token
        return delivery

    async def wait(self) -> None:
        await self.transport.wakeup.wait(self._name, self.transport.poll)

    async def aclose(self) -> None:
        await super().aclose()
        self.transport.waiting.discard(self._name)
        self.transport.wakeup.notify(self._name)


class SQLiteDelivery(HeldDelivery):
    """One event for one consumer."""

    __slots__ = ("seq", "token")

    seq: int
    token: str

    async def ack(self) -> bool:
        return await self._last(self._change("DELETE FROM everkeel_deliveries"))

    async def nack(self, delay: float = 0.0) -> bool:
        change = "UPDATE everkeel_deliveries SET lease_token = NULL, lease_until = NULL, available_at = :until"
        return await self._last(self._change(change, delay))

    async def set_aside(self, delay: float) -> bool:
        # Without a key it stands in no line; the message itself keeps its own.
        change = "UPDATE everkeel_deliveries SET key = NULL, lease_token = NULL, lease_until = NULL"
        return await self._last(self._change(f"{change}, available_at = :until", delay))

    async def extend(self, seconds: float) -> bool:
        return await self._change("UPDATE everkeel_deliveries SET lease_until = :until", seconds)

    async def _change(self, change: str, seconds: float | None = None) -> bool:
        transport: SQLiteTransport = self._subscription.transport  # type: ignore[attr-defined]  # ours
        values: dict[str, Any] = {"topic": self.topic, "group": self.group, "seq": self.seq, "token": self.token}
        if seconds is not None:
            values["until"] = transport.clock.time() + seconds
        # Nor is this: one that was acknowledged and comes again after the power failed, the inbox knows.
        kept = await transport.engine.run(_count(Statement(f"{change} WHERE {_HELD}", values)), durable=False)
        transport.wake()
        return kept > 0


def _join(topics: Sequence[str], group: str, now: float) -> Operation[None]:
    for topic in topics:
        new = yield Statement(
            "INSERT INTO everkeel_groups (topic, name) VALUES (:topic, :group) ON CONFLICT DO NOTHING RETURNING name",
            {"topic": topic, "group": group},
        )
        if new:
            yield Statement(
                "INSERT INTO everkeel_deliveries (topic, consumer_group, seq, key, available_at) "
                "SELECT topic, :group, seq, key, :now FROM everkeel_messages WHERE topic = :topic",
                {"topic": topic, "group": group, "now": now},
            )


def _fetch(
    topics: Sequence[str], group: str, limit: int, lease: float, token: str, now: float
) -> Operation[list[Sequence[Any]]]:
    fronts = yield Statement(_FRONTS, {"group": group, "topics": json.dumps(list(topics)), "now": now, "limit": limit})
    if not fronts:
        return []
    held = json.dumps([list(front) for front in fronts])
    attempts = yield Statement(
        "UPDATE everkeel_deliveries SET lease_token = :token, lease_until = :until, attempts = attempts + 1 "
        "WHERE consumer_group = :group AND (topic, seq) IN "
        "(SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(:held)) "
        "RETURNING seq, attempts",
        {"token": token, "until": now + lease, "group": group, "held": held},
    )
    count: dict[int, int] = {row[0]: row[1] for row in attempts}
    messages = yield Statement(
        "SELECT topic, seq, key, body FROM everkeel_messages "
        "WHERE seq IN (SELECT json_extract(value, '$[1]') FROM json_each(:held))",
        {"held": held},
    )
    by_seq = {row[1]: row for row in messages}
    return [(*by_seq[seq], count[seq]) for _, seq in fronts]


def _count(statement: Statement) -> Operation[int]:
    return len((yield statement))
