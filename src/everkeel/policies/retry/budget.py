"""How many retries the traffic as a whole may afford, so that an outage is not answered with a storm.

When a dependency is down every call fails, and three attempts each make three times the load on something that cannot
carry the load it has. A budget lets retries be a share of the traffic, plus a floor so that quiet services may retry.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any, Protocol

from everkeel.errors import ConfigError
from everkeel.runtime.settings import Number, Share

WINDOW = 10.0  # seconds of traffic that count
_SLICES = 10
_STEP = WINDOW / _SLICES


class CountsCalls(Protocol):
    """What a budget needs to know of the traffic: how many calls have ended."""

    policy: Any

    def calls(self) -> int:
        """How many so far."""
        ...


class BudgetWindow:
    """The decision core: told the time and how many calls there were in all, answers whether a retry fits.

    In any window of ten seconds there are at most `ratio` retries per call, plus `floor` per second. It is asked only
    when something failed. The calls made since it was last asked count as spread evenly over the time since.
    """

    __slots__ = ("_calls", "_calls_seen", "_last", "_retries")

    def __init__(self) -> None:
        self._last: float | None = None  # when it was last asked
        self._calls_seen = 0
        self._calls = [0.0] * _SLICES  # newest last
        self._retries = [0] * _SLICES

    def watch(self, now: float, calls: int) -> None:
        """More traffic counts from now on; the `calls` it has had so far do not."""
        if self._last is None:
            self._last = now // _STEP
        self._calls_seen += calls

    def may_retry(self, now: float, calls: int, ratio: float, floor: float) -> bool:
        """May one more retry be made now? `calls` is the number of calls so far, ever. A yes is counted."""
        self._roll(now, calls)
        allowed = ratio * sum(self._calls) + floor * WINDOW
        if sum(self._retries) + 1 > allowed + 1e-9:
            return False
        self._retries[-1] += 1
        return True

    def _roll(self, now: float, calls: int) -> None:
        here = now // _STEP
        if self._last is None or here < self._last - _SLICES:  # another clock: a test, with policies made before it
            self._last = here
        passed = max(0, int(here - self._last))
        new = max(0, calls - self._calls_seen)
        self._last, self._calls_seen = max(here, self._last), calls
        if passed == 0:
            self._calls[-1] += new
            return
        share = new / (passed + 1)
        for index in range(min(passed, _SLICES) + 1):
            if index:
                del self._calls[0], self._retries[0]
                self._calls.append(0.0)
                self._retries.append(0)
            self._calls[-1] += share


class RetryBudget:
    """A budget for retries; share one among all the policies that call the same dependency.

    `ratio` 0.2: retries may add a fifth to the traffic, which is what systems that have a budget converged on.
    `floor` 3 a second: so that a service with little traffic may retry at all.

    >>> from everkeel import RetryBudget, retry
    >>> inventory = RetryBudget(ratio=0.1)
    >>> stock, prices = retry(budget=inventory), retry(budget=inventory)
    """

    def __init__(self, *, ratio: float = 0.2, floor: float = 3.0) -> None:
        for parameter, value, kind in (("ratio", ratio, Share(zero=True)), ("floor", floor, Number(at_least=0))):
            try:
                kind.check(value)
            except ValueError as error:
                raise ConfigError("retry budget", parameter, str(error), repr(value)) from None
        self.ratio, self.floor = float(ratio), float(floor)
        self._window = BudgetWindow()
        self._lock = threading.Lock()
        self._watched: weakref.WeakSet[CountsCalls] = weakref.WeakSet()
        self._spent = 0
        self._refused = 0

    def watch(self, state: CountsCalls) -> None:
        """Take a policy's calls for traffic: it keeps count of them anyway, so a success costs nothing extra."""
        with self._lock:
            if state not in self._watched:
                self._watched.add(state)
                self._window.watch(state.policy.clock.monotonic(), state.calls())

    def may_retry(self, now: float) -> bool:
        """May one more retry be made now? A yes is counted."""
        with self._lock:
            calls = 1 + sum(state.calls() for state in list(self._watched))  # and the call that is asking
            allowed = self._window.may_retry(now, calls, self.ratio, self.floor)
            if allowed:
                self._spent += 1
            else:
                self._refused += 1
            return allowed

    def snapshot(self) -> dict[str, float]:
        """How many retries it has allowed and refused."""
        return {"ratio": self.ratio, "floor": self.floor, "allowed": self._spent, "refused": self._refused}

    def __repr__(self) -> str:
        return f"RetryBudget(ratio={self.ratio:g}, floor={self.floor:g})"
