"""A bulkhead with threads of its own: work is handed over, and a future comes back.

For sync work that should not hold up its caller, and must not take more than its share of threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast

from everkeel.errors import BulkheadFullError, ConfigError
from everkeel.policies.bulkhead.config import BulkheadConfig
from everkeel.policies.bulkhead.policy import BulkheadSnapshot
from everkeel.runtime import switch
from everkeel.runtime.clock import Clock
from everkeel.runtime.deadline import AMBIENT, Deadline
from everkeel.runtime.policy import Policy
from everkeel.runtime.settings import Mode, Seconds
from everkeel.runtime.signature import kind_of
from everkeel.runtime.state import CallKind, State
from everkeel.runtime.tally import read, tally
from everkeel.runtime.workers import Job, start

if TYPE_CHECKING:
    from concurrent.futures import Future

P = ParamSpec("P")
T = TypeVar("T")


class Work:
    """Something to do in the context of whoever handed it over, and the future that waits for it."""

    __slots__ = ("_act", "_context", "deadline", "future", "since")

    def __init__(self, act: Callable[[], Any], since: float) -> None:
        from concurrent.futures import Future

        self._act, self._context, self.since = act, copy_context(), since
        self.future: Future[Any] = Future()
        self.deadline: Deadline | None = AMBIENT.get()

    def do(self) -> Any:
        """Do it."""
        return self._context.run(self._act)


class Pooled(State):
    """Work that runs, and work that waits."""

    __slots__ = ("_running", "_waited", "_waiting", "ok", "policy")
    word = "pool"
    policy: BulkheadPool

    def __init__(self, policy: BulkheadPool) -> None:
        self.policy, self.ok = policy, tally()
        self._waiting: deque[Work] = deque()
        self._running = 0
        self._waited = 0.0

    # ------------------------------------------------------------------ handing work over

    def submit(self, act: Callable[[], Any]) -> Future[Any]:
        """Start it, queue it, or refuse it."""
        policy = self.policy
        acts = policy.mode == "enforce" and switch.on
        work = Work(act, policy.clock.monotonic())
        with policy.lock:
            begins = not acts or self._running < policy.config.limit
            queues = not begins and len(self._waiting) < policy.config.queue
            if begins:
                self._running += 1
            elif queues:
                self._waiting.append(work)
            running, waiting = self._running, len(self._waiting)
        if begins:
            if not acts:
                self.watch(running)
            start(Job(self._work, (work,), {}))
        elif queues:
            work.future.add_done_callback(partial(self._forget, work))
            self._tell_queued(waiting)
        else:
            raise self._full(running, waiting)
        return work.future

    def watch(self, running: int) -> None:
        """In shadow mode, with so many running: would the last of them have had to wait, or been refused?"""
        beyond = running - self.policy.config.limit
        if beyond > 0 and self.policy.mode == "shadow" and switch.on:
            self.policy.would("queue" if beyond <= self.policy.config.queue else "reject")

    def _forget(self, work: Work, future: Future[Any]) -> None:
        """Work that was cancelled while it waited leaves its place in the queue to others."""
        if future.cancelled():
            with self.policy.lock:
                if work in self._waiting:
                    self._waiting.remove(work)

    def _tell_queued(self, waiting: int) -> None:
        policy = self.policy
        policy.counts.tick("queued")
        if policy.heard():
            from everkeel.events import CallQueued

            policy.emit(CallQueued(policy=policy.name, policy_type=policy.type, waiting=waiting))

    def _full(self, running: int, waiting: int) -> BulkheadFullError:
        policy = self.policy
        next(policy.rejections)
        error = policy.config.full_error(policy.name, None, running, waiting)
        if policy.heard():
            from everkeel.events import CallRejected

            policy.emit(CallRejected(policy=policy.name, policy_type=policy.type, error=error))
        return error

    # ------------------------------------------------------------------ doing it

    def _work(self, work: Work | None) -> None:
        """In a worker thread: this work, and then whatever waits, until nothing does."""
        while work is not None:
            self._do(work)
            work = self._next()

    def _next(self) -> Work | None:
        with self.policy.lock:
            if self._waiting and self._running <= self.policy.config.limit:
                return self._first()
            self._running -= 1
            return None

    def _first(self) -> Work:
        return self._waiting.pop() if self.policy.config.order == "newest" else self._waiting.popleft()

    def fill(self) -> None:
        """Begin with what waits, as far as there are threads for it."""
        begins: list[Work] = []
        with self.policy.lock:
            while self._waiting and self._running < self.policy.config.limit:
                self._running += 1
                begins.append(self._first())
        for work in begins:
            start(Job(self._work, (work,), {}))

    def _do(self, work: Work) -> None:
        policy, future = self.policy, work.future
        if not future.set_running_or_notify_cancel():
            return  # cancelled while it waited
        waited = policy.clock.monotonic() - work.since
        with policy.lock:
            self._waited += waited
        max_wait = policy.config.max_wait
        if max_wait is not None and waited > max_wait:
            future.set_exception(self._full(self._running, len(self._waiting)))
            return
        if work.deadline is not None and work.deadline.expired:
            future.set_exception(work.deadline.error())
            return
        try:
            result = work.do()
        except BaseException as error:
            future.set_exception(error)
        else:
            next(self.ok)
            future.set_result(result)

    # ------------------------------------------------------------------ as a policy

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        future = self.submit(lambda: fn(*args, **kwargs))
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"{self.policy.label} runs sync functions in threads: await run(), or guard coroutines with bulkhead()"
        )

    def fragment(self, kind: CallKind) -> str | None:
        return None  # a thread must be given something to call

    def shadow(self) -> State:
        return Aside(self)

    def adapt(self, old: BulkheadConfig, new: BulkheadConfig) -> None:
        self.fill()

    def move(self, change: int) -> int:
        """One more is running, or one fewer; answers how many are."""
        with self.policy.lock:
            self._running += change
            return self._running

    def successes(self) -> int:
        return read(self.ok)

    def after_fork(self) -> None:
        self._waiting.clear()
        self._running = 0

    def details(self) -> dict[str, Any]:
        return {
            "running": self._running,
            "waiting": len(self._waiting),
            "limit": self.policy.config.limit,
            "queued": self.policy.counts["queued"],
            "waited": self._waited,
        }


class Aside(State):
    """In shadow mode the work runs where its caller stands, and is counted."""

    __slots__ = ("policy", "state")

    def __init__(self, state: Pooled) -> None:
        self.state, self.policy = state, state.policy

    def enter(self) -> None:
        self.state.watch(self.state.move(+1))

    def done(self, permit: None, result: Any) -> None:
        self._leave()
        next(self.state.ok)

    def failed(self, permit: None, error: BaseException) -> None:
        self._leave()

    dropped = failed

    def _leave(self) -> None:
        self.state.move(-1)
        self.state.fill()  # something may wait since it acts again

    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return await self.state.acall(fn, *args, **kwargs)


class BulkheadPool(Policy[BulkheadConfig]):
    """A bulkhead with threads of its own; make one with `bulkhead_pool(...)`."""

    __slots__ = ()
    type = "bulkhead"
    no_block = "a block cannot move to another thread; use submit()"

    def make_state(self, key: Hashable = None) -> Pooled:
        return Pooled(self)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Hand `fn(*args, **kwargs)` over; a future comes back, or `BulkheadFullError` is raised.

        Context variables go along. Cancelling the future takes waiting work out of the queue.
        """
        if kind_of(fn) == "async":
            raise TypeError(f"{self.label}: submit() got a coroutine function; a thread cannot run it, bulkhead() can")
        return cast("Future[T]", cast("Pooled", self.state).submit(lambda: fn(*args, **kwargs)))

    async def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Hand sync work over from a coroutine, and await its result."""
        from asyncio import wrap_future

        return await wrap_future(self.submit(fn, *args, **kwargs))

    def may_guard(self, kind: CallKind) -> None:
        if kind != "sync":
            raise ConfigError(self.label, None, "runs sync functions in threads; guard others with bulkhead()", None)

    def _announce(self, old: BulkheadConfig, new: BulkheadConfig) -> None:
        super()._announce(old, new)
        if old.limit != new.limit:
            from everkeel.events import LimitChanged

            self.emit(LimitChanged(policy=self.name, policy_type=self.type, before=old.limit, limit=new.limit))

    def snapshot(self) -> BulkheadSnapshot:
        return cast("BulkheadSnapshot", super().snapshot())


def bulkhead_pool(
    limit: int,
    name: str | None = None,
    *,
    queue: int = 0,
    max_wait: Seconds | None = None,
    order: Literal["oldest", "newest"] = "oldest",
    mode: Mode = "enforce",
    clock: Clock | None = None,
    replace: bool = False,
) -> BulkheadPool:
    """A bulkhead with so many threads of its own: hand work over with `submit`, which returns a future.

    Threads are started when there is work and end when there is none. Work that has waited longer than `max_wait`, or
    past the deadline it was submitted under, is not started.

    >>> from everkeel import bulkhead_pool
    >>> reports = bulkhead_pool(2, queue=10)
    >>> reports.submit(sum, [1, 2, 3]).result()
    6
    """
    values = {"limit": limit, "queue": queue, "max_wait": max_wait, "order": order, "mode": mode}
    return BulkheadPool(name, BulkheadConfig.make(name, values), clock=clock, replace=replace)
