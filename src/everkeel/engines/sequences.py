"""How far a consumer has come in the numbered events of each source and key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

MOST_NUMBER = 2**63 - 1
"""The highest number that databases can keep."""


@dataclass(frozen=True, slots=True)
class Reached:
    """How far one key of one source has come."""

    number: int
    """The last number that was handled or given up on; all before it were."""
    held: int | None = None
    """The lowest number that came too early since; None: none did."""
    held_for: float = 0.0
    """How long ago the first of those came, or the one they wait for was tried."""


class SequenceStore(Protocol):
    """One small row per consumer, source and key. The same contract on every engine:
    `everkeel.testing.contracts.sequences`."""

    async def reached(self, consumer: str, source: str, key: str) -> Reached | None:
        """How far it has come; None: nothing of this key was seen."""
        ...

    async def hold(self, consumer: str, source: str, key: str, number: int, before: int) -> None:
        """Remember that this number came early. `before`: what was reached, where nothing is known yet."""
        ...

    async def tried(self, consumer: str, source: str, key: str) -> None:
        """The number that others wait for is there, and was tried: their waiting begins anew."""
        ...

    async def advance(
        self, consumer: str, source: str, key: str, number: int, *, skip: bool = False, tx: Any = None
    ) -> bool:
        """This number is done. False, and nothing changes, unless it is the next one.

        `skip`: also if some before it are not; False then means that it was reached before.
        """
        ...
