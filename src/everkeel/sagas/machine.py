"""The saga's state machine: told a record, the definition's shape and what happened, it answers the next record and
what to do now. It knows no clock, no store and no network.

    PENDING -> RUNNING -> COMPLETED
    RUNNING -> COMPENSATING                  a step rejected or given up on, its time over, cancelled
    COMPENSATING -> COMPENSATED              every needed step confirmed as undone
    COMPENSATING <-> COMPENSATION_BLOCKED    a compensation failed for good; an operator retries, skips or marks it
    RUNNING <-> PARKED, COMPENSATING <-> PARKED
    PARKED, COMPENSATION_BLOCKED -> FAILED   an operator gives up

    step: READY -> RUNNING -> DONE | REJECTED | UNKNOWN | LATE_DONE;  READY -> SKIPPED
          DONE | UNKNOWN | LATE_DONE -> UNDOING -> UNDONE | UNDO_FAILED | UNDO_SKIPPED
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from everkeel.engines.sagas import SagaState
from everkeel.errors import SagaStateError
from everkeel.sagas import happenings as happened
from everkeel.sagas.happenings import Happening
from everkeel.sagas.record import (
    MOST_ENTRIES,
    MOST_TEXT,
    PASSED,
    TO_UNDO,
    Entry,
    Record,
    StepRecord,
    StepStatus,
    evolve,
    written,
)


@dataclass(frozen=True, slots=True)
class StepShape:
    """What the machine must know about a step."""

    name: str
    after: frozenset[str] = frozenset()
    """The steps that must be done (or skipped) before it begins."""
    undoable: bool = True
    """It has a compensation. Without one, there is nothing to undo."""
    pivot: bool = False
    attempts: int = 3
    undo_attempts: int = 5
    retry_unknown: bool = True
    """Try again, with the same key, when nobody knows whether a try had its effect."""
    when: Callable[[Record], bool] | None = None
    confirm_within: float = 30.0
    """Choreographed: how long to wait for the confirmation of a compensation before it is asked for again."""


@dataclass(frozen=True)
class Shape:
    """What the machine must know about a definition."""

    steps: tuple[StepShape, ...]
    choreographed: bool = False
    on_blocked: Literal["stop", "continue"] = "stop"
    result: Callable[[Record], Any] | None = None

    @cached_property
    def by_name(self) -> Mapping[str, StepShape]:
        """Each step by its name."""
        return {step.name: step for step in self.steps}

    @cached_property
    def behind(self) -> Mapping[str, frozenset[str]]:
        """The steps that come after each, directly or not: they are undone before it."""
        found: dict[str, frozenset[str]] = {}

        def collect(name: str) -> frozenset[str]:
            if name not in found:
                direct = [step.name for step in self.steps if name in step.after]
                found[name] = frozenset(direct).union(*(collect(one) for one in direct))
            return found[name]

        return {step.name: collect(step.name) for step in self.steps}


@dataclass(frozen=True, slots=True)
class Launch:
    """An action or a compensation to be started now."""

    step: str
    undo: bool
    attempt: int
    number: int = 0
    """Of a compensation: how many there were of this step, this one included."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The next record and what to do, once it is saved."""

    record: Record
    launches: tuple[Launch, ...] = ()
    cancels: tuple[str, ...] = ()
    """Steps whose actions are to be interrupted: nobody wants their results any more."""
    entries: tuple[Entry, ...] = ()
    """What is new in the timeline."""
    look_at: float | None = None
    """When something must be decided even if nothing happens."""
    resting: bool = False
    """Nothing is under way and nothing is waited for: until somebody asks, there is nothing to do."""


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


class _Turn:
    """One decision under way."""

    def __init__(self, record: Record, shape: Shape | None, now: float) -> None:
        self.record, self.shape, self.now = record, shape, now
        self.steps = dict(record.steps)
        self.entries: list[Entry] = []
        self.launches: list[Launch] = []
        self.cancels: list[str] = []

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
        return self.record.committed or (self.shape is not None and _is_committed(self.shape, self.steps))

    def illegal(self, what: str, step: str | None = None, why: str = "") -> SagaStateError:
        status = self.steps[step].status.value if step is not None and step in self.steps else None
        return SagaStateError(self.record.type, self.record.id, what, self.state.value, step, status, why)

    # ------------------------------------------------------------------ what happened

    def take(self, happening: Happening) -> None:
        step = getattr(happening, "step", None)
        if step is not None and step not in self.steps:
            raise self.illegal(_word(happening), step, "there is no such step")
        if isinstance(happening, happened.Order):
            _ORDERS[type(happening)](self, happening)
        else:
            _FACTS[type(happening)](self, happening)

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

    # ------------------------------------------------------------------ what somebody wants

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
        for name, step in self.steps.items():
            if step.status is StepStatus.READY:
                self.change(name, attempts=0, not_before=None)

    def abandon(self, order: happened.Abandon) -> None:
        if self.state not in (SagaState.PARKED, SagaState.COMPENSATION_BLOCKED):
            raise self.illegal("fail", why="only a parked or blocked saga can be given up")
        self._needs_reason(order, "fail")
        self.note("failed", detail=order.reason, actor=order.actor)
        self.become(SagaState.FAILED, cause="operator", error=order.reason[:MOST_TEXT], parked_from=None)

    # ------------------------------------------------------------------ what follows

    def advance(self, shape: Shape) -> None:
        if self.state is SagaState.RUNNING:
            self._forward(shape)
        if self.state in (SagaState.COMPENSATING, SagaState.COMPENSATED):
            self._back(shape)
        if not self.record.ended and not self.record.committed and _is_committed(shape, self.steps):
            self.record = evolve(self.record, committed=True)
        elif self.record.committed and not _is_committed(shape, self.steps):
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
        until = self.now + step.confirm_within if shape.choreographed else None
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

    def _any(self, status: StepStatus) -> bool:
        return any(step.status is status for step in self.steps.values())

    # ------------------------------------------------------------------ the answer

    def decision(self) -> Decision:
        before = self.record.timeline
        timeline, text = (*before, *self.entries)[-MOST_ENTRIES:], ""
        if self.record.written and len(timeline) == len(before) + len(self.entries):
            text = ",".join([self.record.written, written(self.entries)]) if self.entries else self.record.written
        record = evolve(self.record, steps=self.steps, timeline=timeline, written=text or written(timeline))
        moments = [step.not_before for step in self.steps.values() if step.not_before is not None]
        if record.state is SagaState.RUNNING and record.deadline_at is not None and not record.timed_out:
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
        return Decision(record, tuple(self.launches), tuple(self.cancels), tuple(self.entries), look_at, resting)


def _is_committed(shape: Shape, steps: Mapping[str, StepRecord]) -> bool:
    """Past its pivot; or at a pivot that cannot be undone and may have been done."""
    return any(
        step.pivot
        and (
            steps[step.name].status is StepStatus.DONE
            or (
                not step.undoable
                and (
                    steps[step.name].status is StepStatus.RUNNING
                    or (steps[step.name].maybe and steps[step.name].status is StepStatus.READY)
                )
            )
        )
        for step in shape.steps
    )


def _word(happening: object) -> str:
    words = {"SkipUndo": "skip", "RetryUndo": "retry", "MarkUndone": "mark_done", "Abandon": "fail"}
    name = type(happening).__name__
    return words.get(name, name.lower())


_FACTS: dict[type[Any], Callable[[_Turn, Any], None]] = {
    happened.Begun: _Turn.begun,
    happened.Done: _Turn.done,
    happened.Rejected: _Turn.rejected,
    happened.Failed: _Turn.failed,
    happened.Undone: _Turn.undone,
    happened.UndoFailed: _Turn.undo_failed,
    happened.TakenOver: _Turn.taken_over,
    happened.Tick: _Turn.tick,
    happened.Poisoned: _Turn.poisoned,
}
_ORDERS: dict[type[Any], Callable[[_Turn, Any], None]] = {
    happened.Cancel: _Turn.cancel,
    happened.RetryUndo: _Turn.retry_undo,
    happened.SkipUndo: _Turn.skip_undo,
    happened.MarkUndone: _Turn.mark_undone,
    happened.Resume: _Turn.resume,
    happened.Abandon: _Turn.abandon,
}
