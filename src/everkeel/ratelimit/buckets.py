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
        full_at = max(here, state or 0)
        then = full_at + permits * self.interval
        over = then - here - self.room
        if over > 0:
            left = (self.room - (full_at - here)) // self.interval
            return state, Decision(False, self._up(over), max(0, left), self._up(full_at - here))
        return then, Decision(True, 0, (self.room - (then - here)) // self.interval, self._up(then - here))

    def adjust(self, state: int | None, now: int, permits: int) -> int:
        return max(now * self.scale, max(now * self.scale, state or 0) + permits * self.interval)

    def used(self, state: int | None, now: int) -> int:
        return -(-max(0, (state or 0) - now * self.scale) // self.interval)

    def charged(self, now: int, permits: int) -> int:
        return now * self.scale + permits * self.interval

    def idle(self, state: int | None, now: int) -> bool:
        return (state or 0) <= now * self.scale

    def _up(self, length: int) -> int:
        return -(-length // self.scale)


class LeakyBucket(TokenBucket):
    """Smooth: one permit at a time, evenly spaced. With a queue, a burst is spread out instead of being let through.

    Promise: two permits are never granted closer together than `per / permits` (with the default `burst` of 1).
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

    def __init__(self, rate: Rate, warm_up: int, factor: int = 3) -> None:
        super().__init__(rate)
        self._bucket = TokenBucket(rate)
        self.warm_up, self.factor = warm_up, factor

    @property
    def capacity(self) -> int:
        return self.rate.burst // self.factor or 1

    def acquire(self, state: Warmth | None, now: int, permits: int) -> tuple[Warmth | None, Decision]:
        bucket, here = self._bucket, now * self._bucket.scale
        began = now if state is None or now >= state.last + self.warm_up else state.began
        full_at = here if state is None else max(here, state.full_at)
        ahead = full_at - here
        after = ahead + self._price(permits, now - began)
        if after > bucket.room:
            left = (bucket.room - ahead) // bucket.interval
            retry_after = self._first_fit(state, now, permits) - now
            return state, Decision(False, retry_after, max(0, left), -(-ahead // bucket.scale))
        decision = Decision(True, 0, (bucket.room - after) // bucket.interval, -(-after // bucket.scale))
        return Warmth(here + after, began, now), decision

    def _price(self, permits: int, age: int) -> int:
        """What `permits` cost after so long a time of warming up, rounded up."""
        cold = max(0, self.warm_up - age)
        plain = permits * self._bucket.interval
        return plain + -(-plain * (self.factor - 1) * cold // self.warm_up)

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
                level = max(0, full_at - middle * bucket.scale)
                if level + self._price(permits, middle - state.began) <= bucket.room:
                    high = middle
                else:
                    low = middle + 1
            if low < cold_at:
                return low
        # Cold, the price stays what it is and only the bucket fills.
        return max(cold_at, now, -(-(full_at + self._price(permits, 0) - bucket.room) // bucket.scale))

    def adjust(self, state: Warmth | None, now: int, permits: int) -> Warmth:
        full_at = self._bucket.adjust(None if state is None else state.full_at, now, permits)
        return Warmth(full_at, now if state is None else state.began, now if state is None else state.last)

    def used(self, state: Warmth | None, now: int) -> int:
        return 0 if state is None else self._bucket.used(state.full_at, now)

    def charged(self, now: int, permits: int) -> Warmth:
        return Warmth(self._bucket.charged(now, permits), now, now)

    def idle(self, state: Warmth | None, now: int) -> bool:
        return state is None or (now - state.last >= self.warm_up and self._bucket.idle(state.full_at, now))
