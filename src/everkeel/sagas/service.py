"""What operators and views hold: `Sagas(engine)`. It needs no definitions, so it works in any process."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from everkeel.engines.rows import OutboxRow
from everkeel.engines.sagas import SagaFilter, SagaRow, SagaState, SagaStore, SagaTypeStats
from everkeel.errors import ConfigError, SagaConflictError, SagaNotFoundError, SagaStateError
from everkeel.runtime import events as hearing
from everkeel.runtime.settings import Seconds, seconds
from everkeel.sagas import happenings as happened
from everkeel.sagas import reporting
from everkeel.sagas.coding import Codec, store_of
from everkeel.sagas.driver import change_of
from everkeel.sagas.happenings import Order
from everkeel.sagas.machine import Decision, decide
from everkeel.sagas.record import Entry, Record, decoded
from everkeel.sagas.view import SagaPage, SagaSummary, SagaView

WAKEUP = "sagas"
"""What orchestrators listen to: there is a saga to be taken."""
ORDERS = "saga orders"
"""Somebody has changed a saga that may be in an orchestrator's hands."""
MOST_TRIES = 50


class Sagas:
    """Looks at sagas and tells them what to do: cancel, retry, skip, mark as done, resume, give up.

    What an operator wants is written down at once, as a compare-and-set; whoever works on the saga, in any process,
    carries it out::

        sagas = Sagas(engine)
        for saga in (await sagas.list(attention=True)).sagas:
            print(saga.id, saga.state, saga.step, saga.cause)
        await sagas.retry("order-7", "charge", actor="ada")

    Args:
        engine: Where sagas are kept.
        codec: What the orchestrators were given as theirs; without it, what they keep cannot be read.
    """

    def __init__(self, engine: Any, *, codec: Codec | None = None) -> None:
        self.engine = engine
        self.store: SagaStore = store_of(engine, codec)

    # ------------------------------------------------------------------ looking

    async def list(
        self,
        *,
        type: str | None = None,
        kind: Any = None,
        state: str | Collection[str] | None = None,
        active: bool | None = None,
        cause: str | None = None,
        step: str | None = None,
        correlation: str | None = None,
        timed_out: bool | None = None,
        attention: bool | None = None,
        since: float | None = None,
        until: float | None = None,
        older_than: Seconds | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> SagaPage:
        """A page of sagas, the newest first; `cursor` is the `next` of the page before. See `SagaFilter`."""
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= 1000:
            raise ConfigError("sagas", "limit", "must be a whole number from 1 to 1000", repr(limit))
        if kind not in (None, "orchestrated", "choreographed"):
            raise ConfigError("sagas", "kind", "must be 'orchestrated' or 'choreographed'", repr(kind))
        wanted = SagaFilter(
            type=type, kind=kind, state=_states(state), active=active, cause=cause, step=step, correlation=correlation,
            timed_out=timed_out, attention=attention, since=since, until=until,
            older_than=None if older_than is None else seconds(older_than),
        )  # fmt: skip
        page = await self.store.query(wanted, limit=limit, cursor=cursor)
        return SagaPage([SagaSummary.of(row) for row in page.rows], page.next)

    async def count(self, **wanted: Any) -> int:
        """How many there are; the arguments of `list`."""
        older = wanted.get("older_than")
        checked = {"state": _states(wanted.get("state")), "older_than": None if older is None else seconds(older)}
        return await self.store.count(SagaFilter(**{**wanted, **checked}))

    async def get(self, id: str, *, reveal: bool = False) -> SagaView:
        """One saga, with its steps and its timeline; `SagaNotFoundError` if there is none.

        What its definition hides (`redact`) is hidden, unless you `reveal` it.
        """
        return SagaView.of(await self._row(id), reveal=reveal)

    async def timeline(self, id: str) -> Sequence[Entry]:
        """What happened to a saga, the first thing first."""
        return (await self.get(id)).timeline

    async def stats(self) -> Mapping[str, SagaTypeStats]:
        """How many sagas of each type are in which state, how old and how fast: counted by the store."""
        return await self.store.stats()

    async def _row(self, id: str) -> SagaRow:
        row = await self.store.load(id)
        if row is None:
            raise SagaNotFoundError(None, id)
        return row

    # ------------------------------------------------------------------ acting

    async def cancel(
        self, id: str, *, actor: str = "everkeel", reason: str = "", revision: int | None = None
    ) -> SagaView:
        """Turn back: undo what was done. Refused past the pivot, and where the saga has completed."""
        return await self.order(id, happened.Cancel(actor=actor, reason=reason), revision=revision)

    async def compensate(self, id: str, *, actor: str, reason: str = "", revision: int | None = None) -> SagaView:
        """The same, as an operator's decision: also for a parked saga."""
        return await self.order(id, happened.Cancel(actor=actor, reason=reason, cause="operator"), revision=revision)

    async def retry(self, id: str, step: str, *, actor: str, reason: str = "", revision: int | None = None) -> SagaView:
        """Try a failed compensation again, with all its attempts."""
        return await self.order(id, happened.RetryUndo(actor=actor, reason=reason, step=step), revision=revision)

    async def skip(self, id: str, step: str, *, actor: str, reason: str, revision: int | None = None) -> SagaView:
        """Leave a step as it is, although it could not be undone."""
        return await self.order(id, happened.SkipUndo(actor=actor, reason=reason, step=step), revision=revision)

    async def mark_done(self, id: str, step: str, *, actor: str, reason: str, revision: int | None = None) -> SagaView:
        """A step was undone by hand."""
        return await self.order(id, happened.MarkUndone(actor=actor, reason=reason, step=step), revision=revision)

    async def resume(self, id: str, *, actor: str, reason: str = "", revision: int | None = None) -> SagaView:
        """Go on with a parked saga where it stopped."""
        return await self.order(id, happened.Resume(actor=actor, reason=reason), revision=revision)

    async def fail(self, id: str, *, actor: str, reason: str, revision: int | None = None) -> SagaView:
        """Give up on a parked or blocked saga for good."""
        return await self.order(id, happened.Abandon(actor=actor, reason=reason), revision=revision)

    async def order(self, id: str, order: Order, *, revision: int | None = None) -> SagaView:
        """Write down what somebody wants; answers the saga as it is then.

        With a `revision` it is done only to the saga as it was seen: a `SagaConflictError` if it has changed since.
        """
        for _ in range(MOST_TRIES):
            row = await self._row(id)
            if revision is not None and row.revision != revision:
                raise SagaConflictError(
                    row.type, id, f"it is at revision {row.revision} now, and was seen at {revision}"
                )
            decision, document = _decided(row, order)
            if not decision.entries:
                return SagaView.of(row)
            held = row.owner is not None and row.due_at is not None and row.due_at > row.now
            rows = self.announced(decision)
            change = change_of(decision, row.revision, keep=held, due=None if decision.resting else 0.0, emit=rows)
            if document is not None:
                change = replace(change, document=document, step=row.step)
            if await self.store.save(change) is not None:
                self.written(decision, emitted=bool(rows))
                # Twice: whoever has it in hand must look again, and if nobody has, somebody must take it.
                self.engine.wakeup.notify(ORDERS)
                self.engine.wakeup.notify(WAKEUP)
                return await self.get(id)
        raise SagaConflictError(None, id, "others change it all the time; try again")

    def announced(self, decision: Decision) -> Sequence[OutboxRow]:
        """Events that are written together with a decision of ours."""
        return ()

    def written(self, decision: Decision, *, emitted: bool) -> None:
        """A decision of ours was saved: whoever counts what happens in this process hears it."""
        if not hearing.everywhere:
            return
        for entry in decision.entries:
            if (event := reporting.event_of(decision.record, entry)) is not None:
                hearing.tell(event, ())

    async def purge(self, older_than: Seconds, limit: int = 1000) -> int:
        """Delete up to `limit` sagas that ended so long ago; never one that has not."""
        return await self.store.purge(seconds(older_than), limit)


def _decided(row: SagaRow, order: Order) -> tuple[Decision, str | None]:
    """What follows from an order. Of a document that cannot be read here, and is to stay as it is, also that."""
    try:
        return decide(decoded(row), None, order, row.now), None
    except ValueError as error:
        # Somebody else may be able to read it: with the right codec, or a newer version. Nobody could any more if we
        # wrote over it; and who cannot read it does not know where it would go on. So here it can only be given up.
        if not isinstance(order, happened.Abandon):
            raise SagaStateError(
                row.type,
                row.id,
                happened.word_of(order),
                row.state.value,
                getattr(order, "step", None),
                None,
                str(error),
            ) from None
    record = Record(
        id=row.id, type=row.type, version=row.version, kind=row.kind, state=row.state, cause=row.cause,
        timed_out=row.timed_out,
    )  # fmt: skip
    return decide(record, None, order, row.now), row.document


def _states(state: str | Collection[str] | None) -> tuple[SagaState, ...] | None:
    if state is None:
        return None
    try:
        return tuple(SagaState(one) for one in ([state] if isinstance(state, str) else state))
    except ValueError:
        allowed = f"must be of {', '.join(one.value for one in SagaState)}"
        raise ConfigError("sagas", "state", allowed, repr(state)) from None
