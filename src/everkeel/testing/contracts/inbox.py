"""What a store of idempotency records must do, as tests. Subclass it next to your store:

class TestMyStore(InboxContract):
    @asynccontextmanager
    async def open(self):
        async with MyEngine() as engine:
            yield Opened(engine.inbox, engine.transaction)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import pytest

from everkeel.errors import ConfigError
from everkeel.idempotency import Duplicate, Fresh, IdempotencyStore, InProgress, Mismatch, State, Token


@dataclass(frozen=True, slots=True)
class Opened:
    """A store that is ready, empty, and this test's own."""

    store: Any
    transaction: Callable[[], AbstractAsyncContextManager[Any]] | None = None
    """Opens a transaction of the store's, where it has any."""
    engine: Any = None
    """The engine the store belongs to, where it has one."""


class StoreContract:
    """How the tests run: in real time, on asyncio, unless a subclass says otherwise."""

    moment: float = 0.3
    """A lease that is over soon. Nothing is expected to happen within it."""

    def open(self) -> AbstractAsyncContextManager[Opened]:
        """Open a store: yours to write."""
        raise NotImplementedError("a contract needs `open`, an async context manager that yields Opened(store)")

    def run(self, test: Callable[[Opened], Awaitable[None]]) -> None:
        """Run one test."""
        asyncio.run(self.opened(test))

    async def opened(self, test: Callable[[Opened], Awaitable[None]]) -> None:
        """Run one test on an open store."""
        async with self.open() as opened:
            await test(opened)

    async def let_pass(self, seconds: float) -> None:
        """Let so much of the store's time pass, and a little more."""
        await asyncio.sleep(seconds * 1.2 + 0.02)

    def transactions(self, opened: Opened) -> Callable[[], AbstractAsyncContextManager[Any]]:
        """What opens a transaction."""
        assert opened.transaction is not None, "open() must yield an Opened with a transaction"
        return opened.transaction


class Undone(Exception):  # noqa: N818 - it only rolls a transaction back
    """What a test raises to roll a transaction back."""


async def rolled_back(
    transaction: Callable[[], AbstractAsyncContextManager[Any]], act: Callable[[Any], Awaitable[Any]]
) -> Any:
    """Do something in a transaction that is then rolled back; answers what the act answered."""
    answers = []
    try:
        async with transaction() as tx:
            answers.append(await act(tx))
            raise Undone
    except Undone:
        return answers[0]


async def fresh(store: IdempotencyStore, key: str = "k", scope: str = "s", **options: Any) -> Token:
    """A claim that must succeed; answers its token."""
    answer = await store.begin(scope, key, **options)
    assert isinstance(answer, Fresh), answer
    return answer.token


class InboxContract(StoreContract):
    """Claim, complete, fail: the rules that hold for every store."""

    def test_the_first_is_fresh_the_second_in_progress_and_after_completion_a_duplicate(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            token = await fresh(store, lease=60)
            waits = await store.begin("s", "k")
            assert isinstance(waits, InProgress)
            assert 0 < waits.retry_after <= 60
            assert await store.complete(token, b"result")
            assert await store.begin("s", "k") == Duplicate(b"result")

        self.run(test)

    def test_a_duplicate_gets_the_stored_result_also_an_empty_one_and_none(self) -> None:
        async def test(opened: Opened) -> None:
            for key, result in (("a", b""), ("b", None), ("c", bytes(range(256)))):
                await opened.store.complete(await fresh(opened.store, key), result)
                assert await opened.store.begin("s", key) == Duplicate(result)

        self.run(test)

    def test_another_fingerprint_is_a_mismatch_whatever_became_of_the_first(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            token = await fresh(store, fingerprint=b"a")
            assert await store.begin("s", "k", fingerprint=b"b") == Mismatch()
            await store.fail(token)
            assert await store.begin("s", "k", fingerprint=b"b") == Mismatch()
            await store.complete(await fresh(store, fingerprint=b"a"))
            assert await store.begin("s", "k", fingerprint=b"b") == Mismatch()
            assert await store.begin("s", "k", fingerprint=b"a") == Duplicate(None)

        self.run(test)

    def test_scopes_do_not_know_each_other(self) -> None:
        async def test(opened: Opened) -> None:
            await opened.store.complete(await fresh(opened.store, scope="billing"))
            await fresh(opened.store, scope="shipping")

        self.run(test)

    def test_a_failure_frees_the_key_at_once_and_is_counted(self) -> None:
        async def test(opened: Opened) -> None:
            assert await opened.store.fail(await fresh(opened.store))
            again = await opened.store.begin("s", "k")
            assert isinstance(again, Fresh)
            assert again.attempt == 2

        self.run(test)

    def test_a_refunded_failure_is_not_counted(self) -> None:
        async def test(opened: Opened) -> None:
            assert await opened.store.fail(await fresh(opened.store), refund=True)
            again = await opened.store.begin("s", "k")
            assert isinstance(again, Fresh)
            assert (again.attempt, again.token.fence) == (1, 2)

        self.run(test)

    def test_a_crash_frees_the_key_when_the_lease_ends_and_its_token_is_worth_nothing_then(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            lost = await fresh(store, lease=self.moment)
            await self.let_pass(self.moment)
            again = await store.begin("s", "k", lease=60)
            assert isinstance(again, Fresh)
            assert again.attempt == 2
            assert again.token.fence > lost.fence
            assert not await store.complete(lost, b"late")
            assert not await store.fail(lost)
            assert not await store.extend(lost, 60)
            assert isinstance(await store.begin("s", "k"), InProgress)
            assert await store.complete(again.token, b"right")
            assert await store.begin("s", "k") == Duplicate(b"right")

        self.run(test)

    def test_a_lease_that_is_over_still_holds_while_nobody_has_taken_the_key(self) -> None:
        async def test(opened: Opened) -> None:
            token = await fresh(opened.store, lease=self.moment)
            await self.let_pass(self.moment)
            assert await opened.store.complete(token)

        self.run(test)

    def test_a_heartbeat_keeps_the_key(self) -> None:
        async def test(opened: Opened) -> None:
            token = await fresh(opened.store, lease=self.moment)
            assert await opened.store.extend(token, 600)
            await self.let_pass(self.moment)
            assert isinstance(await opened.store.begin("s", "k"), InProgress)

        self.run(test)

    def test_completed_work_is_remembered_as_long_as_was_asked_and_then_forgotten(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            await store.complete(await fresh(store, "long", retain=600))
            await store.complete(await fresh(store, "short", retain=self.moment))
            await self.let_pass(self.moment)
            assert await store.begin("s", "long") == Duplicate(None)
            assert await store.get("s", "short") is None
            await fresh(store, "short")

        self.run(test)

    def test_a_replay_runs_what_failed_also_edited_and_refuses_what_was_completed(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            await store.fail(await fresh(store, "failed", fingerprint=b"a"))
            again = await store.begin("s", "failed", fingerprint=b"edited", epoch=1)
            assert isinstance(again, Fresh)
            assert again.attempt == 1
            await store.complete(again.token)
            assert await store.begin("s", "failed", fingerprint=b"edited", epoch=2) == Duplicate(None)

        self.run(test)

    def test_of_thirtytwo_at_once_exactly_one_is_fresh(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            for state in ("new", "failed"):
                if state == "failed":
                    await store.fail(await fresh(store, state))
                answers = await asyncio.gather(*(store.begin("s", state, lease=60) for _ in range(32)))
                assert sum(isinstance(answer, Fresh) for answer in answers) == 1
                assert sum(isinstance(answer, InProgress) for answer in answers) == 31

        self.run(test)

    def test_what_ended_cannot_end_again(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            token = await fresh(store)
            ended = await asyncio.gather(*(store.complete(token, b"%d" % n) for n in range(8)))
            assert sum(ended) == 1
            assert not await store.fail(token)
            assert not await store.extend(token, 60)

        self.run(test)

    def test_forgetting_is_a_compare_and_set(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            await store.complete(await fresh(store))
            assert not await store.forget("s", "k", expect=State.FAILED)
            assert await store.forget("s", "k", expect=State.COMPLETED)
            assert not await store.forget("s", "k")
            await fresh(store)

        self.run(test)

    def test_what_is_known_about_a_key_can_be_looked_up(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            assert await store.get("s", "k") is None
            token = await fresh(store, fingerprint=b"f", epoch=2)
            record = await store.get("s", "k")
            assert record is not None
            assert record.token == token
            assert (record.state, record.attempts, record.epoch, record.fingerprint) == (State.IN_PROGRESS, 1, 2, b"f")

        self.run(test)

    def test_purging_is_bounded_and_takes_only_what_is_over_its_time(self) -> None:
        async def test(opened: Opened) -> None:
            store = opened.store
            for number in range(5):
                await store.complete(await fresh(store, f"old-{number}", retain=self.moment))
            await store.complete(await fresh(store, "kept", retain=600))
            running = await fresh(store, "running", lease=600, retain=self.moment)
            await self.let_pass(self.moment)
            purged = 0
            for _ in range(5):
                some = await store.purge(2)
                assert some <= 2
                purged += some
            assert purged <= 5  # a store may have cleaned up by itself before
            stats = await store.stats()
            assert (stats.in_progress, stats.completed, stats.failed) == (1, 1, 0)
            assert await store.complete(running)

        self.run(test)

    def test_a_wrong_question_is_refused(self) -> None:
        async def test(opened: Opened) -> None:
            for wrong in ({"key": ""}, {"lease": 0}, {"retain": -1}, {"fingerprint": "text"}, {"epoch": -1}):
                with pytest.raises(ConfigError):
                    await opened.store.begin(**{"scope": "s", "key": "k", **wrong})
            with pytest.raises(TypeError):
                await opened.store.complete(await fresh(opened.store), "text")

        self.run(test)


class InboxTransactionContract(StoreContract):
    """What holds besides for a store whose records take part in transactions."""

    def test_completion_is_part_of_the_transaction(self) -> None:
        async def test(opened: Opened) -> None:
            transaction, store = self.transactions(opened), opened.store
            token = await fresh(store, lease=600)
            assert await rolled_back(transaction, lambda tx: store.complete(token, b"never", tx=tx))
            assert isinstance(await store.begin("s", "k"), InProgress)
            async with transaction() as tx:
                assert await store.complete(token, b"done", tx=tx)
            assert await store.begin("s", "k") == Duplicate(b"done")

        self.run(test)

    def test_who_lost_the_claim_learns_it_in_the_transaction(self) -> None:
        async def test(opened: Opened) -> None:
            transaction, store = self.transactions(opened), opened.store
            lost = await fresh(store, lease=self.moment)
            await self.let_pass(self.moment)
            taken = await fresh(store, lease=600)
            async with transaction() as tx:
                assert not await store.complete(lost, b"late", tx=tx)
            assert await store.complete(taken, b"right")

        self.run(test)

    def test_a_failure_in_a_transaction_frees_the_key_when_it_commits(self) -> None:
        async def test(opened: Opened) -> None:
            transaction, store = self.transactions(opened), opened.store
            token = await fresh(store, lease=600)
            async with transaction() as tx:
                assert await store.fail(token, tx=tx)
            again = await store.begin("s", "k")
            assert isinstance(again, Fresh)
            assert again.attempt == 2

        self.run(test)

    def test_a_claim_in_a_transaction_that_is_rolled_back_never_was(self) -> None:
        async def test(opened: Opened) -> None:
            transaction, store = self.transactions(opened), opened.store
            assert (await rolled_back(transaction, lambda tx: store.begin("s", "k", tx=tx))).fresh
            again = await store.begin("s", "k")
            assert isinstance(again, Fresh)
            assert again.attempt == 1

        self.run(test)
