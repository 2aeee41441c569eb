"""What operators and views hold: `Sagas(engine)`. It needs no definitions, so it works in any process."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from everkeel.engines.sagas import SagaFilter, SagaRow, SagaState, SagaStore, SagaTypeStats
from everkeel.errors import ConfigError, SagaConflictError, SagaNotFoundError
from everkeel.runtime.settings import Seconds, seconds
from everkeel.sagas import happenings as happened
from everkeel.sagas.driver import change_of
from everkeel.sagas.happenings import Order
from everkeel.sagas.machine import decide
from everkeel.sagas.record import Entry, Record, decoded
from everkeel.sagas.view import SagaPage, SagaSummary, SagaView

WAKEUP = "sagas"
"""What orchestrators listen to."""
MOST_TRIES = 50


class Sagas:
    """Looks at sagas and tells them what to do: cancel, retry, skip, mark as done, resume, give up.

    What an operator wants is written down at once, as a compare-and-set; whoever works on the saga, in any process,
    carries it out::

        sagas = Sagas(engine)
        for saga in (await sagas.list(state="compensation_blocked")).sagas:
            await sagas.retry(saga.id, saga.step, actor="ada")
    """

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.store: SagaStore = engine.sagas

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
        since: float | None = None,
        until: float | None = None,
        older_than: Seconds | None = None,
        limit: int = 50,
        cursor: str | None = None,
    ) -> SagaPage:
        """A page of sagas, the newest first; `cursor` is the `next` of the page before. See `SagaFilter`."""
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= 1000:
            raise ConfigError("sagas", "limit", "must be a whole number from 1 to 1000", repr(limit))
        wanted = SagaFilter(
            type=type, kind=kind, state=_states(state), active=active, cause=cause, step=step, correlation=correlation,
            timed_out=timed_out, since=since, until=until,
            older_than=None if older_than is None else seconds(older_than),
        )  # fmt: skip
        page = await self.store.query(wanted, limit=limit, cursor=cursor)
        return SagaPage([SagaSummary.of(row) for row in page.rows], page.next)

    async def count(self, **wanted: Any) -> int:
        """How many there are; the arguments of `list`."""
        return await self.store.count(SagaFilter(**{**wanted, "state": _states(wanted.get("state"))}))

    async def get(self, id: str) -> SagaView:
        """One saga, with its steps and its timeline; `SagaNotFoundError` if there is none."""
        return SagaView.of(await self._row(id))

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

    async def cancel(self, id: str, *, actor: str = "everkeel", reason: str = "") -> SagaView:
        """Turn back: undo what was done. Refused past the pivot, and where the saga has completed."""
        return await self.order(id, happened.Cancel(actor=actor, reason=reason))

    async def compensate(self, id: str, *, actor: str, reason: str = "") -> SagaView:
        """The same, as an operator's decision: also for a parked saga."""
        return await self.order(id, happened.Cancel(actor=actor, reason=reason, cause="operator"))

    async def retry(self, id: str, step: str, *, actor: str, reason: str = "") -> SagaView:
        """Try a failed compensation again, with all its attempts."""
        return await self.order(id, happened.RetryUndo(actor=actor, reason=reason, step=step))

    async def skip(self, id: str, step: str, *, actor: str, reason: str) -> SagaView:
        """Leave a step as it is, although it could not be undone."""
        return await self.order(id, happened.SkipUndo(actor=actor, reason=reason, step=step))

    async def mark_done(self, id: str, step: str, *, actor: str, reason: str) -> SagaView:
        """A step was undone by hand."""
        return await self.order(id, happened.MarkUndone(actor=actor, reason=reason, step=step))

    async def resume(self, id: str, *, actor: str, reason: str = "") -> SagaView:
        """Go on with a parked saga where it stopped."""
        return await self.order(id, happened.Resume(actor=actor, reason=reason))

    async def fail(self, id: str, *, actor: str, reason: str) -> SagaView:
        """Give up on a parked or blocked saga for good."""
        return await self.order(id, happened.Abandon(actor=actor, reason=reason))

    async def order(self, id: str, order: Order) -> SagaView:
        """Write down what somebody wants; answers the saga as it is then."""
        for _ in range(MOST_TRIES):
            row = await self._row(id)
            try:
                record = decoded(row)
            except ValueError:
                record = _unreadable(row)
            decision = decide(record, None, order, row.now)
            if not decision.entries:
                return SagaView.of(row)
            held = row.owner is not None and row.due_at is not None and row.due_at > row.now
            change = change_of(decision, row.revision, keep=held, due=None if decision.resting else 0.0, emit=())
            if await self.store.save(change) is not None:
                self.written(decision)
                self.engine.wakeup.notify(WAKEUP)
                return await self.get(id)
        raise SagaConflictError(None, id, "others change it all the time; try again")

    def written(self, decision: Any) -> None:
        """A decision of ours was saved: for those who count."""

    async def purge(self, older_than: Seconds, limit: int = 1000) -> int:
        """Delete up to `limit` sagas that ended so long ago; never one that has not."""
        return await self.store.purge(seconds(older_than), limit)


def _unreadable(row: SagaRow) -> Record:
    return Record(
        id=row.id, type=row.type, version=row.version, kind=row.kind, state=row.state, cause=row.cause,
        parked_from=SagaState.RUNNING if row.state is SagaState.PARKED else None,
    )  # fmt: skip


def _states(state: str | Collection[str] | None) -> tuple[SagaState, ...] | None:
    if state is None:
        return None
    try:
        return tuple(SagaState(one) for one in ([state] if isinstance(state, str) else state))
    except ValueError:
        allowed = f"must be of {', '.join(one.value for one in SagaState)}"
        raise ConfigError("sagas", "state", allowed, repr(state)) from None
