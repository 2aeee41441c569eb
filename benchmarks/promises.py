"""What is promised, as ratios within one run, and whether it holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from footprint import MEMORY, Bytes, third_party_modules
from harness import CASES, Result
from messaging import KEYS, Relayed
from sagas import Completed
from servers import Served

SLACK = 1.5  # `*args, **kwargs` signatures, being scraped and being measured may cost this much of a promise


@dataclass(frozen=True)
class Promise:
    """So many times faster than the fastest peer of a category; None where nothing is promised for that mode.

    What no peer has is compared with what people write by hand (`against="base"`).
    """

    what: str
    category: str
    sync: float | None
    awaited: float | None
    ours: str = "everkeel"
    against: str = "peer"

    def at_least(self, mode: str) -> float | None:
        return self.sync if mode == "sync" else self.awaited


PROMISES = (
    Promise("retry", "retry", 12, 5),
    Promise("breaker closed, window of 100", "breaker", 8, 5),
    Promise("timeout", "timeout", None, 5),
    Promise("timeout, yielding once", "timeout_yield", None, 4),
    Promise("bulkhead", "bulkhead", 12, 10),
    Promise("adaptive concurrency limit (our bulkhead)", "concurrency", 1 / 1.5, 1 / 1.5, against="base"),
    Promise("idle hedge (our timeout)", "hedge", None, 1 / 2, against="base"),
    Promise("rate limit, in memory, one key", "ratelimit", 2, 1),
    Promise("rate limit, keyed, thread-safe", "ratelimit_keyed", 3, 3),
    Promise("rate limit, a thousand keys in turn", "ratelimit_many", 3, 3),
    Promise("cache hit", "cache", 1, 1),
    Promise("retry + breaker + bulkhead (+ timeout if async)", "stack_full", 15, 8),
    Promise("open breaker rejects", "open", 1.5, 1.2),
    Promise("two failures, then success", "retry_fail", 50, 2),
    *(
        Promise(f"{what} (a passthrough by hand)", "gate", 1 / 1.3, 1 / 1.3, f"everkeel {word}", "base")
        for what, word in (
            ("feature toggle, on", "feature_toggle"),
            ("fail fast, closed", "fail_fast"),
            ("chaos, not enabled", "chaos"),
        )
    ),
)
VARIANTS = ("everkeel, *args, **kwargs", "everkeel, being scraped", "everkeel, OpenTelemetry metrics")
REJECTED_AT_MOST = 1.5  # times an open breaker's rejection
IMPORT_AT_MOST = 1.5  # times `import asyncio` alone
COMPLETED = {"sqlite": 1_000, "postgresql": 300}  # sagas a second, on two cores that the server shares
RELAYED = {"everkeel": 10_000, KEYS: 5_000}  # events a second, on two cores that the server shares
SOON = 5.0  # milliseconds from commit to delivery, half of the time, in one process with nothing else to do
SERVED_OF_BARE = 0.85  # of the bare application's requests per second
SERVED_OF_PEERS = 1.5
SERVED_BESIDE = ("middleware", "redis")  # the forms of peers that do as much; the table shows the others too


@dataclass(frozen=True)
class Row:
    """One promise and what was measured."""

    what: str
    promised: str
    measured: str
    against: str
    holds: bool


def check(
    results: list[Result],
    memory: list[Bytes],
    imports: dict[str, float | None],
    served: Sequence[Served] = (),
    relayed: Sequence[Relayed] = (),
    completed: Sequence[Completed] = (),
) -> list[Row]:
    """Every promise that concerns something measured in this run."""
    timed = [row for promise in PROMISES for row in _timed(promise, results)]
    others = [*_served(served), *_relayed(relayed), *_completed(completed)]
    return [*timed, *_rejected(results), *others, *_bytes(memory), *_imported(imports)]


def _served(served: Sequence[Served]) -> Iterator[Row]:
    """The middleware beside the bare application, and beside peers: what each lets through per second."""
    mine = next((one for one in served if one.kind == "ours" and one.form == "middleware"), None)
    if mine is None:
        return
    for one in served:
        if one.kind == "ours":
            continue
        at_least = SERVED_OF_BARE if one.kind == "bare" else SERVED_OF_PEERS if one.form in SERVED_BESIDE else None
        if at_least is not None:
            against = f"{one.name} {one.best:,.0f} : {mine.best:,.0f} requests/s"
            ratio = mine.best / one.best
            yield Row("rate limit middleware", f"{at_least:g}x", f"{ratio:.2f}x", against, ratio >= at_least)


def _relayed(relayed: Sequence[Relayed]) -> Iterator[Row]:
    """Figures of their own, and none of a ratio: peers differ in what they do per event. They stand beside it."""
    by_name = {one.name: one for one in relayed}
    peers = [one for one in relayed if one.kind == "peer"]
    for name, at_least in RELAYED.items():
        if (mine := by_name.get(name)) is not None:
            against = "; ".join(f"{one.name} {one.best('delivered'):,.0f} events/s" for one in peers)
            best = mine.best("delivered")
            what = "relay" + name.removeprefix("everkeel")
            yield Row(what, f"{at_least:,} events/s", f"{best:,.0f} events/s", against, best >= at_least)
    if (mine := by_name.get("everkeel")) is not None:
        against = "; ".join(f"{one.name} {one.best('p50'):.1f} ms" for one in peers)
        best = mine.best("p50")
        yield Row("commit to delivery, median", f"under {SOON:g} ms", f"{best:.1f} ms", against, best < SOON)


def _completed(completed: Sequence[Completed]) -> Iterator[Row]:
    for one in completed:
        if (at_least := COMPLETED.get(one.engine)) is not None:
            measured = f"{one.per_second:,.0f} sagas/s"
            yield Row(f"sagas on {one.engine}", f"{at_least:,} sagas/s", measured, "", one.per_second >= at_least)


def _rejected(results: list[Result]) -> Iterator[Row]:
    """To be turned away by a limiter costs little more than by a breaker: both are busy when everything else is."""
    measured, against, holds = [], [], []
    for mode in ("sync", "async"):
        mine, breaker = (_find(results, category, mode, "everkeel") for category in ("ratelimit_reject", "open"))
        if mine is None or breaker is None:
            continue
        measured.append(f"{mine.ns / breaker.ns:.2f}x")
        against.append(f"open breaker {breaker.ns:,.0f} : {mine.ns:,.0f} ns")
        holds.append(mine.ns <= REJECTED_AT_MOST * breaker.ns)
    if holds:
        promised = f"under {REJECTED_AT_MOST}x our open breaker"
        yield Row("rate limit rejects", promised, " / ".join(measured), "; ".join(against), all(holds))


def _timed(promise: Promise, results: list[Result]) -> Iterator[Row]:
    for name in (promise.ours, *(VARIANTS if promise.ours == "everkeel" else ())):
        slack = 1.0 if name == promise.ours else SLACK
        promised, measured, against, holds = [], [], [], []
        for mode in ("sync", "async"):
            at_least = promise.at_least(mode)
            mine = _find(results, promise.category, mode, name)
            peer = fastest(results, promise.category, mode, promise.against)
            if at_least is not None and mine is None and _registered(promise.category, mode, name):
                promised.append(f"{at_least / slack:.3g}x")
                measured.append("failed its check")
                holds.append(False)
                continue
            if at_least is None or mine is None or peer is None:
                promised.append("-")
                measured.append("-")
                continue
            ratio = peer.ns / max(mine.ns, 0.1)
            promised.append(f"{at_least / slack:.3g}x")
            measured.append(f"{ratio:.1f}x")
            against.append(f"{peer.name} {peer.ns:,.0f} : {mine.ns:,.0f} ns")
            holds.append(ratio >= at_least / slack)
        if holds:
            what = promise.what + name.removeprefix(promise.ours)
            yield Row(what, " / ".join(promised), " / ".join(measured), "; ".join(against), all(holds))


def _bytes(memory: list[Bytes]) -> Iterator[Row]:
    for what, group in (("bytes per key of a keyed breaker", "breaker"), ("bytes per limiter key", "rate-limiter key")):
        mine = min((m for m in memory if m.group == group and m.kind == "ours"), key=lambda m: m.each, default=None)
        peer = min((m for m in memory if m.group == group and m.kind == "peer"), key=lambda m: m.each, default=None)
        promised = "fewer than every peer"
        if mine is not None and peer is not None:
            yield Row(what, promised, f"{mine.each}", f"{peer.name} {peer.each}", mine.each < peer.each)
        elif memory and mine is None and any((at, kind) == (group, "ours") for at, _, kind, _ in MEMORY):
            yield Row(what, promised, "failed", "", False)


def _imported(imports: dict[str, float | None]) -> Iterator[Row]:
    mine, alone = imports.get("everkeel"), imports.get("asyncio alone")
    if alone is None:
        return
    if mine is None:
        yield Row("`import everkeel`", f"under {IMPORT_AT_MOST}x asyncio", "failed", "", False)
        return
    against = f"asyncio {alone:.0f} ms : {mine:.0f} ms"
    holds = mine < IMPORT_AT_MOST * alone
    yield Row("`import everkeel`", f"under {IMPORT_AT_MOST}x asyncio", f"{mine / alone:.2f}x", against, holds)
    foreign = third_party_modules("import everkeel", "everkeel")
    yield Row("third-party modules loaded by it", "none", ", ".join(foreign) or "none", "", not foreign)


def _registered(category: str, mode: str, name: str) -> bool:
    """Was it to be measured? What is then missing failed, and must not pass for something nobody promised."""
    return any((c.category, c.mode, c.name) == (category, mode, name) for c in CASES)


def _find(results: list[Result], category: str, mode: str, name: str) -> Result | None:
    return next((r for r in results if (r.category, r.mode, r.name) == (category, mode, name)), None)


def fastest(results: list[Result], category: str, mode: str, kind: str) -> Result | None:
    found = [r for r in results if (r.category, r.mode, r.kind) == (category, mode, kind)]
    return min(found, key=lambda r: r.ns, default=None)
