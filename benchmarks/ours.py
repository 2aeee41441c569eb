"""Cases for Everkeel. The one named `everkeel` in each category is what the promises are about; the rest are variants.

A case is registered only if its policy exists, so that the benchmarks run at any point of the history.
"""

from __future__ import annotations

import threading
from asyncio import iscoroutinefunction
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from baselines import HOUR, MANY, rotating
from footprint import IMPORTS, memory
from harness import Factory, case

import everkeel
from everkeel.compose import source, weave
from everkeel.policies.retry import attempt as marks
from everkeel.runtime import weave as weaver
from everkeel.runtime.signature import ANYTHING, Signature, signature_of

Make = Callable[[], Any]


def exists(*names: str) -> bool:
    return all(hasattr(everkeel, name) for name in names)


def ours(category: str, name: str, factory: Factory, modes: str = "sync async", **more: Any) -> None:
    case(category, name, modes, kind="ours", dists="everkeel", **more)(factory)


# ------------------------------------------------------------------ ways to guard a function


def decorated(*makes: Make) -> Factory:
    """As people write it: decorators, outermost first."""

    def factory(fn: Any) -> Any:
        for make in reversed(makes):
            fn = make()(fn)
        return fn

    return factory


def any_arguments(*makes: Make) -> Factory:
    """The same, woven for `*args, **kwargs`. Only the wrapper differs, so it compares with the same bare call."""

    def factory(fn: Any) -> Any:
        _take_anything.add(fn)
        guarded = decorated(*makes)(fn)
        assert "(*args, **kwargs):" in source(guarded)
        return guarded

    return factory


_take_anything: set[Any] = set()


def _signature_of(fn: Any) -> Signature:
    return ANYTHING if fn in _take_anything else signature_of(fn)


# For the whole run: a function is woven again whenever something changes, and must not get its own signature back then.
weaver.signature_of = _signature_of


def called(make: Make) -> Factory:
    """The plain path: `policy.call(fn, x)` and `policy.acall(fn, x)`."""

    def factory(fn: Any) -> Any:
        policy = make()
        if iscoroutinefunction(fn):

            async def wrapper(x: int) -> Any:
                return await policy.acall(fn, x)
        else:

            def wrapper(x: int) -> Any:
                return policy.call(fn, x)

        return wrapper

    return factory


@contextmanager
def being_scraped(fn: Any) -> Iterator[None]:
    """Meanwhile an exporter reads every snapshot a hundred times a second."""
    over = threading.Event()

    def scrape() -> None:
        while not over.wait(0.01):
            for policy in everkeel.policies_of(fn):
                policy.snapshot()

    exporter = threading.Thread(target=scrape)
    exporter.start()
    try:
        yield
    finally:
        over.set()
        exporter.join()


@contextmanager
def asked(fn: Any) -> Iterator[None]:
    """Somebody in the process has asked for the current attempt, so every attempt after the first is marked."""
    before, marks.wanted = marks.wanted, True
    try:
        yield
    finally:
        marks.wanted = before


@contextmanager
def heard(fn: Any) -> Iterator[None]:
    """Somebody listens for retries."""
    before = marks.wanted
    with everkeel.policies_of(fn)[0].subscribe(lambda event: None, everkeel.events.Retrying):
        weave(fn)  # listening had it woven anew, which is not to be timed
        yield
    marks.wanted = before


def every_way(category: str, *makes: Make) -> None:
    """The promised case and the variants that must stay within 1.5 times of it."""
    ours(category, "everkeel", decorated(*makes))
    ours(category, "everkeel, *args, **kwargs", any_arguments(*makes))
    ours(category, "everkeel, being scraped", decorated(*makes), meanwhile=being_scraped)


# ------------------------------------------------------------------ the policies


def retry() -> Any:
    return everkeel.retry()


def breaker() -> Any:
    return everkeel.circuit_breaker(minimum_calls=5, open_for=HOUR)  # failure_rate=0.5 over window=100 by default


def timed_breaker() -> Any:
    return everkeel.circuit_breaker(window_duration=10, minimum_calls=5, open_for=HOUR)


def timeout() -> Any:
    return everkeel.timeout(1)


def bulkhead() -> Any:
    return everkeel.bulkhead(10)


def limiter() -> Any:
    return everkeel.rate_limit(MANY)


def keyed_limiter() -> Any:
    return everkeel.rate_limit(MANY, key=lambda x: x)


def limiter_of_many() -> Any:
    return everkeel.rate_limit(MANY, key=rotating())


def full_limiter() -> Any:
    return everkeel.rate_limit(1, per=HOUR)


every_way("retry", retry)
ours("retry", "everkeel .call()", called(retry))
ours("retry_fail", "everkeel", decorated(lambda: everkeel.retry(backoff=0)))
ours("retry_fail", "everkeel, current_attempt() in use", decorated(lambda: everkeel.retry(backoff=0)), meanwhile=asked)
ours("retry_fail", "everkeel, heard", decorated(lambda: everkeel.retry(backoff=0)), meanwhile=heard)
ours("retry_fail", "everkeel .call()", called(lambda: everkeel.retry(backoff=0)))
ours("fallback", "everkeel", decorated(lambda: everkeel.fallback(None)))
ours("fallback", "everkeel .call()", called(lambda: everkeel.fallback(None)))

if exists("circuit_breaker"):
    every_way("breaker", breaker)
    ours("breaker", "everkeel .call()", called(breaker))
    ours("breaker", "everkeel, time window", decorated(timed_breaker))
    ours("open", "everkeel", decorated(breaker))
    ours("open", "everkeel .call()", called(breaker))
    every_way("stack", retry, breaker)

if exists("timeout"):
    ours("timeout", "everkeel", decorated(timeout))
    ours("timeout", "everkeel .call()", called(timeout))
    ours("timeout_yield", "everkeel", decorated(timeout), "async")

if exists("bulkhead"):
    every_way("bulkhead", bulkhead)
    ours("bulkhead", "everkeel .call()", called(bulkhead))

if exists("concurrency_limit", "hedge"):
    case("concurrency", "everkeel bulkhead", kind="base", dists="everkeel")(decorated(bulkhead))
    ours("concurrency", "everkeel", decorated(lambda: everkeel.concurrency_limit()))
    case("hedge", "everkeel timeout", "async", kind="base", dists="everkeel")(decorated(timeout))
    ours("hedge", "everkeel", decorated(lambda: everkeel.hedge(delay=1)), "async")

if exists("rate_limit"):
    ours("ratelimit", "everkeel", decorated(limiter))
    ours("ratelimit", "everkeel .call()", called(limiter))
    ours("ratelimit_keyed", "everkeel", decorated(keyed_limiter))
    ours("ratelimit_keyed", "everkeel .call()", called(keyed_limiter))
    ours("ratelimit_many", "everkeel", decorated(limiter_of_many))
    ours("ratelimit_reject", "everkeel", decorated(full_limiter))
    ours("ratelimit_reject", "everkeel, keyed", decorated(lambda: everkeel.rate_limit(1, per=HOUR, key=lambda x: x)))

if exists("cache"):
    every_way("cache", lambda: everkeel.cache(HOUR, max_size=128))
    ours("cache", "everkeel .call()", called(lambda: everkeel.cache(HOUR, max_size=128)))
    ours("cache", "everkeel, key=", decorated(lambda: everkeel.cache(HOUR, max_size=128, key=lambda x: x)))

if exists("feature_toggle"):
    ours("gate", "everkeel feature_toggle", decorated(lambda: everkeel.feature_toggle()))
    by_share = {"share": 0.999999, "key": lambda x: x}
    ours("gate", "everkeel feature_toggle, by share", decorated(lambda: everkeel.feature_toggle(**by_share)))

if exists("fail_fast"):
    ours("gate", "everkeel fail_fast", decorated(lambda: everkeel.fail_fast()))
    ours("gate", "everkeel fail_fast, with a check", decorated(lambda: everkeel.fail_fast(check=lambda: True)))

if exists("chaos"):
    ours("gate", "everkeel chaos", decorated(lambda: everkeel.chaos(latency=1)))

if exists("circuit_breaker", "timeout", "bulkhead"):

    def full_stack(fn: Any) -> Any:
        inside = [timeout] if iscoroutinefunction(fn) else []
        return decorated(retry, breaker, *inside, bulkhead)(fn)

    def full_pipeline(fn: Any) -> Any:
        inside = [timeout()] if iscoroutinefunction(fn) else []
        stack = everkeel.pipeline(retry(), breaker(), *inside, bulkhead())
        return called(lambda: stack)(fn)

    ours("stack_full", "everkeel", full_stack)
    ours("stack_full", "everkeel, being scraped", full_stack, meanwhile=being_scraped)
    ours("stack_full", "everkeel pipeline.call()", full_pipeline)

    if find_spec("opentelemetry") and find_spec("opentelemetry.sdk"):
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import InMemoryMetricReader

        from everkeel.telemetry.measuring import heard_events
        from everkeel.telemetry.opentelemetry import Instruments

        reader = InMemoryMetricReader()
        provider = MeterProvider([reader], shutdown_on_exit=False)
        instruments = Instruments(provider.get_meter("everkeel"))
        instruments.reading = True

        def recorded_stack(fn: Any) -> Any:
            """What `EverkeelInstrumentor` does, to one stack: its `instrument()` would weave all other cases anew."""
            guarded = full_stack(fn)
            for policy in everkeel.policies_of(guarded):
                policy.subscribe(instruments.record, *heard_events())
            return guarded

        # What a call costs while it is on. A collection takes longer than a timed block, and is in none of them.
        ours("stack_full", "everkeel, OpenTelemetry metrics", recorded_stack)


# ------------------------------------------------------------------ memory and import

if exists("circuit_breaker"):

    @memory("breaker", "everkeel (keyed)", kind="ours")
    def _() -> Callable[[str], None]:
        circuits = everkeel.circuit_breaker(open_for=HOUR, key=lambda key: key, max_keys=10**7)

        def touch(key: str) -> None:
            circuits.call(len, key)

        return touch


if exists("rate_limit"):

    @memory("rate-limiter key", "everkeel (keyed)", kind="ours")
    def _() -> Callable[[str], None]:
        limits = everkeel.rate_limit(1000, per=HOUR, key=lambda key: key, max_keys=10**7)

        def touch(key: str) -> None:
            limits.call(len, key)

        return touch


IMPORTS["everkeel"] = "import everkeel"
IMPORTS["everkeel, one policy"] = "from everkeel import retry"
IMPORTS["everkeel, every name"] = "from everkeel import *"
