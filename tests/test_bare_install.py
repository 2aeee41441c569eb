"""With nothing but the standard library: the core and the command line work, and each integration names its extra."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# A process in which whatever is neither Everkeel nor the standard library is not installed.
BARE = """
import sys

class OurOwn:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        ours = top == "everkeel" or top in sys.stdlib_module_names
        return self.finder.find_spec(name, path, target) if ours else None

sys.meta_path[:] = map(OurOwn, sys.meta_path)
"""

# What a user writes first, and what has to be installed for it.
INTEGRATIONS = {
    "from everkeel.http.httpx2 import ResilientTransport": "httpx2",
    "from everkeel.http.httpx import ResilientTransport": "httpx",
    "from everkeel.http.requests import ResilientAdapter": "requests",
    "from everkeel.http.aiohttp import ResilientMiddleware": "aiohttp",
    "from everkeel.http.fastapi import Everkeel": "fastapi",
    "from everkeel.control import ControlPlane": "starlette",
    "from everkeel.openapi import generate; generate('shop.json', 'shop')": "fastapi",
    "from everkeel.telemetry import PolicyCollector": "prometheus",
    "from everkeel.telemetry import EverkeelInstrumentor": "opentelemetry",
    "from everkeel.microprofile.prometheus import FaultToleranceCollector": "prometheus",
    "from everkeel.microprofile.opentelemetry import export_metrics": "opentelemetry",
    "from everkeel.engines import PostgresEngine; PostgresEngine('postgresql://db/shop')": "asyncpg",
    "from everkeel.messaging import RedisTransport; RedisTransport('redis://queue')": "redis",
    "from everkeel import config; config.load('shop.yaml')": "yaml",
}

TRY_EACH = """
import json, pathlib
pathlib.Path("shop.yaml").write_text("retry:\\n")
pathlib.Path("shop.json").write_text("{}")
told = {}
for line in json.loads(sys.argv[1]):
    try:
        exec(line, {})
    except Exception as error:
        told[line] = [type(error).__name__, str(error)]
print(json.dumps(told))
"""


def bare(program: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BARE + program, *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True)


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What each integration says; one process for all of them."""
    done = bare(TRY_EACH, json.dumps(list(INTEGRATIONS)), cwd=tmp_path_factory.mktemp("bare"))
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.parametrize(("line", "extra"), INTEGRATIONS.items(), ids=[one.partition(";")[0] for one in INTEGRATIONS])
def test_an_integration_without_its_library_names_the_extra(told: dict[str, list[str]], line: str, extra: str) -> None:
    kind, message = told[line]
    assert kind in ("ImportError", "InvalidConfigurationError")
    assert f"pip install everkeel[{extra}]" in message


def test_every_extra_that_is_named_exists() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(INTEGRATIONS.values()) <= set(extras)


CLI = "from everkeel.cli import main; sys.exit(main(sys.argv[1:]))"


@pytest.mark.parametrize(
    "arguments",
    [["--version"], ["config", "check"], ["schema", "config"], ["schema", "sql", "--help"], ["completion", "bash"]],
    ids=" ".join,
)
def test_the_command_line_needs_nothing_else(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "everkeel.toml").write_text("[retry.fetch]\nattempts = 3\n")
    done = bare(CLI, *arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", ["demo", "serve"])
def test_a_command_that_needs_more_says_what_in_one_line(tmp_path: Path, command: str) -> None:
    done = bare(CLI, command, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"everkeel: everkeel {command} needs ")
    assert done.stderr.count("\n") == 1
    assert re.search(r"pip install '?everkeel\[", done.stderr)
