"""Buckets, as one number per key: the moment at which the bucket would be full again (GCRA's theoretical arrival time).

A token bucket that refills continuously and the generic cell rate algorithm are the same machine. Kept as a moment it
needs no refill, no second field and no float: `permits` cost `permits * interval`, and fit while the moment is not
further away than `burst * interval`. Moments are counted in 1/scale nanoseconds so that the interval is whole.
"""

from __future__ import annotations

from typing import NamedTuple

from everkeel.ratelimit.algorithm import Algorithm, Decision, Rate


class TokenBucket(Algorithm):
    """Bursts up to `burst`, and `permits` per `per` in the long run.

    Promise: over any stretch of time t no more than `burst + permits * t / per` permits are granted.
    """

    __slots__ = ("interval", "room", "scale")
    name = "token_bucket"

    def __init__(self, rate: Rate) -> None:
        super().__init__(rate)
        self.scale = rate.scale
        self.interval = rate.per * self.scale // rate.permits  # between two permits, in 1/scale nanoseconds
        self.room = rate.burst * self.interval

    def acquire(self, state: int | None, now: int, permits: int) -> tuple[int | None, Decision]:
        here = now * self.scale
        level = 0 if state is None or state < here else state - here
        after = level + permits * self.interval
        if after > self.room:
            left = (self.room - level) // self.interval
            return state, Decision(False, self._up(after - self.room), max(0, left), self._up(level))
        return here + after, Decision(True, 0, (self.room - after) // self.interval, self._up(after))

    def adjust(self, state: int | None, now: int, permits: int) -> int:
        here = now * self.scale
        return max(here, (here if state is None else max(here, state)) + permits * self.interval)

    def used(self, state: int | None, now: int) -> int:
        return -(-self._level(state, now) // self.interval)

    def charged(self, now: int, permits: int) -> int:
        return now * self.scale + permits * self.interval

    def idle(self, state: int | None, now: int) -> bool:
        return not self._level(state, now)

    def empty_until(self, state: int | None, now: int, until: int) -> int:
        """A state that has its next permit at `until`, if not later."""
        here = now * self.scale
        return max(here + self._level(state, now), until * self.scale + self.room - self.interval)

    def adopt(self, earlier: Algorithm, state: int | None, now: int) -> int:
        if not isinstance(earlier, TokenBucket):
            return super().adopt(earlier, state, now)  # type: ignore[no-any-return]
        # A part of a permit stays that part of one: rounded up to a whole one, it would make a lie of a `retry_after`.
        return now * self.scale - (-earlier._level(state, now) * self.interval // earlier.interval)

    def eases(self, earlier: Algorithm) -> bool:
        mine, theirs = self.rate, earlier.rate
        as_fast = mine.permits * theirs.per >= theirs.permits * mine.per
        return type(self) is type(earlier) and as_fast and mine.burst >= theirs.burst

    def _level(self, state: int | None, now: int) -> int:
        return 0 if state is None else max(0, state - now * self.scale)

    def _up(self, length: int) -> int:
        return -(-length // self.scale)


class LeakyBucket(TokenBucket):
    """Smooth: one permit at a time, evenly spaced. With a queue, a burst is spread out instead of being let through.

    Promise: two permits are never granted closer together than `per / permits` (with the default `burst` of 1; with a
    larger one, what the token bucket promises).
    """

    __slots__ = ()
    name = "leaky_bucket"


class Warmth(NamedTuple):
    """The state of a bucket that must warm up."""

    full_at: int
    began: int
    """When it began to warm up, in nanoseconds."""
    last: int
    """When it was last used, in nanoseconds."""


class WarmingBucket(Algorithm):
    """A token bucket that is cold after being idle: permits cost `factor` times as much at first, and normal when warm.

    For what needs time to get going: caches, connection pools, compilers. Promise: that of the token bucket, and after
    having been idle for `warm_up`, a rate that begins at a `factor`-th and grows to the full one over `warm_up`.
    """

    __slots__ = ("_bucket", "factor", "warm_up")
    name = "token_bucket"

    def __init__(self, rate: Rate, warm_up: int, factor: int) -> None:
        super().__init__(rate)
        self._bucket = TokenBucket(rate)
        self.warm_up, self.factor = warm_up, factor

    @property
    def capacity(self) -> int:
        return self.rate.burst // self.factor  # a cold bucket must be able to grant it too

    def acquire(self, state: Warmth | None, now: int, permits: int) -> tuple[Warmth | None, Decision]:
        bucket = self._bucket
        began = now if state is None or now >= state.last + self.warm_up else state.began
        level = 0 if state is None else bucket._level(state.full_at, now)
        after = level + self._price(permits, now - began)
        if after > bucket.room:
            retry_after = self._first_fit(state, now, permits) - now
            return state, Decision(False, retry_after, self._left(level, now - began), bucket._up(level))
        decision = Decision(True, 0, self._left(after, now - began), bucket._up(after))
        return Warmth(now * bucket.scale + after, began, now) if permits else state, decision

    def _cold(self, age: int) -> int:
        return max(0, self.warm_up - age)

    def _price(self, permits: int, age: int) -> int:
        """What `permits` cost after so long a time of warming up, rounded up."""
        plain = permits * self._bucket.interval
        return plain + -(-plain * (self.factor - 1) * self._cold(age) // self.warm_up)

    def _left(self, level: int, age: int) -> int:
        """How many permits the rest of the bucket buys."""
        dearer = self.warm_up + (self.factor - 1) * self._cold(age)
        return max(0, self._bucket.room - level) * self.warm_up // (self._bucket.interval * dearer)

    def _first_fit(self, state: Warmth | None, now: int, permits: int) -> int:
        """The first moment at which the same request would pass, if nobody else takes anything."""
        bucket = self._bucket
        full_at = 0 if state is None else state.full_at
        cold_at = now if state is None else state.last + self.warm_up
        if state is not None and now < cold_at:
            # Until it is cold again the price falls and the bucket fills: what fits at a moment fits at the next.
            low, high = now, cold_at
            while low < high:
                middle = (low + high) // 2
                if bucket._level(full_at, middle) + self._price(permits, middle - state.began) <= bucket.room:
                    high = middle
                else:
                    low = middle + 1
            if low < cold_at:
                return low
        # Cold, the price stays what it is and only the bucket fills.
        return max(cold_at, now, bucket._up(full_at + self._price(permits, 0) - bucket.room))

    def adjust(self, state: Warmth | None, now: int, permits: int) -> Warmth:
        began, last = (now, now) if state is None else (state.began, state.last)
        return Warmth(self._bucket.adjust(None if state is None else state.full_at, now, permits), began, last)

    def used(self, state: Warmth | None, now: int) -> int:
        return 0 if state is None else self._bucket.used(state.full_at, now)

    def charged(self, now: int, permits: int) -> Warmth:
        return Warmth(self._bucket.charged(now, permits), now, now)

    def idle(self, state: Warmth | None, now: int) -> bool:
        return state is None or (now - state.last >= self.warm_up and self._bucket.idle(state.full_at, now))

    def adopt(self, earlier: Algorithm, state: Warmth | None, now: int) -> Warmth:
        if not isinstance(earlier, WarmingBucket) or state is None:
            return super().adopt(earlier, state, now)  # type: ignore[no-any-return]
        mine, theirs = self._bucket, earlier._bucket
        full_at = mine.adopt(theirs, state.full_at, now)
        # It was rounded up, by less than a nanosecond, and so is a price: both would make a lie of a `retry_after` that
        # fitted exactly. Rounded down it must still be as many permits.
        down = now * mine.scale + theirs._level(state.full_at, now) * mine.interval // theirs.interval
        if mine.used(down, now) == mine.used(full_at, now):
            full_at = down
        return Warmth(full_at, state.began, state.last)

    def eases(self, earlier: Algorithm) -> bool:
        return (
            isinstance(earlier, WarmingBucket)
            and (self.warm_up, self.factor) == (earlier.warm_up, earlier.factor)
            and self._bucket.eases(earlier._bucket)
        )
