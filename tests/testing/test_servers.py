"""The servers our tests start are what they say: fresh, on their own ports, and able to die and come back."""

from __future__ import annotations

import subprocess
from pathlib import Path

import psycopg
import pytest
import redis as redis_client

from everkeel.testing import servers


@pytest.mark.require_server("redis")
def test_a_durable_redis_remembers_over_a_kill() -> None:
    with servers.redis(durable=True) as server:
        redis_client.Redis.from_url(server.address).set("k", "v")
        server.kill()
        assert not server.running
        server.start()
        with redis_client.Redis.from_url(server.address) as client:
            assert client.get("k") == b"v"


@pytest.mark.require_server("postgres")
def test_a_postgres_remembers_over_a_kill_and_its_role_is_no_superuser() -> None:
    with servers.postgres() as server:
        with psycopg.connect(server.address) as connection:
            connection.execute("create table t (n int)")
            connection.execute("insert into t values (7)")
        server.kill()
        server.start()
        with psycopg.connect(server.address) as connection:
            assert connection.execute("select n from t").fetchall() == [(7,)]
            assert connection.execute("select rolsuper from pg_roles where rolname = current_user").fetchone() == (
                False,
            )


@pytest.mark.require_server("postgres")
@pytest.mark.require_server("pgbouncer")
def test_a_pgbouncer_reaches_the_database_of_a_test(pgbouncer_dsn: str) -> None:
    with psycopg.connect(pgbouncer_dsn, prepare_threshold=None) as connection:
        assert connection.execute("select current_database()").fetchone() == (pgbouncer_dsn.rsplit("/", 1)[1],)


def test_a_server_that_does_not_start_says_its_own_words(tmp_path: Path) -> None:
    command = ["sh", "-c", "echo no such option; exit 1"]
    broken = servers.Server("redis", "", command, lambda: False, tmp_path / "log")
    with pytest.raises(servers.ServerError, match="redis did not start:\nno such option"):
        broken.start()


def test_a_servers_user_can_work_in_its_folder_also_where_only_we_may_enter_the_temporary_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tmp_path.chmod(0o700)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    owner = servers._owner()  # somebody else where we are root
    with servers._folder("postgres", owner) as folder:
        subprocess.run(servers._as(owner, ["touch", str(folder / "data")]), check=True)
        assert (folder / "data").exists()
    assert not folder.exists()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_nobody_can_use_is_an_error_that_names_the_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(servers.shutil, "chown", lambda *_: None)
    monkeypatch.setattr(servers, "_as", lambda *_: ["false"])
    with pytest.raises(servers.ServerError, match="postgres runs as nobody, who can enter no temporary folder"):
        servers._new_folder("postgres", "nobody")
    assert list(tmp_path.iterdir()) == []
