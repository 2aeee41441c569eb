"""Every program in examples/ runs as its reader would run it, and ends well."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.py"))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_this_example_runs_and_ends_well(program: Path, tmp_path: Path) -> None:
    run = subprocess.run([sys.executable, "-W", "error", program], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, f"{program.name} ended with {run.returncode}\n{run.stdout}\n{run.stderr}"
