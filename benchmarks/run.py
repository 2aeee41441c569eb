"""Side by side with peers, in one run: prints a page of Markdown and, after a full run, writes it into the docs.

make bench                                            everything, about seven minutes
make bench ARGS="--quick"                             a first impression in under a minute
make bench ARGS="--only retry,retry_fail --check"     some categories; exit status 1 if a promise does not hold
make bench ARGS="--only http"                         requests per second behind rate limiters (needs wrk)
make bench ARGS="--only events"                       events per second out of PostgreSQL, and how soon
make bench ARGS="--only sagas"                        sagas per second on each engine
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

import footprint
import harness
import messaging
import promises
import report
import sagas
import servers

OTHERS = ("http", "events", "sagas")  # what is no nanoseconds around a call
PAGE = Path(__file__).resolve().parents[1] / "docs" / "guide" / "benchmarks.md"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few rounds, no memory, two imports; not for the docs")
    parser.add_argument(
        "--only", help="comma-separated categories: http, events, sagas, " + ", ".join(harness.CATEGORIES)
    )
    parser.add_argument("--match", help="comma-separated words: cases whose name has one, and the baselines")
    parser.add_argument("--rounds", type=int, help="default 45, with --quick 15")
    parser.add_argument("--block-ms", type=float, default=2.0, help="length of a timed block")
    parser.add_argument("--keys", type=int, default=100_000, help="entries to measure memory over")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--no-imports", action="store_true")
    parser.add_argument("--no-http", action="store_true")
    parser.add_argument("--no-events", action="store_true", help="no sagas either")
    parser.add_argument("--write", type=Path, help="where the page goes; a full run writes docs/guide/benchmarks.md")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a promise does not hold")
    return parser.parse_args()


def select(only: str | None, match: str | None) -> None:
    if only:
        wanted = only.split(",")
        if unknown := set(wanted) - {*OTHERS, *harness.CATEGORIES}:
            sys.exit(f"no such category: {', '.join(sorted(unknown))}")
        harness.CASES[:] = [c for c in harness.CASES if c.category in wanted]
    if match:
        words = match.split(",")
        harness.CASES[:] = [
            c for c in harness.CASES if c.kind in ("bare", "base") or any(word in c.name for word in words)
        ]


def main() -> int:
    chosen = arguments()
    partial = bool(chosen.quick or chosen.only or chosen.match)
    logging.getLogger().addHandler(logging.NullHandler())  # records are made, and go nowhere

    import baselines  # noqa: F401 - importing registers the cases
    import floor  # noqa: F401
    import ours  # noqa: F401
    import peers  # noqa: F401
    import peers_footprint  # noqa: F401

    select(chosen.only, chosen.match)
    if chosen.quick:
        footprint.IMPORTS.clear()
        footprint.IMPORTS.update({"asyncio alone": "import asyncio", "everkeel": "import everkeel"})
    rounds = chosen.rounds or (15 if chosen.quick else 45)

    only_others = chosen.only is not None and set(chosen.only.split(",")) <= set(OTHERS)
    imports = {} if chosen.no_imports or only_others else footprint.measure_imports(repeats=6)
    bench = harness.Bench(rounds, chosen.block_ms)
    results = harness.results(bench.run())
    wants_http = "http" in chosen.only.split(",") if chosen.only else not (chosen.match or chosen.no_http)
    served = servers.measure(2 if chosen.quick else 15, bench.skipped) if wants_http else []
    wants_events = "events" in chosen.only.split(",") if chosen.only else not (chosen.match or chosen.no_events)
    relayed = messaging.measure(*((1, 2000) if chosen.quick else (5, 10_000)), bench.skipped) if wants_events else []
    wants_sagas = "sagas" in chosen.only.split(",") if chosen.only else not (chosen.match or chosen.no_events)
    completed = sagas.measure(500 if chosen.quick else 3000, 200, bench.skipped) if wants_sagas else []
    memory = [] if chosen.no_memory or chosen.quick or only_others else footprint.measure_memory(bench, chosen.keys)
    kept = promises.check(results, memory, imports, served, relayed, completed)
    page = report.page(report.Run(rounds, results, memory, imports, kept, bench.skipped, served, relayed, completed))
    print(page)

    broken_cases = [f"{c.category}/{c.name} ({c.mode})" for c in harness.CASES if c.kind == "ours" and not c.samples]
    full = not (partial or chosen.no_memory or chosen.no_imports or chosen.no_http or chosen.no_events)
    target = chosen.write or (PAGE if full and not broken_cases else None)
    if broken_cases:
        print("cases of our own failed their check, nothing is written: " + "; ".join(broken_cases), file=sys.stderr)
    if target is not None:
        target.write_text(page)
    broken = [row.what for row in kept if not row.holds]
    if broken:
        print("does not hold: " + "; ".join(broken), file=sys.stderr)
    return 1 if broken and chosen.check else 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # some peers leave timers and worker threads behind
