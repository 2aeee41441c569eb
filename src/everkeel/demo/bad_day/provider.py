"""A payment provider that lives in this process, and is not well."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, slots=True)
class Phase:
    """How the provider is for a part of the story."""

    name: str
    share: float
    """Of the length of the story."""
    answers_in: tuple[float, float]
    """Seconds, at least and at most."""
    resets: float = 0.0
    """The share of requests whose connection is reset."""
    hangs: float = 0.0
    """The share of requests that get no answer at all, until the connection is given up after `PATIENCE`."""


PHASES = (
    Phase("healthy", 0.17, (0.02, 0.06)),
    Phase("flaky", 0.23, (0.03, 0.09), resets=0.2, hangs=0.03),
    Phase("down", 0.3, (0.03, 0.09), resets=0.15, hangs=0.85),
    Phase("recovering", 0.15, (0.05, 0.15), resets=0.08),
    Phase("healthy again", 0.15, (0.02, 0.06)),
)
PATIENCE = 4.0


class Provider:
    """Takes requests. Each client has one of its own with the same script, so that neither suffers for the other."""

    def __init__(self, seconds: float, pace: float, seed: int) -> None:
        self._seconds, self._pace, self._chance = seconds, pace, Random(seed)
        self._began = asyncio.get_running_loop().time()
        self.requests: Counter[str] = Counter()

    def phase(self) -> Phase:
        """How it is now."""
        passed = (asyncio.get_running_loop().time() - self._began) / self._seconds
        for phase in PHASES:
            passed -= phase.share
            if passed < 0:
                return phase
        return PHASES[-1]

    async def charge(self, order: int) -> str:
        """One request over the network, as it were."""
        phase = self.phase()
        self.requests[phase.name] += 1
        fate = self._chance.random()
        if fate < phase.hangs:
            await asyncio.sleep(PATIENCE * self._pace)
            raise ConnectionError("no answer from the provider")
        await asyncio.sleep(self._chance.uniform(*phase.answers_in) * self._pace)
        if fate < phase.hangs + phase.resets:
            raise ConnectionError("connection reset by the provider")
        return f"receipt for order {order}"
