"""What a claim reads of the table, whatever PostgreSQL believes is in there."""

from __future__ import annotations

import asyncio

import pytest

from everkeel.engines import PostgresEngine
from everkeel.engines.postgres.outbox import _QUICK, _claim
from everkeel.engines.rows import OutboxRow
from everkeel.engines.sql.statement import rendered

pytestmark = pytest.mark.require_server("postgres")

BACKLOG = 6000


def scanned(node):
    """Rows that were fetched from the outbox's table, by each node of a plan."""
    if node.get("Relation Name") == "everkeel_outbox" and "Scan" in node["Node Type"]:
        yield node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
    for inner in node.get("Plans", ()):
        yield from scanned(inner)


@pytest.mark.parametrize("statistics", ["none", "of the empty table", "of the backlog"])
@pytest.mark.parametrize("keys", [None, 40])
def test_a_claim_reads_as_much_as_it_takes_however_long_the_backlog_and_old_the_statistics(
    postgres_dsn, statistics, keys
):
    import psycopg

    async def fill(count):
        async with PostgresEngine(postgres_dsn) as engine:
            await engine.outbox.append(
                [
                    OutboxRow(
                        str(n), "/tests", "tested", "events", None if keys is None else f"k{n % keys}", "{}", "{}"
                    )
                    for n in range(count)
                ]
            )

    asyncio.run(fill(0))
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute("ALTER TABLE everkeel_outbox SET (autovacuum_enabled = false)")
        if statistics == "of the empty table":
            connection.execute("ANALYZE everkeel_outbox")
        asyncio.run(fill(BACKLOG))
        if statistics == "of the backlog":
            connection.execute("ANALYZE everkeel_outbox")
        connection.execute("SET jit_above_cost = 0")  # as if the backlog were of millions
        operation = _claim(_QUICK, "me", 50, 30.0, ())
        with connection.transaction():
            connection.execute(*rendered(next(operation), "pyformat"))
            text, values = rendered(operation.send(()), "pyformat")
            ((plan,),) = connection.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {text}", values).fetchall()
    assert "JIT" not in plan[0]
    most = max(scanned(plan[0]["Plan"]))
    assert most <= 500, f"{most} rows of a backlog of {BACKLOG} for a claim of 50"
