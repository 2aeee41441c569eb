"""The drivers: the first attempt in the caller's own task, rivals beside it when it takes longer than usual."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from contextvars import copy_context
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from everkeel.errors import HedgeTimeoutError, RejectedError
from everkeel.policies.hedge.latency import Latencies
from everkeel.policies.hedge.race import Race, Ticket
from everkeel.policies.hedge.threads import ThreadRace
from everkeel.policies.hedge.timers import Due
from everkeel.runtime.deadline import AMBIENT, remaining, unless_under_deadline
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
loop = get_running_loop()
due = hedge.due
if due.loop is not loop:
    due = hedge.due_on(loop)
ticket = Ticket(hedge, current_task(loop), lambda: REST(ARGS), copy_context())
live = due.live
if not due.armed:
    due.arm()
began = clock()
try:
    live[ticket] = began + due.delay
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
        tick(ok)
    else:
        RESULT = AWAIT hedge.FINISH(ticket, RESULT)
learn(clock() - began)"""


class Hedging(State):
    """What the calls of one hedge share: how long they usually take, who is due, and its counts."""

    __slots__ = ("__weakref__", "_disposing", "_dues", "_left", "due", "latencies", "learn", "ok", "policy")
    word = "hedge"
    parts = ("learn", "ok")
    policy: Hedge

    def __init__(self, policy: Hedge) -> None:
        self.policy, self.ok = policy, tally()
        self.latencies = Latencies()
        # Told how long the caller waited, however many attempts that took. Were only calls without rivals to count,
        # the slow ones would be missing, and the delay would become shorter and shorter.
        self.learn = self.latencies.record
        self._left = 0  # losing threads that have not ended
        self._disposing: set[asyncio.Task[None]] = set()
        self._forget_loops()
        if policy.config.budget is not None:
            policy.config.budget.watch(self)

    def _forget_loops(self) -> None:
        self._dues: dict[asyncio.AbstractEventLoop, Due] = {}
        self.due = Due(partial(self.delay, 1), self.policy.clock, None)

    def due_on(self, loop: asyncio.AbstractEventLoop) -> Due:
        """Who is due on an event loop."""
        with self.policy.lock:
            due = self._dues.get(loop)
            if due is None:
                for over in [other for other in self._dues if other.is_closed()]:
                    del self._dues[over]
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

    def may_start(self) -> bool:
        """May one more attempt start: is there time, and does the budget allow it?"""
        rules, left = self.policy.config, remaining()
        if (left is not None and left <= 0) or self._left >= rules.max_abandoned:
            return False
        if rules.budget is not None and not rules.budget.may_retry(self.policy.clock.monotonic()):
            self.policy.counts.tick("refused")
            return False
        return True

    def is_failure(self, error: BaseException) -> bool:
        """May another attempt mend this?"""
        return self.policy.config.classifier.of_error(error) is Verdict.FAILURE

    def is_answer(self, error: BaseException) -> bool:
        """Does this error decide the call? Not a rejection by a policy inside: it says nothing about those that run."""
        return not self.is_failure(error) and not isinstance(error, RejectedError)

    # ------------------------------------------------------------------ counting and telling

    def started(self, attempt: int) -> None:
        """An attempt beside the first began."""
        policy = self.policy
        policy.counts.tick("started")
        if policy.heard():
            from everkeel.events import HedgeStarted

            policy.emit(HedgeStarted(policy=policy.name, policy_type=policy.type, attempt=attempt))

    def won(self, attempt: int, error: BaseException | None = None) -> None:
        """An attempt that was not alone answered first, perhaps with an error that is an answer."""
        policy = self.policy
        policy.counts.tick(f"won_{attempt}")
        if error is None:
            next(self.ok)
        elif isinstance(error, Exception):
            policy.counts.tick("ignored")
        if policy.heard():
            from everkeel.events import HedgeWon

            policy.emit(HedgeWon(policy=policy.name, policy_type=policy.type, attempt=attempt))

    def count(self, error: Exception) -> None:
        """A call ended in this error."""
        self.policy.counts.tick("failure" if self.policy.judge(error) is Verdict.FAILURE else "ignored")

    def left_behind(self, change: int) -> None:
        """So many more threads go on without anybody waiting for them."""
        with self.policy.lock:
            self._left += change

    def dispose(self, result: Any) -> Any:
        """A loser had an answer too: give back what it holds. Answers what is to be awaited for it, if anything."""
        self.policy.counts.tick("disposed")
        if type(result) is Begun:
            return _close(result.items)
        hook = self.policy.config.dispose
        try:
            return None if hook is None else hook(result)
        except Exception as broken:
            report(f"{self.policy.label}: dispose raised", broken)

    async def adispose(self, result: Any) -> None:
        """The same, and awaited where it wants to be."""
        rest = self.dispose(result)
        if isawaitable(rest):
            try:
                await rest
            except Exception as broken:
                report(f"{self.policy.label}: dispose raised", broken)

    def dispose_later(self, loop: asyncio.AbstractEventLoop, result: Any) -> None:
        """The same, where nobody can wait for it."""
        task = loop.create_task(self.adispose(result))
        self._disposing.add(task)  # a loop holds its tasks weakly
        task.add_done_callback(self._disposing.discard)

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
        if not isinstance(error, Exception) or self.is_answer(error):
            if race is not None:
                await race.stop()
                if isinstance(error, Exception):
                    self.won(1, error)
            elif isinstance(error, Exception):
                self.count(error)
            return None
        if race is None and ticket.task is not None and self.is_failure(error) and self.may_start():
            race = ticket.race = Race(ticket, first_is_running=False)
        try:
            answer = None if race is None else await race.answer(error)
        except ExceptionGroup:
            self.policy.counts.tick("failure")
            raise
        if answer is None:
            self.count(error)
        return answer

    async def afinish(self, ticket: Ticket, result: Any) -> Any:
        """The first attempt returned, with rivals beside it."""
        race = ticket.race
        assert race is not None
        if race.took_over(None):
            await self.adispose(result)  # a rival had won, and the first attempt did not mind being cancelled
            return await race.result()
        try:
            await race.stop()
        except BaseException:
            if ticket.task is not None:
                self.dispose_later(ticket.task.get_loop(), result)
            raise
        self.won(1)
        return result

    # ------------------------------------------------------------------ the plain path

    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self.policy.may_guard_function(_original(fn))
        seconds = self._most()
        if seconds is None:
            return await self._arace(fn, args, kwargs)
        expire = partial(self.expired, seconds)
        return await call_within(self.policy.clock, seconds, expire, self._arace, (fn, args, kwargs), {})

    def _most(self) -> float | None:
        """How long a call that begins now may take. A deadline makes that shorter, but does not alone end a call."""
        most, left = self.policy.config.max_duration, remaining()
        return most if most is None or left is None else max(0.0, min(most, left))

    def expired(self, seconds: float) -> HedgeTimeoutError:
        """No attempt answered in time."""
        self.policy.counts.tick("failure")
        return HedgeTimeoutError(self.policy.name, seconds, "hedge")

    async def _arace(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        from asyncio import current_task, get_running_loop

        loop = get_running_loop()
        clock, left = self.policy.clock, remaining()
        due = self.due if self.due.loop is loop else self.due_on(loop)
        ticket = Ticket(self, current_task(loop), partial(fn, *args, **kwargs), copy_context())
        if not due.armed:
            due.arm()
        began = clock.monotonic()
        try:
            if left is None or left > due.delay:  # a second attempt that cannot start in time is not planned
                due.live[ticket] = began + due.delay
            result = await fn(*args, **kwargs)
        except GeneratorExit:
            self.closed(due, ticket)
            raise
        except BaseException as error:
            rescue = await self.arescue(due, ticket, error)
            if rescue is None:
                raise
            result = rescue[0]
        else:
            if ticket.race is None:
                due.live.pop(ticket, None)
                next(self.ok)
            else:
                result = await self.afinish(ticket, result)
        self.learn(clock.monotonic() - began)
        return result

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        self.policy.may_guard_function(_original(fn))
        self.policy.may_guard("sync")
        clock = self.policy.clock
        began = clock.monotonic()
        race = ThreadRace(self, partial(fn, *args, **kwargs))
        try:
            number, result = race.run(self._most())
        except HedgeTimeoutError:
            raise  # counted where it was made
        except Exception as error:
            if race.started == 1 or not self.is_answer(error):
                self.count(error)
            raise
        if race.started == 1:
            next(self.ok)
        else:
            self.won(number)
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
        if kind != "async" or self.policy.config.max_duration is not None:
            return None
        return unless_under_deadline("hedge", _RACE)

    def names(self, kind: CallKind) -> dict[str, object]:
        if kind != "async":
            return {}
        from asyncio import current_task, get_running_loop

        return {
            "ambient": AMBIENT.get,
            "get_running_loop": get_running_loop,
            "current_task": current_task,
            "Ticket": Ticket,
            "copy_context": copy_context,
            "clock": self.policy.clock.monotonic,
            "tick": next,
        }

    # ------------------------------------------------------------------ live changes, being watched

    def adapt(self, old: HedgeConfig, new: HedgeConfig) -> None:
        with self.policy.lock:
            self._forget_loops()  # calls in flight stay where they are
        if new.budget is not None and new.budget is not old.budget:
            new.budget.watch(self)

    def after_fork(self) -> None:
        self._left = 0
        self._disposing.clear()
        self._forget_loops()

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


def _close(items: Any) -> Any:
    """Close a loser's generator; answers what is to be awaited for it, if anything."""
    if hasattr(items, "aclose"):
        return items.aclose()
    return None if items is None else items.close()


def _original(fn: Any) -> Any:
    """The user's own function, out of the layers and partial applications around it."""
    while isinstance(fn, partial):
        driver = isinstance(getattr(fn.func, "__self__", None), State)
        fn = fn.args[0] if driver else fn.func
    return fn


class WouldHedge(Shadow):
    """Lets every call take its time, learns from it, and counts where a second attempt would have started."""

    __slots__ = ("_delay", "_left")
    state: Hedging
    policy: Hedge

    def __init__(self, state: Hedging) -> None:
        super().__init__(state)
        self._delay, self._left = 0.0, 0

    def enter(self) -> float:
        return self.policy.clock.monotonic()

    def done(self, permit: float, result: Any) -> None:
        taken = self.policy.clock.monotonic() - permit
        if taken >= self._usual():
            self.policy.would("hedge")
        self.state.learn(taken)
        next(self.state.ok)

    def _usual(self) -> float:
        """The delay as it is now. Sorting the latest latencies for every call would cost more than most calls."""
        if self._left == 0:
            self._delay, self._left = self.state.delay(1), 20
        self._left -= 1
        return self._delay

    def failed(self, permit: float, error: Exception) -> None:
        if self.state.is_failure(error):
            self.policy.would("hedge", error)
        self.state.count(error)

    def dropped(self, permit: float, error: BaseException) -> None:
        return None

    def stream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        """Up to the first item, as when it acts."""
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
