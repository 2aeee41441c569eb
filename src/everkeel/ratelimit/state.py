"""The limiter at work: it asks the ledger under its lock, lets callers wait in line without it, and rejects the rest.

A token or leaky bucket with a constant cost is decided in the woven function itself: the bucket is one number, so the
decision is an addition and a comparison. While somebody waits in line, or a lower rate is about to come into force,
nobody passes on the quick way (the cell is empty, `room` is less than nothing), and the methods here decide.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Hashable
from typing import TYPE_CHECKING, Any

from everkeel.errors import ConfigError, RateLimitedError
from everkeel.ratelimit.algorithm import NANO, Algorithm, Decision, nanoseconds, seconds_up
from everkeel.ratelimit.buckets import LeakyBucket, TokenBucket
from everkeel.ratelimit.cell import Cell
from everkeel.ratelimit.ledger import Ledger
from everkeel.ratelimit.line import Line, TaskWaiter, ThreadWaiter
from everkeel.ratelimit.pressure import Backpressure, backpressure_delay, utilization_delay
from everkeel.runtime import events as hub
from everkeel.runtime.deadline import remaining
from everkeel.runtime.state import CallKind, State
from everkeel.runtime.tally import read, tally
from everkeel.runtime.trouble import report

if TYPE_CHECKING:
    from everkeel.ratelimit.config import RateLimitConfig
    from everkeel.ratelimit.policy import RateLimit

_ONE = """\
now = clock()
try:
    full_at = hand.pop()
except IndexError:
    AWAIT limiter.LATE(0, ARGS)
else:
    then = price + (now if full_at < now else full_at)
    if then - now <= room:
        hand.append(then)
        tick(ok)
    else:
        hand.append(full_at)
        AWAIT limiter.LATE(then - now, ARGS)
INNER"""

_KEYED = """\
which = key(ARGS)
with lock:
    now = clock()
    try:
        then = limiter.states.get(which)
    except TypeError:
        then = None
    if then is None:
        granted, then = False, now
    else:
        then = price + (now if then < now else then)
        granted = then - now <= limiter.room
        if granted:
            limiter.states[which] = then
if granted:
    tick(ok)
else:
    AWAIT limiter.LATE(then - now, ARGS)
INNER"""


class Limiting(State):
    """One limiter, with or without keys."""

    __slots__ = (
        "_at", "_cell", "_lines", "_next", "_promised", "hand", "ledger", "ok", "policy", "pressure", "room", "states",
    )  # fmt: skip
    word = "limiter"
    parts = ("hand", "ok")
    policy: RateLimit

    def __init__(self, policy: RateLimit) -> None:
        self.policy, self.ok = policy, tally()
        self.ledger = Ledger(policy, policy.max_keys)
        self.states = self.ledger.states
        self._cell = Cell()  # the bucket of a limiter without keys, where it is a bucket
        self.hand = self._cell.hand
        self._lines: dict[Hashable, Line] = {}
        self._promised = 0  # the latest moment a rejected caller was told to come back at
        self._next: Algorithm | None = None  # a lower rate that comes into force when that moment has passed
        self._at = 0
        self.pressure = self._new_pressure(policy.config)
        self.room = -1
        self._look_again()

    def _new_pressure(self, rules: RateLimitConfig) -> Backpressure | None:
        if not rules.measured:
            return None
        return Backpressure(
            p95_baseline=rules.p95_baseline,
            min_latency=rules.min_latency,
            sensitivity=rules.gradient_sensitivity,
            window=rules.window_size,
        )

    def _look_again(self) -> None:
        """Does the quick way stand open? Under the lock, or before anybody else knows of it."""
        bucket = self._bucket()
        quick = bucket is not None and not self._lines and self._next is None
        self.states = self.ledger.states
        self.room = bucket.room if bucket is not None and quick else -1
        if bucket is not None and self.policy.key_of is None:
            self._cell.put(self._cell.take(self._full(bucket)), aside=not quick)

    def _bucket(self) -> TokenBucket | None:
        """The algorithm, where its state is one number that the woven function can decide by."""
        algorithm = self.ledger.algorithm
        return algorithm if type(algorithm) in (TokenBucket, LeakyBucket) else None  # type: ignore[return-value]

    def _full(self, bucket: TokenBucket) -> int:
        return bucket.charged(self.policy.clock.monotonic_ns(), bucket.rate.burst)

    # ------------------------------------------------------------------ asking, under the lock

    def _decide(self, key: Hashable, cost: int, waiter: ThreadWaiter | TaskWaiter | None) -> Decision | None:
        """The decision; None when it is not the caller's turn to ask."""
        now = self.policy.clock.monotonic_ns()
        if self._next is not None and now >= self._at:
            self._change(self._next, now)
        line = self._lines.get(key)
        if line is not None and line.first() is not waiter:
            return None
        bucket = self._bucket() if self.policy.key_of is None else None
        if bucket is None:
            decision = self.ledger.acquire(key, now, cost)
        else:
            full_at, decision = bucket.acquire(self._cell.take(self._full(bucket)), now, cost)
            self._cell.put(full_at or 0, aside=self.room < 0)
        if not decision.allowed:
            self._promised = max(self._promised, now + decision.retry_after)
        return decision

    def _cost(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        cost = self.policy.config.cost
        return cost(*args, **kwargs) if callable(cost) else cost

    def _key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
        key = self.policy.key_of
        return None if key is None else key(*args, **kwargs)

    def _passes_by(self, key: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Is this call not limited at all? A denied one is rejected here."""
        rules = self.policy.config
        if rules.exclude is not None and rules.exclude(*args, **kwargs):
            return True
        if rules.allow is not None and _names(rules.allow, key):
            return True
        if rules.deny is not None and _names(rules.deny, key):
            raise self._rejected(None, key)
        return False

    def _check(self, key: Hashable, cost: int) -> None:
        most = self.ledger.algorithm_for(key).capacity
        if isinstance(cost, bool) or not isinstance(cost, int) or not 0 <= cost <= most:
            raise ConfigError(
                self.policy.label, "cost", f"must be a whole number from 0 to {most}, which can be granted", repr(cost)
            )

    # ------------------------------------------------------------------ being let in

    def late(self, over: int, /, *args: Any, **kwargs: Any) -> None:
        """The quick way did not let this call pass."""
        rules = self.policy.config
        if over <= self.room or self.room < 0 or rules.queue or self.policy.key_of is not None:
            self.admit(self._key(args, kwargs), self._cost(args, kwargs), args, kwargs)
            return
        raise self._refused(over)

    async def alate(self, over: int, /, *args: Any, **kwargs: Any) -> None:
        rules = self.policy.config
        if over <= self.room or self.room < 0 or rules.queue or self.policy.key_of is not None:
            await self.aadmit(self._key(args, kwargs), self._cost(args, kwargs), args, kwargs)
            return
        raise self._refused(over)

    def admit(self, key: Hashable, cost: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Let a call in, now or after a wait; or raise `RateLimitedError`."""
        waiter = self._ask(key, cost, args, kwargs, lambda: ThreadWaiter(key, cost))
        if waiter is None:
            return
        until = self._until()
        try:
            while (step := self._turn(waiter, until)) is not True:
                waiter.wait(self.policy.clock, step)
        except BaseException:
            self._leave(waiter)
            raise

    async def aadmit(self, key: Hashable, cost: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        from asyncio import get_running_loop

        clock = self.policy.clock
        waiter = self._ask(key, cost, args, kwargs, lambda: TaskWaiter(key, cost, clock, get_running_loop()))
        if waiter is None:
            return
        until = self._until()
        try:
            while (step := self._turn(waiter, until)) is not True:
                await waiter.wait(clock, step)  # type: ignore[misc]  # a task's wait is a coroutine
        except BaseException:
            self._leave(waiter)
            raise

    def _ask(
        self,
        key: Hashable,
        cost: int,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        make: Callable[[], ThreadWaiter | TaskWaiter],
    ) -> ThreadWaiter | TaskWaiter | None:
        """None when the call may pass at once; a waiter when it stands in line; or the error."""
        policy = self.policy
        if self._passes_by(key, args, kwargs):
            policy.counts.tick("excluded")
            return None
        self._check(key, cost)
        waiter = None
        try:
            with policy.lock:
                decision = self._decide(key, cost, None)
                if (decision is None or not decision.allowed) and self.waiting() < policy.config.queue:
                    waiter = make()
                    line = self._lines.get(key)
                    if line is None:
                        line = self._lines[key] = Line(newest_first=policy.config.order == "newest")
                    line.join(waiter)
                    self._look_again()
        except TypeError as error:
            raise _unhashable(policy.label, key, error) from None
        if waiter is not None:
            policy.counts.tick("queued")
            self._tell("CallQueued", waiting=self.waiting(), key=key)
            return waiter
        if decision is None or not decision.allowed:
            raise self._rejected(decision, key)
        next(self.ok)
        self._tell_granted(cost, key)
        return None

    def _until(self) -> float | None:
        """When a waiter has waited long enough: `max_wait`, or the deadline that travels with the call."""
        bounds = [bound for bound in (self.policy.config.max_wait, remaining()) if bound is not None]
        return self.policy.clock.monotonic() + max(0.0, min(bounds)) if bounds else None

    def _turn(self, waiter: ThreadWaiter | TaskWaiter, until: float | None) -> float | bool | None:
        """True: granted. Otherwise how long to wait (None: until the bell rings); or the error, if that is too long."""
        policy = self.policy
        with policy.lock:
            decision = self._decide(waiter.key, waiter.cost, waiter)
            if decision is not None and decision.allowed:
                self._step_out(waiter)
        if decision is not None and decision.allowed:
            next(self.ok)
            self._tell_granted(waiter.cost, waiter.key)
            return True
        step = None if decision is None else seconds_up(decision.retry_after)
        if until is None:
            return step
        left = until - policy.clock.monotonic()
        if left <= 0 or (step is not None and step > left):
            raise self._rejected(decision, waiter.key)  # it would have to wait longer than it may: say so now
        return left if step is None else step

    def _step_out(self, waiter: ThreadWaiter | TaskWaiter) -> None:
        line = self._lines.get(waiter.key)
        if line is not None and waiter in line:
            line.leave(waiter)
            if not line:
                del self._lines[waiter.key]
                self._look_again()

    def _leave(self, waiter: ThreadWaiter | TaskWaiter) -> None:
        with self.policy.lock:
            self._step_out(waiter)

    def waiting(self) -> int:
        """How many stand in line."""
        return sum(len(line) for line in self._lines.values()) if self._lines else 0

    # ------------------------------------------------------------------ turning away

    def _refused(self, over: int) -> RateLimitedError:
        """The usual rejection, made quickly: one bucket, no queue."""
        policy = self.policy
        rules, bucket = policy.config, self.ledger.algorithm
        if (
            rules.retry_after_strategy != "fixed"
            or rules.on_rejected is not None
            or policy.subscriptions
            or hub.everywhere
            or not isinstance(bucket, TokenBucket)
        ):
            wait = -(-(over - bucket.room) // bucket.scale) if isinstance(bucket, TokenBucket) else 0
            return self._rejected(self._with_level(wait), None)
        next(policy.rejections)
        wait = -(-(over - bucket.room) // bucket.scale)
        now = policy.clock.monotonic_ns() + wait
        if now > self._promised:
            self._promised = now
        seconds = wait / NANO
        if seconds * NANO < wait:
            seconds = seconds_up(wait)
        left = (bucket.room - over) // bucket.interval + self._price_in_permits()
        return RateLimitedError(policy.name, seconds, rules.permits, left if left > 0 else 0, None, None, "local")

    def _price_in_permits(self) -> int:
        cost = self.policy.config.cost
        return 1 if callable(cost) else cost

    def _with_level(self, wait: int) -> Decision:
        with self.policy.lock:
            level = self._decide(None, 0, None)
        return Decision(False, wait, 0, wait) if level is None else level._replace(allowed=False, retry_after=wait)

    def _rejected(self, decision: Decision | None, key: Hashable) -> RateLimitedError:
        policy = self.policy
        rules = policy.config
        next(policy.rejections)
        pressure = None if self.pressure is None else self.pressure.score
        limit = self.ledger.algorithm_for(key).rate.permits
        retry_after = None if decision is None else self._retry_after(decision, key)
        left = 0 if decision is None else decision.remaining
        error = RateLimitedError(policy.name, retry_after, limit, left, key, pressure, "local")
        self._tell("CallRejected", error=error, key=key)
        if rules.on_rejected is not None:
            rules.on_rejected(error)
        return error

    def _retry_after(self, decision: Decision, key: Hashable) -> float:
        """What to tell the caller; never less than what is needed."""
        rules, exact = self.policy.config, seconds_up(decision.retry_after)
        if rules.retry_after_strategy == "utilization":
            capacity = self.ledger.algorithm_for(key).capacity
            share = 1 - min(1.0, decision.remaining / capacity)
            return max(exact, utilization_delay(share, seconds_up(decision.reset_after)))
        if rules.retry_after_strategy == "backpressure" and self.pressure is not None:
            chance = self.policy.clock.random
            wish = backpressure_delay(self.pressure.score, rules.min_retry_delay, rules.max_retry_penalty, chance)
            return max(exact, wish)
        return exact

    # ------------------------------------------------------------------ the plain path

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self.admit(self._key(args, kwargs), self._cost(args, kwargs), args, kwargs)
        began = self._begin()
        result = fn(*args, **kwargs)
        self._ended(began, result, args, kwargs)
        return result

    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        await self.aadmit(self._key(args, kwargs), self._cost(args, kwargs), args, kwargs)
        began = self._begin()
        result = await fn(*args, **kwargs)
        self._ended(began, result, args, kwargs)
        return result

    def stream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        self.admit(self._key(args, kwargs), self._cost(args, kwargs), args, kwargs)
        return (yield from fn(*args, **kwargs))

    async def astream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        await self.aadmit(self._key(args, kwargs), self._cost(args, kwargs), args, kwargs)
        items = fn(*args, **kwargs)
        try:
            async for item in items:
                yield item
        finally:
            await items.aclose()

    def enter(self) -> None:
        """A block without a key: `entry(key=...)` is for those with one."""
        self.admit(None, self._price_in_permits(), (), {})

    async def aenter(self) -> None:
        await self.aadmit(None, self._price_in_permits(), (), {})

    def _begin(self) -> float:
        return 0.0 if self.pressure is None else self.policy.clock.monotonic()

    def _ended(self, began: float, result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        policy = self.policy
        if self.pressure is not None:
            latency = policy.clock.monotonic() - began
            with policy.lock:
                self.pressure.record(latency)
        drain_on = policy.config.drain_on
        if drain_on is not None:
            try:
                wish = drain_on(result)
            except Exception as broken:
                report(f"{policy.label}: drain_on raised", broken)
                return
            if wish:
                policy.drain(None if wish is True else wish, key=self._key(args, kwargs))

    # ------------------------------------------------------------------ the woven path

    def _is_quick(self) -> bool:
        rules = self.policy.config
        return (
            self._bucket() is not None
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
        text = _ONE if self.policy.key_of is None else _KEYED
        bucket = self.ledger.algorithm
        scale = bucket.scale if isinstance(bucket, TokenBucket) else 1
        return text if scale == 1 else text.replace("now = clock()", "now = clock() * scale")

    def names(self, kind: CallKind) -> dict[str, object]:
        bucket, cost = self.ledger.algorithm, self._price_in_permits()
        if not isinstance(bucket, TokenBucket) or not self._is_quick():
            return {}
        given: dict[str, object] = {
            "clock": self.policy.clock.monotonic_ns,
            "price": cost * bucket.interval,
            "tick": next,
        }
        if bucket.scale != 1:
            given["scale"] = bucket.scale
        if self.policy.key_of is None:
            given["room"] = bucket.room
        else:
            given |= {"key": self.policy.key_of, "lock": self.policy.lock}
        return given

    # ------------------------------------------------------------------ live changes

    def adapt(self, old: RateLimitConfig, new: RateLimitConfig) -> None:
        with self.policy.lock:
            now = self.policy.clock.monotonic_ns()
            if old.measured != new.measured:
                self.pressure = self._new_pressure(new)
            for line in self._lines.values():
                line.newest_first = new.order == "newest"
            if (old.rate, old.algorithm, old.warm_up) != (new.rate, new.algorithm, new.warm_up):
                algorithm = new.make_algorithm(new.rate)
                slower = new.rate.permits * old.rate.per < old.rate.permits * new.rate.per
                if (slower or new.rate.burst < old.rate.burst) and self._promised > now:
                    # A caller was told when to come back: until then the old rate holds.
                    self._next, self._at = algorithm, self._promised
                    self._look_again()
                else:
                    self._change(algorithm, now)

    def _change(self, algorithm: Algorithm, now: int) -> None:
        self._next = None
        old, single = self._bucket(), self.policy.key_of is None
        if old is not None and single:
            self.ledger.states[None] = self._cell.take(self._full(old))
        self.ledger.change(algorithm, now)
        if single and self._bucket() is not None:
            self._cell.put(self.ledger.state_of(None, now) or 0, aside=True)
        for line in self._lines.values():
            line.wake()
        self._look_again()
        self.policy.refresh()

    def adjust(self, key: Hashable, permits: int) -> None:
        """Take more without asking, or (negative) give back; those in line may look again."""
        with self.policy.lock:
            now = self.policy.clock.monotonic_ns()
            bucket = self._bucket() if self.policy.key_of is None else None
            if bucket is None:
                self.ledger.adjust(key, now, permits)
            else:
                full_at = bucket.adjust(self._cell.take(self._full(bucket)), now, permits)
                self._cell.put(full_at, aside=self.room < 0)
            line = self._lines.get(key)
            if line is not None:
                line.wake()

    def used(self, key: Hashable) -> int:
        """How many permits are charged to a key now. Under the lock."""
        now = self.policy.clock.monotonic_ns()
        bucket = self._bucket() if self.policy.key_of is None else None
        if bucket is None:
            return self.ledger.used(key, now)
        full_at = self._cell.take(self._full(bucket))
        self._cell.put(full_at, aside=self.room < 0)
        return bucket.used(full_at, now)

    def drain(self, seconds: float | None, key: Hashable) -> None:
        """Nothing more for so long; or, without a length, until permits have grown back."""
        with self.policy.lock:
            algorithm = self.ledger.algorithm_for(key)
            rate = algorithm.rate
            missing = max(0, algorithm.capacity - self.used(key))
        extra = 0 if seconds is None else max(0, -(-nanoseconds(seconds) * rate.permits // rate.per) - 1)
        self.adjust(key, missing + extra)

    # ------------------------------------------------------------------ being watched

    def _tell(self, event: str, **fields: Any) -> None:
        policy = self.policy
        if policy.heard():
            from everkeel import events

            policy.emit(getattr(events, event)(policy=policy.name, policy_type=policy.type, **fields))

    def _tell_granted(self, permits: int, key: Hashable) -> None:
        if self.policy.grants_are_heard():
            self._tell("Granted", permits=permits, key=key)

    def shadow(self) -> State:
        from everkeel.ratelimit.shadow import WouldLimit

        return WouldLimit(self)

    def successes(self) -> int:
        return read(self.ok)

    def details(self) -> dict[str, Any]:
        policy = self.policy
        with policy.lock:
            rate = self.ledger.algorithm.rate
            capacity = self.ledger.algorithm.capacity
            used = None if policy.key_of is not None else min(capacity, self.used(None))
            return {
                "capacity": capacity,
                "available": None if used is None else capacity - used,
                "utilization": None if used is None else used / capacity,
                "refill_rate": rate.permits * NANO / rate.per,
                "backpressure": None if self.pressure is None else self.pressure.score,
                "waiting": self.waiting(),
                "queued": policy.counts["queued"],
                "excluded": policy.counts["excluded"],
                "keys": len(self.ledger.states) if policy.key_of is not None else 0,
                "overflow": policy.counts["overflow"],
            }


def _names(keys: Any, key: Hashable) -> bool:
    return bool(keys(key)) if callable(keys) else key in keys


def _unhashable(label: str, key: object, error: TypeError) -> Exception:
    try:
        hash(key)
    except TypeError:
        return ConfigError(label, "key", "must return something hashable, such as a string", repr(key))
    return error
