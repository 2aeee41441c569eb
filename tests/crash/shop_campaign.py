"""Kills the services of the demo's shop at every named point they pass and at random, while customers buy; then audits.

    python tests/crash/shop_campaign.py --rounds 5 --engine postgres --transport redis

A service that dies is started again at once, and told the next point at which it dies. In the end all of them live, the
shop comes to rest, and the same audit as after the demo says whether the books are right.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import random
import runpy
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from everkeel.demo.shop import director
from everkeel.demo.shop.audit import Check
from everkeel.demo.shop.books import LIMIT
from everkeel.demo.shop.customers import Customers
from everkeel.demo.shop.scenarios import Outcome, Scene
from everkeel.demo.shop.stage import Stage
from everkeel.demo.shop.view import View
from everkeel.demo.shop.world import SERVICES

CHILD = Path(__file__).with_name("shop_child.py")

_RELAY = ("relay.after_claim", "relay.before_publish", "relay.after_publish", "relay.before_ack", "relay.after_ack")
_CONSUMER = (
    "consumer.after_claim", "consumer.after_effect", "consumer.before_commit", "consumer.after_commit",
    "consumer.before_ack", "consumer.after_ack",
)  # fmt: skip
_WRITING = ("outbox.before_write", "outbox.after_write")
POINTS = {
    "inventory": (*_WRITING, *_RELAY, *_CONSUMER),
    "payments": (
        *_WRITING, *_RELAY, *_CONSUMER, "bury.before_commit", "bury.after_commit", "replay.before_append",
        "replay.before_commit", "replay.after_commit",
    ),
    "orders": (
        *_WRITING, "outbox.before_commit", "outbox.after_commit", *_RELAY, *_CONSUMER, "saga.before_create",
        "saga.after_create", "saga.before_save", "saga.after_save", "saga.after_claim", "saga.before_action",
        "saga.after_action", "saga.before_undo", "saga.after_undo",
    ),
}  # fmt: skip
"""Where each service dies."""
ONCE = {
    "inventory": (*_WRITING, *_RELAY),
    "payments": tuple(point for point in POINTS["payments"] if point not in (*_WRITING, *_RELAY)),
    "orders": tuple(point for point in POINTS["orders"] if point not in (*_WRITING, *_RELAY, *_CONSUMER)),
}
"""Every point in one service, for a short run."""
BACKLOG = 24
"""Customers wait while so many orders are open, so that a run ends soon after its last kill."""

ELSEWHERE = {
    "consumer.after_complete": "of handlers without a transaction, of which the shop has none",
    "relay.before_bury": "of events that a broker refuses, and the shop's takes all",
    "relay.after_bury": "of events that a broker refuses",
    "discard.before_commit": "nobody discards a letter in the shop",
}
"""Points that the shop does not pass, and why: other runs kill there."""


class Forked:
    """A process of a service, as `Stage` wants one: forked from one that has everything imported."""

    stdin = None

    def __init__(self, process) -> None:
        self._process = process
        process.start()
        self.pid = process.pid

    def poll(self):
        return self._process.exitcode

    def wait(self, timeout=None):
        self._process.join(timeout)

    def kill(self) -> None:
        self._process.kill()

    def send_signal(self, number) -> None:
        assert number == signal.SIGTERM
        self._process.terminate()


class ForkedStage(Stage):
    """The shop, with services that start in milliseconds."""

    def __init__(self, *where: str) -> None:
        super().__init__(*where)
        self._forks = multiprocessing.get_context("forkserver")
        self._forks.set_forkserver_preload(
            ["everkeel.demo.shop.services", "uvicorn", "everkeel.engines", "everkeel.engines.postgres.engine",
             "everkeel.engines.sqlite.engine", "everkeel.testing"]
        )  # fmt: skip

    def _process(self, name: str, crash_at: str = ""):
        told = {"name": name, "world": str(self._path), "point": crash_at, "log": str(self._log_of(name))}
        return Forked(self._forks.Process(target=runpy.run_path, args=(str(CHILD), {"TOLD": told}), daemon=True))


@dataclass
class Report:
    """What was done to the shop, and what it made of it."""

    name: str
    by_point: Counter[str] = field(default_factory=Counter)
    at_random: int = 0
    missed: list[str] = field(default_factory=list)
    """Points that were not passed in time."""
    orders: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    replayed: int = 0
    seconds: float = 0.0
    checks: list[Check] = field(default_factory=list)
    logs: dict[str, str] = field(default_factory=dict)

    @property
    def kills(self) -> int:
        return self.by_point.total() + self.at_random

    @property
    def wrong(self) -> list[str]:
        wrong = [f"it is not so that {one.name}: {one.difference}"[:500] for one in self.checks if not one.holds]
        return wrong + [f"{point} was never passed" for point in self.missed]

    def lines(self) -> list[str]:
        ends = ", ".join(f"{count} {end}" for end, count in sorted(self.ends.items()))
        return [
            f"shop on {self.name}: {self.kills} kills ({len(self.by_point)} points, {self.at_random} at random), "
            f"{self.orders} orders: {ends}; {self.replayed} dead letters replayed; {self.seconds:.0f} s",
            *(f"  WRONG {wrong}" for wrong in self.wrong),
        ]


class Campaign:
    """One shop, killed over and over."""

    def __init__(self, stage: Stage, report: Report, rng: random.Random, within: float) -> None:
        self.stage, self.report, self.rng, self._within = stage, report, rng, within
        self.customers = Customers(stage.world.url("orders"), tries=2_000)
        self.scene = Scene(stage, self.customers, 4, Outcome("crash", ""), lambda _: None)
        self._over = False

    async def run(self, rounds: int, where: dict[str, tuple[str, ...]]) -> None:
        for item in ("lantern", "compass"):
            await self.scene.restock(item, 100_000)
        busy = [asyncio.ensure_future(one) for one in (self._buy(), self._buy(), self._trouble())]
        try:
            await asyncio.gather(*(self._torment(name, rounds, where[name]) for name in SERVICES))
        finally:
            self._over = True
            await asyncio.gather(*busy)

    async def operate(self) -> None:
        """Replay what becomes a dead letter, until cancelled: a delivery that was in the hands of the killed is one
        when its lease has run out, and that may be when all is quiet again."""
        while True:
            await self._replay()
            await asyncio.sleep(0.5)

    async def _torment(self, name: str, rounds: int, where: tuple[str, ...]) -> None:
        await self.stage.kill(name)
        for _ in range(rounds):
            points = list(where)
            self.rng.shuffle(points)
            for point in points:
                await self._die_at(name, point)
        await self.stage.start(name)

    async def _die_at(self, name: str, point: str) -> None:
        rare = point.split(".")[0] in ("bury", "replay")
        give_up = time.monotonic() + self._within * (2 if rare else 1)
        told = f"{point}:{1 if rare else self.rng.randint(1, 3)}"
        by_chance = time.monotonic() + self.rng.uniform(0.05, 0.6) if self.rng.random() < 0.4 else None
        await self.stage.start(name, crash_at=told)
        while self.stage.lives(name):
            if by_chance is not None and time.monotonic() > by_chance:
                await self.stage.kill(name)
                self.report.at_random += 1
                await self.stage.start(name, crash_at=told)
                by_chance = None
            if time.monotonic() > give_up:
                self.report.missed.append(f"{name}: {point}")
                await self.stage.kill(name)
                return
            await asyncio.sleep(0.01)
        self.report.by_point[point] += 1

    async def _buy(self) -> None:
        """Most orders can be fulfilled; of some there is no stock, for others the bank does not pay."""
        orders = self.stage.books["orders"]
        while not self._over:
            if await orders.number("SELECT count(*) FROM orders WHERE status = 'placed'") > BACKLOG:
                await asyncio.sleep(0.1)
                continue
            kind = self.rng.random()
            how = {"item": "sextant"} if kind < 0.15 else {"amount": LIMIT + 1} if kind < 0.3 else {}
            await self.scene.buy(3, **how)

    async def _trouble(self) -> None:
        """A bug comes and goes, and an operator replays what it made dead letters of."""
        while not self._over:
            for _ in range(40):  # until it has done harm, which takes a busy machine longer
                with suppress(httpx2.HTTPError):
                    await self.scene.provider(broken=True)  # once more: a service that was killed does not know
                    page = await self.scene.ask("payments", "GET", "/dlq", params={"status": "pending"})
                    if page["letters"] or self._over:
                        break
                await asyncio.sleep(0.25)
            with suppress(httpx2.HTTPError):
                await self.scene.provider(broken=False)
            await self._replay()
            await asyncio.sleep(0.5)
        with suppress(httpx2.HTTPError):
            await self.scene.provider(broken=False)

    async def _replay(self) -> int:
        left = 0
        for service in SERVICES:
            with suppress(httpx2.HTTPError):
                page = await self.scene.ask(service, "GET", "/dlq", params={"status": "pending"})
                left += len(page["letters"])
                for letter in page["letters"]:
                    path = f"/dlq/{letter['id']}/replay"
                    await self.scene.ask(service, "POST", path, json={"reason": "again"})
                    self.report.replayed += 1
        return left


async def _campaign(engine: str, transport: str, rounds: int, seed: int, within: float, short: bool) -> Report:
    report = Report(f"{engine} and {transport}, seed {seed}")
    began = time.monotonic()
    async with ForkedStage(engine, transport) as stage:
        campaign = Campaign(stage, report, random.Random(seed), within)
        await campaign.run(rounds, ONCE if short else POINTS)
        operator = asyncio.ensure_future(campaign.operate())
        try:
            report.checks = await director.closing_time(stage, campaign.customers, View(quiet=True), within=120.0)
        finally:
            operator.cancel()
        report.orders = len(campaign.customers.accepted)
        rows = await stage.books["orders"].rows("SELECT status, count(*) FROM orders GROUP BY status")
        report.ends = Counter({str(status): int(count) for status, count in rows})
        report.logs = stage.logs() if report.wrong else {}
    report.seconds = time.monotonic() - began
    return report


def campaign(
    engine: str, transport: str, *, rounds: int = 1, seed: int = 1, within: float = 150.0, short: bool = False
) -> Report:
    """Kill every service at every point (`short`: one of them at each), `rounds` times, and audit the books."""
    return asyncio.run(_campaign(engine, transport, rounds, seed, within, short))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--engine", default="sqlite", choices=("sqlite", "postgres"))
    parser.add_argument("--transport", default="sqlite", choices=("sqlite", "redis"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--short", action="store_true", help="one service at each point, not all of them")
    parser.add_argument("--seed", type=int, default=None, help="repeats a run's order of kills")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends it leaves no servers behind
    seed = random.randrange(10**6) if args.seed is None else args.seed
    report = campaign(args.engine, args.transport, rounds=args.rounds, seed=seed, short=args.short)
    print("\n".join(report.lines()))
    for name, log in report.logs.items():
        print(f"--- the log of {name}\n{log}")
    return 1 if report.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
