"""What the user holds: `rate_limit(...)`."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Literal, NamedTuple, Self, cast

from everkeel.errors import ConfigError, RateLimitedError
from everkeel.ratelimit.algorithm import NANO, Algorithm, Rate, seconds_up
from everkeel.ratelimit.config import Keys, Limits, RateLimitConfig
from everkeel.ratelimit.shadow import WouldLimit
from everkeel.ratelimit.state import Limiting
from everkeel.runtime import block
from everkeel.runtime import events as hub
from everkeel.runtime.clock import DEFAULT, Clock
from everkeel.runtime.policy import Policy, Snapshot
from everkeel.runtime.settings import Count, Duration, Mode, Seconds
from everkeel.runtime.state import State


class RateLimitSnapshot(Snapshot):
    """What a rate limit's snapshot adds. `success` counts the calls it let in: it does not look at how they end."""

    capacity: int
    available: int | None
    utilization: float | None
    refill_rate: float
    backpressure: float | None
    waiting: int
    queued: int
    excluded: int
    keys: int
    overflow: int


class Standing(NamedTuple):
    """How a key stands with its limit. Times are seconds."""

    permits: int
    per: float
    remaining: int
    reset_after: float


class RateLimit(Policy[RateLimitConfig]):
    """A rate limit; make one with `rate_limit(...)`."""

    __slots__ = ("key_of", "max_keys")
    type = "rate_limit"

    def __init__(
        self,
        name: str | None,
        config: RateLimitConfig,
        *,
        clock: Clock | None = None,
        replace: bool = False,
        key: Callable[..., Hashable] | None = None,
        max_keys: int = 100_000,
    ) -> None:
        self.key_of, self.max_keys = key, max_keys
        label = "rate limit" if name is None else f"rate limit {name!r}"
        if key is not None and not callable(key):
            raise ConfigError(label, "key", "must be a function of the call's arguments", repr(key))
        for setting in ("limits", "allow", "deny"):
            value = getattr(config, setting)
            if key is None and value is not None:
                raise ConfigError(
                    label, setting, "must not be set without a key function, which says whose", repr(value)
                )
        try:
            Count(at_least=1).check(max_keys)
        except ValueError as error:
            raise ConfigError(label, "max_keys", str(error), repr(max_keys)) from None
        super().__init__(name, config, clock=clock, replace=replace)

    def make_state(self, key: Hashable = None) -> Limiting:
        return Limiting(self)

    @property
    def limiter(self) -> Limiting:
        """The state, by its own type."""
        return cast("Limiting", self.state)

    def derive(self, name: str | None = None, **changes: Any) -> Self:
        clock = None if self.clock is DEFAULT else self.clock
        config = self.config.changed(name, changes)
        return type(self)(name, config, clock=clock, key=self.key_of, max_keys=self.max_keys)

    # ------------------------------------------------------------------ without a function to call

    def acquire(self, *, cost: int | None = None, key: Hashable = None) -> None:
        """Take permits, waiting in line where that is configured; `RateLimitedError` otherwise."""
        self.take(self.whose(key), self._price(cost))

    async def aacquire(self, *, cost: int | None = None, key: Hashable = None) -> None:
        """The same for a coroutine."""
        await self.atake(self.whose(key), self._price(cost))

    def try_acquire(self, *, cost: int | None = None, key: Hashable = None) -> bool:
        """Take permits if they are there now. Never waits and never raises for want of them.

        >>> from everkeel import rate_limit
        >>> door = rate_limit(1, per=60)
        >>> door.try_acquire(), door.try_acquire()
        (True, False)
        """
        if isinstance(self.look(self.whose(key), self._price(cost)), RateLimitedError):
            next(self.rejections)
            return False
        return True

    def take(
        self, key: Hashable, cost: int, args: tuple[Any, ...] | None = None, kwargs: dict[str, Any] | None = None
    ) -> int | None:
        """Take permits for a call with these arguments; answers how many, None where it is not limited."""
        for layer in self.layers():
            if isinstance(layer, Limiting):
                return layer.admit(key, cost, args, kwargs)
            if isinstance(layer, WouldLimit):
                return layer.watch(key, cost, args, kwargs)
        return None

    def look(
        self, key: Hashable, cost: int, args: tuple[Any, ...] | None = None, kwargs: dict[str, Any] | None = None
    ) -> int | RateLimitedError | None:
        """The same without waiting and without raising: the error of which nobody has been told is the answer."""
        for layer in self.layers():
            if isinstance(layer, Limiting):
                return layer.look(key, cost, args, kwargs)
            if isinstance(layer, WouldLimit):
                return layer.watch(key, cost, args, kwargs)
        return None

    async def atake(
        self, key: Hashable, cost: int, args: tuple[Any, ...] | None = None, kwargs: dict[str, Any] | None = None
    ) -> int | None:
        """The same for a coroutine."""
        for layer in self.layers():
            if isinstance(layer, Limiting):
                return await layer.aadmit(key, cost, args, kwargs)
            if isinstance(layer, WouldLimit):
                return layer.watch(key, cost, args, kwargs)
        return None

    def entry(self, *, key: Hashable = None, cost: int | None = None) -> block.Entry:
        """A block for a key, or with a cost of its own: `with limiter.entry(key=user): ...`."""
        whose, price = self.whose(key), self._price(cost)
        return block.Entry(tuple(_Admission(layer, whose, price) for layer in self.layers()))

    def constant_cost(self) -> int:
        """What a call costs; 1 where that is a function of the arguments and there are none."""
        cost = self.config.cost
        return 1 if callable(cost) else cost

    def _price(self, cost: int | None) -> int:
        return self.constant_cost() if cost is None else cost

    def whose(self, key: Hashable) -> Hashable:
        """The key, if this limiter has keys: permits must never be taken from everybody by mistake."""
        if self.key_of is None and key is not None:
            raise TypeError(f"{self.label} has no key function, so {key!r} has no limit of its own: make it with key=")
        if self.key_of is not None and key is None:
            raise TypeError(f"{self.label} has a key function: say whose permits with key=")
        return key

    def _needs_no_key(self) -> None:
        if self.key_of is not None:
            raise TypeError(f"{self.label} has a key function: use entry(key=...) instead of the policy as a block")

    # ------------------------------------------------------------------ by hand

    def drain(self, seconds: Seconds | None = None, *, key: Hashable = None) -> None:
        """Grant nothing for so many seconds: the protected service asked for a pause. None: empty it, and no longer.

        After a pause a bucket has its first permit, and a window what was left of it.
        """
        self.drained(seconds, self.whose(key))

    def drained(self, seconds: Seconds | None, key: Hashable) -> None:
        """The same for whatever a key function answers."""
        length = None
        if seconds is not None:
            try:
                length = Duration(zero=True).check(seconds)
            except ValueError as error:
                raise ConfigError(self.label, "seconds", str(error), repr(seconds)) from None
        limiter = self.limiter
        limiter.door.drain(key, limiter.limit_of(key), length)
        self.counts.tick("drained")
        if self.heard():
            from everkeel.events import Drained

            self.emit(Drained(policy=self.name, policy_type=self.type, seconds=length, key=key))

    def adjust(self, permits: int, *, key: Hashable = None) -> None:
        """Charge so many permits more without asking, or give back with a negative number."""
        if isinstance(permits, bool) or not isinstance(permits, int):
            raise ConfigError(self.label, "permits", "must be a whole number", repr(permits))
        self.adjusted(permits, self.whose(key))

    def adjusted(self, permits: int, key: Hashable) -> None:
        """The same for whatever a key function answers."""
        limiter = self.limiter
        limiter.door.adjust(key, limiter.limit_of(key), permits)

    def correct(self, *, remaining: int, reset_after: Seconds | None = None, key: Hashable = None) -> None:
        """Believe the server, which says what is left: no more than that is granted now.

        With nothing left, nothing is granted for `reset_after` seconds. A server that says there is more than we think
        does not make us grant more.
        """
        if isinstance(remaining, bool) or not isinstance(remaining, int):
            raise ConfigError(self.label, "remaining", "must be a whole number", repr(remaining))
        if remaining <= 0 and reset_after is not None:
            self.drain(reset_after, key=key)
        else:
            limiter, whose = self.limiter, self.whose(key)
            limiter.door.lower(whose, limiter.limit_of(whose), max(0, remaining))

    def remaining(self, *, key: Hashable = None) -> int:
        """How many permits are there now."""
        limiter, whose = self.limiter, self.whose(key)
        return limiter.door.remaining(whose, limiter.limit_of(whose))

    def standing(self, key: Hashable) -> Standing:
        """How a key stands, for whoever is to be told: its limit, what is left, and when all of it is there again."""
        limiter = self.limiter
        rate, decision = limiter.door.standing(key, limiter.limit_of(key))
        return Standing(rate.permits, rate.per / NANO, decision.remaining, seconds_up(decision.reset_after))

    # ------------------------------------------------------------------ being watched

    def grants_are_heard(self) -> bool:
        """Does anybody listen for `Granted`?"""
        if not self.heard():
            return False
        from everkeel.events import Granted

        return any(one.wants(Granted) for one in (*self.subscriptions, *hub.everywhere))

    def snapshot(self) -> RateLimitSnapshot:
        return cast("RateLimitSnapshot", super().snapshot())


class _Admission(State):
    """A layer whose key and cost are given, for a block."""

    __slots__ = ("_cost", "_key", "_layer", "policy")

    def __init__(self, layer: State, key: Hashable, cost: int) -> None:
        self._layer, self._key, self._cost, self.policy = layer, key, cost, layer.policy

    def enter(self) -> Any:
        layer = self._layer
        if isinstance(layer, Limiting):
            layer.admit(self._key, self._cost)
            return layer.begin()
        if isinstance(layer, WouldLimit):
            layer.watch(self._key, self._cost)
            return layer.state.begin()
        return layer.enter()

    async def aenter(self) -> Any:
        if isinstance(self._layer, Limiting):
            await self._layer.aadmit(self._key, self._cost)
            return self._layer.begin()
        return self.enter()

    def ended(self, permit: Any, error: BaseException | None, result: Any = None) -> None:
        layer = self._layer.state if isinstance(self._layer, WouldLimit) else self._layer
        if error is None and isinstance(layer, Limiting):
            layer.answered(permit, result, self._key)
        else:
            layer.ended(permit, error, result)


def rate_limit(
    permits: int,
    name: str | None = None,
    *,
    per: Seconds = 1.0,
    burst: int | None = None,
    algorithm: str | Callable[[Rate], Algorithm] = "token_bucket",
    key: Callable[..., Hashable] | None = None,
    cost: int | Callable[..., int] = 1,
    queue: int = 0,
    max_wait: Seconds | None = None,
    order: Literal["oldest", "newest"] = "oldest",
    exclude: Callable[..., bool] | None = None,
    on_rejected: Callable[[RateLimitedError], Any] | None = None,
    drain_on: Callable[[Any], Any] | None = None,
    warm_up: Seconds | None = None,
    limits: Limits | None = None,
    allow: Keys | None = None,
    deny: Keys | None = None,
    retry_after_strategy: Literal["fixed", "utilization", "backpressure"] = "fixed",
    backpressure: bool = False,
    p95_baseline: Seconds = 0.2,
    min_latency: Seconds = 0.05,
    min_retry_delay: Seconds = 1.0,
    max_retry_penalty: Seconds = 15.0,
    gradient_sensitivity: float = 2.0,
    window_size: int = 100,
    max_keys: int = 100_000,
    mode: Mode = "enforce",
    clock: Clock | None = None,
    replace: bool = False,
) -> RateLimit:
    """Let so many calls through per time, in all or for each key, and tell the rest exactly when to come back.

    Over the limit a call is rejected; with a `queue` it waits its turn, at most `max_wait`. Waiting is fair: nobody
    overtakes, whatever their cost, and one who gives up leaves no trace. The limit is this process's own.

    Args:
        permits: How many.
        name: Its identity in errors, events, metrics and configuration. Without one it takes the decorated function's.
        per: In how many seconds.
        burst: How many at once after a quiet time; as many as `permits` by default, 1 for a leaky bucket.
        algorithm: "token_bucket" (bursts, then evenly), "leaky_bucket" (evenly spaced), "fixed_window",
            "sliding_window_log" (exact, remembers every grant), "sliding_window_counter" (an estimate), or a subclass
            of `everkeel.ratelimit.Algorithm`. The docs show what each lets through.
        key: A function of the call's arguments: a limit of its own for each answer (a user, an address).
        cost: How many permits a call takes, or a function of its arguments. One that could never be granted is a
            `ConfigError` at once, rather than a wait for ever.
        queue: How many calls may wait.
        max_wait: How long one may wait. A deadline that travels with the call bounds it too; a wait that cannot fit is
            not begun.
        order: Who is first in line: the "oldest", or the "newest", whose caller is the most likely to be there still.
        exclude: A predicate on the arguments: True for calls that are not limited.
        on_rejected: Called with the error before it is raised; may raise another in its place.
        drain_on: A function of the result: True, or seconds, when the service asks for a pause.
        warm_up: After having been idle for so many seconds, begin at a third of the rate and grow to the full one over
            as many seconds.
        limits: Limits of their own for some keys: a table or a function from key to permits, or to a tuple of permits
            and seconds, or also burst.
        allow: Keys that are never limited: a set, or a predicate.
        deny: Keys that are always rejected.
        retry_after_strategy: What rejected callers are told: "fixed", exactly what is needed; "utilization", more the
            emptier the bucket is; "backpressure", more the slower the service is. Never less than exact.
        backpressure: Measure how hard-pressed the service is (it costs a second reading of the clock).
        p95_baseline: The latency that most calls are expected to stay below, to begin with.
        min_latency: The least latency to be expected.
        min_retry_delay: What the backpressure strategy asks for at least.
        max_retry_penalty: What it adds at most.
        gradient_sensitivity: How far above `min_latency` the mean must be, in units of it, to count as fully pressed.
        window_size: Over how many of the last calls that is measured.
        max_keys: How many keys are kept apart; while so many are limited at once, further ones share a state.
        mode: "enforce", "shadow" (counts whom it would have stopped) or "off".
        clock: Where its time comes from, in place of the default.
        replace: Take the name from a policy that has it.

    >>> from everkeel import RateLimitedError, rate_limit
    >>> @rate_limit(2, per=60, key=lambda user, query: user)
    ... def search(user: str, query: str) -> str:
    ...     return f"results for {query}"
    >>> search("ann", "tea"), search("ann", "cups"), search("bob", "tea")
    ('results for tea', 'results for cups', 'results for tea')
    >>> try:
    ...     search("ann", "spoons")
    ... except RateLimitedError as error:
    ...     print(error.key, error.limit, round(error.retry_after))
    ann 2 30
    """
    values = {
        "permits": permits,
        "per": per,
        "burst": burst,
        "algorithm": algorithm,
        "cost": cost,
        "queue": queue,
        "max_wait": max_wait,
        "order": order,
        "exclude": exclude,
        "on_rejected": on_rejected,
        "drain_on": drain_on,
        "warm_up": warm_up,
        "limits": limits,
        "allow": allow,
        "deny": deny,
        "retry_after_strategy": retry_after_strategy,
        "backpressure": backpressure,
        "p95_baseline": p95_baseline,
        "min_latency": min_latency,
        "min_retry_delay": min_retry_delay,
        "max_retry_penalty": max_retry_penalty,
        "gradient_sensitivity": gradient_sensitivity,
        "window_size": window_size,
        "mode": mode,
    }
    config = RateLimitConfig.make(name, values)
    return RateLimit(name, config, clock=clock, replace=replace, key=key, max_keys=max_keys)
