"""What the user holds: `cache(...)`."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, ParamSpec, Self, cast

from everkeel.errors import ConfigError
from everkeel.policies.cache.config import CacheConfig
from everkeel.policies.cache.state import Shelf
from everkeel.policies.cache.store import Store
from everkeel.runtime import events as hub
from everkeel.runtime.classify import Errors, ResultPredicate
from everkeel.runtime.clock import DEFAULT, Clock
from everkeel.runtime.outcome import Verdict
from everkeel.runtime.policy import Policy, Snapshot
from everkeel.runtime.settings import Mode, Seconds, label
from everkeel.runtime.state import CallKind
from everkeel.runtime.weave import weaving_of

P = ParamSpec("P")


class CacheSnapshot(Snapshot):
    """What a cache's snapshot adds. `size` is None where the store is not its own."""

    hits: int
    misses: int
    stale: int
    coalesced: int
    refreshed: int
    refresh_failed: int
    store_errors: int
    loading: int
    evicted: int
    size: int | None
    max_size: int


class Cache(Policy[CacheConfig]):
    """A cache policy; make one with `cache(...)`."""

    __slots__ = ("_own_store",)
    type = "cache"
    no_block = "a block has no answer to keep; decorate a function, or use call() or acall()"

    def __init__(self, name: str | None, config: CacheConfig, *, store: Store | None = None, **rest: Any) -> None:
        if store is not None and not isinstance(store, Store):
            raise ConfigError(
                label(self.type, name), "store", "must have the methods get, set, delete and clear", repr(store)
            )
        self._own_store = store
        super().__init__(name, config, **rest)

    def make_state(self, key: Hashable = None) -> Shelf:
        return Shelf(self, self._own_store)

    @property
    def shelf(self) -> Shelf:
        """Its state, as what it is."""
        return cast("Shelf", self.state)

    def may_guard(self, kind: CallKind) -> None:
        if kind in ("generator", "async generator"):
            article = "an" if kind == "async generator" else "a"
            what = f"cannot keep the items of {article} {kind} function, which can be had only once; return a list"
            raise ConfigError(self.label, None, what, None)

    def judge(self, error: BaseException) -> Verdict:
        return self.config.classifier.of_error(error)

    def hits_are_heard(self) -> bool:
        """Does anybody listen to hits? Then every call takes the way on which they are told."""
        if not self.heard():
            return False
        from everkeel.events import CacheHit

        return any(one.wants(CacheHit) for one in (*self.subscriptions, *hub.everywhere))

    def invalidate(self, fn: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> bool:
        """Forget what `fn(*args, **kwargs)` answered; a load under way for it is not kept either.

        `fn` is the function as you call it: the decorated one, or the one you give to `call`. Answers whether there was
        anything to forget.

        >>> from everkeel import cache
        >>> users = cache(60)
        >>> @users
        ... def user(number: int) -> str:
        ...     return f"user {number}"
        >>> user(7), users.invalidate(user, 7), users.invalidate(user, 7)
        ('user 7', True, False)
        """
        given: tuple[Any, ...] = args
        weaving = weaving_of(fn)
        inner: Callable[..., Any] = fn
        if weaving is not None and any(policy is self for policy in weaving.policies):
            inner = weaving.fn
            instance = getattr(fn, "__self__", None)
            if instance is not None:
                given = (instance, *args)
        return self.shelf.invalidate(self.shelf.key_of(inner, given, kwargs))

    def invalidate_key(self, key: Hashable) -> bool:
        """Forget one key, where there is a key function: what it answered for the call."""
        return self.shelf.invalidate(key)

    def clear(self) -> None:
        """Forget every answer; loads under way are not kept either. The counts stay."""
        self.shelf.clear()

    def start_over(self) -> None:
        self.shelf.clear()
        super().start_over()

    def derive(self, name: str | None = None, **changes: Any) -> Self:
        """A new cache with this one's settings, some of them changed. Its entries are its own, and in memory."""
        config = self.config.changed(name, changes)
        return type(self)(name, config, clock=None if self.clock is DEFAULT else self.clock)

    def snapshot(self) -> CacheSnapshot:
        return cast("CacheSnapshot", super().snapshot())


def cache(
    ttl: Seconds,
    name: str | None = None,
    *,
    max_size: int = 1024,
    key: Callable[..., Hashable] | None = None,
    single_flight: bool = True,
    stale_for: Seconds | None = None,
    stale_if_error: Seconds | None = None,
    refresh_ahead: float | None = None,
    jitter: Seconds | None = None,
    negative_ttl: Seconds | None = None,
    on: Errors = Exception,
    ignore: Errors | None = None,
    on_result: ResultPredicate | None = None,
    causes: bool = False,
    store: Store | None = None,
    mode: Mode = "enforce",
    clock: Clock | None = None,
    replace: bool = False,
) -> Cache:
    """Keep an answer for a while, and let only one caller at a time fetch a new one.

    Belongs outermost: a hit then costs nothing of what is inside. For answers that may be a little old; not for calls
    that change something, and not for generators.

    However many threads and tasks, of however many event loops, ask for the same thing at the same time, one load is
    made and all get its answer. One of them cancelled harms no other. An error goes to the caller whose call it was;
    the next of those who wait then tries for itself.

    Args:
        ttl: How long an answer is fresh. Required: nobody but you knows how old it may be.
        name: Its identity in errors, events, metrics and configuration. Without one it takes the decorated function's.
        max_size: How many answers are kept; the least recently used goes first. 1024, so that a cache nobody sized
            cannot become the leak that takes the process down.
        key: A function of the call's arguments that answers what tells calls apart. By default that is the function
            and all its arguments with their types, so that 1 and True are two. In a method that includes `self`, which
            the cache then keeps alive: give a key, such as `lambda self, number: (self.tenant, number)`. The answer of
            a key function is the whole key: two functions whose keys are equal share their answers.
        single_flight: One load at a time for a key. On, since a popular answer that expires otherwise becomes a
            stampede.
        stale_for: For so long after it has expired an answer is still served, while one load refreshes it in the
            background. Off: not everybody may be served something older than `ttl`.
        stale_if_error: For so long after it has expired an answer is served where the load fails.
        refresh_ahead: The share of its time after which a hit starts a refresh in the background; 0.8 is a good one
            where there is always somebody asking. Off, since it loads more often than needed.
        jitter: Each answer lives up to so many seconds less than `ttl`, so that what was loaded together does not
            expire together. Never longer: `ttl` is a promise.
        negative_ttl: How long a failure is kept: errors are raised again (as copies), and results that `on_result`
            calls a failure returned again. By default neither is kept. A rejection by a policy inside never is.
        on: What counts as a failure: exception classes, predicates on the exception, or a tuple of both.
        ignore: Wins over `on`.
        on_result: A predicate: True for results that are failures, and not worth a full `ttl`.
        causes: Let `on` and `ignore` look along the chain of causes too.
        store: Where answers are kept, in place of memory: an object with `get`, `set`, `delete` and `clear`, none of
            them a coroutine function. `max_size` is then its own business.
        mode: "enforce", "shadow" (makes every call, counts `hit` where it would have served an answer, and `differ`
            where that was not equal to the real one) or "off".
        clock: Where its time comes from, in place of the default.
        replace: Take the name from a policy that has it.

    >>> from everkeel import cache
    >>> @cache(ttl=60)
    ... def exchange_rate(currency: str) -> float:
    ...     print("asking the bank")
    ...     return 1.09
    >>> exchange_rate("EUR"), exchange_rate("EUR")
    asking the bank
    (1.09, 1.09)
    """
    values = {
        "ttl": ttl,
        "max_size": max_size,
        "key": key,
        "single_flight": single_flight,
        "stale_for": stale_for,
        "stale_if_error": stale_if_error,
        "refresh_ahead": refresh_ahead,
        "jitter": jitter,
        "negative_ttl": negative_ttl,
        "on": on,
        "ignore": ignore,
        "on_result": on_result,
        "causes": causes,
        "mode": mode,
    }
    return Cache(name, CacheConfig.make(name, values), store=store, clock=clock, replace=replace)
