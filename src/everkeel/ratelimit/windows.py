"""Windows: so many per stretch of time. They differ in what they promise and in what they remember per key."""

from __future__ import annotations

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
        most, per = self.rate.permits, self.rate.per
        window, passed = divmod(now, per)
        count = state.granted if state is not None and state.window == window else 0
        after = count + permits
        if after > most:
            return state, Decision(False, per - passed, max(0, most - count), per - passed if count else 0)
        return Counted(window, after), Decision(True, 0, most - after, per - passed if after else 0)

    def used(self, state: Counted | None, now: int) -> int:
        return state.granted if state is not None and state.window == now // self.rate.per else 0

    def charged(self, now: int, permits: int) -> Counted:
        return Counted(now // self.rate.per, permits)

    def replenished(self, now: int) -> int:
        return (now // self.rate.per + 1) * self.rate.per


class SlidingCounter(Algorithm):
    """`permits` per `per`, estimated from this window and the share of the last one that still counts; three numbers.

    Promise: at most `permits` in every aligned window [k * per, (k + 1) * per), and in any stretch of `per` at most
    `permits` if the calls of the window before came evenly; less than twice that at the very worst.
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
        counted = -(-before * (per - passed) // per)  # rounded up, and exact where it matters: the rest is whole
        if counted + count + permits <= most:
            count += permits
            left = most - count - counted
            return Counted(window, count, before), Decision(True, 0, left, self._reset(count, before, passed))
        wait = self._first_fit(count, before, passed, permits)
        return state, Decision(False, wait, max(0, most - count - counted), self._reset(count, before, passed))

    def _reset(self, count: int, before: int, passed: int) -> int:
        per = self.rate.per
        return 2 * per - passed if count else per - passed if before else 0

    def _first_fit(self, count: int, before: int, passed: int, permits: int) -> int:
        """Nanoseconds until the estimate leaves room, in this window or in the next."""
        per, most = self.rate.per, self.rate.permits
        if before and count + permits <= most:
            # The first passed' with before * (per - passed') <= (most - count - permits) * per
            needed = per - (most - count - permits) * per // before
            if needed < per:
                return needed - passed
        # In the next window what was counted in this one counts by its share.
        needed = max(0, per - (most - permits) * per // count) if count else 0
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
        return Counted(window, max(0, count + permits), max(0, before + min(0, count + permits)))

    def adopt(self, earlier: Algorithm, state: Counted | None, now: int) -> Counted | None:
        if type(earlier) is type(self) and earlier.rate.per == self.rate.per:
            return state
        return super().adopt(earlier, state, now)  # type: ignore[no-any-return]


class Log(NamedTuple):
    """When permits were granted, and how many: `grants[start:end]`, whose sum is `used`.

    The list is shared by a state and those that follow from it, and is only ever appended to: what one state sees of it
    never changes, and to grant costs the same however long it is.
    """

    grants: list[tuple[int, int]]
    start: int
    end: int
    used: int

    def plus(self, now: int, permits: int) -> Log:
        """With one more grant."""
        grants, start, end, used = self
        if end != len(grants) or 2 * start > end + 16:  # another state went on from here, or most of it is past
            grants, start, end = grants[start:end], 0, end - start
        grants.append((now, permits))
        return Log(grants, start, end + 1, used + permits)

    def since(self, moment: int) -> Log:
        """Without what was granted at or before `moment`."""
        grants, start, end, used = self
        while start < end and grants[start][0] <= moment:
            used -= grants[start][1]
            start += 1
        return self if start == self.start else Log(grants, start, end, used)


class SlidingLog(Algorithm):
    """`permits` in any stretch of `per`, exactly. Remembers every grant of the last `per`: for small limits.

    Promise: at most `permits` in any half-open stretch of `per`, wherever it begins.
    """

    __slots__ = ()
    name = "sliding_window_log"

    @property
    def capacity(self) -> int:
        return self.rate.permits

    def _in_sight(self, state: Log | None, now: int) -> Log:
        return Log([], 0, 0, 0) if state is None else state.since(now - self.rate.per)

    def acquire(self, state: Log | None, now: int, permits: int) -> tuple[Log, Decision]:
        log, most, per = self._in_sight(state, now), self.rate.permits, self.rate.per
        over = log.used + permits - most
        if over <= 0:
            after = log.plus(now, permits) if permits else log
            return after, Decision(True, 0, -over, self._reset(after, now))
        at, position = now, log.start
        while over > 0 and position < log.end:  # the oldest ones that must be out of sight first
            at, granted = log.grants[position]
            over -= granted
            position += 1
        return log, Decision(False, at + per - now, max(0, most - log.used), self._reset(log, now))

    def _reset(self, log: Log, now: int) -> int:
        return log.grants[log.end - 1][0] + self.rate.per - now if log.start < log.end else 0

    def used(self, state: Log | None, now: int) -> int:
        return self._in_sight(state, now).used

    def charged(self, now: int, permits: int) -> Log:
        return Log([(now, permits)], 0, 1, permits) if permits else Log([], 0, 0, 0)

    def adjust(self, state: Log | None, now: int, permits: int) -> Log:
        log = self._in_sight(state, now)
        if permits >= 0:
            return log.plus(now, permits) if permits else log
        grants = log.grants[log.start : log.end]
        while permits < 0 and grants:  # give back what was taken last
            at, granted = grants.pop()
            if granted + permits > 0:
                grants.append((at, granted + permits))
            permits += granted
        return Log(grants, 0, len(grants), sum(granted for _, granted in grants))

    def adopt(self, earlier: Algorithm, state: Log | None, now: int) -> Log | None:
        if isinstance(earlier, SlidingLog):
            return earlier._in_sight(state, now)
        return super().adopt(earlier, state, now)  # type: ignore[no-any-return]

    def eases(self, earlier: Algorithm) -> bool:
        mine, theirs = self.rate, earlier.rate
        return type(self) is type(earlier) and mine.per <= theirs.per and mine.permits >= theirs.permits
