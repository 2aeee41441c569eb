"""Attempts beside each other on an event loop.

The first attempt runs in the caller's own task: a call that answers before the delay, which is nearly every one, never
pays for a task. Only when a second attempt starts is there a `Race`. Should a rival win, the first attempt is
cancelled the way a timeout does it, and that cancellation is told from the caller's in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio

    from everkeel.policies.hedge.state import Hedging


class Ticket:
    """A call that may get rivals. They run in the context the call began in, whoever's timer starts them."""

    __slots__ = ("again", "context", "hedge", "race", "task")

    def __init__(
        self, hedge: Hedging, task: asyncio.Task[Any] | None, again: Callable[[], Any], context: Context
    ) -> None:
        self.hedge, self.task, self.again, self.context = hedge, task, again, context
        self.race: Race | None = None

    def is_due(self) -> None:
        """It takes longer than usual: start a rival, if there may be one.

        None for a task that is being cancelled: our own cancellation could no longer be told from that one.
        """
        if self.task is not None and not self.task.cancelling() and self.hedge.may_start():
            self.race = Race(self)
            self.race.start()


class Race:
    """The rivals of one call, and how they do."""

    __slots__ = (
        "_cancelled_first", "_failures", "_first_is_running", "_nobody_waits", "_ticket", "_timer",
        "_waiter", "decided", "rivals", "winner",
    )  # fmt: skip

    def __init__(self, ticket: Ticket, *, first_is_running: bool = True) -> None:
        self._ticket = ticket
        self._first_is_running, self._cancelled_first, self._nobody_waits = first_is_running, False, False
        self._failures: dict[int, Exception] = {}  # by the number of the attempt
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.rivals: dict[asyncio.Task[Any], int] = {}  # each with the number of its attempt
        self.winner: asyncio.Task[Any] | None = None
        self.decided = False  # whatever a rival does now, it is too late

    @property
    def _loop(self) -> asyncio.AbstractEventLoop:
        task = self._ticket.task
        assert task is not None
        return task.get_loop()

    # ------------------------------------------------------------------ starting

    def start(self) -> None:
        """One more attempt, and a timer for the next."""
        hedge, number = self._ticket.hedge, len(self.rivals) + 2
        task = self._loop.create_task(self._attempt(), context=self._ticket.context.copy())
        self.rivals[task] = number
        task.add_done_callback(self._ended)
        hedge.started(number)
        if number < hedge.policy.config.attempts:
            self._timer = hedge.policy.clock.later(self._loop, hedge.delay(number), self._next)

    async def _attempt(self) -> Any:
        return await self._ticket.again()  # here: what raises before it can be awaited is a failed attempt too

    def _next(self) -> bool:
        """Start another attempt if there may be one."""
        self._disarm()
        hedge = self._ticket.hedge
        if not self.decided and len(self.rivals) + 1 < hedge.policy.config.attempts and hedge.may_start():
            self.start()
            return True
        return False

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ------------------------------------------------------------------ an attempt ended

    def _ended(self, rival: asyncio.Task[Any]) -> None:
        error = None if rival.cancelled() else rival.exception()  # asked for in any case: it counts as seen
        if self.decided:
            if self._nobody_waits:
                self.dispose_of(rival)
        elif not rival.cancelled():
            if error is None or self._ticket.hedge.is_answer(error):
                self.winner, self.decided = rival, True
                self._disarm()
                if self._first_is_running and self._ticket.task is not None:
                    self._cancelled_first = True
                    self._ticket.task.cancel()
            else:
                self._failed(self.rivals[rival], error)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _failed(self, number: int, error: BaseException) -> None:
        """An attempt failed: there is nothing to wait for, so the next one starts at once."""
        if isinstance(error, Exception):
            self._failures[number] = error
        if self._ticket.hedge.is_failure(error):
            self._next()

    def took_over(self, error: BaseException | None) -> bool:
        """The first attempt is over: does the answer of a rival stand in its place?"""
        from asyncio import CancelledError

        self._first_is_running = False
        if self._cancelled_first and self._ticket.task is not None:
            self._cancelled_first = False
            if self._ticket.task.uncancel() > 0:
                return False  # somebody else wants this task gone as well: their cancellation goes on
        return self.winner is not None and (error is None or isinstance(error, (CancelledError, Exception)))

    async def answer(self, first: Exception) -> tuple[Any] | None:
        """The first attempt failed: the answer of the first rival that has one; None when `first` is all there is."""
        if self.rivals:
            self._failed(1, first)
        else:
            self._failures[1] = first
            self.start()
        try:
            while not self.decided and self._running():
                await self._news()
        except GeneratorExit:
            self.abandon()
            raise
        except BaseException:
            await self.stop()
            raise
        if self.winner is not None:
            return (await self.result(),)
        self.abandon()
        if len(self._failures) == 1:
            return None
        failures = [error for _, error in sorted(self._failures.items())]
        raise ExceptionGroup(f"all {len(failures)} attempts failed", failures) from None

    async def result(self) -> Any:
        """What the winning rival returned or raised, after the others have ended."""
        winner = self.winner
        assert winner is not None
        try:
            await self._quiet()
        except BaseException:
            self.abandon()
            raise
        self.winner = None  # from here on it is the caller's
        error = winner.exception()
        self._ticket.hedge.won(self.rivals[winner], error)
        if error is not None:
            raise error
        return winner.result()

    # ------------------------------------------------------------------ the losers

    def _running(self) -> bool:
        return any(not rival.done() for rival in self.rivals)

    async def _news(self) -> None:
        self._waiter = self._ticket.hedge.policy.clock.future(self._loop)
        await self._waiter

    async def stop(self) -> None:
        """No rival's answer is wanted: cancel them, and wait for them. Nothing of this call goes on after it."""
        self.winner = None
        try:
            await self._quiet()
        except BaseException:
            self.abandon()
            raise

    async def _quiet(self) -> None:
        """Cancel and await all but the winner, and dispose of what they have."""
        self._cancel_losers()
        while self._running():
            await self._news()
        for rival in self.rivals:
            if rival is not self.winner and not rival.cancelled() and rival.exception() is None:
                await self._ticket.hedge.adispose(rival.result())

    def abandon(self) -> None:
        """The same without waiting, which is all that can be done while a coroutine is being closed."""
        self.winner, self._nobody_waits = None, True
        self._cancel_losers()
        for rival in self.rivals:
            if rival.done():
                self.dispose_of(rival)

    def _cancel_losers(self) -> None:
        self._disarm()
        self.decided = True
        for rival in self.rivals:
            # Once each: one that is cleaning up must not be interrupted in that.
            if rival is not self.winner and not rival.done() and not rival.cancelling():
                rival.cancel()

    def dispose_of(self, rival: asyncio.Task[Any]) -> None:
        """Nobody waits for this rival any more: give back what it has, in a task of its own."""
        if not rival.cancelled() and rival.exception() is None:
            self._ticket.hedge.dispose_later(self._loop, rival.result())
