"""What listeners, counters and other services are told about a saga: all of it comes from its timeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from everkeel import events
from everkeel.messaging.event import Event
from everkeel.sagas.record import Entry, Record

COUNTED = {
    "started": "started", "completed": "completed", "compensated": "compensated", "timed_out": "timed_out",
    "blocked": "blocked", "parked": "parked", "failed": "failed", "compensating": "compensating",
    "step_done": "steps_done", "late_done": "late", "step_rejected": "rejected", "step_failed": "step_failures",
    "step_undone": "steps_undone", "undo_failed": "undo_failures", "taken_over": "taken_over",
}  # fmt: skip
"""The lines that are counted, and as what."""

ANNOUNCED = frozenset({"started", "completed", "compensating", "compensated", "timed_out", "blocked", "parked",
                       "failed", "step_done", "late_done", "step_rejected", "step_undone"})  # fmt: skip


def event_of(record: Record, entry: Entry) -> events.Event | None:
    """The event that a line stands for; None for lines nobody is told about."""
    about: dict[str, Any] = {"policy": record.type, "policy_type": "saga", "saga_id": record.id}
    step, attempt, detail = entry.step or "", entry.attempt or 0, entry.detail or ""
    # Not where its timeline begins: of a long one the first lines are gone.
    began = next((line.at for line in record.timeline if line.what == "started"), record.created_at or entry.at)
    match entry.what:
        case "started":
            return events.SagaStarted(**about)
        case "step_done" | "late_done":
            late, duration = entry.what == "late_done", _since(record, "step_started", entry)
            return events.StepCompleted(**about, step=step, attempt=attempt, late=late, duration=duration)
        case "step_rejected":
            return events.StepRejected(**about, step=step, reason=detail)
        case "timed_out":
            return events.SagaTimedOut(**about, compensating=not detail)
        case "compensating":
            return events.Compensating(**about, cause=detail, step=entry.step)
        case "step_undone":
            duration = _since(record, "undoing", entry)
            return events.StepUndone(**about, step=step, attempt=attempt, duration=duration)
        case "completed":
            return events.SagaCompleted(**about, duration=entry.at - began)
        case "compensated":
            return events.SagaCompensated(**about, cause=record.cause or "", duration=entry.at - began)
        case "blocked":
            return events.CompensationBlocked(**about, step=step, reason=detail)
        case "parked":
            return events.SagaParked(**about, cause=record.cause or "", reason=detail)
        case "failed":
            return events.SagaFailed(**about, actor=entry.actor or "", reason=detail)
        case _:
            return None


def _since(record: Record, what: str, entry: Entry) -> float | None:
    """Seconds from the first such line about the same step; None where there is none any more."""
    began = next((line.at for line in record.timeline if (line.what, line.step) == (what, entry.step)), None)
    return None if began is None else entry.at - began


def announcements(record: Record, entries: Sequence[Entry], source: str) -> list[Event]:
    """What other services are told over the outbox."""
    said = []
    for entry in entries:
        if entry.what in ANNOUNCED:
            number = sum(line.what == entry.what and line.step == entry.step for line in record.timeline)
            data = {"state": record.state, "cause": record.cause, "step": entry.step, "detail": entry.detail}
            said.append(
                Event(
                    f"saga.{entry.what}", data, source=source, key=record.id, saga_id=record.id, saga_type=record.type,
                    id=f"{record.id}:{entry.what}:{entry.step or ''}:{number}", saga_step=entry.step or None,
                    correlation_id=record.correlation_id or record.id,
                )
            )  # fmt: skip
    return said
