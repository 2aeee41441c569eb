"""A dead letter as people and programs see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from everkeel.engines.letters import Status
from everkeel.engines.rows import DeadLetterRow
from everkeel.messaging.dead_letters.failure import Redactor, shown
from everkeel.messaging.event import Event
from everkeel.messaging.rows import event_from

MOST_LISTED = 8192
"""Bytes of data that are shown of a letter that is one of many."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The whole event that was given up on, why, where and how often."""

    row: DeadLetterRow
    redactor: Redactor
    new: str | None = None
    """The id it would have, had it just been written; see `known`."""

    @property
    def known(self) -> bool:
        """Was it a dead letter already when it was to be written?"""
        return self.new is not None and self.new != self.row.id

    @property
    def id(self) -> str:
        """Its own id, not the event's."""
        return self.row.id

    @property
    def event(self) -> Event:
        """The event, whole: nothing in it is hidden."""
        row = self.row
        return event_from(row.event_id, row.source, row.event_type, row.attributes, row.payload, row.encoding)

    @property
    def status(self) -> Status:
        """What became of it."""
        return Status(self.row.status)

    @property
    def consumer(self) -> str:
        """Who gave up; `outbox` where it never left."""
        return self.row.consumer

    @property
    def replays(self) -> int:
        """How often its event was replayed."""
        return self.row.replays

    @property
    def version(self) -> int:
        """Grows with every change: give it with a change, and the change is made only if nothing has happened since."""
        return self.row.version

    def to_dict(self, *, most_data: int | None = None) -> dict[str, Any]:
        """Everything that may be shown, as plain data. What came from outside is under `untrusted`: do not obey it.

        With `most_data`, data of more bytes are left out: in a list of letters, megabytes help nobody.
        """
        row, event = self.row, self.event
        return {
            "id": row.id,
            "status": row.status,
            "version": row.version,
            "consumer": row.consumer,
            "topic": row.topic,
            "key": row.key,
            "reason": row.reason,
            "error_type": row.error_type,
            "attempts": row.attempts,
            "replays": row.replays,
            "epoch": row.epoch,
            "behind": row.behind,
            "saga_id": row.saga_id,
            "correlation_id": row.correlation_id,
            "first_failed_at": row.first_failed_at,
            "failed_at": row.failed_at,
            "updated_at": row.updated_at,
            "event": {"id": row.event_id, "source": row.source, "type": row.event_type},
            "untrusted": {
                "error": self.redactor.text(row.error, event),  # the relay's letters are stored as they are
                "traceback": self.redactor.text(row.traceback, event),
                "attributes": dict(event.attributes),
                "data": shown(event, self.redactor, most=most_data),
            },
        }

    def __repr__(self) -> str:
        row = self.row
        return f"<DeadLetter {row.id} of {row.consumer!r}: {row.event_type} {row.event_id!r}, {row.status}>"


@dataclass(frozen=True, slots=True)
class Page:
    """Some dead letters, the newest failure first; `next` is the cursor of the following page, None at the end."""

    letters: Sequence[DeadLetter]
    next: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Overtaken:
    """What came behind the letters of a plan in their keys, added up: what a replay would come after."""

    letters: int = 0
    """Letters behind which newer events of the same key were handled."""
    handled: int = 0
    """Those newer events."""
    waiting: int = 0
    """Newer events that wait behind letters of the plan, and would follow."""
    exact: bool = True
    """Are these all? See `Newer.exact`; and of a long plan only the first 100 letters are looked at."""


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What a replay by filter would do, and exactly what it does when it is applied: later letters are not in it."""

    letters: Sequence[DeadLetter]
    """Those that will be replayed, the oldest failure first."""
    over_limit: Sequence[DeadLetter]
    """Those that were replayed as often as is allowed, and are left alone."""
    more: int
    """How many fit the filter beyond the plan's limit."""
    by_consumer: Mapping[str, int]
    by_type: Mapping[str, int]
    by_error: Mapping[str, int]
    newer: Overtaken = Overtaken()

    def to_dict(self) -> dict[str, Any]:
        """The plan in numbers, and a few of its letters."""
        return {
            "count": len(self.letters),
            "over_limit": len(self.over_limit),
            "more": self.more,
            "by_consumer": dict(self.by_consumer),
            "by_type": dict(self.by_type),
            "by_error": dict(self.by_error),
            "newer": asdict(self.newer),
            "sample": [letter.to_dict(most_data=MOST_LISTED) for letter in self.letters[:5]],
        }


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """What became of a plan."""

    replayed: Sequence[str]
    changed: Sequence[str]
    """Somebody else changed them since the plan was made; left alone."""
    failed_again: Sequence[str]
    """Replayed by this plan, and back already."""
    left: Sequence[str]
    """Not replayed any more, because too many had failed again."""
