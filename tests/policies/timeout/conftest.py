"""The forms in which a timeout ends a call. A test is written once and runs over all that make sense for it.

- plain: `policy.acall(fn)` / `policy.call(fn)`
- woven: a decorated function, one generated function with the policy's fragment in it (async; sync is always a seam)
- unrolled: a decorated function with the default fragment, the permit protocol step by step
- seam: a decorated function whose generated code calls the plain driver
- block: `async with policy:`, and `with policy:` for inline timeouts
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from everkeel.policies.timeout.state import Timing
from everkeel.runtime import workers
from everkeel.runtime.signature import kind_of
from everkeel.runtime.state import State


@dataclass(frozen=True)
class Form:
    """One way of calling: `form(policy, fn)` is `fn` guarded by the policy, of the same kind as before."""

    style: str

    def __call__(self, policy: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
        awaited = kind_of(fn) == "async"
        if self.style == "plain":
            return plain_async(policy, fn) if awaited else partial(policy.call, fn)
        if self.style == "block":
            return in_async_block(policy, fn) if awaited else in_block(policy, fn)
        return policy(fn)


def plain_async(policy: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        return await policy.acall(fn, *args, **kwargs)

    return call


def in_async_block(policy: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        async with policy:
            return await fn(*args, **kwargs)

    return call


def in_block(policy: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with policy:
            return fn(*args, **kwargs)

    return call


@pytest.fixture(autouse=True)
def _no_worker_is_left() -> Iterator[None]:
    """What a test leaves in a worker thread ends with it: its late events are not for the next test to hear."""
    before = busy_workers()
    yield
    for _ in range(10_000):
        if busy_workers() <= before:  # those of other tests, which may never come back, are not ours to wait for
            return
        threading.Event().wait(0.001)
    pytest.fail("a call is still running in a worker thread")


def busy_workers() -> int:
    return len([one for one in threading.enumerate() if one.name == "everkeel-worker"]) - len(workers._idle)


@pytest.fixture(params=["plain", "woven", "unrolled", "seam", "block"])
def timed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Form:
    """Every form in which a coroutine function is timed."""
    if request.param == "unrolled":
        monkeypatch.setattr(Timing, "fragment", State.fragment)
    if request.param == "seam":
        monkeypatch.setattr(Timing, "fragment", lambda self, kind: None)
    return Form(request.param)


@pytest.fixture(params=["plain", "woven"])
def called(request: pytest.FixtureRequest) -> Form:
    """The forms of a sync function, and of a coroutine function under a detached timeout: it must be called."""
    return Form(request.param)


@pytest.fixture(params=["plain", "woven", "block"])
def inline(request: pytest.FixtureRequest) -> Form:
    """The forms of a sync function that stays on its caller's thread."""
    return Form(request.param)
