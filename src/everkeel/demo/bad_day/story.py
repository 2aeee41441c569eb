"""Sends both clients the same orders at the same moments, and has it shown."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from everkeel import subscribe
from everkeel.demo.bad_day import clients
from everkeel.demo.bad_day.ledger import Ledger
from everkeel.demo.bad_day.provider import Provider
from everkeel.demo.bad_day.screen import Screen
from everkeel.events import CircuitClosed, CircuitHalfOpened, CircuitOpened, Event, FellBack
from everkeel.runtime.explain import Explanation, explain

SECONDS = 28.0
ORDERS = 560


@dataclass(frozen=True, slots=True)
class Story:
    """How it went."""

    ledgers: tuple[Ledger, Ledger]
    failure: Explanation | None
    """Why one of the guarded calls had to be answered by the fallback."""


async def play(seconds: float, seed: int, screen: Screen) -> Story:
    """Play the story in so many seconds. In fewer than `SECONDS` everything is faster, the provider too."""
    pace = seconds / SECONDS
    now = asyncio.get_running_loop().time
    began = now()
    sides = (clients.bare(Provider(seconds, pace, seed)), clients.guarded(Provider(seconds, pace, seed), pace))
    ledgers = (Ledger(sides[0]), Ledger(sides[1]))
    failures: list[BaseException] = []

    def hear(event: Event) -> None:
        if isinstance(event, FellBack):
            if event.error is not None:
                failures.append(event.error)
        else:
            screen.tell(now() - began, event)

    async def show() -> None:
        while True:
            screen.show(now() - began, ledgers)
            await asyncio.sleep(screen.every * max(pace, 0.1))

    with subscribe(hear, FellBack, CircuitOpened, CircuitHalfOpened, CircuitClosed):
        watching = asyncio.create_task(show())
        async with asyncio.TaskGroup() as calls:
            for order in range(ORDERS):
                await asyncio.sleep(max(0.0, began + order * seconds / ORDERS - now()))
                for ledger in ledgers:
                    calls.create_task(ledger.pay(order))
        watching.cancel()
    screen.show(seconds, ledgers)
    return Story(ledgers, _most_telling(failures))


def _most_telling(failures: list[BaseException]) -> Explanation | None:
    """Of several explanations the one with the most to say."""
    return max(map(explain, failures), key=lambda one: (len(one.decisions), one.attempts), default=None)
