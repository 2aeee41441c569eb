"""How many letters a consumer may have, decided purely, without counting them for every one that is written."""

from __future__ import annotations

MOST = 100_000
"""Letters of one consumer: more than anybody looks at one by one, and some hundred megabytes."""
COUNT_AGAIN = 5.0
"""Seconds for which a count is trusted: others write too."""
FULL_FOR = 1.0
"""Seconds for which a consumer's letters are full once they were found so: not every failure need count them anew."""


class Room:
    """Told how many letters there are, it answers whether one more fits, for a while without being told again.

    A tenth of what was free is given away before the letters are counted anew, because other processes write too: the
    nearer the limit, the more often it looks. What is written at the same moment by several processes may exceed the
    limit by as many as there are of them.

    >>> room = Room(100)
    >>> room.takes("billing", 0.0)
    False
    >>> room.counted("billing", 80, 0.0)
    >>> [room.takes("billing", 1.0) for _ in range(3)]
    [True, True, False]
    """

    __slots__ = ("_free", "_full", "most")

    def __init__(self, most: int) -> None:
        self.most = most
        self._free: dict[str, tuple[int, float]] = {}
        self._full: dict[str, float] = {}

    def takes(self, consumer: str, now: float) -> bool:
        """Is there room for one more, as far as is known? Then it is taken."""
        free, until = self._free.get(consumer, (0, now))
        if free < 1 or now >= until:
            return False
        self._free[consumer] = (free - 1, until)
        return True

    def counted(self, consumer: str, count: int, now: float) -> None:
        """There are so many now."""
        self._full.pop(consumer, None)
        self._free[consumer] = ((self.most - count) // 10, now + COUNT_AGAIN)

    def filled(self, consumer: str, now: float) -> None:
        """There is no room, and none could be made."""
        self._full[consumer] = now + FULL_FOR

    def is_full(self, consumer: str, now: float) -> bool:
        """Was it so a moment ago?"""
        return now < self._full.get(consumer, now)

    @property
    def step(self) -> int:
        """How many finished letters are deleted when there is no room: a hundredth, so that it is not needed often."""
        return min(max(1, self.most // 100), 1000)
