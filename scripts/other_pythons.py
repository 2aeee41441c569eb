"""Run the unit and conformance tests on every other CPython from 3.11 up that this machine has.

One of each minor version (free-threaded builds count as their own), each in an environment
`.venv-3.x` beside `.venv`. Looks on PATH and among pyenv's versions; what does not start is passed over.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

# These prove things that do not change from one Python to the next (servers, kill -9, pages, protocols), and are slow.
ONLY_ON_THE_DEFAULT = {
    "browser", "cli", "contracts", "control", "crash", "demo", "docs", "engines", "http", "openapi", "telemetry",
    "typing",
}  # fmt: skip

FLOOR, NEWEST = 11, 15

ABOUT = """
import ensurepip, platform, sys, sysconfig, venv
free = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
print(sys.implementation.name, f"{sys.version_info[0]}.{sys.version_info[1]}{free}", platform.python_version(),
      sys.version_info.releaselevel)
"""


class Python(NamedTuple):
    path: Path
    minor: str  # "3.12", "3.14t"
    version: str  # "3.12.1"
    final: bool


def look_at(path: Path) -> Python | None:
    """What this interpreter is, or None when it does not start or is not a CPython."""
    try:
        answer = subprocess.run([path, "-c", ABOUT], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    implementation, minor, version, level = answer.split()
    return Python(path, minor, version, level == "final") if implementation == "cpython" else None


def candidates() -> list[Path]:
    names = [f"python3.{minor}{free}" for minor in range(FLOOR, NEWEST + 1) for free in ("", "t")]
    on_path = [Path(found) for name in names if (found := shutil.which(name))]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    return on_path + [path for name in names for path in sorted(pyenv.glob(f"versions/*/bin/{name}"))]


def others() -> list[Python]:
    """One interpreter per minor version, without the one this script runs on, oldest first."""
    here = look_at(Path(sys.executable))
    found: dict[str, Python] = {}
    for path in candidates():
        python = look_at(path)
        if python and (here is None or python.minor != here.minor):
            found.setdefault(python.minor, python)
    return sorted(found.values(), key=lambda python: int(python.minor.rstrip("t").split(".")[1]))


def environment(python: Python) -> Path:
    """The interpreter of `.venv-3.x` with the test group installed; made when missing or out of date."""
    folder = ROOT / f".venv-{python.minor}"
    inside, stamp, project = folder / "bin" / "python", folder / ".test", ROOT / "pyproject.toml"
    if not (inside.exists() and stamp.exists() and stamp.stat().st_mtime > project.stat().st_mtime):
        print(f"making {folder.name} with Python {python.version}", flush=True)
        subprocess.run([python.path, "-m", "venv", "--clear", folder], check=True)
        pip = [str(inside), "-m", "pip", "install", "-q"]
        subprocess.run([*pip, "--upgrade", "pip>=25.1"], cwd=ROOT, check=True)  # older ones do not know --group
        subprocess.run([*pip, "-e", ".", "--group", "test"], cwd=ROOT, check=True)
        stamp.touch()
    return inside


def test_folders() -> list[str]:
    parts = sorted(path for path in (ROOT / "tests").iterdir() if not path.name.startswith(("_", ".")))
    return [
        str(path.relative_to(ROOT))
        for path in parts
        if (path.is_dir() and path.name not in ONLY_ON_THE_DEFAULT) or path.match("test_*.py")
    ]


def passes(python: Python, folders: list[str], *, slow: bool) -> bool:
    choice = [] if slow else ["-m", "not slow and not require_server"]
    try:
        inside = environment(python)
    except subprocess.CalledProcessError as error:
        print(f"Python {python.version}: its environment could not be made ({error})", flush=True)
        return False
    print(f"\nPython {python.version}: {' '.join(folders)}", flush=True)
    fewer = os.environ if slow else {**os.environ, "HYPOTHESIS_PROFILE": "brief"}
    command = [str(inside), "-m", "pytest", "-q", "-n", "auto", *choice, *folders]
    return subprocess.run(command, cwd=ROOT, env=fewer).returncode == 0


def main() -> int:
    slow = "--slow" in sys.argv
    found, folders = others(), test_folders()
    ready = [python for python in found if python.final]
    failed = [python.version for python in ready if not passes(python, folders, slow=slow)]
    seen = {python.minor for python in found} | {f"3.{sys.version_info.minor}"}
    not_run = {
        "a pre-release": [python.version for python in found if not python.final],
        "not on this machine": [f"3.{minor}" for minor in range(FLOOR, NEWEST + 1) if f"3.{minor}" not in seen],
    }
    lines = ["everkeel: other Pythons: " + (", ".join(python.version for python in ready) or "none on this machine")]
    lines += [f"everkeel: not exercised: Python {', '.join(them)} ({why})" for why, them in not_run.items() if them]
    if failed:
        lines.append(f"everkeel: FAILED on Python {', '.join(failed)}")
    if target := os.environ.get("EVERKEEL_TEST_SUMMARY"):
        with open(target, "a") as summary:
            summary.write("\n".join(lines) + "\n")
    if failed or not target:
        print("\n".join(lines))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
