"""An asyncio event loop in virtual time: when nothing is left to do now, now becomes the time of the next timer.

It is asyncio's own selector loop with another idea of waiting. What really takes time (threads, sockets) still works:
while it is under way the clock stands still, within the limits of a `VirtualClock`'s grace and patience.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import selectors
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextvars import Context
from math import inf, ulp
from random import Random
from time import monotonic as real_monotonic
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, TypeVarTuple

from everkeel.testing._turns import Parked
from everkeel.testing.clock import VirtualClock
from everkeel.testing.deadlock import DeadlockError, describe

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
_Ready: TypeAlias = list[tuple[selectors.SelectorKey, int]]
_Poll: TypeAlias = Callable[[float], _Ready]


class VirtualLoop(asyncio.SelectorEventLoop):
    """A deterministic event loop whose clock jumps to the next timer as soon as nothing else is left to do.

    Most tests need not make one: `run`, `virtual_time` and the pytest fixture do. With `shuffle`, tasks that are ready
    together run in an order that depends on the clock's seed, instead of first come, first served: run a test with a
    few seeds to see whether it depends on that order. One `among_others` serves other threads, and does not take it for
    a deadlock when it hears nothing from them.

    >>> with asyncio.Runner(loop_factory=VirtualLoop) as runner:
    ...     runner.run(asyncio.sleep(3600))
    ...     runner.get_loop().time()
    3600.0
    """

    # asyncio's own, which its stubs do not show.
    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _clock_resolution: float

    def __init__(self, clock: VirtualClock | None = None, *, shuffle: bool = False, among_others: bool = False) -> None:
        self.clock = clock or VirtualClock()
        self._order = Random(self.clock.seed) if shuffle else None
        self._among_others = among_others
        self._numbers = itertools.count()
        self._idle_waiters: list[asyncio.Future[None]] = []
        self._jobs: dict[object, bool] = {}  # what is in an executor, and whether a thread has begun with it
        self._elsewhere = 0  # work in other processes, and executors being shut down
        self._pool: set[threading.Thread] = set()
        super().__init__(_Waiting(self._jump))

    def time(self) -> float:
        """The virtual time."""
        return self.clock.monotonic()

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call `callback` at a moment of virtual time; of several at the same moment, in the order they were armed."""
        if self.is_closed():
            raise RuntimeError("Event loop is closed")
        timer = _Timer(when, callback, args, self, context, next(self._numbers))
        heapq.heappush(self._scheduled, timer)
        return timer

    def run_forever(self) -> None:
        """Run until `stop()` is called."""
        loops, here = self.clock.turns.loops, threading.get_ident()
        loops.add(here)
        try:
            super().run_forever()
        finally:
            loops.discard(here)

    def _run_once(self) -> None:
        if self._order is not None:
            _shuffle_tasks(self._ready, self._order)
        if self._scheduled:
            # asyncio runs a timer when its time < now + resolution. Far from 0, a float has no room for a nanosecond
            # between a time and itself, and the timer we have just jumped to would not be due, for ever.
            self._clock_resolution = max(1e-9, ulp(self._scheduled[0].when()))
        super()._run_once()  # type: ignore[misc]  # asyncio's own, too

    # ------------------------------------------------------------------ work that takes real time

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Run `func` in another thread or process; the clock stands still while it is really at work there."""
        if executor is not None and not isinstance(executor, ThreadPoolExecutor):
            future = super().run_in_executor(executor, func, *args)
            self._elsewhere += 1
            future.add_done_callback(self._came_back)
            return future
        job = object()

        def work() -> T:
            self._pool.add(threading.current_thread())
            self._jobs[job] = True
            self.clock.turns.stir()
            return func(*args)

        future = super().run_in_executor(executor, work)
        self._jobs.setdefault(job, False)  # unless the thread was faster
        # Removed here, in the loop, and not by the thread: between its end and our hearing of it nobody may jump.
        future.add_done_callback(lambda _: self._jobs.pop(job))
        return future

    def _came_back(self, future: asyncio.Future[Any]) -> None:
        self._elsewhere -= 1

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Wait for the threads of the default executor: really, and without a timer, which would go off at once."""
        self._elsewhere += 1
        try:
            await super().shutdown_default_executor()
        finally:
            self._elsewhere -= 1

    def _company(self) -> bool:
        """Is there anybody else who may act: a job, another user of the clock, a thread that was started since?"""
        turns = self.clock.turns
        if self._jobs or self._elsewhere or turns.parked or len(turns.loops) > 1:
            return True
        hopeless = not self._scheduled and not self._idle_waiters  # before we give up for good, everybody counts
        others = set(threading.enumerate()) if hopeless else turns.newcomers()
        return not others <= {*self._pool, threading.current_thread()}

    def _expecting(self) -> bool:
        """Will there be an answer from an executor, however long it takes?"""
        begun = any(self._jobs.values())
        # A job that nobody has begun with while others are under way waits for a free thread.
        return self._elsewhere > 0 or (bool(self._jobs) and (not begun or self.clock.turns.at_work()))

    # ------------------------------------------------------------------ nothing left to do

    def _jump(self, sockets: bool, poll: _Poll) -> _Ready:
        """Nothing is ready: move to the next timer, or wait for what threads and sockets bring."""
        turns = self.clock.turns
        until = self._scheduled[0].when() if self._scheduled else inf
        if sockets or self._among_others or self._company():
            return self._take_turns(Parked(until), poll)
        if not self._wake_idle_waiters():
            if until == inf:
                raise self._deadlock()
            with turns.lock:
                turns.move(until)
        return []

    def _take_turns(self, me: Parked, poll: _Poll) -> _Ready:
        turns, began = self.clock.turns, real_monotonic()
        turns.enter(me)
        try:
            while me.in_time is None:
                stirred = turns.stirred
                if ready := poll(turns.grace):
                    return ready
                impatient = real_monotonic() - began >= turns.patience
                with turns.lock:
                    nowhere_to_go = not self._idle_waiters and all(one.deadline == inf for one in turns.parked)
                    if stirred != turns.stirred or (nowhere_to_go and self._expecting()):
                        continue
                    if not impatient and (self._expecting() or turns.at_work()):
                        continue
                    if self._wake_idle_waiters():
                        return []
                    if turns.may_jump(me, impatient=impatient):
                        turns.move(me.deadline)
                    elif nowhere_to_go and impatient and not self._among_others and asyncio.all_tasks(self):
                        raise self._deadlock()
            return []
        finally:
            turns.leave(me)

    def _deadlock(self) -> DeadlockError:
        return DeadlockError(*sorted(describe(task) for task in asyncio.all_tasks(self)))

    async def wait_until_idle(self) -> None:
        """What the function of this name does."""
        future = self.create_future()
        self._idle_waiters.append(future)
        await future

    def _wake_idle_waiters(self) -> bool:
        waiters, self._idle_waiters = self._idle_waiters, []
        for future in waiters:
            if not future.done():
                future.set_result(None)
        return bool(waiters)


class _Timer(asyncio.TimerHandle):
    """A timer with a number. In virtual time many fall on the same moment, and asyncio's heap keeps no order then."""

    __slots__ = ("_number",)

    def __init__(
        self,
        when: float,
        callback: Callable[..., object],
        args: Sequence[Any],
        loop: asyncio.AbstractEventLoop,
        context: Context | None,
        number: int,
    ) -> None:
        super().__init__(when, callback, args, loop, context)
        self._scheduled = True  # asyncio's own: it is in the heap, so cancelling it counts there
        self._number = number

    def __lt__(self, other: asyncio.TimerHandle) -> bool:
        if isinstance(other, _Timer) and self.when() == other.when():
            return self._number < other._number
        return self.when() < other.when()


async def wait_until_idle() -> None:
    """Wait until every other task of this loop is blocked: on a timer, a lock, a future, a queue. Time does not pass.

    A test that starts some work and must not look before it has come as far as it can uses this instead of a sleep.

    >>> from everkeel.testing import run
    >>> async def main():
    ...     queue = asyncio.Queue()
    ...     getter = asyncio.ensure_future(queue.get())
    ...     await wait_until_idle()
    ...     queue.put_nowait("here")
    ...     return await getter
    >>> run(main)
    'here'
    """
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualLoop):
        raise RuntimeError("wait_until_idle() needs virtual time: everkeel.testing.run, or the fixture virtual_time")
    await loop.wait_until_idle()


def _shuffle_tasks(ready: deque[asyncio.Handle], order: Random) -> None:
    """Only tasks change places: asyncio's transports rely on the order of their own callbacks."""
    handles = [ready[place] for place in range(len(ready))]  # by place: another thread may append meanwhile
    places = [place for place, handle in enumerate(handles) if _is_a_task(handle)]
    shuffled = [handles[place] for place in places]
    order.shuffle(shuffled)
    for place, handle in zip(places, shuffled, strict=True):
        ready[place] = handle


def _is_a_task(handle: asyncio.Handle) -> bool:
    return isinstance(getattr(getattr(handle, "_callback", None), "__self__", None), asyncio.Task)


class _Waiting(selectors.BaseSelector):
    """The real selector, except that how to wait is the loop's business."""

    def __init__(self, jump: Callable[[bool, _Poll], _Ready]) -> None:
        self._jump, self._real = jump, selectors.DefaultSelector()

    def register(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: FileDescriptorLike, events: int, data: Any = None) -> selectors.SelectorKey:
        return self._real.modify(fileobj, events, data)

    def get_map(self) -> Mapping[FileDescriptorLike, selectors.SelectorKey]:
        return self._real.get_map()

    def close(self) -> None:
        self._real.close()

    def select(self, timeout: float | None = None) -> _Ready:
        ready = self._real.select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        sockets = len(self._real.get_map()) > 1  # the first is the loop's own, by which other threads wake it
        return self._jump(sockets, self._real.select)
