"""The drivers: collect for a moment, send, and give each caller what is its own.

On an event loop a batch is a task; from threads it is sent by a worker. Neither belongs to a caller: one who is
cancelled, or whose deadline passes, leaves the others what they came for. Who is gone before a batch is sent is not in
it, and a batch that nobody waits for any more is not sent, or is cancelled.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from inspect import isawaitable
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from everkeel.policies.collapse.batch import Batch, Seat
from everkeel.policies.collapse.core import Call, deal_out, fail_all, position_of, take_apart
from everkeel.runtime.cancellation import CURRENT
from everkeel.runtime.deadline import AMBIENT, Deadline
from everkeel.runtime.innermost import innermost
from everkeel.runtime.outcome import Outcome
from everkeel.runtime.state import CallKind, Shadow, State
from everkeel.runtime.tally import read, tally
from everkeel.runtime.waiting import TaskWaiter, ThreadWaiter
from everkeel.runtime.workers import Job, start

if TYPE_CHECKING:
    import asyncio

    from everkeel.policies.collapse.policy import Collapse

_MOST_FUNCTIONS = 256


class Collecting(State):
    """What the calls of one collapse share: the batches that are open, and those under way."""

    __slots__ = ("_batches", "_calls", "_largest", "_positions", "_running", "ok", "open", "policy")
    word = "collapse"
    policy: Collapse

    def __init__(self, policy: Collapse) -> None:
        self.policy, self.ok = policy, tally()
        self.open: dict[Hashable, Batch] = {}
        self._positions: dict[Any, int] = {}
        self._batches = self._calls = self._largest = self._running = 0

    # ------------------------------------------------------------------ taking a seat, leaving it

    def take_apart(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Call]:
        """The user's function, and a call of it taken apart."""
        fn = innermost(fn)
        position = self._positions.get(fn)
        if position is None:
            if len(self._positions) >= _MOST_FUNCTIONS:
                self._positions.clear()
            position = self._positions[fn] = position_of(fn)
        return fn, take_apart(self.policy.label, position, args, kwargs)

    def _board(
        self,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        waiter: ThreadWaiter | TaskWaiter,
        loop: asyncio.AbstractEventLoop | None,
    ) -> tuple[Batch, Seat, bool]:
        """A seat in a batch, and whether it is the first one."""
        policy = self.policy
        user, call = self.take_apart(fn, args, kwargs)
        key = (user, call.common(), loop)
        try:
            hash(key)
        except TypeError:
            raise TypeError(
                f"{policy.label}: what calls of one batch have in common (all arguments but the collected one) "
                f"must be hashable: {call.before + call.after!r}, {call.named!r}"
            ) from None
        seat = Seat(call.item, waiter)
        hurry = seat.deadline is not None and seat.deadline.remaining() <= policy.config.window
        with policy.lock:
            batch = self.open.get(key)
            first = batch is None
            if batch is None:
                batch = self.open[key] = Batch(key, fn, call, policy.clock.monotonic())
                batch.loop = loop
            batch.seats.append(seat)
            if hurry or len(batch.seats) >= policy.config.max_size:
                del self.open[key]  # whoever comes now opens the next one
                batch.full.set()
        return batch, seat, first

    def _leave(self, batch: Batch, seat: Seat) -> bool:
        """This caller waits no longer; answers whether a batch under way has nobody left who wants it."""
        with self.policy.lock:
            if batch.over or seat not in batch.seats:
                return False
            if batch.sent:
                seat.outcome = Outcome()  # gone: its result, whatever it is, goes nowhere
                return all(other.outcome is not None for other in batch.seats)
            batch.seats.remove(seat)
            if not batch.seats:
                batch.sent = batch.over = True
                if self.open.get(batch.key) is batch:
                    del self.open[batch.key]
                batch.full.set()
        return False

    def _close(self, batch: Batch) -> bool:
        """No more seats; answers whether there is anybody in it."""
        policy = self.policy
        with policy.lock:
            if batch.sent:
                return False
            batch.sent = True
            if self.open.get(batch.key) is batch:
                del self.open[batch.key]
            size = len(batch.seats)
            self._running += 1
            self._batches += 1
            self._calls += size
            self._largest = max(self._largest, size)
        if policy.heard():
            from everkeel.events import BatchSent

            waited = policy.clock.monotonic() - batch.opened_at
            policy.emit(BatchSent(policy=policy.name, policy_type=policy.type, size=size, waited=waited))
        return True

    def _land(self, batch: Batch, outcomes: list[Outcome]) -> None:
        """Give each caller what is its own."""
        with self.policy.lock:
            if batch.over:
                return
            batch.over = True
            self._running -= 1
            for seat, outcome in zip(batch.seats, outcomes, strict=True):
                seat.outcome = outcome
        for seat in batch.seats:
            seat.waiter.grant()

    def _outcome(self, seat: Seat) -> Any:
        """What the caller gets."""
        outcome = seat.outcome
        if outcome is None or not seat.waiter.granted:
            raise self._late(seat.deadline)
        if outcome.error is None:
            next(self.ok)
            return outcome.value
        if isinstance(outcome.error, Exception):
            self.policy.counts.tick("failure")
        try:
            raise outcome.error
        finally:
            del seat, outcome  # the error has this frame in its traceback

    def _late(self, limit: Deadline | None) -> BaseException:
        return RuntimeError("a batch was lost") if limit is None else limit.error()  # only a deadline ends a wait

    def _patience(self, seat: Seat) -> float | None:
        return None if seat.deadline is None else max(0.0, seat.deadline.remaining())

    # ------------------------------------------------------------------ async

    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        from asyncio import get_running_loop

        loop, clock = get_running_loop(), self.policy.clock
        waiter = TaskWaiter(clock, loop)
        batch, seat, first = self._board(fn, args, kwargs, waiter, loop)
        try:
            if batch.full.is_set():
                self._send(batch)
            elif first:
                batch.timer = clock.later(loop, self.policy.config.window, partial(self._send, batch))
            await waiter.wait(clock, self._patience(seat))
        except BaseException as error:
            await self._abandon(batch, seat, error)
            raise
        if not waiter.granted:
            await self._abandon(batch, seat, None)
        return self._outcome(seat)

    def _send(self, batch: Batch) -> None:
        if batch.timer is not None:
            batch.timer.cancel()
        if batch.loop is not None and self._close(batch):
            batch.task = batch.loop.create_task(self._run(batch), context=batch.context)
            # A task that is cancelled before its first step never gets to say how it ended.
            batch.task.add_done_callback(partial(self._ended, batch))

    async def _run(self, batch: Batch) -> None:
        items = self._begin(batch)
        args, kwargs = batch.call.with_items(items)
        try:
            answer = await batch.fn(*args, **kwargs)
        except BaseException as error:
            self._land(batch, fail_all(len(items), error))
            if not isinstance(error, Exception):
                raise
        else:
            self._land(batch, deal_out(self.policy.name, items, answer))

    def _ended(self, batch: Batch, task: asyncio.Task[None]) -> None:
        if not batch.over:
            from asyncio import CancelledError

            self._land(batch, [Outcome(error=CancelledError()) for _ in batch.seats])

    async def _abandon(self, batch: Batch, seat: Seat, error: BaseException | None) -> None:
        unwanted = self._leave(batch, seat)
        if batch.over and batch.timer is not None:
            batch.timer.cancel()
        if unwanted and batch.task is not None and batch.loop is not None and not batch.loop.is_closed():
            from asyncio import CancelledError, wait

            batch.task.cancel()
            if error is None or isinstance(error, CancelledError):  # not while a coroutine is closed: it may not await
                await wait([batch.task])

    def _begin(self, batch: Batch) -> list[Any]:
        """In the context of the batch: it is the call of all of them, so the last deadline is its own."""
        AMBIENT.set(batch.deadline())
        CURRENT.set(None)
        return [seat.item for seat in batch.seats]

    # ------------------------------------------------------------------ sync

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        waiter, clock = ThreadWaiter(), self.policy.clock
        batch, seat, first = self._board(fn, args, kwargs, waiter, None)
        try:
            if first:
                try:
                    start(Job(self._run_in_thread, (batch,), {}))
                except RuntimeError:  # no thread to be had: then this one
                    batch.context.run(self._run_in_thread, batch)
            waiter.wait(clock, self._patience(seat))
        finally:
            if not waiter.granted:
                self._leave(batch, seat)
        return self._outcome(seat)

    def _run_in_thread(self, batch: Batch) -> None:
        self.policy.clock.wait(batch.full, self.policy.config.window)
        if not self._close(batch):
            return
        items = self._begin(batch)
        args, kwargs = batch.call.with_items(items)
        try:
            answer = batch.fn(*args, **kwargs)
            self.refuse_coroutine(answer)
        except BaseException as error:
            self._land(batch, fail_all(len(items), error))
        else:
            self._land(batch, deal_out(self.policy.name, items, answer))

    def refuse_coroutine(self, answer: object) -> None:
        """A sync call must not hand out a coroutine that nobody guards."""
        if isinstance(answer, CoroutineType):
            answer.close()
        if isawaitable(answer):
            raise TypeError(f"{self.policy.label}: call() got a coroutine function; use acall()")

    # ------------------------------------------------------------------ the woven path

    def fragment(self, kind: CallKind) -> str | None:
        return None  # a batch must be given something to call

    # ------------------------------------------------------------------ live changes, being watched

    def shadow(self) -> State:
        return WouldCollapse(self)

    def after_fork(self) -> None:
        self.open.clear()
        self._running = 0

    def successes(self) -> int:
        return read(self.ok)

    def details(self) -> dict[str, Any]:
        return {
            "batches": self._batches,
            "calls": self._calls,
            "largest": self._largest,
            "waiting": sum(len(batch.seats) for batch in list(self.open.values())),
            "running": self._running,
        }


class Alone(State):
    """Sends every call in a batch of one: what a collapse does that is off, since its function takes a list."""

    __slots__ = ("_collecting", "policy")
    word = "alone"
    policy: Collapse

    def __init__(self, collecting: Collecting) -> None:
        self._collecting, self.policy = collecting, collecting.policy

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        call = self._take_apart(fn, args, kwargs)
        args, kwargs = call.with_items([call.item])
        answer = fn(*args, **kwargs)
        self._collecting.refuse_coroutine(answer)
        return deal_out(self.policy.name, [call.item], answer)[0].unwrap()

    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        call = self._take_apart(fn, args, kwargs)
        args, kwargs = call.with_items([call.item])
        return deal_out(self.policy.name, [call.item], await fn(*args, **kwargs))[0].unwrap()

    def _take_apart(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        return self._collecting.take_apart(fn, args, kwargs)[1]

    def fragment(self, kind: CallKind) -> str | None:
        return None


class WouldCollapse(Shadow):
    """Sends every call alone, and counts those that would have gone with an earlier one."""

    __slots__ = ("_alone", "_windows")
    state: Collecting
    policy: Collapse

    def __init__(self, state: Collecting) -> None:
        super().__init__(state)
        self._alone = Alone(state)
        self._windows: dict[Hashable, tuple[float, int]] = {}

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self._count(fn, args, kwargs)
        try:
            result = self._alone.call(fn, *args, **kwargs)
        except Exception:
            self.policy.counts.tick("failure")
            raise
        next(self.state.ok)
        return result

    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self._count(fn, args, kwargs)
        try:
            result = await self._alone.acall(fn, *args, **kwargs)
        except Exception:
            self.policy.counts.tick("failure")
            raise
        next(self.state.ok)
        return result

    def _count(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        rules, now = self.policy.config, self.policy.clock.monotonic()
        user, call = self.state.take_apart(fn, args, kwargs)
        try:
            key = (user, call.common())
            ends, size = self._windows.get(key, (now, 0))
        except TypeError as error:
            self.policy.would("refuse", error)
            return
        joins = now < ends and size < rules.max_size
        if len(self._windows) >= _MOST_FUNCTIONS:
            self._windows.clear()
        self._windows[key] = (ends, size + 1) if joins else (now + rules.window, 1)
        if joins:
            self.policy.would("collapse")

    def fragment(self, kind: CallKind) -> str | None:
        return None
