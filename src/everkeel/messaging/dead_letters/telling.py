"""What is told of dead letters to whoever listens; nothing is made where nobody does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from everkeel.engines.letters import Change, Status
from everkeel.engines.rows import DeadLetterRow
from everkeel.runtime import events as hub

TYPE = "dead_letters"


def replayed(row: DeadLetterRow, change: Change, epoch: int, *, edited: bool = False) -> None:
    """Its event is on its way again; `row` is the letter as it was before."""
    if hub.everywhere:
        from everkeel.events import Replayed

        told = Replayed(
            policy=row.consumer, policy_type=TYPE, letter=row.id, event_id=row.event_id, event_type=row.event_type,
            actor=change.actor, epoch=epoch, edited=edited, actor_kind=change.kind, before=row.status,
        )  # fmt: skip
        hub.tell(told, ())


def discarded(row: DeadLetterRow, change: Change) -> None:
    """Somebody gave up on it."""
    if hub.everywhere:
        from everkeel.events import Discarded

        told = Discarded(
            policy=row.consumer, policy_type=TYPE, letter=row.id, event_id=row.event_id, event_type=row.event_type,
            actor=change.actor, reason=change.reason, actor_kind=change.kind, before=row.status,
        )  # fmt: skip
        hub.tell(told, ())


def reopened(row: DeadLetterRow, change: Change) -> None:
    """It waits again."""
    if hub.everywhere:
        from everkeel.events import Reopened

        told = Reopened(
            policy=row.consumer, policy_type=TYPE, letter=row.id, event_id=row.event_id, event_type=row.event_type,
            actor=change.actor, reason=change.reason, actor_kind=change.kind,
        )  # fmt: skip
        hub.tell(told, ())


def resolved(consumer: str, event_id: str, event_type: str, settled: Sequence[Status]) -> None:
    """Its event was handled after all."""
    if settled and hub.everywhere:
        from everkeel.events import Resolved

        for before, letters in Counter(settled).items():
            told = Resolved(
                policy=consumer, policy_type=TYPE, letters=letters, event_id=event_id, event_type=event_type,
                before=before.value,
            )  # fmt: skip
            hub.tell(told, ())
