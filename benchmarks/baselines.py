"""What to compare with: the bare call, the standard library, and what people write by hand.

Thresholds, here and for the peers: 5 failures open a circuit, an hour closes it; 3 attempts; 1 s timeouts; 10 calls at
once; limits far above what the run can do.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import itertools
import signal
import threading
import time
from asyncio import iscoroutinefunction

from harness import CATEGORIES, BoomError, case

HOUR, MANY = 3600, 10**9


def rotating():
    """A function of a call's argument that answers a thousand keys in turn."""
    return functools.partial(next, itertools.cycle([f"key-{n}" for n in range(1000)]))  # the argument: a default


def around(fn, cm):
    """What a user writes to put a (re-usable) context manager around a call; cm() is entered per call."""
    if iscoroutinefunction(fn):

        @functools.wraps(fn)
        async def wrapper(*args, **kwargs):
            async with cm():
                return await fn(*args, **kwargs)
    else:

        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            with cm():
                return fn(*args, **kwargs)

    return wrapper


def before(fn, acquire):
    """What a user writes to take a permit before a call (`acquire` sync, or a coroutine function if fn is)."""
    if iscoroutinefunction(fn):

        @functools.wraps(fn)
        async def wrapper(*args, **kwargs):
            if not await acquire():
                raise RuntimeError
            return await fn(*args, **kwargs)
    else:

        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            if not acquire():
                raise RuntimeError
            return fn(*args, **kwargs)

    return wrapper


for _category in CATEGORIES:
    case(_category, "direct call", "async" if _category == "timeout_yield" else "sync async", kind="bare")(
        lambda fn: fn
    )


@case("gate", "functools.wraps passthrough(*args, **kwargs)", kind="base")
@case("wrap", "functools.wraps passthrough(*args, **kwargs)", kind="base")
def passthrough(fn):
    if iscoroutinefunction(fn):

        @functools.wraps(fn)
        async def wrapper(*args, **kwargs):
            return await fn(*args, **kwargs)
    else:

        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            return fn(*args, **kwargs)

    return wrapper


@case("wrap", "passthrough, exact signature", kind="base")
def _(fn):
    if iscoroutinefunction(fn):

        async def wrapper(x):
            return await fn(x)
    else:

        def wrapper(x):
            return fn(x)

    return wrapper


@case("wrap", "passthrough, not a coroutine: returns fn(*args, **kwargs)", "async", kind="base")
def _(fn):
    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        return fn(*args, **kwargs)

    return wrapper


@case("retry_fail", "hand-written try/except loop", kind="base")
@case("retry", "hand-written try/except loop", kind="base")
def _(fn):
    if iscoroutinefunction(fn):

        @functools.wraps(fn)
        async def wrapper(*args, **kwargs):
            for attempt in range(3):
                try:
                    return await fn(*args, **kwargs)
                except BoomError:
                    if attempt == 2:
                        raise
    else:

        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            for attempt in range(3):
                try:
                    return fn(*args, **kwargs)
                except BoomError:
                    if attempt == 2:
                        raise

    return wrapper


@case("retry_fail", "hand-written loop + sleep(0)", kind="base")
def _(fn):
    if iscoroutinefunction(fn):

        @functools.wraps(fn)
        async def wrapper(*args, **kwargs):
            for attempt in range(3):
                try:
                    return await fn(*args, **kwargs)
                except BoomError:
                    if attempt == 2:
                        raise
                    await asyncio.sleep(0)
    else:

        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            for attempt in range(3):
                try:
                    return fn(*args, **kwargs)
                except BoomError:
                    if attempt == 2:
                        raise
                    time.sleep(0)

    return wrapper


@case("fallback", "hand-written try/except", kind="base")
def _(fn):
    if iscoroutinefunction(fn):

        @functools.wraps(fn)
        async def wrapper(*args, **kwargs):
            try:
                return await fn(*args, **kwargs)
            except BoomError:
                return None
    else:

        @functools.wraps(fn)
        def wrapper(*args, **kwargs):
            try:
                return fn(*args, **kwargs)
            except BoomError:
                return None

    return wrapper


@case("open", "hand-written: raise in a passthrough", kind="base")
def _(fn):
    if iscoroutinefunction(fn):

        async def wrapper(*args, **kwargs):
            raise BoomError
    else:

        def wrapper(*args, **kwargs):
            raise BoomError

    return wrapper


case("bulkhead", "threading.Semaphore", "sync", kind="base")(
    lambda fn, s=threading.Semaphore(10): around(fn, lambda: s)
)
case("bulkhead", "asyncio.Semaphore", "async", kind="base")(lambda fn: around(fn, lambda s=asyncio.Semaphore(10): s))
for _category in ("timeout", "timeout_yield"):
    case(_category, "asyncio.timeout", "async", kind="base")(lambda fn: around(fn, lambda: asyncio.timeout(1)))


@case("timeout", "asyncio.wait_for", "async", kind="base")
@case("timeout_yield", "asyncio.wait_for", "async", kind="base")
def _(fn):
    @functools.wraps(fn)
    async def wrapper(*args, **kwargs):
        return await asyncio.wait_for(fn(*args, **kwargs), 1)

    return wrapper


@case("timeout", "thread pool submit().result(1)", "sync", kind="base")
def _(fn):
    pool = concurrent.futures.ThreadPoolExecutor(4)
    return functools.wraps(fn)(lambda *args, **kwargs: pool.submit(fn, *args, **kwargs).result(1))


@case("timeout", "signal.setitimer by hand (main thread only)", "sync", kind="base")
def _(fn):
    def raise_timeout(*_):
        raise TimeoutError

    @functools.wraps(fn)
    def wrapper(*args, **kwargs):
        old = signal.signal(signal.SIGALRM, raise_timeout)
        signal.setitimer(signal.ITIMER_REAL, 1)
        try:
            return fn(*args, **kwargs)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, old)

    return wrapper


case("cache", "functools.lru_cache", "sync", kind="base")(lambda fn: functools.lru_cache(128)(fn))
