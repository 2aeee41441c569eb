"""What a library costs besides time per call: bytes per breaker or limiter key, and the time it takes to import it."""

from __future__ import annotations

import gc
import inspect
import itertools
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness import Bench, reason

_ENOUGH_SECONDS = 7  # some peers are quadratic in keys: those are measured over fewer of them

MEMORY: list[tuple[str, str, str, Callable[[], Callable[[str], Any]]]] = []
IMPORTS: dict[str, str] = {"asyncio alone": "import asyncio"}
"""What to call it, and the statement that imports it."""


def memory(group: str, name: str, kind: str = "peer") -> Callable[[Any], Any]:
    """Register `factory() -> touch(key)`, where touch makes one breaker (returned) or one entry (kept by its store)."""

    def add(factory: Any) -> Any:
        MEMORY.append((group, name, kind, factory))
        return factory

    return add


@dataclass(frozen=True)
class Bytes:
    """Bytes per entry, over so many entries."""

    group: str
    name: str
    kind: str
    each: int
    entries: int


def measure_memory(bench: Bench, keys: int) -> list[Bytes]:
    out = []
    for group, name, kind, factory in MEMORY:
        try:
            each, entries = _bytes_each(bench, factory, keys)
        except Exception as error:
            bench.skipped.append(f"memory/{group}/{name}: {reason(error)}")
        else:
            out.append(Bytes(group, name, kind, each, entries))
    return out


def _bytes_each(bench: Bench, factory: Callable[[], Callable[[str], Any]], n: int) -> tuple[int, int]:
    touch = bench.call("async", factory)
    keys: list[str] = [f"key-{i}" for i in range(n)]
    keep: list[Any] = [None] * n

    async def fill(start: int, end: int) -> None:
        for i in range(start, end):
            made = touch(keys[i])
            keep[i] = await made if inspect.isawaitable(made) else made

    bench.runner.run(fill(0, 100))  # lazily made parts of the library are not charged to the entries
    gc.collect()
    tracemalloc.start()
    try:
        done, enough = 100, time.perf_counter() + _ENOUGH_SECONDS
        while done < n and time.perf_counter() < enough:
            start, done = done, min(n, done + 1000)
            bench.runner.run(fill(start, done))
        gc.collect()
        return round(tracemalloc.get_traced_memory()[0] / (done - 100)), done
    finally:
        tracemalloc.stop()


def measure_imports(repeats: int) -> dict[str, float | None]:
    """Milliseconds that each import takes in a fresh interpreter (the best time); None where it fails."""
    samples: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for _ in range(repeats):
        for name, statement in IMPORTS.items():  # interleaved, as the calls are: a busy moment is shared by all
            spent = _import_ms(statement)
            if spent is not None:
                samples[name].append(spent)
    return {name: min(found, default=None) for name, found in samples.items()}


def _import_ms(statement: str) -> float | None:
    # Bytecode is kept, as it is wherever a service runs, also where this environment says otherwise.
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-X", "importtime", "-c", statement]
    run = subprocess.run(command, capture_output=True, text=True, env=kept)
    if run.returncode:
        return None
    rows = [line[12:].split("|") for line in run.stderr.splitlines() if line.startswith("import time:")]
    after_site = list(itertools.dropwhile(lambda row: row[2].rstrip() != " site", rows))[1:]
    return sum(int(row[0]) for row in after_site) / 1000


_FOREIGN = """\
import sys
before = set(sys.modules)
{statement}
loaded = {{name.partition(".")[0] for name in set(sys.modules) - before}}
print(*sorted(loaded - sys.stdlib_module_names - {{"{own}"}}))
"""


def third_party_modules(statement: str, own: str) -> list[str]:
    """What importing `own` loads that is neither its own nor the standard library's."""
    code = _FOREIGN.format(statement=statement, own=own)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
