"""How a call is ended on time: async by cancellation, sync in a worker thread or by its own cooperation."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from everkeel.errors import TimeoutExceededError, WorkersExhaustedError
from everkeel.policies.timeout.inflight import Again, InFlight, Key
from everkeel.policies.timeout.race import Race, outcome, until_over
from everkeel.runtime.cancellation import CURRENT, Cancellation
from everkeel.runtime.deadline import AMBIENT, Deadline, unless_under_deadline
from everkeel.runtime.expiry import GAVE_UP, SyncBounds, call_within, exhausted
from everkeel.runtime.state import CallKind, Shadow, State
from everkeel.runtime.tally import read, tally

if TYPE_CHECKING:
    import asyncio

    from everkeel.policies.timeout.config import TimeoutConfig
    from everkeel.policies.timeout.policy import Timeout

# `key in live` again at the end: a sweep in between has taken the task out, and then its cancellation is ours.
_WATCH = """\
loop = get_running_loop()
task = current_task(loop)
flight = timeout.flight
if flight.loop is not loop:
    flight = timeout.flight_on(loop)
live = flight.live
key = task if task not in live else Again(task)
cancelling = task.cancelling()
try:
    live[key] = clock() + flight.seconds
    if not flight.armed:
        flight.arm()
    INNER
except BaseException as error:
    if flight.expired(key, cancelling, error):
        raise timeout.over(flight.seconds) from error
    timeout.passed(error)
    raise
if key in live:
    del live[key]
elif flight.expired(key, cancelling, None):
    raise timeout.over(flight.seconds)
tick(ok)"""


class Watched(NamedTuple):
    """The permit of an async block."""

    flight: InFlight
    key: Key
    cancelling: int


class Inline(NamedTuple):
    """The permit of a sync block, which must look at its watch itself."""

    cancellation: Cancellation
    outer: Cancellation | None
    deadline: Deadline | None


class Timing(State):
    """What the calls of one timeout share: who is in flight where, and how many were left behind."""

    __slots__ = ("_bounds", "_flights", "_left", "flight", "ok", "policy")
    word = "timeout"
    parts = ("ok",)
    policy: Timeout

    def __init__(self, policy: Timeout) -> None:
        self.policy, self.ok = policy, tally()
        self._bounds = SyncBounds(policy)
        self._left: set[asyncio.Future[Any]] = set()
        self.adapt(None, policy.config)

    def adapt(self, old: TimeoutConfig | None, new: TimeoutConfig) -> None:
        if old is None or old.seconds != new.seconds:
            with self.policy.lock:  # against `flight_on`, which must not put a queue of the old length among the new
                # Another length is another queue; calls in flight stay in the one they are in.
                self._flights: dict[asyncio.AbstractEventLoop, InFlight] = {}
                self.flight = InFlight(new.seconds, self.policy.clock, None)

    def flight_on(self, loop: asyncio.AbstractEventLoop) -> InFlight:
        """The calls in flight on an event loop; the loop asked for last is the one found first next time."""
        with self.policy.lock:
            flight = self._flights.get(loop)
            if flight is None:
                for over in [other for other in self._flights if other.is_closed()]:
                    del self._flights[over]
                flight = self._flights[loop] = InFlight(self.policy.config.seconds, self.policy.clock, loop)
            self.flight = flight
        return flight

    def over(self, seconds: float) -> TimeoutExceededError:
        """Count and tell that a call ran out of time; the error for its caller."""
        policy = self.policy
        policy.counts.tick("failure")
        policy.counts.tick("expired")
        if policy.heard():
            from everkeel.events import TimedOut

            policy.emit(TimedOut(policy=policy.name, policy_type=policy.type, seconds=seconds))
        return policy.config.expired_error(policy.name, seconds)

    def _bounded(self, seconds: float) -> float:
        """Never longer than the deadline that travels with the call."""
        limit = AMBIENT.get()
        return seconds if limit is None else max(0.0, min(seconds, limit.remaining()))

    # ------------------------------------------------------------------ blocks

    async def aenter(self) -> Watched:
        from asyncio import current_task, get_running_loop

        loop = get_running_loop()
        task = current_task(loop)
        if task is None:
            raise RuntimeError(f"{self.policy.label} needs a running task to cancel")
        flight = self.flight if self.flight.loop is loop else self.flight_on(loop)
        seconds = self._bounded(flight.seconds)
        if seconds < flight.seconds:
            flight = InFlight(seconds, self.policy.clock, loop)
        cancelling = task.cancelling()
        return Watched(flight, flight.begin(task), cancelling)

    def enter(self) -> Inline:
        self.policy.must_run_inline()
        clock, seconds = self.policy.clock, self._bounded(self.policy.config.seconds)
        at = clock.monotonic() + seconds
        error = TimeoutExceededError(self.policy.name, seconds)
        permit = Inline(Cancellation(clock, at, error), CURRENT.get(), AMBIENT.get())
        CURRENT.set(permit.cancellation)
        AMBIENT.set(Deadline(at, length=seconds, clock=clock))  # never later than the one around it: see `_bounded`
        return permit

    def done(self, permit: Watched | Inline, result: Any) -> None:
        if self._expired(permit, None):
            raise self.over(self._seconds(permit))
        next(self.ok)

    def failed(self, permit: Watched | Inline, error: BaseException) -> None:
        if self._expired(permit, error):
            raise self.over(self._seconds(permit)) from error
        self.passed(error)

    dropped = failed

    def passed(self, error: BaseException) -> None:
        """The call ended in time, in an error of its own: no business of a timeout, but counted."""
        if isinstance(error, Exception):
            self.policy.counts.tick("ignored")

    def _seconds(self, permit: Watched | Inline) -> float:
        return permit.flight.seconds if isinstance(permit, Watched) else permit.cancellation.error.seconds

    def _expired(self, permit: Watched | Inline, error: BaseException | None) -> bool:
        if isinstance(permit, Watched):
            return permit.flight.expired(permit.key, permit.cancelling, error)
        CURRENT.set(permit.outer)
        AMBIENT.set(permit.deadline)
        return permit.cancellation.requested and (error is None or isinstance(error, GAVE_UP))

    # ------------------------------------------------------------------ calls

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        result = self._in_time(self.policy.config.seconds, fn, args, kwargs)
        next(self.ok)
        return result

    def _in_time(self, length: float, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        rules, seconds = self.policy.config, self._bounded(length)
        expire = _Expire(self, seconds)
        try:
            return self._bounds.call(
                rules.runs, seconds, rules.max_abandoned, expire, fn, args, kwargs, strict=rules.strict
            )
        except Exception as error:
            if not expire.happened and not self._refused(error):
                self.passed(error)
            raise

    def _refused(self, error: Exception) -> bool:
        return isinstance(error, WorkersExhaustedError) and error.policy == self.policy.name

    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        if self.policy.config.detached:
            return await self._detached(fn, args, kwargs)
        if self.policy.config.strict:
            return await self._strictly(fn, args, kwargs)
        permit = await self.aenter()
        try:
            result = await fn(*args, **kwargs)
        except BaseException as error:
            self.failed(permit, error)
            raise
        self.done(permit, result)
        return result

    async def _detached(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return on time whatever the body does; it goes on alone, and is counted until it ends."""
        from asyncio import ensure_future, shield

        rules, clock = self.policy.config, self.policy.clock
        if len(self._left) >= rules.max_abandoned:
            raise exhausted(self.policy, len(self._left))
        expire = _Expire(self, self._bounded(rules.seconds))
        body = ensure_future(fn(*args, **kwargs))
        try:
            result = await call_within(clock, expire.seconds, expire, shield, (body,), {})
        except BaseException as error:
            if expire.happened:
                if not body.done():
                    self._leave(body, clock.monotonic())
            else:
                body.cancel()  # where the caller was cancelled, so is what it was waiting for
                self.passed(error)
            raise
        next(self.ok)
        return result

    async def _strictly(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The body in a task of its own. When time is up it is cancelled, and its caller does not wait for its end."""
        from asyncio import CancelledError, get_running_loop

        rules, clock, loop = self.policy.config, self.policy.clock, get_running_loop()
        if len(self._left) >= rules.max_abandoned:
            raise exhausted(self.policy, len(self._left))
        expire = _Expire(self, self._bounded(rules.seconds))
        race = Race(clock, loop, expire.seconds, rules.expired_error(self.policy.name, expire.seconds))
        body = race.run(fn, args, kwargs)
        try:
            expired = await race.over
        except CancelledError:
            body.cancel()
            await until_over(body)  # whoever cancels a call waits for what it had called, as without a timeout
            raise
        finally:
            race.timer.cancel()
        if expired:
            if body.done():
                outcome(body)
            else:
                self._leave(body, race.cancellation.at)
            raise expire()
        try:
            result = body.result()
        except Exception as error:
            self.passed(error)
            raise
        next(self.ok)
        return result

    def _leave(self, body: asyncio.Future[Any], expired_at: float) -> None:
        policy = self.policy
        self._left.add(body)

        def ended(body: asyncio.Future[Any]) -> None:
            self._left.discard(body)
            error = None if body.cancelled() else body.exception()
            policy.counts.tick("late")
            if policy.heard():
                from everkeel.events import LateCompletion

                late_by = policy.clock.monotonic() - expired_at
                policy.emit(LateCompletion(policy=policy.name, policy_type=policy.type, late_by=late_by, error=error))

        body.add_done_callback(ended)

    # ------------------------------------------------------------------ streams

    def stream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        """So long for the first item, and for each gap between items; the time the consumer takes does not count."""
        rules = self.policy.config
        items = fn(*args, **kwargs)
        length, step = rules.seconds, partial(next, items)
        try:
            while True:
                item = self._in_time(length, _step, (items, step), {})
                if type(item) is _End:
                    next(self.ok)
                    return item.value
                length = rules.seconds if rules.gap is None else rules.gap
                try:
                    step = partial(items.send, (yield item))
                except GeneratorExit:
                    raise
                except BaseException as error:
                    step = partial(items.throw, error)
        finally:
            _close(items)

    async def astream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        rules, clock = self.policy.config, self.policy.clock
        items = fn(*args, **kwargs)
        length = rules.seconds
        try:
            while True:
                expire = _Expire(self, self._bounded(length))
                try:
                    item = await call_within(clock, expire.seconds, expire, anext, (items,), {})
                except StopAsyncIteration:
                    break
                except Exception as error:
                    if not expire.happened:
                        self.passed(error)
                    raise
                yield item
                length = rules.seconds if rules.gap is None else rules.gap
        finally:
            await items.aclose()
        next(self.ok)

    # ------------------------------------------------------------------ the woven path

    def fragment(self, kind: CallKind) -> str | None:
        # A worker thread must be given something to call; so must a task that may be left behind.
        if kind != "async" or self.policy.config.detached or self.policy.config.strict:
            return None
        return unless_under_deadline("timeout", _WATCH)

    def names(self, kind: CallKind) -> dict[str, object]:
        if kind != "async":
            return {}
        from asyncio import current_task, get_running_loop

        return {
            "ambient": AMBIENT.get,
            "get_running_loop": get_running_loop,
            "current_task": current_task,
            "Again": Again,
            "clock": self.policy.clock.monotonic,
            "tick": next,
        }

    # ------------------------------------------------------------------ being watched

    def shadow(self) -> State:
        return WouldExpire(self)

    def after_fork(self) -> None:
        self._bounds = SyncBounds(self.policy)
        self._left.clear()
        self.adapt(None, self.policy.config)

    def successes(self) -> int:
        return read(self.ok)

    def details(self) -> dict[str, Any]:
        counts = self.policy.counts
        flights = {id(flight): flight for flight in (self.flight, *self._flights.values())}
        return {
            "expired": counts["expired"],
            "late": counts["late"],
            "abandoned": self._bounds.abandoned + len(self._left),
            "running": sum(len(flight.live) for flight in flights.values()),
        }


class _Expire:
    """Makes the error for a call whose time is up, and remembers that it did."""

    __slots__ = ("_timing", "happened", "seconds")

    def __init__(self, timing: Timing, seconds: float) -> None:
        self._timing, self.seconds, self.happened = timing, seconds, False

    def __call__(self) -> TimeoutExceededError:
        self.happened = True
        return self._timing.over(self.seconds)


class _End(NamedTuple):
    """What a generator returned: a StopIteration may cross neither a thread nor another generator."""

    value: Any


def _step(items: Generator[Any, Any, Any], step: Callable[[], Any]) -> Any:
    try:
        item = step()
    except StopIteration as end:
        return _End(end.value)
    cancellation = CURRENT.get()
    if cancellation is not None and cancellation.given_up:
        _close(
            items
        )  # nobody waits for this item any more, and whoever stopped waiting could not close what was running
    return item


def _close(items: Any) -> None:
    """Close a generator, unless a worker thread is in the middle of it: that one closes it (see `_step`)."""
    if not items.gi_running:
        try:
            items.close()
        except ValueError:
            if not items.gi_running:
                raise


class WouldExpire(Shadow):
    """Lets every call take its time, and counts those that would have been ended."""

    __slots__ = ()
    state: Timing
    policy: Timeout

    def enter(self) -> float:
        """When its time would be up."""
        return self._until(self.policy.config.seconds)

    def done(self, permit: float, result: Any) -> None:
        self._look(permit)
        next(self.state.ok)

    def failed(self, permit: float, error: BaseException) -> None:
        self._look(permit)
        self.state.passed(error)

    dropped = failed

    def _until(self, length: float) -> float:
        return self.policy.clock.monotonic() + self.state._bounded(length)

    def _look(self, until: float) -> bool:
        late = self.policy.clock.monotonic() >= until
        if late:
            self.policy.would("expire")
        return late

    def stream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        """The first item and each gap, as when it acts; a stream would have been ended only once."""
        rules = self.policy.config
        items = fn(*args, **kwargs)
        length, step, ended = rules.seconds, partial(next, items), False
        try:
            while True:
                until = self._until(length)
                try:
                    item = step()
                except StopIteration as end:
                    next(self.state.ok)
                    return end.value
                finally:
                    ended = ended or self._look(until)
                length = rules.seconds if rules.gap is None else rules.gap
                try:
                    step = partial(items.send, (yield item))
                except GeneratorExit:
                    raise
                except BaseException as error:
                    step = partial(items.throw, error)
        finally:
            items.close()

    async def astream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        rules = self.policy.config
        items = fn(*args, **kwargs)
        length, ended = rules.seconds, False
        try:
            while True:
                until = self._until(length)
                try:
                    item = await anext(items)
                except StopAsyncIteration:
                    break
                finally:
                    ended = ended or self._look(until)
                yield item
                length = rules.seconds if rules.gap is None else rules.gap
        finally:
            await items.aclose()
        next(self.state.ok)
