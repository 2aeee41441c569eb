"""The drivers: the first attempt in the caller's own task, rivals beside it when it takes longer than usual."""

from __future__ import annotations

import weakref
from collections.abc import AsyncGenerator, Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any

from everkeel.errors import HedgeTimeoutError
from everkeel.policies.hedge.latency import Latencies
from everkeel.policies.hedge.race import Race, Ticket
from everkeel.policies.hedge.threads import ThreadRace
from everkeel.policies.hedge.timers import Due
from everkeel.runtime.deadline import AMBIENT, remaining
from everkeel.runtime.expiry import call_within
from everkeel.runtime.outcome import Verdict
from everkeel.runtime.settings import seconds
from everkeel.runtime.state import CallKind, Shadow, State
from everkeel.runtime.stream import Begun, abegin, begin, resume
from everkeel.runtime.tally import read, tally
from everkeel.runtime.trouble import report

if TYPE_CHECKING:
    import asyncio

    from everkeel.policies.hedge.config import HedgeConfig
    from everkeel.policies.hedge.policy import Hedge

# GeneratorExit apart: while a coroutine is being closed nothing may be awaited.
_RACE = """\
if ambient() is not None:
    RESULT = AWAIT hedge.CALL(REST, ARGS)
else:
    loop = get_running_loop()
    due = hedge.due
    if due.loop is not loop:
        due = hedge.due_on(loop)
    ticket = Ticket(hedge, current_task(loop), lambda: REST(ARGS))
    live = due.live
    began = clock()
    try:
        live[ticket] = began + due.delay
        if not due.armed:
            due.arm()
        INNER
    except GeneratorExit:
        hedge.closed(due, ticket)
        raise
    except BaseException as error:
        rescue = AWAIT hedge.RESCUE(due, ticket, error)
        if rescue is None:
            raise
        RESULT = rescue[0]
    else:
        if ticket.race is None:
            live.pop(ticket, None)
            learn(clock() - began)
            tick(ok)
        else:
            RESULT = AWAIT hedge.FINISH(ticket, RESULT)"""


class Hedging(State):
    """What the calls of one hedge share: how long they usually take, who is due, and its counts."""

    __slots__ = ("__weakref__", "_dues", "_left", "due", "latencies", "learn", "ok", "policy")
    word = "hedge"
    parts = ("learn", "ok")
    policy: Hedge

    def __init__(self, policy: Hedge) -> None:
        self.policy, self.ok = policy, tally()
        self.latencies = Latencies()
        self.learn = self.latencies.record
        self._left = 0  # losing threads that have not ended
        self._dues: weakref.WeakKeyDictionary[Any, Due] = weakref.WeakKeyDictionary()
        self.due = Due(partial(self.delay, 1), policy.clock, None)
        if policy.config.budget is not None:
            policy.config.budget.watch(self)

    def due_on(self, loop: asyncio.AbstractEventLoop) -> Due:
        """Who is due on an event loop."""
        with self.policy.lock:
            due = self._dues.get(loop)
            if due is None:
                due = self._dues[loop] = Due(partial(self.delay, 1), self.policy.clock, loop)
            self.due = due
        return due

    # ------------------------------------------------------------------ deciding

    def delay(self, attempt: int) -> float:
        """Seconds after which the attempt after this one starts."""
        rules = self.policy.config
        if rules.delay is None:
            return self.latencies.quantile(rules.quantile, rules.initial_delay)
        if callable(rules.delay):
            try:
                return max(0.0, seconds(rules.delay(attempt)))
            except Exception as broken:
                report(f"{self.policy.label}: the delay function raised", broken)
                return rules.initial_delay
        return rules.delay

    def may_start(self, attempt: int) -> bool:
        """May an attempt after this one start: is there time, and does the budget allow it?"""
        rules, left = self.policy.config, remaining()
        if (left is not None and left <= 0) or self._left >= rules.max_abandoned:
            return False
        if rules.budget is not None and not rules.budget.may_retry(self.policy.clock.monotonic()):
            self.policy.counts.tick("refused")
            return False
        return True

    def is_failure(self, error: BaseException) -> bool:
        """Does this error leave the decision to another attempt?"""
        return self.policy.config.classifier.of_error(error) is Verdict.FAILURE

    # ------------------------------------------------------------------ counting and telling

    def started(self, attempt: int) -> None:
        """An attempt beside the first began."""
        policy = self.policy
        policy.counts.tick("started")
        if policy.heard():
            from everkeel.events import HedgeStarted

            policy.emit(HedgeStarted(policy=policy.name, policy_type=policy.type, attempt=attempt))

    def won(self, attempt: int) -> None:
        """An attempt answered first."""
        policy = self.policy
        next(self.ok)
        policy.counts.tick(f"won_{attempt}")
        if policy.heard():
            from everkeel.events import HedgeWon

            policy.emit(HedgeWon(policy=policy.name, policy_type=policy.type, attempt=attempt))

    def expired(self) -> HedgeTimeoutError:
        """No attempt answered in time."""
        self.policy.counts.tick("failure")
        return HedgeTimeoutError(self.policy.name, self.policy.config.max_duration or 0.0, "hedge")

    def left_behind(self, change: int) -> None:
        """So many more threads go on without anybody waiting for them."""
        with self.policy.lock:
            self._left += change

    def dispose(self, result: Any) -> None:
        """A loser had an answer too."""
        self.policy.counts.tick("disposed")
        if type(result) is Begun:
            if hasattr(result.items, "close"):
                result.items.close()
            return
        hook = self.policy.config.dispose
        if hook is not None:
            try:
                hook(result)
            except Exception as broken:
                report(f"{self.policy.label}: dispose raised", broken)

    # ------------------------------------------------------------------ when the first attempt ends

    def closed(self, due: Due, ticket: Ticket) -> None:
        """The coroutine is being closed: nothing may be awaited."""
        due.live.pop(ticket, None)
        if ticket.race is not None:
            ticket.race.abandon()

    async def arescue(self, due: Due, ticket: Ticket, error: BaseException) -> tuple[Any] | None:
        """The first attempt raised: an answer in its place, or None when its error should leave."""
        due.live.pop(ticket, None)
        race = ticket.race
        if race is not None and race.took_over(error):
            return (await race.result(),)
        if not isinstance(error, Exception) or not self.is_failure(error):
            if race is not None:
                await race.stop()
            if isinstance(error, Exception):
                self.policy.counts.tick("ignored")
            return None
        if race is None:
            if not self.may_start(1):
                self.policy.counts.tick("failure")
                return None
            race = ticket.race = Race(ticket, first_is_running=False)
            race.start()  # there is nothing to wait for any more
        try:
            return (await race.answer(error),)
        except BaseException as failed:
            race.abandon()
            if failed is error:
                return None
            self.policy.counts.tick("failure" if isinstance(failed, Exception) else "dropped")
            raise

    async def afinish(self, ticket: Ticket, result: Any) -> Any:
        """The first attempt returned, with rivals beside it."""
        race = ticket.race
        assert race is not None
        if race.took_over(None):
            self.dispose(result)  # a rival had won, and the first attempt did not mind being cancelled
            return await race.result()
        await race.stop()
        self.won(1)
        return result

    # ------------------------------------------------------------------ the plain path

    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        most = self.policy.config.max_duration
        if most is None:
            return await self._arace(fn, args, kwargs)
        return await call_within(self.policy.clock, most, self.expired, self._arace, (fn, args, kwargs), {})

    async def _arace(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        from asyncio import current_task, get_running_loop

        loop = get_running_loop()
        task, clock = current_task(loop), self.policy.clock
        if task is None:
            raise RuntimeError(f"{self.policy.label} needs a running task")
        due = self.due if self.due.loop is loop else self.due_on(loop)
        ticket = Ticket(self, task, partial(fn, *args, **kwargs))
        began, left = clock.monotonic(), remaining()
        try:
            if left is None or left > due.delay:  # a second attempt that cannot start in time is not planned
                due.live[ticket] = began + due.delay
                if not due.armed:
                    due.arm()
            result = await fn(*args, **kwargs)
        except GeneratorExit:
            self.closed(due, ticket)
            raise
        except BaseException as error:
            rescue = await self.arescue(due, ticket, error)
            if rescue is None:
                raise
            return rescue[0]
        if ticket.race is not None:
            return await self.afinish(ticket, result)
        due.live.pop(ticket, None)
        self.learn(clock.monotonic() - began)
        next(self.ok)
        return result

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        clock, most, left = self.policy.clock, self.policy.config.max_duration, remaining()
        began = clock.monotonic()
        until = None if most is None else began + most
        if left is not None and (until is None or began + left < until):
            until = began + left
        race = ThreadRace(self, partial(fn, *args, **kwargs))
        try:
            result = race.run(until)
        except Exception as error:
            self.policy.counts.tick("failure" if self.is_failure(error) else "ignored")
            raise
        if race.started == 1:
            self.learn(clock.monotonic() - began)
        return result

    def stream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        """A race for the first item; its winner gives the rest."""
        first, items = self.call(begin, fn, args, kwargs)
        return first if items is None else (yield from resume(first, items))

    async def astream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        first, items = await self.acall(abegin, fn, args, kwargs)
        if items is None:
            return
        try:
            yield first
            async for item in items:
                yield item
        finally:
            await items.aclose()

    # ------------------------------------------------------------------ the woven path

    def fragment(self, kind: CallKind) -> str | None:
        return _RACE if kind == "async" and self.policy.config.max_duration is None else None

    def names(self, kind: CallKind) -> dict[str, object]:
        if kind != "async":
            return {}
        from asyncio import current_task, get_running_loop

        return {
            "ambient": AMBIENT.get,
            "get_running_loop": get_running_loop,
            "current_task": current_task,
            "Ticket": Ticket,
            "clock": self.policy.clock.monotonic,
            "tick": next,
        }

    # ------------------------------------------------------------------ live changes, being watched

    def adapt(self, old: HedgeConfig, new: HedgeConfig) -> None:
        with self.policy.lock:
            self._dues = weakref.WeakKeyDictionary()  # calls in flight stay where they are
            self.due = Due(partial(self.delay, 1), self.policy.clock, None)
        if new.budget is not None and new.budget is not old.budget:
            new.budget.watch(self)

    def after_fork(self) -> None:
        self._left = 0
        self._dues = weakref.WeakKeyDictionary()
        self.due = Due(partial(self.delay, 1), self.policy.clock, None)

    def shadow(self) -> State:
        return WouldHedge(self)

    def successes(self) -> int:
        return read(self.ok)

    def calls(self) -> int:
        """How many calls have ended: what a budget takes for the traffic."""
        counts = self.policy.counts
        return read(self.ok) + counts["failure"] + counts["ignored"]

    def details(self) -> dict[str, Any]:
        counts = self.policy.counts.read()
        return {
            "started": counts.get("started", 0),
            "won": {int(name[4:]): n for name, n in counts.items() if name.startswith("won_")},
            "refused": counts.get("refused", 0),
            "disposed": counts.get("disposed", 0),
            "delay": self.delay(1),
            "abandoned": self._left,
        }


class WouldHedge(Shadow):
    """Lets every call take its time, learns from it, and counts where a second attempt would have started."""

    __slots__ = ()
    state: Hedging
    policy: Hedge

    def enter(self) -> float:
        return self.policy.clock.monotonic()

    def done(self, permit: float, result: Any) -> None:
        taken = self.policy.clock.monotonic() - permit
        if taken >= self.state.delay(1):
            self.policy.would("hedge")
        self.state.learn(taken)
        next(self.state.ok)

    def failed(self, permit: float, error: Exception) -> None:
        if self.state.is_failure(error):
            self.policy.would("hedge", error)

    def dropped(self, permit: float, error: BaseException) -> None:
        return None
