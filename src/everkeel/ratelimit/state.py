"""The limiter at work: the forms of calling over its door.

A token or leaky bucket with a constant cost is decided in the woven function itself: the bucket is one number, so the
decision is an addition and a comparison. Whatever else there is to do (wait, listen, measure, a key not seen before),
or where the quick way is closed, the methods here do it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Hashable
from typing import TYPE_CHECKING, Any

from everkeel.errors import RateLimitedError, RejectedError
from everkeel.ratelimit.algorithm import NANO, seconds_up
from everkeel.ratelimit.buckets import LeakyBucket, TokenBucket
from everkeel.ratelimit.door import Door, unhashable
from everkeel.ratelimit.gate import Gate
from everkeel.runtime.outcome import NO_RESULT
from everkeel.runtime.state import CallKind, State
from everkeel.runtime.tally import Tally, read
from everkeel.runtime.trouble import report

if TYPE_CHECKING:
    from everkeel.ratelimit.config import RateLimitConfig
    from everkeel.ratelimit.policy import RateLimit

_ONE = """\
gate = door.gate
now = clock()
try:
    full_at = gate.hand.pop()
except IndexError:
    AWAIT limiter.LATE(None, ARGS)
else:
    if full_at < now:
        gate.hand.append(now + gate.price)
        tick(ok)
    elif full_at - now <= gate.slack:
        gate.hand.append(full_at + gate.price)
        tick(ok)
    else:
        if full_at > gate.latest:
            gate.latest = full_at
        gate.hand.append(full_at)
        REFUSE
INNER"""

_KEYED = """\
which = key(ARGS)
gate = door.gate
now = clock()
try:
    states = gate.hand.pop()
except IndexError:
    AWAIT limiter.LATE(which, ARGS)
else:
    try:
        full_at = states[which]
        if full_at < now:
            states[which] = now + gate.price
        elif full_at - now <= gate.slack:
            states[which] = full_at + gate.price
        else:
            if full_at > gate.latest:
                gate.latest = full_at
            over, full_at = full_at - now, None
    except (KeyError, TypeError):
        over = full_at = None
    finally:
        gate.hand.append(states)
    if full_at is not None:
        tick(ok)
    elif over is None:
        AWAIT limiter.LATE(which, ARGS)
    else:
        REFUSE
INNER"""


class Limiting(State):
    """One limiter, with or without keys."""

    __slots__ = ("door", "ok", "policy")
    word = "limiter"
    parts = ("door", "ok")
    policy: RateLimit

    def __init__(self, policy: RateLimit) -> None:
        self.policy, self.door = policy, Door(policy)
        self.ok: Tally = self.door.ok

    # ------------------------------------------------------------------ being let in

    def admit(
        self, key: Hashable, cost: int, args: tuple[Any, ...] | None = None, kwargs: dict[str, Any] | None = None
    ) -> int | None:
        """Let a call in, now or after a wait; or raise `RateLimitedError`. Answers what it took, None if not limited.

        The arguments are those of the call; None where there is no call to limit, only permits to take.
        """
        if self._passes_by(key, args, kwargs):
            return None
        if self._denied(key):
            raise self.door.refusals.told(self.door.refusals.denied(key))
        if not self._slips_in(key, cost):
            self.door.enter(key, self.limit_of(key), cost)
        return cost

    async def aadmit(
        self, key: Hashable, cost: int, args: tuple[Any, ...] | None = None, kwargs: dict[str, Any] | None = None
    ) -> int | None:
        """The same for a coroutine."""
        if self._passes_by(key, args, kwargs):
            return None
        if self._denied(key):
            raise self.door.refusals.told(self.door.refusals.denied(key))
        if not self._slips_in(key, cost):
            await self.door.aenter(key, self.limit_of(key), cost)
        return cost

    def look(
        self, key: Hashable, cost: int, args: tuple[Any, ...] | None = None, kwargs: dict[str, Any] | None = None
    ) -> int | RateLimitedError | None:
        """Take permits if they are there now; answers how many, or the error, of which nobody has been told yet."""
        if self._passes_by(key, args, kwargs):
            return None
        if self._denied(key):
            return self.door.refusals.denied(key)
        if self._slips_in(key, cost):
            return cost
        error = self.door.try_enter(key, self.limit_of(key), cost)
        return cost if error is None else error

    def late(self, key: Hashable, /, *args: Any, **kwargs: Any) -> None:
        """The quick way did not let this call pass."""
        self.admit(key, self.cost_of(args, kwargs), args, kwargs)

    async def alate(self, key: Hashable, /, *args: Any, **kwargs: Any) -> None:
        await self.aadmit(key, self.cost_of(args, kwargs), args, kwargs)

    def refused(self, gate: Gate, over: int, key: Hashable = None) -> RateLimitedError:
        """The usual rejection, made quickly: a bucket, no queue, nobody listens. `over`: how long until it is full."""
        policy = self.policy
        next(policy.rejections)
        missing = over - gate.slack
        if gate.scale != 1:
            missing = -(-missing // gate.scale)
        wait = missing / 1e9
        if wait * 1e9 < missing:
            wait = seconds_up(missing)
        left = 0 if gate.price == gate.interval else max(0, (gate.slack + gate.price - over) // gate.interval)
        return RateLimitedError(policy.name, wait, gate.permits, left, key, None, "local")

    def _slips_in(self, key: Hashable, cost: int) -> bool:
        return self.slip_in(key, cost) is not None

    def slip_in(self, key: Hashable, cost: int) -> tuple[int, int] | None:
        """The quick way in, past keys that are let in or kept out by name; see the door's. None: not that way."""
        if type(cost) is not int or cost <= 0 or self.policy.grants_are_heard():
            return None
        return self.door.slip_in(key, cost)

    def _passes_by(self, key: Hashable, args: tuple[Any, ...] | None, kwargs: dict[str, Any] | None) -> bool:
        """Is this call not limited at all?"""
        rules = self.policy.config
        if (rules.exclude is not None and args is not None and rules.exclude(*args, **(kwargs or {}))) or (
            rules.allow is not None and self._names(rules.allow, key)
        ):
            self.policy.counts.tick("excluded")
            return True
        return False

    def _denied(self, key: Hashable) -> bool:
        deny = self.policy.config.deny
        return deny is not None and self._names(deny, key)

    def _names(self, keys: Any, key: Hashable) -> bool:
        if callable(keys):
            return bool(keys(key))
        try:
            return key in keys
        except TypeError as error:
            raise unhashable(self.policy.label, key, error) from None

    def cost_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """What a call with these arguments costs."""
        cost = self.policy.config.cost
        return cost(*args, **kwargs) if callable(cost) else cost

    def key_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
        """Whose call this is."""
        key = self.policy.key_of
        return None if key is None else key(*args, **kwargs)

    def limit_of(self, key: Hashable) -> Any:
        """The key's own limit, if it has one. Never asked under the lock: it may be a function of the user's."""
        limits = self.door.books.rules.limits  # those in force: others may be on their way
        if limits is None:
            return None
        if callable(limits):
            return limits(key)
        try:
            return limits.get(key)
        except TypeError as error:
            raise unhashable(self.policy.label, key, error) from None

    # ------------------------------------------------------------------ the plain path

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        key = self.key_for(args, kwargs)
        self.admit(key, self.cost_of(args, kwargs), args, kwargs)
        began = self.begin()
        try:
            result = fn(*args, **kwargs)
        except Exception as error:
            self.failed(began, error)
            raise
        self.answered(began, result, key)
        return result

    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        key = self.key_for(args, kwargs)
        await self.aadmit(key, self.cost_of(args, kwargs), args, kwargs)
        began = self.begin()
        try:
            result = await fn(*args, **kwargs)
        except Exception as error:
            self.failed(began, error)
            raise
        self.answered(began, result, key)
        return result

    def stream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        self.admit(self.key_for(args, kwargs), self.cost_of(args, kwargs), args, kwargs)
        return (yield from fn(*args, **kwargs))

    async def astream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        await self.aadmit(self.key_for(args, kwargs), self.cost_of(args, kwargs), args, kwargs)
        items = fn(*args, **kwargs)
        try:
            async for item in items:
                yield item
        finally:
            await items.aclose()

    def enter(self) -> float | None:
        """A block without a key: `entry(key=...)` is for those with one."""
        self.admit(None, self.policy.constant_cost())
        return self.begin()

    async def aenter(self) -> float | None:
        await self.aadmit(None, self.policy.constant_cost())
        return self.begin()

    # ------------------------------------------------------------------ how the service is doing

    def begin(self) -> float | None:
        """When a call begins, where that is measured."""
        return None if self.door.refusals.pressure is None else self.policy.clock.monotonic()

    def answered(self, began: float | None, result: Any, key: Hashable) -> None:
        """A call returned: how long did it take, and does the service ask for a pause?"""
        self.measure(began)
        policy = self.policy
        drain_on = policy.config.drain_on
        if drain_on is None or result is NO_RESULT:
            return
        try:
            wish = drain_on(result)
            if wish:
                policy.drained(None if wish is True else wish, key)
        except Exception as broken:
            report(f"{policy.label}: drain_on raised", broken)

    def done(self, permit: float | None, result: Any) -> None:
        self.answered(permit, result, None)

    def failed(self, permit: float | None, error: Exception) -> None:
        if not isinstance(error, RejectedError):  # that one says nothing about the service
            self.measure(permit)

    def measure(self, began: float | None) -> None:
        pressure = self.door.refusals.pressure
        if pressure is not None and began is not None:
            latency = self.policy.clock.monotonic() - began
            with self.policy.lock:
                pressure.record(latency)

    # ------------------------------------------------------------------ the woven path

    def _is_quick(self) -> bool:
        rules = self.policy.config
        return (
            type(self.door.books.algorithm) in (TokenBucket, LeakyBucket)
            and not callable(rules.cost)
            and rules.exclude is None
            and rules.allow is None
            and rules.deny is None
            and rules.limits is None
            and rules.drain_on is None
            and not rules.measured
            and not self.policy.grants_are_heard()
        )

    def fragment(self, kind: CallKind) -> str | None:
        if not self._is_quick():
            return None
        policy = self.policy
        rules, keyed = policy.config, policy.key_of is not None
        quiet = not rules.queue and not policy.heard() and rules.on_rejected is None
        refuse = f"raise limiter.refused(gate, {'over, which' if keyed else 'full_at - now'})"
        if not quiet or rules.retry_after_strategy != "fixed":
            refuse = f"AWAIT limiter.LATE({'which' if keyed else 'None'}, ARGS)"
        text = (_KEYED if keyed else _ONE).replace("REFUSE", refuse)
        if self._scale() != 1:
            text = text.replace("door.gate", "door.fine").replace("clock()", "clock() * gate.scale")
        return text

    def _scale(self) -> int:
        bucket = self.door.books.algorithm
        return bucket.scale if isinstance(bucket, TokenBucket) else 1

    def names(self, kind: CallKind) -> dict[str, object]:
        if not self._is_quick():
            return {}
        given: dict[str, object] = {"clock": self.policy.clock.monotonic_ns, "tick": next}
        if self.policy.key_of is not None:
            given["key"] = self.policy.key_of
        return given

    # ------------------------------------------------------------------ live changes, being watched

    def adapt(self, old: RateLimitConfig, new: RateLimitConfig) -> None:
        self.door.adapt(old, new)

    def after_fork(self) -> None:
        self.door.after_fork()

    def shadow(self) -> State:
        from everkeel.ratelimit.shadow import WouldLimit

        return WouldLimit(self)

    def successes(self) -> int:
        return read(self.ok)

    def details(self) -> dict[str, Any]:
        policy, door = self.policy, self.door
        available = None if policy.key_of is not None else door.remaining(None, None)
        algorithm, pressure = door.books.algorithm, door.refusals.pressure
        return {
            "capacity": algorithm.capacity,
            "available": available,
            "utilization": None if available is None else 1 - available / algorithm.capacity,
            "refill_rate": algorithm.rate.permits * NANO / algorithm.rate.per,
            "backpressure": None if pressure is None else pressure.score,
            "waiting": door.waiting,
            "queued": policy.counts["queued"],
            "excluded": policy.counts["excluded"],
            "keys": door.books.keys(),
            "overflow": door.books.overflows,
        }
