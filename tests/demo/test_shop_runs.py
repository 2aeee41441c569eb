"""The shop as it is run: the command, its options and exit codes, and services in processes of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from everkeel.cli.main import main
from everkeel.demo.shop.audit import Check
from everkeel.demo.shop.scenarios import Outcome

pytestmark = pytest.mark.timeout(300)


def demo(*arguments: str, folder: Path, **more):
    command = [sys.executable, "-m", "everkeel.cli", "demo", *arguments]
    environment = {**os.environ, "TMPDIR": str(folder)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # A shell that runs the tests in the background lets them, and whatever they start, ignore SIGINT.
    return subprocess.Popen(command, env=environment, preexec_fn=_heed_interrupts, **pipes, **more)


def _heed_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def children_of(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_three_processes_a_kill_and_a_dead_letter_end_with_a_report_and_exit_status_0(tmp_path) -> None:
    scenarios = ("happy", "killed", "dead-letter")
    options = [word for name in scenarios for word in ("--scenario", name)]
    process = demo("--json", "--orders", "4", *options, folder=tmp_path)
    printed, complaints = process.communicate(timeout=280)
    report = json.loads(printed)
    assert process.returncode == 0, (report, complaints)
    assert report["right"]
    assert report["engine"] == report["transport"] == "sqlite"
    assert [one["name"] for one in report["scenarios"]] == list(scenarios)
    assert report["customers"]["accepted"] == sum(one["orders"] for one in report["scenarios"]) == 11
    assert all(check["holds"] for check in report["checks"])
    assert complaints == ""
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A temporary folder that others may enter: as root, PostgreSQL is somebody else, and would go elsewhere."""
    with tempfile.TemporaryDirectory(prefix="everkeel-tests-") as folder:
        os.chmod(folder, 0o755)
        yield Path(folder)


@pytest.mark.slow
@pytest.mark.require_server("postgres")
@pytest.mark.require_server("redis")
@pytest.mark.parametrize(
    "where", [("postgres", "redis"), ("postgres", "sqlite"), ("postgres", "memory"), ("sqlite", "redis")]
)
def test_the_whole_play_ends_well_on_every_engine_and_transport(open_folder, where) -> None:
    process = demo("--json", "--engine", where[0], "--transport", where[1], folder=open_folder)
    printed, complaints = process.communicate(timeout=280)
    assert process.returncode == 0, printed + complaints
    assert json.loads(printed)["right"]
    assert list(open_folder.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize(("how", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGKILL", -9)])
def test_however_it_is_ended_nothing_stays_behind(tmp_path, how, code) -> None:
    process = demo("--keep-running", "--orders", "2", "--scenario", "happy", folder=tmp_path, start_new_session=True)
    assert process.stdout is not None
    rounds = 0
    for line in process.stdout:  # the second round: it begins again by itself
        rounds += "✓ 2 orders: 2 confirmed" in line
        if rounds == 2:
            break
    services = children_of(process.pid)
    assert len(services) == 3
    process.send_signal(getattr(signal, how))
    printed, _ = process.communicate(timeout=60)
    assert process.returncode == code
    # Whoever may still speak says how far it came; the second round may have ended before it heard of the end.
    said = re.search(r"Ended after (1 whole round|2 whole rounds), and the books were right each time\.", printed)
    assert (said is not None) == (how != "SIGKILL")
    give_up = time.monotonic() + 30
    while time.monotonic() < give_up and (any(map(is_there, services)) or list(tmp_path.iterdir())):
        time.sleep(0.05)
    assert [pid for pid in services if is_there(pid)] == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--orders", "0"], "--orders must be at least 1 and at most 200 (got 0)"),
        (["--orders", "201"], "--orders must be at least 1 and at most 200 (got 201)"),
        (["--orders", "many"], "invalid int value: 'many'"),
        (["--engine", "paper"], "invalid choice: 'paper'"),
        (["--scenario", "sunny"], "invalid choice: 'sunny'"),
    ],
)
def test_a_wrong_command_line_is_refused_with_exit_status_2(capsys, options, complaint) -> None:
    try:
        code = main(["demo", *options])
    except SystemExit as left:
        code = left.code
    assert code == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "library", "extras"),
    [
        ([], "prometheus_client", "httpx2,starlette,uvicorn,yaml,prometheus"),
        (["--engine", "postgres"], "psycopg", "httpx2,starlette,uvicorn,yaml,prometheus,asyncpg,psycopg"),
        (["--transport", "redis"], "redis", "httpx2,starlette,uvicorn,yaml,prometheus,redis"),
    ],
)
def test_a_library_that_is_not_installed_is_named_with_what_installs_it(
    capsys, monkeypatch, options, library, extras
) -> None:
    monkeypatch.setattr("everkeel.demo.shop.cli.find_spec", lambda name: None if name == library else name)
    assert main(["demo", *options]) == 1
    assert capsys.readouterr().err == f"everkeel: everkeel demo needs {library}: pip install 'everkeel[{extras}]'\n"


def test_a_server_that_is_not_installed_is_named(capsys, monkeypatch) -> None:
    from everkeel.testing import servers

    monkeypatch.setattr(servers, "missing", lambda name: name == "redis")
    assert main(["demo", "--transport", "redis"]) == 1
    assert "redis is not installed on this machine" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("found", "interrupt", "code", "last"),
    [
        (7, None, 0, "Nothing was lost, and nothing was done twice."),
        (8, None, 1, "Something is wrong: see above."),
        (7, KeyboardInterrupt, 130, "Ended after 0 whole rounds, before the books could be checked."),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_the_exit_status_and_the_last_words_say_whether_the_books_are_right(
    capsys, monkeypatch, found, interrupt, code, last, as_json
) -> None:
    async def played(report, names, **how) -> None:
        report.outcomes = [Outcome("happy", "Everything works", 1, 1)]
        if interrupt is not None:
            raise interrupt
        report.checks = [Check("seven is seven", 7, found)]

    monkeypatch.setattr("everkeel.demo.shop.director.direct", played)
    assert main(["demo", *(["--json"] if as_json else [])]) == code
    printed = capsys.readouterr().out
    if as_json:
        assert json.loads(printed)["right"] is (code == 0)
    else:
        assert last in printed
        assert "Everything works" in printed
        assert ("expected 7, found 8" in printed) == (code == 1)


def test_a_service_that_does_not_start_is_an_error_with_its_log(capsys, monkeypatch, tmp_path) -> None:
    from everkeel.demo.shop import stage

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(stage.World, "save", lambda world: Path(world.folder) / "nowhere.json")
    assert main(["demo", "--scenario", "happy"]) == 1
    complaint = capsys.readouterr().err
    assert "service ended" in complaint
    assert "nowhere.json" in complaint
    assert list(tmp_path.iterdir()) == []
