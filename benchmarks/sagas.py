"""How many orchestrated sagas of four steps are completed in a second, and how long one takes: one process.

    .venv/bin/python benchmarks/sagas.py [sagas]

Steps do nothing, so that what is measured is the machinery: every transition is a compare-and-set in the store. SQLite
is a file on this machine's disk; PostgreSQL is a server of this machine with its default settings (a commit waits for
the disk), and shares the cores with the orchestrator. The best round counts, because whatever else the machine does
only ever takes away.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles
from time import perf_counter

from everkeel.engines import PostgresEngine, SQLiteEngine
from everkeel.sagas import Context, Orchestrator, Saga, Step
from everkeel.testing import servers

AT_ONCE = 300
"""Sagas under way at a time."""
GOALS = {"SQLite": 1_000, "PostgreSQL": 300}


@dataclass
class Measured:
    """One store, and what each round found: completed in a second, and the 95th percentile of their time."""

    store: str
    rounds: list[tuple[float, float]] = field(default_factory=list)

    @property
    def per_second(self) -> float:
        return max(rate for rate, _ in self.rounds)

    @property
    def p95(self) -> float:
        """Of the round that counts."""
        return max(self.rounds)[1]


async def _step(context: Context[object, object]) -> int:
    return 1


async def _undo(context: Context[object, object]) -> None: ...


FOUR = Saga(
    "bench", Step("accept", _step, _undo), Step("reserve", _step, _undo), Step("charge", _step, _undo),
    Step("confirm", _step, pivot=True),
)  # fmt: skip


async def completed(engine, count: int) -> tuple[float, float]:
    times: list[float] = []
    async with engine, Orchestrator(engine, FOUR) as orchestrator:
        turn = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> None:
            async with turn:
                began = perf_counter()
                await orchestrator.run(FOUR, {"order": number})
                times.append(perf_counter() - began)

        began = perf_counter()
        await asyncio.gather(*(one(number) for number in range(count)))
        seconds = perf_counter() - began
    assert len(times) == count
    return count / seconds, quantiles(times, n=20)[-1]


def measure(rounds: int, sagas: int, skipped: list[str]) -> list[Measured]:
    """Both stores; appends to `skipped` what cannot be measured."""
    sqlite = Measured("SQLite")
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder:
            sqlite.rounds.append(asyncio.run(completed(SQLiteEngine(Path(folder) / "bench.db"), sagas)))
    if servers.missing("postgres"):
        skipped.append("sagas/PostgreSQL: it is not installed")
        return [sqlite]
    postgres = Measured("PostgreSQL")
    with servers.postgres(durable=True) as server:
        for _ in range(rounds):
            postgres.rounds.append(asyncio.run(completed(PostgresEngine(server.address), sagas)))
    return [sqlite, postgres]


def section(measured: list[Measured]) -> str:
    """The part of the page about sagas."""
    if not measured:
        return ""
    lines = [
        "## sagas", "",
        f"Orchestrated sagas of four steps that do nothing, {AT_ONCE} under way at a time in one process: how many are "
        "completed in", "a second, from `run` to its answer, and the 95th percentile of the time one takes. Every step "
        "is written down before it", "begins and when it is done. The best of several rounds.", "",
        "| store | completed per second | goal | p95 of completion |", "|---|---:|---:|---:|",
    ]  # fmt: skip
    lines += [
        f"| {one.store} | {one.per_second:,.0f} | {GOALS[one.store]:,} | {one.p95 * 1000:,.0f} ms |" for one in measured
    ]
    return "\n".join([*lines, ""])


def main() -> None:
    skipped: list[str] = []
    sagas = int(sys.argv[1]) if sys.argv[1:] else 3_000
    print(section(measure(3, sagas, skipped)))
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", *skipped)


if __name__ == "__main__":
    main()
