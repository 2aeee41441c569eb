"""What is charged to whom: a state per key, in bounded memory. All methods are called under the limiter's lock.

At the cap a few of the oldest keys are looked at and dropped if they are idle, which changes no decision. Where none
is, new keys share one overflow state: dropping a key that is still limited would give it its limit anew.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from everkeel.ratelimit.algorithm import Algorithm, Decision, Rate
from everkeel.runtime.trouble import warn

if TYPE_CHECKING:
    from everkeel.ratelimit.policy import RateLimit

_LOOKS = 4  # how many of the oldest keys are looked at when a new one comes: memory follows the keys in use

OVERFLOW = object()


class Ledger:
    """The states, by key; a limiter without keys has one, under None."""

    __slots__ = ("_algorithms", "_before", "_policy", "_warned", "algorithm", "cap", "states")

    def __init__(self, policy: RateLimit, cap: int) -> None:
        self._policy, self.cap = policy, cap
        self.algorithm: Algorithm = policy.config.make_algorithm(policy.config.rate)
        self.states: dict[Hashable, Any] = {}
        self._algorithms: dict[Rate, Algorithm] = {}
        self._before: tuple[Algorithm, dict[Hashable, Any], int] | None = None  # states that await translation
        self._warned = False

    def algorithm_for(self, key: Hashable) -> Algorithm:
        """The algorithm at the key's own limit, or at everybody's."""
        rules = self._policy.config
        limits = rules.limits
        if limits is None or key is OVERFLOW:
            return self.algorithm
        limit = limits(key) if callable(limits) else limits.get(key)
        if limit is None:
            return self.algorithm
        rate = rules.rate_for(limit)
        found = self._algorithms.get(rate)
        if found is None:
            if len(self._algorithms) >= 1000:
                self._algorithms.clear()  # plans are few; a function that invents a rate for each key must not leak
            found = self._algorithms[rate] = rules.make_algorithm(rate)
        return found

    def acquire(self, key: Hashable, now: int, permits: int) -> Decision:
        """Ask for permits."""
        key = self._place(key, now)
        algorithm = self.algorithm_for(key)
        state, decision = algorithm.acquire(self._state(key, algorithm, now), now, permits)
        if state is not None:
            self.states[key] = state
        return decision

    def adjust(self, key: Hashable, now: int, permits: int) -> None:
        """Take more without asking, or (negative) give back."""
        key = self._place(key, now)
        algorithm = self.algorithm_for(key)
        self.states[key] = algorithm.adjust(self._state(key, algorithm, now), now, permits)

    def used(self, key: Hashable, now: int) -> int:
        """How many permits are charged to a key."""
        algorithm = self.algorithm_for(key)
        state = self._state(key, algorithm, now)
        return 0 if state is None else algorithm.used(state, now)

    def state_of(self, key: Hashable, now: int) -> Any:
        """The state of a key, translated where the rate has changed since."""
        return self._state(key, self.algorithm_for(key), now)

    def _state(self, key: Hashable, algorithm: Algorithm, now: int) -> Any:
        state = self.states.get(key)
        if state is None and self._before is not None:
            earlier, states, until = self._before
            if now >= until:
                self._before = None
            elif key in states and algorithm is self.algorithm:
                state = algorithm.charged(now, earlier.used(states.pop(key), now))
        return state

    def _place(self, key: Hashable, now: int) -> Hashable:
        """The key under which this one is kept: itself, or the overflow."""
        states = self.states
        if key in states or key is None:
            return key
        for _ in range(_LOOKS):
            oldest = next(iter(states), None)
            if oldest is None:
                break
            state = states.pop(oldest)
            if oldest is OVERFLOW or not self.algorithm_for(oldest).idle(state, now):
                states[oldest] = state  # to the end: another one is looked at next time
        if len(states) < self.cap:
            return key
        self._policy.counts.tick("overflow")
        if not self._warned:
            self._warned = True
            warn("%s: %d keys are limited at once; further keys share one state", self._policy.label, self.cap)
        return OVERFLOW

    def change(self, algorithm: Algorithm, now: int) -> None:
        """Another rate, or another algorithm: what is charged stays charged. States are translated when next used."""
        old = self.algorithm
        longest = 2 * (old.rate.per + old.rate.per * old.rate.burst // old.rate.permits)
        self._before = (old, self.states, now + longest)  # by then every one of them is idle
        self.states, self.algorithm = {}, algorithm
        self._algorithms.clear()
