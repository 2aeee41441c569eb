"""Cases for libraries from PyPI, imported inside the factories: one that is not installed is skipped.

The defaults of each library are kept, its logging calls included.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from asyncio import iscoroutinefunction
from datetime import timedelta
from fractions import Fraction

from baselines import HOUR, MANY, around, before, rotating
from harness import case

# ------------------------------------------------------------------ retry


def _tenacity(fn, wait=None):
    from tenacity import retry, stop_after_attempt, wait_exponential

    return retry(stop=stop_after_attempt(3), wait=wait or wait_exponential(0.1), reraise=True)(fn)


@case("retry_fail", "tenacity")
def _(fn):
    from tenacity import wait_none

    return _tenacity(fn, wait_none())


case("retry", "tenacity")(_tenacity)


def _stamina(fn, **waits):
    import stamina

    return stamina.retry(on=Exception, attempts=3, **waits)(fn)


case("retry", "stamina")(_stamina)
case("retry_fail", "stamina")(lambda fn: _stamina(fn, wait_initial=0, wait_max=0, wait_jitter=0))


@case("retry", "backoff")
def _backoff(fn):
    import backoff

    return backoff.on_exception(backoff.expo, Exception, max_tries=3)(fn)


@case("retry_fail", "backoff")
def _(fn):
    import backoff

    return backoff.on_exception(backoff.constant, Exception, max_tries=3, interval=0, jitter=None)(fn)


@case("retry", "retrying", "sync")
def _(fn):
    from retrying import retry

    return retry(stop_max_attempt_number=3, wait_exponential_multiplier=100)(fn)


@case("retry_fail", "retrying", "sync")
def _(fn):
    from retrying import retry

    return retry(stop_max_attempt_number=3)(fn)


@case("retry", "retry2", "sync")
def _(fn):
    from retry import retry

    return retry(tries=3, delay=0.1, backoff=2)(fn)


@case("retry_fail", "retry2", "sync")
def _(fn):
    from retry import retry

    return retry(tries=3, delay=0)(fn)


@case("retry", "opnieuw")
def _(fn):
    import opnieuw

    return opnieuw.retry(retry_on_exceptions=Exception, max_calls_total=3)(fn)


# ------------------------------------------------------------------ circuit breakers


def _pybreaker():
    import pybreaker

    return pybreaker.CircuitBreaker(fail_max=5, reset_timeout=HOUR)


case("breaker", "pybreaker", "sync")(lambda fn: _pybreaker()(fn))
case("open", "pybreaker", "sync")(lambda fn: _pybreaker()(fn))


@case("open", "aiobreaker")
@case("breaker", "aiobreaker")
def _aiobreaker(fn):
    import aiobreaker

    return aiobreaker.CircuitBreaker(fail_max=5, timeout_duration=timedelta(hours=1))(fn)


@case("open", "circuitbreaker")
@case("breaker", "circuitbreaker")
def _circuitbreaker(fn):
    import circuitbreaker

    return circuitbreaker.CircuitBreaker(5, HOUR)(fn)


@case("open", "purgatory")
@case("breaker", "purgatory")
def _purgatory(fn):
    import purgatory

    factory = purgatory.AsyncCircuitBreakerFactory if iscoroutinefunction(fn) else purgatory.SyncCircuitBreakerFactory
    return factory(5, HOUR)("circuit")(fn)


@case("open", "fluxgate (count window 100; not thread-safe)")
@case("breaker", "fluxgate (count window 100; not thread-safe)")
def _(fn):
    from fluxgate import AsyncCircuitBreaker, CircuitBreaker
    from fluxgate.retries import Cooldown
    from fluxgate.trippers import FailureRate, MinRequests

    cls = AsyncCircuitBreaker if iscoroutinefunction(fn) else CircuitBreaker
    return cls(tripper=MinRequests(5) & FailureRate(0.5), retry=Cooldown(HOUR))(fn)


def _pyfailsafe(fn, retries=0, breaker=False, delay=0.1):
    from failsafe import Backoff, CircuitBreaker, Failsafe, RetryPolicy

    policy = RetryPolicy(retries, backoff=Backoff(timedelta(seconds=delay), timedelta(seconds=5)))
    fs = Failsafe(policy, CircuitBreaker(5, HOUR) if breaker else None)

    @functools.wraps(fn)
    async def wrapper(*args, **kwargs):
        return await fs.run(fn, *args, **kwargs)

    return wrapper


case("retry", "pyfailsafe", "async")(lambda fn: _pyfailsafe(fn, 2))
case("retry_fail", "pyfailsafe (no sleep when zero)", "async")(lambda fn: _pyfailsafe(fn, 2, delay=0))
case("breaker", "pyfailsafe", "async")(lambda fn: _pyfailsafe(fn, 0, True))
case("open", "pyfailsafe", "async")(lambda fn: _pyfailsafe(fn, 0, True))
case("stack", "pyfailsafe", "async")(lambda fn: _pyfailsafe(fn, 2, True))


@case("open", "grelmicro", "async")
@case("breaker", "grelmicro", "async")
def _(fn):
    from grelmicro.resilience import CircuitBreaker

    return CircuitBreaker("bench", error_threshold=5, reset_timeout=HOUR)(fn)


def _resilient_circuit():
    from resilient_circuit import CircuitProtectorPolicy
    from resilient_circuit.storage import InMemoryStorage

    return CircuitProtectorPolicy(
        resource_key="bench", storage=InMemoryStorage(), cooldown=timedelta(hours=1), failure_limit=Fraction(4, 5)
    )


case("breaker", "resilient-circuit", "sync")(lambda fn: _resilient_circuit()(fn))
case("open", "resilient-circuit", "sync")(lambda fn: _resilient_circuit()(fn))


# ------------------------------------------------------------------ timeouts


@case("timeout", "async-timeout", "async")
@case("timeout_yield", "async-timeout", "async")
def _(fn):
    import async_timeout

    return around(fn, lambda: async_timeout.timeout(1))


@case("timeout", "anyio fail_after", "async")
@case("timeout_yield", "anyio fail_after", "async")
def _(fn):
    import anyio

    @functools.wraps(fn)
    async def wrapper(*args, **kwargs):
        with anyio.fail_after(1):
            return await fn(*args, **kwargs)

    return wrapper


@case("timeout", "func_timeout (a thread per call)", "sync")
def _(fn):
    from func_timeout import func_set_timeout

    return func_set_timeout(1)(fn)


@case("timeout", "wrapt_timeout_decorator (signals)", "sync")
def _(fn):
    from wrapt_timeout_decorator import timeout

    return timeout(1, use_signals=True)(fn)


@case("timeout", "timeout-decorator (signals)", "sync")
def _(fn):
    from timeout_decorator import timeout

    return timeout(1)(fn)


@case("timeout", "interruptingcow (signals)", "sync")
def _(fn):
    import interruptingcow

    return around(fn, lambda: interruptingcow.timeout(1, RuntimeError))


@case("timeout", "stopit (signals)", "sync")
def _(fn):
    import stopit

    return around(fn, lambda: stopit.SignalTimeout(1))


@case("timeout", "stopit (threads)", "sync")
def _(fn):
    import stopit

    return around(fn, lambda: stopit.ThreadingTimeout(1))


# ------------------------------------------------------------------ bulkheads


@case("bulkhead", "anyio CapacityLimiter", "async")
def _(fn):
    import anyio

    limiter = anyio.CapacityLimiter(10)
    return around(fn, lambda: limiter)


@case("bulkhead", "bulkman (sync: a thread pool)")
def _(fn):
    import bulkman

    config = bulkman.BulkheadConfig("bench", max_concurrent_calls=10)
    if iscoroutinefunction(fn):
        b = bulkman.Bulkhead(config)

        @functools.wraps(fn)
        async def wrapper(*args, **kwargs):
            return (await b.execute(fn, *args, **kwargs)).result
    else:
        b = bulkman.BulkheadThreading(config)

        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            return b.execute(fn, *args, **kwargs).result().result

    return wrapper


# ------------------------------------------------------------------ rate limiters


def hot():
    """The key of a call where there is one for all; a limiter with keys has to ask for it."""
    return "key"


def _limits(fn, strategy, key=hot, permits=MANY):
    import limits

    item = limits.parse(f"{permits}/hour")
    if iscoroutinefunction(fn):
        import limits.aio

        s = getattr(limits.aio.strategies, strategy)(limits.aio.storage.MemoryStorage())
    else:
        s = getattr(limits.strategies, strategy)(limits.storage.MemoryStorage())
    return before(fn, lambda: s.hit(item, key()))


for _category in ("ratelimit", "ratelimit_keyed"):
    case(_category, "limits FixedWindow")(lambda fn: _limits(fn, "FixedWindowRateLimiter"))
    case(_category, "limits SlidingWindowCounter")(lambda fn: _limits(fn, "SlidingWindowCounterRateLimiter"))
case("ratelimit_many", "limits FixedWindow")(lambda fn: _limits(fn, "FixedWindowRateLimiter", rotating()))
case("ratelimit_reject", "limits FixedWindow")(lambda fn: _limits(fn, "FixedWindowRateLimiter", permits=1))


@case("ratelimit", "aiolimiter", "async")
def _(fn):
    from aiolimiter import AsyncLimiter

    limiter = AsyncLimiter(MANY, 1)
    return around(fn, lambda: limiter)


@case("ratelimit", "pyrate-limiter (default: log)")
def _(fn):
    from pyrate_limiter import Duration, Limiter, Rate

    return Limiter(Rate(MANY, Duration.SECOND)).as_decorator()(fn)


@case("ratelimit", "pyrate-limiter GCRA")
def _(fn):
    from pyrate_limiter import GCRA, Duration, Limiter, Rate, StateBucket

    bucket = StateBucket([Rate(MANY, Duration.SECOND)], GCRA())
    return Limiter(bucket).as_decorator()(fn)


def _throttled(fn, using):
    if iscoroutinefunction(fn):
        from throttled.asyncio import MemoryStore, Throttled, rate_limiter
    else:
        from throttled import MemoryStore, Throttled, rate_limiter
    return Throttled(key="key", using=using, quota=rate_limiter.per_sec(MANY, burst=MANY), store=MemoryStore())(fn)


for _category in ("ratelimit", "ratelimit_keyed"):
    case(_category, "throttled-py token bucket")(lambda fn: _throttled(fn, "token_bucket"))
    case(_category, "throttled-py GCRA")(lambda fn: _throttled(fn, "gcra"))


@case("ratelimit_many", "throttled-py GCRA", "sync")
def _(fn):
    from throttled import MemoryStore, Throttled, rate_limiter

    t = Throttled(using="gcra", quota=rate_limiter.per_sec(MANY, burst=MANY), store=MemoryStore())
    key = rotating()
    return before(fn, lambda: not t.limit(key()).limited)


def _token_bucket(fn, key=hot, rate=MANY, capacity=MANY):
    import token_bucket

    limiter = token_bucket.Limiter(rate, capacity, token_bucket.MemoryStorage())
    return before(fn, lambda: limiter.consume(key()))


case("ratelimit", "token_bucket", "sync")(_token_bucket)
case("ratelimit_keyed", "token_bucket", "sync")(_token_bucket)
case("ratelimit_many", "token_bucket", "sync")(lambda fn: _token_bucket(fn, rotating()))
case("ratelimit_reject", "token_bucket", "sync")(lambda fn: _token_bucket(fn, rate=1e-6, capacity=1))


def _pyrate_keyed(fn, key):
    """A bucket for each name takes a factory of one's own."""
    from pyrate_limiter import GCRA, BucketFactory, Duration, Limiter, Rate, RateItem, StateBucket

    class Each(BucketFactory):
        def __init__(self):
            self.buckets = {}

        def wrap_item(self, name, weight=1):
            return RateItem(name, time.monotonic_ns() // 1_000_000, weight=weight)

        def get(self, item):
            bucket = self.buckets.get(item.name)
            if bucket is None:
                bucket = self.buckets[item.name] = StateBucket([Rate(MANY, Duration.SECOND)], GCRA())
            return bucket

    limiter = Limiter(Each())
    return before(fn, lambda: limiter.try_acquire(key()))


case("ratelimit_keyed", "pyrate-limiter GCRA", "sync")(lambda fn: _pyrate_keyed(fn, hot))
case("ratelimit_many", "pyrate-limiter GCRA", "sync")(lambda fn: _pyrate_keyed(fn, rotating()))


@case("ratelimit", "ratelimit", "sync")
def _(fn):
    import ratelimit

    return ratelimit.limits(MANY, 1)(fn)


@case("ratelimit_reject", "ratelimit", "sync")
def _(fn):
    import ratelimit

    return ratelimit.limits(1, HOUR)(fn)


@case("ratelimit", "asyncio-throttle (log)", "async")
def _(fn):
    from asyncio_throttle import Throttler

    t = Throttler(MANY, 0.05)
    return around(fn, lambda: t)


@case("ratelimit", "grelmicro token bucket", "async")
def _(fn):
    from grelmicro.resilience import RateLimiter
    from grelmicro.resilience.memory import MemoryRateLimiterBackend

    limiter = RateLimiter.token_bucket("bench", capacity=MANY, refill_rate=MANY, backend=MemoryRateLimiterBackend())

    @functools.wraps(fn)
    async def wrapper(*args, **kwargs):
        if not (await limiter.acquire(key="key")).allowed:
            raise RuntimeError
        return await fn(*args, **kwargs)

    return wrapper


# ------------------------------------------------------------------ caches


@case("cache", "cachetools TTLCache + lock", "sync")
def _(fn):
    import cachetools

    return cachetools.cached(cachetools.TTLCache(128, HOUR), lock=threading.Lock())(fn)


@case("cache", "cachebox TTLCache (Rust)")
def _(fn):
    import cachebox

    return cachebox.cached(cachebox.TTLCache(128, HOUR))(fn)


@case("cache", "theine")
def _(fn):
    import theine

    return theine.Memoize(128, timedelta(hours=1))(fn)


@case("cache", "async-lru (ttl)", "async")
def _(fn):
    from async_lru import alru_cache

    return alru_cache(128, ttl=HOUR)(fn)


@case("cache", "asyncstdlib lru_cache", "async")
def _(fn):
    import asyncstdlib

    return asyncstdlib.lru_cache(128)(fn)


@case("cache", "aiocache", "async")
def _(fn):
    import aiocache

    return aiocache.cached(ttl=HOUR)(fn)


def _cashews():
    from cashews import Cache

    cache = Cache()
    cache.setup("mem://", check_interval=HOUR)
    return cache


case("cache", "cashews", "async")(lambda fn: _cashews()(ttl=HOUR, key="k:{x}")(fn))
case("ratelimit", "cashews", "async")(lambda fn: _cashews().rate_limit(MANY, HOUR, key="k:{x}")(fn))


# ------------------------------------------------------------------ libraries of many policies: pyresilience


def _pyresilience(fn, *policies, delay=0.1, workers=4):
    import pyresilience as p

    made = {
        "retry": lambda: p.RetryConfig(3, delay=delay),
        "circuit_breaker": lambda: p.CircuitBreakerConfig(5, recovery_timeout=HOUR),
        "timeout": lambda: p.TimeoutConfig(1, pool_size=workers),
        "bulkhead": lambda: p.BulkheadConfig(10),
        "rate_limiter": lambda: p.RateLimiterConfig(MANY, 1),
        "fallback": lambda: p.FallbackConfig(lambda e: None),
        "cache": lambda: p.CacheConfig(128, HOUR),
    }
    return p.resilient(**{name: made[name]() for name in policies})(fn)


for _category, _policy in {
    "retry": "retry",
    "breaker": "circuit_breaker",
    "open": "circuit_breaker",
    "timeout": "timeout",
    "bulkhead": "bulkhead",
    "ratelimit": "rate_limiter",
    "fallback": "fallback",
    "cache": "cache",
}.items():
    case(_category, "pyresilience")(functools.partial(lambda fn, policy: _pyresilience(fn, policy), policy=_policy))
case("timeout_yield", "pyresilience", "async")(lambda fn: _pyresilience(fn, "timeout"))
case("retry_fail", "pyresilience")(lambda fn: _pyresilience(fn, "retry", delay=0))
case("stack", "pyresilience")(lambda fn: _pyresilience(fn, "retry", "circuit_breaker"))
case("stack_full", "pyresilience", "sync")(lambda fn: _pyresilience(fn, "retry", "circuit_breaker", "bulkhead"))
case("stack_full", "pyresilience with timeout")(
    lambda fn: _pyresilience(fn, "retry", "circuit_breaker", "bulkhead", "timeout")
)

# ------------------------------------------------------------------ hyx (async only)


@case("retry", "hyx", "async")
def _hyx_retry(fn, delay=None):
    from hyx.retry import retry
    from hyx.retry.backoffs import expo

    return retry(attempts=3, backoff=expo(min_delay_secs=0.1) if delay is None else delay)(fn)


@case("open", "hyx", "async")
@case("breaker", "hyx", "async")
def _hyx_breaker(fn):
    from hyx.circuitbreaker import consecutive_breaker

    return consecutive_breaker(Exception, 5, HOUR)(fn)


@case("timeout", "hyx", "async")
@case("timeout_yield", "hyx", "async")
def _hyx_timeout(fn):
    from hyx.timeout import timeout

    return timeout(1)(fn)


@case("bulkhead", "hyx", "async")
def _hyx_bulkhead(fn):
    from hyx.bulkhead import bulkhead

    return bulkhead(10, 20)(fn)


@case("ratelimit", "hyx", "async")
def _(fn):
    from hyx.ratelimit import tokenbucket

    return tokenbucket(MANY, 1)(fn)


@case("fallback", "hyx", "async")
def _(fn):
    from hyx.fallback import fallback

    async def handler(*args, **kwargs):
        return None

    return fallback(handler)(fn)


case("retry_fail", "hyx", "async")(lambda fn: _hyx_retry(fn, 0))
case("stack", "hyx", "async")(lambda fn: _hyx_retry(_hyx_breaker(fn)))
case("stack_full", "hyx", "async")(lambda fn: _hyx_retry(_hyx_breaker(_hyx_bulkhead(_hyx_timeout(fn)))))

# ------------------------------------------------------------------ aioresilience (async only)


@case("retry", "aioresilience", "async")
def _aio_retry(fn, delay=0.1):
    import aioresilience

    return aioresilience.retry(max_attempts=3, initial_delay=delay)(fn)


@case("open", "aioresilience", "async")
@case("breaker", "aioresilience", "async")
def _aio_breaker(fn):
    import aioresilience

    return aioresilience.circuit_breaker("bench", 5, HOUR)(fn)


@case("timeout", "aioresilience", "async")
@case("timeout_yield", "aioresilience", "async")
def _aio_timeout(fn):
    import aioresilience

    return aioresilience.timeout(1)(fn)


@case("bulkhead", "aioresilience", "async")
def _aio_bulkhead(fn):
    import aioresilience

    return aioresilience.bulkhead(10)(fn)


@case("ratelimit", "aioresilience", "async")
def _(fn):
    import aioresilience

    limiter = aioresilience.RateLimiter()
    return before(fn, lambda: limiter.check_rate_limit("key", f"{MANY}/second"))


@case("fallback", "aioresilience", "async")
def _(fn):
    import aioresilience

    return aioresilience.fallback(None)(fn)


case("retry_fail", "aioresilience", "async")(lambda fn: _aio_retry(fn, 0))
case("stack", "aioresilience", "async")(lambda fn: _aio_retry(_aio_breaker(fn)))
case("stack_full", "aioresilience", "async")(lambda fn: _aio_retry(_aio_breaker(_aio_bulkhead(_aio_timeout(fn)))))

# ------------------------------------------------------------------ redress (retry + breaker, per-attempt timeout)


def _redress(fn, retry=True, breaker=False, timeout=None, wait=None):
    import redress

    a = iscoroutinefunction(fn)
    kwargs = {}
    if retry:
        kwargs["retry"] = (redress.AsyncRetry if a else redress.Retry)(
            classifier=redress.default_classifier,
            strategy=wait or redress.decorrelated_jitter(max_s=5),
            max_attempts=3,
            max_unknown_attempts=None,
            attempt_timeout_s=timeout,
        )
    if breaker:
        kwargs["circuit_breaker"] = redress.CircuitBreaker(
            failure_threshold=5, recovery_timeout_s=HOUR, trip_on=set(redress.ErrorClass)
        )
    policy = (redress.AsyncPolicy if a else redress.Policy)(**kwargs)
    if a:

        @functools.wraps(fn)
        async def wrapper(*args, **kwargs):
            return await policy.call(lambda: fn(*args, **kwargs))
    else:

        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            return policy.call(lambda: fn(*args, **kwargs))

    return wrapper


case("retry", "redress")(_redress)
case("retry_fail", "redress")(lambda fn: _redress(fn, wait=lambda ctx: 0.0))
case("breaker", "redress")(lambda fn: _redress(fn, False, True))
case("open", "redress")(lambda fn: _redress(fn, False, True))
case("stack", "redress")(lambda fn: _redress(fn, True, True))
case("stack_full", "redress with timeout + Semaphore")(lambda fn: _redress(_bulkhead(fn), True, True, 1))

# ------------------------------------------------------------------ stacks from several libraries


def _bulkhead(fn):
    s = (asyncio if iscoroutinefunction(fn) else threading).Semaphore(10)
    return around(fn, lambda: s)


def _limited(fn):
    """Bulkhead, and timeout if async."""
    return _bulkhead(around(fn, lambda: asyncio.timeout(1)) if iscoroutinefunction(fn) else fn)


for _name, _modes, _retry, _breaker in (
    ("tenacity+pybreaker", "sync", _tenacity, lambda fn: _pybreaker()(fn)),
    ("tenacity+aiobreaker", "async", _tenacity, _aiobreaker),
    ("stamina+purgatory", "sync async", _stamina, _purgatory),
    ("backoff+circuitbreaker", "sync async", _backoff, _circuitbreaker),
):
    _dists = _name.replace("+", " ")
    case("stack", _name, _modes, dists=_dists)(lambda fn, r=_retry, b=_breaker: r(b(fn)))
    case("stack_full", f"{_name}+stdlib", _modes, dists=_dists)(lambda fn, r=_retry, b=_breaker: r(b(_limited(fn))))


@case("stack", "resilient-circuit", "sync")
def _(fn):
    from resilient_circuit import ExponentialDelay, RetryWithBackoffPolicy, SafetyNet

    delay = ExponentialDelay(min_delay=timedelta(seconds=0.1), max_delay=timedelta(seconds=5), factor=2)
    return SafetyNet(policies=(RetryWithBackoffPolicy(max_retries=2, backoff=delay), _resilient_circuit()))(fn)
