"""Events of a key in the order of their numbers, however they arrive.

The decision is pure: told the number of an event and how far its key has come, it answers whose turn it is. What comes
early is set aside, at no cost, until its turn or until nothing has moved for the consumer's `patience`. A number that
is done is done, whether it was handled or became a dead letter: those behind it go on.
"""

from __future__ import annotations

import re
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from everkeel.engines.sequences import MOST_NUMBER, Reached
from everkeel.errors import EventError, RejectedError

if TYPE_CHECKING:
    from everkeel.engines.sequences import SequenceStore
    from everkeel.messaging.event import Event

_DIGITS = re.compile(r"[0-9]{1,40}\Z")  # padded with zeros as may be
_SOONEST, _LATEST = 0.1, 5.0
"""Seconds until something that came early is looked at again: two that were swapped are soon in order."""


class Turn(Enum):
    """What to do with an event, by its number."""

    NEXT = "next"
    """Handle it: it is its turn."""
    EARLY = "early"
    """Set it aside: some before it are missing."""
    OVERDUE = "overdue"
    """Give up on it: some before it are missing, and have been for too long."""
    LATE = "late"
    """Those behind it are done already. It was done too, or given up on; if neither, somebody must look at it."""


def turn_of(number: int, reached: Reached | None, first: int | None, patience: float) -> Turn:
    """Whose turn it is. `first` is the number a key begins with; None: with whichever comes first.

    Of those that wait, only the lowest gives up when patience is over, since that lets the others go on. They give up
    too when as much time has passed again: the lowest may never come back.

    >>> turn_of(1, None, 1, 60.0), turn_of(3, Reached(1), 1, 60.0), turn_of(1, Reached(1), 1, 60.0)
    (<Turn.NEXT: 'next'>, <Turn.EARLY: 'early'>, <Turn.LATE: 'late'>)
    """
    if reached is None:
        if first is None:
            return Turn.NEXT
        reached = Reached(first - 1)
    if number <= reached.number:
        return Turn.LATE
    if number == reached.number + 1:
        return Turn.NEXT
    lowest = reached.held is None or number <= reached.held
    return Turn.OVERDUE if reached.held_for >= patience * (1 if lowest else 2) else Turn.EARLY


def number_of(event: Event) -> int:
    """The number of an event; an `EventError` where its `sequence` is none."""
    text = event.sequence
    if text is None or not _DIGITS.match(text) or int(text) > MOST_NUMBER:
        what = f"needs a sequence, the digits of its number within its key, to be handled in sequence (got {text!r})"
        raise EventError(f"event {event.type!r}", what)
    return int(text)


def wait_for(looks: int, chance: float) -> float:
    """How long until an early one is looked at again, the `looks`-th time."""
    return min(_LATEST, _SOONEST * 2.0 ** min(looks - 1, 10)) * (0.5 + chance / 2)


class OutOfTurnError(RejectedError):
    """While it was handled, another event with its number was done: what it did must be rolled back."""

    policy_type = "consumer"

    def __str__(self) -> str:
        return f"consumer {self.policy!r}: another event with the same number was handled meanwhile"


class InSequence:
    """The numbers of one consumer."""

    def __init__(self, consumer: str, store: SequenceStore, first: int | None) -> None:
        self._consumer, self._store, self._first = consumer, store, first

    async def turn(self, event: Event, number: int, patience: float, up_for: float) -> tuple[Turn, str]:
        """Whose turn it is, and for people: what is missing. `up_for`: how long we have been here to see it come."""
        reached = await self._store.reached(self._consumer, event.source, event.key or "")
        if reached is not None and reached.held_for > up_for:  # it may have come while nobody was here
            reached = replace(reached, held_for=up_for)
        turn = turn_of(number, reached, self._first, patience)
        if turn is Turn.NEXT:
            return turn, ""
        before = (self._first or 1) - 1 if reached is None else reached.number
        if turn is Turn.EARLY and (reached is None or reached.held is None or number < reached.held):
            await self._store.hold(self._consumer, event.source, event.key or "", number, before)
        where = f"of {event.source!r}, key {event.key!r}"
        if turn is Turn.LATE:
            return turn, f"its number is {number}, and {before} {where} was reached before it came"
        return turn, f"its number is {number}, and {before + 1} {where} is missing"

    async def done(self, event: Event, number: int, tx: Any = None) -> None:
        """It is handled, in its turn; an `OutOfTurnError` where it was not. A replay may be behind its turn."""
        if not await self._advance(event, number, skip=False, tx=tx) and not event.replay_epoch:
            raise OutOfTurnError(self._consumer, None)

    async def tried(self, event: Event) -> None:
        """It was its turn, and it comes again: those that wait for it do not wait for something that is missing."""
        await self._store.tried(self._consumer, event.source, event.key or "")

    async def skip(self, event: Event, number: int, tx: Any = None) -> None:
        """Nothing need wait for it any more."""
        await self._advance(event, number, skip=True, tx=tx)

    async def _advance(self, event: Event, number: int, *, skip: bool, tx: Any) -> bool:
        return await self._store.advance(
            self._consumer, event.source, event.key or "", number, skip=skip, tx=tx
        )  # fmt: skip
