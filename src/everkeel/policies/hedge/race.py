"""Attempts beside each other on an event loop.

The first attempt runs in the caller's own task: a call that answers before the delay, which is nearly every one, never
pays for a task. Only when a second attempt starts is there a `Race`. Should a rival win, the first attempt is
cancelled the way a timeout does it, and that cancellation is told from the caller's in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from everkeel.runtime.expiry import expired_by_us

if TYPE_CHECKING:
    import asyncio

    from everkeel.policies.hedge.state import Hedging


class Ticket:
    """A call that may get rivals."""

    __slots__ = ("again", "hedge", "race", "task")

    def __init__(self, hedge: Hedging, task: asyncio.Task[Any], again: Callable[[], Any]) -> None:
        self.hedge, self.task, self.again = hedge, task, again
        self.race: Race | None = None

    def is_due(self) -> None:
        """It takes longer than usual: start a rival, if the budget allows."""
        if self.hedge.may_start(1):
            self.race = Race(self)
            self.race.start()


class Race:
    """The rivals of one call, and how they do."""

    __slots__ = ("_cancelling", "_failures", "_first_is_running", "_ticket", "_timer", "_waiter", "rivals", "winner")

    def __init__(self, ticket: Ticket, *, first_is_running: bool = True) -> None:
        self._ticket = ticket
        self._cancelling = ticket.task.cancelling()
        self._first_is_running = first_is_running
        self._failures: list[Exception] = []
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.rivals: dict[asyncio.Task[Any], int] = {}  # each with the number of its attempt
        self.winner: asyncio.Task[Any] | None = None

    # ------------------------------------------------------------------ starting

    def start(self) -> None:
        """One more attempt, and a timer for the next."""
        hedge = self._ticket.hedge
        task = self._ticket.task.get_loop().create_task(self._ticket.again())
        number = len(self.rivals) + 2
        self.rivals[task] = number
        task.add_done_callback(self._ended)
        hedge.started(number)
        self._arm(number)

    def _arm(self, number: int) -> None:
        hedge = self._ticket.hedge
        if number < hedge.policy.config.attempts:
            delay = hedge.delay(number)
            self._timer = hedge.policy.clock.later(self._ticket.task.get_loop(), delay, self._next)

    def _next(self) -> bool:
        """Start another attempt if there may be one."""
        self._disarm()
        attempts = len(self.rivals) + 1
        hedge = self._ticket.hedge
        if self.winner is None and attempts < hedge.policy.config.attempts and hedge.may_start(attempts):
            self.start()
            return True
        return False

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ------------------------------------------------------------------ a rival ended

    def _ended(self, rival: asyncio.Task[Any]) -> None:
        if rival.cancelled() or self.winner is not None:
            return
        error = rival.exception()
        if error is None or not self._ticket.hedge.is_failure(error):
            self.winner = rival  # an error that is not one to hedge on is an answer too
        elif isinstance(error, Exception):
            self._failures.append(error)
            if self._next():
                return
        if self.winner is not None and self._first_is_running:
            self._ticket.task.cancel()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # ------------------------------------------------------------------ the first attempt ended

    def took_over(self, error: BaseException | None) -> bool:
        """The first attempt is over: was it because a rival had won?"""
        self._first_is_running = False
        return self.winner is not None and expired_by_us(self._ticket.task, self._cancelling, error)

    async def answer(self, first: Exception) -> Any:
        """The first attempt failed: the answer of the first rival that has one."""
        self._first_is_running = False
        self._failures.insert(0, first)
        while self.winner is None and (self._running() or self._next()):
            self._waiter = self._ticket.hedge.policy.clock.future(self._ticket.task.get_loop())
            await self._waiter
        if self.winner is None:
            raise self._all_failed()
        return await self.result()

    def _running(self) -> bool:
        return any(not rival.done() for rival in self.rivals)

    def _all_failed(self) -> BaseException:
        if len(self._failures) == 1:
            return self._failures[0]
        return ExceptionGroup(f"all {len(self._failures)} attempts failed", self._failures)

    async def result(self) -> Any:
        """What the winning rival returned or raised, after the others have ended."""
        winner = self.winner
        assert winner is not None
        await self.stop()
        self._ticket.hedge.won(self.rivals[winner])
        return winner.result()

    # ------------------------------------------------------------------ the losers

    async def stop(self) -> None:
        """Cancel the losers and wait for them: nothing of this call goes on after it."""
        from asyncio import wait

        self.abandon()
        losers = [rival for rival in self.rivals if rival is not self.winner]
        if losers:
            await wait(losers)
        for rival in losers:
            if not rival.cancelled() and rival.exception() is None:
                self._ticket.hedge.dispose(rival.result())

    def abandon(self) -> None:
        """Cancel the losers without waiting: what can be done while a coroutine is being closed."""
        self._disarm()
        if self.winner is None:
            self.winner = self._ticket.task  # whatever a rival does now, it is too late
        for rival in self.rivals:
            if rival is not self.winner and not rival.done():
                rival.cancel()
