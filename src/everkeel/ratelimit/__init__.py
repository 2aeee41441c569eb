"""Rate limiting: so many per time.

- `algorithm`: what an algorithm is, for those who add their own
- `buckets`, `windows`: the algorithms, and `pause`: closing one for a while; pure, in integer nanoseconds
- `single`, `ledger`: what is charged, to one or to many keys in bounded memory
- `gate`: the quick way in, for woven functions; `door`: the way in, and `line`: who waits before it
- `refusal`, `pressure`: turning callers away, and how hard-pressed the protected service is
- `state`, `shadow`: the limiter at work, or only watching
- `policy`: what the user holds; `chain`: several limiters that take all or nothing
"""

from everkeel.ratelimit.algorithm import Algorithm, Decision, Rate
from everkeel.ratelimit.buckets import LeakyBucket, TokenBucket, WarmingBucket
from everkeel.ratelimit.chain import RateLimitChain, Reservation, rate_limit_chain
from everkeel.ratelimit.policy import RateLimit, rate_limit
from everkeel.ratelimit.pressure import Backpressure
from everkeel.ratelimit.windows import FixedWindow, SlidingCounter, SlidingLog

__all__ = [
    "Algorithm",
    "Backpressure",
    "Decision",
    "FixedWindow",
    "LeakyBucket",
    "Rate",
    "RateLimit",
    "RateLimitChain",
    "Reservation",
    "SlidingCounter",
    "SlidingLog",
    "TokenBucket",
    "WarmingBucket",
    "rate_limit",
    "rate_limit_chain",
]
