"""What is charged to whom: a state per key, in bounded memory.

All methods are called under the limiter's lock and in a `with` block, which takes the states in hand.

A key is forgotten only when it is idle, which changes no decision. There is no scan: each new key takes a few others
with it. They are in two tables. Keys are used in `states`; when it has doubled, it becomes `older`, from which every
new key takes a few: idle ones are dropped, the others go back to `states`, as does a key that is used. (One table in
order of use would not do: a dict whose oldest entries are removed gets slow at its front.)

At the cap, new keys share one overflow state: dropping a key that is still limited would give it its limit anew.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, NamedTuple

from everkeel.ratelimit import pause
from everkeel.ratelimit.algorithm import Algorithm, Decision
from everkeel.ratelimit.buckets import LeakyBucket, TokenBucket
from everkeel.ratelimit.gate import CLOSED, Gate

if TYPE_CHECKING:
    from everkeel.ratelimit.config import RateLimitConfig

_LOOKS = 4  # how many old keys a new one takes with it
_LOOKS_AT_THE_CAP = 16
_FEW = 1000  # no need to look for idle keys among so few
_PLANS = 1000  # algorithms kept: plans are few; a function that invents a rate for each key must not leak

OVERFLOW = object()


class Held(NamedTuple):
    """A state that is not of the ledger's own algorithm: its key has, or had, a limit of its own."""

    algorithm: Algorithm
    state: Any


class Ledger:
    """The states, by key. A bare state is of the ledger's algorithm."""

    __slots__ = (
        "_aside", "_before", "_gate", "_kept", "_lenient", "_many_paused", "_older", "_overflow", "_paused", "_plans",
        "_promised", "algorithm", "cap", "full", "overflows", "rules", "states",
    )  # fmt: skip

    def __init__(self, rules: RateLimitConfig, cap: int) -> None:
        self.rules, self.cap = rules, cap
        self.algorithm: Algorithm = rules.make_algorithm(rules.rate)
        self._plans: dict[Any, Algorithm] = {}
        self.states: dict[Hashable, Any] = {}
        self._older: dict[Hashable, Any] = {}
        self._before = self.algorithm  # the algorithm of bare states in `_older`
        self._lenient = False  # may each key there be asked once more by the algorithm before?
        self._kept = 0  # how many were in use when it was last known
        self._aside: dict[Hashable, Any] = {}  # keys for which somebody waits: woven functions must not find them
        self._gate: Gate | None = None
        self._promised = 0
        self._paused: dict[Hashable, int] = {}  # until when, for when they come to have another rate meanwhile
        self._many_paused = _FEW
        self._overflow: Held | None = None
        self.overflows = 0  # how often a key had to share
        self.full = False  # that happened for the first time, and nobody has been told yet

    def algorithm_of(self, limit: Any) -> Algorithm:
        """The algorithm at a key's own limit; None: at everybody's."""
        if limit is None:
            return self.algorithm
        try:
            found = self._plans.get(limit)
        except TypeError:  # rate_for says what is wrong with it
            found = None
        if found is None:
            rate = self.rules.rate_for(limit)
            if len(self._plans) >= _PLANS:
                self._plans.clear()
            found = self._plans[limit] = self.rules.make_algorithm(rate)
        return found

    # ------------------------------------------------------------------ what is charged

    def acquire(self, key: Hashable, algorithm: Algorithm, now: int, permits: int) -> Decision:
        """Take permits, if they are there."""
        key = self._place(key, now)
        if key is OVERFLOW:  # everybody there has the same limit
            algorithm, permits = self.algorithm, min(permits, self.algorithm.capacity)
        if self._lenient and key in self._older and self._last_time(key, algorithm, now, permits):
            return pause.acquire(algorithm, self._state(key, algorithm, now), now, 0)[1]._replace(allowed=True)
        state, decision = pause.acquire(algorithm, self._state(key, algorithm, now), now, permits)
        self._keep(key, algorithm, state)
        return decision

    def _last_time(self, key: Hashable, algorithm: Algorithm, now: int, permits: int) -> bool:
        """The next request of a key after a lower limit has come into force, by the limit before."""
        entry = self._older.pop(key)
        held, state = entry if type(entry) is Held else (self._before, entry)
        allowed = permits <= held.capacity
        if allowed:
            state, decision = pause.acquire(held, state, now, permits)
            allowed = decision.allowed
        self._keep(key, algorithm, self._adopted(key, algorithm, held, state, now))
        return allowed

    def look(self, key: Hashable, algorithm: Algorithm, now: int, permits: int) -> Decision:
        """What `acquire` would answer."""
        return pause.acquire(algorithm, self._state(key, algorithm, now), now, permits)[1]

    def used(self, key: Hashable, algorithm: Algorithm, now: int) -> int:
        """How many permits are charged to a key."""
        return pause.used(algorithm, self._state(key, algorithm, now), now)

    def adjust(self, key: Hashable, algorithm: Algorithm, now: int, permits: int) -> None:
        """Take more without asking, or (negative) give back."""
        key = self._place(key, now)
        self._keep(key, algorithm, pause.adjust(algorithm, self._state(key, algorithm, now), now, permits))

    def pause(self, key: Hashable, algorithm: Algorithm, now: int, until: int) -> None:
        """Grant this key nothing before `until`."""
        key = self._place(key, now)
        self._keep(key, algorithm, pause.pause(algorithm, self._state(key, algorithm, now), now, until))
        if len(self._paused) >= self._many_paused:
            self._paused = {one: end for one, end in self._paused.items() if end > now}
            self._many_paused = max(_FEW, 2 * len(self._paused))
        self._paused[key] = max(until, self._paused.get(key, 0))

    def foresee(self, rules: RateLimitConfig, key: Hashable, limit: Any, at: int, permits: int) -> int:
        """When the same request would pass, if `rules` come into force at `at`."""
        algorithm = rules.make_algorithm(rules.rate if limit is None else rules.rate_for(limit))
        state = self._state(key, algorithm, at)
        return at + pause.acquire(algorithm, state, at, permits)[1].retry_after

    def _state(self, key: Hashable, algorithm: Algorithm, now: int) -> Any:
        """The state of a key, as one of this algorithm."""
        entry, own = self._overflow if key is OVERFLOW else self.states.get(key), self.algorithm
        if entry is None and self._aside:
            entry = self._aside.get(key)
        if entry is None and self._older:
            entry, own = self._older.get(key), self._before
        if entry is None:
            # What it took while it shared the overflow state is charged there: it begins where that one stands.
            return self._state(OVERFLOW, algorithm, now) if self.overflows and key is not OVERFLOW else None
        held, state = entry if type(entry) is Held else (own, entry)
        return state if held is algorithm else self._adopted(key, algorithm, held, state, now)

    def _adopted(self, key: Hashable, algorithm: Algorithm, held: Algorithm, state: Any, now: int) -> Any:
        state, until = pause.adopt(algorithm, held, state, now), self._paused.get(key, 0)
        return state if now >= until else pause.pause(algorithm, state, now, until)

    def _keep(self, key: Hashable, algorithm: Algorithm, state: Any) -> None:
        if key is OVERFLOW:
            self._overflow = Held(algorithm, state)
            return
        if self._older:
            self._older.pop(key, None)
        if state is None:
            return
        entry = state if algorithm is self.algorithm else Held(algorithm, state)
        if key in self._aside:
            self._aside[key] = entry
        else:
            self.states[key] = entry

    # ------------------------------------------------------------------ which keys are kept

    def keys(self) -> int:
        """How many keys have a state of their own."""
        return len(self.states) + len(self._older) + len(self._aside)

    def _place(self, key: Hashable, now: int) -> Hashable:
        """The key under which this one is kept: itself, or the overflow."""
        if key in self.states or key in self._older or self._aside.get(key) is not None:
            return key
        at_the_cap = self.keys() >= self.cap
        if not self._older and (at_the_cap or len(self.states) >= max(_FEW, 2 * self._kept)):
            self._turn_over()
        self._look_at_a_few(now, _LOOKS_AT_THE_CAP if at_the_cap else _LOOKS)
        if self.keys() < self.cap:
            return key
        self.full = self.full or not self.overflows
        self.overflows += 1
        return OVERFLOW

    def _turn_over(self) -> None:
        self._older, self._before, self.states, self._lenient = self.states, self.algorithm, {}, False

    def _look_at_a_few(self, now: int, looks: int) -> None:
        older = self._older
        if not older:
            return
        for _ in range(min(looks, len(older))):
            key, entry = older.popitem()
            held, state = entry if type(entry) is Held else (self._before, entry)
            if not pause.idle(held, state, now):
                self.states[key] = self._entry(key, held, state, now)
        if not older:
            self._kept = len(self.states)

    def _entry(self, key: Hashable, held: Algorithm, state: Any, now: int) -> Any:
        """What is kept of a state: bare where every key has the same limit, for woven functions expect a number."""
        if held is self.algorithm:
            return state
        if self.rules.limits is None:
            return self._adopted(key, self.algorithm, held, state, now)
        return Held(held, state)  # which limit it has now is asked when it is used

    def set_aside(self, key: Hashable) -> None:
        """Somebody waits for this key: nobody may find it on the quick way."""
        self._aside[key] = self.states.pop(key, None)  # it was asked for right now, and so is not among the older ones

    def put_back(self, key: Hashable, now: int) -> None:
        """Nobody waits any more."""
        entry = self._aside.pop(key)
        if entry is not None:
            held, state = entry if type(entry) is Held else (self.algorithm, entry)
            self.states[key] = self._entry(key, held, state, now)

    # ------------------------------------------------------------------ live changes

    def change(self, rules: RateLimitConfig, now: int, *, lenient: bool) -> None:
        """Other rules: what is charged stays charged. States are translated when they are next used, or looked at.

        `lenient`: the next request of each key is still decided by the rules before.
        """
        self.close()
        while self._older:  # left over from the change before, or from the last time it was full
            self._look_at_a_few(now, len(self._older))
        for key, entry in self._aside.items():
            if entry is not None and type(entry) is not Held:
                self._aside[key] = Held(self.algorithm, entry)
        self._turn_over()
        self.rules, self.algorithm, self._lenient = rules, rules.make_algorithm(rules.rate), lenient
        self._plans.clear()

    def catch_up(self, key: Hashable, algorithm: Algorithm, now: int) -> None:
        """This key has had its last time."""
        if key in self._older:
            self._keep(key, algorithm, self._state(key, algorithm, now))

    # ------------------------------------------------------------------ the quick way

    def open(self, cost: int) -> Gate:
        """Let woven functions decide as soon as the block ends, if it is a bucket; answers their gate."""
        self.close()
        if type(self.algorithm) not in (TokenBucket, LeakyBucket) or self.rules.limits is not None:
            return CLOSED
        self._gate = Gate(self.algorithm, cost)  # type: ignore[arg-type]  # a TokenBucket, by the line above
        return self._gate

    def close(self) -> Gate:
        """Let nobody pass but through the methods here."""
        self.promised()
        self._gate = None
        return CLOSED

    def promised(self) -> int:
        """The latest moment at which somebody turned away at the gate was told to come back."""
        if self._gate is not None:
            self._promised = max(self._promised, self._gate.promised())
        return self._promised

    def __enter__(self) -> None:
        """Take the states in hand."""
        gate = self._gate
        if gate is not None:
            try:
                gate.hand.pop()
            except IndexError:
                gate.take(None)

    def __exit__(self, *error: object) -> None:
        """Put them back."""
        if self._gate is not None:
            self._gate.hand.append(self.states)

    def after_fork(self, now: int) -> None:
        """In a forked child: whoever had them in hand is not here, and nobody waits."""
        if self._gate is not None:
            self._gate.hand.append(self.states)
        for key in list(self._aside):
            self.put_back(key, now)
