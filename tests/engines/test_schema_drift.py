"""An engine that starts on tables which are not those it knows says so, and says what is missing."""

from __future__ import annotations

import asyncio
import sqlite3

import psycopg
import pytest

from everkeel.engines import PostgresEngine, SQLiteEngine
from everkeel.engines.postgres import engine as postgres
from everkeel.engines.postgres import schema as postgres_schema
from everkeel.engines.sql.drift import Shape, lacking, shapes
from everkeel.engines.sql.migrations import Migration
from everkeel.engines.sql.statement import Statement, one
from everkeel.engines.sqlite import engine as sqlite
from everkeel.engines.sqlite import schema as sqlite_schema
from everkeel.errors import ConfigError


async def start(engine) -> None:
    async with engine:
        pass


class OnSQLite:
    """A SQLite file that can be damaged."""

    newest = sqlite_schema.MIGRATIONS[-1].version
    command = "everkeel schema sql sqlite"

    def __init__(self, path):
        self.path = path / "db"

    def engine(self, **options):
        return SQLiteEngine(self.path, **options)

    def damage(self, statement):
        with sqlite3.connect(self.path) as connection:
            connection.execute(statement)
        connection.close()

    def repair(self):
        connection = sqlite3.connect(self.path)
        connection.executescript(sqlite_schema.sql())
        connection.close()


class OnPostgreSQL:
    """A PostgreSQL database that can be damaged."""

    newest = postgres_schema.MIGRATIONS[-1].version
    command = "everkeel schema sql postgresql"

    def __init__(self, dsn):
        self.dsn = dsn

    def engine(self, **options):
        return PostgresEngine(self.dsn, **options)

    def damage(self, statement):
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(statement)

    def repair(self):
        self.damage(postgres_schema.sql())


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.require_server("postgres"))])
def database(request, tmp_path):
    if request.param == "sqlite":
        return OnSQLite(tmp_path)
    return OnPostgreSQL(request.getfixturevalue("postgres_dsn"))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("DROP INDEX everkeel_outbox_due", "lacks the index everkeel_outbox_due: "),
        ("DROP TABLE everkeel_inbox", "lacks everkeel_inbox: "),
        ("ALTER TABLE everkeel_outbox DROP COLUMN last_error", "lacks the column everkeel_outbox.last_error: "),
    ],
)
def test_what_is_missing_is_named_when_the_engine_starts(database, damage, told):
    asyncio.run(start(database.engine()))
    database.damage(damage)
    with pytest.raises(ConfigError, match=told) as caught:
        asyncio.run(start(database.engine()))
    assert database.command in str(caught.value)
    asyncio.run(start(database.engine(validate=False)))
    if "COLUMN" not in damage:
        database.repair()
        asyncio.run(start(database.engine()))


def test_tables_that_are_newer_than_the_code_are_an_error(database):
    asyncio.run(start(database.engine()))
    database.damage(f"INSERT INTO everkeel_schema (version) VALUES ({database.newest + 1})")
    told = f"has tables of version {database.newest + 1}, and this code knows {database.newest}"
    with pytest.raises(ConfigError, match=told):
        asyncio.run(start(database.engine()))
    asyncio.run(start(database.engine(validate=False)))


@pytest.mark.require_server("postgres")
def test_a_lost_constraint_is_named_and_an_index_that_is_not_valid_is_none(postgres_dsn):
    database = OnPostgreSQL(postgres_dsn)
    asyncio.run(start(database.engine()))
    database.damage("ALTER TABLE everkeel_outbox DROP CONSTRAINT everkeel_outbox_source_id_aggregatetype_key")
    with pytest.raises(ConfigError, match=r"lacks a unique index on everkeel_outbox \(source, id, aggregatetype\)"):
        asyncio.run(start(database.engine()))
    database.damage("CREATE UNIQUE INDEX mine ON everkeel_outbox (source, id, aggregatetype)")  # as good, by any name
    asyncio.run(start(database.engine()))
    database.damage("INSERT INTO everkeel_dead_letter_audit (letter, at, actor, kind, reason) "
                    "SELECT 'l', now(), 'ann', 'human', '' FROM generate_series(1, 2)")  # fmt: skip
    database.damage("DROP INDEX everkeel_dead_letter_audit_letter")
    index = "UNIQUE INDEX CONCURRENTLY everkeel_dead_letter_audit_letter ON everkeel_dead_letter_audit (letter)"
    with pytest.raises(psycopg.errors.UniqueViolation):  # broken off, and left behind
        database.damage(f"CREATE {index}")
    with pytest.raises(ConfigError, match="lacks the index everkeel_dead_letter_audit_letter"):
        asyncio.run(start(database.engine()))


def test_what_is_expected_in_sqlite_is_what_a_new_file_has(tmp_path):
    asyncio.run(start(SQLiteEngine(tmp_path / "db")))
    connection = sqlite3.connect(tmp_path / "db")
    named = "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'everkeel%'"
    tables = {name for (name,) in connection.execute(named)} - {"everkeel_schema"}
    found = sqlite._shapes(connection)
    connection.close()
    same(shapes(sqlite_schema.MIGRATIONS), found)
    assert set(found) == tables


@pytest.mark.require_server("postgres")
def test_what_is_expected_in_postgresql_is_what_a_new_database_has(postgres_dsn):
    async def main():
        async with PostgresEngine(postgres_dsn) as engine:
            found = await engine.run(postgres._shapes())
            named = "SELECT relname FROM pg_class WHERE relkind IN ('r', 'S') AND relname LIKE 'everkeel%'"
            return found, {name for (name,) in await engine.run(one(Statement(named)))}

    found, relations = asyncio.run(main())
    for name in [name for name in found if name.endswith("_positions")]:
        found[name].columns.clear()  # a sequence's are PostgreSQL's own
    same(shapes(postgres_schema.MIGRATIONS), found)
    assert set(found) == {name for name in relations if not name.endswith("_seq_seq")} - {"everkeel_schema"}


def same(expected, found):
    """Every column and every index of ours that is there is known to be needed, and the other way round."""
    assert set(expected) == set(found)
    for name, shape in expected.items():
        there = found[name]
        assert shape.columns == there.columns, name
        assert shape.indexes == {one for one in there.indexes if not one.endswith(("_key", "_pkey"))
                                 and not one.startswith("sqlite_autoindex")}, name  # fmt: skip
        assert shape.unique == {key for key in there.unique if key}, name


def test_later_steps_add_to_and_take_from_what_earlier_ones_made():
    steps = [
        Migration(1, "", ("CREATE TABLE t (a text, b numeric(4, 2), UNIQUE (a, b))", "CREATE INDEX i ON t (b)")),
        Migration(2, "", ("ALTER TABLE t ADD COLUMN c text", "ALTER TABLE t DROP COLUMN b", "DROP INDEX i")),
        Migration(3, "", ("CREATE UNIQUE INDEX j ON t (c)", "ALTER TABLE t SET (fillfactor = 70)")),
    ]
    assert shapes(steps) == {"t": Shape({"a", "c"}, {"j"}, {("a", "b")})}


def test_what_is_there_beside_it_is_somebodys_own():
    there = Shape({"a", "b", "mine"}, {"i", "mine"}, {("a",), ("mine",)})
    assert lacking({"t": Shape({"a", "b"}, {"i"}, {("a",)})}, {"t": there, "mine": Shape()}) == []
