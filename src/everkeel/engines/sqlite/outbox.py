"""The outbox in SQLite. Every operation has the database to itself, so it may look first and then write."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from everkeel.engines.burying import new_letter
from everkeel.engines.rows import Claimed, DeadLetterRow, ErrorInfo, Lease, OutboxRow, OutboxStats, Retry
from everkeel.engines.sql.statement import Operation, Statement

if TYPE_CHECKING:
    from everkeel.engines.sqlite.engine import SQLiteEngine

_INSERT = """
INSERT INTO everkeel_outbox
    (id, source, type, aggregatetype, aggregateid, attributes, payload, encoding, epoch, created_at, available_at)
SELECT json_extract(r.value, '$[0]'), json_extract(r.value, '$[1]'), json_extract(r.value, '$[2]'),
    json_extract(r.value, '$[3]'), json_extract(r.value, '$[4]'), json_extract(r.value, '$[5]'),
    json_extract(r.value, '$[6]'), json_extract(r.value, '$[7]'), json_extract(r.value, '$[8]'), :now, :now + :delay
FROM json_each(:rows) AS r WHERE true
ON CONFLICT (source, id, aggregatetype) DO UPDATE SET
    state = 0, epoch = excluded.epoch, attributes = excluded.attributes, payload = excluded.payload,
    encoding = excluded.encoding, available_at = excluded.available_at, attempts = 0, failures = 0,
    lease_token = NULL, lease_until = NULL, delivered_at = NULL
WHERE everkeel_outbox.state IN (1, 2) AND excluded.epoch > everkeel_outbox.epoch"""

# A replay whose key was corrected leaves its line, and goes to the end of the other one.
_LEAVE = """
DELETE FROM everkeel_outbox
WHERE state IN (1, 2) AND source = :source AND id = :id AND aggregatetype = :topic AND epoch < :epoch
  AND aggregateid IS NOT :key RETURNING aggregateid"""

_UNPARK = "UPDATE everkeel_outbox SET state = 0 WHERE state = 3 AND aggregatetype = :topic AND aggregateid = :key"

# What may be claimed at all: due, held by nobody, of a topic that is wanted, with nothing of its key before it.
_FRONTS = """
SELECT o.seq, o.aggregatetype, o.aggregateid FROM everkeel_outbox AS o
WHERE o.state = 0 AND o.available_at <= :now AND (o.lease_until IS NULL OR o.lease_until < :now)
  AND o.aggregatetype NOT IN (SELECT value FROM json_each(:without))
  AND (o.aggregateid IS NULL OR NOT EXISTS (
        SELECT 1 FROM everkeel_outbox AS e
        WHERE e.state <> 1 AND e.aggregatetype = o.aggregatetype AND e.aggregateid = o.aggregateid
          AND e.aggregateid IS NOT NULL AND e.seq < o.seq))
ORDER BY o.available_at, o.seq LIMIT :limit"""

_BEHIND = """
SELECT seq, state = 0 AND available_at <= :now AND (lease_until IS NULL OR lease_until < :now)
FROM everkeel_outbox
WHERE state <> 1 AND aggregatetype = :topic AND aggregateid = :key AND aggregateid IS NOT NULL AND seq > :seq
ORDER BY seq LIMIT :limit"""

_ROW = "id, source, type, aggregatetype, aggregateid, attributes, payload, encoding, epoch"

_LEASE = f"""
UPDATE everkeel_outbox
SET lease_token = :token, lease_until = :now + :lease, leased_by = :owner, attempts = attempts + 1
WHERE seq IN (SELECT value FROM json_each(:seqs))
RETURNING seq, attempts, failures, :now - created_at, {_ROW}"""

_HELD = """state = 0 AND (seq, lease_token) IN (
    SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(:leases))"""


class SQLiteOutbox:
    """An `OutboxStore` in a SQLite file."""

    def __init__(self, engine: SQLiteEngine) -> None:
        self._engine = engine

    # ------------------------------------------------------------------ writing

    async def append(self, rows: Sequence[OutboxRow], *, delay: float = 0.0, tx: Any = None) -> None:
        await self._engine.run(self._append(rows, delay, self._engine.clock.time()), tx)

    def append_sync(self, rows: Sequence[OutboxRow], *, delay: float = 0.0, tx: Any = None) -> None:
        self._engine.run_sync(self._append(rows, delay, self._engine.clock.time()), tx)

    def _append(self, rows: Sequence[OutboxRow], delay: float, now: float) -> Operation[None]:
        values = [(r.id, r.source, r.type, r.topic, r.key, r.attributes, r.payload, r.encoding, r.epoch) for r in rows]
        lanes = {(row.topic, row.key) for row in rows if row.epoch}
        for row in rows:
            if row.epoch:
                who = {"source": row.source, "id": row.id, "topic": row.topic, "epoch": row.epoch, "key": row.key}
                lanes |= {(row.topic, left) for (left,) in (yield Statement(_LEAVE, who))}
        yield Statement(_INSERT, {"rows": json.dumps(values), "now": now, "delay": delay})
        for topic, key in lanes:
            if key is not None:
                yield Statement(_UNPARK, {"topic": topic, "key": key})

    # ------------------------------------------------------------------ claims

    async def claim(self, owner: str, limit: int, lease: float, *, without: Collection[str] = ()) -> list[Claimed]:
        claim = self._claim(owner, limit, lease, without, self._engine.clock.time())
        return await self._engine.run(claim, durable=False)  # a power failure ends all leases anyway

    def _claim(
        self, owner: str, limit: int, lease: float, without: Collection[str], now: float
    ) -> Operation[list[Claimed]]:
        scope: dict[str, Any] = {"now": now, "limit": limit}
        fronts = yield Statement(_FRONTS, {**scope, "without": json.dumps(list(without))})
        if not fronts:
            return []
        order = [(0, place, seq) for place, (seq, _, _) in enumerate(fronts)]
        share = -(-limit // len(fronts)) - 1  # rows behind each front that still fit
        if share:
            for place, (seq, topic, key) in enumerate(fronts):
                if key is None:
                    continue
                behind = yield Statement(_BEHIND, {"now": now, "topic": topic, "key": key, "seq": seq, "limit": share})
                for rank, (follower, ready) in enumerate(behind, 1):
                    if not ready:
                        break  # whoever stands behind one that cannot go waits with it
                    order.append((rank, place, follower))
        seqs = [seq for _, _, seq in sorted(order)[:limit]]
        token = uuid4().hex
        rows = yield Statement(
            _LEASE, {"seqs": json.dumps(seqs), "now": now, "lease": lease, "owner": owner, "token": token}
        )
        by_seq = {row[0]: row for row in rows}
        return [_claimed(by_seq[seq], token) for seq in seqs]

    async def extend(self, leases: Sequence[Lease], seconds: float) -> frozenset[int]:
        return await self._fenced(
            leases, "UPDATE everkeel_outbox SET lease_until = :now + :seconds", {"seconds": seconds}
        )

    async def ack(self, leases: Sequence[Lease]) -> frozenset[int]:
        if not self._engine.keep_delivered:
            return await self._fenced(leases, "DELETE FROM everkeel_outbox", {})
        return await self._fenced(
            leases,
            "UPDATE everkeel_outbox SET state = 1, delivered_at = :now, lease_token = NULL, lease_until = NULL",
            {},
        )

    async def release(self, leases: Sequence[Lease]) -> frozenset[int]:
        return await self._fenced(
            leases,
            "UPDATE everkeel_outbox SET lease_token = NULL, lease_until = NULL, attempts = attempts - 1",
            {},
        )

    async def _fenced(self, leases: Sequence[Lease], change: str, values: dict[str, Any]) -> frozenset[int]:
        """A change to rows that are still held; answers which were."""
        if not leases:
            return frozenset()
        values = {**values, "leases": _leases(leases)}
        if ":now" in change:
            values["now"] = self._engine.clock.time()
        statement = Statement(f"{change} WHERE {_HELD} RETURNING seq", values)

        def operation() -> Operation[frozenset[int]]:
            return frozenset(row[0] for row in (yield statement))

        return await self._engine.run(operation())

    async def retry(self, retries: Sequence[Retry]) -> frozenset[int]:
        return await self._engine.run(self._retry(retries, self._engine.clock.time()))

    def _retry(self, retries: Sequence[Retry], now: float) -> Operation[frozenset[int]]:
        kept: set[int] = set()
        for retry in retries:
            change = "failures = failures + 1" if retry.counted else "attempts = attempts - 1"
            rows = yield Statement(
                f"UPDATE everkeel_outbox SET lease_token = NULL, lease_until = NULL, available_at = :now + :delay, "
                f"last_error = :error, {change} WHERE {_HELD} RETURNING seq",
                {
                    "now": now,
                    "delay": retry.delay,
                    "error": str(retry.error),
                    "leases": _leases([retry.lease]),
                },
            )
            kept.update(row[0] for row in rows)
        return frozenset(kept)

    # ------------------------------------------------------------------ giving up

    async def bury(
        self, lease: Lease, error: ErrorInfo, *, reason: str, consumer: str = "outbox", park: bool = True
    ) -> str | None:
        async with self._engine.transaction() as tx:
            row = await self._engine.run(_take(lease, park), tx)
            if row is None:
                return None
            letter = new_letter(row, error, reason=reason, consumer=consumer, attempts=lease.attempt)
            written: DeadLetterRow = await self._engine.dead_letters.put(letter, tx=tx)
        return written.id

    async def discard(self, source: str, id: str, topic: str, *, tx: Any = None) -> bool:
        return await self._engine.run(_discard(source, id, topic), tx)

    async def park(self, limit: int) -> int:
        statement = Statement(
            """
UPDATE everkeel_outbox SET state = 3 WHERE seq IN (
    SELECT o.seq FROM everkeel_outbox AS b JOIN everkeel_outbox AS o
        ON o.aggregatetype = b.aggregatetype AND o.aggregateid = b.aggregateid AND o.seq > b.seq
    WHERE b.state = 2 AND b.aggregateid IS NOT NULL AND o.state = 0 AND o.lease_token IS NULL LIMIT :limit)
RETURNING seq""",
            {"limit": limit},
        )
        return await self._engine.run(_count(statement))

    # ------------------------------------------------------------------ looking and cleaning up

    async def stats(self) -> OutboxStats:
        return await self._engine.run(_stats(self._engine.clock.time()), write=False)

    async def purge(self, older_than: float, limit: int) -> int:
        statement = Statement(
            "DELETE FROM everkeel_outbox WHERE seq IN (SELECT seq FROM everkeel_outbox "
            "WHERE state = 1 AND delivered_at < :before ORDER BY delivered_at LIMIT :limit) RETURNING seq",
            {"before": self._engine.clock.time() - older_than, "limit": limit},
        )
        return await self._engine.run(_count(statement))


def _leases(leases: Sequence[Lease]) -> str:
    return json.dumps([(lease.seq, lease.token) for lease in leases])


def _count(statement: Statement) -> Operation[int]:
    return len((yield statement))


def _take(lease: Lease, park: bool) -> Operation[OutboxRow | None]:
    """Out of the line, if it is still held; those behind it wait, if they are to."""
    rows = yield Statement(f"SELECT {_ROW} FROM everkeel_outbox WHERE {_HELD}", {"leases": _leases([lease])})
    if not rows:
        return None
    row = OutboxRow(*rows[0])
    if row.key is None or not park:
        yield Statement("DELETE FROM everkeel_outbox WHERE seq = :seq", {"seq": lease.seq})
        return row
    yield Statement(
        "UPDATE everkeel_outbox SET state = 2, lease_token = NULL, lease_until = NULL WHERE seq = :seq",
        {"seq": lease.seq},
    )
    yield Statement(
        "UPDATE everkeel_outbox SET state = 3 WHERE state = 0 AND lease_token IS NULL AND seq > :seq "
        "AND aggregatetype = :topic AND aggregateid = :key",
        {"seq": lease.seq, "topic": row.topic, "key": row.key},
    )
    return row


def _discard(source: str, id: str, topic: str) -> Operation[bool]:
    rows = yield Statement(
        "DELETE FROM everkeel_outbox WHERE state = 2 AND source = :source AND id = :id AND aggregatetype = :topic "
        "RETURNING aggregateid",
        {"source": source, "id": id, "topic": topic},
    )
    if not rows:
        return False
    yield Statement(_UNPARK, {"topic": topic, "key": rows[0][0]})
    return True


def _stats(now: float) -> Operation[OutboxStats]:
    rows = yield Statement(
        """
SELECT aggregatetype, sum(state = 0), sum(state = 0 AND lease_until >= :now), sum(state = 0 AND available_at > :now),
    sum(state = 3), min(CASE state WHEN 0 THEN created_at END)
FROM everkeel_outbox WHERE state IN (0, 3) GROUP BY aggregatetype""",
        {"now": now},
    )
    oldest = [row[5] for row in rows if row[5] is not None]
    return OutboxStats(
        depth=sum(row[1] for row in rows),
        leased=sum(row[2] or 0 for row in rows),
        delayed=sum(row[3] for row in rows),
        parked=sum(row[4] for row in rows),
        oldest_age=now - min(oldest) if oldest else 0.0,
        by_topic={row[0]: row[1] for row in rows if row[1]},
    )


def _claimed(row: Sequence[Any], token: str) -> Claimed:
    seq, attempts, failures, age = row[:4]
    return Claimed(OutboxRow(*row[4:]), Lease(seq, token, attempts), failures, age)
