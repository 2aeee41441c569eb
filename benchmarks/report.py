"""The run as a page of Markdown."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from footprint import Bytes
from harness import CATEGORIES, Result
from messaging import Relayed
from promises import Row, fastest
from sagas import Completed
from servers import Served

INTRODUCTION = """\
# Benchmarks

What one call costs when a policy is put around a function that returns at once: nanoseconds above the bare call, side
by side with other libraries, in one run on one machine. Figures move from machine to machine; compare ratios. This
page is written by `make bench`.

The best of {rounds} rounds, and in brackets the median. Each case is checked for behaviour before it is timed, and the
cases of a round run in random order. Libraries keep their defaults. Same category is not same feature: a breaker that
counts consecutive failures and one with a window of 100 calls stand in one table, and so do limiters with and without
a lock. One thread, no contention, garbage collector off.

{machine}
"""

FOOTNOTE = """\
Ratios are to the fastest peer of the row in this run, sync / async. `*args, **kwargs` is the same decorator on a
signature that takes anything, and *being scraped* has a thread that reads every snapshot a hundred times a
second; both may cost 1.5 times of what is promised. *Two failures, then success* is measured while nobody in the
process has asked for `current_attempt()` or listens for retries: what either costs is in the table `retry_fail`."""

HTTP = """\
## http

Requests per second of one small FastAPI application behind rate limiters whose limit is never reached: uvicorn with one
process, wrk with 16 connections, the best of all rounds of a second, and in brackets the median; and the least
processor time that the server spent per request. They differ in what they do: our middleware and those of slowapi count
by address and tell each caller how it stands; fastapi-limiter in memory has one limit for everybody together.
"""


EVENTS = """\
## events

Events of 256 bytes out of a table of PostgreSQL (default settings: a commit waits for the disk) that shares the
machine: each handed to a function that does nothing, and written down as done, in batches of 100, by one process.
*Written* are transactions of one event each by four writers; *commit to delivery* is with nothing else to do, in one
process. The best of all rounds, and in brackets the median; and the least processor time per event, of the process and
of the server. They differ in what they do: ours alone keeps the order of a key, and is measured with 200 keys too.
"""


SAGAS = """\
## sagas

Orchestrated sagas of four steps that do nothing, 200 at once, in one process; PostgreSQL shares the machine, and both
stores wait for the disk.
"""


@dataclass(frozen=True)
class Run:
    """Everything one run found out."""

    rounds: int
    results: list[Result]
    memory: list[Bytes]
    imports: dict[str, float | None]
    promises: list[Row]
    skipped: list[str]
    served: list[Served] = field(default_factory=list)
    relayed: list[Relayed] = field(default_factory=list)
    completed: list[Completed] = field(default_factory=list)


def page(run: Run) -> str:
    parts = [
        INTRODUCTION.format(rounds=run.rounds, machine=machine()),
        *_promises(run.promises),
        *_fastest(run.results),
        *_categories(run.results),
        *_served(run.served),
        *_relayed(run.relayed),
        *_completed(run.completed),
        *_memory(run.memory),
        *_imports(run.imports),
        *_versions(run),
        *_skipped(run.skipped),
    ]
    return "\n".join(parts)


def machine() -> str:
    """What it ran on; no names of people or places."""
    cores = f"{os.cpu_count()} cores"
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{python}, {platform.system()} {platform.machine()}, {_processor()}{cores}."


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, " if names and names[0] else ""


# ------------------------------------------------------------------ the parts of the page


def _table(head: str, align: str, rows: Iterable[Iterable[str]]) -> str:
    body = "\n".join("| " + " | ".join(row) + " |" for row in rows)
    return f"{head}\n{align}\n{body}\n"


def _promises(rows: list[Row]) -> Iterator[str]:
    if rows:
        yield "## What is promised\n"
        head = "| | at least | measured | against the fastest peer | holds |"
        cells = ((code(r.what), r.promised, r.measured, code(r.against), "yes" if r.holds else "**no**") for r in rows)
        yield _table(head, "|---|---|---|---|---|", cells)
        yield FOOTNOTE + "\n"


def _fastest(results: list[Result]) -> Iterator[str]:
    kinds = [kind for kind in ("peer", "floor", "ours") if any(r.kind == kind for r in results)]
    titles = {"peer": "peer", "floor": "hand-fused, no features", "ours": "Everkeel"}
    rows = []
    for category in CATEGORIES:
        for mode in ("sync", "async"):
            best = [fastest(results, category, mode, kind) for kind in kinds]
            if any(best):
                cells = ["" if r is None else f"{r.ns:,.0f} ({code(r.name)})" for r in best]
                rows.append([category, mode, *cells])
    if rows:
        yield "## The fastest of each kind\n"
        head = "| | | " + " | ".join(titles[kind] for kind in kinds) + " |"
        yield _table(head, "|---|---|" + "---|" * len(kinds), rows)


def _categories(results: list[Result]) -> Iterator[str]:
    for category, what in CATEGORIES.items():
        named: dict[tuple[str, str], dict[str, Result]] = {}
        for r in results:
            if r.category == category and r.kind != "bare":
                named.setdefault((r.name, r.kind), {})[r.mode] = r
        if not named:
            continue
        bare = ", ".join(f"{r.mode} {r.ns:.0f}" for r in results if r.category == category and r.kind == "bare")
        yield f"## {category}\n\n{what[0].upper()}{what[1:]}. The bare call with its loop: {bare} ns.\n"
        quickest_first = sorted(named.items(), key=lambda item: min(r.ns for r in item[1].values()))
        rows = (
            [code(name), kind, _cell(by_mode.get("sync")), _cell(by_mode.get("async"))]
            for (name, kind), by_mode in quickest_first
        )
        yield _table("| | kind | sync, ns | async, ns |", "|---|---|---:|---:|", rows)


def _cell(r: Result | None) -> str:
    return "" if r is None else f"{r.ns:,.0f} ({r.typical:,.0f})"


def _served(served: list[Served]) -> Iterator[str]:
    if served:
        yield HTTP
        rows = (
            [
                code(one.name),
                one.kind,
                f"{one.best:,.0f} ({one.typical:,.0f})",
                "" if one.cpu is None else f"{one.cpu:.0f}",
            ]
            for one in sorted(served, key=lambda one: -one.best)
        )
        yield _table("| | kind | requests/s | processor, µs per request |", "|---|---|---:|---:|", rows)


def _relayed(relayed: list[Relayed]) -> Iterator[str]:
    if relayed:
        yield EVENTS
        rows = (
            [
                one.name,
                one.kind,
                f"{one.best('delivered'):,.0f} ({one.typical('delivered'):,.0f})",
                f"{one.best('written'):,.0f} ({one.typical('written'):,.0f})",
                f"{one.best('p50'):.1f} ({one.typical('p50'):.1f})",
                f"{one.best('p99'):.1f} ({one.typical('p99'):.1f})",
                f"{one.best('cpu'):.0f} + {one.best('server'):.0f}",
            ]
            for one in sorted(relayed, key=lambda one: -one.best("delivered"))
        )
        head = "| | kind | delivered/s | written/s | commit to delivery, p50 ms | p99 ms | processor, µs per event |"
        yield _table(head, "|---|---|---:|---:|---:|---:|---:|", rows)


def _completed(completed: list[Completed]) -> Iterator[str]:
    if completed:
        yield SAGAS
        head = "| engine | completed/s | p95 of completion, ms | processor, µs per saga |"
        cells = ((c.engine, f"{c.per_second:,.0f}", f"{c.p95:,.0f}", f"{c.processor:,.0f}") for c in completed)
        yield _table(head, "|---|---:|---:|---:|", cells)


def _memory(memory: list[Bytes]) -> Iterator[str]:
    if memory:
        yield "## Memory\n"
        leanest_first = sorted(memory, key=lambda m: (m.group, m.each))
        rows = ([code(m.name), m.group, f"{m.each:,}", f"{m.entries:,}"] for m in leanest_first)
        yield _table("| | what | bytes each | entries |", "|---|---|---:|---:|", rows)


def _imports(imports: dict[str, float | None]) -> Iterator[str]:
    known = {name: ms for name, ms in imports.items() if ms is not None}
    if known:
        yield "## Import\n\nMilliseconds in a fresh interpreter, everything it imports included.\n"
        rows = ([name, f"{ms:.1f}"] for name, ms in sorted(known.items(), key=lambda item: item[1]))
        yield _table("| | ms |", "|---|---:|", rows)


def _versions(run: Run) -> Iterator[str]:
    names = (
        {dist for r in run.results for dist in r.dists}
        | set(run.imports)
        | {one.dist for one in (*run.served, *run.relayed)}
    )
    names |= {"fastapi", "starlette", "uvicorn"} if run.served else set()
    found = ((name, version(name)) for name in sorted(names))
    yield "## Versions\n\n" + ", ".join(f"{name} {number}" for name, number in found if number) + ".\n"


def _skipped(skipped: list[str]) -> Iterator[str]:
    if skipped:
        yield "## Skipped\n\n" + "\n".join(f"- {code(line)}" for line in skipped) + "\n"


def version(dist: str) -> str | None:
    try:
        return importlib.metadata.version(dist)
    except importlib.metadata.PackageNotFoundError:
        return None


def code(text: str) -> str:
    """Stars are emphasis in Markdown."""
    return text.replace("*args, **kwargs", "`*args, **kwargs`")
