"""The forms in which a hedge guards a call, a service that takes as long as it is told, and what must not be left.

- plain: `policy.acall(fn)` / `policy.call(fn)`
- woven: a decorated function, one generated function with the policy's fragment in it (async; sync is always a seam)
- seam: a decorated function whose generated code calls the plain driver
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

import everkeel
from everkeel.policies.hedge.state import Hedging
from everkeel.runtime import workers
from everkeel.runtime.signature import kind_of


@dataclass(frozen=True)
class Form:
    """One way of calling: `form(policy, fn)` is `fn` guarded by the policy, of the same kind as before."""

    style: str

    def __call__(self, policy: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
        if self.style != "plain":
            return policy(fn)
        if kind_of(fn) != "async":
            return partial(policy.call, fn)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await policy.acall(fn, *args, **kwargs)

        return call


class Service:
    """Each call takes the next of `takes` seconds (the last repeats) and then raises or answers its outcome.

    An outcome that is not given is the number of the call.
    """

    def __init__(self, *takes: float, outcomes: dict[int, object] | None = None) -> None:
        self.takes, self.outcomes = takes, outcomes or {}
        self.began = 0
        self.ended: list[int] = []
        self.cancelled: list[int] = []
        self._lock = threading.Lock()

    def _begin(self) -> tuple[int, float]:
        with self._lock:
            self.began += 1
            return self.began, self.takes[min(self.began, len(self.takes)) - 1]

    def _end(self, number: int) -> object:
        self.ended.append(number)
        outcome = self.outcomes.get(number, number)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    async def acall(self) -> object:
        number, seconds = self._begin()
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        return self._end(number)

    def call(self) -> object:
        number, seconds = self._begin()
        try:
            everkeel.sleep(seconds)
        except TimeoutError:
            self.cancelled.append(number)
            raise
        return self._end(number)


@pytest.fixture
def service() -> type[Service]:
    return Service


@pytest.fixture(autouse=True)
def _no_worker_is_left() -> Iterator[None]:
    before = busy_workers()
    yield
    for _ in range(10_000):
        if busy_workers() <= before:  # those of other tests, which may never come back, are not ours to wait for
            return
        threading.Event().wait(0.001)
    pytest.fail("a call is still running in a worker thread")


def busy_workers() -> int:
    return len([one for one in threading.enumerate() if one.name == "everkeel-worker"]) - len(workers._idle)


@pytest.fixture(params=["plain", "woven", "seam"])
def hedged(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Form:
    """Every form in which a coroutine function is hedged."""
    if request.param == "seam":
        monkeypatch.setattr(Hedging, "fragment", lambda self, kind: None)
    return Form(request.param)


@dataclass(frozen=True)
class Both:
    """A behaviour that is the same for coroutines and for threads: `both(policy, service)()` is the answer."""

    style: str
    awaited: bool
    clock: Any

    def __call__(self, policy: Any, service: Service) -> Callable[[], Any]:
        guarded = Form(self.style)(policy, service.acall if self.awaited else service.call)
        return (lambda: self.clock.run(guarded())) if self.awaited else guarded


@pytest.fixture(params=["plain-async", "woven-async", "seam-async", "plain-sync", "woven-sync"])
def both(request: pytest.FixtureRequest, clock: Any, monkeypatch: pytest.MonkeyPatch) -> Both:
    """Every form, async and sync."""
    style, _, kind = request.param.partition("-")
    if style == "seam":
        monkeypatch.setattr(Hedging, "fragment", lambda self, kind: None)
    return Both(style, kind == "async", clock)
