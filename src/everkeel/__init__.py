"""Everkeel: resilience for Python services, from a first `@retry` up.

Lower-case names make policies, as `asyncio.timeout()` makes a `Timeout`; CamelCase names are their types.
`everkeel.events` has what can be heard, `everkeel.testing` virtual time and a pytest plugin.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from everkeel.compose.chain import Pipeline, pipeline
from everkeel.compose.guards import Guard, guard
from everkeel.errors import (
    BulkheadFullError,
    CircuitOpenError,
    ConfigError,
    EverkeelError,
    FailFastError,
    HedgeTimeoutError,
    NotRetryable,
    RateLimitedError,
    RejectedError,
    RetryExhaustedError,
    ShedError,
    ThrottledError,
    TimeoutExceededError,
    WorkersExhaustedError,
)
from everkeel.policies.bulkhead.policy import Bulkhead, bulkhead
from everkeel.policies.bulkhead.pool import BulkheadPool, bulkhead_pool
from everkeel.policies.circuit_breaker.policy import CircuitBreaker, circuit_breaker
from everkeel.policies.concurrency.policy import ConcurrencyLimit, concurrency_limit
from everkeel.policies.concurrency.priorities import priority
from everkeel.policies.fail_fast.policy import FailFast, fail_fast
from everkeel.policies.fallback import Fallback, fallback
from everkeel.policies.hedge.policy import Hedge, hedge, operation
from everkeel.policies.retry.attempt import Attempt, current_attempt
from everkeel.policies.retry.budget import RetryBudget
from everkeel.policies.retry.policy import Retry, retry
from everkeel.policies.throttle import AdaptiveThrottle, adaptive_throttle
from everkeel.policies.timeout.policy import Timeout, timeout
from everkeel.ratelimit.chain import RateLimitChain, Reservation, rate_limit_chain
from everkeel.ratelimit.policy import RateLimit, rate_limit
from everkeel.runtime.backoff import Backoff, constant, exponential, fibonacci, linear
from everkeel.runtime.cancellation import Cancellation, current_cancellation, sleep
from everkeel.runtime.clock import Clock, use_clock
from everkeel.runtime.deadline import Deadline, current_deadline, deadline
from everkeel.runtime.events import Subscription, subscribe
from everkeel.runtime.explain import Explanation, explain
from everkeel.runtime.outcome import Outcome, Verdict
from everkeel.runtime.policy import Policy, policies_of
from everkeel.runtime.registry import Registry, registry
from everkeel.runtime.switch import disable, enable

if _TYPE_CHECKING:
    from everkeel import events as events

__version__ = "0.1.0"

__all__ = [
    "AdaptiveThrottle", "Attempt", "Backoff", "Bulkhead", "BulkheadFullError", "BulkheadPool", "Cancellation",
    "CircuitBreaker", "CircuitOpenError", "Clock", "ConcurrencyLimit", "ConfigError", "Deadline",
    "EverkeelError", "Explanation", "FailFast", "FailFastError", "Fallback", "Guard", "Hedge",
    "HedgeTimeoutError", "NotRetryable", "Outcome", "Pipeline", "Policy", "RateLimit", "RateLimitChain",
    "RateLimitedError", "Registry", "RejectedError", "Reservation", "Retry", "RetryBudget",
    "RetryExhaustedError", "ShedError", "Subscription", "ThrottledError", "Timeout", "TimeoutExceededError",
    "Verdict", "WorkersExhaustedError", "adaptive_throttle", "bulkhead", "bulkhead_pool", "circuit_breaker",
    "concurrency_limit", "constant", "current_attempt", "current_cancellation", "current_deadline",
    "deadline", "disable", "enable", "events", "explain", "exponential", "fail_fast", "fallback", "fibonacci",
    "guard", "hedge", "linear", "operation", "pipeline", "policies_of", "priority", "rate_limit",
    "rate_limit_chain", "registry", "retry", "sleep", "subscribe", "timeout", "use_clock",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """`everkeel.events` is imported when it is first used: a service that listens to nothing need not load it."""
    if name == "events":
        import importlib

        return importlib.import_module("everkeel.events")
    raise AttributeError(f"module 'everkeel' has no attribute {name!r}")
