"""What may be set on a rate limit."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeAlias

from everkeel.ratelimit.algorithm import Algorithm, Rate, nanoseconds
from everkeel.ratelimit.buckets import LeakyBucket, TokenBucket, WarmingBucket
from everkeel.ratelimit.windows import FixedWindow, SlidingCounter, SlidingLog
from everkeel.runtime.settings import (
    Choice,
    Converted,
    Count,
    Duration,
    Flag,
    Function,
    Kind,
    Number,
    Settings,
    setting,
)

ALGORITHMS: dict[str, type[Algorithm]] = {
    one.name: one for one in (TokenBucket, LeakyBucket, FixedWindow, SlidingLog, SlidingCounter)
}
WINDOWS = (FixedWindow.name, SlidingLog.name, SlidingCounter.name)
COLD = 3  # how many times as much a permit costs in a cold bucket
Limit: TypeAlias = int | tuple[int, float] | tuple[int, float, int]
"""A limit of its own for a key: permits; permits and seconds; or permits, seconds and burst."""
Limits: TypeAlias = Mapping[Any, Limit] | Callable[[Any], Limit | None]
Keys: TypeAlias = Container[Any] | Callable[[Any], bool]


class AlgorithmKind(Kind):
    """The name of an algorithm, or a class of your own."""

    form = "algorithm"

    def check(self, value: Any) -> Any:
        if isinstance(value, str) and value in ALGORITHMS:
            return value
        if callable(value) and not isinstance(value, str):
            return value
        names = ", ".join(repr(name) for name in ALGORITHMS)
        raise ValueError(f"must be {names}, or a subclass of Algorithm")


def _cost(value: Any) -> Any:
    if callable(value):
        return value
    try:
        return Count(at_least=1).check(value)
    except ValueError:
        raise ValueError("must be a whole number of at least 1, or a function of the call's arguments") from None


def _limits(value: Any) -> Any:
    if callable(value) or isinstance(value, Mapping):
        return value
    raise ValueError("must be a table from key to limit, or a function of the key")


def _keys(value: Any) -> Any:
    if callable(value) or hasattr(type(value), "__contains__"):
        return value
    raise ValueError("must be a set of keys, or a predicate on a key")


@dataclass(frozen=True, kw_only=True, slots=True)
class RateLimitConfig(Settings):
    """The settings of a rate limit; `everkeel.rate_limit` says what each is for."""

    policy_type: ClassVar[str] = "rate_limit"

    permits: int = setting(Count(at_least=1))
    per: float = setting(Duration(), default=1.0)
    burst: int | None = setting(Count(at_least=1), default=None, none="as many as permits; 1 for a leaky bucket")
    algorithm: str | Callable[[Rate], Algorithm] = setting(AlgorithmKind(), default="token_bucket")
    cost: int | Callable[..., int] = setting(Converted(_cost, "cost"), default=1)
    queue: int = setting(Count(at_least=0), default=0)
    max_wait: float | None = setting(Duration(zero=True), default=None, none="as long as it takes")
    order: Literal["oldest", "newest"] = setting(Choice("oldest", "newest"), default="oldest")
    exclude: Callable[..., bool] | None = setting(Function("of the call's arguments"), default=None, none="nothing")
    on_rejected: Callable[[Any], Any] | None = setting(Function("of the error"), default=None, none="no hook")
    drain_on: Callable[[Any], Any] | None = setting(Function("of the result"), default=None, none="never")
    warm_up: float | None = setting(Duration(), default=None, none="always at full rate")
    limits: Limits | None = setting(Converted(_limits, "limits"), default=None, none="the same limit for every key")
    allow: Keys | None = setting(Converted(_keys, "keys"), default=None, none="nobody")
    deny: Keys | None = setting(Converted(_keys, "keys"), default=None, none="nobody")
    retry_after_strategy: Literal["fixed", "utilization", "backpressure"] = setting(
        Choice("fixed", "utilization", "backpressure"), default="fixed"
    )
    backpressure: bool = setting(Flag(), default=False)
    p95_baseline: float = setting(Duration(), default=0.2)
    min_latency: float = setting(Duration(), default=0.05)
    min_retry_delay: float = setting(Duration(zero=True), default=1.0)
    max_retry_penalty: float = setting(Duration(zero=True), default=15.0)
    gradient_sensitivity: float = setting(Number(at_least=0.001), default=2.0)
    window_size: int = setting(Count(at_least=1), default=100)

    rate: Rate = field(init=False, repr=False, compare=False)
    measured: bool = field(init=False, repr=False, compare=False)  # is the latency of calls looked at?

    def check_together(self) -> None:
        if nanoseconds(self.per) < 1:
            raise self.wrong("per", self.per, "must be at least a nanosecond")
        if self.algorithm in WINDOWS and self.burst is not None:
            raise self.wrong("burst", self.burst, f"must not be set with a {self.algorithm}: its burst is its permits")
        if self.warm_up is not None and self.algorithm != "token_bucket":
            raise self.wrong("warm_up", self.warm_up, 'must not be set unless algorithm is "token_bucket"')
        object.__setattr__(self, "rate", self.rate_of(self.permits, self.per, self.burst))
        measured = self.backpressure or self.retry_after_strategy == "backpressure"
        object.__setattr__(self, "measured", measured)
        if self.warm_up is not None and self.rate.burst < COLD:
            few = f"must not be set with a burst below {COLD} (it is {self.rate.burst})"
            raise self.wrong("warm_up", self.warm_up, few)
        made = self.make_algorithm(self.rate)
        if not isinstance(made, Algorithm):
            raise self.wrong("algorithm", self.algorithm, f"must make an Algorithm of a rate, not {made!r}")
        if not callable(self.cost) and self.cost > made.capacity:
            raise self.wrong("cost", self.cost, f"must be at most {made.capacity}: more can never be granted at once")
        if isinstance(self.limits, dict):  # other mappings may be large, or slow, or not there yet
            for limit in self.limits.values():
                self.rate_for(limit)

    def same_rates(self, other: RateLimitConfig) -> bool:
        """Would the other one grant the same?"""
        mine = (self.rate, self.algorithm, self.warm_up, self.limits)
        return mine == (other.rate, other.algorithm, other.warm_up, other.limits)

    @property
    def measuring(self) -> tuple[object, ...]:
        """How the latency of calls is looked at."""
        return self.measured, self.p95_baseline, self.min_latency, self.gradient_sensitivity, self.window_size

    def rate_of(self, permits: int, per: float, burst: int | None) -> Rate:
        """A rate of this algorithm."""
        if burst is None:
            burst = 1 if self.algorithm == "leaky_bucket" else permits
        return Rate(permits, nanoseconds(per), burst)

    def make_algorithm(self, rate: Rate) -> Algorithm:
        """The algorithm at a rate."""
        if self.warm_up is not None:
            return WarmingBucket(rate, nanoseconds(self.warm_up), COLD)
        return ALGORITHMS[self.algorithm](rate) if isinstance(self.algorithm, str) else self.algorithm(rate)

    def rate_for(self, limit: Any) -> Rate:
        """The rate of a key with a limit of its own."""
        parts = limit if isinstance(limit, tuple) else (limit,)
        permits, per, burst = (*parts, None, None)[:3]
        try:
            if len(parts) > 3 or (burst is not None and self.algorithm in WINDOWS):
                raise ValueError
            count = Count(at_least=1)
            kept = None if burst is None else count.check(burst)
            rate = self.rate_of(count.check(permits), self.per if per is None else Duration().check(per), kept)
            if rate.per < 1 or (self.warm_up is not None and rate.burst < COLD):
                raise ValueError
        except (TypeError, ValueError):
            burst_too = "" if self.algorithm in WINDOWS else ", or also a burst"
            least = "" if self.warm_up is None else f", with a burst of at least {COLD} to warm up"
            raise self.wrong(
                "limits", limit, f"must give permits, or a tuple of permits and seconds{burst_too}{least}"
            ) from None
        return rate
