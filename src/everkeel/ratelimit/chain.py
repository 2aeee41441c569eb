"""Several limiters that take all or nothing: a global one and one per user; requests and tokens of a language model.

What cannot be known before a call is reserved by estimate and settled afterwards.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Hashable
from dataclasses import dataclass
from typing import Any, ClassVar, cast

from everkeel.errors import ConfigError
from everkeel.ratelimit.policy import RateLimit
from everkeel.runtime.clock import Clock
from everkeel.runtime.policy import Policy
from everkeel.runtime.settings import Mode, Settings
from everkeel.runtime.state import CallKind, State
from everkeel.runtime.tally import read, tally


class Reservation:
    """Permits that were taken by estimate. Settle it with what was really used; without that, the estimate stands."""

    __slots__ = ("_key", "_limits", "_open", "costs")

    def __init__(self, limits: dict[str, RateLimit], costs: dict[str, int], key: Hashable) -> None:
        self._limits, self.costs, self._key = limits, costs, key
        self._open = True

    def settle(self, **actual: int) -> None:
        """What was really used, by resource: the difference is charged or given back. Once."""
        self._close()
        for name, used in actual.items():
            if name not in self.costs:
                raise ConfigError("reservation", name, f"must be one of {', '.join(self.costs)}", repr(used))
            self._adjust(name, used - self.costs[name])

    def cancel(self) -> None:
        """Nothing was used: all of it is given back."""
        self._close()
        for name, cost in self.costs.items():
            self._adjust(name, -cost)

    def _close(self) -> None:
        if not self._open:
            raise RuntimeError("this reservation is settled or cancelled already")
        self._open = False

    def _adjust(self, name: str, difference: int) -> None:
        if difference:
            limit = self._limits[name]
            limit.adjust(difference, key=None if limit.key_of is None else self._key)

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *error: object) -> None:
        """The estimate stands unless it was settled: the request was made, whatever became of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChainConfig(Settings):
    """A chain has no settings of its own but its mode."""

    policy_type: ClassVar[str] = "rate_limit_chain"


class Chaining(State):
    """Asks one limiter after the other, and gives back what it took when one says no."""

    __slots__ = ("ok", "policy")
    policy: RateLimitChain

    def __init__(self, policy: RateLimitChain) -> None:
        self.policy, self.ok = policy, tally()

    def _wants(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tuple[RateLimit, Hashable, int]]:
        return [
            (limit, limit.limiter._key(args, kwargs), limit.limiter._cost(args, kwargs))
            for limit in self.policy.limits.values()
        ]

    def take(self, wants: list[tuple[RateLimit, Hashable, int]]) -> None:
        """All of them, or the error of the first that said no."""
        taken: list[tuple[RateLimit, Hashable, int]] = []
        try:
            for limit, key, cost in wants:
                limit.acquire(cost=cost, key=key)
                taken.append((limit, key, cost))
        except BaseException:
            self._give_back(taken)
            raise
        next(self.ok)

    async def atake(self, wants: list[tuple[RateLimit, Hashable, int]]) -> None:
        """The same for a coroutine."""
        taken: list[tuple[RateLimit, Hashable, int]] = []
        try:
            for limit, key, cost in wants:
                await limit.aacquire(cost=cost, key=key)
                taken.append((limit, key, cost))
        except BaseException:
            self._give_back(taken)
            raise
        next(self.ok)

    def _give_back(self, taken: list[tuple[RateLimit, Hashable, int]]) -> None:
        next(self.policy.rejections)
        for limit, key, cost in taken:
            limit.adjust(-cost, key=key)

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self.take(self._wants(args, kwargs))
        return fn(*args, **kwargs)

    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        await self.atake(self._wants(args, kwargs))
        return await fn(*args, **kwargs)

    def stream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        self.take(self._wants(args, kwargs))
        return (yield from fn(*args, **kwargs))

    async def astream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        await self.atake(self._wants(args, kwargs))
        items = fn(*args, **kwargs)
        try:
            async for item in items:
                yield item
        finally:
            await items.aclose()

    def fragment(self, kind: CallKind) -> str | None:
        return None

    def shadow(self) -> State:
        return self  # its limiters have shadows of their own

    def successes(self) -> int:
        return read(self.ok)

    def details(self) -> dict[str, Any]:
        return {"limits": {name: limit.snapshot() for name, limit in self.policy.limits.items()}}


class RateLimitChain(Policy[ChainConfig]):
    """Limiters that take all or nothing; make one with `rate_limit_chain(...)`."""

    __slots__ = ("limits",)
    type = "rate_limit_chain"
    no_block = "its limiters take their costs from a call's arguments; use reserve(), or decorate a function"

    def __init__(self, name: str | None, config: ChainConfig, *, limits: dict[str, RateLimit], **rest: Any) -> None:
        self.limits = limits
        super().__init__(name, config, **rest)

    def make_state(self, key: Hashable = None) -> Chaining:
        return Chaining(self)

    def derive(self, name: str | None = None, **changes: Any) -> RateLimitChain:
        return RateLimitChain(name, self.config.changed(name, changes), limits=self.limits)

    def reserve(self, *, key: Hashable = None, **costs: int) -> Reservation:
        """Take an estimate of each resource, all or nothing; settle it afterwards.

        >>> from everkeel import rate_limit, rate_limit_chain
        >>> model = rate_limit_chain(requests=rate_limit(60, per=60), tokens=rate_limit(10_000, per=60))
        >>> with model.reserve(requests=1, tokens=800) as reservation:
        ...     reservation.settle(tokens=650)
        >>> model.limits["tokens"].remaining()
        9350
        """
        wants, costs = self._wants(key, costs)
        cast("Chaining", self.state).take(wants)
        return Reservation(self.limits, costs, key)

    async def areserve(self, *, key: Hashable = None, **costs: int) -> Reservation:
        """The same for a coroutine."""
        wants, costs = self._wants(key, costs)
        await cast("Chaining", self.state).atake(wants)
        return Reservation(self.limits, costs, key)

    def _wants(
        self, key: Hashable, costs: dict[str, int]
    ) -> tuple[list[tuple[RateLimit, Hashable, int]], dict[str, int]]:
        for name, cost in costs.items():
            if name not in self.limits:
                raise ConfigError(self.label, name, f"must be one of {', '.join(self.limits)}", repr(cost))
        costs = {name: costs.get(name, 1) for name in self.limits}
        wants = [(limit, None if limit.key_of is None else key, costs[name]) for name, limit in self.limits.items()]
        return wants, costs


def rate_limit_chain(
    *limits: RateLimit, name: str | None = None, mode: Mode = "enforce", clock: Clock | None = None, **named: RateLimit
) -> RateLimitChain:
    """Limiters that take all or nothing: what one has granted is given back when another says no.

    Decorating a function, each takes its own key and cost from the arguments. Named ones can be reserved by estimate
    and settled with what was really used: requests and tokens of a language model.

    >>> from everkeel import rate_limit, rate_limit_chain
    >>> everybody, each = rate_limit(1000), rate_limit(10, key=lambda user: user)
    >>> @rate_limit_chain(everybody, each)
    ... def search(user: str) -> str:
    ...     return "found"
    >>> search("ann")
    'found'
    """
    all_limits = {**{str(position): limit for position, limit in enumerate(limits, 1)}, **named}
    owner = "rate limit chain" if name is None else f"rate limit chain {name!r}"
    if not all_limits:
        raise ConfigError(owner, "limits", "must be at least one rate limit", "none")
    for which, limit in all_limits.items():
        if not isinstance(limit, RateLimit):
            raise ConfigError(owner, f"limit {which}", "must be a rate_limit(...)", repr(limit))
    return RateLimitChain(name, ChainConfig.make(name, {"mode": mode}), limits=all_limits, clock=clock)
