"""A bulkhead with threads of its own: work is handed over, and a future comes back.

For sync work that should not hold up its caller, and must not take more than its share of threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast

from everkeel.errors import BulkheadFullError, ConfigError
from everkeel.policies.bulkhead.config import BulkheadConfig
from everkeel.policies.bulkhead.policy import BulkheadSnapshot
from everkeel.runtime.clock import Clock
from everkeel.runtime.deadline import AMBIENT, Deadline
from everkeel.runtime.policy import Policy
from everkeel.runtime.settings import Mode, Seconds
from everkeel.runtime.state import CallKind, State
from everkeel.runtime.tally import read, tally
from everkeel.runtime.workers import Job, start

if TYPE_CHECKING:
    from concurrent.futures import Future

P = ParamSpec("P")
T = TypeVar("T")


class Work:
    """Something to do, and the future that waits for it."""

    __slots__ = ("act", "deadline", "future", "since")

    def __init__(self, act: Callable[[], Any], since: float) -> None:
        from concurrent.futures import Future

        self.act, self.since = act, since
        self.future: Future[Any] = Future()
        self.deadline: Deadline | None = AMBIENT.get()


class Pooled(State):
    """Work that runs, and work that waits."""

    __slots__ = ("_running", "_waiting", "ok", "policy")
    word = "pool"
    policy: BulkheadPool

    def __init__(self, policy: BulkheadPool) -> None:
        self.policy, self.ok = policy, tally()
        self._waiting: deque[Work] = deque()
        self._running = 0

    def submit(self, act: Callable[[], Any]) -> Future[Any]:
        """Start it, queue it, or refuse it."""
        policy = self.policy
        work = Work(act, policy.clock.monotonic())
        with policy.lock:
            begins = self._running < policy.config.limit
            if begins:
                self._running += 1
            elif len(self._waiting) < policy.config.queue:
                self._waiting.append(work)
            else:
                raise self._full()
        if begins:
            start(Job(self._work, (work,), {}))
        else:
            policy.counts.tick("queued")
        return work.future

    def _full(self) -> BulkheadFullError:
        next(self.policy.rejections)
        return BulkheadFullError(self.policy.name, None, self._running, len(self._waiting))

    def _work(self, work: Work | None) -> None:
        """In a worker thread: this work, and then whatever waits, until nothing does."""
        while work is not None:
            self._do(work)
            work = self._next()

    def _next(self) -> Work | None:
        policy = self.policy
        with policy.lock:
            if self._waiting and self._running <= policy.config.limit:
                return self._waiting.pop() if policy.config.order == "newest" else self._waiting.popleft()
            self._running -= 1
            return None

    def _do(self, work: Work) -> None:
        policy, future = self.policy, work.future
        waited = policy.clock.monotonic() - work.since
        if not future.set_running_or_notify_cancel():
            return  # cancelled while it waited
        max_wait = policy.config.max_wait
        if max_wait is not None and waited > max_wait:
            future.set_exception(self._full())
            return
        if work.deadline is not None and work.deadline.expired:
            future.set_exception(work.deadline.error())
            return
        try:
            result = work.act()
        except BaseException as error:
            future.set_exception(error)
        else:
            next(self.ok)
            future.set_result(result)

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        future = self.submit(lambda: fn(*args, **kwargs))
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def fragment(self, kind: CallKind) -> str | None:
        return None  # a thread must be given something to call

    def shadow(self) -> State:
        return Aside()

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
            "waited": 0.0,
        }


class Aside(State):
    """In shadow mode the work runs where its caller stands."""

    __slots__ = ()


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
        context = copy_context()
        return cast("Future[T]", cast("Pooled", self.state).submit(lambda: context.run(fn, *args, **kwargs)))

    async def run(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Hand sync work over from a coroutine, and await its result."""
        from asyncio import wrap_future

        return await wrap_future(self.submit(fn, *args, **kwargs))

    def may_guard(self, kind: CallKind) -> None:
        if kind != "sync":
            raise ConfigError(self.label, None, "runs sync functions in threads; guard others with bulkhead()", None)

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
