"""Memory per breaker and per limiter key of the peers, and their import statements."""

from __future__ import annotations

from datetime import timedelta

from baselines import HOUR, MANY
from footprint import IMPORTS, memory

BREAKER, LIMITER = "breaker", "rate-limiter key"


@memory(BREAKER, "pybreaker")
def _():
    import pybreaker

    return lambda key: pybreaker.CircuitBreaker(fail_max=5, reset_timeout=HOUR)


@memory(BREAKER, "aiobreaker")
def _():
    import aiobreaker

    return lambda key: aiobreaker.CircuitBreaker(5, timedelta(hours=1))


@memory(BREAKER, "circuitbreaker")
def _():
    import circuitbreaker

    return lambda key: circuitbreaker.CircuitBreaker(5, HOUR)


@memory(BREAKER, "purgatory (keyed)")
def _():
    import purgatory

    factory = purgatory.SyncCircuitBreakerFactory(5, HOUR)

    def touch(key):
        factory.get_breaker(key)

    return touch


@memory(BREAKER, "fluxgate (empty window)")
def _():
    import fluxgate

    return lambda key: fluxgate.CircuitBreaker()


@memory(BREAKER, "pyresilience")
def _():
    import pyresilience

    config = pyresilience.CircuitBreakerConfig(5)
    from pyresilience._circuit_breaker import CircuitBreaker

    return lambda key: CircuitBreaker(config)


@memory(BREAKER, "hyx")
def _():
    from hyx.circuitbreaker import consecutive_breaker

    return lambda key: consecutive_breaker(Exception, 5, HOUR)


@memory(BREAKER, "aioresilience")
def _():
    import aioresilience

    return lambda key: aioresilience.CircuitBreaker(key)


@memory(BREAKER, "redress")
def _():
    import redress

    return lambda key: redress.CircuitBreaker()


@memory(BREAKER, "grelmicro")
def _():
    from grelmicro.resilience import CircuitBreaker

    return lambda key: CircuitBreaker(key)


def _limits_memory(strategy):
    def factory():
        import limits

        item, s = limits.parse(f"{MANY}/hour"), getattr(limits.strategies, strategy)(limits.storage.MemoryStorage())

        def touch(key):
            s.hit(item, key)

        return touch

    return factory


memory(LIMITER, "limits FixedWindow")(_limits_memory("FixedWindowRateLimiter"))
memory(LIMITER, "limits SlidingWindowCounter")(_limits_memory("SlidingWindowCounterRateLimiter"))


@memory(LIMITER, "throttled-py token bucket")
def _():
    from throttled import MemoryStore, Throttled, rate_limiter

    t = Throttled(quota=rate_limiter.per_hour(1000), store=MemoryStore(options={"MAX_SIZE": 10**6}))

    def touch(key):
        t.limit(key)

    return touch


@memory(LIMITER, "token_bucket")
def _():
    import token_bucket

    limiter = token_bucket.Limiter(10, 1000, token_bucket.MemoryStorage())

    def touch(key):
        limiter.consume(key)

    return touch


@memory(LIMITER, "aiolimiter (an object per key)")
def _():
    from aiolimiter import AsyncLimiter

    async def touch(key):
        limiter = AsyncLimiter(1000, HOUR)
        await limiter.acquire()
        return limiter

    return touch


@memory(LIMITER, "pyresilience (an object per key)")
def _():
    import pyresilience

    config = pyresilience.RateLimiterConfig(1000, HOUR)
    from pyresilience._rate_limiter import RateLimiter

    def touch(key):
        limiter = RateLimiter(config)
        limiter.acquire()
        return limiter

    return touch


@memory(LIMITER, "aioresilience")
def _():
    import aioresilience

    limiter = aioresilience.RateLimiter(aioresilience.RateLimitConfig(max_limiters=10**6))

    async def touch(key):
        await limiter.check_rate_limit(key, "1000/hour")

    return touch


@memory(LIMITER, "grelmicro token bucket")
def _():
    from grelmicro.resilience import RateLimiter
    from grelmicro.resilience.memory import MemoryRateLimiterBackend

    limiter = RateLimiter.token_bucket("bench", capacity=1000, refill_rate=1e-6, backend=MemoryRateLimiterBackend())

    async def touch(key):
        await limiter.acquire(key=key)

    return touch


# ------------------------------------------------------------------ import time

_NAMED_ALIKE = """\
aiobreaker aiocache aiolimiter aioresilience anyio async-timeout backoff bulkman cachebox cachetools cashews
circuitbreaker fluxgate func_timeout limits opnieuw purgatory pybreaker pyrate-limiter pyresilience ratelimit redress
resilient-circuit retrying stamina tenacity token_bucket"""
IMPORTS.update({name: f"import {name.replace('-', '_')}" for name in _NAMED_ALIKE.split()})
IMPORTS["grelmicro"] = "import grelmicro.resilience"
IMPORTS["hyx"] = "import hyx.retry, hyx.circuitbreaker, hyx.timeout, hyx.bulkhead, hyx.fallback, hyx.ratelimit"
IMPORTS["pyfailsafe"] = "import failsafe"
IMPORTS["retry2"] = "import retry"
IMPORTS["throttled-py"] = "import throttled"
