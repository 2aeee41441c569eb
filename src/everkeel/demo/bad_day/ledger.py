"""What became of the calls of one client."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass

from everkeel.demo.bad_day.clients import LATER, Client


@dataclass(frozen=True, slots=True)
class Call:
    """One payment."""

    order: int
    took: float
    outcome: str
    """`paid`, `later` or `failed`."""


class Ledger:
    """Makes the calls of a client and writes down how they end."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.calls: list[Call] = []
        self.begun = 0
        self.waiting = 0
        self.most_waiting = 0

    async def pay(self, order: int) -> None:
        """One payment."""
        now = asyncio.get_running_loop().time
        began = now()
        self.begun += 1
        self.waiting += 1
        self.most_waiting = max(self.most_waiting, self.waiting)
        try:
            outcome = "later" if await self.client.pay(order) == LATER else "paid"
        except Exception:
            outcome = "failed"
        finally:
            self.waiting -= 1
        self.calls.append(Call(order, now() - began, outcome))

    def counts(self) -> Counter[str]:
        """How many calls ended how."""
        return Counter(call.outcome for call in self.calls)

    def share(self, outcome: str) -> float:
        """Of all calls."""
        return self.counts()[outcome] / len(self.calls) if self.calls else 0.0

    def quantile(self, share: float) -> float:
        """So long or less took this share of the calls."""
        times = sorted(call.took for call in self.calls)
        return times[min(len(times) - 1, int(share * len(times)))] if times else 0.0

    def wasted(self) -> float:
        """Seconds that callers waited for what then was no payment."""
        return sum(call.took for call in self.calls if call.outcome != "paid")
