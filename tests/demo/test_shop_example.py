"""The variation of the shop in examples/ runs as its reader would run it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "shop" / "bookings.py"


def test_bookings_are_confirmed_or_put_back() -> None:
    ended = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, timeout=50)
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0] == "ada is booked"
    assert "bob is not" in lines[1]
    assert "the bank refuses" in lines[1]
    assert lines[2] == "eve is booked"
    assert "not enough boat" in lines[3]
    assert lines[4] == "0 boats left, 400 taken in deposits"
