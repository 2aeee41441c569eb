"""A bulkhead whose number of places moves. One call in four is measured: enough to learn from, for a fourth of it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from typing import TYPE_CHECKING, Any

from everkeel.errors import BulkheadFullError, RejectedError, ShedError
from everkeel.policies.bulkhead.state import Places
from everkeel.runtime.outcome import Verdict
from everkeel.runtime.state import CallKind, State
from everkeel.runtime.waiting import TaskWaiter, ThreadWaiter

if TYPE_CHECKING:
    from everkeel.policies.concurrency.config import ConcurrencyLimitConfig
    from everkeel.policies.concurrency.policy import ConcurrencyLimit

_PLACE = """\
entered, began = True, 0.0
try:
    try:
        tokens.pop()
    except IndexError:
        entered = False
    if not entered:
        AWAIT limiter.ENTER()
        entered = True
    if tick(turn):
        began = clock()
    INNER
except Exception as error:
    if entered:
        limiter.troubled(error)
    raise
finally:
    if entered:
        tokens.append(None)
        if limiter.attention:
            limiter.attend()
if began:
    limiter.sampled(clock() - began)
tick(ok)"""


class Adaptive(Places):
    """The places, and the control that says how many there are."""

    __slots__ = ("control", "now_at", "turn")
    word = "limiter"
    parts = ("tokens", "ok", "turn")  # type: ignore[assignment]  # one more than a bulkhead's
    policy: ConcurrencyLimit  # type: ignore[assignment]  # a bulkhead in all that its places ask of it

    def __init__(self, policy: ConcurrencyLimit, key: Any = None) -> None:
        self.control = policy.config.control()
        self.now_at = int(self.control.limit)
        self.turn = cycle((True, False, False, False))
        super().__init__(policy, key)  # type: ignore[arg-type]

    def limit(self) -> int:
        return self.now_at

    # ------------------------------------------------------------------ learning

    def sampled(self, latency: float) -> None:
        """A call that was measured took so long."""
        with self.policy.lock:
            limit = self.control.sample(latency, self.running() + 1)
        self._move(limit)

    def troubled(self, error: Exception) -> None:
        """A call raised: was it because of too much?"""
        policy = self.policy
        if policy.config.classifier.of_error(error) is Verdict.FAILURE:
            policy.counts.tick("failure")
            with policy.lock:
                limit = self.control.overload(self.running())
            self._move(limit)
        else:
            policy.counts.tick("ignored")

    def _move(self, limit: int) -> None:
        policy, before = self.policy, self.now_at
        if limit == before:
            return
        with policy.lock:
            before, self.now_at = self.now_at, limit
        self._resize(limit - before)
        if policy.heard() and limit != before:
            from everkeel.events import LimitChanged

            policy.emit(
                LimitChanged(policy=policy.name, policy_type=policy.type, before=before, limit=limit, key=self.key)
            )

    def adapt(self, old: Any, new: Any) -> None:
        rules: ConcurrencyLimitConfig = new
        with self.policy.lock:
            control = rules.control()
            control.limit = control._bounded(self.control.limit)  # what was learned stays, within the new bounds
            control.baseline = self.control.baseline
            self.control = control
        self._move(int(control.limit))

    def _full(self) -> BulkheadFullError:
        return self._shed(None)  # type: ignore[return-value]  # a rejection, of this policy's own kind

    def _shed(self, priority: str | None) -> RejectedError:
        policy = self.policy
        next(policy.rejections)
        error = ShedError(policy.name, None, self.now_at, priority)
        if policy.heard():
            from everkeel.events import CallRejected

            policy.emit(CallRejected(policy=policy.name, policy_type=policy.type, error=error, key=self.key))
        return error

    # ------------------------------------------------------------------ the drivers

    def enter(self) -> Any:
        super().enter()
        return self.policy.clock.monotonic() if next(self.turn) else 0.0

    async def aenter(self) -> Any:
        await super().aenter()
        return self.policy.clock.monotonic() if next(self.turn) else 0.0

    def done(self, permit: Any, result: Any) -> None:
        self._give_back()
        if permit:
            self.sampled(self.policy.clock.monotonic() - permit)
        next(self.ok)

    def failed(self, permit: Any, error: BaseException) -> None:
        if isinstance(error, Exception):
            self.troubled(error)
        self._give_back()

    dropped = failed

    call = State.call
    acall = State.acall
    stream = State.stream
    astream = State.astream

    def fragment(self, kind: CallKind) -> str | None:
        return _PLACE.replace("AWAIT limiter.ENTER()", "AWAIT limiter.PLACE()")

    def place(self) -> None:
        """A place, without the measuring that the fragment does itself."""
        Places.enter(self)

    async def aplace(self) -> None:
        await Places.aenter(self)

    def names(self, kind: CallKind) -> dict[str, object]:
        return {"tick": next, "clock": self.policy.clock.monotonic}

    def shadow(self) -> State:
        return WouldShed(self)

    def details(self) -> dict[str, Any]:
        return {**super().details(), "baseline": self.control.baseline}


class Ranked(Adaptive):
    """The same with priorities: entering is decided under the lock, class by class."""

    __slots__ = ("classes",)

    def __init__(self, policy: ConcurrencyLimit, key: Any = None) -> None:
        from everkeel.policies.concurrency.priorities import Classes

        self.classes = Classes(policy.config.priorities or {})
        super().__init__(policy, key)

    def class_of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """The class a call belongs to: by its arguments, or by its context."""
        from everkeel.policies.concurrency.priorities import CURRENT

        wish = self.policy.config.priority
        if callable(wish) and (args or kwargs):
            return self.classes.known(wish(*args, **kwargs))
        return self.classes.known(CURRENT.get() or (wish if isinstance(wish, str) else None))

    def _try(self, name: str) -> bool:
        """Under the lock: a place for this class, if it may have one."""
        if not self.classes.may_enter(name, self.now_at):
            return False
        try:
            self.tokens.pop()
        except IndexError:
            return False
        self.classes.running[name] += 1
        return True

    def _queue(self, name: str, make: Callable[[], ThreadWaiter | TaskWaiter]) -> ThreadWaiter | TaskWaiter | None:
        """None: entered. A waiter: in the queue, perhaps in the place of a lower one. Or the error."""
        evicted = None
        with self.policy.lock:
            if not self.waiters and self._try(name):
                return None
            if len(self.waiters) >= self.policy.config.queue:
                evicted = self._lowest(name)
                if evicted is None:
                    full = True
                else:
                    full = False
                    self.waiters.remove(evicted)
            else:
                full = False
            if not full:
                waiter = make()
                self.policy.ranks[waiter] = name
                self.waiters.append(waiter)
                self.attention = True
        if full:
            raise self._shed(name)
        if evicted is not None:
            evicted.wake()
        self.policy.counts.tick("queued")
        self.attend()
        return waiter

    def _lowest(self, name: str) -> ThreadWaiter | TaskWaiter | None:
        """The newest waiter of the lowest class, if that is below this one."""
        ranks = self.policy.ranks
        worst = max(self.waiters, key=lambda one: self.classes.rank(ranks[one]), default=None)
        if worst is None or self.classes.rank(ranks[worst]) <= self.classes.rank(name):
            return None
        lowest = self.classes.rank(ranks[worst])
        return next(one for one in reversed(self.waiters) if self.classes.rank(ranks[one]) == lowest)

    def attend(self) -> None:
        with self.policy.lock:
            while self.debt and self.tokens:
                self.tokens.pop()
                self.debt -= 1
            ranks = self.policy.ranks
            waiters = sorted(self.waiters, key=lambda one: self.classes.rank(ranks[one]))
            for waiter in waiters:
                if self._try(ranks[waiter]):
                    self.waiters.remove(waiter)
                    waiter.grant()
            self._look()

    def _end_wait(self, waiter: ThreadWaiter | TaskWaiter, name: str, *, raised: bool) -> None:
        """The wait is over, by a grant, in vain, or by an error that is on its way."""
        with self.policy.lock:
            self.policy.ranks.pop(waiter, None)
            granted = waiter.granted
            if not granted and waiter in self.waiters:
                self.waiters.remove(waiter)
                self._look()
        if granted and raised:
            self._leave(name)
        elif not granted and not raised:
            raise self._shed(name)

    def _leave(self, name: str) -> None:
        with self.policy.lock:
            self.classes.running[name] -= 1
        self._give_back()

    def _enter_as(self, name: str) -> tuple[str, float]:
        waiter = self._queue(name, ThreadWaiter)
        if isinstance(waiter, ThreadWaiter):
            try:
                waiter.wait(self.policy.clock, self._patience())
            except BaseException:
                self._end_wait(waiter, name, raised=True)
                raise
            self._end_wait(waiter, name, raised=False)
        return name, self.policy.clock.monotonic() if next(self.turn) else 0.0

    async def _aenter_as(self, name: str) -> tuple[str, float]:
        from asyncio import get_running_loop

        clock = self.policy.clock
        waiter = self._queue(name, lambda: TaskWaiter(clock, get_running_loop()))
        if isinstance(waiter, TaskWaiter):
            try:
                await waiter.wait(clock, self._patience())
            except BaseException:
                self._end_wait(waiter, name, raised=True)
                raise
            self._end_wait(waiter, name, raised=False)
        return name, clock.monotonic() if next(self.turn) else 0.0

    def enter(self) -> Any:
        return self._enter_as(self.class_of((), {}))

    async def aenter(self) -> Any:
        return await self._aenter_as(self.class_of((), {}))

    def done(self, permit: Any, result: Any) -> None:
        name, began = permit
        self._leave(name)
        if began:
            self.sampled(self.policy.clock.monotonic() - began)
        next(self.ok)

    def failed(self, permit: Any, error: BaseException) -> None:
        if isinstance(error, Exception):
            self.troubled(error)
        self._leave(permit[0])

    dropped = failed

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        permit = self._enter_as(self.class_of(args, kwargs))
        try:
            result = fn(*args, **kwargs)
        except BaseException as error:
            self.failed(permit, error)
            raise
        self.done(permit, result)
        return result

    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        permit = await self._aenter_as(self.class_of(args, kwargs))
        try:
            result = await fn(*args, **kwargs)
        except BaseException as error:
            self.failed(permit, error)
            raise
        self.done(permit, result)
        return result

    def fragment(self, kind: CallKind) -> str | None:
        return None

    def details(self) -> dict[str, Any]:
        return {**super().details(), "running_by_priority": {**self.classes.running}}


class WouldShed(State):
    """Lets everybody in, learns, and counts those who would have waited or been shed."""

    __slots__ = ("policy", "state")
    policy: ConcurrencyLimit

    def __init__(self, state: Adaptive) -> None:
        self.state, self.policy = state, state.policy

    def enter(self) -> tuple[bool, float]:
        placed = self.state._take()
        if not placed:
            with self.policy.lock:
                self.policy.over += 1
                queued = self.policy.over <= self.policy.config.queue
            self.policy.would("queue" if queued else "reject")
        return placed, self.policy.clock.monotonic()

    def done(self, permit: tuple[bool, float], result: Any) -> None:
        self._leave(permit)
        self.state.sampled(self.policy.clock.monotonic() - permit[1])
        next(self.state.ok)

    def failed(self, permit: tuple[bool, float], error: BaseException) -> None:
        self._leave(permit)
        if isinstance(error, Exception):
            self.state.troubled(error)

    dropped = failed

    def _leave(self, permit: tuple[bool, float]) -> None:
        if permit[0]:
            self.state._give_back()
        else:
            with self.policy.lock:
                self.policy.over -= 1
