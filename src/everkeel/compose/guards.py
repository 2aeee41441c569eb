"""One decorator for several policies, in the order that is almost always right; on a class, for its public methods."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from types import FunctionType
from typing import Any, ParamSpec, TypeVar, cast

from everkeel.compose.chain import Pipeline
from everkeel.errors import ConfigError
from everkeel.policies.bulkhead.policy import Bulkhead
from everkeel.policies.bulkhead.policy import bulkhead as make_bulkhead
from everkeel.policies.bulkhead.pool import BulkheadPool
from everkeel.policies.cache.policy import Cache
from everkeel.policies.cache.policy import cache as make_cache
from everkeel.policies.chaos.policy import Chaos
from everkeel.policies.chaos.policy import chaos as make_chaos
from everkeel.policies.circuit_breaker.policy import CircuitBreaker
from everkeel.policies.circuit_breaker.policy import circuit_breaker as make_circuit_breaker
from everkeel.policies.concurrency.policy import ConcurrencyLimit
from everkeel.policies.concurrency.policy import concurrency_limit as make_concurrency_limit
from everkeel.policies.fail_fast.policy import FailFast
from everkeel.policies.fail_fast.policy import fail_fast as make_fail_fast
from everkeel.policies.fallback import Fallback
from everkeel.policies.fallback import fallback as make_fallback
from everkeel.policies.feature_toggle.policy import FeatureToggle
from everkeel.policies.feature_toggle.policy import feature_toggle as make_feature_toggle
from everkeel.policies.hedge.policy import Hedge
from everkeel.policies.hedge.policy import hedge as make_hedge
from everkeel.policies.retry.policy import Retry
from everkeel.policies.retry.policy import retry as make_retry
from everkeel.policies.throttle import AdaptiveThrottle
from everkeel.policies.throttle import adaptive_throttle as make_adaptive_throttle
from everkeel.policies.timeout.policy import Timeout
from everkeel.policies.timeout.policy import timeout as make_timeout
from everkeel.ratelimit.chain import RateLimitChain
from everkeel.ratelimit.policy import RateLimit
from everkeel.ratelimit.policy import rate_limit as make_rate_limit
from everkeel.runtime.policy import AnyPolicy, Policy, guard_with, policies_of
from everkeel.runtime.settings import Seconds
from everkeel.runtime.state import CallKind, State
from everkeel.runtime.weave import F, Weaving, weaving_of

P = ParamSpec("P")
T = TypeVar("T")
_UNSET: Any = object()


def _hedge(value: Any) -> Hedge:
    return make_hedge() if value is True else make_hedge(delay=value)


def _adaptive_throttle(value: Any) -> AdaptiveThrottle:
    return make_adaptive_throttle() if value is True else make_adaptive_throttle(multiplier=value)


def _concurrency_limit(value: Any) -> ConcurrencyLimit:
    return make_concurrency_limit() if value is True else make_concurrency_limit(initial=value)


def _retry(value: Any) -> Retry:
    return make_retry() if value is True else make_retry(attempts=value)


def _circuit_breaker(value: Any) -> CircuitBreaker:
    return make_circuit_breaker() if value is True else make_circuit_breaker(failure_rate=value)


def _feature_toggle(value: Any) -> FeatureToggle:
    return make_feature_toggle() if value is True else make_feature_toggle(predicate=value)


def _fail_fast(value: Any) -> FailFast:
    return make_fail_fast() if value is True else make_fail_fast(failures=value)


def _chaos(value: Any) -> Chaos:
    return make_chaos(error=ConnectionError) if value is True else make_chaos(rate=value, error=ConnectionError)


# Outermost first: the word in `guard(...)`, the types it takes, and what a shorthand value makes.
ORDER: tuple[tuple[str, tuple[type[AnyPolicy], ...], Callable[[Any], AnyPolicy]], ...] = (
    ("feature_toggle", (FeatureToggle,), _feature_toggle),
    ("cache", (Cache,), make_cache),
    ("fallback", (Fallback,), make_fallback),
    ("hedge", (Hedge,), _hedge),
    ("retry", (Retry,), _retry),
    ("circuit_breaker", (CircuitBreaker,), _circuit_breaker),
    ("fail_fast", (FailFast,), _fail_fast),
    ("adaptive_throttle", (AdaptiveThrottle,), _adaptive_throttle),
    ("rate_limit", (RateLimit, RateLimitChain), make_rate_limit),
    ("timeout", (Timeout,), make_timeout),
    ("bulkhead", (Bulkhead, BulkheadPool), make_bulkhead),
    ("concurrency_limit", (ConcurrencyLimit,), _concurrency_limit),
    ("chaos", (Chaos,), _chaos),
)
_RANK = {word: rank for rank, (word, _, _) in enumerate(ORDER)}


class Guard:
    """Policies in the recommended order. Make one with `guard(...)`."""

    __slots__ = ("_given", "_made")

    def __init__(self, given: dict[str, Any]) -> None:
        self._given = {word: value for word, value in given.items() if value is not _UNSET}
        if not self._given:
            raise ConfigError("guard", None, "needs at least one policy, such as retry=3 or timeout=2", None)
        self._made: Pipeline | None = None
        self._policies()  # wrong values fail here, not when something is decorated

    def _policies(self, skip: frozenset[str] = frozenset()) -> list[AnyPolicy]:
        """The policies in order; those given as shorthand are new ones each time."""
        policies: list[AnyPolicy] = []
        for word, types, make in ORDER:
            if word not in self._given or word in skip:
                continue
            value = self._given[word]
            if isinstance(value, types):
                policies.append(value)
            elif isinstance(value, Policy):
                raise ConfigError("guard", word, f"must be a {word.replace('_', ' ')} policy", repr(value))
            elif value is not False or word == "fallback":  # of which False is a value like any other
                policies.append(_made(word, make, value))
        return policies

    @property
    def pipeline(self) -> Pipeline:
        """What `call` and `acall` use."""
        if self._made is None:
            self._made = Pipeline(*self._policies())
        return self._made

    def __call__(self, target: F) -> F:
        """Decorate a function, or the public methods of a class. The type stays exactly as it is."""
        if isinstance(target, type):
            _guard_class(target, self)
            return cast("F", target)
        return self.guard_function(target)

    def guard_function(self, fn: F, owner: type | None = None, name: str = "") -> F:
        """`fn` under its own policies and these, in order; where it has one of a type already, its own wins.

        `owner`, `name`: the class whose method it is, and what it is called there.
        """
        own = policies_of(fn)
        mine = self._policies(frozenset(policy.type for policy in own))
        policies = sorted([*mine, *own], key=lambda policy: _RANK.get(policy.type, -1))
        weaving = weaving_of(fn)
        bare = cast("F", weaving.fn) if weaving is not None else fn
        first = () if owner is None else (MethodOnce(bare, owner, name),)
        return guard_with(bare, policies, "guard", before=first)

    def call(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Call `fn(*args, **kwargs)` under all of them."""
        return self.pipeline.call(fn, *args, **kwargs)

    async def acall(self, fn: Callable[P, Awaitable[T]], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Await `fn(*args, **kwargs)` under all of them."""
        return await self.pipeline.acall(fn, *args, **kwargs)

    def __str__(self) -> str:
        return str(self.pipeline)


def _made(word: str, make: Callable[[Any], AnyPolicy], value: Any) -> AnyPolicy:
    try:
        return make(value)
    except ConfigError as error:  # its parameter is not what was written here
        raise ConfigError("guard", word, error.allowed, repr(value)) from None


# ------------------------------------------------------------------ classes


def _guard_class(cls: type, guard: Guard) -> None:
    for name, member in list(vars(cls).items()):
        if name.startswith("_"):
            continue
        if isinstance(member, staticmethod):
            setattr(cls, name, type(member)(guard.guard_function(member.__func__)))
        elif isinstance(member, classmethod):
            setattr(cls, name, type(member)(guard.guard_function(member.__func__, cls, name)))
        elif isinstance(member, FunctionType):
            setattr(cls, name, guard.guard_function(member, cls, name))


_UNLESS_OVERRIDDEN = """\
if FIRST.__class__ is not owner and method.overridden(FIRST):
    RESULT = AWAIT bare(ARGS)
else:
    INNER"""


class OnceState(State):
    """Lets a call through bare when it comes from an override that is guarded itself: `super()` guards only once."""

    __slots__ = ("bare", "name", "owner", "policy")
    word = "method"
    parts = ("bare", "owner")

    def __init__(self, bare: Callable[..., Any], owner: type, name: str) -> None:
        self.bare, self.owner, self.name = bare, owner, name

    def overridden(self, first: object) -> bool:
        """Is there a guarded method of this name between the class of the instance (or this class) and the owner?

        Looked for along the whole way: the class itself may override an override without being guarded.
        """
        for cls in (first if isinstance(first, type) else type(first)).__mro__:
            if cls is self.owner:
                return False
            weaving = weaving_of(cls.__dict__.get(self.name))
            if weaving is not None and any(isinstance(policy, MethodOnce) for policy in weaving.policies):
                return True
        return False

    def _chosen(self, fn: Callable[..., Any], args: tuple[Any, ...]) -> Callable[..., Any]:
        return self.bare if args and self.overridden(args[0]) else fn

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return self._chosen(fn, args)(*args, **kwargs)

    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return await self._chosen(fn, args)(*args, **kwargs)

    def stream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        return (yield from self._chosen(fn, args)(*args, **kwargs))

    async def astream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        items = self._chosen(fn, args)(*args, **kwargs)
        try:
            async for item in items:
                yield item
        finally:
            await items.aclose()

    def fragment(self, kind: CallKind) -> str | None:
        return _UNLESS_OVERRIDDEN


class MethodOnce:
    """Stands before the policies of a guarded method, as the weaver knows them."""

    __slots__ = ("_layers",)

    def __init__(self, bare: Callable[..., Any], owner: type, name: str) -> None:
        self._layers = (OnceState(bare, owner, name),)

    def layers(self) -> tuple[State, ...]:
        return self._layers

    def woven_into(self, weaving: Weaving) -> None:
        """It never changes, so it need not know."""


# ------------------------------------------------------------------ the short name


def guard(
    *,
    feature_toggle: FeatureToggle | Callable[..., Any] | bool = _UNSET,
    cache: Cache | Seconds = _UNSET,
    fallback: Any = _UNSET,
    hedge: Hedge | Seconds | bool = _UNSET,
    retry: Retry | int | bool = _UNSET,
    circuit_breaker: CircuitBreaker | float | bool = _UNSET,
    fail_fast: FailFast | int | bool = _UNSET,
    adaptive_throttle: AdaptiveThrottle | float | bool = _UNSET,
    rate_limit: RateLimit | RateLimitChain | int = _UNSET,
    timeout: Timeout | Seconds = _UNSET,
    bulkhead: Bulkhead | BulkheadPool | int = _UNSET,
    concurrency_limit: ConcurrencyLimit | int | bool = _UNSET,
    chaos: Chaos | float | bool = _UNSET,
) -> Guard:
    """Guard a function, or the public methods of a class, by several policies in the order that is almost always right.

    Outermost first: feature toggle, cache, fallback, hedge, retry, circuit breaker, fail fast, rate limit, timeout,
    bulkhead, chaos, the call. So a retry sees a rejecting breaker, each attempt has its own timeout, and a call that
    times out while queueing leaves the queue.

    Each is a policy object, which may be shared, or a shorthand: `retry=3` is `retry(attempts=3)`, `timeout=2` is
    `timeout(2)`, `circuit_breaker=0.5` is `circuit_breaker(failure_rate=0.5)`, `fail_fast=3` is
    `fail_fast(failures=3)`, `cache=60` is `cache(60)`, `rate_limit=50` is `rate_limit(50)` (a second), `bulkhead=10` is
    `bulkhead(10)`, a function as `feature_toggle` is its predicate, `chaos=0.01` is `chaos(rate=0.01,
    error=ConnectionError)`, `True` takes the defaults, and a `fallback` that is no policy is the alternative itself.

    On a class, shorthands make policies of its own for each public method, a method's own decorators win over those of
    the same type here, and a call through `super()` from a guarded override is not guarded a second time.

    >>> from everkeel import guard, policies_of
    >>> @guard(retry=3, timeout=2.0, fallback="no quote")
    ... async def quote(item: str) -> str:
    ...     return f"{item} for ten"
    >>> [policy.type for policy in policies_of(quote)]
    ['fallback', 'retry', 'timeout']
    """
    return Guard(
        {
            "feature_toggle": feature_toggle,
            "cache": cache,
            "fallback": fallback,
            "hedge": hedge,
            "retry": retry,
            "circuit_breaker": circuit_breaker,
            "fail_fast": fail_fast,
            "adaptive_throttle": adaptive_throttle,
            "rate_limit": rate_limit,
            "timeout": timeout,
            "bulkhead": bulkhead,
            "concurrency_limit": concurrency_limit,
            "chaos": chaos,
        }
    )
