"""What an operator, or the caller, may want of a saga, and from where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from everkeel.engines.sagas import SagaState
from everkeel.sagas import happenings as happened
from everkeel.sagas.facts import Facts
from everkeel.sagas.record import MOST_TEXT, StepStatus, evolve


class Orders(Facts):
    """A decision under way, as far as somebody's wishes are concerned."""

    def cancel(self, order: happened.Cancel) -> None:
        turned = (SagaState.COMPENSATING, SagaState.COMPENSATED, SagaState.COMPENSATION_BLOCKED)
        if self.state in turned:
            return  # that is what is wanted
        if self.record.ended:
            raise self.illegal("cancel", why="it has ended")
        if self.committed():
            raise self.illegal("cancel", why="it is past its pivot and can only go forward")
        if self.state is SagaState.PARKED and self.record.parked_from is SagaState.COMPENSATING:
            raise self.illegal("cancel", why="it was parked on its way back: resume it")
        self.note("cancelled", detail=order.reason, actor=order.actor)
        self.become(self.state, parked_from=None)
        self.turn_back(order.cause, error=order.reason)

    def retry_undo(self, order: happened.RetryUndo) -> None:
        self._of_blocked(order, "retry")
        # Back to what it was: the machine begins it anew, with all its attempts.
        status = StepStatus.DONE if self.steps[order.step].done else StepStatus.UNKNOWN
        if self.state is SagaState.COMPENSATED:
            status = StepStatus.LATE_DONE
        self.change(order.step, status=status, undo_attempts=0, not_before=None)
        self._unblock()

    def skip_undo(self, order: happened.SkipUndo) -> None:
        self._of_blocked(order, "skip")
        self.change(order.step, status=StepStatus.UNDO_SKIPPED, not_before=None)
        self._unblock()

    def mark_undone(self, order: happened.MarkUndone) -> None:
        self._of_blocked(order, "mark_done")
        self.change(order.step, status=StepStatus.UNDONE, not_before=None)
        self._unblock()

    def _of_blocked(self, order: Any, what: str) -> None:
        blocked = self.state in (SagaState.COMPENSATION_BLOCKED, SagaState.COMPENSATING, SagaState.COMPENSATED)
        if not blocked or self.steps[order.step].status is not StepStatus.UNDO_FAILED:
            raise self.illegal(what, order.step, "only a compensation that has failed can be dealt with")
        if what != "retry":
            self._needs_reason(order, what)
        self.note(what, order.step, order.reason, actor=order.actor)

    def _needs_reason(self, order: happened.Order, what: str) -> None:
        if not order.reason.strip():
            raise self.illegal(what, getattr(order, "step", None), "a reason is needed")

    def _unblock(self) -> None:
        if self.state is SagaState.COMPENSATION_BLOCKED:
            self.become(SagaState.COMPENSATING)

    def resume(self, order: happened.Resume) -> None:
        if self.state is not SagaState.PARKED:
            raise self.illegal("resume", why="only a parked saga can be resumed")
        self.note("resumed", detail=order.reason, actor=order.actor)
        goes_on = self.record.parked_from or SagaState.RUNNING
        cause = "operator" if goes_on is SagaState.COMPENSATING else None
        self.become(goes_on, parked_from=None, cause=cause)
        if goes_on is not SagaState.COMPENSATING:
            self._begin_its_time_again()
        for name, step in self.steps.items():
            if step.status is StepStatus.READY:
                self.change(name, attempts=0, not_before=None)

    def _begin_its_time_again(self) -> None:
        """Its time went on while it was parked, and who resumes it does not mean that it shall time out at once."""
        record = self.record
        if record.deadline_at is None or record.created_at is None or record.timed_out:
            return
        resumed = [entry.at for entry in record.timeline if entry.what == "resumed"]
        self.deadline = max(0.0, record.deadline_at - (resumed[-1] if resumed else record.created_at))
        self.record = evolve(record, deadline_at=self.now + self.deadline)

    def abandon(self, order: happened.Abandon) -> None:
        if self.state not in (SagaState.PARKED, SagaState.COMPENSATION_BLOCKED):
            raise self.illegal("fail", why="only a parked or blocked saga can be given up")
        self._needs_reason(order, "fail")
        self.note("failed", detail=order.reason, actor=order.actor)
        self.become(SagaState.FAILED, cause="operator", error=order.reason[:MOST_TEXT], parked_from=None)


ORDERS: dict[type[Any], Callable[[Orders, Any], None]] = {
    happened.Cancel: Orders.cancel,
    happened.RetryUndo: Orders.retry_undo,
    happened.SkipUndo: Orders.skip_undo,
    happened.MarkUndone: Orders.mark_undone,
    happened.Resume: Orders.resume,
    happened.Abandon: Orders.abandon,
}
