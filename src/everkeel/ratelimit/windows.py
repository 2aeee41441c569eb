"""Windows: so many per stretch of time. They differ in what they promise and in what they remember per key."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from everkeel.ratelimit.algorithm import Algorithm, Decision


class Counted(NamedTuple):
    """Which window, and how many permits were granted in it (and in the one before)."""

    window: int
    granted: int
    before: int = 0


class FixedWindow(Algorithm):
    """`permits` in each aligned window of `per`; cheap, and two numbers per key.

    Promise: at most `permits` in every window [k * per, (k + 1) * per). The known edge effect: up to twice that in a
    stretch of `per` that lies across an edge.
    """

    __slots__ = ()
    name = "fixed_window"

    @property
    def capacity(self) -> int:
        return self.rate.permits

    def acquire(self, state: Counted | None, now: int, permits: int) -> tuple[Counted | None, Decision]:
        window, passed = divmod(now, self.rate.per)
        count = state.granted if state is not None and state.window == window else 0
        left = self.rate.per - passed
        if count + permits > self.rate.permits:
            return state, Decision(False, left, max(0, self.rate.permits - count), left)
        return Counted(window, count + permits), Decision(True, 0, self.rate.permits - count - permits, left)

    def used(self, state: Counted | None, now: int) -> int:
        return state.granted if state is not None and state.window == now // self.rate.per else 0

    def charged(self, now: int, permits: int) -> Counted:
        return Counted(now // self.rate.per, permits)


class SlidingCounter(Algorithm):
    """`permits` per `per`, estimated from this window and the share of the last one that still counts; three numbers.

    Promise: at most `permits` in every aligned window, and in any stretch of `per` at most `permits` if the calls of
    the window before came evenly; twice that at the very worst.
    """

    __slots__ = ()
    name = "sliding_window_counter"

    @property
    def capacity(self) -> int:
        return self.rate.permits

    def _roll(self, state: Counted | None, window: int) -> tuple[int, int]:
        """Permits granted in this window and in the one before."""
        if state is None or state.window < window - 1:
            return 0, 0
        return (state.granted, state.before) if state.window == window else (0, state.granted)

    def acquire(self, state: Counted | None, now: int, permits: int) -> tuple[Counted | None, Decision]:
        per, most = self.rate.per, self.rate.permits
        window, passed = divmod(now, per)
        count, before = self._roll(state, window)
        # before * (per - passed) / per + count + permits <= most, without a division
        if before * (per - passed) + (count + permits) * per <= most * per:
            left = most - count - permits - -(-before * (per - passed) // per)
            reset = per - passed if not count + permits else 2 * per - passed
            return Counted(window, count + permits, before), Decision(True, 0, max(0, left), reset)
        retry_after = self._first_fit(count, before, passed, permits)
        left = most - count - -(-before * (per - passed) // per)
        return state, Decision(False, retry_after, max(0, left), 2 * per - passed if count else per - passed)

    def _first_fit(self, count: int, before: int, passed: int, permits: int) -> int:
        """Nanoseconds until the estimate leaves room, in this window or in the next."""
        per, most = self.rate.per, self.rate.permits
        if before and count + permits <= most:
            # The first passed' with before * (per - passed') <= (most - count - permits) * per
            needed = per - (most - count - permits) * per // before
            if needed <= per - 1:
                return max(0, needed - passed)
        # In the next window what was counted in this one counts by its share.
        needed = 0 if not count else max(0, per - (most - permits) * per // count)
        return per - passed + needed

    def used(self, state: Counted | None, now: int) -> int:
        window, passed = divmod(now, self.rate.per)
        count, before = self._roll(state, window)
        return count + -(-before * (self.rate.per - passed) // self.rate.per)

    def charged(self, now: int, permits: int) -> Counted:
        return Counted(now // self.rate.per, permits)

    def adjust(self, state: Counted | None, now: int, permits: int) -> Counted:
        window = now // self.rate.per
        count, before = self._roll(state, window)
        return Counted(window, max(0, count + permits), before)


class SlidingLog(Algorithm):
    """`permits` in any stretch of `per`, exactly. Remembers every grant of the last `per`: for small limits.

    Promise: at most `permits` in any half-open stretch of `per`, wherever it begins.
    """

    __slots__ = ()
    name = "sliding_window_log"

    @property
    def capacity(self) -> int:
        return self.rate.permits

    def _forget(self, log: deque[tuple[int, int]], now: int) -> int:
        """Drop what is out of sight; answers the permits that are left in sight."""
        while log and log[0][0] <= now - self.rate.per:
            log.popleft()
        return sum(permits for _, permits in log)

    def acquire(
        self, state: deque[tuple[int, int]] | None, now: int, permits: int
    ) -> tuple[deque[tuple[int, int]], Decision]:
        log = deque[tuple[int, int]]() if state is None else state
        used, most, per = self._forget(log, now), self.rate.permits, self.rate.per
        if used + permits <= most:
            log.append((now, permits))
            return log, Decision(True, 0, most - used - permits, per)
        over, retry_after = used + permits - most, per
        for at, granted in log:
            over -= granted
            if over <= 0:
                retry_after = at + per - now
                break
        reset = log[-1][0] + per - now if log else 0
        return log, Decision(False, retry_after, max(0, most - used), reset)

    def used(self, state: deque[tuple[int, int]] | None, now: int) -> int:
        return 0 if state is None else self._forget(state, now)

    def charged(self, now: int, permits: int) -> deque[tuple[int, int]]:
        return deque([(now, permits)] if permits else [])

    def adjust(self, state: deque[tuple[int, int]] | None, now: int, permits: int) -> deque[tuple[int, int]]:
        log = deque[tuple[int, int]]() if state is None else state
        self._forget(log, now)
        if permits > 0:
            log.append((now, permits))
        while permits < 0 and log:  # give back what was taken last
            at, granted = log.pop()
            if granted + permits > 0:
                log.append((at, granted + permits))
            permits += granted
        return log
