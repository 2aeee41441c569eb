"""What share of the recent calls failed, or was slow, knowing only where the failures were.

A window is told each failure together with the number of successes so far. So a success costs a breaker nothing but a
tick of its tally, and feeding successes one by one or in bulk is the same.
"""

from __future__ import annotations

from collections import deque

SLICES = 10


class CountWindow:
    """The last `size` calls."""

    __slots__ = ("_failed", "_failures", "_forgotten", "_slow", "_streak", "_streak_at")

    def __init__(self) -> None:
        self._failures = 0
        self._failed: deque[int] = deque()  # the positions of failed calls, counted from the start
        self._slow: deque[int] = deque()
        self._forgotten = 0  # the last position dropped: of calls up to there it is no longer known how they ended
        self._streak, self._streak_at = 0, -1

    def roll(self, successes: int, now: float) -> None:
        """Time passed, which a count window does not mind."""

    def failure(self, successes: int) -> None:
        """A call failed after so many successes."""
        # Failures in a row: the tally has not moved since the last one.
        self._streak = self._streak + 1 if self._streak_at == successes else 1
        self._streak_at = successes
        self._failures += 1
        self._failed.append(successes + self._failures)

    def slow(self, successes: int) -> None:
        """The call that was recorded last was slow."""
        self._slow.append(successes + self._failures)

    def streak(self, successes: int) -> int:
        """How many calls in a row failed, up to now."""
        return self._streak if self._streak_at == successes else 0

    def calls(self, size: int, successes: int) -> int:
        """How many calls the window holds. After growing it is not full until as many new ones have come."""
        return min(successes + self._failures - self._forgotten, size)

    def failed(self, size: int, successes: int) -> int:
        """How many of them failed."""
        return self._within(self._failed, size, successes)

    def slow_calls(self, size: int, successes: int) -> int:
        """How many of them were slow."""
        return self._within(self._slow, size, successes)

    def _within(self, positions: deque[int], size: int, successes: int) -> int:
        oldest = successes + self._failures - size
        while positions and positions[0] <= oldest:
            self._forgotten = max(self._forgotten, positions.popleft())
        return len(positions)

    def ages(self, size: int, successes: int) -> tuple[list[int], list[int]]:
        """How many calls ago each failure was, and each slow call: for saving."""
        self._within(self._failed, size, successes)
        self._within(self._slow, size, successes)
        end = successes + self._failures
        return [end - position for position in self._failed], [end - position for position in self._slow]

    def recall(self, successes: int, failed: list[int], slow: list[int], streak: int) -> None:
        """Take over what `ages` and `streak` answered; so many successes are among the calls."""
        self._failures = len(failed)
        end = successes + len(failed)
        self._failed.extend(end - age for age in failed)
        self._slow.extend(end - age for age in slow)
        self._streak, self._streak_at = streak, successes


class TimeWindow:
    """The calls of the last so many seconds, in slices. A slice keeps the tally at its start, no count of its own."""

    __slots__ = ("_edge", "_slices", "_step", "_streak", "_streak_at")

    def __init__(self, seconds: float, now: float, successes: int = 0) -> None:
        self._step = seconds / SLICES
        self._edge = now + self._step  # when the newest slice ends
        self._slices: deque[list[int]] = deque([[successes, 0, 0]], maxlen=SLICES)  # successes before, failed, slow
        self._streak, self._streak_at = 0, -1

    def roll(self, successes: int, now: float) -> None:
        """Let the slices that are over end."""
        if now < self._edge:
            return
        passed = int((now - self._edge) / self._step) + 1
        for _ in range(min(passed, SLICES)):
            self._slices.append([successes, 0, 0])
        self._edge += passed * self._step

    def failure(self, successes: int) -> None:
        """A call failed after so many successes."""
        self._streak = self._streak + 1 if self._streak_at == successes else 1
        self._streak_at = successes
        self._slices[-1][1] += 1

    def slow(self, successes: int) -> None:
        """The call that was recorded last was slow."""
        self._slices[-1][2] += 1

    def streak(self, successes: int) -> int:
        """How many calls in a row failed, up to now."""
        return self._streak if self._streak_at == successes else 0

    def calls(self, size: int, successes: int) -> int:
        """How many calls the window holds."""
        return successes - self._slices[0][0] + sum(part[1] for part in self._slices)

    def failed(self, size: int, successes: int) -> int:
        """How many of them failed."""
        return sum(part[1] for part in self._slices)

    def slow_calls(self, size: int, successes: int) -> int:
        """How many of them were slow."""
        return sum(part[2] for part in self._slices)

    def ages(self, size: int, successes: int) -> tuple[list[int], list[int]]:
        """Times of another process mean nothing here: a time window is not saved."""
        return [], []

    def recall(self, successes: int, failed: list[int], slow: list[int], streak: int) -> None:
        """Take over how many calls in a row failed, which is not a matter of time."""
        self._streak, self._streak_at = streak, successes
