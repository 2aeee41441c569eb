"""Sagas without a conductor: services react to each other's events, and what they say is followed here.

Nobody calls the steps. The events that services send anyway, marked with the saga they belong to, say how far it is;
the same machine, store and deadlines as for orchestrated sagas decide when it is over, and when it must turn back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from everkeel.engines.sagas import NewSaga, SagaRow
from everkeel.errors import ConfigError, SagaConflictError
from everkeel.messaging.event import Event
from everkeel.messaging.rows import row_of
from everkeel.runtime.crash import crash_point
from everkeel.runtime.settings import Count, Duration, Seconds
from everkeel.sagas import hiding
from everkeel.sagas.definition import DEADLINE, check_compensations, check_order
from everkeel.sagas.driver import change_of
from everkeel.sagas.happenings import Begun, Done, Happening, Poisoned, Rejected, Undone
from everkeel.sagas.machine import Decision, Shape, StepShape, begin, decide
from everkeel.sagas.record import Record, decoded, encoded
from everkeel.sagas.steps import checked, is_name, names_of

if TYPE_CHECKING:
    from everkeel.messaging.consumer.consumer import Consumer
    from everkeel.sagas.orchestrator import Orchestrator

MOST_TRIES = 100


class Reaction:
    """One step of a choreography: the events by which a service says what it did.

    Args:
        name: The step's name.
        done: The type of the event that says it is done.
        rejected: The types of events by which the service says no: nothing was done.
        compensation: The type of the event that asks the service to undo it, which is sent when the saga turns back.
            None for a step past the pivot, or without effect.
        undone: The type of the event by which the service confirms that. It confirms also when there was nothing to
            undo: a step whose answer never came is asked, too.
        by: The service.
        topic: Where the compensation is published, in place of the choreography's topic.
        pivot: The point of no return.
        after: The steps it waits for, in place of the one before it; () for none.
        confirm_within: Seconds to wait for the confirmation before it is asked for again; twice as long each time, up
            to 16 times as long.
        undo_attempts: How often it is asked for before an operator is needed.
    """

    def __init__(
        self,
        name: str,
        *,
        done: str,
        rejected: str | Sequence[str] = (),
        compensation: str | None = None,
        undone: str | None = None,
        by: str = "",
        topic: str | None = None,
        pivot: bool = False,
        after: str | Sequence[str] | None = None,
        confirm_within: Seconds = 30.0,
        undo_attempts: int = 5,
    ) -> None:
        owner = f"step {name!r}"
        if not is_name(name, without=",:"):
            raise ConfigError("step", "name", "must be a printable text without commas and colons", repr(name))
        if (compensation is None) != (undone is None):
            allowed = "belong together: who is asked to undo something must say that it was"
            raise ConfigError(owner, "compensation and undone", allowed, None)
        for what, type in (("done", done), ("compensation", compensation), ("undone", undone)):
            if (type is not None or what == "done") and not is_name(type, without=""):
                raise ConfigError(owner, what, "must be the type of an event", repr(type))
        if not isinstance(pivot, bool):
            raise ConfigError(owner, "pivot", "must be True or False", repr(pivot))
        self.name, self.done, self.compensation, self.undone = name, done, compensation, undone
        self.rejected = names_of(owner, "rejected", rejected) or ()
        self.by, self.topic, self.pivot = by, topic, pivot
        self.after = names_of(owner, "after", after)
        self.confirm_within: float = checked(owner, "confirm_within", Duration(), confirm_within)
        self.undo_attempts: int = checked(owner, "undo_attempts", Count(at_least=1), undo_attempts)

    def __repr__(self) -> str:
        return f"<Reaction {self.name!r}: {self.done}>"


class Choreography:
    """A saga of services that react to each other's events.

    Args:
        name: What kind of saga it is: the `sagatype` of its events.
        *steps: Its steps, as the events say them.
        starts: The type of the event that begins one.
        version: Raise it when steps change.
        deadline: Seconds from its beginning after which it turns back. None: as long as it takes.
        topic: Where requests for compensation are published.
        source: The source of these requests.
        on_blocked: What happens when a compensation is not confirmed: "stop", or "continue" with earlier steps.
        redact: Names of fields in its events' data that nobody may see of the saga; see `Saga`.

    >>> Choreography("order", Reaction("pay", done="Paid", compensation="Refund", undone="Refunded"), starts="Placed")
    <Choreography 'order' version 1: pay>
    """

    kind: Literal["choreographed"] = "choreographed"

    def __init__(
        self,
        name: str,
        *steps: Reaction,
        starts: str,
        version: int = 1,
        deadline: Seconds | None = DEADLINE,
        topic: str = "sagas",
        source: str = "/sagas",
        on_blocked: Literal["stop", "continue"] = "stop",
        redact: Collection[str] = (),
    ) -> None:
        if not is_name(name, without="@"):
            raise ConfigError("choreography", "name", "must be a printable text without '@'", repr(name))
        owner = f"choreography {name!r}"
        if not steps or not all(isinstance(step, Reaction) for step in steps):
            raise ConfigError(owner, "steps", "must be reactions, at least one", repr(steps))
        if not is_name(starts, without=""):
            raise ConfigError(owner, "starts", "must be the type of an event", repr(starts))
        self.name, self.steps, self.starts, self.topic, self.source = name, steps, starts, topic, source
        self.version: int = checked(owner, "version", Count(at_least=1), version)
        self.deadline: float | None = None if deadline is None else checked(owner, "deadline", Duration(), deadline)
        if on_blocked not in ("stop", "continue"):
            raise ConfigError(owner, "on_blocked", "must be 'stop' or 'continue'", repr(on_blocked))
        self.on_blocked: Literal["stop", "continue"] = on_blocked
        self.redact = hiding.fields(owner, redact)
        self.after: dict[str, tuple[str, ...]] = {}
        before: tuple[str, ...] = ()
        for step in steps:
            if step.name in self.after:
                raise ConfigError(owner, f"step {step.name!r}", "is there twice: names of steps must be unique", None)
            self.after[step.name] = before if step.after is None else step.after
            before = (step.name,)
        check_order(owner, self.after)
        allowed = "has no compensation: say which event asks for it, and which confirms it, or make it the pivot"
        check_compensations(owner, self.steps, self.after, allowed)
        self.meanings: Mapping[str, tuple[str | None, str]] = self._meanings(owner)

    def _meanings(self, owner: str) -> dict[str, tuple[str | None, str]]:
        found: dict[str, tuple[str | None, str]] = {self.starts: (None, "starts")}
        for step in self.steps:
            said = [(step.done, "done"), *((one, "rejected") for one in step.rejected), (step.undone, "undone")]
            for type, meaning in said:
                if type is None:
                    continue
                if type in found:
                    allowed = f"is the event of two steps or meanings: {found[type]} and {(step.name, meaning)}"
                    raise ConfigError(owner, f"type {type!r}", allowed, None)
                found[type] = (step.name, meaning)
        return found

    @cached_property
    def by_name(self) -> Mapping[str, Reaction]:
        """Each step by its name."""
        return {step.name: step for step in self.steps}

    @cached_property
    def shape(self) -> Shape:
        """What the machine must know."""
        return Shape(
            tuple(
                StepShape(
                    step.name, frozenset(self.after[step.name]), step.compensation is not None, step.pivot,
                    undo_attempts=step.undo_attempts, confirm_within=step.confirm_within,
                )
                for step in self.steps
            ),
            choreographed=True,
            on_blocked=self.on_blocked,
        )  # fmt: skip

    def mark(self, event: Event, saga_id: str | None = None, *, cause: Event | None = None) -> Event:
        """The event with what says which saga and step it belongs to; `cause` is the event it is the answer to.

        For services: `outbox.write(order.mark(Event("StockReserved", ..., source="/stock"), cause=event), tx=tx)`.
        """
        step, meaning = self.meanings.get(event.type, (event.saga_step, ""))
        saga = saga_id or event.saga_id or (cause.saga_id if cause is not None else None)
        if saga is None and meaning == "starts":
            saga = event.correlation_id or event.id
        if saga is None:
            raise ConfigError(f"choreography {self.name!r}", "saga_id", "is needed, or the event that caused it", None)
        attributes: dict[str, Any] = {"sagaid": saga, "sagatype": self.name, **step_attributes(self, step)}
        if meaning == "undone":
            attributes["sagacompensating"] = True
        if event.correlation_id is None:
            attributes["correlationid"] = (cause.correlation_id if cause is not None else None) or saga
        if cause is not None and event.causation_id is None:
            attributes["causationid"] = cause.id
        if event.key is None:
            attributes["partitionkey"] = saga
        return event.changed(**attributes)

    def commands(self, decision: Decision) -> list[tuple[Event, str]]:
        """The requests for compensation that belong to a decision, and where they go."""
        record, requests = decision.record, []
        for launch in decision.launches:
            step = self.by_name[launch.step]
            if not launch.undo or step.compensation is None:
                continue
            data = {
                "saga": record.id,
                "step": step.name,
                "cause": record.cause,
                "result": record.steps[step.name].result,
            }
            event = Event(
                step.compensation, data, source=self.source, id=f"{record.id}:{step.name}:undo:{launch.number}",
                key=record.id, correlation_id=record.correlation_id or record.id, saga_id=record.id,
                saga_type=self.name, saga_step=step.name,
                extensions={"sagacompensating": True, "sagastepnumber": self._number(step.name)},
            )  # fmt: skip
            requests.append((event, step.topic or self.topic))
        return requests

    def _number(self, step: str) -> int:
        return [one.name for one in self.steps].index(step) + 1

    def __repr__(self) -> str:
        return f"<Choreography {self.name!r} version {self.version}: {', '.join(step.name for step in self.steps)}>"


def step_attributes(definition: Any, step: str | None) -> dict[str, Any]:
    """A step's name and its number (from 1), as events carry them."""
    names = [one.name for one in definition.steps]
    return {} if step not in names else {"sagastep": step, "sagastepnumber": names.index(step) + 1}


class Tracker:
    """Writes down what the events of choreographed sagas say."""

    def __init__(self, host: Orchestrator) -> None:
        self._host = host

    def definition_of(self, event: Event) -> Choreography | None:
        """The choreography an event belongs to; None: to none of ours."""
        known = [one for one in self._host.definitions.by_key.values() if isinstance(one, Choreography)]
        if event.saga_type is not None:
            known = [one for one in known if one.name == event.saga_type]
        fitting = [one for one in known if event.type in one.meanings]
        return max(fitting, key=lambda one: one.version) if fitting else None

    def follow(self, consumer: Consumer) -> None:
        """Have a consumer's deliveries followed: every event type that one of the choreographies knows."""
        known = [one for one in self._host.definitions.by_key.values() if isinstance(one, Choreography)]
        types = sorted({type for one in known for type in one.meanings})
        if not types:
            allowed = "has no choreographies to follow"
            raise ConfigError(f"orchestrator {self._host.name!r}", "definitions", allowed, None)

        async def follow(event: Event) -> None:
            await self.observe(event)

        consumer.on(*types)(follow)

    async def observe(self, event: Event, *, tx: Any = None) -> bool:
        """Take note of an event; False: it belongs to no saga that is known here. Told twice, it changes nothing."""
        definition = self.definition_of(event)
        if definition is None:
            return False
        step, meaning = definition.meanings[event.type]
        id = event.saga_id or (event.correlation_id or event.id if meaning == "starts" else event.correlation_id)
        if id is None:
            return False
        happening: Happening = Begun(event.data if event.is_json else None)
        if step is not None:
            makes: dict[str, Happening] = {
                "done": Done(step, event.data if event.is_json else None),
                "undone": Undone(step, _asked_by(event, id, step)),
                "rejected": Rejected(step, _why(event, definition.redact)),
            }
            happening = makes[meaning]
        for _ in range(MOST_TRIES):
            row = await self._host.store.load(id, tx=tx)
            if row is None:
                row = await self._create(definition, id, event, tx)
            if row.type != definition.name or row.kind != "choreographed":
                return False  # another saga's id: what somebody says about theirs must not move this one
            if await self._take(row, happening, tx):
                return True
        raise SagaConflictError(definition.name, id, "others change it all the time; it will be tried again")

    async def _create(self, definition: Choreography, id: str, event: Event, tx: Any) -> SagaRow:
        # Also by an event that came before the one that starts it: events overtake each other.
        starts = definition.meanings[event.type][1] == "starts"
        record = Record(
            id=id, type=definition.name, version=definition.version, kind="choreographed",
            correlation_id=event.correlation_id or id, input=event.data if starts and event.is_json else None,
            redact=definition.redact,
        )  # fmt: skip
        decision = begin(record, definition.shape, self._host.now())
        new = NewSaga(
            id=id, type=definition.name, version=definition.version, kind="choreographed", state=decision.record.state,
            document=encoded(decision.record), step=decision.record.current(),
            correlation_id=record.correlation_id, deadline=definition.deadline, due=definition.deadline,
            emit=self._host.rows(decision, ()),
        )  # fmt: skip
        row, created = await self._host.store.create(new, tx=tx)
        self._host.learn(row)
        if created:
            self._host.saved(decision, emitted=bool(new.emit))
        return row

    async def _take(self, row: SagaRow, happening: Happening, tx: Any) -> bool:
        self._host.learn(row)
        definition = self._host.definitions.get(row.type, row.version)
        record = decoded(row)
        if not isinstance(happening, Begun) and getattr(happening, "step", None) not in record.steps:
            return True  # it began with another version, which has no such step
        shape = None if definition is None else definition.shape
        told: list[Happening] = [happening]
        if shape is not None and (why := shape.differs(record)) is not None:
            shape = None
            told.append(Poisoned(why, "changed_definition"))
        decision = decide(record, shape, told, row.now)
        if not decision.entries and decision.record == record:
            return True
        commands = [] if definition is None or shape is None else definition.commands(decision)
        rows = [*self._host.rows(decision, ()), *(row_of(event, topic) for event, topic in commands)]
        due = None if decision.look_at is None else max(0.0, decision.look_at - row.now)
        if shape is None and not decision.resting:
            due = 0.0  # it is only noted: what follows, and perhaps its end, is for somebody who has the definition
        change = replace(change_of(decision, row.revision, keep=False, due=due), emit=rows)
        crash_point("saga.before_save")
        saved = await self._host.store.save(change, tx=tx)
        crash_point("saga.after_save")
        if saved is None:
            return False
        self._host.saved(decision, emitted=bool(rows))
        return True


def _asked_by(event: Event, saga: str, step: str) -> int | None:
    """Which of our requests a confirmation answers, where its service says so (`mark(..., cause=request)` does)."""
    asked, _, number = (event.causation_id or "").rpartition(":")
    return int(number) if asked == f"{saga}:{step}:undo" and number.isdecimal() else None


def _why(event: Event, redact: Collection[str]) -> str:
    data = event.data if event.is_json else None
    shown = hiding.hide(data, redact)
    reason = shown.get("reason") or shown.get("error") if isinstance(shown, dict) else None
    return f"{event.type}: {hiding.hider(redact, data)(str(reason))}" if reason else event.type
