"""`everkeel schema`: what it prints is what is used."""

from __future__ import annotations

import json
import sqlite3

import pytest

from everkeel.cli import main, output


def test_the_tables_are_printed_as_sql_that_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "sql", "sqlite"]) == 0
    connection = sqlite3.connect(":memory:")
    connection.executescript(capsys.readouterr().out)
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    connection.close()
    assert {"everkeel_outbox", "everkeel_schema"} <= tables


def test_postgresqls_tables_are_printed_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "sql", "postgresql"]) == 0
    assert "CREATE TABLE IF NOT EXISTS everkeel_outbox" in capsys.readouterr().out


def test_the_json_schema_is_still_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", "config"]) == 0
    assert "$schema" in json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("words", [["schema"], ["schema", "sql"], ["schema", "sql", "oracle"], ["schema", "other"]])
def test_what_it_does_not_know_is_wrong_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == output.USAGE
    assert "everkeel" in capsys.readouterr().err
