"""Simulated services on which adaptive limits, throttles and hedges are judged, in virtual time and seeded.

The tests assert bounds on these runs and `draw_adaptive.py` draws them for the guide, so that what is shown is what is
asserted. The policies are the real ones; only the service, its callers and the clock are simulated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from random import Random
from typing import Any, TypedDict

from everkeel import ConcurrencyLimit, ShedError, concurrency_limit, hedge
from everkeel.testing import VirtualClock

Schedule = Callable[[float], float]
"""What something is at a time, in seconds from the start."""


def steady(value: float) -> Schedule:
    """The same all the time."""
    return lambda now: value


def between(start: float, end: float, inside: float, outside: float) -> Schedule:
    """One value from `start` to `end`, another before and after."""
    return lambda now: inside if start <= now < end else outside


def ramp(start: float, end: float, low: float, high: float) -> Schedule:
    """From low to high over a time, and back to low at its end: a leak, and the restart that mends it."""
    return lambda now: low + (high - low) * (now - start) / (end - start) if start <= now < end else low


class Backend:
    """So many servers, each busy for a service time with one call; further calls queue up in front of them."""

    def __init__(self, servers: Schedule, service_time: Schedule, chance: Random) -> None:
        self._servers, self._service_time, self._chance = servers, service_time, chance
        self._free: list[float] = []  # when each server will be done with what it has

    def ends(self, now: float) -> float:
        """A call arrives: when will it be answered?"""
        wanted = round(self._servers(now))
        while len(self._free) < wanted:
            heappush(self._free, now)
        while len(self._free) > wanted:
            heappop(self._free)
        end = max(now, heappop(self._free)) + self._service_time(now) * (0.8 + 0.4 * self._chance.random())
        heappush(self._free, end)
        return end


@dataclass
class Run:
    """What happened: each call that was answered, each that was shed, and the limit over time."""

    answered: list[tuple[float, float]] = field(default_factory=list)  # when it began, and its latency
    shed: list[float] = field(default_factory=list)
    limits: list[tuple[float, int]] = field(default_factory=list)
    baselines: list[tuple[float, float]] = field(default_factory=list)

    def goodput(self, start: float, end: float) -> float:
        """Answers a second."""
        return sum(start <= began + took < end for began, took in self.answered) / (end - start)

    def latency(self, share: float, start: float, end: float) -> float:
        """So long did that share of the calls take at most."""
        taken = sorted(took for began, took in self.answered if start <= began < end)
        return taken[min(len(taken) - 1, int(share * len(taken)))] if taken else 0.0

    def shed_share(self, start: float, end: float) -> float:
        """The share of calls that were turned away."""
        shed = sum(start <= at < end for at in self.shed)
        return shed / max(1, shed + sum(start <= began < end for began, _ in self.answered))

    def limit_at(self, moment: float) -> int:
        """The limit at a moment."""
        return max(limit for limit in [limit for at, limit in self.limits if at <= moment][-1:])

    def most(self, start: float, end: float) -> int:
        """The highest limit within a time."""
        return max(limit for at, limit in self.limits if start <= at < end)

    def least(self, start: float, end: float) -> int:
        """The lowest limit within a time."""
        return min(limit for at, limit in self.limits if start <= at < end)

    def first(self, start: float, when: Callable[[int], bool]) -> float:
        """How long after `start` the limit is for the first time as it should be."""
        return next((at - start for at, limit in self.limits if at >= start and when(limit)), float("inf"))


def simulate(
    *,
    servers: Schedule,
    service_time: Schedule,
    rate: Schedule,
    seconds: float = 60.0,
    seed: int = 1,
    limited: bool = True,
    **settings: Any,
) -> Run:
    """Callers who arrive at random, `rate` a second, in front of a backend, through a concurrency limit."""
    chance, clock, run = Random(seed), VirtualClock(start=1.0), Run()
    policy: ConcurrencyLimit = concurrency_limit(clock=clock, **settings)
    state, backend = policy.state, Backend(servers, service_time, chance)
    inside: list[tuple[float, float, Any]] = []
    arrives, sampled = 0.0, 0.0
    while arrives < seconds:
        arrives += chance.expovariate(rate(arrives))
        while inside and inside[0][0] <= arrives:
            end, began, permit = heappop(inside)
            clock.advance(end + 1.0 - clock.monotonic())
            if limited:
                state.done(permit, None)
            run.answered.append((began, end - began))
        clock.advance(max(0.0, arrives + 1.0 - clock.monotonic()))
        try:
            permit = state.enter() if limited else None
        except ShedError:
            run.shed.append(arrives)
        else:
            heappush(inside, (backend.ends(arrives), arrives, permit))
        if arrives >= sampled:
            snapshot = policy.snapshot()
            run.limits.append((sampled, snapshot["limit"]))
            run.baselines.append((sampled, snapshot["baseline"] or 0.0))
            sampled += 0.1
    run.answered += [(began, end - began) for end, began, _ in sorted(inside, key=lambda one: one[0])]
    return run


# ------------------------------------------------------------------ the runs of the guide


class Scenario(TypedDict):
    """A service and its callers: how many servers, how long they take, how many calls a second, each over time."""

    servers: Schedule
    service_time: Schedule
    rate: Schedule


STEP_DOWN: Scenario = {"servers": between(20, 40, 5, 20), "service_time": steady(0.05), "rate": steady(300.0)}
"""Twenty servers of 50 ms are 400 answers a second; for twenty seconds only five of them are left."""

SPIKE: Scenario = {"servers": steady(100), "service_time": between(20, 30, 0.25, 0.05), "rate": steady(300.0)}
"""For ten seconds every answer takes five times as long, whatever we do."""

LEAK: Scenario = {"servers": steady(100), "service_time": ramp(10, 50, 0.05, 0.15), "rate": steady(300.0)}
"""Answers get slower little by little, to three times, until a restart."""

PRESSED: Scenario = {"servers": steady(20), "service_time": steady(0.05), "rate": steady(600.0)}
"""Half as many calls again as can be answered, all the time."""


# ------------------------------------------------------------------ a long tail


@dataclass
class Tail:
    """How long callers waited, and how many calls that took."""

    latencies: list[float]
    attempts: int

    def quantile(self, share: float) -> float:
        """So long did that share of the callers wait at most."""
        return sorted(self.latencies)[min(len(self.latencies) - 1, int(share * len(self.latencies)))]


def long_tail(*, hedged: bool, calls: int = 4000, seed: int = 1) -> Tail:
    """A service of some 10 ms where three calls in a hundred take 150 to 350 ms, asked two hundred times a second."""
    import asyncio

    chance, clock = Random(seed), VirtualClock(seed=seed)
    tail = Tail([], 0)
    policy = hedge(clock=clock)

    async def lookup() -> None:
        tail.attempts += 1
        slow = chance.random() < 0.03
        await asyncio.sleep(0.15 + 0.2 * chance.random() if slow else 0.008 + 0.004 * chance.random())

    ask = policy(lookup) if hedged else lookup

    async def caller() -> None:
        began = clock.monotonic()
        await ask()
        tail.latencies.append(clock.monotonic() - began)

    async def main() -> None:
        async with asyncio.TaskGroup() as callers:
            for _ in range(calls):
                callers.create_task(caller())
                await asyncio.sleep(chance.expovariate(200.0))

    clock.run(main)
    return tail
