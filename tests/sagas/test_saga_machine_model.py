"""The machine against a world in which anything happens: crashes, duplicates, late and lost answers, time, operators.

The world knows what really happened at the participants; the machine knows what it is told.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from everkeel.engines.sagas import TERMINAL, SagaRow, SagaState
from everkeel.errors import SagaStateError
from everkeel.sagas import happenings as happened
from everkeel.sagas.machine import Launch, Shape, StepShape, begin, decide
from everkeel.sagas.record import TO_UNDO, Record, StepStatus, decoded, encoded, evolve

R, C = SagaState.RUNNING, SagaState.COMPENSATING
EDGES = {
    (SagaState.PENDING, R), (R, SagaState.COMPLETED), (R, C), (C, SagaState.COMPENSATED),
    (R, SagaState.COMPENSATED), (R, SagaState.COMPENSATION_BLOCKED),  # through COMPENSATING, in one decision
    (SagaState.PENDING, C), (SagaState.PENDING, SagaState.COMPENSATED), (SagaState.PENDING, SagaState.COMPLETED),
    (C, SagaState.COMPENSATION_BLOCKED), (SagaState.COMPENSATION_BLOCKED, C),
    (SagaState.COMPENSATION_BLOCKED, SagaState.COMPENSATED), (SagaState.COMPENSATION_BLOCKED, SagaState.FAILED),
    (R, SagaState.PARKED), (C, SagaState.PARKED), (SagaState.PARKED, R), (SagaState.PARKED, C),
    (SagaState.PARKED, SagaState.COMPLETED), (SagaState.PARKED, SagaState.COMPENSATED),
    (SagaState.PARKED, SagaState.COMPENSATION_BLOCKED), (SagaState.PARKED, SagaState.FAILED),
    (SagaState.COMPENSATION_BLOCKED, SagaState.PARKED),
}  # fmt: skip


@st.composite
def shapes(draw):
    """Up to four steps in a line, some side by side, perhaps with a pivot."""
    number = draw(st.integers(1, 4))
    pivot = draw(st.one_of(st.none(), st.integers(0, number - 1)))
    steps, before, group = [], frozenset(), []
    for index in range(number):
        name = "abcd"[index]
        beside = bool(group) and pivot is None and draw(st.booleans())
        if not beside:
            before, group = frozenset(group), []
        group.append(name)
        past = pivot is not None and index >= pivot
        undoable = draw(st.booleans()) if past or draw(st.integers(0, 5)) == 0 else True
        skipped = draw(st.integers(0, 5)) == 0 and index != pivot
        steps.append(
            StepShape(
                name, before, undoable, index == pivot, draw(st.integers(1, 2)), draw(st.integers(1, 2)),
                draw(st.booleans()), (lambda record: False) if skipped else None,
            )
        )  # fmt: skip
    return Shape(tuple(steps), on_blocked=draw(st.sampled_from(["stop", "continue"])), result=lambda record: "result")


@dataclass
class World:
    """What is really going on."""

    shape: Shape
    data: st.DataObject
    now: float = 100.0
    record: Record = None  # type: ignore[assignment]  # set when it begins
    flying: set[Launch] = field(default_factory=set)
    ghosts: set[str] = field(default_factory=set)
    """Actions of processes that died or gave up, which may still have their effect, and report it."""
    effects: set[str] = field(default_factory=set)
    said: list[happened.Happening] = field(default_factory=list)
    excused: set[str] = field(default_factory=set)
    """Steps about which an operator has decided."""
    timeouts: int = 0

    def choose(self, options):
        return self.data.draw(st.sampled_from(sorted(options, key=repr)))

    # ------------------------------------------------------------------ telling the machine

    def tell(self, *happenings: happened.Happening) -> None:
        before = self.record
        decision = decide(before, self.shape, list(happenings), self.now)
        self.check(before, decision)
        self.record = decision.record
        again = decide(self.record, self.shape, [one for one in happenings if isinstance(one, TWICE)], self.now)
        assert [entry.what for entry in again.entries] == [], "told twice, it changes nothing"
        looked = decide(self.record, self.shape, happened.Tick(), self.now)
        assert looked.entries or looked.look_at is None or looked.look_at > self.now, "nobody looks all the time"
        for launch in decision.launches:
            if launch.step in decision.cancels and not launch.undo:
                self.tell(happened.Failed(launch.step, "never begun", 0.0, False))
            else:
                self.flying.add(launch)
        for step in decision.cancels:
            mine = [launch for launch in self.flying if launch.step == step and not launch.undo]
            for launch in mine:
                self.flying.discard(launch)
                # Interrupted: perhaps it had its effect, perhaps it will, perhaps not.
                if self.data.draw(st.booleans()):
                    self.ghosts.add(step)
                self.tell(happened.Failed(step, "interrupted", 0.0, True))

    def check(self, before: Record, decision) -> None:
        after = decision.record
        if before.state is not after.state:
            assert before.state not in TERMINAL, "final states are final"
            assert (before.state, after.state) in EDGES, (before.state, after.state)
        self.timeouts += sum(entry.what == "timed_out" for entry in decision.entries)
        assert self.timeouts <= 1
        statuses = {name: step.status for name, step in after.steps.items()}
        for launch in decision.launches:
            shape = self.shape.by_name[launch.step]
            if launch.undo:
                self.check_undo(launch, shape, after, statuses)
            else:
                assert before.state not in (*TERMINAL, SagaState.PARKED) or before.state is SagaState.PARKED
                assert all(statuses[name] in (StepStatus.DONE, StepStatus.SKIPPED) for name in shape.after)
                assert launch.attempt <= shape.attempts or after.committed
        if after.state is SagaState.COMPLETED:
            assert set(statuses.values()) <= {StepStatus.DONE, StepStatus.SKIPPED}
            assert {name for name, status in statuses.items() if status is StepStatus.DONE} <= self.effects
        if after.state is SagaState.COMPENSATED and before.state is not SagaState.COMPENSATED:
            settled = {StepStatus.READY, StepStatus.SKIPPED, StepStatus.REJECTED, StepStatus.UNDONE,
                       StepStatus.UNDO_SKIPPED}  # fmt: skip
            assert set(statuses.values()) <= settled, "compensated means that everything is"
        if after.state is SagaState.COMPENSATED and decision.resting:
            failed = StepStatus.UNDO_FAILED in statuses.values()
            assert (after.current() is not None) == failed, "what a store takes for unsettled is, and nothing else"
        under_way = {StepStatus.RUNNING, StepStatus.UNDOING, *TO_UNDO} & set(statuses.values())
        if after.state is SagaState.COMPENSATED and not under_way:
            assert decision.resting, "what is over is out of everybody's hands"
        stopped = after.state in (SagaState.PARKED, SagaState.COMPENSATION_BLOCKED)
        if not decision.resting and not stopped and not after.ended:
            alive = decision.launches or decision.cancels or decision.look_at is not None or self.flying
            assert alive, "a saga that is not over is in somebody's hands, or has a time to be looked at"

    def check_undo(self, launch, shape, after, statuses) -> None:
        assert shape.undoable
        assert launch.attempt <= shape.undo_attempts
        assert StepStatus.RUNNING not in statuses.values(), "nothing is undone while something is being done"
        later = {statuses[name] for name in self.shape.behind[launch.step]}
        waiting = {*TO_UNDO, StepStatus.UNDOING}
        if launch.attempt == 1:  # something behind it may have come to light since
            assert not later & waiting, "in reverse order"
        if self.shape.on_blocked == "stop":
            assert StepStatus.UNDO_FAILED not in later
        for step in self.shape.steps:
            assert not (step.pivot and statuses[step.name] is StepStatus.DONE), "past the pivot nothing is undone"

    # ------------------------------------------------------------------ what can happen

    def an_action_ends(self) -> None:
        launch = self.choose({launch for launch in self.flying if not launch.undo})
        self.flying.discard(launch)
        how = self.choose(["success", "lost", "rejected", "failed", "refused"])
        if how in ("success", "lost"):
            self.effects.add(launch.step)
        report = {
            "success": happened.Done(launch.step, "r", {"x": launch.attempt}),
            "lost": happened.Failed(launch.step, "reset", 1.0, True),
            "rejected": happened.Rejected(launch.step, "no"),
            "failed": happened.Failed(launch.step, "reset", 1.0, True),
            "refused": happened.Failed(launch.step, "open", 1.0, False),
        }[how]
        self.said.append(report)
        self.tell(report)

    def a_compensation_ends(self) -> None:
        launch = self.choose({launch for launch in self.flying if launch.undo})
        self.flying.discard(launch)
        if self.data.draw(st.booleans()):
            self.effects.discard(launch.step)
            self.tell(happened.Undone(launch.step, launch.number))
        else:
            self.tell(happened.UndoFailed(launch.step, "away", 1.0, self.data.draw(st.booleans())))

    def the_process_dies(self) -> None:
        for launch in sorted(self.flying, key=repr):
            if not launch.undo and self.data.draw(st.booleans()):
                self.ghosts.add(launch.step)
        self.flying.clear()
        self.tell(happened.TakenOver(), happened.Tick())

    def a_ghost_has_its_effect(self) -> None:
        step = self.choose(self.ghosts)
        self.ghosts.discard(step)
        self.effects.add(step)
        if self.record.steps[step].done and self.record.steps[step].status is StepStatus.UNDONE:
            # The same key was used twice, once by a try that is known to have worked: the participant knows the key.
            self.effects.discard(step)
            return
        self.tell(happened.Done(step, "late"))

    def an_old_report_comes_again(self) -> None:
        report = self.choose(self.said)
        if isinstance(report, happened.Done):
            self.tell(report)
        else:
            flies = any(launch.step == report.step and not launch.undo for launch in self.flying)
            if not flies:  # of a try that is under way, such a report would be news
                self.tell(report)

    def time_passes(self) -> None:
        self.now += self.choose([0.5, 1.0, 5.0, 40.0])
        self.tell(happened.Tick())

    def somebody_wants_something(self) -> None:
        step = self.choose(self.record.steps)
        order = self.choose(
            [happened.Cancel(), happened.RetryUndo(step=step), happened.SkipUndo(step=step, reason="r"),
             happened.MarkUndone(step=step, reason="r"), happened.Resume(), happened.Abandon(reason="r")]
        )  # fmt: skip
        before = self.record
        try:
            self.tell(order)
        except SagaStateError:
            assert self.record is before
            return
        if isinstance(order, happened.SkipUndo | happened.MarkUndone):
            self.excused.add(step)
        if self.record.state is SagaState.FAILED:
            assert before.state in (SagaState.PARKED, SagaState.COMPENSATION_BLOCKED)

    def options(self):
        yield self.time_passes
        yield self.the_process_dies
        yield self.somebody_wants_something
        if self.said:
            yield self.an_old_report_comes_again
        if self.ghosts:
            yield self.a_ghost_has_its_effect
        if any(not launch.undo for launch in self.flying):
            yield self.an_action_ends
            yield self.an_action_ends
        if any(launch.undo for launch in self.flying):
            yield self.a_compensation_ends

    # ------------------------------------------------------------------ until nothing is left

    def everything_goes_well_from_now_on(self) -> None:
        for _ in range(400):
            if self.ghosts:
                self.a_ghost_has_its_effect()
            elif self.flying:
                launch = min(self.flying, key=repr)
                self.flying.discard(launch)
                if launch.undo:
                    self.effects.discard(launch.step)
                    self.tell(happened.Undone(launch.step, launch.number))
                else:
                    self.effects.add(launch.step)
                    self.tell(happened.Done(launch.step, "r"))
            elif stuck := [n for n, s in self.record.steps.items() if s.status is StepStatus.UNDO_FAILED]:
                if self.record.state is SagaState.FAILED:
                    return
                self.tell(happened.RetryUndo(step=stuck[0]))
            elif self.record.state is SagaState.PARKED:
                self.tell(happened.Resume())
            elif self.record.ended and not any(s.status is StepStatus.UNDOING for s in self.record.steps.values()):
                return
            else:
                self.now += 100.0
                self.tell(happened.Tick())
        raise AssertionError("it never ends")


TWICE = (happened.Done, happened.Undone, happened.Tick)


@settings(max_examples=300, deadline=None)
@given(shapes(), st.data())
def test_whatever_happens_the_saga_ends_and_its_effects_are_all_there_or_all_undone(shape, data):
    world = World(shape, data)
    first = Record(id="s", type="order", version=1, created_at=100.0, deadline_at=130.0)
    world.record = Record(id="s", type="order", version=1)
    decision = begin(first, shape, world.now)
    world.check(first, decision)
    world.record, world.flying = decision.record, set(decision.launches)
    for _ in range(data.draw(st.integers(0, 25))):
        if world.record.state is SagaState.FAILED:
            break
        data.draw(st.sampled_from(list(world.options())))()
        assert read_again(world.record) == world.record
    world.everything_goes_well_from_now_on()
    record = world.record
    if record.state is SagaState.COMPLETED:
        done = {name for name, step in record.steps.items() if step.status is StepStatus.DONE}
        assert world.effects == done
        assert record.result == "result"
    elif record.state is SagaState.COMPENSATED:
        undoable = {step.name for step in shape.steps if step.undoable}
        assert not (world.effects & undoable) - world.excused
        assert not any(step.pivot and not step.undoable and step.name in world.effects for step in shape.steps), (
            "what cannot be undone was not turned back from"
        )
    else:
        assert record.state is SagaState.FAILED


def read_again(record: Record) -> Record:
    row = SagaRow(
        id=record.id, type=record.type, version=record.version, kind=record.kind, state=record.state,
        cause=record.cause, step=None, revision=1, correlation_id=record.correlation_id, document=encoded(record),
        timed_out=record.timed_out, owner=None, created_at=record.created_at, updated_at=0,
        deadline_at=record.deadline_at, due_at=None,
        ended_at=None, now=0,
    )  # fmt: skip
    return decoded(row)


@settings(max_examples=150, deadline=None)
@given(shapes(), st.data())
def test_choreographed_whatever_is_said_in_whatever_order_final_states_are_final_and_mean_what_they_say(shape, data):
    shape = Shape(tuple(evolve(step, when=None) for step in shape.steps), choreographed=True)
    record = begin(
        Record(id="s", type="o", version=1, kind="choreographed", created_at=0.0, deadline_at=30.0), shape, 0.0
    ).record
    now, timeouts, names = 0.0, 0, sorted(record.steps)
    for _ in range(data.draw(st.integers(0, 30))):
        name = data.draw(st.sampled_from(names))
        asked = record.steps[name].undos
        what = data.draw(
            st.sampled_from(
                [happened.Done(name), happened.Rejected(name), happened.Undone(name, asked), happened.Undone(name),
                 happened.Tick(), happened.Tick(), happened.Begun(), happened.TakenOver()]
            )
        )  # fmt: skip
        now += data.draw(st.sampled_from([0.0, 1.0, 40.0]))
        decision = decide(record, shape, what, now)
        after = {one: step.status for one, step in decision.record.steps.items()}
        if record.state is not decision.record.state:
            assert record.state not in TERMINAL
            assert (record.state, decision.record.state) in EDGES
        timeouts += sum(entry.what == "timed_out" for entry in decision.entries)
        assert timeouts <= 1
        for launch in decision.launches:
            assert launch.undo, "nobody calls the steps of a choreography"
            assert launch.number == decision.record.steps[launch.step].undos > record.steps[launch.step].undos
            if launch.attempt == 1:
                assert not {after[one] for one in shape.behind[launch.step]} & {*TO_UNDO, StepStatus.UNDOING}
        if decision.record.state is SagaState.COMPLETED:
            assert set(after.values()) == {StepStatus.DONE}
        if SagaState.COMPENSATED is decision.record.state is not record.state:
            assert not set(after.values()) & {*TO_UNDO, StepStatus.UNDOING, StepStatus.UNDO_FAILED, StepStatus.RUNNING}
        again = decide(decision.record, shape, what, now)
        if not isinstance(what, happened.Undone):  # a confirmation without a number may confirm the next one, too
            assert not again.entries, "told twice, it changes nothing"
        record = decision.record
        assert read_again(record) == record
