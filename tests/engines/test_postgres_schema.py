"""Tables that are made on demand or by hand, by a role without privileges, and brought up to date step by step."""

from __future__ import annotations

import asyncio

import psycopg
import pytest

from everkeel.engines import OutboxRow, PostgresEngine
from everkeel.engines.postgres import schema
from everkeel.engines.sql.migrations import Migration, missing
from everkeel.engines.sql.statement import observers
from everkeel.errors import ConfigError

pytestmark = pytest.mark.require_server("postgres")

ROW = OutboxRow("1", "/tests", "tested", "events", "k", "{}", "{}")


async def works(engine: PostgresEngine) -> bool:
    async with engine:
        await engine.outbox.append([ROW])
        (claimed,) = await engine.outbox.claim("me", 10, 60)
        return bool(await engine.outbox.ack([claimed.lease]))


def test_the_printed_script_is_all_that_is_needed_and_may_be_run_twice(postgres_dsn):
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(schema.sql())
        connection.execute(schema.sql())
    assert asyncio.run(works(PostgresEngine(postgres_dsn, create_schema=False)))


def test_missing_tables_are_an_error_where_they_are_not_to_be_made(postgres_dsn):
    newest = schema.MIGRATIONS[-1].version
    with pytest.raises(ConfigError, match=f"version 0, and {newest} is needed: apply the output of `everkeel schema"):
        asyncio.run(works(PostgresEngine(postgres_dsn, create_schema=False)))


def test_services_that_start_together_make_the_tables_once(postgres_dsn):
    async def main():
        engines = [PostgresEngine(postgres_dsn) for _ in range(5)]
        await asyncio.gather(*(engine.start() for engine in engines))
        await asyncio.gather(*(engine.close() for engine in engines))

    asyncio.run(main())
    with psycopg.connect(postgres_dsn) as connection:
        applied = [version for (version,) in connection.execute("SELECT version FROM everkeel_schema ORDER BY 1")]
    assert applied == [step.version for step in schema.MIGRATIONS]


def test_a_database_of_an_older_version_gets_the_steps_it_lacks(postgres_dsn, monkeypatch):
    asyncio.run(works(PostgresEngine(postgres_dsn)))
    newest = schema.MIGRATIONS[-1].version
    step = Migration(newest + 1, "something new", ("CREATE TABLE everkeel_something_new (id integer)",))
    monkeypatch.setattr("everkeel.engines.postgres.engine.MIGRATIONS", (*schema.MIGRATIONS, step))

    async def main():
        async with PostgresEngine(postgres_dsn):
            pass

    asyncio.run(main())
    with psycopg.connect(postgres_dsn) as connection:
        assert connection.execute("SELECT count(*) FROM everkeel_something_new").fetchone() == (0,)
        assert connection.execute("SELECT state FROM everkeel_outbox").fetchall() == [(1,)]  # nothing was lost


def test_where_the_tables_are_up_to_date_nothing_is_created(postgres_dsn):
    """So a role that may only read and write them will do."""

    async def start():
        async with PostgresEngine(postgres_dsn):
            pass

    asyncio.run(start())
    seen: list[str] = []
    observers.append(seen.append)
    try:
        asyncio.run(start())
    finally:
        observers.remove(seen.append)
    assert seen
    assert {text.split()[0] for text in seen} == {"SELECT"}


def test_no_superuser_is_needed(postgres_dsn):
    with psycopg.connect(postgres_dsn) as connection:
        assert connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone() == (False,)
    assert asyncio.run(works(PostgresEngine(postgres_dsn)))


def test_the_outbox_has_the_columns_that_debeziums_router_reads(postgres_dsn):
    asyncio.run(works(PostgresEngine(postgres_dsn)))
    with psycopg.connect(postgres_dsn) as connection:
        row = connection.execute("SELECT id, aggregatetype, aggregateid, type, payload FROM everkeel_outbox").fetchone()
        columns = connection.execute(
            "SELECT column_name, data_type, is_nullable FROM information_schema.columns WHERE table_name = "
            "'everkeel_outbox' AND column_name IN ('id', 'aggregatetype', 'aggregateid', 'type', 'payload') ORDER BY 1"
        ).fetchall()
    assert row == ("1", "events", "k", "tested", "{}")
    assert columns == [
        ("aggregateid", "text", "YES"),  # an event may have no key
        ("aggregatetype", "text", "NO"),
        ("id", "text", "NO"),
        ("payload", "text", "YES"),  # nor any data
        ("type", "text", "NO"),
    ]


def test_a_claim_looks_only_at_what_is_due(postgres_dsn):
    """Delivered rows are kept for a day; a claim must not read them."""

    async def main():
        async with PostgresEngine(postgres_dsn) as engine:
            rows = [OutboxRow(str(n), "/tests", "tested", "events", f"k{n % 50}", "{}", "{}") for n in range(5000)]
            await engine.outbox.append(rows)
            while claimed := await engine.outbox.claim("me", 1000, 60):
                await engine.outbox.ack([item.lease for item in claimed])

    asyncio.run(main())
    from everkeel.engines.postgres.outbox import _LEASE, _QUICK
    from everkeel.engines.sql.statement import Statement, rendered

    values = {"owner": "me", "limit": 100, "lease": 1.0, "token": "t", "without": []}
    text, values = rendered(Statement(_QUICK + _LEASE, values), "pyformat")
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE everkeel_outbox")
        plan = "\n".join(line for (line,) in connection.execute(f"EXPLAIN {text}", values))
    assert "Seq Scan on everkeel_outbox" not in plan, plan
    assert "everkeel_outbox_due" in plan


def test_missing_steps_are_those_behind_the_version():
    steps = [Migration(n, "", ()) for n in (1, 2, 3)]
    assert [step.version for step in missing(steps, 1)] == [2, 3]
    assert missing(steps, 3) == []
