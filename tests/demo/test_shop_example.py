"""The variations of the shop in examples/ run as their reader would run them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import pytest

from everkeel.testing import servers

EXAMPLES = Path(__file__).parents[2] / "examples" / "shop"


def test_bookings_are_confirmed_or_put_back() -> None:
    ended = subprocess.run([sys.executable, str(EXAMPLES / "bookings.py")], capture_output=True, text=True, timeout=50)
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0] == "ada is booked"
    assert "bob is not" in lines[1]
    assert "the bank refuses" in lines[1]
    assert lines[2] == "eve is booked"
    assert "not enough boat" in lines[3]
    assert lines[4] == "0 boats left, 400 taken in deposits"


@contextmanager
def served(folder: Path, port: int, **settings: str):
    environment = {**os.environ, "PORT": str(port), "PYTHONWARNINGS": "error", **settings}
    with (folder / "printed").open("ab") as printed:
        command = [sys.executable, str(EXAMPLES / "service.py")]
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=printed, stderr=printed)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def asked(port: int, path: str, body: object = None) -> tuple[int, str]:
    """Ask until somebody answers."""
    data = None if body is None else json.dumps(body).encode()
    for _ in range(600):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", data, timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            time.sleep(0.05)
    raise AssertionError("nobody answers")


def until(port: int, who: str, state: str) -> None:
    for _ in range(600):
        if (found := json.loads(asked(port, f"/bookings/{who}")[1])).get("state") == state:
            return
        time.sleep(0.05)
    raise AssertionError(found)


@pytest.mark.timeout(120)
def test_a_service_of_ones_own_carries_its_bookings_on_after_a_kill(tmp_path) -> None:
    port = servers.free_port()
    with served(tmp_path, port, BANK_TAKES="60") as process:
        assert asked(port, "/bookings", {"id": "ada", "deposit": 20_000})[0] == 202
        assert asked(port, "/bookings", {"id": "bob", "deposit": 2_000_000})[0] == 202
        for wrong in ({"id": "eve"}, {"id": "", "deposit": 1}, {"id": "eve", "deposit": "much"}, [], 7):
            assert asked(port, "/bookings", wrong)[0] == 400
        assert asked(port, "/bookings/eve")[0] == 404
        process.kill()
    with served(tmp_path, port, BANK_TAKES="0"):
        until(port, "ada", "completed")
        until(port, "bob", "compensated")
        assert asked(port, "/bookings", {"id": "ada", "deposit": 20_000})[0] == 202  # it is the same one
        for _ in range(600):
            if "Dear ada" in (tmp_path / "printed").read_text():
                break
            time.sleep(0.05)
        assert "everkeel_saga_active" in asked(port, "/metrics/")[1]
        assert "<title>" in asked(port, "/everkeel/")[1]
    assert (tmp_path / "printed").read_text().count("Dear ada, your boat is booked.") == 1
    assert "Traceback" not in (tmp_path / "printed").read_text()
