"""The payment provider behind the payments service: fine, slow or down, as the scenario wants it."""

from __future__ import annotations

import random
from typing import Literal, get_args

from everkeel.runtime.clock import DEFAULT

Mode = Literal["fine", "slow", "down"]
MODES: tuple[str, ...] = get_args(Mode)


class Provider:
    """Somebody else's service."""

    def __init__(self) -> None:
        self.mode: Mode = "fine"

    async def transfer(self) -> None:
        """Takes its time, and may fail. It recognises a payment it has seen, so asking twice moves nothing twice."""
        if self.mode == "down":
            await DEFAULT.asleep(0.02)
            raise ConnectionError("the payment provider does not answer")
        await DEFAULT.asleep(random.uniform(0.6, 1.2) if self.mode == "slow" else random.uniform(0.002, 0.01))
