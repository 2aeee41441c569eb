"""MicroProfile Fault Tolerance 4.1 for Python: the standard's annotations, rules, configuration keys and metrics.

    from everkeel.microprofile import Bulkhead, CircuitBreaker, Fallback, Retry, Timeout

The policies behind it are Everkeel's own, set to follow the standard. `docs/guide/microprofile.md` says how to use it,
`docs/guide/microprofile-conformance.md` which rules it follows and which test holds each.

Copyright (c) 2016, 2024 Eclipse Foundation AISBL. This software includes material derived from *MicroProfile Fault
Tolerance 4.1* (https://microprofile.io/specifications/microprofile-fault-tolerance/). It implements that specification
and is not itself a technical specification.
"""

from everkeel.microprofile.annotations import ChronoUnit
from everkeel.microprofile.backoffs import CustomBackoffStrategy
from everkeel.microprofile.beyond import (
    ApplyGuard,
    BeforeRetry,
    CircuitBreakerName,
    CustomBackoff,
    ExponentialBackoff,
    FibonacciBackoff,
    RateLimit,
    RetryWhen,
)
from everkeel.microprofile.config import configure
from everkeel.microprofile.decorators import Asynchronous, Bulkhead, CircuitBreaker, Fallback, Retry, Timeout
from everkeel.microprofile.deployment import fresh_deployment, redeploy, validate
from everkeel.microprofile.exceptions import (
    BulkheadException,
    CircuitBreakerOpenException,
    FaultToleranceDefinitionException,
    FaultToleranceException,
    RateLimitException,
    TimeoutException,
)
from everkeel.microprofile.fallbacks import ExecutionContext, FallbackHandler, create_handlers_with
from everkeel.microprofile.guards import Guard
from everkeel.microprofile.maintenance import CircuitBreakerState, current_state, on_state_change, reset, reset_all
from everkeel.microprofile.results import AsyncResult, completed, failed

__all__ = [
    "ApplyGuard",
    "AsyncResult",
    "Asynchronous",
    "BeforeRetry",
    "Bulkhead",
    "BulkheadException",
    "ChronoUnit",
    "CircuitBreaker",
    "CircuitBreakerName",
    "CircuitBreakerOpenException",
    "CircuitBreakerState",
    "CustomBackoff",
    "CustomBackoffStrategy",
    "ExecutionContext",
    "ExponentialBackoff",
    "Fallback",
    "FallbackHandler",
    "FaultToleranceDefinitionException",
    "FaultToleranceException",
    "FibonacciBackoff",
    "Guard",
    "RateLimit",
    "RateLimitException",
    "Retry",
    "RetryWhen",
    "Timeout",
    "TimeoutException",
    "completed",
    "configure",
    "create_handlers_with",
    "current_state",
    "failed",
    "fresh_deployment",
    "on_state_change",
    "redeploy",
    "reset",
    "reset_all",
    "validate",
]
