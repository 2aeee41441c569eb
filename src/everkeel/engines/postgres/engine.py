"""What the user holds: `PostgresEngine(dsn)`."""

from __future__ import annotations

import asyncio
from functools import cached_property
from typing import Any, Self, TypeVar, Unpack

from everkeel.engines.counts import StoreCounts, counted
from everkeel.engines.postgres.connections import Driver, connections, installed_driver
from everkeel.engines.postgres.outbox import PostgresOutbox
from everkeel.engines.postgres.schema import CREATE_VERSIONS, LOCK, MIGRATIONS, SHAPES
from everkeel.engines.postgres.vitals import vitals
from everkeel.engines.postgres.wakeup import Listener, PostgresWakeup, notification
from everkeel.engines.rows import Capabilities
from everkeel.engines.sql.drift import Shape, check_shapes, check_version, shapes
from everkeel.engines.sql.migrations import VERSION_TABLE, missing
from everkeel.engines.sql.runners import arun_on, run_on
from everkeel.engines.sql.statement import How, Operation, Statement, one
from everkeel.engines.vitals import Vitals
from everkeel.errors import ConfigError
from everkeel.runtime.clock import DEFAULT, Clock
from everkeel.runtime.settings import Seconds, seconds

T = TypeVar("T")


class PostgresEngine:
    """Everything in PostgreSQL, beside the data the events are about: for services on several machines.

    Args:
        dsn: Where the server is.
        pool: In place of a dsn, a pool you have: asyncpg's, psycopg_pool's, or an AsyncEngine of SQLAlchemy's.
        driver: "asyncpg" or "psycopg", for the engine's own connections; by default what is installed, asyncpg first.
        pooler: The dsn leads to PgBouncer in transaction mode: nothing is prepared, and nobody listens there.
        listen_dsn: Where to listen for wake-ups: a direct address of the server. Without one, the dsn where it is
            direct; behind a pooler and with a pool of yours, relays poll.
        connections: How many connections of its own the engine uses at most, the listening one not counted.
        serialise_keys: Let transactions that write events of one key wait for each other, so that the order of a key
            is the order of commits even where the data itself is not locked. Costs a statement per key.
        keep_delivered: Seconds for which delivered events are kept; a day. 0: deleted at once.
        create_schema: Bring the tables up to date when the engine starts. False: an old schema is an error.
        validate: Look, when the engine starts, whether the tables are those this code knows: a missing table, column or
            index and a schema newer than the code are errors then, and not the first customer's. Costs a query.
        clock: For waiting. What is due when is decided by the server's clock.
    """

    name = "postgresql"

    def __init__(
        self,
        dsn: str | None = None,
        *,
        pool: Any = None,
        driver: Driver | None = None,
        pooler: bool = False,
        listen_dsn: str | None = None,
        connections: int = 4,
        serialise_keys: bool = False,
        keep_delivered: Seconds = 86_400.0,
        create_schema: bool = True,
        validate: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self.clock = clock or DEFAULT
        self.keep_delivered = seconds(keep_delivered)
        self.serialise_keys = serialise_keys
        self._settings = (dsn, pool, driver, connections, pooler)
        self._connections = self._connect()
        self._create_schema, self._validate = create_schema, validate
        direct = listen_dsn or (dsn if not pooler else None)
        self.listener = None if direct is None else Listener(direct, driver or installed_driver(), self.clock)
        self.capabilities = Capabilities(
            transactional=True, durable="fsync", shared="network", notify=self.listener is not None
        )
        self.wakeup = PostgresWakeup(self.clock, self._tell, self.listener)
        self.counts = StoreCounts()
        self.outbox = counted(PostgresOutbox(self), "outbox", self.counts)
        """Events on their way out."""

    @property
    def most_connections(self) -> int | None:
        """How many connections of its own it uses at most; None where it was given a pool."""
        return None if self._settings[1] is not None else int(self._settings[3])

    def _connect(self) -> Any:
        dsn, pool, driver, most, pooler = self._settings
        return connections(dsn, pool, driver, most, pooler=pooler)

    # ------------------------------------------------------------------ stores

    @cached_property
    def inbox(self) -> Any:
        """What was already handled."""
        from everkeel.engines.postgres.inbox import PostgresInbox

        inbox = counted(PostgresInbox(self), "inbox", self.counts)
        counted(inbox.sync, "inbox", self.counts)
        return inbox

    @cached_property
    def dead_letters(self) -> Any:
        """What was given up on."""
        from everkeel.engines.postgres.dead_letters import PostgresDeadLetters

        return counted(PostgresDeadLetters(self), "dead_letter", self.counts)

    @cached_property
    def sagas(self) -> Any:
        """Sagas and where they are."""
        from everkeel.engines.postgres.sagas import PostgresSagas

        return counted(PostgresSagas(self), "saga", self.counts)

    @cached_property
    def sequences(self) -> Any:
        """How far consumers have come in numbered events."""
        from everkeel.engines.sql.dialect import POSTGRES
        from everkeel.engines.sql.sequences import SQLSequences

        return SQLSequences(self, POSTGRES)

    # ------------------------------------------------------------------ running operations

    async def run(self, operation: Operation[T], tx: Any = None, **how: Unpack[How]) -> T:
        """Run an operation in the caller's transaction, or on a connection of the engine's."""
        if tx is not None:
            return await arun_on(tx, operation)
        ours = self._connections
        async with ours.transaction() if how.get("atomic", False) else ours.acquire() as connection:
            return await arun_on(connection, operation)

    def run_sync(self, operation: Operation[T], tx: Any = None, **how: Unpack[How]) -> T:
        """Run an operation in the caller's transaction, in code without an event loop."""
        if tx is None:
            raise ConfigError("PostgresEngine", "tx", "is needed where nothing is awaited", "None")
        return run_on(tx, operation)

    def transaction(self) -> Any:
        """Several writes as one: a connection in a transaction that ends with the block."""
        return self._connections.transaction()

    async def vitals(self) -> Vitals:
        """How the server is doing: its clock against ours, and what keeps it from cleaning up. For metrics."""
        return await self.run(vitals(self.clock))

    async def _tell(self, topic: str) -> None:
        await self.run(one(notification(topic)))

    # ------------------------------------------------------------------ life

    async def start(self) -> None:
        """Connect, bring the tables up to date, and listen."""
        try:
            await self._connections.start()
            await self._migrate()
        except BaseException:
            await self._connections.close()
            raise
        self.wakeup.start(asyncio.get_running_loop())

    async def _migrate(self) -> None:
        # Look first: a role that may not create tables must be able to use those that are there.
        version = await self.run(_version())
        if missing(MIGRATIONS, version):
            await self._bring_up_to_date(version)
        if self._validate:
            check_version("PostgresEngine", "dsn", MIGRATIONS, version)
            check_shapes("PostgresEngine", "dsn", "postgresql", MIGRATIONS, await self.run(_shapes()))

    async def _bring_up_to_date(self, version: int) -> None:
        if not self._create_schema:
            raise ConfigError(
                "PostgresEngine", "dsn", f"has tables of version {version}, and {MIGRATIONS[-1].version} is needed: "
                "apply the output of `everkeel schema sql postgresql`", None
            )  # fmt: skip
        await self.run(_migrate(), atomic=True)

    async def close(self) -> None:
        """Let go of the connections that are the engine's own."""
        await self.wakeup.close()
        if "inbox" in vars(self):
            self.inbox.close()
        await self._connections.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()


def _version() -> Operation[int]:
    known = yield Statement(f"SELECT to_regclass('{VERSION_TABLE}') IS NOT NULL")
    if not known[0][0]:
        return 0
    rows = yield Statement(f"SELECT coalesce(max(version), 0) FROM {VERSION_TABLE}")
    return int(rows[0][0])


def _shapes() -> Operation[dict[str, Shape]]:
    rows = yield Statement(SHAPES, {"names": list(shapes(MIGRATIONS))})
    return {
        name: Shape(set(columns), set(indexes), {tuple(key.split(",")) for key in unique})
        for name, columns, indexes, unique in rows
    }


def _migrate() -> Operation[None]:
    yield Statement(LOCK)
    yield Statement(CREATE_VERSIONS)
    version = yield from _version()
    for step in missing(MIGRATIONS, version):
        for statement in step.statements:
            yield Statement(statement)
        yield Statement(f"INSERT INTO {VERSION_TABLE} (version) VALUES (CAST(:version AS integer))",
                        {"version": step.version})  # fmt: skip
