"""Turning callers away: what the error says, what it asks them to wait, and who hears of it."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from everkeel.errors import RateLimitedError
from everkeel.ratelimit.algorithm import Algorithm, Decision, seconds_up
from everkeel.ratelimit.pressure import Backpressure, backpressure_delay, utilization_delay

if TYPE_CHECKING:
    from everkeel.ratelimit.config import RateLimitConfig
    from everkeel.ratelimit.policy import RateLimit


class Refusals:
    """Makes the errors of one limiter. Never called under its lock."""

    __slots__ = ("policy", "pressure")

    def __init__(self, policy: RateLimit) -> None:
        self.policy = policy
        self.pressure: Backpressure | None = self._pressure(policy.config)

    def _pressure(self, rules: RateLimitConfig) -> Backpressure | None:
        if not rules.measured:
            return None
        return Backpressure(
            p95_baseline=rules.p95_baseline,
            min_latency=rules.min_latency,
            sensitivity=rules.gradient_sensitivity,
            window=rules.window_size,
        )

    def adapt(self, old: RateLimitConfig, new: RateLimitConfig) -> None:
        """Other settings: what was measured is kept. Under the lock."""
        if old.measuring == new.measuring:
            return
        before, self.pressure = self.pressure, self._pressure(new)
        if before is not None and self.pressure is not None:
            self.pressure.inherit(before)

    def error(self, decision: Decision, key: Hashable, algorithm: Algorithm) -> RateLimitedError:
        """What a caller is told who does not get in."""
        policy, pressure = self.policy, self.pressure
        score = None if pressure is None else pressure.score
        wait = self._retry_after(decision, algorithm)
        return RateLimitedError(policy.name, wait, algorithm.rate.permits, decision.remaining, key, score, "local")

    def denied(self, key: Hashable) -> RateLimitedError:
        """What a caller is told who never gets in."""
        return RateLimitedError(self.policy.name, None, 0, 0, key, None, "local")

    def told(self, error: RateLimitedError) -> RateLimitedError:
        """The error, counted, of which everybody has been told; the hook may raise another in its place."""
        policy = self.policy
        next(policy.rejections)
        if policy.heard():
            from everkeel.events import CallRejected

            policy.emit(CallRejected(policy=policy.name, policy_type=policy.type, error=error, key=error.key))
        if policy.config.on_rejected is not None:
            policy.config.on_rejected(error)
        return error

    def _retry_after(self, decision: Decision, algorithm: Algorithm) -> float:
        """What to ask for: never less than what is needed."""
        rules, exact = self.policy.config, seconds_up(decision.retry_after)
        if rules.retry_after_strategy == "utilization":
            used = 1 - min(1.0, decision.remaining / algorithm.capacity)
            return max(exact, utilization_delay(used, seconds_up(decision.reset_after)))
        if rules.retry_after_strategy == "backpressure" and self.pressure is not None:
            chance, least, most = self.policy.clock.random, rules.min_retry_delay, rules.max_retry_penalty
            return max(exact, backpressure_delay(self.pressure.score, least, most, chance))
        return exact
