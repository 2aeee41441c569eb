"""Who gets in: decided under the limiter's lock. Those who wait, wait without it.

A higher rate comes into force at once. A lower one does when the latest moment at which a rejected caller was told to
come back has passed, and then with the next request, which is still decided by the rate before: it may be that caller,
a little late, and what it was told must stay true.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import ceil
from typing import TYPE_CHECKING, Any, TypeVar

from everkeel.errors import ConfigError, RateLimitedError
from everkeel.ratelimit.algorithm import NANO, Algorithm, Decision, Rate, nanoseconds, seconds_up
from everkeel.ratelimit.gate import CLOSED, Gate
from everkeel.ratelimit.ledger import Ledger
from everkeel.ratelimit.line import Line, TaskWaiter, ThreadWaiter, Waiter
from everkeel.ratelimit.refusal import Refusals
from everkeel.ratelimit.single import Single
from everkeel.runtime.deadline import remaining
from everkeel.runtime.tally import tally
from everkeel.runtime.trouble import warn

if TYPE_CHECKING:
    from everkeel.ratelimit.config import RateLimitConfig
    from everkeel.ratelimit.policy import RateLimit

W = TypeVar("W", ThreadWaiter, TaskWaiter)

_BREATHER = 1e-6  # no wait is shorter: a virtual clock far from its start cannot be moved by a nanosecond


class Door:
    """The way into one limiter. `limit` is what `limits` answers for a key, None where it has none of its own."""

    __slots__ = (
        "_at", "_lines", "_next", "_promised", "_stale", "books", "fine", "gate", "ok", "policy", "refusals", "waiting",
    )  # fmt: skip

    def __init__(self, policy: RateLimit) -> None:
        self.policy, self.ok = policy, tally()
        self.refusals = Refusals(policy)
        self.books = (
            Single(policy.config, policy.clock) if policy.key_of is None else Ledger(policy.config, policy.max_keys)
        )
        self._lines: dict[Hashable, Line] = {}
        self.waiting = 0
        self._promised = 0  # the latest moment that a rejected caller was told to come back at
        self._next: RateLimitConfig | None = None  # rules that come into force when that moment, `_at`, has passed
        self._at = 0
        self._stale = False  # have decorated functions bound what has changed since?
        self.gate: Gate = CLOSED  # the quick way, where time is counted in nanoseconds
        self.fine: Gate = CLOSED  # the quick way, where it is counted in parts of them
        with self.policy.lock, self.books:
            self.arrange()

    def _now(self) -> int:
        return self.policy.clock.monotonic_ns()

    # ------------------------------------------------------------------ getting in

    def slip_in(self, key: Hashable, cost: int) -> tuple[int, int] | None:
        """Through the gate, as a woven function would. Answers how the key then stands: whole permits left, and
        nanoseconds until all of them are there again. None: not that way."""
        gate = self.fine if self.gate is CLOSED else self.gate
        try:
            held = gate.hand.pop()
        except IndexError:
            return None
        level, room, keyed = None, gate.slack + gate.price, self.policy.key_of is not None
        try:
            now, price = self._now() * gate.scale, cost * gate.interval
            full_at = held.get(key) if keyed else held
            if full_at is not None:
                after = (now if full_at < now else full_at) + price
                if after - now <= room:
                    level = after - now
                    if keyed:
                        held[key] = after
                    else:
                        held = after
        except TypeError:  # a key that cannot be one: the slow way says so
            pass
        finally:
            gate.hand.append(held)
        if level is None:
            return None
        next(self.ok)
        return (room - level) // gate.interval, -(-level // gate.scale)

    def enter(self, key: Hashable, limit: Any, cost: int) -> None:
        """Take permits now or after a wait; or raise `RateLimitedError`."""
        waiter = self._ask(key, limit, cost, ThreadWaiter)
        if waiter is None:
            return
        try:
            while True:
                pause = self._look(waiter)
                if waiter.granted:
                    return
                waiter.wait(self.policy.clock, pause)
        except BaseException:
            self._leave(waiter)
            raise

    async def aenter(self, key: Hashable, limit: Any, cost: int) -> None:
        """The same for a task."""
        waiter = self._ask(key, limit, cost, TaskWaiter)
        if waiter is None:
            return
        try:
            while True:
                pause = self._look(waiter)
                if waiter.granted:
                    return
                await waiter.wait(self.policy.clock, pause)
        except BaseException:
            self._leave(waiter)
            raise

    def try_enter(self, key: Hashable, limit: Any, cost: int) -> RateLimitedError | None:
        """Take permits if they are there now; otherwise the error, of which nobody has been told yet."""
        with self.policy.lock, self.books:
            now = self._now()
            algorithm = self._algorithm(limit, cost)
            line = self._line(key)
            if line is None:
                decision = self._acquire(key, limit, algorithm, cost, now)
            else:
                decision = self._behind(line, key, limit, algorithm, cost, now)
        self._mind()
        if decision.allowed:
            next(self.ok)
            self._tell_granted(cost, key)
            return None
        return self._refusal(decision, key, algorithm, now)

    def _ask(self, key: Hashable, limit: Any, cost: int, make: type[W]) -> W | None:
        """None when the call may pass at once; somebody in line when it has to wait; or the error."""
        policy = self.policy
        rules, patience, waiter = policy.config, None, None
        if rules.queue:
            bounds = [bound for bound in (rules.max_wait, remaining()) if bound is not None]
            patience = nanoseconds(max(0.0, min(bounds))) if bounds else None
        with self.policy.lock, self.books:
            now = self._now()
            algorithm = self._algorithm(limit, cost)
            line = self._line(key)
            if line is None or rules.order == "newest":  # who comes now is the newest
                decision = self._acquire(key, limit, algorithm, cost, now)
            else:
                decision = self._behind(line, key, limit, algorithm, cost, now)
            in_vain = patience is not None and decision.retry_after > patience
            if not decision.allowed and self.waiting < rules.queue and not in_vain:
                waiter = make(key, limit, cost, None if patience is None else now + patience, policy.clock)
                self._join(waiter, line, now)
        self._mind()
        if waiter is not None:
            policy.counts.tick("queued")
            if policy.heard():
                from everkeel.events import CallQueued

                policy.emit(CallQueued(policy=policy.name, policy_type=policy.type, waiting=self.waiting, key=key))
            return waiter
        if not decision.allowed:
            raise self.refusals.told(self._refusal(decision, key, algorithm, now))
        next(self.ok)
        self._tell_granted(cost, key)
        return None

    def _look(self, waiter: Waiter) -> float | None:
        """Is it this waiter's turn, and are its permits there? Otherwise how long to wait (None: until the bell rings);
        or the error, if that is longer than it may."""
        key, limit, cost = waiter.key, waiter.limit, waiter.cost
        with self.policy.lock, self.books:
            now = self._now()
            algorithm = self._algorithm(limit, cost)
            line = self._line(key)
            first = line is None or line.first() is waiter
            if line is None or first:
                decision = self._acquire(key, limit, algorithm, cost, now)
                if decision.allowed:
                    waiter.granted = True
                    self._step_out(waiter, now)
            else:
                decision = self._behind(line, key, limit, algorithm, 0, now)
        self._mind()
        if waiter.granted:
            next(self.ok)
            self._tell_granted(cost, key)
            return None
        until = waiter.until
        if until is not None and (now >= until or (first and now + decision.retry_after > until)):
            raise self.refusals.told(self._refusal(decision, key, algorithm, now))
        if first:
            return max(_BREATHER, seconds_up(decision.retry_after))
        return None if until is None else max(_BREATHER, seconds_up(until - now))

    def _refusal(self, decision: Decision, key: Hashable, algorithm: Algorithm, now: int) -> RateLimitedError:
        error = self.refusals.error(decision, key, algorithm)
        told = now + ceil((error.retry_after or 0) * NANO)
        if told > self._promised:
            with self.policy.lock:
                self._promised = max(self._promised, told)
        return error

    def _tell_granted(self, permits: int, key: Hashable) -> None:
        policy = self.policy
        if policy.grants_are_heard():
            from everkeel.events import Granted

            policy.emit(Granted(policy=policy.name, policy_type=policy.type, permits=permits, key=key))

    # ------------------------------------------------------------------ deciding, under the lock

    def _algorithm(self, limit: Any, cost: int) -> Algorithm:
        """The algorithm at the key's limit; an error if it can never grant the cost."""
        algorithm = self.books.algorithm_of(limit)
        if type(cost) is not int or not 0 <= cost <= algorithm.capacity:
            most = algorithm.capacity
            allowed = f"must be a whole number from 0 to {most}: more can never be granted at once"
            raise ConfigError(self.policy.label, "cost", allowed, repr(cost))
        return algorithm

    def _acquire(self, key: Hashable, limit: Any, algorithm: Algorithm, cost: int, now: int) -> Decision:
        if not cost:  # free, whatever is charged already
            return self.books.look(key, algorithm, now, 0)._replace(allowed=True, retry_after=0)
        decision = self.books.acquire(key, algorithm, now, cost)
        if self._next is not None and now >= self._at:
            self._change(self._next, now, lenient=True)
            self.books.catch_up(key, self.books.algorithm_of(limit), now)
            if not decision.allowed:
                decision = self.books.acquire(key, self._algorithm(limit, cost), now, cost)
        return decision if decision.allowed else self._foreseen(decision, key, limit, cost, now)

    def _behind(self, line: Line, key: Hashable, limit: Any, algorithm: Algorithm, cost: int, now: int) -> Decision:
        """The answer to somebody with a line ahead: not before all of those have what they want."""
        wanted, rate = line.cost + cost, algorithm.rate
        at_once = min(wanted, algorithm.capacity)
        decision = self._foreseen(self.books.look(key, algorithm, now, at_once), key, limit, at_once, now)
        more = (wanted - at_once) * rate.per // rate.permits
        return decision._replace(allowed=False, retry_after=max(1, decision.retry_after + more))

    def _foreseen(self, decision: Decision, key: Hashable, limit: Any, cost: int, now: int) -> Decision:
        """With the `retry_after` that will be true when other rules come into force before it is over."""
        if self._next is None or decision.allowed or now + decision.retry_after <= self._at:
            return decision
        # The later of the two: that request may still be decided by the rules before, if it is the first after them.
        then = self.books.foresee(self._next, key, limit, self._at, cost) - now
        return decision._replace(retry_after=max(decision.retry_after, then))

    # ------------------------------------------------------------------ the line, under the lock

    def _line(self, key: Hashable) -> Line | None:
        """The line for a key, without those who will never look again."""
        try:
            line = self._lines.get(key)
        except TypeError as error:
            raise unhashable(self.policy.label, key, error) from None
        while line is not None and line.first().is_gone():
            self._step_out(line.first(), self._now())
            line = self._lines.get(key)
        return line

    def _join(self, waiter: Waiter, line: Line | None, now: int) -> None:
        if line is None:
            line = self._lines[waiter.key] = Line(newest_first=self.policy.config.order == "newest")
            self.books.set_aside(waiter.key)
        line.join(waiter)
        self.waiting += 1
        if self.policy.key_of is None and self.waiting == 1:
            self.arrange()

    def _step_out(self, waiter: Waiter, now: int) -> None:
        line = self._lines.get(waiter.key)
        if line is None or not line.leave(waiter):
            return
        self.waiting -= 1
        if line:
            line.wake()
            return
        del self._lines[waiter.key]
        self.books.put_back(waiter.key, now)
        if self.policy.key_of is None:
            self.arrange()

    def _leave(self, waiter: Waiter) -> None:
        with self.policy.lock, self.books:
            self._step_out(waiter, self._now())

    def arrange(self) -> None:
        """Does the quick way stand open? Without keys, not while somebody waits: nobody may overtake."""
        cost = self.policy.config.cost
        crowded = self.policy.key_of is None and self._lines
        if callable(cost) or crowded or self._next is not None:
            gate = self.books.close()
        else:
            gate = self.books.open(cost)
        self.gate, self.fine = (gate, CLOSED) if gate.scale == 1 else (CLOSED, gate)

    # ------------------------------------------------------------------ live changes

    def adapt(self, old: RateLimitConfig, new: RateLimitConfig) -> None:
        """Other settings."""
        with self.policy.lock, self.books:
            now = self._now()
            self.refusals.adapt(old, new)
            for line in self._lines.values():
                line.newest_first = new.order == "newest"
            self._plan(new, now)
            self.arrange()
            self._stale = False  # whoever changes the settings refreshes the functions
            for line in self._lines.values():
                line.wake()

    def _plan(self, new: RateLimitConfig, now: int) -> None:
        """When the rates of `new` come into force: at once, or when nothing that was told becomes a lie."""
        self._next = None
        books, algorithm = self.books, new.make_algorithm(new.rate)
        if new.same_rates(books.rules):
            return
        at_once = algorithm.eases(books.algorithm) and books.rules.limits == new.limits
        promised = max(self._promised, books.promised())
        at = now if at_once else max(promised, books.algorithm.replenished(now))
        if at <= now:
            self._change(new, now, lenient=False)
        else:
            self._next, self._at = new, at

    def _change(self, new: RateLimitConfig, now: int, *, lenient: bool) -> None:
        self._next = None
        self.books.change(new, now, lenient=lenient)
        self._stale = True
        self.arrange()
        for line in self._lines.values():
            line.wake()

    def _mind(self) -> None:
        """What must not be done under the lock."""
        if self._stale:
            self._stale = False
            self.policy.refresh()
        if self.books.full:
            self.books.full = False
            most = self.policy.max_keys
            warn("%s: %d keys are limited at once; further keys share one state", self.policy.label, most)

    def after_fork(self) -> None:
        """In a forked child: nobody waits, and nobody is between two steps."""
        self._lines.clear()
        self.waiting = 0
        self.books.after_fork(self._now())
        with self.policy.lock, self.books:
            self.arrange()

    # ------------------------------------------------------------------ by hand

    def adjust(self, key: Hashable, limit: Any, permits: int) -> None:
        """Take more without asking, or (negative) give back; those in line may look again."""
        with self.policy.lock, self.books:
            now = self._now()
            line = self._line(key)
            self.books.adjust(key, self.books.algorithm_of(limit), now, permits)
            if line is not None:
                line.wake()
        self._mind()

    def lower(self, key: Hashable, limit: Any, remaining: int) -> None:
        """Leave no more than so many permits."""
        with self.policy.lock, self.books:
            now = self._now()
            self._line(key)
            algorithm = self.books.algorithm_of(limit)
            missing = algorithm.rate.burst - remaining - self.books.used(key, algorithm, now)
            if missing > 0:
                self.books.adjust(key, algorithm, now, missing)
        self._mind()

    def drain(self, key: Hashable, limit: Any, seconds: float | None) -> None:
        """Nothing more for so long; or, without a length, until permits have grown back."""
        if not seconds:
            self.lower(key, limit, 0)
            return
        with self.policy.lock, self.books:
            now = self._now()
            self._line(key)
            self.books.pause(key, self.books.algorithm_of(limit), now, now + nanoseconds(seconds))
        self._mind()

    def remaining(self, key: Hashable, limit: Any) -> int:
        """How many permits are there."""
        return self.standing(key, limit)[1].remaining

    def standing(self, key: Hashable, limit: Any) -> tuple[Rate, Decision]:
        """The rate of a key, and what is left of it."""
        with self.policy.lock, self.books:
            now = self._now()
            self._line(key)
            algorithm = self.books.algorithm_of(limit)
            decision = self.books.look(key, algorithm, now, 0)
        self._mind()
        return algorithm.rate, decision


def unhashable(label: str, key: object, error: TypeError) -> Exception:
    """The error for a key that cannot be one."""
    try:
        hash(key)
    except TypeError:
        return ConfigError(label, "key", "must return something hashable, such as a string", repr(key))
    return error
