"""Closed, open, half open: told the time and the outcomes, answers who may pass. No clock, no lock, no I/O.

Each state has only its own fields. A permit belongs to the state it was given in: what an old call reports after the
circuit has moved on finds that its state is not the current one, and is ignored.
"""

from __future__ import annotations

from math import inf
from typing import TypeAlias

from everkeel.policies.circuit_breaker.config import CircuitBreakerConfig
from everkeel.policies.circuit_breaker.windows import CountWindow, TimeWindow
from everkeel.runtime.tally import Tally, read, tally


class Closed:
    """Calls pass. The tally counts successes; the window is made by the first failure (a time window at once)."""

    __slots__ = ("tally", "window")
    name = "closed"
    pinned = False
    opened = 0  # how often in a row it opened: what a backoff as open_for counts

    def __init__(self, rules: CircuitBreakerConfig, now: float) -> None:
        self.tally: Tally = tally()
        self.window: CountWindow | TimeWindow | None = None
        if rules.window_duration is not None:
            self.window = TimeWindow(rules.window_duration, now)
        elif rules.failure_rate == 0:
            self.window = CountWindow()  # it opens when full, failures or none

    def success(self, rules: CircuitBreakerConfig, now: float, *, slow: bool = False) -> Open | None:
        """A call succeeded."""
        if self.window is not None:
            self.window.roll(read(self.tally), now)
        next(self.tally)
        if slow:
            self._window().slow(read(self.tally))
        return self.verdict(rules)

    def failure(self, rules: CircuitBreakerConfig, now: float, *, slow: bool = False) -> Open | None:
        """A call failed."""
        window, successes = self._window(), read(self.tally)
        window.roll(successes, now)
        window.failure(successes)
        if slow:
            window.slow(successes)
        return self.verdict(rules)

    def recall(self, successes: int, failed: list[int], slow: list[int], streak: int) -> None:
        """Take over what was saved."""
        for _ in range(successes):
            next(self.tally)
        if failed or slow or streak:
            self._window().recall(successes, failed, slow, streak)

    def _window(self) -> CountWindow | TimeWindow:
        if self.window is None:
            self.window = CountWindow()
        return self.window

    def verdict(self, rules: CircuitBreakerConfig) -> Open | None:
        """The state it should change to: open, when one of the rules says so. `until` is not known here."""
        window = self.window
        if window is None:
            return None
        successes = read(self.tally)
        # Asked whether or not a rule needs them: it is how a window lets go of what is too old.
        failed = window.failed(rules.window, successes)
        slow = 0 if rules.slow_duration is None else window.slow_calls(rules.window, successes)
        if self.pinned:
            return None
        if rules.consecutive is not None and window.streak(successes) >= rules.consecutive:
            return Open(1.0, window.streak(successes), None)
        calls = window.calls(rules.window, successes)
        if calls < rules.minimum_calls:
            return None
        if rules.failure_rate is not None and failed / calls >= rules.failure_rate:
            return Open(failed / calls, calls, None)
        if rules.slow_duration is not None and slow / calls >= rules.slow_rate:
            return Open(slow / calls, calls, "slow")
        return None

    def may_be_quick(self, rules: CircuitBreakerConfig) -> bool:
        """Can a success no longer open it? From the minimum on it only lowers the rate of a count window."""
        if not rules.quick:
            return False
        calls = read(self.tally) if self.window is None else self.window.calls(rules.window, read(self.tally))
        return rules.failure_rate is None or calls >= rules.minimum_calls

    def blameless(self, rules: CircuitBreakerConfig, now: float) -> bool:
        """Is there nothing in it that could help to open it?"""
        failure_rate, slow_rate, _ = self.rates(rules, now)
        in_a_row = rules.consecutive is not None and self.streak() > 0  # may be older than a time window
        return failure_rate == 0 and slow_rate == 0 and not in_a_row

    def streak(self) -> int:
        """How many calls in a row failed, up to now."""
        return 0 if self.window is None else self.window.streak(read(self.tally))

    def rates(self, rules: CircuitBreakerConfig, now: float) -> tuple[float, float, int]:
        """The shares of failed and of slow calls, and how many calls that is over."""
        successes = read(self.tally)
        if self.window is None:
            return 0.0, 0.0, min(successes, rules.window)
        self.window.roll(successes, now)
        calls = self.window.calls(rules.window, successes)
        if not calls:
            return 0.0, 0.0, 0
        return (
            self.window.failed(rules.window, successes) / calls,
            self.window.slow_calls(rules.window, successes) / calls,
            calls,
        )


class Pinned(Closed):
    """Held closed by hand: failures are seen, and do not open it."""

    __slots__ = ()
    pinned = True


class Open:
    """Nobody passes before `until`."""

    __slots__ = ("calls", "opened", "rate", "reason", "since", "until")
    name = "open"

    def __init__(self, rate: float | None, calls: int, reason: str | None) -> None:
        self.rate, self.calls, self.reason = rate, calls, reason
        self.opened = 1
        self.until = inf
        self.since: float | None = None  # when it opened, where how long it rests has yet to be asked


class HalfOpen:
    """A few probes pass, each on a lease; what they report decides."""

    __slots__ = ("before", "leases", "missed", "opened", "passed", "until")
    name = "half_open"

    def __init__(self, rules: CircuitBreakerConfig, now: float, before: Open | None) -> None:
        self.leases: dict[object, float] = {}  # the probes under way, and when each is taken for lost
        self.passed = self.missed = 0
        self.until = inf if rules.max_half_open is None else now + rules.max_half_open
        self.before = before
        self.opened = 0 if before is None else before.opened

    def expire(self, rules: CircuitBreakerConfig, now: float) -> Closed | Open | None:
        """Take probes whose lease is over for lost, and a stay that is too long for a failure."""
        for probe in [probe for probe, expires in self.leases.items() if expires <= now]:
            del self.leases[probe]
            if rules.lost_probe == "failure":
                self.missed += 1
        if now >= self.until:
            return self._reopened()
        return self._decide(rules, now)

    def admit(self, rules: CircuitBreakerConfig, now: float, probe: object) -> bool:
        """May one more probe pass? It is leased if so."""
        if len(self.leases) + self.passed + self.missed >= rules.probes:
            return False
        self.leases[probe] = now + rules.probe_lease
        return True

    def wait(self, now: float) -> float:
        """Seconds after which it is worth asking again."""
        return max(0.0, min([*self.leases.values(), self.until]) - now)

    def success(self, rules: CircuitBreakerConfig, now: float, probe: object) -> Closed | Open | None:
        """A probe succeeded."""
        if self.leases.pop(probe, None) is None:
            return None
        self.passed += 1
        return self._decide(rules, now)

    def failure(self, rules: CircuitBreakerConfig, now: float, probe: object) -> Closed | Open | None:
        """A probe failed."""
        if self.leases.pop(probe, None) is None:
            return None
        self.missed += 1
        return self._decide(rules, now)

    def drop(self, probe: object) -> None:
        """A probe was cancelled: no evidence, and another may take its place."""
        self.leases.pop(probe, None)

    def _decide(self, rules: CircuitBreakerConfig, now: float) -> Closed | Open | None:
        if self.passed >= rules.needed:
            return Closed(rules, now)
        if rules.probes - self.missed < rules.needed:
            return self._reopened()
        return None

    def _reopened(self) -> Open:
        seen = self.passed + self.missed
        return Open(self.missed / seen if seen else None, seen, None)


Phase: TypeAlias = Closed | Open | HalfOpen


def opening_before(phase: Phase) -> Open | None:
    """The opening that a half-open stay after `phase` belongs to, with which a backoff goes on counting."""
    if isinstance(phase, HalfOpen):
        return phase.before
    return phase if isinstance(phase, Open) else None
