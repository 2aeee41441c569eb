"""One try of an action or a compensation: run, bounded, and its outcome put into words of the machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from everkeel.engines.rows import ErrorInfo
from everkeel.errors import CircuitOpenError, NotRetryable, RejectedError
from everkeel.messaging.event import Event
from everkeel.runtime.backoff import jittered
from everkeel.runtime.crash import crash_point
from everkeel.runtime.deadline import deadline
from everkeel.sagas.context import Context
from everkeel.sagas.definition import Saga
from everkeel.sagas.happenings import Done, Failed, Rejected, UndoFailed, Undone
from everkeel.sagas.machine import Launch
from everkeel.sagas.record import Record
from everkeel.sagas.steps import Step
from everkeel.sagas.tracing import stepping
from everkeel.sagas.values import as_fields, plain

if TYPE_CHECKING:
    from everkeel.sagas.orchestrator import Orchestrator


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a try, and the events it wants to be sent if it counts."""

    happening: Done | Rejected | Failed | Undone | UndoFailed
    emitted: tuple[tuple[Event, str | None], ...] = ()


PROBED = 1.0
"""Seconds to wait, at least, while the probes of a breaker are under way: they decide soon."""


class Try:
    """A try under way, in a task of its own; it tells `report` its outcome, unless the whole process is stopping."""

    def __init__(
        self, host: Orchestrator, definition: Saga[Any, Any, Any], record: Record, launch: Launch,
        report: Callable[[Try, Report], object],
    ) -> None:  # fmt: skip
        self.host, self.record, self.launch = host, record, launch
        self.definition, self.step = definition, definition.by_name[launch.step]
        self._report = report
        self._interrupted: str | None = None
        self._begun = False
        loop = asyncio.get_running_loop()
        self.task = loop.create_task(self._run(), name=f"{record.id}:{launch.step}")
        within = self.step.undo_timeout if launch.undo else self.step.timeout
        self._timer = None
        if within is not None:
            self._timer = host.clock.later(loop, within, lambda: self.interrupt(f"no answer within {within:g} s"))

    def interrupt(self, why: str) -> None:
        """End it: its outcome will be unknown, unless it is faster."""
        if not self.task.done():
            self._interrupted = why
            if self._begun:  # a task that is cancelled before it begins never runs, and would report nothing
                self.task.cancel()

    async def _run(self) -> None:
        self._begun = True
        if self._interrupted is not None:
            self._report(self, self._never_begun())
            return
        context: Context[Any, Any] | None = None
        try:
            context = self.definition.context(self.record, self.step.name, undo=self.launch.undo)
            crash_point("saga.before_undo" if self.launch.undo else "saga.before_action")
            result = await self._traced(context)
            crash_point("saga.after_undo" if self.launch.undo else "saga.after_action")
            report = self._succeeded(context, result)
        except asyncio.CancelledError:
            if self._interrupted is None and self.host.stopping:
                raise
            report = self._failed(self._interrupted or "it was cancelled", None)
        except Exception as error:
            report = self._failed(str(ErrorInfo.of(error)), error)
        finally:
            if self._timer is not None:
                self._timer.cancel()
        self._report(self, report)

    async def _traced(self, context: Context[Any, Any]) -> Any:
        if not self.record.redact:
            with stepping(context):
                return await self._perform(context)
        with stepping(context) as told:
            try:
                return await self._perform(context)
            except Exception as error:
                told.failed(type(error).__qualname__)  # its text may repeat what nobody may see
                trouble = error
        raise trouble

    async def _perform(self, context: Context[Any, Any]) -> Any:
        step, undo = self.step, self.launch.undo
        given = step.compensation if undo else step.action
        around = step.undo_policies if undo else step.policies
        assert callable(given)
        work: Callable[..., Any] = given
        if not (step.undo_awaited if undo else step.awaited):
            work = partial(self._in_thread, given)
        left = self._time_left()
        if left is None:
            return await (work(context) if around is None else around.acall(work, context))
        with deadline(max(left, 0.0), clock=self.host.clock):  # retries and waits of policies inside know it, too
            return await (work(context) if around is None else around.acall(work, context))

    def _time_left(self) -> float | None:
        record = self.record
        if self.launch.undo or record.committed or record.deadline_at is None:
            return None
        return record.deadline_at - self.host.now()

    async def _in_thread(self, work: Callable[..., Any], context: Context[Any, Any]) -> Any:
        loop = asyncio.get_running_loop()
        running = loop.run_in_executor(self.host.threads, partial(copy_context().run, work, context))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            # A thread cannot be interrupted. If it succeeds after all, somebody must know.
            running.add_done_callback(lambda future: self._ended_late(future, context))
            raise

    def _ended_late(self, future: asyncio.Future[Any], context: Context[Any, Any]) -> None:
        if future.cancelled() or future.exception() is not None or self.launch.undo:
            return
        report = self._succeeded(context, future.result())
        if isinstance(report.happening, Done):
            self.host.report_late(self.record.id, report)

    # ------------------------------------------------------------------ in the machine's words

    def _succeeded(self, context: Context[Any, Any], result: Any) -> Report:
        emitted = tuple(context.emitted)
        try:
            changes = _changes(self.record.data, context.state)
            if self.launch.undo:
                return Report(Undone(self.step.name, self.launch.number, changes), emitted)
            return Report(Done(self.step.name, plain(result), changes), emitted)
        except (TypeError, ValueError, RecursionError) as error:
            # It was done, and cannot be written down. The same would happen again.
            text = f"what it returned, or its state, cannot be written as JSON: {error}"
            if self.launch.undo:
                return Report(UndoFailed(self.step.name, text, self._delay(None)))
            return Report(Failed(self.step.name, text, self._delay(None), True))

    def _failed(self, text: str, error: Exception | None) -> Report:
        name = self.step.name
        if self.launch.undo:
            final = isinstance(error, NotRetryable)
            return Report(UndoFailed(name, text, self._delay(error), final))
        if error is not None and self._rejects(self.step, error):
            return Report(Rejected(name, text))
        # One of our own policies said no before the call was made: nothing can have happened.
        return Report(Failed(name, text, self._delay(error), not isinstance(error, RejectedError)))

    def _never_begun(self) -> Report:
        if self.launch.undo:
            return Report(UndoFailed(self.step.name, f"{self._interrupted} before it began"))
        return Report(Failed(self.step.name, f"{self._interrupted} before it began", 0.0, False))

    def _rejects(self, step: Step, error: Exception) -> bool:
        try:
            return step.is_rejection(error)
        except Exception:
            return False  # a predicate that raises has said nothing

    def _delay(self, error: Exception | None) -> float:
        step = self.step
        delay = step.backoff.delay(self.launch.attempt)
        delay = jittered(delay, step.backoff, step.jitter, delay, self.host.clock.random)
        come_back = getattr(error, "retry_after", None)
        if isinstance(error, CircuitOpenError) and error.half_open:
            come_back = PROBED  # what it says is when its probes count as lost
        return max(delay, come_back) if isinstance(come_back, int | float) else delay


def _changes(before: Mapping[str, Any], state: Any) -> Mapping[str, Any]:
    """The fields of the shared state that a step has changed."""
    after = state if state == before and isinstance(state, dict) else as_fields(state)
    return {name: value for name, value in after.items() if name not in before or before[name] != value}
