"""What every test run shares: Hypothesis profiles, servers that may be missing, and the closing summary."""

from __future__ import annotations

import os
import platform
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings

from everkeel.testing import servers

collect_ignore = ["typing"]  # read by type checkers (make lint), never run

IN_CI = os.environ.get("CI", "").lower() in {"1", "true"}

# No deadlines: how long a test takes says more about the machine than about the code.
settings.register_profile("dev", deadline=None)
# The same examples on every run, so that a red build is about the change and not about luck.
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True, max_examples=50)
# On every other Python: what differs there is the interpreter, not the cases.
settings.register_profile("brief", deadline=None, derandomize=True, print_blob=True, max_examples=15)
# New examples on every run, many of them: `make test-all`.
settings.register_profile("thorough", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if IN_CI else "dev"))


# --- servers --------------------------------------------------------------------------------------
# Each is started once per worker, on a free port with temporary data; EVERKEEL_TEST_REDIS, EVERKEEL_TEST_POSTGRES and
# EVERKEEL_TEST_PGBOUNCER name one that already runs instead.


def server_address(name: str) -> str | None:
    return os.environ.get(f"EVERKEEL_TEST_{name.upper()}")


@pytest.hookimpl(tryfirst=True)  # before fixtures try to connect
def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("require_server"):
        (name,) = marker.args
        if server_address(name) or not servers.missing(name):
            item.user_properties.append(("exercised", name))
        else:
            missing = pytest.fail if IN_CI else pytest.skip
            missing(f"no {name} on this machine (`make servers` installs it)")


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """The address of a Redis. Its data are shared by the tests of one worker: choose keys of your own."""
    if address := server_address("redis"):
        yield address
        return
    with servers.redis() as server:
        yield server.address


@pytest.fixture(scope="session")
def postgres_url() -> Iterator[str]:
    """The address of a PostgreSQL whose role may create databases; see `postgres_dsn` for one of your own."""
    if address := server_address("postgres"):
        yield address
        return
    with servers.postgres() as server:
        yield server.address


@pytest.fixture
def postgres_dsn(postgres_url: str) -> Iterator[str]:
    """An empty database of this test's own."""
    import psycopg

    name = f"test_{uuid.uuid4().hex}"
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(f'create database "{name}"')
        yield f"{postgres_url.rsplit('/', 1)[0]}/{name}"
        connection.execute(f'drop database "{name}" with (force)')


@pytest.fixture(scope="session")
def pgbouncer_url(postgres_url: str) -> Iterator[str]:
    if address := server_address("pgbouncer"):
        yield address
        return
    with servers.pgbouncer(postgres_url) as server:
        yield server.address


@pytest.fixture
def pgbouncer_dsn(pgbouncer_url: str, postgres_dsn: str) -> str:
    """The database of `postgres_dsn` through a PgBouncer in transaction mode."""
    return f"{pgbouncer_url.rsplit('/', 1)[0]}/{postgres_dsn.rsplit('/', 1)[1]}"


# --- the last lines of a run ----------------------------------------------------------------------


def summary_lines(stats: dict[str, list[Any]], selection: str) -> Iterator[str]:
    reports = [report for group in stats.values() for report in group if isinstance(report, pytest.TestReport)]
    calls = [report for report in reports if report.when == "call"]  # a test reports its setup and teardown too
    properties = [pair for report in calls for pair in report.user_properties]
    servers = sorted({str(value) for key, value in properties if key == "exercised"})
    implementation = "" if sys.implementation.name == "cpython" else f" ({sys.implementation.name})"
    yield f"everkeel: exercised: Python {platform.python_version()}{implementation}, {', '.join(['asyncio', *servers])}"
    if selection:
        yield f"everkeel: not exercised: tests outside of -m '{selection}'"
    skipped = Counter(str(report.longrepr[2]).removeprefix("Skipped: ") for report in stats.get("skipped", []))
    for reason, count in sorted(skipped.items()):
        yield f"everkeel: not exercised: {count} skipped: {reason}"
    excluded = sum(int(str(value)) for key, value in properties if key == "excluded_examples")
    if excluded:
        yield f"everkeel: not exercised: {excluded} examples of the docs are marked no-test"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return  # one of xdist's workers; the summary is for all of them
    lines = list(summary_lines(terminalreporter.stats, config.getoption("markexpr", "")))
    terminalreporter.section("exercised")
    for line in lines:
        terminalreporter.write_line(line)
    if target := os.environ.get("EVERKEEL_TEST_SUMMARY"):  # `make test` shows all runs together at its end
        with open(target, "a") as summary:
            summary.write("\n".join(lines) + "\n")
