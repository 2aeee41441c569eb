"""What a store of sagas must do, as tests. Subclass it next to your store:

class TestMySagas(SagasContract):
    @asynccontextmanager
    async def open(self):
        async with MyEngine() as engine:
            yield Opened(engine.sagas, engine.transaction, engine)
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from typing import Any

import pytest

from everkeel.engines.rows import OutboxRow
from everkeel.engines.sagas import NewSaga, SagaChange, SagaFilter, SagaRow, SagaState, SagaStore
from everkeel.errors import ConfigError
from everkeel.testing.contracts.inbox import Opened, StoreContract, rolled_back


def new(id: str = "s-1", **more: Any) -> NewSaga:
    """A saga to be written down."""
    return replace(
        NewSaga(id=id, type="order", version=1, kind="orchestrated", state=SagaState.RUNNING, document='{"n":0}'),
        **more,
    )


def change(row: SagaRow, **more: Any) -> SagaChange:
    """The next revision of a saga, as it is but for what is given."""
    same = SagaChange(id=row.id, expect=row.revision, state=row.state, document=row.document, cause=row.cause,
                      step=row.step, timed_out=row.timed_out)  # fmt: skip
    return replace(same, **more)


def event(id: str) -> OutboxRow:
    """An event that belongs to a transition."""
    return OutboxRow(id, "/sagas", "order.step", "sagas", None, "{}", None)


async def created(store: SagaStore, id: str = "s-1", **more: Any) -> SagaRow:
    """A saga that was not there before."""
    row, is_new = await store.create(new(id, **more))
    assert is_new
    return row


async def depth(opened: Opened) -> int:
    """How many events wait in the outbox."""
    return int((await opened.engine.outbox.stats()).depth)


class SagasContract(StoreContract):
    """Create, compare-and-set, claim: the rules that hold for every store. `Opened.engine` must be given."""

    writers = 16
    sagas_of_the_race = 60

    def test_a_saga_is_created_once(self) -> None:
        async def test(opened: Opened) -> None:
            answers = await asyncio.gather(
                *(opened.store.create(new(document=json.dumps({"n": n}), emit=[event(f"e-{n}")])) for n in range(8))
            )
            assert sum(is_new for _, is_new in answers) == 1
            assert len({row.document for row, _ in answers}) == 1
            assert await depth(opened) == 1, "who came second has emitted nothing"

        self.run(test)

    def test_what_is_written_can_be_read(self) -> None:
        async def test(opened: Opened) -> None:
            row = await created(opened.store, document='{"ü":"\\u0000"}', step="a,b", correlation_id="c", deadline=30,
                                due=None, owner="me")  # fmt: skip
            again = await opened.store.load("s-1")
            assert again is not None
            assert replace(again, now=row.now) == row
            assert (row.id, row.type, row.version, row.kind, row.state) == (
                "s-1", "order", 1, "orchestrated", SagaState.RUNNING,
            )  # fmt: skip
            assert (row.document, row.step, row.correlation_id, row.owner) == ('{"ü":"\\u0000"}', "a,b", "c", "me")
            assert (row.revision, row.due_at, row.ended_at, row.cause, row.timed_out) == (1, None, None, None, False)
            assert row.deadline_at is not None
            assert abs(row.deadline_at - row.created_at - 30) < 0.001
            assert await opened.store.load("s-2") is None

        self.run(test)

    def test_of_two_that_save_the_same_revision_one_is_told_no_and_emits_nothing(self) -> None:
        async def test(opened: Opened) -> None:
            row = await created(opened.store)
            saves = (change(row, document=f'{{"n":{n}}}', emit=[event(f"e-{n}")]) for n in range(8))
            answers = await asyncio.gather(*(opened.store.save(one) for one in saves))
            assert [answer for answer in answers if answer is not None] == [2]
            assert await depth(opened) == 1
            after = await opened.store.load("s-1")
            assert after is not None
            assert after.document == f'{{"n":{answers.index(2)}}}'

        self.run(test)

    def test_no_update_is_lost_among_many_writers(self) -> None:
        async def test(opened: Opened) -> None:
            await created(opened.store)

            async def add_one() -> None:
                while True:
                    row = await opened.store.load("s-1")
                    n = json.loads(row.document)["n"]
                    if await opened.store.save(change(row, document=json.dumps({"n": n + 1}))) is not None:
                        return

            async def writer() -> None:
                for _ in range(3):
                    await add_one()

            await asyncio.gather(*(writer() for _ in range(self.writers)))
            row = await opened.store.load("s-1")
            assert json.loads(row.document) == {"n": 3 * self.writers}
            assert row.revision == 1 + 3 * self.writers

        self.run(test)

    def test_many_transitions_in_one_write_are_each_decided_for_itself(self) -> None:
        async def test(opened: Opened) -> None:
            a, b = await created(opened.store, "a"), await created(opened.store, "b")
            made, saved = await opened.store.write(
                [new("c"), new("a"), new("c", document='{"n":9}')],
                [change(a, cause="x", emit=[event("1")]), change(a, cause="y", emit=[event("2")]),
                 replace(change(b), expect=7, emit=[event("3")]), replace(change(a), expect=2, cause="z")],
            )  # fmt: skip
            assert [(row.id, is_new, row.document) for row, is_new in made] == [
                ("c", True, '{"n":0}'), ("a", False, '{"n":0}'), ("c", False, '{"n":0}'),
            ]  # fmt: skip
            assert saved == [2, None, None, 3]
            assert (await opened.store.load("a")).cause == "z"
            assert await depth(opened) == 1

        self.run(test)

    @pytest.mark.parametrize("state", [SagaState.COMPLETED, SagaState.COMPENSATED, SagaState.FAILED])
    def test_who_is_in_a_final_state_stays_there(self, state: SagaState) -> None:
        async def test(opened: Opened) -> None:
            row = await created(opened.store)
            assert await opened.store.save(change(row, state=state)) == 2
            ended = await opened.store.load("s-1")
            assert ended.ended_at is not None
            for other in SagaState:
                if other is not state:
                    assert await opened.store.save(change(ended, state=other)) is None
            assert await opened.store.save(change(ended, cause="noted")) == 3, "something may still be noted about it"
            assert (await opened.store.load("s-1")).ended_at == ended.ended_at

        self.run(test)

    def test_each_saga_that_is_due_is_claimed_by_one_of_many_detectors(self) -> None:
        async def test(opened: Opened) -> None:
            wanted = [f"s-{n}" for n in range(self.sagas_of_the_race)]
            await opened.store.write([new(id, due=0.0) for id in wanted], [])
            await created(opened.store, "later", due=600)
            await created(opened.store, "never", due=None)
            await self.let_pass(self.moment)
            claimed: list[str] = []

            async def detector(owner: str) -> None:
                while rows := await opened.store.claim_due(owner, 7, 600):
                    assert all(row.owner == owner for row in rows)
                    claimed.extend(row.id for row in rows)

            await asyncio.gather(*(detector(f"d-{n}") for n in range(4)))
            assert sorted(claimed) == sorted(wanted)

        self.run(test)

    def test_who_lost_the_claim_can_write_no_more(self) -> None:
        async def test(opened: Opened) -> None:
            row = await created(opened.store, due=self.moment, owner="first")
            assert await opened.store.claim_due("second", 10, 600) == []
            await self.let_pass(self.moment)
            (taken,) = await opened.store.claim_due("second", 10, 600)
            assert (taken.owner, taken.revision) == ("second", row.revision + 1)
            assert await opened.store.save(change(row, emit=[event("late")])) is None
            assert await opened.store.extend("first", ["s-1"], 600) == {}
            assert await opened.store.save(change(taken)) == taken.revision + 1
            assert await depth(opened) == 0

        self.run(test)

    def test_a_heartbeat_keeps_a_saga_and_tells_its_revision(self) -> None:
        async def test(opened: Opened) -> None:
            row = await created(opened.store, due=self.moment, owner="me")
            assert await opened.store.save(change(row)) == 2
            assert await opened.store.extend("me", ["s-1", "unknown"], 600) == {"s-1": 2}
            await self.let_pass(self.moment)
            assert await opened.store.claim_due("other", 10, 600) == []
            assert await opened.store.extend("me", [], 600) == {}

        self.run(test)

    def test_the_revisions_of_what_is_held_are_told_and_nothing_is_written(self) -> None:
        async def test(opened: Opened) -> None:
            row = await created(opened.store, due=self.moment, owner="me")
            await created(opened.store, "s-2", due=600, owner="other")
            assert await opened.store.save(change(row)) == 2
            assert await opened.store.held("me", ["s-1", "s-2", "unknown"]) == {"s-1": 2}
            assert await opened.store.held("me", []) == {}
            await self.let_pass(self.moment)
            assert [one.id for one in await opened.store.claim_due("other", 10, 600)] == ["s-1"], (
                "no lease was extended"
            )
            assert await opened.store.held("me", ["s-1"]) == {}

        self.run(test)

    def test_a_save_keeps_the_lease_or_sets_when_to_look_next(self) -> None:
        async def test(opened: Opened) -> None:
            row = await created(opened.store, due=600, owner="me")
            await opened.store.save(change(row))
            kept = await opened.store.load("s-1")
            assert (kept.owner, kept.due_at) == ("me", row.due_at)
            await opened.store.save(change(kept, keep=False, owner=None, due=None))
            resting = await opened.store.load("s-1")
            assert (resting.owner, resting.due_at) == (None, None)
            await opened.store.save(change(resting, keep=False, owner=None, due=0.0))
            await self.let_pass(self.moment)
            assert [row.id for row in await opened.store.claim_due("me", 10, 600)] == ["s-1"]

        self.run(test)

    def test_claims_can_be_bounded_to_definitions_and_to_what_is_long_due(self) -> None:
        async def test(opened: Opened) -> None:
            for number in (1, 2):
                await created(opened.store, f"v{number}", version=number, due=0.0)
            await created(opened.store, "foreign", type="trip", due=0.0)
            await self.let_pass(self.moment)
            store = opened.store
            assert [row.id for row in await store.claim_due("a", 10, 0.0, known=["order@2", "x@1"])] == ["v2"]
            assert [row.id for row in await store.claim_due("a", 10, 0.0, beside=["order@2", "order@3"])] == ["v1"]
            assert await store.claim_due("a", 10, 600, beside=[]) == []
            assert await store.claim_due("a", 10, 600, overdue=300) == []
            assert await store.claim_due("a", 10, 600, known=[]) == []

        self.run(test)

    def test_events_and_transition_are_one(self) -> None:
        async def test(opened: Opened) -> None:
            transaction, store = self.transactions(opened), opened.store
            row = await created(store)
            wanted = change(row, cause="x", emit=[event("1")])
            assert await rolled_back(transaction, lambda tx: store.save(wanted, tx=tx)) == 2
            assert (await store.load("s-1")).revision == 1
            assert await depth(opened) == 0
            async with transaction() as tx:
                assert await store.save(wanted, tx=tx) == 2
            assert (await store.load("s-1")).cause == "x"
            assert await depth(opened) == 1

        self.run(test)

    def test_a_transition_whose_events_cannot_be_written_did_not_happen(self) -> None:
        async def test(opened: Opened) -> None:
            row = await created(opened.store)
            broken = replace(event("1"), payload=object())  # type: ignore[arg-type]  # nothing any store can keep
            if opened.engine.name == "memory":
                return  # it keeps anything
            with pytest.raises(Exception, match=r".+"):
                await opened.store.save(change(row, cause="x", emit=[broken]))
            assert (await opened.store.load("s-1")).cause is None

        self.run(test)

    def test_a_saga_started_in_a_transaction_begins_when_that_is_committed(self) -> None:
        async def test(opened: Opened) -> None:
            transaction, store = self.transactions(opened), opened.store
            await rolled_back(transaction, lambda tx: store.create(new("never", emit=[event("1")]), tx=tx))
            assert await store.load("never") is None
            async with transaction() as tx:
                _, is_new = await store.create(new("s-1", emit=[event("2")]), tx=tx)
                assert is_new
            await self.let_pass(self.moment)
            assert [row.id for row in await store.claim_due("me", 10, 600)] == ["s-1"]
            assert await depth(opened) == 1

        self.run(test)

    def test_only_what_has_ended_and_has_nothing_left_to_do_is_purged_a_few_at_a_time(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            for number in range(5):
                row = await created(store, f"old-{number}")
                await store.save(change(row, state=SagaState.COMPLETED, keep=False, due=None))
            for state in SagaState:
                if state not in (SagaState.COMPLETED, SagaState.COMPENSATED, SagaState.FAILED):
                    await created(store, state.value, state=state, due=None)
            busy = await created(store, "late-work")
            await store.save(change(busy, state=SagaState.COMPENSATED, keep=False, due=600))
            stuck = await created(store, "late-undo-failed")
            await store.save(change(stuck, state=SagaState.COMPENSATED, step="pay", keep=False, due=None))
            await self.let_pass(self.moment)
            fresh = await created(store, "fresh")
            await store.save(change(fresh, state=SagaState.COMPLETED, keep=False, due=None))
            assert [await store.purge(self.moment, 3) for _ in range(3)] == [3, 2, 0]
            left = {row.id for row in (await store.query(SagaFilter(), limit=100)).rows}
            assert left == {
                "pending",
                "running",
                "compensating",
                "compensation_blocked",
                "parked",
                "late-work",
                "late-undo-failed",
                "fresh",
            }

        self.run(test)

    def test_sagas_are_found_by_what_they_are(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            a = await created(store, "a", correlation_id="c-1", step="pay,ship")
            b = await created(store, "b", type="trip", step="payroll", kind="choreographed")
            await store.save(change(a, state=SagaState.COMPENSATED, cause="timed_out", timed_out=True))
            for wanted, found in (
                (SagaFilter(), {"a", "b"}),
                (SagaFilter(type="trip"), {"b"}),
                (SagaFilter(kind="orchestrated"), {"a"}),
                (SagaFilter(state=[SagaState.COMPENSATED]), {"a"}),
                (SagaFilter(state=[]), set()),
                (SagaFilter(active=True), {"b"}),
                (SagaFilter(active=False), {"a"}),
                (SagaFilter(cause="timed_out"), {"a"}),
                (SagaFilter(timed_out=True), {"a"}),
                (SagaFilter(timed_out=False), {"b"}),
                (SagaFilter(correlation="c-1"), {"a"}),
                (SagaFilter(step="pay"), {"a"}),
                (SagaFilter(step="ship"), {"a"}),
                (SagaFilter(since=b.created_at + 60), set()),
                (SagaFilter(until=b.created_at + 60), {"a", "b"}),
                (SagaFilter(older_than=60), set()),
                (SagaFilter(type="order", active=True), set()),
            ):
                rows = (await store.query(wanted, limit=10)).rows
                assert {row.id for row in rows} == found, wanted
                assert await store.count(wanted) == len(found), wanted

        self.run(test)

    def test_those_that_wait_for_an_operator_are_found_ended_ones_too(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            for state in (SagaState.PARKED, SagaState.COMPENSATION_BLOCKED, SagaState.RUNNING):
                await created(store, state.value, state=state, due=None, step="pay")
            for name, state, step, due in (
                ("late", SagaState.COMPENSATED, "pay", None),
                ("settled", SagaState.COMPENSATED, None, None),
                ("being undone", SagaState.COMPENSATED, "pay", 600),
                ("given up", SagaState.FAILED, "pay", None),
            ):
                row = await created(store, name)
                await store.save(change(row, state=state, step=step, keep=False, due=due))
            wait = {"parked", "compensation_blocked", "late"}
            others = {"running", "settled", "being undone", "given up"}
            for wanted, found in (
                (SagaFilter(attention=True), wait),
                (SagaFilter(attention=False), others),
                (SagaFilter(attention=True, active=False), {"late"}),
                (SagaFilter(attention=True, state=[SagaState.FAILED]), set()),
            ):
                rows = (await store.query(wanted, limit=10)).rows
                assert {row.id for row in rows} == found, wanted
                assert all(row.attention == (row.id in wait) for row in rows)
                assert await store.count(wanted) == len(found), wanted
            assert (await store.stats())["order"].unsettled == 1

        self.run(test)

    def test_the_end_of_its_time_can_be_moved(self) -> None:
        async def test(opened: Opened) -> None:
            row = await created(opened.store, deadline=30)
            assert row.deadline_at is not None
            await opened.store.save(change(row))
            same = await opened.store.load("s-1")
            assert same is not None
            assert same.deadline_at == row.deadline_at
            await opened.store.save(change(same, deadline=600))
            moved = await opened.store.load("s-1")
            assert moved is not None
            assert moved.deadline_at is not None
            assert 0 <= moved.deadline_at - row.deadline_at - 570 < 60

        self.run(test)

    def test_pages_are_stable_while_sagas_come_and_go(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            await store.write([new(f"s-{number}") for number in range(7)], [])
            seen: list[str] = []
            page = await store.query(SagaFilter(), limit=3)
            while True:
                seen += [row.id for row in page.rows]
                if page.next is None:
                    break
                await self.let_pass(0.001)
                await created(store, f"new-{len(seen)}")
                row = await store.load(seen[-1])
                await store.save(change(row, cause="changed"))
                page = await store.query(SagaFilter(), limit=3, cursor=page.next)
            assert sorted(seen) == [f"s-{number}" for number in range(7)]
            with pytest.raises(ConfigError, match="cursor must be one that a page gave"):
                await store.query(SagaFilter(), limit=3, cursor="nonsense")

        self.run(test)

    def test_the_store_counts_by_type_and_state(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            a = await created(store, "a")
            await created(store, "b")
            await created(store, "c", type="trip")
            await self.let_pass(self.moment)
            await store.save(change(a, state=SagaState.COMPENSATED, timed_out=True))
            stats = await store.stats()
            assert stats["order"].by_state == {SagaState.COMPENSATED: 1, SagaState.RUNNING: 1}
            assert (stats["order"].total, stats["order"].active, stats["order"].timed_out) == (2, 1, 1)
            assert stats["order"].oldest_active >= self.moment
            assert stats["order"].mean_duration is not None
            assert stats["order"].mean_duration >= self.moment
            assert stats["order"].max_duration == pytest.approx(stats["order"].mean_duration)
            assert (stats["trip"].total, stats["trip"].mean_duration) == (1, None)

        self.run(test)
