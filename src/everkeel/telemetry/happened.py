"""What happened to events and sagas in this process, counted: numbers that an exporter reads when it scrapes."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import TypeAlias

from everkeel import events
from everkeel.runtime.events import subscribe
from everkeel.telemetry.names import Measurement, identity

Counted: TypeAlias = tuple[str, str, str, tuple[tuple[str, str], ...]]
"""A metric, the name and the type of what it is about, and its own attributes."""

HEARD: tuple[type[events.Event], ...] = (
    events.EventWritten, events.EventDelivered, events.DeliveryFailed, events.LeaseLost, events.DuplicateSuppressed,
    events.DeadLettered, events.Replayed, events.Resolved, events.Reopened, events.Discarded,
    events.SagaStarted, events.SagaCompleted, events.SagaCompensated, events.SagaTimedOut, events.SagaParked,
    events.SagaFailed,
    events.Compensating, events.CompensationBlocked, events.StepCompleted, events.StepRejected, events.StepUndone,
)  # fmt: skip


class EventCounts:
    """Counts from when it is made until it is closed."""

    def __init__(self) -> None:
        self._counts: Counter[Counted] = Counter()
        self._lock = threading.Lock()
        self._subscription = subscribe(self._hear, *HEARD)

    def close(self) -> None:
        """Hear no more."""
        self._subscription.cancel()

    def _hear(self, event: events.Event) -> None:
        for one in counted(event):
            with self._lock:
                self._counts[one] += 1

    def measure(self) -> Iterator[Measurement]:
        """All counts."""
        with self._lock:
            counts = list(self._counts.items())
        for (metric, name, type, own), count in counts:
            yield Measurement(metric, count, {**identity(name, type), **dict(own)})


def counted(event: events.Event) -> Iterator[Counted]:
    """What an event counts as. Reasons that people write are left out: there may be millions."""
    name = event.policy or ""
    match event:
        case events.EventWritten():
            yield _one("everkeel.outbox.written", name, "outbox")
        case events.EventDelivered():
            yield _one("everkeel.outbox.attempts", name, "outbox", result="delivered")
        case events.DeliveryFailed():
            yield _one("everkeel.outbox.attempts", name, "outbox", result="failed")
        case events.LeaseLost():
            yield _one("everkeel.outbox.lease_lost", name, "outbox")
        case events.DuplicateSuppressed():
            yield _one("everkeel.inbox.duplicates", name, "consumer")
        case events.DeadLettered():
            if event.policy_type == "outbox":
                yield _one("everkeel.outbox.attempts", name, "outbox", result="dead_lettered")
                name = "outbox"  # as the store calls the consumer of its letters, whatever the outbox is called
            to = "parked" if event.reason == "parked" else "pending"
            yield _letter(name, "", to, "auto")
            if event.epoch:
                yield _letter(name, "replayed", "superseded", "auto")
        case events.Replayed():
            yield _letter(name, event.before, "replayed", event.actor_kind)
        case events.Resolved():
            yield from [_letter(name, event.before, "resolved", "auto")] * event.letters
        case events.Reopened():
            yield _letter(name, "replayed", "pending", event.actor_kind)
        case events.Discarded():
            yield _letter(name, event.before, "discarded", event.actor_kind)
        case _ if event.policy_type == "saga":
            yield from _of_a_saga(event, name)


def _of_a_saga(event: events.Event, name: str) -> Iterator[Counted]:
    match event:
        case events.SagaStarted():
            yield _moved(name, "running")
        case events.SagaCompleted():
            yield _moved(name, "completed")
        case events.Compensating():
            yield _moved(name, "compensating", event.cause)
        case events.SagaCompensated():
            yield _moved(name, "compensated", event.cause)
        case events.SagaParked():
            yield _moved(name, "parked", event.cause)
        case events.SagaFailed():
            yield _moved(name, "failed", "operator")
        case events.SagaTimedOut():
            yield _one("everkeel.saga.timed_out", name, "saga")
        case events.CompensationBlocked():
            yield _moved(name, "compensation_blocked")
            yield _one("everkeel.saga.steps", name, "saga", step=event.step, result="undo_failed")
        case events.StepCompleted():
            result = "late" if event.late else "completed"
            yield _one("everkeel.saga.steps", name, "saga", step=event.step, result=result)
        case events.StepRejected():
            yield _one("everkeel.saga.steps", name, "saga", step=event.step, result="rejected")
        case events.StepUndone():
            yield _one("everkeel.saga.steps", name, "saga", step=event.step, result="undone")


def _letter(consumer: str, before: str, to: str, actor_kind: str) -> Counted:
    own = {"from": before, "to": to, "actor_kind": actor_kind}
    return _one("everkeel.dlq.transitions", consumer, "dead_letters", **own)


def _moved(type: str, to: str, cause: str = "") -> Counted:
    return _one("everkeel.saga.transitions", type, "saga", to=to, cause=cause)


def _one(metric: str, name: str, type: str, **own: str) -> Counted:
    return metric, name, type, tuple(own.items())
