"""What is charged to a limiter without keys: one state.

All methods are called under the limiter's lock and in a `with` block, which takes the state in hand.
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
    from everkeel.runtime.clock import Clock


class Single:
    """One state, under whatever key."""

    __slots__ = ("_clock", "_gate", "_paused", "_promised", "_state", "algorithm", "full", "overflows", "rules")

    def __init__(self, rules: RateLimitConfig, clock: Clock) -> None:
        self.rules, self._clock = rules, clock
        self.algorithm: Algorithm = rules.make_algorithm(rules.rate)
        self._state: Any = None
        self._gate: Gate | None = None
        self._paused = self._promised = 0
        self.overflows, self.full = 0, False

    def algorithm_of(self, limit: Any) -> Algorithm:
        """The algorithm at the key's own limit: there is but one."""
        return self.algorithm

    # ------------------------------------------------------------------ what is charged

    def acquire(self, key: Hashable, algorithm: Algorithm, now: int, permits: int) -> Decision:
        """Take permits, if they are there."""
        self._state, decision = pause.acquire(algorithm, self._state, now, permits)
        return decision

    def look(self, key: Hashable, algorithm: Algorithm, now: int, permits: int) -> Decision:
        """What `acquire` would answer."""
        return pause.acquire(algorithm, self._state, now, permits)[1]

    def used(self, key: Hashable, algorithm: Algorithm, now: int) -> int:
        """How many permits are charged."""
        return pause.used(algorithm, self._state, now)

    def adjust(self, key: Hashable, algorithm: Algorithm, now: int, permits: int) -> None:
        """Take more without asking, or (negative) give back."""
        self._state = pause.adjust(algorithm, self._state, now, permits)

    def pause(self, key: Hashable, algorithm: Algorithm, now: int, until: int) -> None:
        """Grant nothing before `until`."""
        self._paused = max(self._paused, until)
        self._state = pause.pause(algorithm, self._state, now, until)

    def foresee(self, rules: RateLimitConfig, key: Hashable, limit: Any, at: int, permits: int) -> int:
        """When the same request would pass, if `rules` come into force at `at`."""
        algorithm = rules.make_algorithm(rules.rate)
        return at + pause.acquire(algorithm, self._adopted(algorithm, at), at, permits)[1].retry_after

    # ------------------------------------------------------------------ live changes

    def change(self, rules: RateLimitConfig, now: int, *, lenient: bool) -> None:
        """Other rules: what is charged stays charged."""
        self.close()
        algorithm = rules.make_algorithm(rules.rate)
        self._state = self._adopted(algorithm, now)
        self.rules, self.algorithm = rules, algorithm

    def _adopted(self, algorithm: Algorithm, now: int) -> Any:
        state = pause.adopt(algorithm, self.algorithm, self._state, now)
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

    def open(self, cost: int) -> Gate:
        """Let woven functions decide as soon as the block ends, if it is a bucket; answers their gate."""
        self.close()
        if type(self.algorithm) not in (TokenBucket, LeakyBucket):
            return CLOSED
        self._gate = Gate(self.algorithm, cost)  # type: ignore[arg-type]  # a TokenBucket, by the line above
        return self._gate

    def close(self) -> Gate:
        """Let nobody pass but through the methods here."""
        self.promised()
        self._gate = None
        return CLOSED

    def promised(self) -> int:
        """The latest moment at which somebody turned away at the gate was told to come back."""
        if self._gate is not None:
            self._promised = max(self._promised, self._gate.promised())
        return self._promised

    def __enter__(self) -> None:
        """Take the number in hand. If it is lost, the bucket is taken for an empty one."""
        gate = self._gate
        if gate is not None:
            try:
                self._state = gate.hand.pop()
            except IndexError:
                self._state = gate.take(None)
                if self._state is None:
                    self._state = self._empty(self._clock.monotonic_ns())

    def __exit__(self, *error: object) -> None:
        """Put it back."""
        if self._gate is not None:
            if self._state is None:
                self._state = self.algorithm.charged(self._clock.monotonic_ns(), 0)
            self._gate.hand.append(self._state)

    def _empty(self, now: int) -> Any:
        return self.algorithm.charged(now, self.algorithm.rate.burst)

    def after_fork(self, now: int) -> None:
        """In a forked child: whoever had the number in hand is not here."""
        if self._gate is not None and not self._gate.hand:
            self._gate.hand.append(self._empty(now))
