"""Statements in every driver's own style, and connections told apart by looking at them."""

from __future__ import annotations

import sqlite3

import pytest

from everkeel.engines.sql.runners import kind_of, run_on, runner_of
from everkeel.engines.sql.statement import Statement, one, rendered
from everkeel.errors import ConfigError


@pytest.mark.parametrize(
    ("style", "text", "values"),
    [
        ("named", "SELECT :a, :b::int, :a WHERE x LIKE '%'", {"a": 1, "b": 2}),
        ("dollar", "SELECT $1, $2::int, $1 WHERE x LIKE '%'", (1, 2)),
        ("pyformat", "SELECT %(a)s, %(b)s::int, %(a)s WHERE x LIKE '%%'", {"a": 1, "b": 2}),
    ],
)
def test_parameters_are_written_in_each_drivers_style(style, text, values):
    statement = Statement("SELECT :a, :b::int, :a WHERE x LIKE '%'", {"a": 1, "b": 2})
    assert rendered(statement, style) == (text, values)


def test_a_subclass_of_a_connection_is_recognised():
    class Mine(sqlite3.Connection):
        pass

    connection = sqlite3.connect(":memory:", factory=Mine)
    connection.row_factory = sqlite3.Row  # the caller's idea of a row is not ours
    assert kind_of(connection) == ("sqlite3", "Connection")
    assert run_on(connection, one(Statement("SELECT :a + 1", {"a": 1}))) == [(2,)]
    connection.close()


def test_a_class_that_only_has_the_name_is_not_taken_for_a_connection():
    class Connection:
        pass

    with pytest.raises(ConfigError, match="must be a connection of asyncpg"):
        runner_of(Connection())


def test_a_driver_we_do_not_know_under_sqlalchemy_is_named_in_the_error():
    pytest.importorskip("sqlalchemy")
    from sqlalchemy import create_engine

    engine = create_engine("sqlite://")
    with engine.connect() as connection:
        connection.dialect.driver = "pymysql"
        with pytest.raises(ConfigError, match="SQLAlchemy on 'pymysql'"):
            run_on(connection, one(Statement("SELECT 1")))
    engine.dispose()


def test_a_sqlite_file_with_old_tables_is_an_error_where_they_are_not_to_be_changed(tmp_path):
    import asyncio

    from everkeel.engines import SQLiteEngine

    async def main():
        async with SQLiteEngine(tmp_path / "db", create_schema=False):
            pass

    with pytest.raises(ConfigError, match="apply the output of `everkeel schema sql sqlite`"):
        asyncio.run(main())
    with pytest.raises(ConfigError, match="path must be a file"):
        SQLiteEngine(":memory:")
