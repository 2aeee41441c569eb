"""How many events a second leave a table of PostgreSQL, and how soon after their commit: real server, in one run.

Every case runs in a process of its own, on a database of its own, on a server with its default settings (a commit
waits for the disk) that shares the machine. The cases of a round come in a new random order and the best round counts,
because whatever else the machine does only ever takes away. Beside it stands the processor time per event, of the
process and of the server, which does not care who else wants the machine. What is missing is skipped, and the report
says so.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import random
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import messaging_cases

from everkeel.testing import servers

HERE = Path(__file__).resolve().parent
KEYS = "everkeel, 200 keys in order"


@dataclass
class Relayed:
    """One case, and what each round found."""

    name: str
    kind: str
    dist: str
    rounds: list[dict[str, float]] = field(default_factory=list)

    def best(self, what: str) -> float:
        """The best of all rounds; of rates the highest, of times the lowest."""
        return (max if what in ("written", "delivered") else min)(one[what] for one in self.rounds)

    def typical(self, what: str) -> float:
        return statistics.median(one[what] for one in self.rounds)


def measure(rounds: int, events: int, skipped: list[str]) -> list[Relayed]:
    """Run every case that can be run; appends to `skipped` what cannot."""
    if servers.missing("postgres"):
        skipped.append("events: all of it: PostgreSQL is not installed")
        return []
    cases = [Relayed(name, kind, dist) for name, (kind, dist, _) in messaging_cases.CASES.items()]
    chance = random.Random(1)
    with servers.postgres(durable=True) as server:
        for number in range(rounds):
            for place, case in enumerate(chance.sample(cases, len(cases))):
                if not _installed(case.dist):
                    if not number:
                        skipped.append(f"events/{case.name}: {case.dist} is not installed")
                    continue
                found = _run(case.name, server, f"bench_{number}_{place}", events)
                if isinstance(found, str):
                    skipped.append(f"events/{case.name}: round {number + 1} failed: {found}")
                else:
                    case.rounds.append(found)
    return [case for case in cases if case.rounds]


def _installed(dist: str) -> bool:
    try:
        importlib.metadata.version("asyncpg")
        importlib.metadata.version(dist)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _run(name: str, server: servers.Server, database: str, events: int) -> dict[str, float] | str:
    subprocess.run(["psql", server.address, "-qc", f"create database {database}"], check=True, capture_output=True)
    address = f"{server.address.rsplit('/', 1)[0]}/{database}"
    done = subprocess.run(
        [sys.executable, str(HERE / "messaging_cases.py"), name, address, str(events)],
        capture_output=True,
        text=True,
        timeout=600,
        env={**os.environ, "EVERKEEL_BENCH_SERVER": str(server.pid)},
    )
    if done.returncode:
        return done.stderr.strip().rpartition("\n")[2][:200] or f"exit status {done.returncode}"
    found: dict[str, float] = json.loads(done.stdout.strip().rpartition("\n")[2])
    return found
