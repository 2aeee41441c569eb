"""How low can pure Python go? One function generated per decorated function, happy path inline, the rest out of line.

Prototypes, not a library: enough behaviour for the harness's checks (opens, rejects, retries), no more.
Nothing is allocated for policy on the happy path but the timer entry; shared state is touched only by
single C calls (deque.append / deque.pop), which are atomic for threads, except the lock-free counters of
"consecutive" (a lost reset to zero is harmless) and the async-only ones.
"""

from __future__ import annotations

import inspect
import time
from asyncio import current_task, get_running_loop
from collections import deque

from footprint import memory
from harness import case


class CircuitOpenError(Exception):
    pass


class Breaker:
    __slots__ = ("failures", "limit", "state", "until", "window")

    def __init__(self, limit=5, window=0):
        self.state = self.failures = 0  # state: 0 closed, 1 open
        self.limit, self.window, self.until = limit, deque(maxlen=window) if window else None, 0.0

    def fail(self):
        if self.window is not None:
            self.window.append(1)
            self.failures = sum(self.window)  # O(window), on failures only
        else:
            self.failures += 1
        if self.failures >= self.limit:
            self.state, self.until = 1, time.monotonic() + 3600


class Deadlines:
    """Calls in flight under one constant timeout, oldest first, behind one event-loop timer (not one per call)."""

    __slots__ = ("armed", "live", "seconds")

    def __init__(self, seconds):
        self.seconds, self.live, self.armed = seconds, {}, False

    def arm(self, delay=None):
        self.armed = True
        get_running_loop().call_later(delay or self.seconds, self.sweep)

    def sweep(self):
        now = time.monotonic()
        for entry in list(self.live):
            if entry[1] > now:
                return self.arm(entry[1] - now)
            del self.live[entry]
            entry[0].cancel()
        self.armed = False


def build(fn, breaker="consecutive", retry=3, bulkhead=False, timeout=None, exact=False):
    is_async = inspect.iscoroutinefunction(fn)
    a, w = ("async ", "await ") if is_async else ("", "")
    sig, call = ("x", "x") if exact else ("*args, **kwargs", "*args, **kwargs")
    b = Breaker(5, 100 if breaker == "ring" else 0)
    slots = deque(range(10))
    deadlines = Deadlines(timeout)
    head, tail, ok = [], [], []
    if breaker:
        head += [f"    if b.state: {w}closed_or_raise()"]
        ok += ["    record(0)"] if breaker == "ring" else ["    if b.failures: b.failures = 0"]
    if bulkhead and is_async:
        head += ["    if not b_free: raise RuntimeError('full')", "    b_free -= 1"]
        tail += ["        b_free += 1"]
    elif bulkhead:
        head += ["    slot = take()"]  # IndexError when full
        tail += ["        give(slot)"]
    if timeout:
        head += [
            "    entry = (current_task(), monotonic() + seconds)",
            "    live[entry] = None",
            "    if not deadlines.armed: deadlines.arm()",
        ]
        tail += ["        if live.pop(entry, 0) == 0: timed_out()"]
    code = [
        "def make(b_free):",
        f" {a}def wrapper({sig}):",
        *(["    nonlocal b_free"] if bulkhead and is_async else []),
        *head,
        "    try:",
        f"        result = {w}fn({call})",
        "    except Exception as e:",
        f"        return {w}failed(e, {'(x,), {}' if exact else 'args, kwargs'})",
        *(["    finally:", *tail] if tail else []),
        *ok,
        "    return result",
        " return wrapper",
    ]

    def reject():
        if time.monotonic() < b.until:
            raise CircuitOpenError
        b.state = 0

    async def reject_async():
        reject()

    def timed_out():
        raise TimeoutError

    def failed(e, args, kwargs):
        for left in range(retry - 1, -1, -1):
            if breaker:
                b.fail()
            if not left or b.state:
                raise e
            try:
                return fn(*args, **kwargs)
            except Exception as again:
                e = again

    async def failed_async(e, args, kwargs):
        for left in range(retry - 1, -1, -1):
            if breaker:
                b.fail()
            if not left or b.state:
                raise e
            try:
                return await fn(*args, **kwargs)
            except Exception as again:
                e = again

    space = {
        "b": b,
        "fn": fn,
        "record": b.window.append if b.window is not None else None,
        "take": slots.pop,
        "give": slots.append,
        "closed_or_raise": reject_async if is_async else reject,
        "failed": failed_async if is_async else failed,
        "current_task": current_task,
        "monotonic": time.monotonic,
        "seconds": timeout,
        "deadlines": deadlines,
        "live": deadlines.live,
        "timed_out": timed_out,
    }
    exec("\n".join(code), space)  # noqa: S102 - what is to be measured
    return space["make"](10)


case("retry", "floor", kind="floor")(lambda fn: build(fn, None))
case("retry", "floor, exact signature", kind="floor")(lambda fn: build(fn, None, exact=True))
case("retry_fail", "floor", kind="floor")(lambda fn: build(fn, None))
case("breaker", "floor, consecutive failures", kind="floor")(lambda fn: build(fn, retry=1))
case("breaker", "floor, window of 100 calls", kind="floor")(lambda fn: build(fn, "ring", retry=1))
case("breaker", "floor, window of 100 calls, exact signature", kind="floor")(
    lambda fn: build(fn, "ring", retry=1, exact=True)
)
case("open", "floor", kind="floor")(lambda fn: build(fn, retry=1))
case("bulkhead", "floor", kind="floor")(lambda fn: build(fn, None, 1, bulkhead=True))
case("timeout", "floor (shared deadline queue)", "async", kind="floor")(lambda fn: build(fn, None, 1, timeout=1))
case("timeout_yield", "floor (shared deadline queue)", "async", kind="floor")(lambda fn: build(fn, None, 1, timeout=1))
case("stack", "floor, consecutive failures", kind="floor")(lambda fn: build(fn))
case("stack", "floor, window of 100 calls", kind="floor")(lambda fn: build(fn, "ring"))
case("stack", "floor, window of 100 calls, exact signature", kind="floor")(lambda fn: build(fn, "ring", exact=True))
case("stack_full", "floor, window of 100 calls", "sync", kind="floor")(lambda fn: build(fn, "ring", bulkhead=True))
case("stack_full", "floor, window of 100 calls", "async", kind="floor")(
    lambda fn: build(fn, "ring", bulkhead=True, timeout=1)
)


@case("ratelimit", "floor GCRA, no lock", kind="floor")
def _(fn, inc=1e-9, burst=1.0, monotonic=time.monotonic):
    tat = 0.0
    if inspect.iscoroutinefunction(fn):

        async def wrapper(*args, **kwargs):
            nonlocal tat
            now = monotonic()
            if tat < now:
                tat = now
            elif tat - now > burst:
                raise RuntimeError
            tat += inc
            return await fn(*args, **kwargs)
    else:

        def wrapper(*args, **kwargs):
            nonlocal tat
            now = monotonic()
            if tat < now:
                tat = now
            elif tat - now > burst:
                raise RuntimeError
            tat += inc
            return fn(*args, **kwargs)

    return wrapper


memory("breaker", "floor, slots, consecutive", kind="floor")(lambda: lambda key: Breaker())


@memory("rate-limiter key", "floor, dict of key to float", kind="floor")
def _():
    store: dict[str, float] = {}
    return lambda key: store.__setitem__(key, time.monotonic())
