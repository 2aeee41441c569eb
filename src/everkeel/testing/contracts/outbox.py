"""What a store of outgoing events must do, as tests. Subclass it next to your store:

class TestMyStore(OutboxContract):
    @asynccontextmanager
    async def open(self):
        async with MyEngine() as engine:
            yield Opened(engine.outbox, engine.transaction, engine)
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Any

import pytest

from everkeel.engines.letters import LetterFilter
from everkeel.engines.protocols import OutboxStore
from everkeel.engines.rows import Claimed, ErrorInfo, OutboxRow, Retry
from everkeel.testing.contracts.inbox import Opened, StoreContract

REFUSED = ErrorInfo("ValueError", "refused")


def row(id: str, key: str | None = None, *, topic: str = "events", epoch: int = 0, payload: str = "{}") -> OutboxRow:
    """A row to be written."""
    return OutboxRow(id, "/tests", "tested", topic, key, '{"sagaid":"s-1"}', payload, None, epoch)


async def claim(store: OutboxStore, limit: int = 100, lease: float = 60.0, **options: Any) -> list[Claimed]:
    """What can be claimed."""
    return await store.claim("me", limit, lease, **options)


def transactions(opened: Opened) -> Callable[[], AbstractAsyncContextManager[Any]]:
    """How to begin one; the test is left out where the store has none."""
    if opened.transaction is None:
        pytest.skip("this store has no transactions")
    return opened.transaction


def ids(claimed: list[Claimed]) -> list[str]:
    """Which rows they are."""
    return [item.row.id for item in claimed]


class OutboxContract(StoreContract):
    """Written once, claimed by one, delivered at least once and in order per key: the rules for every store."""

    # ------------------------------------------------------------------ writing

    def test_a_row_comes_back_as_it_was_written(self) -> None:
        async def test(opened: Opened) -> None:
            written = OutboxRow("1", "/ä", "t", "topic", "clé", '{"subject":"ü"}', '"\\u0000 ∞ \'"', "base64", 0)
            await opened.store.append([written])
            (claimed,) = await claim(opened.store)
            assert claimed.row == written
            assert claimed.lease.attempt == 1
            assert claimed.failures == 0
            assert 0 <= claimed.age < 60

        self.run(test)

    def test_the_same_event_is_kept_once_per_topic(self) -> None:
        async def test(opened: Opened) -> None:
            await opened.store.append([row("1"), row("1")])
            await opened.store.append([row("1"), row("1", topic="other")])
            assert len(await claim(opened.store)) == 2

        self.run(test)

    def test_a_delivered_event_is_not_taken_again(self) -> None:
        async def test(opened: Opened) -> None:
            await opened.store.append([row("1")])
            await opened.store.ack([item.lease for item in await claim(opened.store)])
            await opened.store.append([row("1")])
            assert await claim(opened.store) == []

        self.run(test)

    def test_a_higher_epoch_is_delivered_again(self) -> None:
        async def test(opened: Opened) -> None:
            await opened.store.append([row("1")])
            await opened.store.ack([item.lease for item in await claim(opened.store)])
            await opened.store.append([row("1", epoch=1, payload="[]")])
            (again,) = await claim(opened.store)
            assert (again.row.epoch, again.row.payload, again.lease.attempt) == (1, "[]", 1)

        self.run(test)

    def test_a_rolled_back_transaction_leaves_nothing(self) -> None:
        async def test(opened: Opened) -> None:
            begin = transactions(opened)

            async def fails() -> None:
                async with begin() as tx:
                    await opened.store.append([row("1")], tx=tx)
                    raise KeyError

            with pytest.raises(KeyError):
                await fails()
            assert await claim(opened.store) == []
            assert (await opened.store.stats()).depth == 0

        self.run(test)

    def test_nobody_sees_a_row_before_its_transaction_is_committed(self) -> None:
        async def test(opened: Opened) -> None:
            begin = transactions(opened)
            async with begin() as tx:
                await opened.store.append([row("1")], tx=tx)
                assert (await opened.store.stats()).depth == 0
            assert ids(await claim(opened.store)) == ["1"]

        self.run(test)

    def test_a_delayed_row_waits_for_its_time(self) -> None:
        async def test(opened: Opened) -> None:
            await opened.store.append([row("1")], delay=self.moment)
            assert await claim(opened.store) == []
            assert (await opened.store.stats()).delayed == 1
            await self.let_pass(self.moment)
            assert ids(await claim(opened.store)) == ["1"]

        self.run(test)

    # ------------------------------------------------------------------ claims

    def test_two_claimers_never_share(self) -> None:
        async def test(opened: Opened) -> None:
            await opened.store.append([row(str(n)) for n in range(60)])
            claims = await asyncio.gather(*(opened.store.claim(f"c{n}", 10, 60.0) for n in range(8)))
            taken = [id for claimed in claims for id in ids(claimed)]
            assert len(taken) == len(set(taken))

        self.run(test)

    def test_the_limit_is_respected(self) -> None:
        async def test(opened: Opened) -> None:
            await opened.store.append([row(str(n), "k" if n % 2 else None) for n in range(20)])
            assert len(await claim(opened.store, 7)) == 7
            assert len(await claim(opened.store, 1)) == 1

        self.run(test)

    def test_what_was_written_first_is_claimed_first(self) -> None:
        async def test(opened: Opened) -> None:
            for n in range(5):
                await opened.store.append([row(str(n))])
            assert ids(await claim(opened.store, 3)) == ["0", "1", "2"]

        self.run(test)

    def test_topics_can_be_left_out(self) -> None:
        async def test(opened: Opened) -> None:
            await opened.store.append([row("1", topic="sick"), row("2", topic="well"), row("3", "k", topic="sick")])
            assert ids(await claim(opened.store, without=["sick"])) == ["2"]

        self.run(test)

    def test_a_key_is_claimed_in_order_and_by_one_at_a_time(self) -> None:
        async def test(opened: Opened) -> None:
            await opened.store.append([row(str(n), "k") for n in range(6)])
            first = await claim(opened.store, 3)
            assert ids(first) == ["0", "1", "2"]
            assert await claim(opened.store) == []  # the rest stands behind what is being delivered
            await opened.store.ack([item.lease for item in first])
            assert ids(await claim(opened.store)) == ["3", "4", "5"]

        self.run(test)

    def test_every_key_gets_its_turn_before_one_gets_a_second(self) -> None:
        async def test(opened: Opened) -> None:
            await opened.store.append([row(f"a{n}", "a") for n in range(5)] + [row(f"b{n}", "b") for n in range(5)])
            assert Counter(id[0] for id in ids(await claim(opened.store, 4))) == {"a": 2, "b": 2}

        self.run(test)

    def test_keys_of_different_topics_are_different_keys(self) -> None:
        async def test(opened: Opened) -> None:
            await opened.store.append([row("1", "k", topic="a"), row("2", "k", topic="b")])
            (first,) = await claim(opened.store, 1)
            assert len(await claim(opened.store)) == 1
            assert first.row.topic == "a"

        self.run(test)

    def test_followers_wait_while_the_first_of_their_key_is_retried(self) -> None:
        async def test(opened: Opened) -> None:
            await opened.store.append([row("1", "k"), row("2", "k"), row("3", "other"), row("4")])
            claimed = await claim(opened.store)
            first = next(item for item in claimed if item.row.id == "1")
            await opened.store.release([item.lease for item in claimed if item is not first])
            await opened.store.retry([Retry(first.lease, self.moment, REFUSED)])
            await opened.store.append([row("5", "k")])
            assert sorted(ids(await claim(opened.store))) == ["3", "4"]
            await self.let_pass(self.moment)
            assert ids(await claim(opened.store)) == ["1", "2", "5"]

        self.run(test)

    def test_a_delayed_row_holds_those_behind_it(self) -> None:
        async def test(opened: Opened) -> None:
            await opened.store.append([row("1", "k")])
            await opened.store.append([row("2", "k")], delay=60)
            await opened.store.append([row("3", "k")])
            assert ids(await claim(opened.store)) == ["1"]

        self.run(test)

    def test_a_long_line_that_cannot_go_holds_only_itself(self) -> None:
        async def test(opened: Opened) -> None:
            await opened.store.append([row(f"stuck{n}", "stuck") for n in range(100)])
            (front,) = await claim(opened.store, 1)
            await opened.store.append([row("free")])
            assert ids(await claim(opened.store, 5)) == ["free"]
            await opened.store.retry([Retry(front.lease, 60.0, REFUSED)])
            await opened.store.append([row("free too", "k")])
            assert ids(await claim(opened.store, 5)) == ["free too"]

        self.run(test)

    # ------------------------------------------------------------------ leases

    def test_a_lease_that_ran_out_is_claimed_again_and_counted(self) -> None:
        async def test(opened: Opened) -> None:
            await opened.store.append([row("1", "k"), row("2", "k")])
            await claim(opened.store, lease=self.moment)
            assert await claim(opened.store) == []
            await self.let_pass(self.moment)
            again = await claim(opened.store)
            assert ids(again) == ["1", "2"]
            assert [item.lease.attempt for item in again] == [2, 2]

        self.run(test)

    def test_who_lost_the_lease_changes_nothing(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            await store.append([row("1")])
            (late,) = await claim(store, lease=self.moment)
            await self.let_pass(self.moment)
            (current,) = await claim(store)
            assert await store.ack([late.lease]) == frozenset()
            assert await store.extend([late.lease], 60) == frozenset()
            assert await store.retry([Retry(late.lease, 0.0, REFUSED)]) == frozenset()
            assert await store.release([late.lease]) == frozenset()
            assert await store.bury(late.lease, REFUSED, reason="attempts") is None
            assert await claim(store) == []
            assert await store.ack([current.lease]) == {current.lease.seq}

        self.run(test)

    def test_a_lease_can_be_extended(self) -> None:
        async def test(opened: Opened) -> None:
            await opened.store.append([row("1")])
            (claimed,) = await claim(opened.store, lease=self.moment)
            assert await opened.store.extend([claimed.lease], 60) == {claimed.lease.seq}
            await self.let_pass(self.moment)
            assert await claim(opened.store) == []
            assert await opened.store.ack([claimed.lease]) == {claimed.lease.seq}

        self.run(test)

    def test_an_acknowledgement_counts_once(self) -> None:
        async def test(opened: Opened) -> None:
            await opened.store.append([row("1"), row("2")])
            leases = [item.lease for item in await claim(opened.store)]
            assert await opened.store.ack(leases) == {lease.seq for lease in leases}
            assert await opened.store.ack(leases) == frozenset()
            assert await opened.store.ack([]) == frozenset()

        self.run(test)

    def test_a_retry_honours_its_delay_and_is_counted(self) -> None:
        async def test(opened: Opened) -> None:
            await opened.store.append([row("1"), row("2")])
            one, two = await claim(opened.store)
            await opened.store.retry(
                [Retry(one.lease, self.moment, REFUSED), Retry(two.lease, 0, REFUSED, counted=False)]
            )
            (again,) = await claim(opened.store)
            assert (again.row.id, again.failures, again.lease.attempt) == ("2", 0, 1)
            await self.let_pass(self.moment)
            (again,) = await claim(opened.store)
            assert (again.row.id, again.failures, again.lease.attempt) == ("1", 1, 2)

        self.run(test)

    def test_a_released_row_is_as_if_it_was_never_claimed(self) -> None:
        async def test(opened: Opened) -> None:
            await opened.store.append([row("1"), row("2")])
            await opened.store.release([item.lease for item in await claim(opened.store)])
            again = await claim(opened.store)
            assert ids(again) == ["1", "2"]
            assert {item.lease.attempt for item in again} == {1}

        self.run(test)

    # ------------------------------------------------------------------ giving up

    def test_a_buried_row_is_a_dead_letter_and_nothing_else(self) -> None:
        async def test(opened: Opened) -> None:
            await opened.store.append([row("1", payload="[7]")])
            (claimed,) = await claim(opened.store)
            letter = await opened.store.bury(claimed.lease, REFUSED, reason="attempts", consumer="outbox")
            assert letter is not None
            kept = await opened.engine.dead_letters.get(letter)
            assert (kept.event_id, kept.payload, kept.reason, kept.error) == ("1", "[7]", "attempts", "refused")
            assert (kept.consumer, kept.error_type, kept.saga_id) == ("outbox", "ValueError", "s-1")
            assert await claim(opened.store) == []
            assert (await opened.store.stats()).depth == 0

        self.run(test)

    def test_a_burial_that_fails_leaves_the_row_where_it_was(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def test(opened: Opened) -> None:
            await opened.store.append([row("1", "k")])
            (claimed,) = await claim(opened.store)

            async def full(*args: object, **options: object) -> None:
                raise OSError("disk full")

            with monkeypatch.context() as patched:
                patched.setattr(opened.engine.dead_letters, "put", full)
                with pytest.raises(OSError, match="disk full"):
                    await opened.store.bury(claimed.lease, REFUSED, reason="attempts")
            assert await opened.engine.dead_letters.count(LetterFilter()) == 0
            assert await opened.store.ack([claimed.lease]) == {claimed.lease.seq}

        self.run(test)

    def test_those_behind_a_dead_letter_are_parked_until_it_is_discarded(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            await store.append([row("1", "k"), row("2", "k"), row("3", "other")])
            (claimed,) = await claim(store, 1)
            assert await store.bury(claimed.lease, REFUSED, reason="attempts")
            await store.append([row("4", "k")])
            assert ids(await claim(store)) == ["3"]
            await store.park(10)
            assert ((await store.stats()).parked, (await store.stats()).depth) == (2, 1)
            assert await store.discard("/tests", "1", "events")
            assert not await store.discard("/tests", "1", "events")
            assert ids(await claim(store)) == ["2", "4"]

        self.run(test)

    def test_a_dead_letter_replayed_with_another_key_changes_lines(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            await store.append([row("1", "wrong"), row("2", "wrong"), row("3", "right"), row("4", None)])
            taken = {item.row.id: item.lease for item in await claim(store, 4)}
            await store.release([taken["2"]])
            await store.bury(taken["1"], REFUSED, reason="attempts")
            await store.ack([taken["4"]])
            await store.append([row("1", "right", epoch=1), row("4", "right", epoch=1)])
            assert ids(await claim(store)) == ["2"]  # those it left may go, and it stands behind who is on the way
            await store.ack([taken["3"]])
            assert [(item.row.id, item.row.key) for item in await claim(store)] == [("1", "right"), ("4", "right")]

        self.run(test)

    def test_a_replayed_dead_letter_goes_first_and_those_behind_it_follow(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            await store.append([row("1", "k"), row("2", "k")])
            (claimed,) = await claim(store, 1)
            await store.bury(claimed.lease, REFUSED, reason="attempts")
            await store.append([row("3", "k")])
            await store.append([row("1", "k", epoch=1)])
            again = await claim(store)
            assert ids(again) == ["1", "2", "3"]
            assert again[0].failures == 0

        self.run(test)

    def test_without_parking_those_behind_go_on(self) -> None:
        async def test(opened: Opened) -> None:
            await opened.store.append([row("1", "k"), row("2", "k")])
            (claimed,) = await claim(opened.store, 1)
            await opened.store.bury(claimed.lease, REFUSED, reason="attempts", park=False)
            assert ids(await claim(opened.store)) == ["2"]

        self.run(test)

    # ------------------------------------------------------------------ looking and cleaning up

    def test_stats_are_exact(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            assert (await store.stats()).oldest_age == 0
            await store.append([row(str(n), topic=f"t{n % 2}") for n in range(5)])
            await store.append([row("late")], delay=60)
            done, *_ = await claim(store, 3)
            await store.ack([done.lease])
            await self.let_pass(self.moment)
            stats = await store.stats()
            assert (stats.depth, stats.leased, stats.delayed, stats.parked) == (5, 2, 1, 0)
            assert dict(stats.by_topic) == {"t0": 2, "t1": 2, "events": 1}
            assert stats.oldest_age >= self.moment

        self.run(test)

    def test_a_purge_is_bounded_and_never_takes_what_waits(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            await store.append([row(str(n)) for n in range(7)])
            await store.ack([item.lease for item in await claim(store, 5)])
            assert await store.purge(60, 100) == 0
            await self.let_pass(self.moment)
            assert await store.purge(self.moment, 3) == 3
            assert await store.purge(self.moment, 100) == 2
            assert (await store.stats()).depth == 2
            assert len(await claim(store)) == 2

        self.run(test)

    rows_of_the_race = 300
    """How many rows the race below has."""

    def test_eight_claimers_of_which_some_die_deliver_everything_and_acknowledge_it_once(self) -> None:
        async def test(opened: Opened) -> None:
            store, count = opened.store, self.rows_of_the_race
            for start in range(0, count, 50):
                await store.append([row(str(n), f"k{n % 7}" if n % 3 else None) for n in range(start, start + 50)])
            delivered: list[str] = []
            acknowledged: Counter[str] = Counter()

            async def worker(chance: Random) -> None:
                while sum(acknowledged.values()) < count:
                    claimed = await store.claim("w", 10, self.moment)
                    if not claimed:
                        await asyncio.sleep(0)
                        await self.let_pass(self.moment / 4)
                        continue
                    delivered.extend(ids(claimed))
                    if chance.random() < 0.15:
                        continue  # it died here, and its leases run out
                    kept = await store.ack([item.lease for item in claimed])
                    acknowledged.update(item.row.id for item in claimed if item.lease.seq in kept)

            await asyncio.gather(*(worker(Random(seed)) for seed in range(8)))
            assert set(delivered) == {str(n) for n in range(count)}
            assert set(acknowledged.values()) == {1}
            assert (await store.stats()).depth == 0

        self.run(test)
