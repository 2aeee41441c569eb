"""The retried block: `for attempt in policy.attempts(): with attempt: ...`. A `with` alone cannot rerun its body."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from everkeel.errors import TimeoutExceededError
from everkeel.policies.retry.core import Run
from everkeel.policies.retry.nesting import BLOCK
from everkeel.runtime.block import Entry
from everkeel.runtime.deadline import AMBIENT, Deadline
from everkeel.runtime.outcome import Verdict
from everkeel.runtime.state import State

if TYPE_CHECKING:
    from everkeel.policies.retry.policy import Retry
    from everkeel.policies.retry.state import Retrying
    from everkeel.runtime.expiry import Alarm

T = TypeVar("T")


class BlockAttempt:
    """One try of a retried block. Report what it produced with `result`, where `on_result` should judge it."""

    __slots__ = ("_alarm", "_around", "_block", "_entered", "_inside", "_reported", "_value", "number")

    def __init__(self, block: AttemptBlocks, number: int) -> None:
        self._block = block
        self.number = number
        """1 for the first try."""
        self._entered = False
        self._reported = False
        self._value: Any = None
        self._alarm: Alarm | None = None
        self._around: str | None = None
        self._inside: Entry | None = None

    def result(self, value: T) -> T:
        """Report what the guarded work returned; hands it back."""
        self._reported, self._value = True, value
        return value

    def __enter__(self) -> BlockAttempt:
        self._entered = True
        self._around = BLOCK.get()
        BLOCK.set(self._block.name)
        self._inside = self._block.inside()
        self._alarm = self._block.alarm()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        BLOCK.set(self._around)
        if self._inside is not None:
            if self._reported:
                self._inside.result(self._value)
            self._inside.__exit__(kind, error, traceback)
        if self._alarm is not None and self._alarm.off(error):
            return self._block.expired(error)
        return self._block.ended(error, self._reported, self._value)

    async def __aenter__(self) -> BlockAttempt:
        return self.__enter__()

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        return self.__exit__(kind, error, traceback)


class AttemptBlocks:
    """The tries of one retried block; iterate over it once, with `for` or `async for`."""

    __slots__ = ("_async", "_done", "_entry", "_inner", "_limit", "_passes", "_run", "_started", "_state", "_whole")

    def __init__(self, policy: Retry) -> None:
        state = policy.state
        self._state: Retrying = state  # type: ignore[assignment]  # a retry has no other kind of state
        self._run: Run | None = None
        self._limit: Deadline | None = None
        self._done = self._started = self._async = False
        self._entry: Entry | None = None  # the layers around the attempts: who listens for endings, or a shadow
        self._inner: tuple[State, ...] = ()  # the layers around each attempt: who traces them
        self._passes = False  # switched off, or a shadow: one attempt, whose outcome passes
        self._whole = False  # is it the end of the whole call that bounds the attempt under way?

    def _start(self) -> None:
        if self._started:
            raise RuntimeError("attempts() can be iterated over once; call it again for another block")
        self._started = True
        policy = self._state.policy
        rules = policy.config
        layers = policy.layers()
        self._passes = self._state not in layers
        if not self._passes:
            place = layers.index(self._state)
            layers, self._inner = layers[:place], layers[place + 1 :]
        self._entry = Entry(layers).__enter__()
        if self._passes:
            return
        if not self._async:
            policy.may_guard("sync")
        if rules.attempt_timeout is not None and not self._async and rules.runs == "worker":
            raise TypeError(
                f"{policy.label}: a sync block runs where it stands and cannot have an attempt_timeout in a worker; "
                'use a decorated function, or runs="inline"'
            )
        if rules.timed or AMBIENT.get() is not None:
            self._limit = self._state._limit()

    def __iter__(self) -> Iterator[BlockAttempt]:
        self._start()
        sleep = self._state.policy.clock.sleep
        while (attempt := self._next()) is not None:
            yield attempt
            self._check(attempt)
            if not self._done and self._run is not None:
                if self._run.delay:
                    sleep(self._run.delay)
                    self._unless_overslept(self._run)
                self._state.again(self._run)

    async def __aiter__(self) -> AsyncIterator[BlockAttempt]:
        self._async = True
        self._start()
        sleep = self._state.policy.clock.asleep
        while (attempt := self._next()) is not None:
            yield attempt
            self._check(attempt)
            if not self._done and self._run is not None:
                if self._state.policy.config.awaits_hook:
                    await self._state._abefore_retry(self._run)
                if self._run.delay:
                    await sleep(self._run.delay)
                    self._unless_overslept(self._run)
                self._state.again(self._run)

    def _next(self) -> BlockAttempt | None:
        return None if self._done else BlockAttempt(self, 1 if self._run is None else self._run.attempts + 1)

    def _unless_overslept(self, run: Run) -> None:
        if self._limit is not None and self._state._overslept(run, self._limit):
            self._done = True
            self._leave(run.error, None)
            self._state._not_again(run)

    def _check(self, attempt: BlockAttempt) -> None:
        if not attempt._entered:
            raise RuntimeError("each attempt must be entered: `for attempt in policy.attempts(): with attempt: ...`")

    # ------------------------------------------------------------------ told by the attempt

    @property
    def name(self) -> str | None:
        """How a retry inside the block calls this one; None when this one does nothing."""
        return None if self._passes else self._state.policy.name or "retry"

    def inside(self) -> Entry | None:
        """Through the layers inside the retry, if there are any."""
        return Entry(self._inner).__enter__() if self._inner else None

    def alarm(self) -> Alarm | None:
        """What ends the attempt that begins now, if anything does. A sync block is only checked between attempts."""
        if self._passes or not self._async:
            return None
        seconds, self._whole = self._state._attempt_bound(self._state._end_of_attempts(self._limit))
        if seconds is None:
            return None
        from everkeel.runtime.expiry import Alarm

        return Alarm(self._state.policy.clock, seconds)

    def expired(self, error: BaseException | None) -> bool:
        """The attempt ran out of time."""
        if self._whole and self._limit is not None:
            self._done = True
            late = self._state._expired(self._run, self._limit)
            self._leave(late, None)
            try:
                raise late
            finally:  # in place of the cancellation being handled, which was ours
                late.__context__ = None if self._run is None else self._run.error
        expiry = self._state._attempt_expired(self._state.policy.config.attempt_timeout or 0.0)
        if self.ended(expiry, False, None):
            return True
        raise expiry

    def ended(self, error: BaseException | None, reported: bool, value: Any) -> bool:
        """The attempt ended; True swallows its error because another attempt follows."""
        try:
            swallowed = self._judge(error, reported, value)
        except BaseException as other:
            self._leave(other, None)
            raise
        if self._done:
            self._leave(None if swallowed else error, value)
        return swallowed

    def _leave(self, error: BaseException | None, value: Any) -> None:
        entry, self._entry = self._entry, None
        if entry is not None:
            entry.result(value)
            entry.__exit__(None, error, None)

    def _judge(self, error: BaseException | None, reported: bool, value: Any) -> bool:
        if self._passes:
            self._done = True
            return False
        state, rules = self._state, self._state.policy.config
        if error is None:
            if not reported or rules.classifier.of_result(value) is Verdict.SUCCESS:
                self._done = True
                if self._run is None:
                    next(state.ok)
                else:
                    state.recovered(self._run)
                return False
            self._run = state.decide(self._run, None, value, self._limit)
            self._done = self._run.over
            if self._done:
                state.exhausted(self._run, None, value)
            return True
        if not isinstance(error, Exception):
            self._done = True
            state.dropped(self._run, None)
            return False
        own = state._own_expiry(error) if isinstance(error, TimeoutExceededError) else None
        self._run = state.decide(self._run, error, None, self._limit, own)
        self._done = self._run.over
        if self._done and state.maps(self._run):
            state.exhausted(self._run, error, None)
            return True
        return not self._done
