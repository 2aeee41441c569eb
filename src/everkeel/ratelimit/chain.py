"""Several limiters that take all or nothing: a global one and one per user; requests and tokens of a language model.

What cannot be known before a call is reserved by estimate and settled afterwards.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Hashable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

from everkeel.errors import ConfigError, RateLimitedError, RejectedError
from everkeel.ratelimit.policy import RateLimit
from everkeel.runtime.clock import DEFAULT, Clock
from everkeel.runtime.outcome import Verdict
from everkeel.runtime.policy import Policy
from everkeel.runtime.settings import Count, Mode, Settings
from everkeel.runtime.state import CallKind, State
from everkeel.runtime.tally import read, tally


class Share(NamedTuple):
    """What is wanted, or was taken, of one limiter; `taken` is None where it did not limit the call."""

    name: str
    limit: RateLimit
    key: Hashable
    cost: int
    taken: int | None = None

    def give_back(self) -> None:
        """As if it had never been taken."""
        if self.taken:
            self.limit.adjusted(-self.taken, self.key)


class Reservation:
    """Permits that were taken by estimate. Settle it with what was really used; without that, the estimate stands."""

    __slots__ = ("_open", "_shares", "costs")

    def __init__(self, shares: list[Share]) -> None:
        self._shares = {share.name: share for share in shares}
        self.costs = {share.name: share.cost for share in shares}
        """The estimate, by resource."""
        self._open = True

    def settle(self, **actual: int) -> None:
        """What was really used, by resource: the difference is charged or given back. Once."""
        for name, used in actual.items():
            if name not in self.costs:
                raise ConfigError("reservation", name, f"must be one of {', '.join(self.costs)}", repr(used))
            _must_be_a_count("reservation", name, used)
        self._close()
        for name, used in actual.items():
            share = self._shares[name]
            if share.taken is not None and used != share.taken:
                share.limit.adjusted(used - share.taken, share.key)

    def cancel(self) -> None:
        """Nothing was used: all of it is given back."""
        self._close()
        for share in self._shares.values():
            share.give_back()

    def _close(self) -> None:
        if not self._open:
            raise RuntimeError("this reservation is settled or cancelled already")
        self._open = False

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
    word = "chain"
    policy: RateLimitChain

    def __init__(self, policy: RateLimitChain) -> None:
        self.policy, self.ok = policy, tally()

    def wants(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Share]:
        """What a call with these arguments wants of each."""
        return [
            Share(name, limit, limit.limiter.key_for(args, kwargs), limit.limiter.cost_of(args, kwargs))
            for name, limit in self.policy.limits.items()
        ]

    def take(
        self, wants: list[Share], args: tuple[Any, ...] | None = None, kwargs: dict[str, Any] | None = None
    ) -> list[Share]:
        """All of them, or the error of the first that said no."""
        taken: list[Share] = []
        try:
            for share in wants:
                got = share.limit.take(share.key, share.cost, args, kwargs)
                taken.append(share._replace(taken=got))
        except BaseException as error:
            self._give_back(taken, error)
            raise
        next(self.ok)
        return taken

    async def atake(
        self, wants: list[Share], args: tuple[Any, ...] | None = None, kwargs: dict[str, Any] | None = None
    ) -> list[Share]:
        """The same for a coroutine."""
        taken: list[Share] = []
        try:
            for share in wants:
                got = await share.limit.atake(share.key, share.cost, args, kwargs)
                taken.append(share._replace(taken=got))
        except BaseException as error:
            self._give_back(taken, error)
            raise
        next(self.ok)
        return taken

    def _give_back(self, taken: list[Share], error: BaseException) -> None:
        if isinstance(error, RateLimitedError):
            next(self.policy.rejections)
        for share in taken:
            share.give_back()

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self.take(self.wants(args, kwargs), args, kwargs)
        return fn(*args, **kwargs)

    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        await self.atake(self.wants(args, kwargs), args, kwargs)
        return await fn(*args, **kwargs)

    def stream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        self.take(self.wants(args, kwargs), args, kwargs)
        return (yield from fn(*args, **kwargs))

    async def astream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        await self.atake(self.wants(args, kwargs), args, kwargs)
        items = fn(*args, **kwargs)
        try:
            async for item in items:
                yield item
        finally:
            await items.aclose()

    def fragment(self, kind: CallKind) -> str | None:
        return None

    def shadow(self) -> State:
        return WouldChain(self.policy, self.ok)

    def successes(self) -> int:
        return read(self.ok)

    def details(self) -> dict[str, Any]:
        return {"limits": {name: limit.snapshot() for name, limit in self.policy.limits.items()}}


class WouldChain(Chaining):
    """Takes what is there where all of it is, and lets everybody pass."""

    __slots__ = ()

    def __init__(self, policy: RateLimitChain, ok: Any) -> None:
        self.policy, self.ok = policy, ok

    def take(
        self, wants: list[Share], args: tuple[Any, ...] | None = None, kwargs: dict[str, Any] | None = None
    ) -> list[Share]:
        taken: list[Share] = []
        for share in wants:
            answer = share.limit.look(share.key, share.cost, args, kwargs)
            if isinstance(answer, RateLimitedError):
                for one in taken:
                    one.give_back()
                self.policy.would("queue" if share.limit.config.queue else "reject", answer)
                return wants
            taken.append(share._replace(taken=answer))
        next(self.ok)
        return taken

    async def atake(
        self, wants: list[Share], args: tuple[Any, ...] | None = None, kwargs: dict[str, Any] | None = None
    ) -> list[Share]:
        return self.take(wants, args, kwargs)


class RateLimitChain(Policy[ChainConfig]):
    """Limiters that take all or nothing; make one with `rate_limit_chain(...)`."""

    __slots__ = ("limits",)
    type = "rate_limit_chain"
    no_block = "its limiters take their costs from a call's arguments; use reserve(), or decorate a function"

    def __init__(
        self,
        name: str | None,
        config: ChainConfig,
        *,
        limits: dict[str, RateLimit],
        clock: Clock | None = None,
        replace: bool = False,
    ) -> None:
        self.limits = limits
        super().__init__(name, config, clock=clock, replace=replace)

    def make_state(self, key: Hashable = None) -> Chaining:
        return Chaining(self)

    def derive(self, name: str | None = None, **changes: Any) -> Self:
        """A chain of the same limiters."""
        clock = None if self.clock is DEFAULT else self.clock
        return type(self)(name, self.config.changed(name, changes), limits=self.limits, clock=clock)

    def judge(self, error: BaseException) -> Verdict:
        """A rejection by one of its limiters is no failure of the call."""
        return Verdict.NO_EVIDENCE if isinstance(error, RejectedError) else super().judge(error)

    def reserve(self, *, key: Hashable = None, **costs: int) -> Reservation:
        """Take an estimate of each resource, all or nothing; settle it afterwards.

        >>> from everkeel import rate_limit, rate_limit_chain
        >>> model = rate_limit_chain(requests=rate_limit(60, per=60), tokens=rate_limit(10_000, per=60))
        >>> with model.reserve(requests=1, tokens=800) as reservation:
        ...     reservation.settle(tokens=650)
        >>> model.limits["tokens"].remaining()
        9350
        """
        wants = self._wants(key, costs)
        for layer in self.layers():
            if isinstance(layer, Chaining):
                wants = layer.take(wants)
        return Reservation(wants)

    async def areserve(self, *, key: Hashable = None, **costs: int) -> Reservation:
        """The same for a coroutine."""
        wants = self._wants(key, costs)
        for layer in self.layers():
            if isinstance(layer, Chaining):
                wants = await layer.atake(wants)
        return Reservation(wants)

    def _wants(self, key: Hashable, costs: dict[str, int]) -> list[Share]:
        for name, cost in costs.items():
            if name not in self.limits:
                raise ConfigError(self.label, name, f"must be one of {', '.join(self.limits)}", repr(cost))
            _must_be_a_count(self.label, name, cost)
        return [
            Share(
                name,
                limit,
                limit.whose(None if limit.key_of is None else key),
                costs.get(name, limit.constant_cost()),
            )
            for name, limit in self.limits.items()
        ]


def _must_be_a_count(owner: str, name: str, value: object) -> None:
    try:
        Count(at_least=0).check(value)
    except ValueError as error:
        raise ConfigError(owner, name, str(error), repr(value)) from None


def rate_limit_chain(
    *limits: RateLimit,
    name: str | None = None,
    mode: Mode = "enforce",
    clock: Clock | None = None,
    replace: bool = False,
    **named: RateLimit,
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
    config = ChainConfig.make(name, {"mode": mode})
    return RateLimitChain(name, config, limits=all_limits, clock=clock, replace=replace)
