"""The same limit with priorities: who may enter is decided under a lock, class by class.

Those of a class who are inside are a set of permits. Adding one and discarding it are single C calls, and discarding it
twice does no harm: so an interrupt loses no place here either (see the bulkhead's places).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from typing import TYPE_CHECKING, Any

from everkeel.policies.concurrency.priorities import CURRENT, Classes
from everkeel.policies.concurrency.state import Adaptive
from everkeel.runtime.state import CallKind, State
from everkeel.runtime.waiting import TaskWaiter, ThreadWaiter

if TYPE_CHECKING:
    from everkeel.policies.concurrency.policy import ConcurrencyLimit


class Permit:
    """One call, from the moment it asks for a place."""

    __slots__ = ("began", "rank", "waiter")

    def __init__(self, rank: Rank) -> None:
        self.rank, self.began = rank, 0.0
        self.waiter: ThreadWaiter | TaskWaiter | None = None


class ByClass(State):
    """The drivers: find the class of a call, which does the rest."""

    __slots__ = ()

    def of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The class of a call with these arguments."""
        raise TypeError(f"{type(self).__name__} does not know its classes")  # pragma: no cover

    def here(self) -> Any:
        """The class of a block, which has no arguments."""
        raise TypeError(f"{type(self).__name__} does not know its classes")  # pragma: no cover

    def enter(self) -> Any:
        state = self.here()
        return state, state.enter()

    async def aenter(self) -> Any:
        state = self.here()
        return state, await state.aenter()

    def done(self, permit: Any, result: Any) -> None:
        permit[0].done(permit[1], result)

    def failed(self, permit: Any, error: BaseException) -> None:
        permit[0].failed(permit[1], error)

    dropped = failed

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return self.of(args, kwargs).call(fn, *args, **kwargs)

    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return await self.of(args, kwargs).acall(fn, *args, **kwargs)

    def stream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        return (yield from self.of(args, kwargs).stream(fn, *args, **kwargs))

    async def astream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        items = self.of(args, kwargs).astream(fn, *args, **kwargs)
        try:
            async for item in items:
                yield item
        finally:
            await items.aclose()

    def fragment(self, kind: CallKind) -> str | None:
        return None


class Ranked(ByClass, Adaptive):
    """The limit as a whole; each class has a `Rank` that its calls pass through."""

    __slots__ = ("_ranks", "classes", "line")

    def __init__(self, policy: ConcurrencyLimit, key: Any = None) -> None:
        self._ranks: dict[str, Rank] = {}
        self.line: list[Permit] = []  # those who wait, in the order they came
        super().__init__(policy, key)
        self._take_over()

    def _take_over(self) -> None:
        self.classes = Classes(self.policy.config.priorities or {})
        for name in self.classes.names:
            self._ranks.setdefault(name, Rank(self, name))

    # ------------------------------------------------------------------ which class

    def of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Rank:
        """The class of a call with these arguments."""
        wish = self.policy.config.priority
        name = wish(*args, **kwargs) if callable(wish) else None
        return self.here() if name is None else self._ranks[self.classes.known(name)]

    def here(self) -> Rank:
        """The class of the context; without one, the one set for calls that say nothing."""
        wish = self.policy.config.priority
        return self._ranks[self.classes.known(CURRENT.get() or (wish if isinstance(wish, str) else None))]

    # ------------------------------------------------------------------ deciding, under the lock

    def _inside(self) -> dict[str, int]:
        return {name: len(rank.inside) for name, rank in self._ranks.items()}

    def _try(self, permit: Permit) -> bool:
        name = permit.rank.name
        if not self.classes.may_enter(name, self.now_at, self._inside()):
            return False
        permit.rank.inside.add(permit)
        return True

    def ask(self, permit: Permit, make: Callable[[], ThreadWaiter | TaskWaiter]) -> None:
        """A place for this permit, or one in the queue (it has a waiter then), or `ShedError`."""
        policy, mine = self.policy, self.classes.rank(permit.rank.name)
        evicted, queued = None, False
        with policy.lock:
            ahead = any(self.classes.rank(other.rank.name) <= mine for other in self.line)
            if not ahead and self._try(permit):
                return
            if len(self.line) >= policy.config.queue:
                evicted = self._lowest(mine)
            if evicted is not None or len(self.line) < policy.config.queue:
                if evicted is not None:
                    self.line.remove(evicted)
                permit.waiter = make()
                self.line.append(permit)
                self.attention = queued = True
        if evicted is not None and evicted.waiter is not None:
            evicted.waiter.wake()
        if not queued:
            raise self.shed(permit.rank.name)
        policy.counts.tick("queued")
        if policy.heard():
            from everkeel.events import CallQueued

            policy.emit(CallQueued(policy=policy.name, policy_type=policy.type, waiting=len(self.line), key=self.key))
        self.attend()

    def _lowest(self, mine: int) -> Permit | None:
        """The newest in the queue of the lowest class, if that is below mine."""
        lowest = max(self.line, key=lambda one: (self.classes.rank(one.rank.name), self.line.index(one)), default=None)
        return None if lowest is None or self.classes.rank(lowest.rank.name) <= mine else lowest

    def attend(self) -> None:
        """Free places go to the highest class that waits and may have one."""
        with self.policy.lock:
            newest = self.policy.config.order == "newest"
            in_order = reversed(self.line) if newest else self.line
            for permit in sorted(in_order, key=lambda one: self.classes.rank(one.rank.name)):
                if permit.waiter is not None and self._try(permit):
                    self.line.remove(permit)
                    permit.waiter.grant()
            self._look()

    def _look(self) -> None:
        self.attention = bool(self.line)

    def waited(self, permit: Permit, began: float) -> None:
        """The wait is over. Without a place, that was too long, or somebody more important came."""
        policy = self.policy
        with policy.lock:
            policy.waited += policy.clock.monotonic() - began
            if permit in permit.rank.inside:
                return
            self._forget(permit)
        raise self.shed(permit.rank.name)

    def give_up(self, permit: Permit) -> None:
        """Leave the queue, or hand on the place that was granted in the meantime."""
        with self.policy.lock:
            self._forget(permit)
        permit.rank.leave(permit)

    def _forget(self, permit: Permit) -> None:
        if permit in self.line:
            self.line.remove(permit)
        self._look()

    # ------------------------------------------------------------------ live changes, being watched

    def shadow(self) -> State:
        return RankedShadow(self)

    def adapt(self, old: Any, new: Any) -> None:
        with self.policy.lock:
            self._take_over()
        super().adapt(old, new)
        self.attend()

    def _resize(self, change: int) -> None:
        self.attend()

    def running(self) -> int:
        return sum(self._inside().values())

    def after_fork(self) -> None:
        self.line.clear()
        for rank in self._ranks.values():
            rank.inside.clear()
        self.attention = False

    def details(self) -> dict[str, Any]:
        return {**super().details(), "waiting": len(self.line), "running_by_priority": self._inside()}


class Rank(State):
    """The calls of one class."""

    __slots__ = ("inside", "limiter", "name", "policy")
    policy: ConcurrencyLimit

    def __init__(self, limiter: Ranked, name: str) -> None:
        self.limiter, self.policy, self.name = limiter, limiter.policy, name
        self.inside: set[Permit] = set()

    def place(self, permit: Permit) -> None:
        """A place, perhaps after a wait."""
        limiter, clock = self.limiter, self.policy.clock
        limiter.ask(permit, ThreadWaiter)
        if isinstance(permit.waiter, ThreadWaiter):
            began = clock.monotonic()
            try:
                permit.waiter.wait(clock, limiter._patience())
            except BaseException:
                limiter.give_up(permit)
                raise
            limiter.waited(permit, began)

    async def aplace(self, permit: Permit) -> None:
        """The same for a coroutine."""
        from asyncio import get_running_loop

        limiter, clock = self.limiter, self.policy.clock
        limiter.ask(permit, lambda: TaskWaiter(clock, get_running_loop()))
        if isinstance(permit.waiter, TaskWaiter):
            began = clock.monotonic()
            try:
                await permit.waiter.wait(clock, limiter._patience())
            except BaseException:
                limiter.give_up(permit)
                raise
            limiter.waited(permit, began)

    def leave(self, permit: Permit) -> None:
        """Give the place back, if there is one."""
        self.inside.discard(permit)
        if self.limiter.attention:
            self.limiter.attend()

    def enter(self) -> Permit:
        permit = Permit(self)
        self.place(permit)
        permit.began = self.limiter.may_begin()
        return permit

    async def aenter(self) -> Permit:
        permit = Permit(self)
        await self.aplace(permit)
        permit.began = self.limiter.may_begin()
        return permit

    def done(self, permit: Permit, result: Any) -> None:
        self.leave(permit)
        if permit.began:
            self.limiter.sampled(permit.began)
        next(self.limiter.ok)

    def failed(self, permit: Permit, error: BaseException) -> None:
        entered = permit in self.inside
        self.leave(permit)
        if entered and isinstance(error, Exception):
            self.limiter.troubled(error)

    dropped = failed

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        limiter, inside, permit = self.limiter, self.inside, Permit(self)
        try:
            self.place(permit)
            permit.began = limiter.may_begin()
            result = fn(*args, **kwargs)
        except Exception as error:
            if permit in inside:
                limiter.troubled(error)
            raise
        finally:
            inside.discard(permit)
            if limiter.attention:
                limiter.attend()
        if permit.began:
            limiter.sampled(permit.began)
        next(limiter.ok)
        return result

    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        limiter, inside, permit = self.limiter, self.inside, Permit(self)
        try:
            await self.aplace(permit)
            permit.began = limiter.may_begin()
            result = await fn(*args, **kwargs)
        except Exception as error:
            if permit in inside:
                limiter.troubled(error)
            raise
        finally:
            inside.discard(permit)
            if limiter.attention:
                limiter.attend()
        if permit.began:
            limiter.sampled(permit.began)
        next(limiter.ok)
        return result

    def shadow(self) -> State:
        return WouldShedRank(self)


class RankedShadow(ByClass):
    """Finds the class of a call, and only watches."""

    __slots__ = ("_ranked", "policy")

    def __init__(self, ranked: Ranked) -> None:
        self.policy, self._ranked = ranked.policy, ranked

    def of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> State:
        return self._ranked.of(args, kwargs).shadow()

    def here(self) -> State:
        return self._ranked.here().shadow()


class WouldShedRank(State):
    """Lets everybody of a class in, learns, and counts those who would have waited or been shed."""

    __slots__ = ("policy", "rank")

    def __init__(self, rank: Rank) -> None:
        self.rank, self.policy = rank, rank.policy

    def enter(self) -> Permit:
        permit, limiter = Permit(self.rank), self.rank.limiter
        with self.policy.lock:
            placed = limiter._try(permit)
        if not placed:
            self.policy.would_not_enter()
        permit.began = limiter.may_begin()
        return permit

    def done(self, permit: Permit, result: Any) -> None:
        self._leave(permit)
        if permit.began:
            self.rank.limiter.sampled(permit.began)
        next(self.rank.limiter.ok)

    def failed(self, permit: Permit, error: BaseException) -> None:
        self._leave(permit)
        if isinstance(error, Exception):
            self.rank.limiter.troubled(error)

    dropped = failed

    def _leave(self, permit: Permit) -> None:
        if permit in self.rank.inside:
            self.rank.leave(permit)
        else:
            self.policy.left_after_all()
