"""How many four-step orchestrated sagas a second one process completes, on each engine.

    make bench ARGS="--only sagas"

Steps do nothing, so that what is measured is the orchestrator: five transitions per saga, each a compare-and-set, and
each on disk (fsync) before its step begins. PostgreSQL is a server of this machine and shares its cores. The processor
time is this process's own; on a busy machine it says more than the rate.
"""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from time import perf_counter, process_time

from everkeel.engines import MemoryEngine, PostgresEngine, SQLiteEngine
from everkeel.sagas import Context, Orchestrator, Saga, Step
from everkeel.testing import servers


async def act(context: Context) -> str:
    return context.step


async def undo(context: Context) -> None:
    """Nothing."""


ORDER = Saga("order", *(Step(name, act, undo) for name in ("reserve", "charge", "pack", "ship")))


@dataclass(frozen=True)
class Completed:
    """What one engine did."""

    engine: str
    per_second: float
    p95: float
    """Milliseconds from start to end."""
    processor: float
    """Microseconds of this process for each saga."""


async def complete(engine, count: int, at_once: int) -> Completed:
    async with engine, Orchestrator(engine, ORDER) as orchestrator:
        places, times = asyncio.Semaphore(at_once), []

        async def one(number: int) -> None:
            async with places:
                began = perf_counter()
                await orchestrator.run(ORDER, {"order": number}, id=f"order-{number}")
                times.append(perf_counter() - began)

        await asyncio.gather(*(one(number) for number in range(-100, 0)))  # everything is imported and prepared
        began, used = perf_counter(), process_time()
        await asyncio.gather(*(one(number) for number in range(count)))
        took, used = perf_counter() - began, process_time() - used
        p95 = quantiles(times[-count:], n=20)[-1] * 1000
        return Completed(engine.name, count / took, p95, used / count * 1e6)


def measure(count: int, at_once: int, skipped: list[str]) -> list[Completed]:
    """Each engine once; PostgreSQL where it is installed."""
    found = [asyncio.run(complete(MemoryEngine(), count, at_once))]
    with tempfile.TemporaryDirectory() as folder:
        found.append(asyncio.run(complete(SQLiteEngine(Path(folder) / "sagas.db"), count, at_once)))
    if servers.missing("postgres"):
        skipped.append("sagas on PostgreSQL: it is not installed (`make servers`)")
    else:
        with servers.postgres(durable=True) as server:
            found.append(asyncio.run(complete(PostgresEngine(server.address), count, at_once)))
    return found
