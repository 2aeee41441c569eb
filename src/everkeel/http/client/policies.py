"""How the policies of a client are reached: to look at them, to change them while it runs, to listen to them."""

from __future__ import annotations

from everkeel.http.client.engine import Engine
from everkeel.policies.circuit_breaker.policy import CircuitBreaker
from everkeel.policies.concurrency.policy import ConcurrencyLimit
from everkeel.policies.hedge.policy import Hedge
from everkeel.policies.retry.policy import Retry
from everkeel.ratelimit.policy import RateLimit
from everkeel.runtime.policy import AnyPolicy


class HasPolicies:
    """What every transport, adapter and middleware has."""

    _engine: Engine

    @property
    def policies(self) -> tuple[AnyPolicy, ...]:
        """All of them, outermost first."""
        return self._engine.policies()

    @property
    def retry(self) -> Retry:
        """What tries again."""
        return self._engine.retry

    @property
    def circuit_breaker(self) -> CircuitBreaker | None:
        """A circuit for each origin, a tuple of scheme, host and port; None where that is off."""
        return self._engine.circuit_breaker

    @property
    def rate_limit(self) -> RateLimit | None:
        """What keeps to the servers' limits; its keys are origins. None where that is off."""
        return None if self._engine.rate_limit is None else self._engine.rate_limit.policy

    @property
    def concurrency_limit(self) -> ConcurrencyLimit | None:
        """A limit for each origin; None where that is off."""
        return self._engine.concurrency_limit

    @property
    def hedge(self) -> Hedge | None:
        """What makes a second request beside a slow one; None where that is off."""
        return self._engine.hedge
