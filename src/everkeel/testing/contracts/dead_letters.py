"""What a store of dead letters must do, as tests. Subclass it next to your store; `Opened.engine` needs an outbox."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from everkeel.engines.letters import Change, DeadLetterStore, LetterFilter, Newer, NewLetter, Status
from everkeel.engines.rows import ErrorInfo, OutboxRow, inbox_key
from everkeel.errors import ConfigError, DeadLetterStateError
from everkeel.testing.contracts.inbox import Opened, StoreContract, rolled_back

ANN = Change(actor="ann", kind="human", reason="fixed")


def letter(event_id: str = "e-1", **changes: Any) -> NewLetter:
    """A letter that fits most tests."""
    values: dict[str, Any] = {
        "consumer": "billing", "topic": "orders", "key": "order-7", "source": "/orders", "event_id": event_id,
        "event_type": "OrderCreated", "epoch": 0, "attributes": '{"partitionkey":"order-7"}', "payload": '{"n":1}',
        "encoding": None, "reason": "attempts", "error_type": "shop.errors.Down", "error": "no answer",
        "traceback": "shop.py:7 in bill", "attempts": 5, "saga_id": "saga-1", "correlation_id": "request-1",
    }  # fmt: skip
    return NewLetter(**{**values, **changes})


def parked(event_id: str, **changes: Any) -> NewLetter:
    """A letter that waits behind another."""
    values = {"status": Status.PARKED, "reason": "parked", "error_type": "", "error": "", "attempts": 0, **changes}
    return letter(event_id, **values)


async def ids(store: DeadLetterStore, wanted: LetterFilter) -> set[str]:
    """The events of the letters that fit."""
    return {row.event_id for row in (await store.query(wanted, limit=100)).letters}


class DeadLettersContract(StoreContract):
    """Kept whole, changed by compare-and-set with a trail, replayed through the outbox: the rules for every store."""

    def test_a_letter_is_kept_whole(self) -> None:
        async def test(opened: Opened) -> None:
            row = await opened.store.put(letter(behind="nothing"))
            kept = await opened.store.get(row.id)
            assert kept == row
            for name in ("consumer", "topic", "key", "source", "event_id", "event_type", "epoch", "attributes"):
                assert getattr(kept, name) == getattr(letter(), name)
            for name in ("payload", "encoding", "reason", "error_type", "error", "traceback", "attempts", "saga_id"):
                assert getattr(kept, name) == getattr(letter(), name)
            assert (kept.status, kept.correlation_id, kept.replays, kept.version) == ("pending", "request-1", 0, 1)
            assert kept.created_at == kept.failed_at == kept.first_failed_at
            assert await opened.store.get("nothing") is None

        self.run(test)

    def test_the_same_failure_is_written_once(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            rows = await asyncio.gather(*(store.put(letter()) for _ in range(8)))
            assert len({row.id for row in rows}) == 1
            assert await store.count(LetterFilter()) == 1
            assert len(await store.audit(rows[0].id)) == 1

        self.run(test)

    def test_consumers_topics_and_sources_have_letters_of_their_own(self) -> None:
        async def test(opened: Opened) -> None:
            for change in ({}, {"consumer": "shipping"}, {"topic": "returns"}, {"source": "/shop"}):
                await opened.store.put(letter(**change))
            assert await opened.store.count(LetterFilter()) == 4

        self.run(test)

    def test_letters_are_tallied_by_consumer_reason_and_status(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            assert dict(await store.tally()) == {}
            for event_id in ("e-1", "e-2"):
                await store.put(letter(event_id))
            await store.put(parked("e-3"))
            last = await store.put(letter("e-4", consumer="shipping", reason="rejected"))
            await store.transition(last.id, Status.PENDING, Status.DISCARDED, ANN)
            assert dict(await store.tally()) == {
                ("billing", "attempts", "pending"): 2,
                ("billing", "parked", "parked"): 1,
                ("shipping", "rejected", "discarded"): 1,
            }

        self.run(test)

    def test_the_age_of_a_consumers_oldest_letter_counts_only_those_unresolved(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            assert dict(await store.oldest()) == {}
            first = await store.put(letter("e-1"))
            await self.let_pass(0.2)
            await store.put(letter("e-2", consumer="shipping"))
            await store.put(letter("e-3", key="order-8"))
            ages = await store.oldest()
            assert set(ages) == {"billing", "shipping"}
            assert ages["billing"] >= ages["shipping"] + 0.19
            await store.transition(first.id, Status.PENDING, Status.REPLAYED, ANN)
            again = await store.oldest()  # nobody knows yet how it ends
            assert again["billing"] >= again["shipping"] + 0.19
            await store.transition(first.id, Status.REPLAYED, Status.RESOLVED, ANN)
            left = await store.oldest()
            assert left["billing"] <= left["shipping"]

        self.run(test)

    def test_a_replay_that_fails_supersedes_the_letter_and_counts(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            first = await store.put(letter())
            await store.transition(first.id, Status.PENDING, Status.REPLAYED, ANN)
            assert (await store.get(first.id)).replays == 1
            second = await store.put(letter(epoch=1))
            assert second.id != first.id
            assert (second.status, second.replays, second.position) == ("pending", 1, first.position)
            assert second.first_failed_at == first.failed_at
            assert (await store.get(first.id)).status == "superseded"

        self.run(test)

    def test_an_old_copy_that_fails_after_a_replay_changes_nothing(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            await store.put(letter(epoch=2))
            again = await store.put(letter(epoch=1))
            assert again.epoch == 2
            assert await store.count(LetterFilter()) == 1

        self.run(test)

    # ------------------------------------------------------------------ finding them

    def test_every_filter_finds_what_fits_and_nothing_else(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            odd: dict[str, Any] = {
                "consumer": "shipping", "event_type": "OrderPaid", "error_type": "KeyError", "topic": "paid",
                "key": "order-8", "source": "/pay", "saga_id": "saga-2", "correlation_id": None, "reason": "rejected",
            }  # fmt: skip
            await store.put(letter("e-1"))
            row = await store.put(letter("e-2", **odd))
            await store.transition(row.id, Status.PENDING, Status.DISCARDED, ANN)
            wanted: dict[str, Any] = {
                "consumer": "shipping", "type": "OrderPaid", "error": "KeyError", "topic": "paid", "key": "order-8",
                "source": "/pay", "saga": "saga-2", "reason": "rejected", "event_id": "e-2",
                "status": (Status.DISCARDED, Status.RESOLVED),
            }  # fmt: skip
            for name, value in wanted.items():
                assert await ids(store, LetterFilter(**{name: value})) == {"e-2"}, name
                assert await store.count(LetterFilter(**{name: value})) == 1, name
            assert await ids(store, LetterFilter(**wanted)) == {"e-2"}
            assert await ids(store, LetterFilter(consumer="shipping", type="OrderCreated")) == set()
            assert await ids(store, LetterFilter(error="Down")) == {"e-1"}
            assert await ids(store, LetterFilter(error="shop.errors.Down")) == {"e-1"}
            assert await ids(store, LetterFilter(correlation="request-1")) == {"e-1"}
            assert await ids(store, LetterFilter(status=())) == set()
            assert await ids(store, LetterFilter(status=Status.PENDING)) == {"e-1"}
            assert await ids(store, LetterFilter()) == {"e-1", "e-2"}

        self.run(test)

    def test_letters_are_found_by_when_they_failed(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            old = await store.put(letter("old"))
            await self.let_pass(self.moment)
            new = await store.put(letter("new"))
            assert await ids(store, LetterFilter(since=new.failed_at)) == {"new"}
            assert await ids(store, LetterFilter(until=new.failed_at)) == {"old"}
            assert await ids(store, LetterFilter(since=old.failed_at)) == {"old", "new"}
            assert await ids(store, LetterFilter(older_than=self.moment)) == {"old"}
            assert await ids(store, LetterFilter(older_than=600)) == set()
            assert await ids(store, LetterFilter(since=-1e300, until=1e300)) == {"old", "new"}  # no calendar has these
            assert await ids(store, LetterFilter(since=1e300)) == set()
            nan = float("nan")
            refused: list[dict[str, Any]] = [{"since": nan}, {"until": "noon"}, {"older_than": nan}, {"older_than": -1}]
            for wrong in refused:
                with pytest.raises(ConfigError, match=f"{next(iter(wrong))} must be seconds"):
                    LetterFilter(**wrong)

        self.run(test)

    def test_pages_are_stable_while_letters_come_and_go(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            for number in range(7):
                await store.put(letter(f"e-{number}"))
            page = await store.query(LetterFilter(), limit=3)
            seen = [row.event_id for row in page.letters]
            await self.let_pass(self.moment)
            await store.put(letter("newer"))
            while page.next is not None:
                page = await store.query(LetterFilter(), limit=3, cursor=page.next)
                seen += [row.event_id for row in page.letters]
            assert sorted(seen) == [f"e-{number}" for number in range(7)]
            again: list[str] = []
            page = await store.query(LetterFilter(), limit=3, oldest_first=True)
            again += [row.event_id for row in page.letters]
            while page.next is not None:
                page = await store.query(LetterFilter(), limit=3, cursor=page.next, oldest_first=True)
                again += [row.event_id for row in page.letters]
            assert again == [*reversed(seen), "newer"]
            assert len((await store.query(LetterFilter(), limit=8)).letters) == 8
            for wrong in ("made up", "W10", "W05hTiwgIngiXQ"):  # the last one says [NaN, "x"]
                with pytest.raises(ConfigError, match="cursor must be one that a page gave"):
                    await store.query(LetterFilter(), limit=3, cursor=wrong)
            assert len((await store.query(LetterFilter(), limit=9, cursor="WzFlNDAwLCAieCJd")).letters) == 8  # infinity

        self.run(test)

    # ------------------------------------------------------------------ changing them

    def test_of_sixteen_who_change_a_letter_at_once_one_does_and_the_others_get_nothing(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            row = await store.put(letter())
            targets = (Status.REPLAYED, Status.DISCARDED)
            changes = [store.transition(row.id, Status.PENDING, targets[n % 2], ANN) for n in range(16)]
            won = [moved for moved in await asyncio.gather(*changes) if moved is not None]
            assert len(won) == 1
            assert len(await store.audit(row.id)) == 2
            assert (await store.get(row.id)).status == won[0].status

        self.run(test)

    def test_a_change_with_an_old_version_does_nothing(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            row = await store.put(letter())
            assert (
                await store.transition(row.id, Status.PENDING, Status.DISCARDED, ANN, version=row.version + 1) is None
            )
            moved = await store.transition(row.id, Status.PENDING, Status.DISCARDED, ANN, version=row.version)
            assert moved is not None
            assert moved.version == row.version + 1

        self.run(test)

    def test_what_cannot_happen_is_refused(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            row = await store.put(letter())
            for before, after in (
                (Status.DISCARDED, Status.REPLAYED),
                (Status.RESOLVED, Status.PENDING),
                (Status.PENDING, Status.PARKED),
                (Status.SUPERSEDED, Status.REPLAYED),
            ):
                with pytest.raises(DeadLetterStateError, match=f"is {before.value}, and cannot become {after.value}"):
                    await store.transition(row.id, before, after, ANN)
            assert (await store.get(row.id)).status == "pending"

        self.run(test)

    def test_every_change_leaves_a_line_in_the_trail(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            row = await store.put(letter())
            await store.transition(row.id, Status.PENDING, Status.REPLAYED, ANN)
            await store.settle("billing", "/orders", "e-1", "orders")
            trail = await store.audit(row.id)
            assert [(line.before, line.after) for line in trail] == [
                (None, "pending"),
                ("pending", "replayed"),
                ("replayed", "resolved"),
            ]
            assert (trail[1].actor, trail[1].kind, trail[1].reason) == ("ann", "human", "fixed")
            assert trail[0].at <= trail[1].at <= trail[2].at

        self.run(test)

    def test_settling_resolves_what_waits_and_nothing_of_others(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            mine, other = await store.put(letter()), await store.put(letter(consumer="shipping"))
            assert await store.settle("billing", "/orders", "e-1", "orders") == [Status.PENDING]
            assert await store.settle("billing", "/orders", "e-1", "orders") == []
            assert (await store.get(mine.id)).status == "resolved"
            assert (await store.get(other.id)).status == "pending"

        self.run(test)

    # ------------------------------------------------------------------ with the outbox

    def test_a_replay_is_a_change_of_status_and_a_row_of_the_outbox_or_neither(self) -> None:
        async def test(opened: Opened) -> None:
            transaction, store, outbox = self.transactions(opened), opened.store, opened.engine.outbox
            row = await store.put(letter())

            async def replay(tx: Any) -> None:
                epoch = await store.next_epoch(row, tx=tx)
                assert epoch == 1
                assert await store.transition(row.id, Status.PENDING, Status.REPLAYED, ANN, tx=tx)
                await outbox.append([_sent(row, epoch)], tx=tx)

            await rolled_back(transaction, replay)
            assert (await store.get(row.id)).status == "pending"
            assert len(await store.audit(row.id)) == 1
            assert (await outbox.stats()).depth == 0
            async with transaction() as tx:
                await replay(tx)
            assert (await store.get(row.id)).status == "replayed"
            assert (await outbox.stats()).depth == 1

        self.run(test)

    def test_an_event_that_has_not_left_the_outbox_must_be_waited_for_and_epochs_only_grow(self) -> None:
        async def test(opened: Opened) -> None:
            transaction, store, outbox = self.transactions(opened), opened.store, opened.engine.outbox
            mine, other = await store.put(letter()), await store.put(letter(consumer="shipping"))
            await outbox.append([_sent(mine, 1)])
            async with transaction() as tx:
                assert await store.next_epoch(other, tx=tx) is None
            (claimed,) = await outbox.claim("relay", 10, 60)
            await outbox.ack([claimed.lease])
            async with transaction() as tx:
                assert await store.next_epoch(other, tx=tx) == 2
            await store.put(letter(epoch=5))
            async with transaction() as tx:
                assert await store.next_epoch(other, tx=tx) == 6

        self.run(test)

    def test_a_letter_in_a_transaction_that_is_rolled_back_was_never_written(self) -> None:
        async def test(opened: Opened) -> None:
            transaction, store = self.transactions(opened), opened.store
            await rolled_back(transaction, lambda tx: store.put(letter(), tx=tx))
            assert await store.count(LetterFilter()) == 0

        self.run(test)

    # ------------------------------------------------------------------ those behind a letter of their key

    def test_later_events_of_a_key_wait_in_their_order(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            front = await store.put(letter("e-1"))
            await store.put(parked("e-2"))
            await store.put(parked("e-3"))

            async def blocks(event: str, key: str = "order-7", consumer: str = "billing") -> str | None:
                row = await store.blocking(consumer, "orders", key, "/orders", event)
                return None if row is None else str(row.event_id)

            assert [await blocks(event) for event in ("e-1", "e-2", "e-3", "e-4")] == [None, "e-1", "e-1", "e-1"]
            assert await blocks("e-4", key="order-8") is None
            assert await blocks("e-4", consumer="shipping") is None
            assert await store.parked("billing", "orders", "order-7", limit=10) == []
            assert list(await store.parked_keys("billing", 10)) == []
            await store.transition(front.id, Status.PENDING, Status.REPLAYED, ANN)
            assert await blocks("e-2") == "e-1"  # nobody knows yet how the replay ends
            await store.settle("billing", "/orders", "e-1", "orders")
            assert await blocks("e-2") is None
            assert await blocks("e-3") == "e-2"
            followers = await store.parked("billing", "orders", "order-7", limit=10)
            assert [row.event_id for row in followers] == ["e-2", "e-3"]
            assert list(await store.parked_keys("billing", 10)) == [("orders", "order-7")]

        self.run(test)

    def test_who_comes_back_keeps_its_place(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            first = await store.put(letter("e-1"))
            await store.put(parked("e-2"))
            await store.transition(first.id, Status.PENDING, Status.REPLAYED, ANN)
            await store.put(letter("e-1", epoch=1))
            blocking = await store.blocking("billing", "orders", "order-7", "/orders", "e-2")
            assert (blocking.event_id, blocking.epoch) == ("e-1", 1)
            assert await store.blocking("billing", "orders", "order-7", "/orders", "e-1") is None

        self.run(test)

    def test_a_replay_with_another_key_leaves_its_line_and_stands_in_the_other(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            front = await store.put(letter("e-1"))
            await store.put(parked("e-2"))
            moved = await store.transition(front.id, Status.PENDING, Status.REPLAYED, ANN, key="order-8")
            assert (moved.key, moved.status, moved.attributes) == ("order-8", "replayed", front.attributes)
            followers = await store.parked("billing", "orders", "order-7", limit=10)
            assert [row.event_id for row in followers] == ["e-2"]
            assert await store.blocking("billing", "orders", "order-7", "/orders", "e-2") is None
            blocking = await store.blocking("billing", "orders", "order-8", "/orders", "e-9")
            assert blocking.event_id == "e-1"

        self.run(test)

    def test_what_came_behind_a_letter_in_its_key_is_known_where_its_row_and_its_inbox_are(self) -> None:
        async def test(opened: Opened) -> None:
            engine, store = opened.engine, opened.store
            await engine.outbox.append([_row(f"e-{number}") for number in range(1, 6)] + [_row("x-1", key="order-8")])
            claimed = await engine.outbox.claim("relay", 10, 60)
            await engine.outbox.ack([one.lease for one in claimed])
            first = await store.put(letter("e-1"))
            assert await store.newer(first) == Newer(waiting=0, handled=0, exact=False)  # no inbox of its consumer
            for event_id in ("e-2", "e-3", "x-1"):
                begun = await engine.inbox.begin("billing", inbox_key("/orders", event_id))
                assert await engine.inbox.complete(begun.token)
            await engine.inbox.begin("billing", inbox_key("/orders", "e-4"))  # at work
            await store.put(parked("e-5"))
            assert await store.newer(first) == Newer(waiting=1, handled=2, exact=True)
            elsewhere = await store.put(letter("e-1", consumer="shipping"))
            assert await store.newer(elsewhere) == Newer(waiting=0, handled=0, exact=False)
            assert await store.newer(await store.put(letter("e-9", key=None))) == Newer(exact=True)

        self.run(test)

    def test_of_an_event_from_elsewhere_it_is_known_what_its_letters_say(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            first = await store.put(letter("e-1"))
            for number in range(2, 5):
                await store.put(parked(f"e-{number}"))
            await store.settle("billing", "/orders", "e-2", "orders")
            assert await store.newer(first) == Newer(waiting=2, handled=1, exact=False)

        self.run(test)

    def test_letters_of_the_outbox_know_what_is_parked_behind_them(self) -> None:
        async def test(opened: Opened) -> None:
            outbox, store = opened.engine.outbox, opened.store
            await outbox.append([_row("e-1"), _row("e-2"), _row("e-3")])
            (first,) = await outbox.claim("relay", 1, 60)
            id = await outbox.bury(first.lease, ErrorInfo("ValueError", "refused"), reason="refused")
            assert await store.newer(await store.get(id)) == Newer(waiting=2, handled=0, exact=True)

        self.run(test)

    # ------------------------------------------------------------------ tidying up

    def test_to_make_room_only_finished_letters_go_the_oldest_first_and_their_trail_stays(self) -> None:
        async def test(opened: Opened) -> None:
            store, house = opened.store, Change(actor="billing", reason="made room")
            rows = [await store.put(letter(f"e-{number}")) for number in range(4)]
            for row in rows[:3]:
                await store.transition(row.id, Status.PENDING, Status.DISCARDED, ANN)
                await self.let_pass(self.moment)
            other = await store.put(letter("e-0", consumer="shipping"))
            await store.transition(other.id, Status.PENDING, Status.DISCARDED, ANN)
            assert await store.make_room("billing", 2, house) == 2
            assert await ids(store, LetterFilter(consumer="billing")) == {"e-2", "e-3"}
            assert await store.make_room("billing", 10, house) == 1
            assert await store.make_room("billing", 10, house) == 0  # what waits is never deleted
            assert await ids(store, LetterFilter()) == {"e-0", "e-3"}
            last = (await store.audit(rows[0].id))[-1]
            assert (last.before, last.after, last.reason) == ("discarded", None, "made room")

        self.run(test)

    def test_room_made_in_a_transaction_that_is_rolled_back_was_never_made(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            row = await store.put(letter())
            await store.transition(row.id, Status.PENDING, Status.DISCARDED, ANN)

            async def make_room(tx: Any) -> None:
                assert await store.make_room("billing", 10, ANN, tx=tx) == 1
                assert await store.count(LetterFilter(), tx=tx) == 0

            await rolled_back(self.transactions(opened), make_room)
            assert await store.get(row.id) is not None
            assert [line.after for line in await store.audit(row.id)] == ["pending", "discarded"]

        self.run(test)

    def test_how_often_a_waiting_letter_was_replayed_is_not_forgotten_with_its_old_letters(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            first = await store.put(letter())
            await store.transition(first.id, Status.PENDING, Status.REPLAYED, ANN)
            second = await store.put(letter(epoch=1))
            await self.let_pass(self.moment)
            assert await store.make_room("billing", 10, ANN) == 0
            assert await store.purge(0, 10, ANN) == 0
            assert (await store.get(second.id)).replays == 1
            await store.settle("billing", "/orders", "e-1", "orders")
            assert await store.make_room("billing", 10, ANN) == 2

        self.run(test)

    def test_a_consumer_purges_its_own_letters(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            for consumer in ("billing", "shipping"):
                row = await store.put(letter(consumer=consumer))
                await store.transition(row.id, Status.PENDING, Status.DISCARDED, ANN)
            await self.let_pass(self.moment)
            assert await store.purge(0, 10, ANN, consumer="billing") == 1
            (left,) = (await store.query(LetterFilter(), limit=10)).letters
            assert left.consumer == "shipping"

        self.run(test)

    def test_purging_is_bounded_never_takes_what_waits_and_leaves_a_trail(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            waiting = await store.put(letter("waiting"))
            rows = [await store.put(letter(f"e-{number}")) for number in range(5)]
            for row in rows:
                await store.transition(row.id, Status.PENDING, Status.DISCARDED, ANN)
            assert await store.purge(600, 10, Change(actor="house")) == 0
            await self.let_pass(self.moment)
            assert await store.purge(self.moment, 3, Change(actor="house", reason="retention")) == 3
            assert await store.purge(self.moment, 3, Change(actor="house", reason="retention")) == 2
            assert await store.purge(self.moment, 3, Change(actor="house", reason="retention")) == 0
            assert await ids(store, LetterFilter()) == {"waiting"}
            assert (await store.get(waiting.id)).status == "pending"
            last = (await store.audit(rows[0].id))[-1]
            assert (last.before, last.after, last.actor, last.reason) == ("discarded", None, "house", "retention")
            await self.let_pass(self.moment)
            await store.purge(self.moment, 100, Change())
            assert await store.audit(rows[0].id) == []
            assert len(await store.audit(waiting.id)) == 1

        self.run(test)


def _row(event_id: str, key: str = "order-7") -> OutboxRow:
    return OutboxRow(event_id, "/orders", "OrderCreated", "orders", key, "{}", "{}")


def _sent(row: Any, epoch: int) -> OutboxRow:
    return OutboxRow(
        row.event_id, row.source, row.event_type, row.topic, row.key, row.attributes, row.payload, row.encoding, epoch
    )
