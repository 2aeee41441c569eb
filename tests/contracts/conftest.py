"""One database for all contracts, emptied before each test: making a new one takes longer than most tests do."""

from __future__ import annotations

import uuid

import psycopg
import pytest


@pytest.fixture(scope="session")
def contracts_dsn(postgres_url):
    name = f"contracts_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f'create database "{name}"')
        yield f"{postgres_url.rsplit('/', 1)[0]}/{name}"
        connection.execute(f'drop database "{name}" with (force)')


@pytest.fixture
def emptied_dsn(contracts_dsn):
    with psycopg.connect(contracts_dsn, autocommit=True) as connection:
        ours = "select tablename from pg_tables where tablename like 'everkeel%' and tablename <> 'everkeel_schema'"
        tables = [name for (name,) in connection.execute(ours)]
        if tables:
            connection.execute(f"truncate {', '.join(tables)}")
    return contracts_dsn
