"""The outbox in PostgreSQL: each operation is one statement, so that it is atomic, and cheap behind a pooler."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from everkeel.engines.burying import new_letter
from everkeel.engines.rows import Claimed, DeadLetterRow, ErrorInfo, Lease, OutboxRow, OutboxStats, Retry
from everkeel.engines.sql.statement import Operation, Statement

if TYPE_CHECKING:
    from everkeel.engines.postgres.engine import PostgresEngine

# `statement_timestamp()` is the server's clock, and unlike `clock_timestamp()` it lets an index be used.
_NOW = "statement_timestamp()"
_FREE = f"(o.lease_until IS NULL OR o.lease_until < {_NOW})"


def _later(name: str) -> str:
    return f"{_NOW} + CAST(:{name} AS double precision) * interval '1 second'"


_ROW = "id, source, type, aggregatetype, aggregateid, attributes, payload, encoding, epoch"

_INSERT = f"""
INSERT INTO everkeel_outbox
    (id, source, type, aggregatetype, aggregateid, attributes, payload, encoding, epoch, created_at, available_at)
SELECT r.*, {_NOW}, {_later("delay")}
FROM unnest(CAST(:ids AS text[]), CAST(:sources AS text[]), CAST(:types AS text[]), CAST(:topics AS text[]),
    CAST(:keys AS text[]), CAST(:attributes AS text[]), CAST(:payloads AS text[]), CAST(:encodings AS text[]),
    CAST(:epochs AS integer[])) AS r
ON CONFLICT (source, id, aggregatetype) DO UPDATE SET
    state = 0, epoch = excluded.epoch, attributes = excluded.attributes, payload = excluded.payload,
    encoding = excluded.encoding, available_at = excluded.available_at, attempts = 0, failures = 0,
    lease_token = NULL, lease_until = NULL, delivered_at = NULL
WHERE everkeel_outbox.state IN (1, 2) AND excluded.epoch > everkeel_outbox.epoch"""

# A replay whose key was corrected leaves its line, and goes to the end of the other one.
_LEAVE = """
DELETE FROM everkeel_outbox
WHERE state IN (1, 2) AND source = CAST(:source AS text) AND id = CAST(:id AS text)
  AND aggregatetype = CAST(:topic AS text) AND epoch < CAST(:epoch AS integer)
  AND aggregateid IS DISTINCT FROM CAST(:key AS text) RETURNING aggregateid"""

_UNPARK = """
UPDATE everkeel_outbox SET state = 0
WHERE state = 3 AND aggregatetype = CAST(:topic AS text) AND aggregateid = CAST(:key AS text)"""

_LOCK_KEY = "SELECT pg_advisory_xact_lock(hashtextextended(CAST(:name AS text), 0))"

# Two ways to find the fronts. The quick one looks at the rows that are due first and, for each key among them, at the
# front of that key: its cost does not grow with the backlog. When a single key that cannot go fills all it looks at, it
# finds nothing; then the thorough one steps over every row that is due.
_QUICK = f"""
WITH due AS MATERIALIZED (
    SELECT o.seq, o.aggregatetype, o.aggregateid, o.available_at FROM everkeel_outbox AS o
    WHERE o.state = 0 AND o.available_at <= {_NOW} AND {_FREE}
      AND o.aggregatetype <> ALL (CAST(:without AS text[]))
    ORDER BY o.available_at, o.seq LIMIT 4 * CAST(:limit AS bigint)
), keys AS (
    SELECT aggregatetype, aggregateid FROM due WHERE aggregateid IS NOT NULL GROUP BY aggregatetype, aggregateid
    ORDER BY min(available_at), min(seq) LIMIT CAST(:limit AS bigint)
), free AS MATERIALIZED (
    (SELECT seq FROM due WHERE aggregateid IS NULL ORDER BY available_at, seq LIMIT 2 * CAST(:limit AS bigint))
    UNION ALL
    SELECT f.seq FROM keys AS k CROSS JOIN LATERAL (
        SELECT e.seq FROM everkeel_outbox AS e
        WHERE e.state <> 1 AND e.aggregatetype = k.aggregatetype AND e.aggregateid = k.aggregateid
          AND e.aggregateid IS NOT NULL
        ORDER BY e.seq LIMIT 1
    ) AS f
), fronts AS MATERIALIZED (
    SELECT o.seq, o.aggregatetype, o.aggregateid, o.available_at FROM everkeel_outbox AS o
    WHERE o.seq IN (SELECT seq FROM free) AND o.state = 0 AND o.available_at <= {_NOW} AND {_FREE}
    ORDER BY o.available_at, o.seq LIMIT CAST(:limit AS bigint) FOR UPDATE OF o SKIP LOCKED
)"""

_THOROUGH = f"""
WITH fronts AS MATERIALIZED (
    SELECT o.seq, o.aggregatetype, o.aggregateid, o.available_at FROM everkeel_outbox AS o
    WHERE o.state = 0 AND o.available_at <= {_NOW} AND {_FREE}
      AND o.aggregatetype <> ALL (CAST(:without AS text[]))
      AND (o.aggregateid IS NULL OR NOT EXISTS (
            SELECT 1 FROM everkeel_outbox AS e
            WHERE e.state <> 1 AND e.aggregatetype = o.aggregatetype AND e.aggregateid = o.aggregateid
              AND e.aggregateid IS NOT NULL AND e.seq < o.seq))
    ORDER BY o.available_at, o.seq LIMIT CAST(:limit AS bigint) FOR UPDATE OF o SKIP LOCKED
)"""

# The front of each key is locked, which keeps other claimers away from the whole key: what stands behind a front
# cannot be claimed by anybody else while the front is there. `SKIP LOCKED` alone would hand the second event of a key
# to one claimer while another has the first.
_LEASE = f""", share AS (
    SELECT (CAST(:limit AS bigint) + count(*) - 1) / greatest(count(*), 1) - 1 AS behind FROM fronts
), chosen AS (
    SELECT seq, rank, available_at FROM (
        SELECT f.seq, 0 AS rank, f.available_at FROM fronts AS f
        UNION ALL
        SELECT b.seq, b.rank, f.available_at FROM fronts AS f CROSS JOIN LATERAL (
            SELECT c.seq, row_number() OVER w AS rank, bool_and(c.ready) OVER w AS ready FROM (
                SELECT o.seq, o.state = 0 AND o.available_at <= {_NOW} AND {_FREE} AS ready
                FROM everkeel_outbox AS o
                WHERE o.state <> 1 AND o.aggregatetype = f.aggregatetype AND o.aggregateid = f.aggregateid
                  AND o.aggregateid IS NOT NULL AND o.seq > f.seq
                ORDER BY o.seq LIMIT (SELECT behind FROM share)
            ) AS c WINDOW w AS (ORDER BY c.seq)
        ) AS b WHERE b.ready
    ) AS candidates ORDER BY rank, available_at, seq LIMIT CAST(:limit AS bigint)
)
UPDATE everkeel_outbox AS o
SET lease_token = CAST(:token AS text), lease_until = {_later("lease")}, leased_by = CAST(:owner AS text),
    attempts = o.attempts + 1
FROM chosen AS c WHERE o.seq = c.seq AND o.state = 0 AND {_FREE}
RETURNING o.seq, o.attempts, o.failures, CAST(extract(epoch FROM {_NOW} - o.created_at) AS double precision), c.rank,
    c.available_at, {_ROW}"""

# A queue's statistics are those of another hour: taken while it was empty, they say that next to nothing is due, and
# the planner would fetch and sort the whole backlog for every claim. A walk along the index does not grow with it.
# Taken while it was long, they make a claim look so dear that it is compiled first, which takes longer than to run it.
_ALONG_THE_INDEX = """
SELECT set_config('enable_bitmapscan', 'off', true), set_config('enable_seqscan', 'off', true),
    set_config('jit', 'off', true)"""

THOROUGH_EVERY = 1.0
"""Seconds between two thorough looks of one store, at least."""

_HELD = """FROM unnest(CAST(:seqs AS bigint[]), CAST(:tokens AS text[])) AS l (seq, token)
WHERE o.seq = l.seq AND o.lease_token = l.token AND o.state = 0 RETURNING o.seq"""

_EXTEND = f"UPDATE everkeel_outbox AS o SET lease_until = {_later('seconds')} {_HELD}"
_DELIVERED = f"""
UPDATE everkeel_outbox AS o SET state = 1, delivered_at = {_NOW}, lease_token = NULL, lease_until = NULL {_HELD}"""
_DELETED = f"DELETE FROM everkeel_outbox AS o {_HELD.replace('FROM', 'USING', 1)}"
_RELEASE = f"""
UPDATE everkeel_outbox AS o SET lease_token = NULL, lease_until = NULL, attempts = o.attempts - 1 {_HELD}"""

# Those behind a retried row are due with it: a long line that cannot go must not stand in the way of every claim.
_RETRY = f"""
WITH retried AS (
UPDATE everkeel_outbox AS o SET lease_token = NULL, lease_until = NULL, last_error = l.error,
    available_at = {_NOW} + l.delay * interval '1 second',
    failures = o.failures + CASE WHEN l.counted THEN 1 ELSE 0 END,
    attempts = o.attempts - CASE WHEN l.counted THEN 0 ELSE 1 END
FROM unnest(CAST(:seqs AS bigint[]), CAST(:tokens AS text[]), CAST(:delays AS double precision[]),
    CAST(:errors AS text[]), CAST(:counted AS boolean[])) AS l (seq, token, delay, error, counted)
WHERE o.seq = l.seq AND o.lease_token = l.token AND o.state = 0
RETURNING o.seq, o.aggregatetype, o.aggregateid, o.available_at
), pushed AS (
UPDATE everkeel_outbox AS o SET available_at = r.available_at FROM retried AS r
WHERE o.state <> 1 AND o.state = 0 AND o.aggregatetype = r.aggregatetype AND o.aggregateid = r.aggregateid
  AND o.aggregateid IS NOT NULL AND o.seq > r.seq AND o.available_at < r.available_at AND o.lease_token IS NULL
)
SELECT seq FROM retried"""

_TAKE = f"""
SELECT {_ROW} FROM everkeel_outbox
WHERE seq = CAST(:seq AS bigint) AND lease_token = CAST(:token AS text) AND state = 0 FOR UPDATE"""
_REMOVE = "DELETE FROM everkeel_outbox WHERE seq = CAST(:seq AS bigint)"
_SET_ASIDE = """
UPDATE everkeel_outbox SET state = CASE WHEN seq = CAST(:seq AS bigint) THEN 2 ELSE 3 END,
    lease_token = NULL, lease_until = NULL
WHERE state = 0 AND aggregatetype = CAST(:topic AS text) AND aggregateid = CAST(:key AS text)
  AND (seq = CAST(:seq AS bigint) OR seq > CAST(:seq AS bigint) AND lease_token IS NULL)"""

_DISCARD = """
DELETE FROM everkeel_outbox
WHERE state = 2 AND source = CAST(:source AS text) AND id = CAST(:id AS text) AND aggregatetype = CAST(:topic AS text)
RETURNING aggregateid"""

_PARK = """
UPDATE everkeel_outbox SET state = 3 WHERE seq IN (
    SELECT o.seq FROM everkeel_outbox AS b JOIN everkeel_outbox AS o
        ON o.aggregatetype = b.aggregatetype AND o.aggregateid = b.aggregateid AND o.seq > b.seq
    WHERE b.state = 2 AND b.aggregateid IS NOT NULL AND o.state = 0 AND o.lease_token IS NULL
    LIMIT CAST(:limit AS bigint) FOR UPDATE OF o SKIP LOCKED)
RETURNING seq"""

_STATS = f"""
SELECT aggregatetype, count(*) FILTER (WHERE state = 0), count(*) FILTER (WHERE state = 0 AND lease_until >= {_NOW}),
    count(*) FILTER (WHERE state = 0 AND available_at > {_NOW}), count(*) FILTER (WHERE state = 3),
    CAST(extract(epoch FROM {_NOW} - min(created_at) FILTER (WHERE state = 0)) AS double precision)
FROM everkeel_outbox WHERE state IN (0, 3) GROUP BY aggregatetype"""

_PURGE = f"""
DELETE FROM everkeel_outbox WHERE seq IN (
    SELECT seq FROM everkeel_outbox
    WHERE state = 1 AND delivered_at < {_NOW} - CAST(:age AS double precision) * interval '1 second'
    ORDER BY delivered_at LIMIT CAST(:limit AS bigint) FOR UPDATE SKIP LOCKED)
RETURNING seq"""


class PostgresOutbox:
    """An `OutboxStore` in PostgreSQL."""

    def __init__(self, engine: PostgresEngine) -> None:
        self._engine = engine
        self._thorough_at = 0.0

    # ------------------------------------------------------------------ writing

    async def append(self, rows: Sequence[OutboxRow], *, delay: float = 0.0, tx: Any = None) -> None:
        several = self._engine.serialise_keys or any(row.epoch for row in rows)
        await self._engine.run(self._append(rows, delay), tx, atomic=several)

    def append_sync(self, rows: Sequence[OutboxRow], *, delay: float = 0.0, tx: Any = None) -> None:
        self._engine.run_sync(self._append(rows, delay), tx)

    def _append(self, rows: Sequence[OutboxRow], delay: float) -> Operation[None]:
        rows = _distinct(rows)
        if self._engine.serialise_keys:
            # In the order of their names: two writers of the same two keys must not wait for each other.
            for name in sorted({f"everkeel/{row.topic}/{row.key}" for row in rows if row.key is not None}):
                yield Statement(_LOCK_KEY, {"name": name})
        lanes = {(row.topic, row.key) for row in rows if row.epoch}
        for row in rows:
            if row.epoch:
                who = {"source": row.source, "id": row.id, "topic": row.topic, "epoch": row.epoch, "key": row.key}
                lanes |= {(row.topic, left) for (left,) in (yield Statement(_LEAVE, who))}
        yield Statement(
            _INSERT,
            {
                "ids": [r.id for r in rows], "sources": [r.source for r in rows], "types": [r.type for r in rows],
                "topics": [r.topic for r in rows], "keys": [r.key for r in rows],
                "attributes": [r.attributes for r in rows], "payloads": [r.payload for r in rows],
                "encodings": [r.encoding for r in rows], "epochs": [r.epoch for r in rows], "delay": delay,
            },
        )  # fmt: skip
        for topic, key in sorted((topic, key) for topic, key in lanes if key is not None):
            yield Statement(_UNPARK, {"topic": topic, "key": key})

    # ------------------------------------------------------------------ claims

    async def claim(self, owner: str, limit: int, lease: float, *, without: Collection[str] = ()) -> list[Claimed]:
        claimed = await self._engine.run(_claim(_QUICK, owner, limit, lease, without), atomic=True)
        now = self._engine.clock.monotonic()
        if not claimed and now >= self._thorough_at:
            self._thorough_at = now + THOROUGH_EVERY
            claimed = await self._engine.run(_claim(_THOROUGH, owner, limit, lease, without), atomic=True)
        return claimed

    async def extend(self, leases: Sequence[Lease], seconds: float) -> frozenset[int]:
        return await self._fenced(_EXTEND, leases, seconds=seconds)

    async def ack(self, leases: Sequence[Lease]) -> frozenset[int]:
        return await self._fenced(_DELIVERED if self._engine.keep_delivered else _DELETED, leases)

    async def release(self, leases: Sequence[Lease]) -> frozenset[int]:
        return await self._fenced(_RELEASE, leases)

    async def retry(self, retries: Sequence[Retry]) -> frozenset[int]:
        return await self._fenced(
            _RETRY,
            [retry.lease for retry in retries],
            delays=[float(retry.delay) for retry in retries],
            errors=[str(retry.error) for retry in retries],
            counted=[retry.counted for retry in retries],
        )

    async def _fenced(self, text: str, leases: Sequence[Lease], **values: Any) -> frozenset[int]:
        """A change to rows that are still held; answers which were."""
        if not leases:
            return frozenset()
        values |= {"seqs": [lease.seq for lease in leases], "tokens": [lease.token for lease in leases]}
        return await self._engine.run(_seqs(Statement(text, values)))

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
        return await self._engine.run(_discard(source, id, topic), tx, atomic=True)

    async def park(self, limit: int) -> int:
        return len(await self._engine.run(_seqs(Statement(_PARK, {"limit": limit}))))

    # ------------------------------------------------------------------ looking and cleaning up

    async def stats(self) -> OutboxStats:
        return await self._engine.run(_stats())

    async def purge(self, older_than: float, limit: int) -> int:
        return len(await self._engine.run(_seqs(Statement(_PURGE, {"age": float(older_than), "limit": limit}))))


def _distinct(rows: Sequence[OutboxRow]) -> Sequence[OutboxRow]:
    """Each event once: one statement cannot insert a row and then find it there."""
    best: dict[tuple[str, str, str], OutboxRow] = {}
    for row in rows:
        known = best.setdefault((row.source, row.id, row.topic), row)
        if row.epoch > known.epoch:
            best[row.source, row.id, row.topic] = row
    return list(best.values())


def _seqs(statement: Statement) -> Operation[frozenset[int]]:
    return frozenset(row[0] for row in (yield statement))


def _claim(find: str, owner: str, limit: int, lease: float, without: Collection[str]) -> Operation[list[Claimed]]:
    token = uuid4().hex
    yield Statement(_ALONG_THE_INDEX)  # until the end of the transaction
    rows = yield Statement(
        find + _LEASE, {"owner": owner, "limit": limit, "lease": float(lease), "token": token, "without": list(without)}
    )
    # UPDATE answers in no order of its own.
    ordered = sorted(rows, key=lambda row: (row[4], row[5], row[0]))
    return [Claimed(OutboxRow(*row[6:]), Lease(row[0], token, row[1]), row[2], row[3]) for row in ordered]


def _take(lease: Lease, park: bool) -> Operation[OutboxRow | None]:
    """Out of the line, if it is still held; those behind it wait, if they are to."""
    rows = yield Statement(_TAKE, {"seq": lease.seq, "token": lease.token})
    if not rows:
        return None
    row = OutboxRow(*rows[0])
    if row.key is None or not park:
        yield Statement(_REMOVE, {"seq": lease.seq})
    else:
        yield Statement(_SET_ASIDE, {"seq": lease.seq, "topic": row.topic, "key": row.key})
    return row


def _discard(source: str, id: str, topic: str) -> Operation[bool]:
    rows = yield Statement(_DISCARD, {"source": source, "id": id, "topic": topic})
    if not rows:
        return False
    yield Statement(_UNPARK, {"topic": topic, "key": rows[0][0]})
    return True


def _stats() -> Operation[OutboxStats]:
    rows = yield Statement(_STATS)
    return OutboxStats(
        depth=sum(row[1] for row in rows),
        leased=sum(row[2] for row in rows),
        delayed=sum(row[3] for row in rows),
        parked=sum(row[4] for row in rows),
        oldest_age=max((row[5] for row in rows if row[5] is not None), default=0.0),
        by_topic={row[0]: row[1] for row in rows if row[1]},
    )
