"""What operators, the control plane and the command line do with dead letters.

Every change is a compare-and-set with a line in the audit trail, and a replay is a change of status and a row of the
outbox in one transaction: two operators cannot both replay a letter, and a crash leaves it replayed or not, nothing
in between.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, get_args

from everkeel.engines.letters import (
    OUTBOX,
    ActorKind,
    AuditRow,
    Change,
    DeadLetterStore,
    LetterFilter,
    Newer,
    Status,
    may_become,
)
from everkeel.engines.protocols import Engine
from everkeel.engines.rows import DeadLetterRow, storable
from everkeel.errors import (
    ConfigError,
    DeadLetterConflictError,
    DeadLetterNotFoundError,
    DeadLetterStateError,
    EventError,
    ReplayLimitError,
)
from everkeel.messaging.data import to_json
from everkeel.messaging.dead_letters import telling
from everkeel.messaging.dead_letters.failure import Redactor
from everkeel.messaging.dead_letters.keeping import WAKEUP, Changed, Keeping
from everkeel.messaging.dead_letters.letter import DeadLetter, Overtaken, Page, ReplayPlan, ReplayReport
from everkeel.messaging.dead_letters.room import MOST, Room
from everkeel.messaging.event import fits
from everkeel.runtime.crash import crash_point
from everkeel.runtime.settings import Duration, Seconds

KEPT = 7 * 86_400.0
MOST_LOOKED_AT = 100
"""For so many letters of a plan it is looked up what came behind them: a few queries each."""
_PAUSES = (0.05, 0.2, 1.0)  # while the same event is in the outbox for another consumer


class DeadLetters(Keeping):
    """The dead letters of an engine: look at them, replay or discard them.

    Args:
        engine: Where they are kept; replays go through its outbox.
        retain: How long a letter is kept: 7 days. One that nobody dealt with by then is discarded, with a line in the
            audit trail; what is finished is deleted so long after its last change.
        most: How many letters of one consumer are kept: 100,000; None: as many as there are. When there are so many,
            finished ones are deleted, the oldest first. When all of them still wait, nothing is deleted: what fails
            then stays with the broker, and the log says so, until somebody deals with some of them.
        max_replays: How often an event may be replayed for one consumer: 3.
        redact: Names of fields in events' data whose values nobody is shown, in data and in errors alike.
        redact_text: A function that makes error texts harmless before they are stored.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        retain: Seconds = KEPT,
        most: int | None = MOST,
        max_replays: int = 3,
        redact: Collection[str] = (),
        redact_text: Callable[[str], str] | None = None,
    ) -> None:
        try:
            self.retain = Duration().check(retain)
        except ValueError as error:
            raise ConfigError("dead letters", "retain", str(error), repr(retain)) from None
        _whole("max_replays", max_replays, 0)
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
            raise ConfigError("dead letters", "most", "must be a whole number of at least 1, or None", repr(most))
        store = getattr(engine, "dead_letters", None)
        if store is None:
            raise ConfigError("dead letters", "engine", "must be an engine that keeps dead letters", repr(engine))
        self.engine, self.max_replays, self.most = engine, max_replays, most
        self.room = None if most is None else Room(most)
        self.store: DeadLetterStore = store
        self.redactor = Redactor(redact, redact_text)

    # ------------------------------------------------------------------ looking

    async def list(self, wanted: LetterFilter | None = None, *, limit: int = 50, cursor: str | None = None) -> Page:
        """A page of letters, the newest failure first; `cursor` is the `next` of the page before."""
        _whole("limit", limit, 1, 1000)
        page = await self.store.query(wanted or LetterFilter(), limit=limit, cursor=cursor)
        return Page([self._seen(row) for row in page.letters], page.next)

    async def count(self, wanted: LetterFilter | None = None) -> int:
        """How many letters there are."""
        return await self.store.count(wanted or LetterFilter())

    async def tally(self) -> Mapping[tuple[str, str, str], int]:
        """How many letters there are of each consumer, reason and status, asked of the store."""
        return await self.store.tally()

    async def get(self, id: str) -> DeadLetter:
        """One letter; a `DeadLetterNotFoundError` where there is none."""
        row = await self.store.get(storable(id))
        if row is None:
            raise DeadLetterNotFoundError(id)
        return self._seen(row)

    async def newer(self, letter: DeadLetter | str) -> Newer:
        """What became of the events that came behind a letter's in its key: those that its consumer has handled since,
        before which a replay should have come, and those that wait behind it."""
        seen = await self.get(letter) if isinstance(letter, str) else letter
        return await self.store.newer(seen.row)

    async def audit(self, id: str) -> Sequence[AuditRow]:
        """Who did what to a letter, and why; also after it was deleted."""
        return await self.store.audit(storable(id))

    # ------------------------------------------------------------------ replaying

    async def replay(
        self,
        id: str,
        *,
        actor: str,
        reason: str = "",
        kind: ActorKind = "human",
        data: Any = None,
        key: str | None = None,
        force: bool = False,
        version: int | None = None,
    ) -> DeadLetter:
        """Send a letter's event again, to the consumer that gave up on it.

        The event keeps its identity and gets a higher epoch: the consumer's inbox lets it through if it was not
        handled, and refuses it if it was.

        Args:
            actor: Who wants it.
            reason: Why.
            kind: Is that a human, an agent or a program?
            data: Other data in place of the event's, for events that can only be handled when they are corrected.
                Fields that `redact` hides and that still say `***` are as they were.
            key: Another key in place of the event's: it goes behind the events of that one, and those that were parked
                behind it in its old key follow at once.
            force: Replay also what was replayed as often as is allowed, or what is parked behind another letter.
            version: Do it only if the letter has not changed since it had this version.
        """
        letter = await self.get(id)
        row, before = letter.row, letter.status
        allowed = (Status.PENDING, Status.PARKED) if force else (Status.PENDING,)
        if before not in allowed:
            raise DeadLetterStateError(id, before.value, Status.REPLAYED.value)
        if letter.replays >= self.max_replays and not force:
            raise ReplayLimitError(id, letter.replays, self.max_replays)
        if not isinstance(reason, str):
            raise ConfigError("dead letters", "reason", "must be a text", repr(reason))
        change = Change(actor=_named("actor", actor), kind=_kind(kind), reason=storable(reason))
        edited = None if data is None else self._edited(letter, data)
        if key is not None:
            if not isinstance(key, str) or not key.strip():
                raise ConfigError("dead letters", "key", "must be a text that is not empty", repr(key))
            fits(key=letter.event.changed(partitionkey=key).key, owner=f"event {row.event_type!r}")
        expected = row if version is None else replace(row, version=version)
        sent = 0
        for pause in (*_PAUSES, None):
            try:
                async with self.engine.transaction() as tx:
                    sent = await self._send(expected, change, tx, edited=edited, key=key)
            except Changed:
                raise await self._conflict(row, before) from None
            if sent:
                break
            if pause is None:
                found = "still in the outbox, on its way for this or another consumer"
                raise DeadLetterConflictError(id, before.value, found)
            await self.engine.clock.asleep(pause)
        crash_point("replay.after_commit")
        self.engine.wakeup.notify(WAKEUP)
        again = await self.get(id)
        telling.replayed(row, change, sent, edited=edited is not None)
        return again

    def _edited(self, letter: DeadLetter, data: Any) -> str:
        try:
            had = letter.event.data
        except Exception:  # bytes that cannot be read have no fields
            had = None
        try:
            return to_json(self.redactor.restored(data, had)).decode()
        except ConfigError:
            raise
        except (TypeError, ValueError, RecursionError) as error:
            raise EventError(
                f"event {letter.row.event_type!r}", f"its data cannot be written as JSON: {error}"
            ) from error

    async def _conflict(self, row: DeadLetterRow, before: Status) -> Exception:
        now = await self.store.get(row.id)
        if now is None:
            return DeadLetterNotFoundError(row.id)
        found = now.status if now.status != before.value else f"{now.status} in version {now.version}"
        return DeadLetterConflictError(row.id, before.value, found)

    async def plan_replay(self, wanted: LetterFilter | None = None, *, limit: int = 1000) -> ReplayPlan:
        """What a replay of all pending letters that fit would do: a dry run. `apply` does exactly this, later ones not
        included."""
        _whole("limit", limit, 1)
        pending = replace(wanted or LetterFilter(), status=(Status.PENDING,))
        letters: list[DeadLetter] = []
        cursor: str | None = None
        while len(letters) < limit:  # the oldest first: of a key, what failed first must not come last
            step = min(500, limit - len(letters))
            page = await self.store.query(pending, limit=step, cursor=cursor, oldest_first=True)
            letters += [self._seen(row) for row in page.letters]
            if (cursor := page.next) is None:
                break
        more = max(0, await self.count(pending) - len(letters))
        fitting = [letter for letter in letters if letter.replays < self.max_replays]
        return ReplayPlan(
            letters=fitting,
            over_limit=[letter for letter in letters if letter.replays >= self.max_replays],
            more=more,
            by_consumer=Counter(letter.consumer for letter in fitting),
            by_type=Counter(letter.row.event_type for letter in fitting),
            by_error=Counter(letter.row.error_type for letter in fitting),
            newer=await self._overtaken(fitting),
        )

    async def _overtaken(self, letters: Sequence[DeadLetter]) -> Overtaken:
        keyed = [letter for letter in letters if letter.row.key is not None]
        seen = [await self.newer(letter) for letter in keyed[:MOST_LOOKED_AT]]
        return Overtaken(
            letters=sum(one.handled > 0 for one in seen),
            handled=sum(one.handled for one in seen),
            waiting=sum(one.waiting for one in seen),
            exact=len(seen) == len(keyed) and all(one.exact for one in seen),
        )

    async def apply(
        self,
        plan: ReplayPlan,
        *,
        actor: str,
        reason: str = "",
        kind: ActorKind = "human",
        rate: float = 10.0,
        stop_after: int = 3,
    ) -> ReplayReport:
        """Replay what a plan says, `rate` letters a second, so that a service that has just recovered is not knocked
        over again; stop once `stop_after` of them have failed again."""
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not rate > 0:
            raise ConfigError("dead letters", "rate", "must be a number above 0 (letters a second)", repr(rate))
        _whole("stop_after", stop_after, 1)
        replayed: list[str] = []
        changed: list[str] = []
        back: list[str] = []
        open_: deque[str] = deque()
        todo = deque(plan.letters)
        while todo and len(back) < stop_after:
            letter = todo.popleft()
            try:
                await self.replay(letter.id, actor=actor, reason=reason, kind=kind, version=letter.version)
            except (DeadLetterConflictError, DeadLetterStateError, DeadLetterNotFoundError):
                changed.append(letter.id)
                continue
            replayed.append(letter.id)
            open_.append(letter.id)
            if todo:
                await self.engine.clock.asleep(1 / rate)
                back += await self._came_back(open_)
        return ReplayReport(replayed, changed, back, [letter.id for letter in todo])

    async def _came_back(self, open_: deque[str]) -> Sequence[str]:
        back = []
        for _ in range(min(len(open_), 20)):
            id = open_.popleft()
            row = await self.store.get(id)
            if row is not None and row.status == Status.SUPERSEDED:
                back.append(id)
            elif row is not None and row.status == Status.REPLAYED:
                open_.append(id)
        return back

    async def reopen(self, id: str, *, actor: str, reason: str, kind: ActorKind = "human") -> DeadLetter:
        """Let a letter wait again whose replay got lost on its way. If it did not, the inbox sees to it that nothing
        happens twice."""
        change = Change(actor=_named("actor", actor), kind=_kind(kind), reason=_named("reason", reason))
        return await self._moved(id, Status.PENDING, change)

    # ------------------------------------------------------------------ ending

    async def discard(
        self, id: str, *, actor: str, reason: str, kind: ActorKind = "human", version: int | None = None
    ) -> DeadLetter:
        """Give up on an event for good, with a reason; those parked behind it follow."""
        change = Change(actor=_named("actor", actor), kind=_kind(kind), reason=_named("reason", reason))
        return await self._moved(id, Status.DISCARDED, change, version)

    async def _moved(self, id: str, after: Status, change: Change, version: int | None = None) -> DeadLetter:
        row = (await self.get(id)).row
        before = Status(row.status)
        if not may_become(before, after):
            raise DeadLetterStateError(id, before.value, after.value)
        at = row.version if version is None else version
        try:
            async with self.engine.transaction() as tx:
                moved = await self.store.transition(id, before, after, change, version=at, tx=tx)
                if moved is None:
                    raise Changed  # and look why outside: in here we would need a second connection
                if after is Status.DISCARDED and row.consumer == OUTBOX:
                    await self.engine.outbox.discard(row.source, row.event_id, row.topic, tx=tx)
                elif after is Status.DISCARDED and row.key is not None:
                    await self._release(row.consumer, row.topic, row.key, tx)
                crash_point("discard.before_commit")
        except Changed:
            raise await self._conflict(row, before) from None
        self.engine.wakeup.notify(WAKEUP)
        if after is Status.DISCARDED:
            telling.discarded(row, change)
        else:
            telling.reopened(row, change)
        return self._seen(moved)

    async def purge(
        self,
        older_than: Seconds | None = None,
        *,
        limit: int = 1000,
        actor: str = "everkeel",
        consumer: str | None = None,
    ) -> int:
        """Delete what is finished for longer than `older_than` (`retain`), and discard what nobody dealt with so long.

        Nothing that still waits is deleted without having been discarded first, which the audit trail tells. With
        `consumer`, only its letters: others that share the store may want to keep theirs for longer. Answers how many
        letters were deleted.
        """
        age = self.retain if older_than is None else Duration(zero=True).check(older_than)
        waiting = LetterFilter(consumer=consumer, status=(Status.PENDING, Status.PARKED), older_than=age)
        forgotten = Change(actor=actor, reason=f"nobody dealt with it for {age:g} s")
        # What was replayed was pending until then, and no longer than `retain`: so long has nobody heard of its replay.
        # Whatever age is asked for: one that left a moment ago may be handled at this moment.
        silence = max(age, self.retain)
        replayed = LetterFilter(consumer=consumer, status=(Status.REPLAYED,), older_than=2 * silence)
        unheard = Change(actor=actor, reason=f"nothing was heard of its replay for {silence:g} s")
        for wanted, step, change in (
            (replayed, Status.PENDING, unheard),
            (waiting, Status.DISCARDED, forgotten),
        ):
            for row in (await self.store.query(wanted, limit=min(limit, 1000), oldest_first=True)).letters:
                try:
                    await self._moved(row.id, step, change, row.version)
                except (DeadLetterConflictError, DeadLetterStateError, DeadLetterNotFoundError):
                    continue  # somebody did, just now
        return await self.store.purge(age, limit, Change(actor=actor, reason="retention"), consumer=consumer)


def _whole(parameter: str, value: int, least: int, most: int | None = None) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least or (most is not None and value > most):
        allowed = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ConfigError("dead letters", parameter, f"must be a whole number {allowed}", repr(value))


def _kind(kind: ActorKind) -> ActorKind:
    if kind not in get_args(ActorKind):
        raise ConfigError("dead letters", "kind", f"must be one of {', '.join(get_args(ActorKind))}", repr(kind))
    return kind


def _named(parameter: str, value: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError("dead letters", parameter, "must say so in words (it goes into the audit trail)", repr(value))
    return storable(value)
