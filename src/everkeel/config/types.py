"""Which types of policies and parts there are, and what may be set on each. Those of Everkeel are imported when a file
names them; policies of an application are known as soon as their module is imported."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from everkeel.runtime.configured import AnyConfigured
from everkeel.runtime.policy import Policy
from everkeel.runtime.settings import Settings

HOMES: dict[str, tuple[str, str]] = {
    "adaptive_throttle": ("everkeel.policies.throttle", "AdaptiveThrottle"),
    "bulkhead": ("everkeel.policies.bulkhead.policy", "Bulkhead"),
    "cache": ("everkeel.policies.cache.policy", "Cache"),
    "chaos": ("everkeel.policies.chaos.policy", "Chaos"),
    "circuit_breaker": ("everkeel.policies.circuit_breaker.policy", "CircuitBreaker"),
    "collapse": ("everkeel.policies.collapse.policy", "Collapse"),
    "concurrency_limit": ("everkeel.policies.concurrency.policy", "ConcurrencyLimit"),
    "fail_fast": ("everkeel.policies.fail_fast.policy", "FailFast"),
    "fallback": ("everkeel.policies.fallback", "Fallback"),
    "feature_toggle": ("everkeel.policies.feature_toggle.policy", "FeatureToggle"),
    "hedge": ("everkeel.policies.hedge.policy", "Hedge"),
    "rate_limit": ("everkeel.ratelimit.policy", "RateLimit"),
    "rate_limit_chain": ("everkeel.ratelimit.chain", "RateLimitChain"),
    "retry": ("everkeel.policies.retry.policy", "Retry"),
    "timeout": ("everkeel.policies.timeout.policy", "Timeout"),
}
"""Where each type of policy lives. A test holds this against every policy there is."""

PARTS: dict[str, tuple[str, str]] = {
    "consumer": ("everkeel.messaging.consumer.consumer", "Consumer"),
    "orchestrator": ("everkeel.sagas.orchestrator", "Orchestrator"),
    "outbox": ("everkeel.messaging.outbox", "Outbox"),
    "relay": ("everkeel.messaging.relay.relay", "Relay"),
}
"""The same for what is no policy and is in no pipeline."""

SHORTHAND: dict[str, str] = {
    "adaptive_throttle": "multiplier",
    "bulkhead": "limit",
    "cache": "ttl",
    "chaos": "rate",
    "circuit_breaker": "failure_rate",
    "collapse": "window",
    "concurrency_limit": "initial",
    "fail_fast": "failures",
    "fallback": "alternatives",
    "feature_toggle": "share",
    "hedge": "delay",
    "rate_limit": "permits",
    "retry": "attempts",
    "timeout": "seconds",
}
"""Which setting a bare value in a pipeline stands for: `timeout: 2s`."""


def policy_types() -> list[str]:
    """Every type of policy there is now, in order: what a pipeline may be made of."""
    return sorted({*HOMES, *_own()})


def known_types() -> list[str]:
    """Everything that can be configured now, in order: policies and parts."""
    return sorted({*PARTS, *policy_types()})


def policy_class(policy_type: str) -> type[Policy[Any]]:
    """The class of a type; KeyError where there is none."""
    if policy_type in HOMES:
        module, name = HOMES[policy_type]
        found: type[Policy[Any]] = getattr(import_module(module), name)
        return found
    return _own()[policy_type]


def settings_class(policy_type: str) -> type[Settings]:
    """What may be set on a type; KeyError where there is none."""
    cls: type[AnyConfigured]
    if policy_type in PARTS:
        module, name = PARTS[policy_type]
        cls = getattr(import_module(module), name)
    else:
        cls = policy_class(policy_type)
    for base in cls.__mro__:
        for generic in getattr(base, "__orig_bases__", ()):
            for argument in getattr(generic, "__args__", ()):
                if isinstance(argument, type) and issubclass(argument, Settings):
                    return argument
    raise KeyError(policy_type)


def _own() -> dict[str, type[Policy[Any]]]:
    """The application's own types: every subclass of `Policy` that says which settings it has."""
    found: dict[str, type[Policy[Any]]] = {}
    waiting: list[type[Policy[Any]]] = list(Policy.__subclasses__())
    while waiting:
        cls = waiting.pop()
        waiting += cls.__subclasses__()
        if cls.type not in HOMES and cls.type != Policy.type and "type" in vars(cls):
            found[cls.type] = cls
    return found
