"""The saga's state machine: told a record, the definition's shape and what happened, it answers the next record and
what to do now. It knows no clock, no store and no network.

    PENDING -> RUNNING -> COMPLETED
    RUNNING -> COMPENSATING                  a step rejected or given up on, its time over, cancelled
    COMPENSATING -> COMPENSATED              every needed step confirmed as undone
    COMPENSATING <-> COMPENSATION_BLOCKED    a compensation failed for good; an operator retries, skips or marks it
    RUNNING <-> PARKED, COMPENSATING <-> PARKED
    PARKED, COMPENSATION_BLOCKED -> FAILED   an operator gives up

A step that is done after the saga was COMPENSATED is undone all the same. If that fails for good the saga stays where
it is, with that step UNDO_FAILED, until an operator retries, skips or marks it.

    step: READY -> RUNNING -> DONE | REJECTED | UNKNOWN | LATE_DONE;  READY -> SKIPPED
          DONE | UNKNOWN | LATE_DONE -> UNDOING -> UNDONE | UNDO_FAILED | UNDO_SKIPPED
"""

from __future__ import annotations

from collections.abc import Sequence

from everkeel.engines.sagas import SagaState
from everkeel.errors import SagaStateError
from everkeel.sagas import happenings as happened
from everkeel.sagas.facts import FACTS
from everkeel.sagas.happenings import Happening
from everkeel.sagas.hiding import without_secrets
from everkeel.sagas.orders import ORDERS, Orders
from everkeel.sagas.record import MOST_ENTRIES, PASSED, TO_UNDO, Record, StepRecord, StepStatus, evolve, written
from everkeel.sagas.shape import Decision, Launch, Shape, StepShape, is_committed

__all__ = ["Decision", "Launch", "Shape", "StepShape", "begin", "decide"]

MOST_DOUBLINGS = 4
"""How often the time to wait for a confirmation doubles."""


def begin(record: Record, shape: Shape, now: float) -> Decision:
    """The first decision about a new record."""
    steps = {step.name: StepRecord() for step in shape.steps}
    return decide(evolve(record, steps=steps), shape, happened.Begun(), now)


def decide(
    record: Record,
    shape: Shape | None,
    happening: Happening | Sequence[Happening],
    now: float,
    *,
    refused: list[tuple[Happening, SagaStateError]] | None = None,
) -> Decision:
    """Take what happened, and answer what follows.

    Without a shape what happened is only noted: for those who may say something about a saga but do not work on it.
    What cannot be done from where the saga is raises a `SagaStateError`, or is put into `refused` where there is one.
    """
    turn = _Turn(record, shape, now)
    for one in happening if isinstance(happening, Sequence) else (happening,):
        try:
            turn.take(one)
        except SagaStateError as error:
            if refused is None:
                raise
            refused.append((one, error))
    if shape is not None:
        turn.advance(shape)
    return turn.decision()


class _Turn(Orders):
    """One decision under way."""

    def take(self, happening: Happening) -> None:
        if self.record.redact:
            happening = without_secrets(happening, self.record)
        step = getattr(happening, "step", None)
        if step is not None and step not in self.steps:
            raise self.illegal(happened.word_of(happening), step, "there is no such step")
        if isinstance(happening, happened.Order):
            ORDERS[type(happening)](self, happening)
        else:
            FACTS[type(happening)](self, happening)

    # ------------------------------------------------------------------ what follows

    def advance(self, shape: Shape) -> None:
        if self.state is SagaState.RUNNING:
            self._forward(shape)
        if self.state in (SagaState.COMPENSATING, SagaState.COMPENSATED):
            self._back(shape)
        if not self.record.ended and not self.record.committed and is_committed(shape, self.steps):
            self.record = evolve(self.record, committed=True)
        elif self.record.committed and not is_committed(shape, self.steps):
            self.record = evolve(self.record, committed=False)  # the pivot was tried, and said no

    def _forward(self, shape: Shape) -> None:
        moved = True
        while moved:  # a step that is skipped lets the next ones begin
            moved = False
            for step in shape.steps:
                mine = self.steps[step.name]
                if mine.status is not StepStatus.READY or not all(
                    self.steps[name].status in PASSED for name in step.after
                ):
                    continue
                if mine.not_before is not None and mine.not_before > self.now:
                    continue
                if step.when is not None and mine.attempts == 0 and not step.when(self._now_known()):
                    self.change(step.name, status=StepStatus.SKIPPED, ended_at=self.now)
                    self.note("step_skipped", step.name)
                    moved = True
                    continue
                attempt = mine.attempts + 1
                self.change(
                    step.name, status=StepStatus.RUNNING, attempts=attempt, not_before=None,
                    started_at=mine.started_at or self.now,
                )  # fmt: skip
                if not shape.choreographed:
                    self.note("step_started", step.name, attempt=attempt)
                    self.launches.append(Launch(step.name, False, attempt))
        if all(step.status in PASSED for step in self.steps.values()):
            result = None if shape.result is None else shape.result(self._now_known())
            self.become(SagaState.COMPLETED, result=result)
            self.note("completed")

    def _now_known(self) -> Record:
        return evolve(self.record, steps=dict(self.steps))

    def _back(self, shape: Shape) -> None:
        running = [name for name, step in self.steps.items() if step.status is StepStatus.RUNNING]
        if shape.choreographed:
            for name in running:  # nobody can be interrupted, and nobody will say that it was not done
                self.change(name, status=StepStatus.UNKNOWN)
        elif running:
            self.cancels.extend(running)
            return  # what is under way ends first, so that nothing is undone while it is being done
        for name, mine in self.steps.items():
            if mine.status is StepStatus.READY and mine.maybe:  # it waited for another try; the last may have worked
                self.change(name, status=StepStatus.UNKNOWN, not_before=None)
            elif mine.status is StepStatus.READY and mine.not_before is not None:  # there will be no other try
                self.change(name, not_before=None)
        for step in reversed(shape.steps):
            mine = self.steps[step.name]
            if mine.status in TO_UNDO and not step.undoable and self._undone_behind(shape, step.name):
                self.change(step.name, status=StepStatus.UNDONE, not_before=None)
        if shape.choreographed:
            for name, mine in list(self.steps.items()):
                if mine.status is StepStatus.UNDOING and self._due(mine):
                    self.undo_failed(happened.UndoFailed(name, "no confirmation came in time"))
        blocked = shape.on_blocked == "stop" and self._any(StepStatus.UNDO_FAILED)
        if not blocked or self.state is SagaState.COMPENSATED:
            for step in reversed(shape.steps):
                self._undo(shape, step)
        if self.state is SagaState.COMPENSATED:
            return
        left = [name for name, step in self.steps.items() if step.status in (*TO_UNDO, StepStatus.UNDOING)]
        if self._any(StepStatus.UNDO_FAILED) and (blocked or not left or not self._can_go_on(shape)):
            failed = ",".join(name for name, step in self.steps.items() if step.status is StepStatus.UNDO_FAILED)
            self.become(SagaState.COMPENSATION_BLOCKED)
            self.note("blocked", failed, self.steps[failed.split(",")[0]].error)
        elif not left:
            self.become(SagaState.COMPENSATED)
            self.note("compensated")

    def _undo(self, shape: Shape, step: StepShape) -> None:
        mine = self.steps[step.name]
        fresh = mine.status in TO_UNDO and self._undone_behind(shape, step.name)
        again = mine.status is StepStatus.UNDOING and self._due(mine)
        if not fresh and not again:
            return
        attempt = mine.undo_attempts + 1
        # Each time twice as long: who is late because there is much to do must not be given more and more of it.
        patience = step.confirm_within * 2 ** min(attempt - 1, MOST_DOUBLINGS)
        until = self.now + patience if shape.choreographed else None
        self.change(step.name, status=StepStatus.UNDOING, undo_attempts=attempt, undos=mine.undos + 1, not_before=until)
        self.note("undoing", step.name, attempt=attempt)
        self.launches.append(Launch(step.name, True, attempt, mine.undos + 1))

    def _due(self, step: StepRecord) -> bool:
        return step.not_before is not None and step.not_before <= self.now

    def _undone_behind(self, shape: Shape, name: str) -> bool:
        """Is everything that came after this step undone? With `continue`, what cannot be undone stops nobody."""
        waiting = {*TO_UNDO, StepStatus.UNDOING}
        if shape.on_blocked == "stop":
            waiting.add(StepStatus.UNDO_FAILED)
        return not any(self.steps[other].status in waiting for other in shape.behind[name])

    def _can_go_on(self, shape: Shape) -> bool:
        return any(
            mine.status is StepStatus.UNDOING or (mine.status in TO_UNDO and self._undone_behind(shape, name))
            for name, mine in self.steps.items()
        )

    # ------------------------------------------------------------------ the answer

    def decision(self) -> Decision:
        before = self.record.timeline
        timeline, text = (*before, *self.entries)[-MOST_ENTRIES:], ""
        if self.record.written and len(timeline) == len(before) + len(self.entries):
            text = ",".join([self.record.written, written(self.entries)]) if self.entries else self.record.written
        record = evolve(self.record, steps=self.steps, timeline=timeline, written=text or written(timeline))
        forward = record.state is SagaState.RUNNING
        moments = [
            step.not_before
            for step in self.steps.values()
            if step.not_before is not None and (forward or step.status is StepStatus.UNDOING)
        ]
        if forward and record.deadline_at is not None and not record.timed_out:
            moments.append(record.deadline_at)
        busy = any(
            step.status is StepStatus.RUNNING
            or (step.status is StepStatus.UNDOING and step.not_before is None)
            or (record.state is SagaState.COMPENSATED and step.status in TO_UNDO)
            for step in self.steps.values()
        )
        stuck = record.state in (SagaState.PARKED, SagaState.COMPENSATION_BLOCKED, SagaState.FAILED)
        resting = stuck and not busy if stuck else record.ended and not busy and not moments
        look_at = min(moments) if moments and not stuck else None
        return Decision(
            record, tuple(self.launches), tuple(self.cancels), tuple(self.entries), look_at, self.deadline, resting
        )
