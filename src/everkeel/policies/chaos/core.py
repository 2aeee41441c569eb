"""Which call gets which fault, and when it is enough. No clock, no chance, no I/O.

What the n-th call of a key gets follows from the seed, the key and n, by a hash, and from nothing else: no other call
can change it, in whatever order threads and tasks run. And a higher rate only ever adds faults.
"""

from __future__ import annotations

from typing import NamedTuple

from everkeel.policies.chaos.config import NO_FAULT, ChaosConfig
from everkeel.policies.circuit_breaker.windows import TimeWindow
from everkeel.runtime.stable import digest, fraction


class Fault(NamedTuple):
    """What happens to one call: first the behavior, then the latency, then an error or a result in its place."""

    call: int
    """Which call of its key, from 1."""
    key: str
    latency: float = 0.0
    error: int | None = None
    """Which of the errors, from 0."""
    result: bool = False
    behavior: bool = False

    @property
    def kinds(self) -> tuple[str, ...]:
        """What is injected, in the order it happens."""
        happens = {
            "behavior": self.behavior,
            "latency": self.latency > 0,
            "error": self.error is not None,
            "result": self.result,
        }
        return tuple(kind for kind, does in happens.items() if does)


def fault_of(rules: ChaosConfig, key: str, call: int) -> Fault | None:
    """The fault of the n-th call of a key; None for most."""
    if rules.rate == 0:
        return None
    chance = digest(rules.seed, key, str(call))
    if fraction(chance) >= rules.rate:
        return None
    latency, error = 0.0, None
    if rules.latency is not None:
        low, high = rules.latency
        latency = low + (high - low) * fraction(chance, 1)
    if rules.error is not None:
        error = int(len(rules.error) * fraction(chance, 2))
    return Fault(call, key, latency, error, rules.result is not NO_FAULT, rules.behavior is not None)


class Blast:
    """How far the damage reaches: the failures of the last so many seconds, injected or not."""

    __slots__ = ("_ok", "_window")

    def __init__(self, rules: ChaosConfig, now: float) -> None:
        self._ok = 0
        self._window = TimeWindow(rules.failure_window, now)

    def success(self, now: float) -> None:
        """A call ended well."""
        self._window.roll(self._ok, now)
        self._ok += 1

    def failure(self, rules: ChaosConfig, now: float) -> str | None:
        """A call failed: what bound is reached, if any."""
        window = self._window
        window.roll(self._ok, now)
        window.failure(self._ok)
        failed, calls = window.failed(0, self._ok), window.calls(0, self._ok)
        span = f"within {rules.failure_window:g} s"
        if rules.max_failures is not None and failed >= rules.max_failures:
            return f"{failed} calls failed {span}"
        if rules.max_failure_rate is not None and calls >= rules.minimum_calls:
            rate = failed / calls
            if rate >= rules.max_failure_rate:
                return f"{rate:.0%} of {calls} calls failed {span}"
        return None
