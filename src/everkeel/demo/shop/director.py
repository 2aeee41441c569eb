"""Plays the scenarios on a stage, shows them in the terminal, and checks the books at the end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from everkeel.demo.shop.audit import Check, audit
from everkeel.demo.shop.customers import ITEMS, Customers
from everkeel.demo.shop.scenarios import SCENARIOS, Outcome, Scene
from everkeel.demo.shop.stage import Stage
from everkeel.demo.shop.view import View
from everkeel.runtime.clock import DEFAULT

REST_WITHIN = 30.0


@dataclass
class Report:
    """What was played, and whether the books are right."""

    engine: str
    transport: str
    outcomes: list[Outcome] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    rounds: int = 0
    """How often everything was played and the books were found right."""
    told: dict[str, int] = field(default_factory=dict)
    logs: dict[str, str] = field(default_factory=dict)
    """What the services had to say, where something is wrong."""

    @property
    def right(self) -> bool:
        """Did everything come out as it must?"""
        return (
            bool(self.checks)
            and all(check.holds for check in self.checks)
            and not any(one.problems for one in self.outcomes)
        )

    def as_json(self) -> str:
        """The report for programs."""
        checks = [{"name": check.name, "holds": check.holds, "difference": check.difference} for check in self.checks]
        whole: dict[str, Any] = {
            "right": self.right, "engine": self.engine, "transport": self.transport, "rounds": self.rounds,
            "scenarios": [asdict(one) for one in self.outcomes], "checks": checks, "customers": self.told,
            "logs": self.logs,
        }  # fmt: skip
        return json.dumps(whole, indent=2)


async def direct(
    report: Report, scenarios: Sequence[str], *, orders: int, view: View, keep_running: bool = False
) -> Report:
    """Open the shop, play the scenarios, let it come to rest, and audit it. `report` has what is known at any time."""
    view.opening(report.engine, report.transport)
    async with Stage(report.engine, report.transport) as stage:
        customers = Customers(stage.world.url("orders"))
        view.opened(stage.world)
        while True:
            for name in scenarios:
                report.outcomes.append(await _played(name, stage, customers, orders, view))
                report.told = dict(customers.told)
            report.checks = await closing_time(stage, customers, view)
            report.rounds += report.right
            report.logs = {} if report.right else stage.logs()
            if not keep_running or not report.right:
                return report
            view.again(report.rounds, report.outcomes)


async def _played(name: str, stage: Stage, customers: Customers, orders: int, view: View) -> Outcome:
    title, play = SCENARIOS[name]
    outcome = Outcome(name, title)
    scene = Scene(stage, customers, orders, outcome, view.line, view.live)
    view.begins(title, " ".join((play.__doc__ or "").split()))
    for item in ITEMS:
        if item != "sextant":  # of which there are none: a scenario needs something that is out of stock
            await scene.restock(item, orders * 12)
    began = DEFAULT.monotonic()
    try:
        await play(scene)
    except Exception as error:  # one scenario that breaks must not hide what the audit has to say
        outcome.problems.append(f"{type(error).__name__}: {error}")
    outcome.seconds = DEFAULT.monotonic() - began
    view.ends(outcome)
    return outcome


async def closing_time(stage: Stage, customers: Customers, view: View, *, within: float | None = None) -> list[Check]:
    """Wait until nothing is under way any more, and audit the books.

    An event may be on its way where no table shows it, so books that do not balance yet are looked at again, for a
    while: what is wrong stays wrong.
    """
    view.begins("Closing time", "What is under way comes to its end; then the books are checked.")
    give_up, orders = DEFAULT.monotonic() + (within or REST_WITHIN), stage.books["orders"]
    while True:
        waiting = sum([(await one.engine.outbox.stats()).depth for one in stage.books.values()])
        open_ = await orders.number("SELECT count(*) FROM orders WHERE status = 'placed'")
        active = sum(stats.active for stats in (await orders.engine.sagas.stats()).values())
        view.line(f"{waiting} events, {open_} orders and {active} sagas under way")
        late = DEFAULT.monotonic() > give_up
        if late or waiting == open_ == active == 0:
            checks = await audit(stage.books, customers.accepted, stage.stocked)
            if late or all(check.holds for check in checks):
                return checks
        await asyncio.sleep(0.2)
