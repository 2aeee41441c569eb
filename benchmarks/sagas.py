"""How many four-step orchestrated sagas a second one process completes: by hand, in the development environment.

    .venv/bin/python benchmarks/sagas.py [sagas] [at once]

Steps do nothing, so that what is measured is the orchestrator: five transitions per saga, each a compare-and-set, and
each on disk (fsync) before its step begins. PostgreSQL is a server of this machine and shares its cores. The processor
time is this process's own; on a busy machine it says more than the rate.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
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


async def complete(engine, count: int, at_once: int) -> None:
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
        print(
            f"{engine.name:<11} {count / took:7.0f} sagas/s   p95 of completion {p95:6.0f} ms   "
            f"{used / count * 1e6:6.0f} us of processor time each"
        )


def main() -> None:
    count, at_once = [*map(int, sys.argv[1:3]), *(2000, 200)[len(sys.argv[1:3]) :]]
    print(f"{count} sagas, {at_once} at once; load of the machine before: {os.getloadavg()[0]:.1f}")
    asyncio.run(complete(MemoryEngine(), count, at_once))
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(complete(SQLiteEngine(Path(folder) / "sagas.db"), count, at_once))
    with servers.postgres(durable=True) as server:
        asyncio.run(complete(PostgresEngine(server.address), count, at_once))


if __name__ == "__main__":
    main()
