"""What rate limits make of a function's type, and what their own methods answer. Read by type checkers, never run."""

from __future__ import annotations

from datetime import timedelta
from typing import assert_type

from everkeel import RateLimit, RateLimitChain, RateLimitedError, Reservation, rate_limit, rate_limit_chain
from everkeel.ratelimit import Algorithm, Decision, Rate, TokenBucket

# ------------------------------------------------------------------ the type stays


def user_of(user: str, *args: object) -> str:
    return user


@rate_limit(10, "typed", per=timedelta(minutes=1), key=user_of, limits={"gold": 100, "silver": (20, 1.0)})
def search(user: str, *words: str) -> list[str]:
    return list(words)


@rate_limit_chain(rate_limit(10), rate_limit(5, key=user_of))
async def post(user: str) -> int:
    return 1


assert_type(search("ann", "tea"), list[str])


async def main() -> None:
    assert_type(await post("ann"), int)
    assert_type(await limiter.acall(post, "ann"), int)
    assert_type(await model.areserve(tokens=5), Reservation)


# ------------------------------------------------------------------ by hand


def cost_of(user: str, *args: object) -> int:
    return len(user)


limiter = rate_limit(10, cost=cost_of, queue=5, algorithm=TokenBucket)
assert_type(limiter, RateLimit)
assert_type(limiter.call(search, "ann", "tea"), list[str])
assert_type(limiter.try_acquire(cost=2, key="ann"), bool)
assert_type(limiter.remaining(), int)
assert_type(limiter.snapshot()["available"], int | None)

model = rate_limit_chain(requests=rate_limit(60), tokens=rate_limit(1000))
assert_type(model, RateLimitChain)
with model.reserve(tokens=500) as reservation:
    assert_type(reservation, Reservation)
    reservation.settle(tokens=300)


def turned_away(error: RateLimitedError) -> None:
    assert_type(error.retry_after, float | None)
    assert_type(error.limit, int | None)
    assert_type(error.backpressure, float | None)


rate_limit(5, on_rejected=turned_away)

# ------------------------------------------------------------------ an algorithm of one's own


class Never(Algorithm):
    def acquire(self, state: None, now: int, permits: int) -> tuple[None, Decision]:
        return None, Decision(False, 1, 0, 0)


rate_limit(5, algorithm=Never)
rate_limit(5, algorithm=lambda rate: Never(rate._replace(burst=1)))
assert_type(Never(Rate(1, 1, 1)).capacity, int)
