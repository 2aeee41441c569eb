"""The demo's shop for ten minutes, with customers who buy at a steady rate and faults in between: does anything grow?

    make soak                       ten minutes
    make soak SECONDS=120           a shorter one

Every few seconds: the memory of each service, what waits (outboxes, sagas under way, deliveries), and the rows that
must be deleted in time (delivered events, handled ones, ended sagas). The last third of the run is held against the
second: what is flat may differ by noise, what leaks does not stop. The first third is for warming up.
Exit status 1 where something grew or the books do not balance at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import suppress
from pathlib import Path
from statistics import median
from time import monotonic

import httpx2

from everkeel.demo.shop import director
from everkeel.demo.shop.customers import Customers
from everkeel.demo.shop.scenarios import Outcome, Scene
from everkeel.demo.shop.stage import Stage
from everkeel.demo.shop.view import View
from everkeel.demo.shop.world import SERVICES

ALLOWED = {"MB": (1.10, 6.0), "waiting": (1.5, 40.0), "rows": (1.25, 200.0)}
"""How much more the last third may have: times, plus."""


def unit_of(name: str) -> str:
    return "MB" if name.endswith("MB") else "rows" if name.endswith("rows") else "waiting"


def memory_of(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 1e6


async def look(stage: Stage) -> dict[str, float]:
    """All the numbers that must stay flat."""
    found: dict[str, float] = {}
    for name in SERVICES:
        found[f"{name} MB"] = memory_of(stage.pid(name))
        books = stage.books[name]
        found[f"{name} outbox waiting"] = (await books.engine.outbox.stats()).depth
        found[f"{name} outbox rows"] = await books.number("SELECT count(*) FROM everkeel_outbox")
        found[f"{name} inbox rows"] = await books.number("SELECT count(*) FROM everkeel_inbox")
    orders = stage.books["orders"]
    found["sagas under way"] = sum(one.active for one in (await orders.engine.sagas.stats()).values())
    found["saga rows"] = await orders.number("SELECT count(*) FROM everkeel_sagas")
    return found


class Soak:
    """Customers, faults, and somebody who looks."""

    def __init__(self, stage: Stage, seconds: float, rate: float) -> None:
        self.stage, self.until, self._rate = stage, monotonic() + seconds, rate
        self.customers = Customers(stage.world.url("orders"), tries=400)
        self.scene = Scene(stage, self.customers, 1, Outcome("soak", ""), lambda _: None)
        self.samples: list[dict[str, float]] = []
        self.failed: list[BaseException] = []
        """Orders that got an answer no shop should give."""

    @property
    def on(self) -> bool:
        return monotonic() < self.until

    async def buy(self) -> None:
        under_way: set[asyncio.Task[object]] = set()
        while self.on:
            kind = len(self.customers.accepted) % 10
            item = "sextant" if kind == 9 else "lantern"
            task = asyncio.ensure_future(self.scene.buy(1, item=item))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
            task.add_done_callback(self._ended)
            await asyncio.sleep(1 / self._rate)
        if under_way:
            await asyncio.wait(under_way)

    def _ended(self, order: asyncio.Task[object]) -> None:
        if not order.cancelled() and (error := order.exception()) is not None:
            self.failed.append(error)

    async def faults(self) -> None:
        """A slow provider, one that is down, a bug that buries events: each for a moment, over and over."""
        while self.on:
            for fault in ({"mode": "slow"}, {"mode": "down"}, {"broken": True}):
                await self.tell(**fault)
                await asyncio.sleep(3.0)
                await self.tell(mode="fine", broken=False)
                await self.replay()
                await asyncio.sleep(5.0)
                if not self.on:
                    return

    async def tell(self, **fault: object) -> None:
        """Insist: a provider that stays broken because nobody heard that it is fine would fill the backlog."""
        for _ in range(20):
            with suppress(httpx2.HTTPError):
                return await self.scene.provider(**fault)
            await asyncio.sleep(0.5)

    async def replay(self) -> int:
        with suppress(httpx2.HTTPError):
            letters = (await self.scene.ask("payments", "GET", "/dlq", params={"status": "pending"}))["letters"]
            for letter in letters:
                with suppress(httpx2.HTTPStatusError):  # two at once: the other one did it
                    await self.scene.ask("payments", "POST", f"/dlq/{letter['id']}/replay", json={"reason": "fixed"})
            return len(letters)
        return 0

    async def operate(self) -> None:
        """Replay what becomes a dead letter while the shop comes to rest, until cancelled."""
        while True:
            await self.replay()
            await asyncio.sleep(0.5)

    async def watch(self, every: float) -> None:
        while self.on:
            await asyncio.sleep(every)
            self.samples.append(await look(self.stage))

    def table(self) -> tuple[list[str], list[str]]:
        """What was found, and what grew."""
        third = max(1, len(self.samples) // 3)
        lines, grew = [f"{'':28} {'second third':>14} {'last third':>14}"], []
        for name in self.samples[0]:
            before = median(one[name] for one in self.samples[third : 2 * third] or self.samples)
            after = median(one[name] for one in self.samples[-third:])
            times, plus = ALLOWED[unit_of(name)]
            flat = after <= before * times + plus
            lines.append(f"{name:28} {before:14.1f} {after:14.1f}  {'' if flat else 'GREW'}".rstrip())
            if not flat:
                grew.append(name)
        return lines, grew


async def soak(engine: str, transport: str, seconds: float, rate: float) -> int:
    async with Stage(engine, transport, retain=max(10.0, seconds / 8)) as stage:
        run = Soak(stage, seconds, rate)
        await run.scene.restock("lantern", 10_000_000)
        await asyncio.gather(run.buy(), run.faults(), run.watch(max(1.0, seconds / 120)))
        operator = asyncio.ensure_future(run.operate())
        try:
            checks = await director.closing_time(stage, run.customers, View(quiet=True), within=120.0)
        finally:
            operator.cancel()
        lines, grew = run.table()
        wrong = sorted({f"an order was answered with {error}" for error in run.failed})
        print(f"{seconds:.0f} s on {engine} and {transport}: {len(run.customers.accepted)} orders", *lines, sep="\n")
        wrong = [f"{check.name}: {check.difference}" for check in checks if not check.holds] + wrong
        for what in (*(f"grew: {name}" for name in grew), *(f"wrong: {name}" for name in wrong)):
            print(what)
        if wrong:
            print(*(f"--- the log of {name}\n{log}" for name, log in stage.logs().items()), sep="\n")
        if not grew and not wrong:
            print("Memory and backlog are flat, and the books balance.")
        return 1 if grew or wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--rate", type=float, default=6.0, help="orders a second")
    parser.add_argument("--engine", default="sqlite", choices=("sqlite", "postgres"))
    parser.add_argument("--transport", default="sqlite", choices=("sqlite", "redis"))
    args = parser.parse_args()
    return asyncio.run(soak(args.engine, args.transport, args.seconds, args.rate))


if __name__ == "__main__":
    sys.exit(main())
