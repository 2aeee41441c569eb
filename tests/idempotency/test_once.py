"""Blocks and decorated functions that run their work once."""

from __future__ import annotations

import asyncio

import pytest

from everkeel.errors import ClaimLostError, ConfigError, IdempotencyInProgressError, IdempotencyMismatchError
from everkeel.idempotency import Idempotency, MemoryIdempotencyStore, State
from everkeel.testing import cancel_at_every_await, wait_until_idle

FORMS = pytest.mark.parametrize("form", ["sync", "async"])


class Block:
    """The same block in both forms, for tests that hold for both."""

    def __init__(self, form, guard):
        self.form, self.guard = form, guard

    async def run(self, key, body, **options):
        if self.form == "async":
            async with self.guard.once(key, **options) as claim:
                return body(claim)
        with self.guard.once(key, **options) as claim:
            return body(claim)


@FORMS
async def test_the_second_gets_what_the_first_kept(form, virtual_time):
    block = Block(form, Idempotency("s"))
    await block.run("k", lambda claim: claim.keep(b"42"))
    assert await block.run("k", lambda claim: (claim.fresh, claim.result, claim.attempt, claim.token)) == (
        False,
        b"42",
        0,
        None,
    )


@FORMS
async def test_a_body_that_raises_frees_the_key_and_its_own_error_leaves(form, virtual_time):
    block = Block(form, Idempotency("s"))
    with pytest.raises(ZeroDivisionError):
        await block.run("k", lambda claim: 1 / 0)
    assert await block.run("k", lambda claim: (claim.fresh, claim.attempt)) == (True, 2)


@FORMS
async def test_while_somebody_is_at_it_entering_says_when_to_come_back(form, virtual_time):
    guard = Idempotency("s", lease=30)
    block = Block(form, guard)
    await guard.store.begin("s", "k", lease=30)
    with pytest.raises(IdempotencyInProgressError) as error:
        await block.run("k", lambda claim: None)
    assert (error.value.policy, error.value.key, error.value.retry_after) == ("s", "k", 30)


@FORMS
async def test_one_key_for_two_things_is_refused(form, virtual_time):
    block = Block(form, Idempotency("s"))
    await block.run("k", lambda claim: None, fingerprint=b"a")
    with pytest.raises(IdempotencyMismatchError, match="'k' was used before with other content"):
        await block.run("k", lambda claim: None, fingerprint=b"b")


@FORMS
async def test_who_lost_the_claim_is_told_and_the_other_one_stays(form, virtual_time):
    guard = Idempotency("s", lease=10, heartbeat=False)
    block = Block(form, guard)
    other = None

    def slow(claim):
        nonlocal other
        virtual_time.advance(10)
        other = guard.sync_store.begin("s", "k")

    with pytest.raises(ClaimLostError, match="lost the claim on 'k'"):
        await block.run("k", slow)
    assert guard.sync_store.complete(other.token)


async def test_a_heartbeat_keeps_slow_work_from_being_taken_for_dead(virtual_time):
    guard = Idempotency("s", lease=10)
    async with guard.once("k") as claim:
        await asyncio.sleep(1000)
        assert not claim.lost
        assert (await guard.store.begin("s", "k")).retry_after > 0
    assert (await guard.store.get("s", "k")).state is State.COMPLETED


def test_a_heartbeat_keeps_slow_work_in_a_thread_from_being_taken_for_dead(virtual_time):
    guard = Idempotency("s", lease=10)
    with guard.once("k") as claim:
        virtual_time.sleep(100)
        assert not claim.lost
    assert guard.sync_store.get("s", "k").state is State.COMPLETED


async def test_a_heartbeat_tells_the_body_that_the_claim_is_lost(virtual_time):
    guard = Idempotency("s", lease=10)
    seen = []

    async def work():
        async with guard.once("k") as claim:
            await guard.store.forget("s", "k")  # an operator's mistake
            await asyncio.sleep(4)
            seen.append(claim.lost)

    with pytest.raises(ClaimLostError):
        await work()
    assert seen == [True]


async def test_a_heartbeat_that_fails_once_tries_again(virtual_time, caplog):
    class Shaky(MemoryIdempotencyStore):
        beats = 0

        async def extend(self, token, lease=60.0):
            self.beats += 1
            if self.beats == 1:
                raise ConnectionError("no answer")
            return await super().extend(token, lease)

    guard = Idempotency("s", Shaky(), lease=9)
    async with guard.once("k"):
        await asyncio.sleep(100)
    assert "could not extend the lease on 'k'" in caplog.text
    assert (await guard.store.get("s", "k")).state is State.COMPLETED


@FORMS
async def test_a_store_that_cannot_release_does_not_hide_the_bodys_error(form, virtual_time, caplog):
    guard = Idempotency("s")

    def broken(*args, **kwargs):
        raise ConnectionError("store is away")

    guard.store.sync.fail = broken
    with pytest.raises(ZeroDivisionError):
        await Block(form, guard).run("k", lambda claim: 1 / 0)
    assert "could not release 'k'" in caplog.text


def test_cancelled_anywhere_the_key_is_free_or_done_and_no_heartbeat_is_left():
    stores = []

    async def work():
        guard = Idempotency("s")
        stores.append(guard)
        async with guard.once("k"):
            await asyncio.sleep(1)
            await asyncio.sleep(1)

    def check(run):
        record = stores[-1].sync_store.get("s", "k")
        assert record is None or record.state in (State.FAILED, State.COMPLETED), run

    cancel_at_every_await(work, check)


async def test_of_thirtytwo_tasks_one_does_the_work(virtual_time):
    guard, done = Idempotency("s"), []

    async def once():
        async with guard.once("k") as claim:
            if claim.fresh:
                await asyncio.sleep(1)
                done.append(1)

    results = await asyncio.gather(*(once() for _ in range(32)), return_exceptions=True)
    assert len(done) == 1
    assert sum(isinstance(one, IdempotencyInProgressError) for one in results) == 31


async def test_a_decorated_coroutine_function_answers_what_the_first_call_did(virtual_time):
    calls = []

    @Idempotency("s")(key=lambda order: order)
    async def charge(order):
        calls.append(order)
        return {"paid": order}

    assert [await charge("a"), await charge("a"), await charge("b")] == [{"paid": "a"}, {"paid": "a"}, {"paid": "b"}]
    assert calls == ["a", "b"]
    assert charge.__name__ == "charge"


def test_a_decorated_function_answers_what_the_first_call_did(virtual_time):
    calls = []

    @Idempotency("s")(key=str, encode=bytes, decode=bytearray, fingerprint=lambda order: b"f")
    def charge(order):
        calls.append(order)
        return b"paid"

    assert [charge(7), charge(7)] == [b"paid", bytearray(b"paid")]
    assert calls == [7]


def test_a_result_that_cannot_be_kept_is_an_error_and_the_key_is_free(virtual_time):
    guard = Idempotency("s")

    @guard(key=lambda: "k")
    def odd():
        return object()

    with pytest.raises(TypeError, match="not JSON serializable"):
        odd()
    assert guard.sync_store.get("s", "k").state is State.FAILED


def test_misuse_is_told(virtual_time):
    guard = Idempotency("s")
    with pytest.raises(ConfigError, match="scope must be a non-empty string"):
        Idempotency("")
    with pytest.raises(ConfigError, match="lease must be more than 0 seconds"):
        Idempotency("s", lease=0)
    with pytest.raises(ConfigError, match="key must be a function"):
        guard(key="order")
    block = guard.once("k")
    with block as claim:
        with pytest.raises(TypeError, match="must be bytes, not str"):
            claim.keep("text")
        with pytest.raises(RuntimeError, match="already in use"):
            block.__enter__()
    with guard.once("k") as claim, pytest.raises(RuntimeError, match="was done before"):
        claim.keep(b"")


def test_a_store_for_event_loops_only_says_so():
    class Remote:
        """A store with no sync face."""

    with pytest.raises(TypeError, match="Remote works with an event loop only: use `async with`"):
        Idempotency("s", Remote()).once("k").__enter__()  # type: ignore[arg-type]


async def test_the_heartbeat_ends_with_the_block(virtual_time):
    async with Idempotency("s").once("k"):
        pass
    await wait_until_idle()
    assert len(asyncio.all_tasks()) == 1
