"""The inbox in SQL: one row per key. Decided by the core of `everkeel.idempotency`, written by compare-and-set.

A first claim is one INSERT. Every other `begin` reads, decides purely and writes with the version it has read, so that
the rules stand in one place; what ends a claim is one UPDATE, fenced by the claim's nonce.

Only what must outlive a failing power supply is waited for until it is on the disk: that work is completed. A claim
that is lost then was its process's, which is gone as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from secrets import token_hex
from typing import Any, Protocol, TypeVar, Unpack

from everkeel.engines.sql.dialect import Dialect
from everkeel.engines.sql.statement import How, Operation, Statement
from everkeel.idempotency import core
from everkeel.idempotency.core import LEASE, RETAIN, Request
from everkeel.idempotency.records import Begin, Fresh, Record, State, StoreStats, Token
from everkeel.runtime.clock import Clock
from everkeel.runtime.settings import Seconds

T = TypeVar("T")

POSTGRES_TABLES = (
    """
CREATE TABLE IF NOT EXISTS everkeel_inbox (
    scope text NOT NULL,
    key text NOT NULL,
    state text NOT NULL CHECK (state IN ('in_progress', 'completed', 'failed')),
    nonce text NOT NULL,
    fence bigint NOT NULL,
    attempts integer NOT NULL,
    epoch integer NOT NULL,
    fingerprint bytea,
    result bytea,
    lease_until timestamptz,
    forget_at timestamptz NOT NULL,
    retain double precision NOT NULL,
    PRIMARY KEY (scope, key)
)""",
    "CREATE INDEX IF NOT EXISTS everkeel_inbox_forget ON everkeel_inbox (forget_at)",
)

SQLITE_TABLES = (
    """
CREATE TABLE IF NOT EXISTS everkeel_inbox (
    scope TEXT NOT NULL,
    key TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('in_progress', 'completed', 'failed')),
    nonce TEXT NOT NULL,
    fence INTEGER NOT NULL,
    attempts INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    fingerprint BLOB,
    result BLOB,
    lease_until REAL,
    forget_at REAL NOT NULL,
    retain REAL NOT NULL,
    PRIMARY KEY (scope, key)
) WITHOUT ROWID""",
    "CREATE INDEX IF NOT EXISTS everkeel_inbox_forget ON everkeel_inbox (forget_at)",
)


class SQLEngine(Protocol):
    """What a store needs of its engine."""

    clock: Clock

    async def run(self, operation: Operation[T], tx: Any = None, **how: Unpack[How]) -> T: ...

    def run_sync(self, operation: Operation[T], tx: Any = None, **how: Unpack[How]) -> T: ...


class InboxOperations:
    """Each method of the store as an operation; the two faces below run them."""

    def __init__(self, dialect: Dialect, clock: Clock) -> None:
        self._dialect, self._clock = dialect, clock
        later, now = dialect.later.format, dialect.now
        lease, retain = "CAST(:lease AS double precision)", "CAST(:retain AS double precision)"
        self._insert = f"""
INSERT INTO everkeel_inbox
    (scope, key, state, nonce, fence, attempts, epoch, fingerprint, lease_until, forget_at, retain)
VALUES (:scope, :key, 'in_progress', :nonce, 1, 1, :epoch, :fingerprint, {later(lease)},
    {later(f"{lease} + {retain}")}, {retain})
ON CONFLICT (scope, key) DO NOTHING RETURNING fence"""
        until = "CASE state WHEN 'in_progress' THEN lease_until ELSE forget_at END"
        self._select = f"""
SELECT scope, key, state, nonce, fence, attempts, epoch, fingerprint, result, {dialect.seconds.format(until)}, retain,
    {dialect.seconds.format(now)}
FROM everkeel_inbox WHERE scope = :scope AND key = :key"""
        # The nonce and the state are the version: a claim has a nonce of its own, and ends once.
        self._claim = f"""
UPDATE everkeel_inbox SET state = 'in_progress', nonce = :nonce, fence = :fence, attempts = :attempts, epoch = :epoch,
    fingerprint = :fingerprint, result = NULL, retain = {retain},
    lease_until = {later(lease)}, forget_at = {later(f"{lease} + {retain}")}
WHERE scope = :scope AND key = :key AND nonce = :was_nonce AND state = :was_state
  AND (state <> 'in_progress' OR lease_until <= {now}) RETURNING fence"""
        held = "WHERE scope = :scope AND key = :key AND nonce = :nonce AND state = 'in_progress' RETURNING fence"
        self._complete = f"""
UPDATE everkeel_inbox SET state = 'completed', result = :result, lease_until = NULL,
    forget_at = {later("retain")} {held}"""
        self._fail = f"""
UPDATE everkeel_inbox SET state = 'failed', attempts = attempts - :refund, lease_until = NULL,
    forget_at = {later("retain")} {held}"""
        self._extend = f"""
UPDATE everkeel_inbox SET lease_until = {later(lease)}, forget_at = {later(f"{lease} + retain")} {held}"""
        self._purge = f"""
DELETE FROM everkeel_inbox WHERE (scope, key) IN (
    SELECT scope, key FROM everkeel_inbox WHERE forget_at <= {now} ORDER BY forget_at LIMIT :limit) RETURNING key"""
        self._stats = f"SELECT state, count(*) FROM everkeel_inbox WHERE forget_at > {now}"

    def _statement(self, text: str, **values: Any) -> Statement:
        if ":now" in text:
            values["now"] = self._clock.time()
        return Statement(text, values)

    def begin(self, wanted: Request) -> Operation[Begin]:
        values = {"scope": wanted.scope, "key": wanted.key, "lease": wanted.lease, "retain": wanted.retain}
        while True:
            first = yield self._statement(
                self._insert, **values, nonce=wanted.nonce, epoch=wanted.epoch, fingerprint=wanted.fingerprint
            )
            if first:
                return Fresh(Token(wanted.scope, wanted.key, wanted.nonce, 1), 1)
            rows = yield self._statement(self._select, scope=wanted.scope, key=wanted.key)
            if not rows:
                continue  # purged between the two: now it can be inserted
            record, now = _record(rows[0]), float(rows[0][11])
            answer, after = core.begin(record, wanted, now)
            if not isinstance(answer, Fresh) or after is None:
                return answer
            taken = yield self._statement(
                self._claim,
                **values,
                nonce=after.nonce,
                fence=after.fence,
                attempts=after.attempts,
                epoch=after.epoch,
                fingerprint=after.fingerprint,
                was_nonce=record.nonce,
                was_state=record.state.value,
            )
            if taken:
                return answer
            # Somebody was faster, and holds it now or is already done: look again.

    def complete(self, token: Token, result: bytes | None) -> Operation[bool]:
        if result is not None and not isinstance(result, bytes):
            raise TypeError(f"the result to keep must be bytes or None, not {type(result).__name__}")
        return self._fenced(self._complete, token, result=result)

    def fail(self, token: Token, refund: bool) -> Operation[bool]:
        return self._fenced(self._fail, token, refund=int(refund))

    def extend(self, token: Token, lease: float) -> Operation[bool]:
        return self._fenced(self._extend, token, lease=lease)

    def _fenced(self, text: str, token: Token, **values: Any) -> Operation[bool]:
        return bool((yield self._statement(text, scope=token.scope, key=token.key, nonce=token.nonce, **values)))

    def get(self, scope: str, key: str) -> Operation[Record | None]:
        rows = yield self._statement(self._select, scope=scope, key=key)
        if not rows:
            return None
        record = _record(rows[0])
        return None if float(rows[0][11]) >= record.forgotten_at else record

    def forget(self, scope: str, key: str, expect: State | None) -> Operation[bool]:
        where = "" if expect is None else " AND state = :state"
        values = {} if expect is None else {"state": expect.value}
        text = f"DELETE FROM everkeel_inbox WHERE scope = :scope AND key = :key{where} RETURNING key"
        return bool((yield Statement(text, {"scope": scope, "key": key, **values})))

    def purge(self, limit: int) -> Operation[int]:
        return len((yield self._statement(self._purge, limit=limit)))

    def stats(self, scope: str | None) -> Operation[StoreStats]:
        where, values = ("", {}) if scope is None else (" AND scope = :scope", {"scope": scope})
        rows = yield self._statement(f"{self._stats}{where} GROUP BY state", **values)
        counts = {state: int(count) for state, count in rows}
        return StoreStats(counts.get("in_progress", 0), counts.get("completed", 0), counts.get("failed", 0))


def _record(row: Sequence[Any]) -> Record:
    scope, key, state, nonce, fence, attempts, epoch, fingerprint, result, until, retain = row[:11]
    return Record(
        scope=scope,
        key=key,
        state=State(state),
        nonce=nonce,
        fence=int(fence),
        attempts=int(attempts),
        epoch=int(epoch),
        fingerprint=None if fingerprint is None else bytes(fingerprint),
        result=None if result is None else bytes(result),
        until=float(until),
        retain=float(retain),
    )


class SyncSQLInbox:
    """The inbox for code without an event loop."""

    def __init__(self, engine: SQLEngine, operations: InboxOperations) -> None:
        self._engine, self._operations = engine, operations

    def begin(
        self,
        scope: str,
        key: str,
        *,
        fingerprint: bytes | None = None,
        lease: Seconds = LEASE,
        retain: Seconds = RETAIN,
        epoch: int = 0,
        tx: Any = None,
    ) -> Begin:
        wanted = core.request(
            scope, key, fingerprint=fingerprint, lease=lease, retain=retain, epoch=epoch, nonce=token_hex(16)
        )
        return self._engine.run_sync(self._operations.begin(wanted), tx, durable=False)

    def complete(self, token: Token, result: bytes | None = None, *, tx: Any = None) -> bool:
        return self._engine.run_sync(self._operations.complete(token, result), tx)

    def fail(self, token: Token, *, refund: bool = False, tx: Any = None) -> bool:
        return self._engine.run_sync(self._operations.fail(token, refund), tx, durable=False)

    def extend(self, token: Token, lease: Seconds = LEASE) -> bool:
        return self._engine.run_sync(self._operations.extend(token, core.length("lease", lease)), durable=False)

    def get(self, scope: str, key: str) -> Record | None:
        return self._engine.run_sync(self._operations.get(scope, key), write=False)

    def forget(self, scope: str, key: str, *, expect: State | None = None) -> bool:
        return self._engine.run_sync(self._operations.forget(scope, key, expect))

    def purge(self, limit: int = 1000) -> int:
        return self._engine.run_sync(self._operations.purge(limit), durable=False)

    def stats(self, scope: str | None = None) -> StoreStats:
        return self._engine.run_sync(self._operations.stats(scope), write=False)


class SQLInbox:
    """An `IdempotencyStore` in a database; `sync` is the same for code without an event loop."""

    def __init__(self, engine: SQLEngine, dialect: Dialect) -> None:
        self._engine, self._operations = engine, InboxOperations(dialect, engine.clock)
        self.sync = SyncSQLInbox(engine, self._operations)

    async def begin(
        self,
        scope: str,
        key: str,
        *,
        fingerprint: bytes | None = None,
        lease: Seconds = LEASE,
        retain: Seconds = RETAIN,
        epoch: int = 0,
        tx: Any = None,
    ) -> Begin:
        wanted = core.request(
            scope, key, fingerprint=fingerprint, lease=lease, retain=retain, epoch=epoch, nonce=token_hex(16)
        )
        return await self._engine.run(self._operations.begin(wanted), tx, durable=False)

    async def complete(self, token: Token, result: bytes | None = None, *, tx: Any = None) -> bool:
        return await self._engine.run(self._operations.complete(token, result), tx)

    async def fail(self, token: Token, *, refund: bool = False, tx: Any = None) -> bool:
        return await self._engine.run(self._operations.fail(token, refund), tx, durable=False)

    async def extend(self, token: Token, lease: Seconds = LEASE) -> bool:
        return await self._engine.run(self._operations.extend(token, core.length("lease", lease)), durable=False)

    async def get(self, scope: str, key: str) -> Record | None:
        return await self._engine.run(self._operations.get(scope, key), write=False)

    async def forget(self, scope: str, key: str, *, expect: State | None = None) -> bool:
        return await self._engine.run(self._operations.forget(scope, key, expect))

    async def purge(self, limit: int = 1000) -> int:
        return await self._engine.run(self._operations.purge(limit), durable=False)

    async def stats(self, scope: str | None = None) -> StoreStats:
        return await self._engine.run(self._operations.stats(scope), write=False)
