"""Everkeel: resilience for Python services, from a first `@retry` up.

Lower-case names make policies, as `asyncio.timeout()` makes a `Timeout`; CamelCase names are their types.
`everkeel.events` has what can be heard, `everkeel.testing` virtual time and a pytest plugin.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from everkeel import events as events
    from everkeel.compose.chain import Pipeline as Pipeline
    from everkeel.compose.chain import pipeline as pipeline
    from everkeel.compose.guards import Guard as Guard
    from everkeel.compose.guards import guard as guard
    from everkeel.errors import BulkheadFullError as BulkheadFullError
    from everkeel.errors import CircuitOpenError as CircuitOpenError
    from everkeel.errors import ClaimLostError as ClaimLostError
    from everkeel.errors import CollapseError as CollapseError
    from everkeel.errors import ConfigError as ConfigError
    from everkeel.errors import DeadLetterConflictError as DeadLetterConflictError
    from everkeel.errors import DeadLetterError as DeadLetterError
    from everkeel.errors import DeadLetterNotFoundError as DeadLetterNotFoundError
    from everkeel.errors import DeadLettersFullError as DeadLettersFullError
    from everkeel.errors import DeadLetterStateError as DeadLetterStateError
    from everkeel.errors import EventError as EventError
    from everkeel.errors import EverkeelError as EverkeelError
    from everkeel.errors import FailFastError as FailFastError
    from everkeel.errors import FeatureDisabledError as FeatureDisabledError
    from everkeel.errors import HedgeTimeoutError as HedgeTimeoutError
    from everkeel.errors import HTTPStatusError as HTTPStatusError
    from everkeel.errors import IdempotencyFullError as IdempotencyFullError
    from everkeel.errors import IdempotencyInProgressError as IdempotencyInProgressError
    from everkeel.errors import IdempotencyMismatchError as IdempotencyMismatchError
    from everkeel.errors import InvalidConfigurationError as InvalidConfigurationError
    from everkeel.errors import NotRetryable as NotRetryable
    from everkeel.errors import PublishError as PublishError
    from everkeel.errors import RateLimitedError as RateLimitedError
    from everkeel.errors import RejectedError as RejectedError
    from everkeel.errors import ReplayLimitError as ReplayLimitError
    from everkeel.errors import RetryExhaustedError as RetryExhaustedError
    from everkeel.errors import SagaCompensatedError as SagaCompensatedError
    from everkeel.errors import SagaConflictError as SagaConflictError
    from everkeel.errors import SagaError as SagaError
    from everkeel.errors import SagaNotFoundError as SagaNotFoundError
    from everkeel.errors import SagaStateError as SagaStateError
    from everkeel.errors import SagaStoppedError as SagaStoppedError
    from everkeel.errors import ShedError as ShedError
    from everkeel.errors import ThrottledError as ThrottledError
    from everkeel.errors import TimeoutExceededError as TimeoutExceededError
    from everkeel.errors import TooEarlyError as TooEarlyError
    from everkeel.errors import UnknownSagaError as UnknownSagaError
    from everkeel.errors import WorkersExhaustedError as WorkersExhaustedError
    from everkeel.http.server.setup import Everkeel as Everkeel
    from everkeel.idempotency.guard import Idempotency as Idempotency
    from everkeel.policies.bulkhead.policy import Bulkhead as Bulkhead
    from everkeel.policies.bulkhead.policy import bulkhead as bulkhead
    from everkeel.policies.bulkhead.pool import BulkheadPool as BulkheadPool
    from everkeel.policies.bulkhead.pool import bulkhead_pool as bulkhead_pool
    from everkeel.policies.cache.policy import Cache as Cache
    from everkeel.policies.cache.policy import cache as cache
    from everkeel.policies.chaos.permission import disable_chaos as disable_chaos
    from everkeel.policies.chaos.permission import enable_chaos as enable_chaos
    from everkeel.policies.chaos.policy import Chaos as Chaos
    from everkeel.policies.chaos.policy import chaos as chaos
    from everkeel.policies.chaos.tags import chaos_tags as chaos_tags
    from everkeel.policies.circuit_breaker.policy import CircuitBreaker as CircuitBreaker
    from everkeel.policies.circuit_breaker.policy import circuit_breaker as circuit_breaker
    from everkeel.policies.collapse.policy import Collapse as Collapse
    from everkeel.policies.collapse.policy import collapse as collapse
    from everkeel.policies.concurrency.policy import ConcurrencyLimit as ConcurrencyLimit
    from everkeel.policies.concurrency.policy import concurrency_limit as concurrency_limit
    from everkeel.policies.concurrency.priorities import priority as priority
    from everkeel.policies.fail_fast.policy import FailFast as FailFast
    from everkeel.policies.fail_fast.policy import fail_fast as fail_fast
    from everkeel.policies.fallback import Fallback as Fallback
    from everkeel.policies.fallback import fallback as fallback
    from everkeel.policies.feature_toggle.policy import FeatureToggle as FeatureToggle
    from everkeel.policies.feature_toggle.policy import feature_toggle as feature_toggle
    from everkeel.policies.hedge.policy import Hedge as Hedge
    from everkeel.policies.hedge.policy import hedge as hedge
    from everkeel.policies.hedge.policy import operation as operation
    from everkeel.policies.retry.attempt import Attempt as Attempt
    from everkeel.policies.retry.attempt import current_attempt as current_attempt
    from everkeel.policies.retry.budget import RetryBudget as RetryBudget
    from everkeel.policies.retry.policy import Retry as Retry
    from everkeel.policies.retry.policy import retry as retry
    from everkeel.policies.throttle import AdaptiveThrottle as AdaptiveThrottle
    from everkeel.policies.throttle import adaptive_throttle as adaptive_throttle
    from everkeel.policies.timeout.policy import Timeout as Timeout
    from everkeel.policies.timeout.policy import timeout as timeout
    from everkeel.ratelimit.chain import RateLimitChain as RateLimitChain
    from everkeel.ratelimit.chain import Reservation as Reservation
    from everkeel.ratelimit.chain import rate_limit_chain as rate_limit_chain
    from everkeel.ratelimit.policy import RateLimit as RateLimit
    from everkeel.ratelimit.policy import rate_limit as rate_limit
    from everkeel.runtime.backoff import Backoff as Backoff
    from everkeel.runtime.backoff import constant as constant
    from everkeel.runtime.backoff import exponential as exponential
    from everkeel.runtime.backoff import fibonacci as fibonacci
    from everkeel.runtime.backoff import linear as linear
    from everkeel.runtime.cancellation import Cancellation as Cancellation
    from everkeel.runtime.cancellation import current_cancellation as current_cancellation
    from everkeel.runtime.cancellation import sleep as sleep
    from everkeel.runtime.clock import Clock as Clock
    from everkeel.runtime.clock import use_clock as use_clock
    from everkeel.runtime.deadline import Deadline as Deadline
    from everkeel.runtime.deadline import current_deadline as current_deadline
    from everkeel.runtime.deadline import deadline as deadline
    from everkeel.runtime.events import Subscription as Subscription
    from everkeel.runtime.events import subscribe as subscribe
    from everkeel.runtime.explain import Explanation as Explanation
    from everkeel.runtime.explain import explain as explain
    from everkeel.runtime.outcome import Outcome as Outcome
    from everkeel.runtime.outcome import Verdict as Verdict
    from everkeel.runtime.policy import Policy as Policy
    from everkeel.runtime.policy import policies_of as policies_of
    from everkeel.runtime.registry import Registry as Registry
    from everkeel.runtime.registry import registry as registry
    from everkeel.runtime.switch import disable as disable
    from everkeel.runtime.switch import enable as enable

__version__ = "0.1.0"

__all__ = [
    "AdaptiveThrottle", "Attempt", "Backoff", "Bulkhead", "BulkheadFullError", "BulkheadPool", "Cache",
    "Cancellation", "Chaos", "CircuitBreaker", "CircuitOpenError", "ClaimLostError", "Clock", "Collapse",
    "CollapseError", "ConcurrencyLimit", "ConfigError", "DeadLetterConflictError", "DeadLetterError",
    "DeadLetterNotFoundError", "DeadLetterStateError", "DeadLettersFullError", "Deadline", "EventError",
    "Everkeel", "EverkeelError",
    "Explanation", "FailFast", "FailFastError", "Fallback", "FeatureDisabledError", "FeatureToggle", "Guard",
    "HTTPStatusError", "Hedge", "HedgeTimeoutError", "Idempotency", "IdempotencyFullError",
    "IdempotencyInProgressError", "IdempotencyMismatchError", "InvalidConfigurationError", "NotRetryable",
    "Outcome", "Pipeline", "Policy", "PublishError", "RateLimit", "RateLimitChain", "RateLimitedError",
    "Registry", "RejectedError", "ReplayLimitError", "Reservation", "Retry", "RetryBudget",
    "RetryExhaustedError", "SagaCompensatedError", "SagaConflictError", "SagaError", "SagaNotFoundError",
    "SagaStateError", "SagaStoppedError", "ShedError", "Subscription", "ThrottledError", "Timeout",
    "TimeoutExceededError", "TooEarlyError", "UnknownSagaError", "Verdict", "WorkersExhaustedError",
    "adaptive_throttle", "bulkhead", "bulkhead_pool", "cache", "chaos", "chaos_tags", "circuit_breaker",
    "collapse", "concurrency_limit", "constant", "current_attempt", "current_cancellation",
    "current_deadline", "deadline", "disable", "disable_chaos", "enable", "enable_chaos", "events", "explain",
    "exponential", "fail_fast", "fallback", "feature_toggle", "fibonacci", "guard", "hedge", "linear",
    "operation", "pipeline", "policies_of", "priority", "rate_limit", "rate_limit_chain", "registry", "retry",
    "sleep", "subscribe", "timeout", "use_clock",
]  # fmt: skip

# Where each name lives. It is imported when it is first used: `import everkeel` costs next to nothing, and a service
# pays for the policies it has. The imports above say the same to type checkers; a test keeps the two together.
_HOMES = {
    "everkeel.compose.chain": "Pipeline pipeline",
    "everkeel.compose.guards": "Guard guard",
    "everkeel.errors": (
        "BulkheadFullError CircuitOpenError ClaimLostError CollapseError ConfigError DeadLetterConflictError "
        "DeadLetterError DeadLetterNotFoundError DeadLetterStateError DeadLettersFullError EventError EverkeelError "
        "FailFastError FeatureDisabledError HTTPStatusError HedgeTimeoutError IdempotencyFullError "
        "IdempotencyInProgressError IdempotencyMismatchError InvalidConfigurationError NotRetryable PublishError "
        "RateLimitedError RejectedError ReplayLimitError RetryExhaustedError SagaCompensatedError SagaConflictError "
        "SagaError SagaNotFoundError SagaStateError SagaStoppedError ShedError ThrottledError "
        "TimeoutExceededError TooEarlyError UnknownSagaError WorkersExhaustedError"
    ),
    "everkeel.http.server.setup": "Everkeel",
    "everkeel.idempotency.guard": "Idempotency",
    "everkeel.policies.bulkhead.policy": "Bulkhead bulkhead",
    "everkeel.policies.bulkhead.pool": "BulkheadPool bulkhead_pool",
    "everkeel.policies.cache.policy": "Cache cache",
    "everkeel.policies.chaos.permission": "disable_chaos enable_chaos",
    "everkeel.policies.chaos.policy": "Chaos chaos",
    "everkeel.policies.chaos.tags": "chaos_tags",
    "everkeel.policies.circuit_breaker.policy": "CircuitBreaker circuit_breaker",
    "everkeel.policies.collapse.policy": "Collapse collapse",
    "everkeel.policies.concurrency.policy": "ConcurrencyLimit concurrency_limit",
    "everkeel.policies.concurrency.priorities": "priority",
    "everkeel.policies.fail_fast.policy": "FailFast fail_fast",
    "everkeel.policies.fallback": "Fallback fallback",
    "everkeel.policies.feature_toggle.policy": "FeatureToggle feature_toggle",
    "everkeel.policies.hedge.policy": "Hedge hedge operation",
    "everkeel.policies.retry.attempt": "Attempt current_attempt",
    "everkeel.policies.retry.budget": "RetryBudget",
    "everkeel.policies.retry.policy": "Retry retry",
    "everkeel.policies.throttle": "AdaptiveThrottle adaptive_throttle",
    "everkeel.policies.timeout.policy": "Timeout timeout",
    "everkeel.ratelimit.chain": "RateLimitChain Reservation rate_limit_chain",
    "everkeel.ratelimit.policy": "RateLimit rate_limit",
    "everkeel.runtime.backoff": "Backoff constant exponential fibonacci linear",
    "everkeel.runtime.cancellation": "Cancellation current_cancellation sleep",
    "everkeel.runtime.clock": "Clock use_clock",
    "everkeel.runtime.deadline": "Deadline current_deadline deadline",
    "everkeel.runtime.events": "Subscription subscribe",
    "everkeel.runtime.explain": "Explanation explain",
    "everkeel.runtime.outcome": "Outcome Verdict",
    "everkeel.runtime.policy": "Policy policies_of",
    "everkeel.runtime.registry": "Registry registry",
    "everkeel.runtime.switch": "disable enable",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    from importlib import import_module

    if name in ("config", "events"):
        return import_module(f"everkeel.{name}")
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'everkeel' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)  # kept: the next time it is found at once
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
