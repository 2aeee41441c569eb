"""What each thing that happened does to a saga's record; what follows from it is decided in `machine`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from everkeel.engines.sagas import SagaState
from everkeel.errors import SagaStateError
from everkeel.sagas import happenings as happened
from everkeel.sagas.record import MOST_TEXT, TO_UNDO, Entry, Record, StepStatus, evolve
from everkeel.sagas.shape import Launch, Shape, is_committed


class Facts:
    """A decision under way, as far as what happened is concerned."""

    def __init__(self, record: Record, shape: Shape | None, now: float) -> None:
        self.record, self.shape, self.now = record, shape, now
        self.steps = dict(record.steps)
        self.entries: list[Entry] = []
        self.launches: list[Launch] = []
        self.cancels: list[str] = []
        self.deadline: float | None = None

    # ------------------------------------------------------------------ small words

    @property
    def state(self) -> SagaState:
        return self.record.state

    def note(self, what: str, step: str | None = None, detail: str | None = None, **more: Any) -> None:
        text = detail[:MOST_TEXT] if detail else None
        self.entries.append(Entry(self.now, what, step, text, more.get("actor"), more.get("attempt")))

    def become(self, state: SagaState, **changes: Any) -> None:
        self.record = evolve(self.record, state=state, **changes)

    def change(self, name: str, **changes: Any) -> None:
        self.steps[name] = evolve(self.steps[name], **changes)

    def turn_back(self, cause: str, step: str | None = None, error: str | None = None) -> None:
        self.become(
            SagaState.COMPENSATING, cause=cause, failed_step=step, error=(error or "")[:MOST_TEXT] or self.record.error
        )
        self.note("compensating", step, cause)

    def park(self, cause: str, error: str, step: str | None = None) -> None:
        self.become(
            SagaState.PARKED, cause=cause, parked_from=self.state, error=error[:MOST_TEXT] or None, failed_step=step
        )
        self.note("parked", step, f"{cause}: {error}")

    def committed(self) -> bool:
        """Is it past its pivot, or might it be, for all that is known?"""
        return self.record.committed or (self.shape is not None and is_committed(self.shape, self.steps))

    def illegal(self, what: str, step: str | None = None, why: str = "") -> SagaStateError:
        status = self.steps[step].status.value if step is not None and step in self.steps else None
        return SagaStateError(self.record.type, self.record.id, what, self.state.value, step, status, why)

    # ------------------------------------------------------------------ what happened

    def begun(self, happening: happened.Begun) -> None:
        if self.state is SagaState.PENDING:
            self.become(SagaState.RUNNING)
            self.note("started")
        if happening.input is not None and self.record.input is None:
            self.record = evolve(self.record, input=happening.input)

    def done(self, happening: happened.Done) -> None:
        name, step = happening.step, self.steps[happening.step]
        if step.done or step.status in (StepStatus.SKIPPED, StepStatus.UNDO_SKIPPED):
            return  # told twice
        if step.undos:
            # Whoever undoes it may have found nothing yet, and has noted under the old key that this is dealt with.
            self.change(name, series=step.series + 1)
        known = {"done": True, "result": happening.result, "ended_at": self.now, "not_before": None, "error": None}
        forward = self.state in (SagaState.RUNNING, SagaState.PENDING) or (
            self.state is SagaState.PARKED and self.record.parked_from is SagaState.RUNNING
        )
        waits = (StepStatus.RUNNING, StepStatus.READY, StepStatus.UNKNOWN, StepStatus.REJECTED)
        if forward and step.status in waits:
            self.change(name, status=StepStatus.DONE, **known)
            self.note("step_done", name, attempt=step.attempts)
        elif step.status in (*waits, StepStatus.UNDONE):
            # The saga has turned back, or is over. What was done is done, and must be undone; also once more, if the
            # compensation came before the action it undoes.
            self.change(name, status=StepStatus.LATE_DONE, **known, undo_attempts=0)
            self.note("late_done", name, attempt=step.attempts)
        elif step.status is StepStatus.UNDOING:
            self.change(name, done=True, again=True, result=happening.result)
            self.note("late_done", name, attempt=step.attempts)
        else:
            self.change(name, done=True, result=happening.result)
            self.note("late_done", name, attempt=step.attempts)
        if happening.changes:
            self.record = evolve(self.record, data={**self.record.data, **happening.changes})

    def rejected(self, happening: happened.Rejected) -> None:
        if not self._under_way(happening.step):
            return
        step = self.steps[happening.step]
        if self.state is SagaState.PARKED and self.record.parked_from is SagaState.RUNNING:
            # It says so again when the saga goes on; until then nothing is decided.
            self.change(happening.step, status=StepStatus.READY, not_before=None, error=happening.error[:MOST_TEXT])
            return
        self.note("step_rejected", happening.step, happening.error, attempt=step.attempts)
        if self.state is SagaState.RUNNING and (
            self.committed_without(happening.step) or self._perhaps_past(happening.step)
        ):
            self.change(happening.step, status=StepStatus.READY, not_before=None, error=happening.error[:MOST_TEXT])
            self.park("rejected", happening.error, happening.step)
            return
        self._give_up(happening.step, happening.error)
        if self.state is SagaState.RUNNING:
            self.turn_back("rejected", happening.step, happening.error)

    def failed(self, happening: happened.Failed) -> None:
        if not self._under_way(happening.step):
            return
        name = happening.step
        self.change(name, maybe=self.steps[name].maybe or happening.maybe, error=happening.error[:MOST_TEXT])
        step = self.steps[name]
        self.note("step_failed", name, happening.error, attempt=step.attempts)
        if self.state is SagaState.PARKED:
            self.change(name, status=StepStatus.READY, not_before=None)
        elif self.state is SagaState.RUNNING and self._may_try_again(name, happening.maybe):
            self.change(name, status=StepStatus.READY, not_before=self.now + happening.delay)
        else:
            self._give_up(name, happening.error)
            if self.state is SagaState.RUNNING:
                self.turn_back("failed", name, happening.error)

    def _under_way(self, name: str) -> bool:
        status = self.steps[name].status
        if self.record.kind == "choreographed":
            return status in (StepStatus.RUNNING, StepStatus.READY) and not self.record.ended
        return status is StepStatus.RUNNING

    def _may_try_again(self, name: str, maybe: bool) -> bool:
        shape = None if self.shape is None else self.shape.by_name.get(name)
        if self.committed():
            return True
        if shape is None:
            return self.shape is None  # whoever works on it will decide
        return self.steps[name].attempts < shape.attempts and (shape.retry_unknown or not maybe)

    def committed_without(self, name: str) -> bool:
        """Would it be past its pivot even if this step were never done?"""
        if self.shape is None:
            return self.record.committed
        return any(
            step.pivot and step.name != name and self.steps[step.name].status is StepStatus.DONE
            for step in self.shape.steps
        )

    def _perhaps_past(self, name: str) -> bool:
        """A pivot that cannot be undone, now refused, of which an earlier try may have gone through: who knows?"""
        step = None if self.shape is None else self.shape.by_name[name]
        return step is not None and step.pivot and not step.undoable and self.steps[name].maybe

    def _give_up(self, name: str, error: str) -> None:
        # A rejection proves only that this try did nothing: an earlier one, of which nobody heard, may have.
        status = StepStatus.UNKNOWN if self.steps[name].maybe else StepStatus.REJECTED
        self.change(name, status=status, not_before=None, error=error[:MOST_TEXT], ended_at=self.now)

    def undone(self, happening: happened.Undone) -> None:
        name, step = happening.step, self.steps[happening.step]
        waits = [StepStatus.UNDOING, StepStatus.UNDO_FAILED]
        if self.record.kind == "choreographed":
            waits += [*TO_UNDO, StepStatus.RUNNING]
        if step.status not in waits or self.state in (SagaState.COMPLETED, SagaState.FAILED):
            return
        if happening.number is not None and happening.number <= step.undos - step.undo_attempts:
            return  # of an earlier series, and something came to light since
        if self.state is SagaState.RUNNING:  # choreographed: the participants knew before we did
            if self.committed():
                return
            self.turn_back("undone", name)
        elif self.state is SagaState.PARKED and self.record.parked_from is SagaState.RUNNING:
            if self.committed():
                return
            self.record = evolve(self.record, parked_from=SagaState.COMPENSATING)
        if happening.changes:
            self.record = evolve(self.record, data={**self.record.data, **happening.changes})
        if step.again:
            self.change(name, status=StepStatus.LATE_DONE, again=False, not_before=None, undo_attempts=0)
            return
        self.change(name, status=StepStatus.UNDONE, not_before=None, error=None)
        self.note("step_undone", name, attempt=step.undo_attempts)
        if self.state is SagaState.COMPENSATION_BLOCKED and not self._any(StepStatus.UNDO_FAILED):
            self.become(SagaState.COMPENSATING)

    def undo_failed(self, happening: happened.UndoFailed) -> None:
        name, step = happening.step, self.steps[happening.step]
        if step.status is not StepStatus.UNDOING:
            return
        shape = None if self.shape is None else self.shape.by_name.get(name)
        self.note("undo_failed", name, happening.error, attempt=step.undo_attempts)
        if happening.final or (shape is not None and step.undo_attempts >= shape.undo_attempts):
            self.change(name, status=StepStatus.UNDO_FAILED, not_before=None, error=happening.error[:MOST_TEXT])
            if self.state is SagaState.COMPENSATED:
                self.note("blocked", name, happening.error)
        else:
            self.change(name, not_before=self.now + happening.delay, error=happening.error[:MOST_TEXT])

    def taken_over(self, happening: happened.TakenOver) -> None:
        if self.state is SagaState.PENDING:
            self.begun(happened.Begun())
            return
        if self.record.kind == "choreographed":
            return  # its steps are others' work, which goes on
        lost = [name for name, step in self.steps.items() if step.status in (StepStatus.RUNNING, StepStatus.UNDOING)]
        if lost:
            self.note("taken_over", ",".join(lost))
        for name in lost:
            if self.steps[name].status is StepStatus.RUNNING:
                self.failed(happened.Failed(name, "the process that ran it is gone", 0.0, True))
            elif self.steps[name].not_before is None:
                self.undo_failed(happened.UndoFailed(name, "the process that ran it is gone"))

    def tick(self, happening: happened.Tick) -> None:
        record = self.record
        if record.deadline_at is None or self.now < record.deadline_at or record.timed_out:
            return
        if self.state not in (SagaState.RUNNING, SagaState.PENDING):
            return
        self.record = evolve(record, timed_out=True)
        if self.committed():
            self.note("timed_out", detail="past its pivot: it goes on")
        else:
            self.note("timed_out")
            self.turn_back("timed_out")

    def poisoned(self, happening: happened.Poisoned) -> None:
        if self.record.ended or self.state is SagaState.PARKED:
            return
        self.park(happening.cause, happening.error)

    def _any(self, status: StepStatus) -> bool:
        return any(step.status is status for step in self.steps.values())


FACTS: dict[type[Any], Callable[[Facts, Any], None]] = {
    happened.Begun: Facts.begun,
    happened.Done: Facts.done,
    happened.Rejected: Facts.rejected,
    happened.Failed: Facts.failed,
    happened.Undone: Facts.undone,
    happened.UndoFailed: Facts.undo_failed,
    happened.TakenOver: Facts.taken_over,
    happened.Tick: Facts.tick,
    happened.Poisoned: Facts.poisoned,
}
