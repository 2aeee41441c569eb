"""The registry of cases, and how they are checked and timed. Case modules (baselines, peers, ours) only register.

- A case is first built over a counting function and must behave: the function is called once per call, once in all for
  a cache, never behind an open circuit, three times for `retry_fail`.
- A block is as many calls as fill a few milliseconds. A round visits every case once, in a new random order. What
  counts is the time per call above the bare call's, which runs in the same loop, so the loop's own cost cancels.
- Every case exists in a few copies, each with a timing loop compiled for it alone, so that no case meets another's
  inline caches, and none lives with the place in memory that its only copy happened to get. The garbage
  collector is off inside a block. Async blocks run in one event loop and end with one trip through it, timed, because
  cancelled timers are swept there.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import itertools
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

CATEGORIES = {
    "wrap": "plain wrappers, no policy",
    "retry": "retry, 3 attempts, exponential backoff; the first attempt succeeds",
    "breaker": "circuit breaker, closed; the call succeeds",
    "timeout": "1 s timeout; the call returns at once",
    "timeout_yield": "1 s timeout; the call yields to the event loop once, as real I/O does",
    "bulkhead": "concurrency limit of 10, uncontended",
    "concurrency": "adaptive concurrency limit, uncontended, beside a bulkhead of fixed size",
    "hedge": "hedge whose first attempt answers before the delay, beside a timeout",
    "ratelimit": "rate limiter in memory, one key, never limiting",
    "ratelimit_keyed": "rate limiter in memory with many keys, safe among threads; one key, never limiting",
    "ratelimit_many": "the same, a thousand keys in turn",
    "ratelimit_reject": "a rate limiter rejects; includes raise and catch",
    "fallback": "fallback, not used",
    "cache": "cache hit",
    "gate": "a feature toggle that is on, a fail fast that is closed, chaos that is not enabled; the call succeeds",
    "stack": "retry and breaker composed; the call succeeds",
    "stack_full": "retry, breaker, bulkhead, and a timeout if async (sync: where the name says so); the call succeeds",
    "open": "an open circuit rejects; includes raise and catch",
    "retry_fail": "two failures, then success, no delay; above the same three calls made by hand",
}

REJECTING = ("open", "ratelimit_reject")  # what is timed there is a call that is turned away
Factory = Callable[..., Any]  # of the innermost function: the function wrapped
COPIES = 3  # of every case, in turn: where code happens to lie in memory is worth up to a third of a short call


class BoomError(Exception):
    """What the innermost function raises where it is meant to fail."""


@dataclass
class Case:
    category: str
    name: str
    mode: str  # sync, async
    factory: Factory
    kind: str  # bare, base (the standard library and hand-written code), peer, floor, ours
    dists: tuple[str, ...]  # the distributions whose versions matter
    meanwhile: Callable[[Any], AbstractContextManager[object]] | None = None  # what goes on around a timed block
    copies: list[tuple[Factory, Factory]] = field(default_factory=list)  # each a timing loop and a function wrapped
    number: int = 0
    samples: list[float] = field(default_factory=list)  # ns per call, one per round


CASES: list[Case] = []


def case(
    category: str,
    name: str,
    modes: str = "sync async",
    kind: str = "peer",
    dists: str | None = None,
    meanwhile: Callable[[Any], AbstractContextManager[object]] | None = None,
) -> Callable[[Factory], Factory]:
    """Register `factory(fn) -> fn wrapped`; stack it to enter several categories."""
    assert category in CATEGORIES, category
    versioned = kind in ("peer", "ours") or dists is not None

    def add(factory: Factory) -> Factory:
        found = tuple((dists or name.split()[0]).split()) if versioned else ()
        CASES.extend(Case(category, name, mode, factory, kind, found, meanwhile) for mode in modes.split())
        return factory

    return add


# ------------------------------------------------------------------ what is called, and the loop that calls it

_BODIES = {
    "open": "    raise BoomError\n",
    "retry_fail": "    global calls\n    calls += 1\n    if calls % 3: raise BoomError\n    return x\n",
    "timeout_yield": "    await sleep(0)\n    return x\n",
}


def innermost(category: str, mode: str) -> Factory:
    """A new innermost function: it fails always (open), twice in three calls (retry_fail), or never."""
    head = "async def" if mode == "async" else "def"
    space = {"BoomError": BoomError, "sleep": asyncio.sleep, "calls": 0, "__name__": __name__}
    exec(f"{head} work(x):\n{_BODIES.get(category, '    return x')}", space)  # noqa: S102 - a function per case, by design
    return space["work"]  # type: ignore[return-value]


def counted(fn: Factory, mode: str) -> tuple[Factory, list[int]]:
    hits = [0]
    if mode == "async":

        async def probe(x: int) -> Any:
            hits[0] += 1
            return await fn(x)
    else:

        def probe(x: int) -> Any:
            hits[0] += 1
            return fn(x)

    return probe, hits


_LOOP = """\
{head} loop(fn, times, clock):
    began = clock()
    for _ in times:
        {body}
    {tail}
    return clock() - began
"""
_CAUGHT = """\
try: {call}
        except Exception: pass"""
_BY_HAND = """\
for _ in (1, 2, 3):
            try:
                {call}
                break
            except BoomError: pass"""


def timing_loop(c: Case) -> Factory:
    """The loop that times this case and no other."""
    call = "await fn(1)" if c.mode == "async" else "fn(1)"
    if c.category in REJECTING:
        body = _CAUGHT.format(call=call)
    elif c.category == "retry_fail" and c.kind == "bare":
        body = _BY_HAND.format(call=call)
    else:
        body = call
    head, tail = ("async def", "await sleep(0)") if c.mode == "async" else ("def", "pass")
    space: dict[str, Any] = {"BoomError": BoomError, "sleep": asyncio.sleep}
    exec(_LOOP.format(head=head, body=body, tail=tail), space)  # noqa: S102 - no case meets another's inline caches
    return space["loop"]  # type: ignore[no-any-return]


# ------------------------------------------------------------------ checking and timing


class Bench:
    """One run over all registered cases."""

    def __init__(self, rounds: int, block_ms: float) -> None:
        self.rounds, self.block_ns = rounds, block_ms * 1e6
        self.runner = asyncio.Runner()
        self.skipped: list[str] = []

    def call(self, mode: str, fn: Factory, *args: Any) -> Any:
        """`fn(*args)`, inside the one event loop where the mode is async."""
        if mode == "sync":
            return fn(*args)

        async def main() -> Any:
            out = fn(*args)
            return await out if inspect.isawaitable(out) else out

        return self.runner.run(main())

    def outcome(self, c: Case, fn: Factory) -> Any:
        try:
            return self.call(c.mode, fn, 1)
        except Exception as error:
            return error

    def check(self, c: Case) -> None:
        """Build the case over a counting function and see that it does what its category says."""
        fn, hits = counted(innermost(c.category, c.mode), c.mode)
        wrapped = self.call(c.mode, c.factory, fn)
        if c.category in REJECTING:
            if c.kind not in ("bare", "base"):
                self._check_open(c, wrapped, hits)
        elif c.category == "retry_fail":
            if c.kind != "bare":
                out = self.outcome(c, wrapped)
                _must(out == 1 and hits[0] == 3, f"{out!r} after {hits[0]} inner calls")
        else:
            outs = [self.outcome(c, wrapped) for _ in range(3)]
            expected = 1 if c.category == "cache" and c.kind != "bare" else 3
            _must(outs == [1, 1, 1] and hits[0] == expected, f"{outs} after {hits[0]} inner calls")

    def _check_open(self, c: Case, wrapped: Factory, hits: list[int]) -> None:
        for _ in range(25):
            self.outcome(c, wrapped)
        before = hits[0]
        out = self.outcome(c, wrapped)
        _must(hits[0] == before <= 10, f"not open: {before} inner calls, then {hits[0]}")
        _must(isinstance(out, Exception), f"not open: answered {out!r}")

    def prepare(self, c: Case) -> bool:
        """Check the case, build it anew over the plain function, warm it up; False where any of that fails."""
        try:
            self.check(c)
            for _ in range(COPIES):
                self.build(c)
        except Exception as error:
            self.skipped.append(f"{c.category}/{c.name} ({c.mode}): {reason(error)}")
            return False
        return True

    def build(self, c: Case) -> None:
        """One more copy of the case, over a function of its own, warm."""
        never_fails = c.category == "open" and c.kind == "bare"
        fn = self.call(c.mode, c.factory, innermost("wrap" if never_fails else c.category, c.mode))
        if c.category in REJECTING:
            for _ in range(25):
                self.outcome(c, fn)
        c.copies.append((timing_loop(c), fn))
        c.number = c.number or 30
        for _ in range(5):  # warm up, and find how many calls fill a block
            # The most that was found: a block that was disturbed says too few, and few calls are all cold start.
            c.number = max(c.number, min(150_000, int(self.block_ns / self.block(c, len(c.copies) - 1))))

    def block(self, c: Case, copy: int) -> float:
        """Nanoseconds per call over one block."""
        loop, fn = c.copies[copy]
        with nullcontext() if c.meanwhile is None else c.meanwhile(fn), _no_collection():
            spent = self.call(c.mode, loop, fn, itertools.repeat(None, c.number), time.perf_counter_ns)
        return float(spent / c.number)

    def run(self) -> list[Case]:
        """Time every case that passes its check."""
        cases = [c for c in CASES if self.prepare(c)]
        chance = random.Random(1)
        for number in range(self.rounds):
            for c in chance.sample(cases, len(cases)):
                c.samples.append(self.block(c, number % COPIES))
        return cases


def _must(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


def reason(error: Exception) -> str:
    """Why a case was skipped, in a line and without paths of this machine."""
    return f"{type(error).__name__}: {error}".split("\n")[0].split(" (/")[0]


@contextmanager
def _no_collection() -> Iterator[None]:
    gc.collect()
    gc.freeze()  # what lives on (some peers' state grows with calls) is not walked again before every block
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


# ------------------------------------------------------------------ results


@dataclass(frozen=True)
class Result:
    """Nanoseconds per call above the bare call of the same category and mode: best round against best round.

    Whatever else the machine does only ever adds time, so the best of many short blocks is what repeats.
    """

    category: str
    name: str
    mode: str
    kind: str
    dists: tuple[str, ...]
    ns: float
    typical: float  # the median of the rounds, each paired with the bare call of its round


def results(cases: list[Case]) -> list[Result]:
    bare = {(c.category, c.mode): c.samples for c in cases if c.kind == "bare"}
    out = []
    for c in cases:
        under = [0.0] * len(c.samples) if c.kind == "bare" else bare[c.category, c.mode]
        typical = statistics.median(mine - theirs for mine, theirs in zip(c.samples, under, strict=True))
        out.append(Result(c.category, c.name, c.mode, c.kind, c.dists, min(c.samples) - min(under), typical))
    return out
