"""Customers: they place orders, come back when they are told to, and remember what was accepted."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import httpx2

from everkeel.errors import RateLimitedError, RetryExhaustedError
from everkeel.http.adaptive import AsyncAdaptiveClient

ITEMS = {"anchor": 4_900, "compass": 2_500, "lantern": 1_200, "sextant": 18_000}
"""What the shop sells, in cents."""
STYLES = ("orchestrated", "choreographed")
MOST_WAIT = 4.0
"""Seconds before they try again, at most."""


@dataclass
class Customers:
    """Everybody who buys. `accepted` is what the shop promised to deal with: the audit asks about each of them."""

    url: str
    accepted: dict[str, dict[str, Any]] = field(default_factory=dict)
    told: Counter[str] = field(default_factory=Counter)
    """How placing an order ended: accepted, shed, unreachable."""

    tries: int = 40
    """How often they come back to a shop that does not answer."""

    def __post_init__(self) -> None:
        self._numbers = count(1)

    async def buy(
        self,
        scenario: str,
        how_many: int,
        *,
        item: str = "lantern",
        style: str | None = None,
        amount: int | None = None,
        at_once: int = 8,
        patient: bool = True,
    ) -> list[str]:
        """Place so many orders; answers the ids of those that were accepted."""
        placed: list[str] = []
        turn = asyncio.Semaphore(at_once)
        async with httpx2.AsyncClient(timeout=5.0) as inner:
            client = AsyncAdaptiveClient(self.url, client=inner, max_retries=20 if patient else 0, max_wait=10.0)

            async def one() -> None:
                number = next(self._numbers)
                order: dict[str, Any] = {
                    "id": f"{scenario}-{number}",
                    "item": item,
                    "count": 1,
                    "amount": amount or ITEMS[item],
                    "style": style or STYLES[number % 2],
                }
                async with turn:
                    if await self._place(client, order):
                        placed.append(order["id"])

            await asyncio.gather(*(one() for _ in range(how_many)))
        return placed

    async def _place(self, client: AsyncAdaptiveClient, order: dict[str, Any]) -> bool:
        wait = 0.25  # twice as long each time: a shop that cannot keep up needs nothing less than everybody at its door
        unsure = False  # Was it taken, and only the answer lost? Then to be sent away is no answer, and they ask again.
        for _ in range(self.tries):  # the shop may be away for a moment: the order's id makes asking again harmless
            try:
                answer = await client.send_request("POST", "/orders", **order)
            except httpx2.TransportError:
                unsure = True
                await asyncio.sleep(wait)
                wait = min(2 * wait, MOST_WAIT)
                continue
            except (RateLimitedError, RetryExhaustedError):
                pass
            else:
                if answer.status_code == 202:
                    self.told["accepted"] += 1
                    self.accepted[order["id"]] = order
                    return True
                if answer.status_code not in (429, 503):
                    answer.raise_for_status()
            if not unsure:
                self.told["shed"] += 1
                return False
            await asyncio.sleep(wait)
            wait = min(2 * wait, MOST_WAIT)
        self.told["unreachable"] += 1
        return False
