"""Where asynchronous calls live: an event loop in a thread of its own for their policies, worker threads for bodies.

Waiting costs no thread: a call in a queue, or between two attempts, is a coroutine. User code never runs on this
loop's thread, apart from awaitables that a method called outside of any event loop returns.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from contextvars import Context
from math import inf
from typing import Any
from weakref import WeakKeyDictionary

from everkeel.microprofile.calls import carried, the_call
from everkeel.microprofile.exceptions import TimeoutException
from everkeel.runtime.cancellation import CURRENT, Cancellation
from everkeel.runtime.clock import DEFAULT, REAL, Clock
from everkeel.runtime.workers import Job, start

_LINGER = 10.0  # seconds that a thread with nothing to do waits for more


class Driver:
    """One event loop in one thread, while there is something to do."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._coming = 0  # calls handed over that are no tasks yet

    def start(self, main: Coroutine[Any, Any, None], context: Context, on_task: Callable[..., object]) -> None:
        """Run a coroutine to its end. `on_task` is told its loop and its task."""

        def begin() -> None:
            task = loop.create_task(main, context=context)
            with self._lock:
                self._coming -= 1
            on_task(loop, task)

        with self._lock:
            loop = self._running_loop()
            self._coming += 1
            loop.call_soon_threadsafe(begin)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = self._clock.new_loop()
            self._loop.set_task_factory(self._make_task)
            thread = threading.Thread(target=self._run, args=(self._loop,), name="everkeel-microprofile", daemon=True)
            thread.start()
        return self._loop

    def _make_task(self, loop: asyncio.AbstractEventLoop, main: Any, **options: Any) -> asyncio.Task[Any]:
        task = asyncio.Task(main, loop=loop, **options)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not self._tasks and self._loop is not None:
            if self._clock is REAL:
                self._loop.call_later(_LINGER, self._rest)
            else:
                self._loop.call_soon(self._rest)  # a clock of a test must not be moved by us

    def _rest(self) -> None:
        with self._lock:
            if self._tasks or self._coming or self._loop is None:
                return
            self._loop.stop()
            self._loop = None

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        try:
            while True:
                try:
                    loop.run_forever()
                    return
                except (KeyboardInterrupt, SystemExit):
                    pass  # a coroutine of the user's raised it, and its caller hears of it; the others go on
        finally:
            loop.close()


_drivers: WeakKeyDictionary[Clock, Driver] = WeakKeyDictionary()
_making = threading.Lock()


def driver() -> Driver:
    """The one for the clock in use here."""
    clock = DEFAULT.here()
    with _making:
        found = _drivers.get(clock)
        if found is None:
            found = _drivers[clock] = Driver(clock)
        return found


def _forget() -> None:
    global _making
    _making = threading.Lock()
    _drivers.clear()  # threads do not survive a fork


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


async def in_a_worker(
    where: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], *, stage: bool = False
) -> Any:
    """Call `fn` in a worker thread, in a copy of this context, and wait for it.

    Cancelled, it tells the body (unless the call was cancelled without that) and waits on: what the body holds, a
    place in a bulkhead above all, it holds until it has really ended; a `stage` until the future it returned has, too.
    """
    loop, call = asyncio.get_running_loop(), the_call()
    ended: asyncio.Future[tuple[Any, BaseException | None]] = DEFAULT.future(loop)
    outer = CURRENT.get()
    at = inf if outer is None else outer.at
    cancellation = Cancellation(
        DEFAULT.here(), at, TimeoutException(where, 0.0 if outer is None else outer.error.seconds)
    )

    def tell(result: Any, error: BaseException | None) -> None:
        if not ended.done():
            ended.set_result((result, error))

    def work() -> None:
        CURRENT.set(cancellation)
        result: Any = None
        problem: BaseException | None = None
        try:
            result = fn(*args, **kwargs)
        except BaseException as error:
            problem = error
        try:
            loop.call_soon_threadsafe(tell, result, problem)
        except RuntimeError:
            if not loop.is_closed():
                raise
            # Whoever waited went away with the loop.
        finally:
            del problem

    start(Job(work, (), {}))
    interrupted = await held(ended, cancellation.cancel, lambda: call.interrupts)
    result, error = ended.result()
    if interrupted is not None:
        if stage:
            await _too_late(result)
        raise interrupted
    if error is not None:
        try:
            raise carried(error, elsewhere=True)
        finally:
            del error, ended  # no cycle through this frame
    return result


async def _too_late(awaitable: Any) -> None:
    """What a body returned that was given up before: it has begun, and then it also ends, or it never begins."""
    if asyncio.iscoroutine(awaitable):
        awaitable.close()
    elif asyncio.isfuture(awaitable) and awaitable.get_loop() is asyncio.get_running_loop():
        call = the_call()
        await held(awaitable, awaitable.cancel, lambda: call.interrupts)


async def held(
    future: asyncio.Future[Any], tell: Callable[[], object], may_tell: Callable[[], bool]
) -> asyncio.CancelledError | None:
    """Wait for a future to its end. Where we are cancelled meanwhile, tell, wait on, and answer the cancellation."""
    interrupted: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError as error:
            interrupted = error
            if may_tell():
                tell()
    return interrupted


async def to_the_end(awaitable: Any) -> Any:
    """Await whatever a method of stage kind returned, wherever it lives. Cancelled, it waits on as above."""
    loop, call = asyncio.get_running_loop(), the_call()
    if asyncio.isfuture(awaitable) and awaitable.get_loop() is not loop:
        future = _bridged(awaitable, loop)
    else:
        future = asyncio.ensure_future(awaitable)
    interrupted = await held(future, future.cancel, lambda: call.interrupts)
    if interrupted is not None:
        if not future.cancelled():
            future.exception()  # asked, so that nobody complains that it was not
        raise interrupted
    try:
        return future.result()
    except BaseException as error:
        other = carried(error, elsewhere=not isinstance(error, asyncio.CancelledError))
        if other is error:
            raise
        raise other from None


def _bridged(other: asyncio.Future[Any], loop: asyncio.AbstractEventLoop) -> asyncio.Future[Any]:
    """A future of this loop that becomes what one of another loop becomes."""
    mine: asyncio.Future[Any] = loop.create_future()
    home = other.get_loop()

    def take() -> None:
        if mine.done():
            return
        if other.cancelled():
            mine.cancel()
        elif (error := other.exception()) is not None:
            mine.set_exception(error)
        else:
            mine.set_result(other.result())

    def back(mine: asyncio.Future[Any]) -> None:
        if mine.cancelled() and not other.done():
            home.call_soon_threadsafe(other.cancel)

    home.call_soon_threadsafe(lambda: other.add_done_callback(lambda _: loop.call_soon_threadsafe(take)))
    mine.add_done_callback(back)
    return mine
