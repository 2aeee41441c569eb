"""Calls that end on time: by cancelling the task, by leaving a worker thread behind, or by asking the body nicely."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from everkeel.errors import RejectedError, TimeoutExceededError, WorkersExhaustedError
from everkeel.runtime.cancellation import CURRENT, Cancellation
from everkeel.runtime.deadline import AMBIENT, Deadline
from everkeel.runtime.workers import Job, start

if TYPE_CHECKING:
    import asyncio

    from everkeel.runtime.clock import Clock
    from everkeel.runtime.policy import AnyPolicy


def expired_by_us(task: asyncio.Task[Any], cancelling: int, error: BaseException | None) -> bool:
    """We cancelled this task and the guarded work is over: must a timeout be raised in place of its outcome?

    `cancelling` is what `task.cancelling()` was when the work began: read later, it would include the cancellation of a
    caller who gave up in the same moment, and swallow it.
    """
    from asyncio import CancelledError

    if task.uncancel() > cancelling:
        return False  # somebody else wants this task gone as well: their cancellation goes on
    return error is None or isinstance(error, CancelledError)  # else the body made an error of its own out of ours


class Alarm:
    """Cancels the current task at a moment, unless its work is over before."""

    __slots__ = ("_cancelling", "_handle", "_rang", "_task")

    def __init__(self, clock: Clock, seconds: float) -> None:
        from asyncio import current_task, get_running_loop

        loop = get_running_loop()
        task = current_task(loop)
        if task is None:
            raise RuntimeError("a time limit needs a running task to cancel")
        self._task, self._cancelling, self._rang = task, task.cancelling(), False
        self._handle = clock.later(loop, max(0.0, seconds), self._ring)

    def _ring(self) -> None:
        self._rang = True
        self._task.cancel()

    def off(self, error: BaseException | None) -> bool:
        """The work is over: must a timeout be raised in place of its outcome?"""
        self._handle.cancel()
        return self._rang and expired_by_us(self._task, self._cancelling, error)


Expire = Callable[[], TimeoutExceededError]


async def call_within(
    clock: Clock, seconds: float, expire: Expire, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Await `fn(...)` for at most so many seconds; `expire()` makes the error."""
    alarm = Alarm(clock, seconds)
    try:
        result = await fn(*args, **kwargs)
    except BaseException as error:
        if alarm.off(error):
            raise expire() from error
        raise
    if alarm.off(None):
        raise expire()
    return result


def exhausted(policy: AnyPolicy, abandoned: int) -> WorkersExhaustedError:
    """Count and tell that a call is refused because so many were abandoned; the error for its caller."""
    next(policy.rejections)
    error = WorkersExhaustedError(policy.name, None, abandoned)
    if policy.heard():
        from everkeel.events import CallRejected

        policy.emit(CallRejected(policy=policy.name, policy_type=policy.type, error=error))
    return error


GAVE_UP = (TimeoutExceededError, RejectedError)
"""What a body raises that noticed by itself that its time is up: a check, a sleep that woke, a bounded wait."""


class SyncBounds:
    """Sync calls with an end, for one policy: it knows how many of them were abandoned and still run."""

    __slots__ = ("_abandoned", "policy")

    def __init__(self, policy: AnyPolicy) -> None:
        self.policy = policy
        self._abandoned = 0

    @property
    def abandoned(self) -> int:
        """Calls that were given up on and have not ended yet."""
        return self._abandoned

    def call(
        self,
        runs: str,
        seconds: float,
        most_abandoned: int,
        expire: Expire,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        strict: bool = False,
    ) -> Any:
        """Call `fn` for at most so many seconds, where `runs` says. `strict`: an inline body cannot raise late."""
        clock = self.policy.clock
        at = clock.monotonic() + seconds
        cancellation = Cancellation(clock, at, TimeoutExceededError(self.policy.name, seconds))
        outer = AMBIENT.get()
        ambient = Deadline(at, length=seconds, clock=clock) if outer is None or at < outer.at else outer
        cancel_token, deadline_token = CURRENT.set(cancellation), AMBIENT.set(ambient)
        try:
            if runs == "inline":
                return self._inline(cancellation, expire, fn, args, kwargs, strict)
            return self._in_a_worker(cancellation, seconds, most_abandoned, expire, fn, args, kwargs)
        finally:
            AMBIENT.reset(deadline_token)
            CURRENT.reset(cancel_token)

    def _inline(
        self,
        cancellation: Cancellation,
        expire: Expire,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        strict: bool,
    ) -> Any:
        try:
            result = fn(*args, **kwargs)
        except Exception as error:
            if cancellation.requested and (strict or isinstance(error, GAVE_UP)):
                raise expire() from error
            raise
        if cancellation.requested:
            raise expire()  # late, but never passed off as an answer in time
        return result

    def _in_a_worker(
        self,
        cancellation: Cancellation,
        seconds: float,
        most_abandoned: int,
        expire: Expire,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        policy = self.policy
        if self._abandoned >= most_abandoned:
            raise exhausted(policy, self._abandoned)
        job = Job(fn, args, kwargs)
        start(job)
        try:
            in_time = policy.clock.wait(job.finished, seconds)
        except BaseException:
            self._abandon(job, cancellation)  # Ctrl-C while waiting: nobody will look at the result
            raise
        if not in_time and self._abandon(job, cancellation):
            raise expire()
        error, job.error = job.error, None
        if error is not None:
            try:
                if cancellation.requested and isinstance(error, GAVE_UP):
                    raise expire() from error  # it ended in the moment in which we stop waiting for it
                raise error
            finally:
                del error  # no cycle through this frame
        return job.result

    def _abandon(self, job: Job, cancellation: Cancellation) -> bool:
        policy, clock = self.policy, self.policy.clock

        def ended_late(error: BaseException | None) -> None:
            with policy.lock:
                self._abandoned -= 1
            policy.counts.tick("late")
            if policy.heard():
                from everkeel.events import LateCompletion

                late_by = max(0.0, clock.monotonic() - cancellation.at)
                policy.emit(LateCompletion(policy=policy.name, policy_type=policy.type, late_by=late_by, error=error))

        with policy.lock:
            if not job.abandon(ended_late):
                return False
            self._abandoned += 1
        cancellation.cancel()
        return True
