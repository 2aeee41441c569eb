"""One effect per consumer and event, whatever is delivered twice, at once, late, or dies in the middle."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from everkeel.errors import ConfigError
from everkeel.events import DuplicateSuppressed
from everkeel.idempotency import State
from everkeel.messaging import Consumer, DeadLetters, Inbox
from everkeel.messaging.inbox import key_of

COMMITTED_WITH_THE_EFFECT = [
    "consumer.after_claim",
    "consumer.after_effect",
    "consumer.before_commit",
    "consumer.after_commit",
    "consumer.before_ack",
    "consumer.after_ack",
]


async def test_a_duplicate_has_one_effect(world, record_events):
    await world.publish(world.event(), world.event())
    consumer = world.consumer()
    await world.live(consumer)
    assert world.effects == {("billing", "e-1"): 1}
    assert [event.event_id for event in record_events.of(DuplicateSuppressed)] == ["e-1"]
    assert consumer.snapshot()["duplicates"] == 1


async def test_two_deliveries_at_once_have_one_effect_and_the_loser_comes_again(world):
    consumer = world.consumer(handle=False)

    @consumer.on("OrderCreated")
    async def slow(event, tx):
        await asyncio.sleep(10)
        tx.on_commit(lambda: world.did("billing", event))

    await world.publish(world.event(), world.event())
    async with consumer:
        await asyncio.sleep(5)
        assert consumer.snapshot()["in_progress"] >= 1
        assert consumer.snapshot()["duplicates"] == 0  # not acknowledged: the one at work may still fail
        await asyncio.sleep(30)
    assert world.effects == {("billing", "e-1"): 1}
    assert consumer.snapshot()["duplicates"] == 1


async def test_when_the_one_at_work_fails_the_waiting_duplicate_does_it(world):
    consumer = world.consumer(handle=False, attempts=2)
    tries = []

    @consumer.on("OrderCreated")
    async def slow(event, tx):
        tries.append(1)
        await asyncio.sleep(10)
        if len(tries) == 1:
            raise ConnectionError
        tx.on_commit(lambda: world.did("billing", event))

    await world.publish(world.event(), world.event())
    await world.live(consumer)
    assert world.effects == {("billing", "e-1"): 1}


@pytest.mark.parametrize("point", COMMITTED_WITH_THE_EFFECT)
async def test_wherever_the_process_dies_the_effect_happens_exactly_once(world, point):
    await world.publish(world.event())
    await world.crashes(world.consumer(), point)
    assert sum(world.effects.values()) == (point in COMMITTED_WITH_THE_EFFECT[3:])
    await world.live(world.consumer(), 300)
    assert world.effects == {("billing", "e-1"): 1}


async def test_a_crash_after_the_claim_is_taken_over_when_the_lease_ends_and_not_before(world):
    await world.publish(world.event())
    await world.crashes(world.consumer(), "consumer.after_claim")
    await world.live(world.consumer(), 50)
    assert not world.effects
    await world.live(world.consumer(), 60)
    assert world.effects == {("billing", "e-1"): 1}


async def test_without_a_transaction_a_crash_after_the_effect_repeats_it_as_documented(world):
    keys = []

    def consumer() -> Consumer:
        made = world.consumer(handle=False)

        @made.on("OrderCreated")
        async def handler(event, context):
            keys.append(context.key)
            world.did("billing", event)

        return made

    await world.publish(world.event())
    await world.crashes(consumer(), "consumer.after_effect")
    await world.live(consumer(), 300)
    assert world.effects == {("billing", "e-1"): 2}  # at least once
    assert len(set(keys)) == 1  # but with one key to pass on to whoever can tell


async def test_without_a_transaction_a_crash_after_the_record_does_not_repeat_it(world):
    def consumer() -> Consumer:
        made = world.consumer(handle=False)
        made.on("OrderCreated")(lambda event: world.did("billing", event))
        return made

    await world.publish(world.event())
    await world.crashes(consumer(), "consumer.after_complete")
    await world.live(consumer(), 300)
    assert world.effects == {("billing", "e-1"): 1}


async def test_a_handler_slower_than_its_leases_keeps_them_by_a_heartbeat(world):
    inbox = Inbox("billing", world.engine, lease=10)
    consumer = world.consumer(handle=False, inbox=inbox, lease=10)

    @consumer.on("OrderCreated")
    async def slow(event, tx):
        await asyncio.sleep(100)
        tx.on_commit(lambda: world.did("billing", event))

    rival = world.consumer(handle=False, inbox=inbox, lease=10)
    rival.on("OrderCreated")(lambda event: world.did("rival", event))
    await world.publish(world.event())
    async with consumer:
        await asyncio.sleep(1)
        async with rival:
            await asyncio.sleep(150)
    assert world.effects == {("billing", "e-1"): 1}


async def test_a_handler_that_lost_its_claim_commits_nothing(world, caplog):
    consumer = world.consumer(handle=False)

    @consumer.on("OrderCreated")
    async def robbed(event, tx, context):
        if context.attempt == 1:
            await world.engine.inbox.forget("billing", key_of(event))  # as if its lease had run out
            other = await world.engine.inbox.begin("billing", key_of(event))
            await world.engine.inbox.complete(other.token)
        tx.on_commit(lambda: world.did("billing", event))

    await world.publish(world.event())
    await world.live(consumer)
    assert not world.effects
    assert consumer.snapshot()["lost"] == 1
    assert "lost the claim" in caplog.text
    assert await world.letters.count() == 0


async def test_a_commit_without_an_answer_is_looked_up_and_not_repeated(world):
    from everkeel import retry

    consumer = world.consumer(handle=False, policies=retry(attempts=3, backoff=0))
    engine, real, cut = world.engine, world.engine.transaction, []

    @contextlib.asynccontextmanager
    async def cut_off_after_the_first_commit():
        async with real() as tx:
            yield tx
        if not cut:
            cut.append(1)
            raise ConnectionError("no answer to COMMIT")

    engine.transaction = cut_off_after_the_first_commit

    @consumer.on("OrderCreated")
    async def handler(event, tx):
        tx.on_commit(lambda: world.did("billing", event))

    await world.publish(world.event())
    await world.live(consumer)
    assert world.effects == {("billing", "e-1"): 1}
    assert (consumer.snapshot()["handled"], await world.letters.count()) == (1, 0)


async def test_two_consumers_of_one_event_both_handle_it(world):
    await world.publish(world.event())
    async with world.consumer("billing"), world.consumer("shipping"):
        await asyncio.sleep(5)
    assert world.effects == {("billing", "e-1"): 1, ("shipping", "e-1"): 1}


async def test_the_same_id_of_another_source_is_another_event(world):
    from everkeel.messaging import Event

    await world.publish(world.event(), Event("OrderCreated", {}, source="/shop", id="e-1"))
    await world.live(world.consumer())
    assert world.effects == {("billing", "e-1"): 2}


async def test_the_same_id_with_other_content_is_kept_as_a_dead_letter_of_its_own(world):
    await world.publish(world.event(data={"amount": 1}), world.event(data={"amount": 1000}))
    await world.live(world.consumer())
    assert world.effects == {("billing", "e-1"): 1}
    letter = await world.the_letter()
    assert letter.row.reason == "mismatch"
    assert letter.event.data == {"amount": 1000}
    assert letter.row.event_id.startswith("e-1~")
    assert "was used before with other content" in letter.row.error


def test_an_inbox_that_forgets_before_dead_letters_do_is_refused(world):
    with pytest.raises(ConfigError, match=r"must remember for at least as long as dead letters are kept \(604800 s\)"):
        world.consumer(inbox=Inbox("billing", world.engine, retain=86_400))
    world.consumer(
        inbox=Inbox("billing", world.engine, retain=86_400), dead_letters=DeadLetters(world.engine, retain=60)
    )


async def test_the_defaults_are_the_documented_ones(world):
    consumer = Consumer("billing", world.transport, topics="orders", engine=world.engine)
    assert (consumer.inbox.lease, consumer.inbox.retain) == (60, 8 * 86_400)
    assert (consumer.dead_letters.retain, consumer.dead_letters.max_replays) == (7 * 86_400, 3)


async def test_an_inbox_that_is_away_loses_nothing(world, caplog):
    consumer = world.consumer()
    real, failures = consumer.inbox.store.begin, [ConnectionError("inbox is away")] * 3

    async def begin(*args, **kwargs):
        if failures:
            raise failures.pop()
        return await real(*args, **kwargs)

    consumer.inbox.store.begin = begin
    await world.publish(world.event())
    await world.live(consumer)
    assert world.effects == {("billing", "e-1"): 1}
    assert "it comes again" in caplog.text


async def test_the_inbox_used_alone_commits_the_effect_and_the_record_together(world):
    inbox = Inbox("billing", world.engine)
    event = world.event()

    async def handle(fail: bool) -> bool:
        async with inbox.transaction(event) as claim:
            if claim.fresh:
                claim.tx.on_commit(lambda: world.did("billing", event))
                claim.keep(b"receipt")
            if fail:
                raise ConnectionError
            return claim.fresh

    with pytest.raises(ConnectionError):
        await handle(fail=True)
    assert not world.effects
    assert [await handle(fail=False), await handle(fail=False)] == [True, False]
    assert world.effects == {("billing", "e-1"): 1}
    record = await world.engine.inbox.get("billing", key_of(event))
    assert (record.state, record.result) == (State.COMPLETED, b"receipt")


async def test_the_inbox_used_alone_as_a_decorator_and_without_transactions(world):
    from everkeel.idempotency import MemoryIdempotencyStore

    inbox = Inbox("billing", MemoryIdempotencyStore())

    @inbox(key=key_of)
    async def bill(event):
        world.did("billing", event)
        return "receipt"

    assert [await bill(world.event()), await bill(world.event())] == ["receipt", "receipt"]
    assert world.effects == {("billing", "e-1"): 1}
    with pytest.raises(TypeError, match="has no engine with transactions"):
        async with inbox.transaction(world.event()):
            pass
