"""What is charged to a limiter without keys: one state. All methods are called under the limiter's lock.

While the quick way is open, the number that is the state of a bucket is in the hand of the gate.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from everkeel.ratelimit import pause
from everkeel.ratelimit.algorithm import Algorithm, Decision
from everkeel.ratelimit.buckets import LeakyBucket, TokenBucket
from everkeel.ratelimit.gate import CLOSED, Gate

if TYPE_CHECKING:
    from everkeel.ratelimit.config import RateLimitConfig


class Single:
    """One state, under whatever key."""

    __slots__ = ("_gate", "_paused", "_promised", "_state", "algorithm", "full", "overflows", "rules")

    def __init__(self, rules: RateLimitConfig) -> None:
        self.rules = rules
        self.algorithm: Algorithm = rules.make_algorithm(rules.rate)
        self._state: Any = None
        self._gate: Gate | None = None
        self._paused = self._promised = 0
        self.overflows, self.full = 0, False

    def algorithm_of(self, limit: Any) -> Algorithm:
        """The algorithm at the key's own limit: there is but one."""
        return self.algorithm

    def acquire(self, key: Hashable, algorithm: Algorithm, now: int, permits: int) -> Decision:
        """Take permits, if they are there."""
        state, decision = pause.acquire(algorithm, self._take(now), now, permits)
        self._put(state, now)
        return decision

    def look(self, key: Hashable, algorithm: Algorithm, now: int, permits: int) -> Decision:
        """What `acquire` would answer."""
        return pause.acquire(algorithm, self._peek(now), now, permits)[1]

    def used(self, key: Hashable, algorithm: Algorithm, now: int) -> int:
        """How many permits are charged."""
        return pause.used(algorithm, self._peek(now), now)

    def adjust(self, key: Hashable, algorithm: Algorithm, now: int, permits: int) -> None:
        """Take more without asking, or (negative) give back."""
        if permits < 0:
            self.promised(now)
        self._put(pause.adjust(algorithm, self._take(now), now, permits), now)

    def pause(self, key: Hashable, algorithm: Algorithm, now: int, until: int) -> None:
        """Grant nothing before `until`."""
        self._paused = max(self._paused, until)
        self._put(pause.pause(algorithm, self._take(now), now, until), now)

    def foresee(self, rules: RateLimitConfig, key: Hashable, limit: Any, at: int, permits: int) -> int:
        """When the same request would pass, if `rules` come into force at `at`."""
        algorithm = rules.make_algorithm(rules.rate)
        state = self._adopted(algorithm, self._peek(at), at)
        return at + pause.acquire(algorithm, state, at, permits)[1].retry_after

    def change(self, rules: RateLimitConfig, now: int, *, lenient: bool) -> None:
        """Other rules: what is charged stays charged."""
        self.close(now)
        algorithm = rules.make_algorithm(rules.rate)
        self._state = self._adopted(algorithm, self._state, now)
        self.rules, self.algorithm = rules, algorithm

    def _adopted(self, algorithm: Algorithm, state: Any, now: int) -> Any:
        state = pause.adopt(algorithm, self.algorithm, state, now)
        return state if now >= self._paused else pause.pause(algorithm, state, now, self._paused)

    def catch_up(self, key: Hashable, algorithm: Algorithm, now: int) -> None:
        """The state is of the new algorithm already."""

    def set_aside(self, key: Hashable) -> None:
        """Somebody waits: the door has closed the quick way for everybody."""

    def put_back(self, key: Hashable, now: int) -> None:
        """Nobody waits any more."""

    def keys(self) -> int:
        """How many keys have a state of their own."""
        return 0

    # ------------------------------------------------------------------ the quick way

    def open(self, cost: int, now: int) -> Gate:
        """Let woven functions decide, if this is a bucket; answers their gate."""
        self.close(now)
        if type(self.algorithm) not in (TokenBucket, LeakyBucket):
            return CLOSED
        state, self._state = self._state, None
        self._gate = Gate(self.algorithm, cost, {})  # type: ignore[arg-type]  # a TokenBucket, by the line above
        self._put(state, now)
        return self._gate

    def close(self, now: int) -> Gate:
        """Let nobody pass but through the methods here."""
        if self._gate is not None:
            self.promised(now)
            self._state, self._gate = self._take(now), None
        return CLOSED

    def promised(self, now: int) -> int:
        """The latest moment that a caller turned away at the gate may have been told.

        It was told when the state of then leaves room, and a state only grows, unless permits are given back.
        """
        gate = self._gate
        if gate is not None:
            told = -(-(self._peek(now) + gate.price - gate.room) // gate.scale)
            self._promised = max(self._promised, told)
        return self._promised

    def _take(self, now: int) -> Any:
        gate = self._gate
        if gate is None:
            return self._state
        try:
            return gate.hand.pop()
        except IndexError:
            return gate.take(self.algorithm.charged(now, self.algorithm.rate.burst))

    def _put(self, state: Any, now: int) -> None:
        if self._gate is None:
            self._state = state
        else:
            self._gate.hand.append(self.algorithm.charged(now, 0) if state is None else state)

    def _peek(self, now: int) -> Any:
        state = self._take(now)
        self._put(state, now)
        return state

    def after_fork(self, now: int) -> None:
        """In a forked child: whoever had the number in hand is not here."""
        if self._gate is not None and not self._gate.hand:
            self._put(self.algorithm.charged(now, self.algorithm.rate.burst), now)
