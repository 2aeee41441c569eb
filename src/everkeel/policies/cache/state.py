"""The drivers: serve what is there, load what is not, once for everybody who wants it at the same time.

A sync load runs in the thread of the first caller. An async load runs in a task of its own, which belongs to all who
wait for it: one of them cancelled harms no other, and when the last one is gone, the load is cancelled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from inspect import isawaitable
from itertools import count
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import TYPE_CHECKING, Any, TypeAlias

from everkeel.policies.cache.core import (
    AHEAD,
    HIT,
    MISS,
    QUIET,
    STALE,
    Entry,
    Step,
    kept,
    kept_failure,
    look,
    pause_after_error,
    serves_after_error,
)
from everkeel.policies.cache.flight import LEADING, Flight, Flights, Waiter, abandon
from everkeel.policies.cache.keys import Keys, expression
from everkeel.policies.cache.shadow import WouldHit
from everkeel.policies.cache.store import CarefulStore, MemoryStore, Store
from everkeel.runtime.cancellation import CURRENT
from everkeel.runtime.deadline import AMBIENT, remaining
from everkeel.runtime.outcome import FAILURE
from everkeel.runtime.state import CallKind, State
from everkeel.runtime.tally import read, tally
from everkeel.runtime.waiting import TaskWaiter, ThreadWaiter
from everkeel.runtime.workers import Job, start

if TYPE_CHECKING:
    import asyncio

    from everkeel.policies.cache.config import CacheConfig
    from everkeel.policies.cache.policy import Cache

Fn: TypeAlias = Callable[..., Any]
Args: TypeAlias = tuple[Any, ...]
Kwargs: TypeAlias = dict[str, Any]

_MOST_REFRESHERS = 8  # threads that refresh at the same time; beyond them, what is there is served a little longer

# `used` and the count of hits are one: the number of this use. An argument that cannot be hashed is explained by CALL.
_LOOKUP = """\
try:
    which = {key}
    entry = found(which)
except TypeError:
    RESULT = AWAIT cache.CALL(REST, ARGS)
else:
    if entry is not None and clock() < entry.soon:
        entry.used = tick(uses)
        RESULT = entry.value
    else:
        RESULT = AWAIT cache.ANSWER(which, REST, ARGS)"""


class Shelf(State):
    """What the calls of one cache share: the entries, and the loads under way."""

    __slots__ = ("_keys", "_memory", "_refreshers", "_stamped", "flights", "found", "ok", "policy", "store", "uses")
    word = "cache"
    parts = ("found", "uses")
    policy: Cache

    def __init__(self, policy: Cache, store: Store | None) -> None:
        self.policy, self.ok = policy, tally()
        self._memory: MemoryStore | None = None
        if store is None:
            store = self._memory = MemoryStore(policy.config.max_size)
        self.store = CarefulStore(policy, store)
        self.found = None if self._memory is None else self._memory.entries.get
        self.uses = count()  # numbers every use of an entry, and every entry when it is stored
        self._stamped = tally()  # how many of those were not hits
        self._keys = Keys(policy.config.key)
        self.flights = Flights(policy)
        self._refreshers = 0

    # ------------------------------------------------------------------ forgetting

    def invalidate(self, key: Hashable) -> bool:
        """Forget a key, and what a load under way will answer for it."""
        loading = self.flights.forget(key)
        return self.store.delete(key) or loading

    def clear(self) -> None:
        """Forget every key."""
        self.flights.forget_all()
        self.store.clear()

    def key_of(self, fn: Fn, args: Args, kwargs: Kwargs) -> Hashable:
        """The key of a call."""
        return self._keys.of(self.policy, fn, args, kwargs)

    def _stamp(self) -> int:
        next(self._stamped)
        return next(self.uses)

    # ------------------------------------------------------------------ serving

    def _serve(self, key: Hashable, entry: Entry, step: Step, error: Exception | None = None) -> Any:
        """The answer that is there."""
        policy = self.policy
        if step is HIT or step is AHEAD:
            entry.used = next(self.uses)
        else:
            policy.counts.tick("stale")
            entry.used = self._stamp()
        if policy.heard():
            from everkeel.events import CacheHit, CacheStale

            if step is HIT or step is AHEAD:
                policy.emit(CacheHit(policy=policy.name, policy_type=policy.type, key=key))
            else:
                age = policy.clock.monotonic() - entry.stored_at
                policy.emit(CacheStale(policy=policy.name, policy_type=policy.type, key=key, age=age, error=error))
        return entry.answer()

    def _missed(self, key: Hashable) -> None:
        policy = self.policy
        policy.counts.tick("misses")
        if policy.heard():
            from everkeel.events import CacheMissed

            policy.emit(CacheMissed(policy=policy.name, policy_type=policy.type, key=key))

    # ------------------------------------------------------------------ how a load ended

    def _landed_already(self, flight: Flight) -> Entry | None:
        """An answer that another load stored between this one's lookup and its boarding."""
        entry = self.store.get(flight.key)
        if entry is None or look(self.policy.config, entry, self.policy.clock.monotonic()) is not HIT:
            return None
        self.flights.land(flight, answered=entry.error is None, value=entry.value)
        return entry

    def loaded(self, key: Hashable, flight: Flight | None, value: Any) -> Any:
        """Keep the answer, and hand it to all who wait; answers what the caller gets."""
        rules, clock = self.policy.config, self.policy.clock
        if rules.classifier.of_result(value) is FAILURE:
            self.policy.counts.tick("failure")
            stale = self._in_place_of(key, None)
            if stale is None:
                self._keep(key, flight, kept_failure(rules, value, None, clock.monotonic()))
            else:
                value = stale.value
        else:
            chance = 0.0 if rules.jitter is None else clock.random()
            self._keep(key, flight, kept(rules, value, clock.monotonic(), chance))
            if flight is None or not flight.background:
                next(self.ok)
        if flight is not None:
            self.flights.land(flight, answered=True, value=value)
        return value

    def _failed(self, key: Hashable, flight: Flight | None, error: BaseException) -> Entry | None:
        """The entry that answers in place of the error; None where the error leaves."""
        rules = self.policy.config
        stale = None
        if isinstance(error, Exception):
            if rules.classifier.of_error(error) is FAILURE:
                self.policy.counts.tick("failure")
                stale = self._in_place_of(key, error)
                if stale is None:
                    self._keep(key, flight, kept_failure(rules, None, error, self.policy.clock.monotonic()))
            else:
                self.policy.counts.tick("ignored")
        if flight is not None and stale is None:
            self.flights.land(flight, answered=False, error=error)
        elif flight is not None and stale is not None:
            self.flights.land(flight, answered=True, value=stale.value)
        return stale

    def _keep(self, key: Hashable, flight: Flight | None, entry: Entry | None) -> None:
        if entry is None or (flight is not None and not flight.keep):
            return
        entry.used = self._stamp()
        self.store.set(key, entry)
        if flight is not None and not flight.keep:
            self.store.delete(key)  # it was forgotten just before it was stored

    def _in_place_of(self, key: Hashable, error: Exception | None) -> Entry | None:
        rules, now = self.policy.config, self.policy.clock.monotonic()
        entry = self.store.get(key)
        if entry is None or not serves_after_error(rules, entry, now):
            return None
        entry.quiet_until = now + pause_after_error(rules)
        return entry

    # ------------------------------------------------------------------ sync

    def call(self, fn: Fn, /, *args: Any, **kwargs: Any) -> Any:
        return self.answer(self.key_of(fn, args, kwargs), fn, *args, **kwargs)

    def answer(self, key: Hashable, fn: Fn, /, *args: Any, **kwargs: Any) -> Any:
        """What is there for a key, or what the call answers."""
        policy = self.policy
        while True:
            entry = self.store.get(key)
            step = look(policy.config, entry, policy.clock.monotonic())
            if entry is not None and step is not MISS:
                if step is AHEAD or step is STALE:
                    self._refresh_in_thread(key, fn, args, kwargs)
                return self._serve(key, entry, step)
            waiter = ThreadWaiter()
            flight = self.flights.board(key, waiter) if policy.config.single_flight else None
            if flight is None or flight.leader is waiter:
                return self._load(key, flight, fn, args, kwargs)
            try:
                waiter.wait(policy.clock, self._patience())
            finally:
                self.flights.leave(flight, waiter)
            if flight.answered:
                return self._shared(flight)
            self._check_patience(waiter)

    def _load(
        self,
        key: Hashable,
        flight: Flight | None,
        fn: Fn,
        args: Args,
        kwargs: Kwargs,
    ) -> Any:
        if flight is not None and (entry := self._landed_already(flight)) is not None:
            return self._serve(key, entry, HIT)
        try:
            self._missed(key)
            token = None if flight is None else LEADING.set((*LEADING.get(), flight))
            try:
                value = fn(*args, **kwargs)
            finally:
                if token is not None:
                    LEADING.reset(token)
            self._refuse_what_is_used_up(value)
        except BaseException as error:
            stale = self._failed(key, flight, error)
            if stale is None or not isinstance(error, Exception):
                raise
            return self._serve(key, stale, QUIET, error)
        return self.loaded(key, flight, value)

    def _refresh_in_thread(self, key: Hashable, fn: Fn, args: Args, kwargs: Kwargs) -> None:
        with self.policy.lock:
            if self._refreshers >= _MOST_REFRESHERS:
                return
            self._refreshers += 1
        flight = self._begin_refresh(key)
        if flight is None:
            self._refresher_is_free()
            return
        flight.thread = 0  # not known yet; in any case not this one
        try:
            start(Job(self._refresh, (flight, fn, args, kwargs), {}))
        except RuntimeError as error:  # no thread to be had: what is there is still good
            self._refresher_is_free()
            self._refresh_failed(key, flight, error)

    def _refresh(self, flight: Flight, fn: Fn, args: Args, kwargs: Kwargs) -> None:
        flight.thread = threading.get_ident()
        _leave_the_caller_behind(flight)
        try:
            value = fn(*args, **kwargs)
            self._refuse_what_is_used_up(value)
        except BaseException as error:
            self._refresh_failed(flight.key, flight, error)
        else:
            self.loaded(flight.key, flight, value)
        finally:
            self._refresher_is_free()

    def _refresher_is_free(self) -> None:
        with self.policy.lock:
            self._refreshers -= 1

    # ------------------------------------------------------------------ async

    async def acall(self, fn: Fn, /, *args: Any, **kwargs: Any) -> Any:
        return await self.aanswer(self.key_of(fn, args, kwargs), fn, *args, **kwargs)

    async def aanswer(self, key: Hashable, fn: Fn, /, *args: Any, **kwargs: Any) -> Any:
        policy = self.policy
        while True:
            entry = self.store.get(key)
            step = look(policy.config, entry, policy.clock.monotonic())
            if entry is not None and step is not MISS:
                if step is AHEAD or step is STALE:
                    self._refresh_in_task(key, fn, args, kwargs)
                return self._serve(key, entry, step)
            from asyncio import get_running_loop

            loop = get_running_loop()
            waiter = TaskWaiter(policy.clock, loop)
            flight = self.flights.board(key, waiter) if policy.config.single_flight else None
            if flight is None:
                return await self._load_alone(key, fn, args, kwargs)
            leading = flight.leader is waiter
            if leading:
                entry = self._landed_already(flight)
                if entry is not None:
                    return self._serve(key, entry, HIT)
                self._missed(key)
                self._take_off(flight, loop, fn, args, kwargs)
            try:
                # The call is the leader's own: as without a cache, what is inside it heeds its deadline.
                await waiter.wait(policy.clock, None if leading else self._patience())
            except BaseException as error:
                if self.flights.leave(flight, waiter):
                    await abandon(flight, error)
                raise
            if self.flights.leave(flight, waiter):
                await abandon(flight, None)
            if leading and flight.error is not None:
                try:
                    raise flight.error
                finally:
                    del flight  # its error has this frame in its traceback
            if flight.answered:
                return flight.value if leading else self._shared(flight)
            self._check_patience(waiter)

    async def _load_alone(self, key: Hashable, fn: Fn, args: Args, kwargs: Kwargs) -> Any:
        try:
            self._missed(key)
            value = await fn(*args, **kwargs)
            self._refuse_what_is_used_up(value)
        except BaseException as error:
            stale = self._failed(key, None, error)
            if stale is None or not isinstance(error, Exception):
                raise
            return self._serve(key, stale, QUIET, error)
        return self.loaded(key, None, value)

    def _take_off(
        self,
        flight: Flight,
        loop: asyncio.AbstractEventLoop,
        fn: Fn,
        args: Args,
        kwargs: Kwargs,
    ) -> None:
        flight.loop = loop
        flight.task = loop.create_task(self._fly(flight, fn, args, kwargs))
        # A task that is cancelled before its first step never gets to say how it ended.
        flight.task.add_done_callback(lambda _: None if flight.over else self.flights.land(flight, answered=False))

    async def _fly(self, flight: Flight, fn: Fn, args: Args, kwargs: Kwargs) -> None:
        key = flight.key
        if flight.background:
            _leave_the_caller_behind(flight)
        else:
            LEADING.set((*LEADING.get(), flight))
        try:
            value = await fn(*args, **kwargs)
            self._refuse_what_is_used_up(value)
        except BaseException as error:
            if flight.background:
                self._refresh_failed(key, flight, error)
            else:
                stale = self._failed(key, flight, error)
                if stale is not None and isinstance(error, Exception):
                    self._serve(key, stale, QUIET, error)
            if not isinstance(error, Exception):
                raise
        else:
            self.loaded(key, flight, value)

    def _refresh_in_task(self, key: Hashable, fn: Fn, args: Args, kwargs: Kwargs) -> None:
        flight = self._begin_refresh(key)
        if flight is not None:
            from asyncio import get_running_loop

            self._take_off(flight, get_running_loop(), fn, args, kwargs)

    # ------------------------------------------------------------------ what both do

    def _begin_refresh(self, key: Hashable) -> Flight | None:
        flight = self.flights.begin(key)
        if flight is not None:
            self.policy.counts.tick("refreshed")
        return flight

    def _refresh_failed(self, key: Hashable, flight: Flight, error: BaseException) -> None:
        """Nobody is told but the counts: what is there is served as long as it may, and tried again after a pause."""
        self.policy.counts.tick("refresh_failed")
        self._failed(key, flight, error)

    def _shared(self, flight: Flight) -> Any:
        self.policy.counts.tick("coalesced")
        return flight.value

    def _patience(self) -> float | None:
        left = remaining()
        return None if left is None else max(0.0, left)

    def _check_patience(self, waiter: Waiter) -> None:
        limit = AMBIENT.get()
        if not waiter.granted and limit is not None:
            raise limit.error()

    def _refuse_what_is_used_up(self, value: object) -> None:
        """A coroutine or a generator gives its answer once: whoever got it from the cache would get nothing."""
        if isinstance(value, CoroutineType):
            value.close()
        if isinstance(value, GeneratorType | AsyncGeneratorType) or isawaitable(value):
            kind = type(value).__name__
            hint = "; use acall(), or decorate the coroutine function itself" if isawaitable(value) else ""
            raise TypeError(f"{self.policy.label}: got a {kind}, which answers only once and cannot be kept{hint}")

    # ------------------------------------------------------------------ the woven path

    def fragment(self, kind: CallKind) -> str | None:
        # A store of the user's may raise, and a listener wants to hear of each hit: CALL does both.
        if self.found is None or self.policy.hits_are_heard():
            return None
        return _LOOKUP.format(key=expression(self.policy.config.key))

    def names(self, kind: CallKind) -> dict[str, object]:
        given: dict[str, object] = {"clock": self.policy.clock.monotonic, "tick": next}
        if self.policy.config.key is not None:
            given["key"] = self.policy.config.key
        return given

    # ------------------------------------------------------------------ live changes, being watched

    def shadow(self) -> State:
        return WouldHit(self)

    def adapt(self, old: CacheConfig, new: CacheConfig) -> None:
        if old.key is not new.key:
            self._keys = Keys(new.key)
        if self._memory is not None:
            self._memory.resize(new.max_size)

    def after_fork(self) -> None:
        self.flights = Flights(self.policy)
        self._refreshers = 0
        if self._memory is not None:
            self._memory.after_fork()

    def hits(self) -> int:
        """How often a fresh answer was there."""
        numbered = int(repr(self.uses)[6:-1])  # `count(17)`: the way to look without touching
        return max(0, numbered - read(self._stamped))

    def successes(self) -> int:
        counts = self.policy.counts
        return self.hits() + read(self.ok) + counts["stale"] + counts["coalesced"]

    def details(self) -> dict[str, Any]:
        counts, memory = self.policy.counts, self._memory
        return {
            "hits": self.hits(),
            "misses": counts["misses"],
            "stale": counts["stale"],
            "coalesced": counts["coalesced"],
            "refreshed": counts["refreshed"],
            "refresh_failed": counts["refresh_failed"],
            "store_errors": counts["store_errors"],
            "loading": len(self.flights.under_way),
            "evicted": 0 if memory is None else memory.evicted,
            "size": None if memory is None else len(memory),
            "max_size": self.policy.config.max_size,
        }


def _leave_the_caller_behind(flight: Flight) -> None:
    """In the context of a refresh: it is nobody's call, so nobody's deadline ends it."""
    AMBIENT.set(None)
    CURRENT.set(None)
    LEADING.set((flight,))
