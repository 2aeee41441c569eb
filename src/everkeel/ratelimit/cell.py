"""The bucket of a limiter without keys: one number that whoever needs it takes in hand, and puts back.

Taking a number out of a deque and putting one in are single C calls. Who has it in hand decides alone, so the count is
exact without a lock, for a third of a lock's price. Who finds the cell empty takes the slow way, which waits for the
number to come back. It is also empty, on purpose, while the limiter wants to see every call (see `aside`).
"""

from __future__ import annotations

import threading
from collections import deque

_BREATHER = 1e-5  # seconds; the number is out of the cell for a tenth of a microsecond, unless its thread is suspended
_LOST_AFTER = 200_000  # breathers: two seconds and more


class Cell:
    """One number. All methods are called under the limiter's lock; the woven function uses `hand` alone."""

    __slots__ = ("_aside", "_pause", "hand")

    def __init__(self) -> None:
        self.hand: deque[int] = deque([0], maxlen=1)
        self._aside: int | None = None
        self._pause = threading.Event()

    def take(self, if_lost: int) -> int:
        """The number; it must be put back. `if_lost`: what to assume if it never comes.

        Ctrl-C may hit a thread between taking the number and putting it back: then it is lost.
        """
        if self._aside is not None:
            return self._aside
        for _ in range(_LOST_AFTER):
            try:
                return self.hand.pop()
            except IndexError:
                self._pause.wait(_BREATHER)
        return if_lost

    def put(self, number: int, *, aside: bool) -> None:
        """Put it back, or `aside`, where only `take` finds it."""
        if aside:
            self._aside = number
        else:
            self._aside = None
            self.hand.append(number)
