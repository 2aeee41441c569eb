"""Dead letters: kept whole, shown without secrets, replayed once and by one, discarded with a reason, never lost."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest

from everkeel import NotRetryable
from everkeel.engines import MemoryEngine
from everkeel.engines.letters import LetterFilter, Newer, Status
from everkeel.errors import (
    ConfigError,
    DeadLetterConflictError,
    DeadLetterNotFoundError,
    DeadLettersFullError,
    DeadLetterStateError,
    EventError,
    ReplayLimitError,
)
from everkeel.events import Discarded, Replayed
from everkeel.messaging import Consumer, DeadLetters, Event, Outbox
from everkeel.messaging.dead_letters import Overtaken
from everkeel.messaging.rows import event_of


class Refused(NotRetryable):
    """A business rejection."""


async def buried(world, *ids: str, key: str | None = None, **settings) -> list[str]:
    """Let events fail and become dead letters; answers the letters' ids in the order of the events."""
    for id in ids:
        world.failing[id] = Refused(f"no {id}")
    await world.publish(*(world.event(id, key=key or id) for id in ids))
    await world.live(world.consumer(**settings), 5)
    letters = {letter.row.event_id: letter.id for letter in (await world.letters.list(limit=1000)).letters}
    return [letters[id] for id in ids]


# ------------------------------------------------------------------ replaying


async def test_a_replayed_dead_letter_runs_at_once_and_once(world, record_events):
    (id,) = await buried(world, "e-1")
    world.failing.clear()
    await world.letters.replay(id, actor="ann", reason="fixed the stock")
    assert (await world.letters.get(id)).status is Status.REPLAYED
    await world.live(world.consumer(), 5)
    assert world.effects == {("billing", "e-1"): 1}
    assert (await world.letters.get(id)).status is Status.RESOLVED
    trail = await world.letters.audit(id)
    assert [(line.after, line.actor, line.kind) for line in trail] == [
        ("pending", "billing", "auto"),
        ("replayed", "ann", "human"),
        ("resolved", "billing", "auto"),
    ]
    (event,) = record_events.of(Replayed)
    assert (event.actor, event.epoch, event.event_id) == ("ann", 1, "e-1")


async def test_a_replay_of_what_was_handled_changes_nothing(world):
    (id,) = await buried(world, "e-1")
    world.failing.clear()
    await world.publish(world.event(key="e-1"))  # a late copy from the broker gets through by itself
    await world.live(world.consumer(), 5)
    assert world.effects == {("billing", "e-1"): 1}
    assert (await world.letters.get(id)).status is Status.RESOLVED
    with pytest.raises(DeadLetterStateError, match="is resolved, and cannot become replayed"):
        await world.letters.replay(id, actor="ann")
    await world.publish(world.event(key="e-1").replayed(7))  # somebody replays it by other means
    await world.live(world.consumer(), 5)
    assert world.effects == {("billing", "e-1"): 1}


async def test_a_replay_that_fails_again_is_a_new_letter_and_counts(world):
    (first,) = await buried(world, "e-1")
    await world.letters.replay(first, actor="ann")
    await world.live(world.consumer(), 5)
    assert (await world.letters.get(first)).status is Status.SUPERSEDED
    (second,) = (await world.letters.list(LetterFilter(status=(Status.PENDING,)))).letters
    assert (second.replays, second.row.epoch) == (1, 1)
    assert second.row.first_failed_at < second.row.failed_at


async def test_the_fourth_replay_is_refused_unless_forced(world):
    await buried(world, "e-1")
    for _ in range(3):
        (letter,) = (await world.letters.list(LetterFilter(status=(Status.PENDING,)))).letters
        await world.letters.replay(letter.id, actor="ann")
        await world.live(world.consumer(), 5)
    (letter,) = (await world.letters.list(LetterFilter(status=(Status.PENDING,)))).letters
    with pytest.raises(ReplayLimitError, match="was replayed 3 times, and the limit is 3"):
        await world.letters.replay(letter.id, actor="ann")
    world.failing.clear()
    await world.letters.replay(letter.id, actor="ann", force=True)
    await world.live(world.consumer(), 5)
    assert world.effects == {("billing", "e-1"): 1}


async def test_a_replay_reaches_the_consumer_that_failed_and_nobody_else(world):
    world.failing["e-1"] = Refused()
    await world.publish(world.event())
    async with world.consumer("billing"), world.consumer("shipping"):
        await asyncio.sleep(5)
    world.failing.clear()
    ids = {letter.consumer: letter.id for letter in (await world.letters.list()).letters}
    await world.letters.discard(ids["shipping"], actor="ann", reason="shipped by hand")
    await world.letters.replay(ids["billing"], actor="ann")
    await world.relay()
    async with world.consumer("billing"), world.consumer("shipping"):
        await asyncio.sleep(5)
    assert world.effects == {("billing", "e-1"): 1}


async def test_letters_of_one_event_in_two_consumers_are_both_replayed(world):
    world.failing["e-1"] = Refused()
    await world.publish(world.event())
    async with world.consumer("billing"), world.consumer("shipping"):
        await asyncio.sleep(5)
        world.failing.clear()
        letters = (await world.letters.list()).letters

        async def relay_soon():
            for _ in range(20):
                await asyncio.sleep(0.1)
                await world.relay()

        await asyncio.gather(relay_soon(), *(world.letters.replay(letter.id, actor="ann") for letter in letters))
        await asyncio.sleep(5)
    assert world.effects == {("billing", "e-1"): 1, ("shipping", "e-1"): 1}


async def test_an_event_stuck_in_the_outbox_for_another_consumer_is_not_lost_but_refused(world):
    world.failing["e-1"] = Refused()
    await world.publish(world.event())
    async with world.consumer("billing"), world.consumer("shipping"):
        await asyncio.sleep(5)
    one, two = (await world.letters.list()).letters
    await world.letters.replay(one.id, actor="ann")  # and no relay runs
    with pytest.raises(DeadLetterConflictError, match="still in the outbox, on its way for this or another consumer"):
        await world.letters.replay(two.id, actor="ann")
    assert (await world.letters.get(two.id)).status is Status.PENDING


async def test_an_edited_replay_is_handled_with_its_new_data(world):
    consumer = world.consumer(handle=False)
    seen = []

    @consumer.on("OrderCreated")
    async def handler(event, tx):
        if event.data["amount"] < 0:
            raise Refused("a negative amount")
        tx.on_commit(lambda: seen.append(event.data))

    await world.publish(world.event(data={"amount": -5}))
    await world.live(consumer, 5)
    letter = await world.the_letter()
    await world.letters.replay(letter.id, actor="ann", reason="a typo", data={"amount": 5})
    await world.live(consumer, 5)
    assert seen == [{"amount": 5}]


async def test_what_was_hidden_from_whoever_corrects_an_event_is_as_it_was(world):
    letters = DeadLetters(world.engine, redact=["card", "pin"])
    data = {"amount": -5, "card": "4111", "lines": [{"pin": "1234", "n": 1}, {"pin": "9876", "n": 2}]}
    row = await letters.bury(world.event(data=data), consumer="billing", topic="orders", reason="rejected")
    shown = (await letters.get(row.id)).to_dict()["untrusted"]["data"]
    assert "4111" not in str(shown)
    with pytest.raises(ConfigError, match=r"data must say what 'pin' is, or leave it out"):
        await letters.replay(row.id, actor="ann", data={**shown, "lines": shown["lines"][1:]})
    with pytest.raises(ConfigError, match=r"data must say what 'card' is, or leave it out"):
        await letters.replay(row.id, actor="ann", data={"payment": {"card": "***"}})
    corrected = {**shown, "amount": 5, "lines": [shown["lines"][0], {"pin": "0000", "n": "***"}]}
    await letters.replay(row.id, actor="ann", data=corrected)
    (sent,) = await world.engine.outbox.claim("relay", 10, 30)
    assert json.loads(sent.row.payload) == {
        "amount": 5, "card": "4111", "lines": [{"pin": "1234", "n": 1}, {"pin": "0000", "n": "***"}],
    }  # fmt: skip


async def test_data_that_is_no_json_is_refused_and_the_letter_waits_on(world):
    (id,) = await buried(world, "e-1")
    for wrong in (object(), float("nan"), "\ud800"):
        with pytest.raises(EventError, match="its data cannot be written as JSON"):
            await world.letters.replay(id, actor="ann", data=wrong)
    with pytest.raises(ConfigError, match="key must be a text that is not empty"):
        await world.letters.replay(id, actor="ann", key=" ")
    with pytest.raises(EventError, match="key may have 512 bytes"):
        await world.letters.replay(id, actor="ann", key="k" * 600)
    assert (await world.letters.get(id)).status is Status.PENDING
    assert (await world.engine.outbox.stats()).depth == 0


@pytest.mark.parametrize("point", ["replay.before_append", "replay.before_commit", "replay.after_commit"])
async def test_wherever_a_replay_dies_it_is_done_or_not_and_never_lost(world, point):
    (id,) = await buried(world, "e-1")
    world.failing.clear()
    with world.crash_at(point), pytest.raises(BaseException, match=point):
        await world.letters.replay(id, actor="ann")
    done = point == "replay.after_commit"
    assert (await world.letters.get(id)).status is (Status.REPLAYED if done else Status.PENDING)
    assert (await world.engine.outbox.stats()).depth == done
    if not done:
        await world.letters.replay(id, actor="ann")
    await world.live(world.consumer(), 5)
    assert world.effects == {("billing", "e-1"): 1}


async def test_two_operators_cannot_both_replay(world):
    (id,) = await buried(world, "e-1")
    world.failing.clear()
    letter = await world.letters.get(id)
    tries = [world.letters.replay(id, actor=f"op-{n}", version=letter.version) for n in range(8)]
    results = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(not isinstance(result, Exception) for result in results) == 1
    refusals = [result for result in results if isinstance(result, Exception)]
    assert {type(refusal) for refusal in refusals} <= {DeadLetterConflictError, DeadLetterStateError}
    await world.live(world.consumer(), 5)
    assert world.effects == {("billing", "e-1"): 1}


async def test_a_change_to_a_letter_that_changed_since_it_was_seen_is_refused(world):
    (id,) = await buried(world, "e-1")
    with pytest.raises(DeadLetterConflictError, match="is no longer pending but pending in version 1"):
        await world.letters.replay(id, actor="ann", version=7)
    with pytest.raises(DeadLetterConflictError):
        await world.letters.discard(id, actor="ann", reason="old", version=7)
    assert (await world.letters.get(id)).status is Status.PENDING


async def test_what_is_discarded_cannot_be_replayed_and_the_event_is_still_there(world):
    (id,) = await buried(world, "e-1")
    await world.letters.discard(id, actor="ann", reason="a test order")
    with pytest.raises(DeadLetterStateError, match="is discarded, and cannot become replayed"):
        await world.letters.replay(id, actor="ann")
    with pytest.raises(DeadLetterStateError, match="is discarded, and cannot become discarded"):
        await world.letters.discard(id, actor="ann", reason="again")
    assert (await world.letters.get(id)).event.data == {"n": 1}


async def test_a_letter_whose_replay_got_lost_can_be_opened_again(world):
    (id,) = await buried(world, "e-1")
    await world.letters.replay(id, actor="ann")
    with pytest.raises(DeadLetterStateError):
        await world.letters.replay(id, actor="ann")
    await world.letters.reopen(id, actor="ann", reason="the broker lost it")
    assert (await world.letters.get(id)).status is Status.PENDING


async def test_a_letter_that_is_opened_again_keeps_the_key_it_was_given(world):
    (id,) = await buried(world, "e-1", key="wrong")
    await world.letters.replay(id, actor="ann", key="right")
    await world.relay()  # and nobody ever sees it
    await world.letters.reopen(id, actor="ann", reason="the broker lost it")
    await world.letters.replay(id, actor="ann")
    (sent,) = await world.engine.outbox.claim("relay", 10, 30)
    assert (sent.row.key, event_of(sent.row).key) == ("right", "right")


async def test_who_says_that_it_was_replayed_gets_no_place_by_it(world):
    letters = world.letters = DeadLetters(world.engine, most=1)
    await buried(world, "e-1")
    with pytest.raises(DeadLettersFullError):
        await letters.bury(world.event("e-2").replayed(7), consumer="billing", topic="orders", reason="rejected")


async def test_unknown_letters_and_nameless_actors_are_refused(world):
    (id,) = await buried(world, "e-1")
    for act in (
        lambda: world.letters.get("x"),
        lambda: world.letters.replay("x", actor="ann"),
        lambda: world.letters.discard("x", actor="ann", reason="no"),
    ):
        with pytest.raises(DeadLetterNotFoundError, match="there is no dead letter 'x'"):
            await act()
    assert await world.letters.audit("x") == []
    with pytest.raises(ConfigError, match="actor must say so in words"):
        await world.letters.replay(id, actor=" ")
    with pytest.raises(ConfigError, match="reason must say so in words"):
        await world.letters.discard(id, actor="ann", reason="")
    with pytest.raises(ConfigError, match="limit must be a whole number from 1 to 1000"):
        await world.letters.list(limit=0)
    with pytest.raises(ConfigError, match="limit must be a whole number of at least 1"):
        await world.letters.plan_replay(limit=0)
    with pytest.raises(ConfigError, match="stop_after must be a whole number of at least 1"):
        await world.letters.apply(await world.letters.plan_replay(), actor="ann", stop_after=0)
    with pytest.raises(ConfigError, match="kind must be one of human, agent, auto"):
        await world.letters.replay(id, actor="ann", kind="robot")
    with pytest.raises(ConfigError, match="reason must be a text"):
        await world.letters.replay(id, actor="ann", reason=None)
    with pytest.raises(ConfigError, match="status must be some of pending, parked, replayed"):
        await world.letters.count(LetterFilter(status="lost"))
    assert (await world.letters.get(id)).status is Status.PENDING


# ------------------------------------------------------------------ many at once


async def test_a_plan_is_a_dry_run_and_applying_it_does_exactly_that(world):
    await buried(world, *(f"e-{n}" for n in range(5)))
    plan = await world.letters.plan_replay(LetterFilter(type="OrderCreated"), limit=4)
    assert (len(plan.letters), plan.more, dict(plan.by_consumer)) == (4, 1, {"billing": 4})
    assert (await world.engine.outbox.stats()).depth == 0
    assert plan.to_dict()["count"] == 4
    json.dumps(plan.to_dict())
    world.failing.clear()
    report = await world.letters.apply(plan, actor="ann", reason="fixed", rate=100)
    assert len(report.replayed) == 4
    await world.live(world.consumer(), 5)
    assert len(world.effects) == 4


async def test_a_plan_keeps_its_rate(world, virtual_time):
    await buried(world, *(f"e-{n}" for n in range(11)))
    plan = await world.letters.plan_replay()
    before = virtual_time.monotonic()
    await world.letters.apply(plan, actor="ann", rate=2)
    assert virtual_time.monotonic() - before == pytest.approx(5.0)


async def test_a_plan_stops_when_too_many_fail_again(world):
    await buried(world, *(f"e-{n}" for n in range(20)))
    plan = await world.letters.plan_replay()
    consumer = world.consumer()
    async with consumer:

        async def relay():
            while True:
                await asyncio.sleep(0.1)
                await world.relay()

        relaying = asyncio.create_task(relay())
        report = await world.letters.apply(plan, actor="ann", rate=1, stop_after=3)
        relaying.cancel()
    assert len(report.failed_again) == 3
    assert len(report.replayed) < 8
    assert len(report.replayed) + len(report.left) == 20


async def test_a_plan_leaves_alone_what_changed_since_and_what_is_over_its_limit(world):
    letters = DeadLetters(world.engine, max_replays=0)
    ids = await buried(world, "e-1", "e-2")
    assert len((await letters.plan_replay()).over_limit) == 2
    plan = await world.letters.plan_replay()
    await world.letters.discard(ids[0], actor="bob", reason="not needed")
    report = await world.letters.apply(plan, actor="ann", rate=100)
    assert (list(report.replayed), list(report.changed)) == ([ids[1]], [ids[0]])
    with pytest.raises(ConfigError, match="rate must be a number above 0"):
        await world.letters.apply(plan, actor="ann", rate=0)


async def test_a_plan_begins_with_the_oldest_also_where_it_cannot_have_all(world):
    for number in range(4):
        await buried(world, f"e-{number}", key="k")
    plan = await world.letters.plan_replay(limit=3)
    assert [letter.row.event_id for letter in plan.letters] == ["e-0", "e-1", "e-2"]
    assert plan.more == 1


# ------------------------------------------------------------------ newer events of the same key


async def test_a_letter_tells_what_was_handled_behind_it_and_so_does_a_plan(world):
    events = [world.event(f"a-{n}", key="a") for n in range(1, 5)] + [world.event("b-1", key="b")]
    world.failing["a-1"] = world.failing["b-1"] = Refused()
    await Outbox(world.engine, topic="orders").write(events)
    await world.live(world.consumer(), 5)
    found = {letter.row.event_id: letter for letter in (await world.letters.list()).letters}
    assert await world.letters.newer(found["a-1"]) == Newer(handled=3, exact=True)
    assert await world.letters.newer(found["b-1"].id) == Newer(exact=True)
    plan = await world.letters.plan_replay()
    assert plan.newer == Overtaken(letters=1, handled=3, waiting=0, exact=True)
    assert plan.to_dict()["newer"] == {"letters": 1, "handled": 3, "waiting": 0, "exact": True}


async def test_a_letter_tells_how_many_wait_behind_it(world):
    (first,) = await buried(world, "a-1", key="a", park_followers=True)
    await world.publish(*(world.event(f"a-{n}", key="a") for n in (2, 3)))
    await world.live(world.consumer(park_followers=True), 5)
    assert await world.letters.newer(first) == Newer(waiting=2, exact=False)  # its outbox is somewhere else
    assert (await world.letters.plan_replay()).newer == Overtaken(waiting=2, exact=False)


async def test_what_was_purged_from_the_outbox_is_not_taken_for_nothing(world):
    world.failing["a-1"] = Refused()
    await Outbox(world.engine, topic="orders").write([world.event(f"a-{n}", key="a") for n in (1, 2)])
    await world.live(world.consumer(), 5)
    letter = await world.the_letter()
    assert await world.letters.newer(letter) == Newer(handled=1, exact=True)
    await asyncio.sleep(86_400)
    await world.engine.outbox.purge(86_400, 10)
    assert await world.letters.newer(letter) == Newer(handled=0, exact=False)
    await Outbox(world.engine, topic="orders").write(world.event("a-3", key="a"))
    await world.live(world.consumer(), 5)
    assert await world.letters.newer(letter) == Newer(handled=1, exact=False)


# ------------------------------------------------------------------ no more room


async def test_finished_letters_make_way_for_new_ones(world):
    letters = world.letters = DeadLetters(world.engine, most=3)
    ids = await buried(world, "e-1", "e-2", "e-3")
    await letters.discard(ids[1], actor="ann", reason="a test order")
    await buried(world, "e-4")
    waiting = {letter.row.event_id for letter in (await letters.list()).letters}
    assert waiting == {"e-1", "e-3", "e-4"}
    last = (await letters.audit(ids[1]))[-1]
    assert (last.before, last.after, last.reason) == ("discarded", None, "made room: 3 letters are kept")


async def test_where_all_letters_wait_what_fails_stays_with_the_broker_and_the_rest_goes_on(world, caplog):
    letters = world.letters = DeadLetters(world.engine, most=2)
    ids = await buried(world, "e-1", "e-2")
    world.failing["e-3"] = Refused("no e-3")
    await world.publish(world.event("e-3", key="e-3"), world.event("e-4", key="e-4"))
    consumer = world.consumer()
    with caplog.at_level(logging.ERROR, "everkeel.consumer"):
        await world.live(consumer, 20)
    assert "could not be dead-lettered (rejected; " in caplog.text
    assert "there is no room for another dead letter of 'billing': 2 are kept, and none is finished" in caplog.text
    assert world.order == ["e-4"]
    assert consumer.snapshot()["not_buried"] == 1  # not again and again: half a minute until the next try
    assert [letter.status for letter in (await letters.list()).letters] == [Status.PENDING] * 2
    await letters.discard(ids[0], actor="ann", reason="a test order")
    await world.live(consumer, 60)
    assert {letter.row.event_id for letter in (await letters.list()).letters} == {"e-2", "e-3"}


async def test_what_comes_back_from_a_replay_or_is_known_already_is_never_turned_away(world):
    letters = world.letters = DeadLetters(world.engine, most=1)
    (id,) = await buried(world, "e-1")
    again = await letters.bury(world.event(), consumer="billing", topic="orders", reason="rejected")
    assert again.id == id
    with pytest.raises(DeadLettersFullError):
        await letters.bury(world.event("e-2"), consumer="billing", topic="orders", reason="rejected")
    await letters.bury(world.event("e-2"), consumer="shipping", topic="orders", reason="rejected")  # has its own
    await letters.replay(id, actor="ann")
    await world.live(world.consumer(), 5)
    (back,) = (await letters.list(LetterFilter(consumer="billing", status=(Status.PENDING,)))).letters
    assert back.replays == 1


@pytest.mark.parametrize("most", [0, -1, True, 1.5, "many"])
def test_a_limit_that_is_none_is_refused(world, most):
    with pytest.raises(ConfigError, match="most must be a whole number of at least 1, or None"):
        DeadLetters(world.engine, most=most)
    assert DeadLetters(world.engine, most=None).room is None


# ------------------------------------------------------------------ those behind


async def test_a_replay_with_another_key_lets_those_of_the_old_one_go_and_stands_in_the_new_one(world):
    (first,) = await buried(world, "a-1", key="a", park_followers=True)
    consumer = world.consumer(park_followers=True)
    await world.publish(world.event("a-2", key="a"), world.event("a-3", key="a"))
    await world.live(consumer, 5)
    assert await world.letters.count(LetterFilter(status=(Status.PARKED,))) == 2
    await world.letters.replay(first, actor="ann", reason="the wrong order", key="b")  # and fails again
    await world.publish(world.event("b-1", key="b"))
    await world.live(consumer, 5)
    assert world.order == ["a-2", "a-3"]
    last = [line.reason for line in await world.letters.audit(first)][1]
    assert last == "the wrong order (key 'a' -> 'b')"
    (pending,) = (await world.letters.list(LetterFilter(status=(Status.PENDING,)))).letters
    assert (pending.row.event_id, pending.row.key, pending.event.key) == ("a-1", "b", "b")
    world.failing.clear()
    await world.letters.replay(pending.id, actor="ann")
    await world.live(consumer, 10)
    assert world.order == ["a-2", "a-3", "a-1", "b-1"]


async def test_followers_of_a_dead_letter_wait_and_follow_in_order_once_it_is_handled(world):
    (first,) = await buried(world, "a-1", key="a", park_followers=True)
    consumer = world.consumer(park_followers=True)
    await world.publish(*(world.event(f"a-{n}", key="a") for n in (2, 3, 4)), world.event("b-1", key="b"))
    await world.live(consumer, 5)
    assert world.order == ["b-1"]
    assert await world.letters.count(LetterFilter(status=(Status.PARKED,))) == 3
    world.failing.clear()
    await world.letters.replay(first, actor="ann")
    await world.live(consumer, 10)
    assert world.order == ["b-1", "a-1", "a-2", "a-3", "a-4"]
    assert await world.letters.count(LetterFilter(status=(Status.RESOLVED,))) == 4


async def test_what_comes_while_the_replay_is_on_its_way_does_not_overtake(world):
    (first,) = await buried(world, "a-1", key="a", park_followers=True)
    world.failing.clear()
    await world.letters.replay(first, actor="ann")
    await world.publish(world.event("a-2", key="a"))
    consumer = world.consumer(park_followers=True)
    async with consumer:
        await asyncio.sleep(1)
        assert world.order == []
    await world.live(consumer, 10)
    assert world.order == ["a-1", "a-2"]


async def test_discarding_the_front_lets_its_followers_go(world):
    (first,) = await buried(world, "a-1", key="a", park_followers=True)
    consumer = world.consumer(park_followers=True)
    await world.publish(world.event("a-2", key="a"), world.event("a-3", key="a"))
    await world.live(consumer, 5)
    await world.letters.discard(first, actor="ann", reason="not needed")
    await world.live(consumer, 10)
    assert world.order == ["a-2", "a-3"]


async def test_a_follower_that_fails_holds_up_those_behind_it_in_turn(world):
    (first,) = await buried(world, "a-1", key="a", park_followers=True)
    consumer = world.consumer(park_followers=True)
    world.failing["a-2"] = Refused()
    await world.publish(*(world.event(f"a-{n}", key="a") for n in (2, 3)))
    await world.live(consumer, 5)
    del world.failing["a-1"]
    await world.letters.replay(first, actor="ann")
    await world.live(consumer, 10)
    assert world.order == ["a-1"]
    (second,) = (await world.letters.list(LetterFilter(status=(Status.PENDING,)))).letters
    assert (second.row.event_id, second.replays) == ("a-2", 0)  # it was never replayed: it had only waited
    world.failing.clear()
    await world.letters.replay(second.id, actor="ann")
    await world.live(consumer, 10)
    assert world.order == ["a-1", "a-2", "a-3"]


async def test_two_who_let_followers_go_at_once_disturb_nobody(world):
    (first,) = await buried(world, "a-1", key="a", park_followers=True)
    await world.publish(world.event("a-2", key="a"))
    consumer = world.consumer(park_followers=True)
    await world.live(consumer, 5)
    world.failing.clear()
    store, real = world.engine.dead_letters, world.engine.dead_letters.next_epoch

    async def somebody_else_is_faster(row, *, tx):
        epoch = await real(row, tx=tx)
        if row.event_id == "a-2" and row.status == "parked":
            store.next_epoch = real
            from everkeel.engines.letters import Change

            await store.transition(row.id, Status.PARKED, Status.DISCARDED, Change(actor="bob"))
        return epoch

    await world.letters.replay(first, actor="ann")
    store.next_epoch = somebody_else_is_faster
    await world.live(consumer, 10)
    assert world.effects == {("billing", "a-1"): 1}
    assert consumer.snapshot()["redelivered"] == 0


async def test_by_default_later_events_of_a_key_go_on(world):
    await buried(world, "a-1", key="a")
    await world.publish(world.event("a-2", key="a"))
    await world.live(world.consumer(), 5)
    assert world.order == ["a-2"]


async def test_parked_events_that_nobody_let_go_are_found_by_the_housekeeping(world):
    (first,) = await buried(world, "a-1", key="a", park_followers=True)
    await world.publish(world.event("a-2", key="a"))
    consumer = world.consumer(park_followers=True)
    await world.live(consumer, 5)
    from everkeel.engines.letters import Change

    await world.engine.dead_letters.transition(first, Status.PENDING, Status.DISCARDED, Change(actor="sql"))
    await world.live(consumer, 70)
    assert world.order == ["a-2"]


# ------------------------------------------------------------------ trouble


async def test_a_dead_letter_store_that_fails_leaves_the_message_with_the_broker(world, caplog):
    consumer = world.consumer()
    real, away = world.engine.dead_letters.put, True

    async def put(letter, *, tx=None):
        if away:
            raise ConnectionError("the store of dead letters is away")
        return await real(letter, tx=tx)

    world.engine.dead_letters.put = put
    world.failing["e-1"] = Refused("no")
    await world.publish(world.event())
    async with consumer:
        await asyncio.sleep(100)
        assert await world.letters.count() == 0
        (line, *_) = [record for record in caplog.records if "could not be dead-lettered" in record.getMessage()]
        assert line.levelno == logging.ERROR
        assert "stays with the broker" in line.getMessage()
        away = False
        await asyncio.sleep(100)
    assert (await world.the_letter()).row.error == "no"


@pytest.mark.parametrize("point", ["bury.before_commit", "bury.after_commit"])
async def test_wherever_burying_dies_there_is_one_letter_in_the_end(world, point):
    world.failing["e-1"] = Refused("no")
    await world.publish(world.event())
    await world.crashes(world.consumer(), point)
    assert await world.letters.count() == (point == "bury.after_commit")
    await world.live(world.consumer(), 200)
    assert (await world.the_letter()).status is Status.PENDING


async def test_a_copy_of_each_dead_letter_is_published_where_asked(world):
    await buried(world, "e-1", dead_letter_topic="orders.dead")
    (copy,) = world.transport.published["orders.dead"]
    letter = await world.the_letter()
    assert (copy.id, copy.attributes["deadletterid"]) == (letter.id, letter.id)
    assert (copy.type, copy.data, copy.attributes["deadletterof"]) == ("OrderCreated", {"n": 1}, "e-1")
    assert (copy.attributes["deadletterreason"], copy.attributes["deadletterfor"]) == ("rejected", "billing")


async def test_whoever_listens_hears_of_every_dead_letter_of_an_event(world):
    (first,) = await buried(world, "e-1", dead_letter_topic="dead")
    await world.letters.replay(first, actor="ann")
    await world.live(world.consumer(dead_letter_topic="dead"), 5)
    await world.publish(world.event(key="e-1"))
    await world.live(world.consumer("shipping", dead_letter_topic="dead"), 5)
    watch = Consumer("watch", world.transport, topics="dead", engine=world.engine)
    heard = []

    @watch.on("*")
    async def hear(event):
        heard.append((event.attributes["deadletterfor"], event.attributes["deadletterof"]))

    await world.live(watch, 5)
    assert sorted(heard) == [("billing", "e-1"), ("billing", "e-1"), ("shipping", "e-1")]


# ------------------------------------------------------------------ what is kept and shown


async def test_the_whole_event_is_kept_with_why_where_and_how_often(world):
    world.failing["e-1"] = Refused("out of stock")
    event = world.event(key="order-7", correlation_id="request-1", saga_id="saga-1", data={"item": "kettle"})
    await world.publish(event)
    await world.live(world.consumer(), 5)
    letter = await world.the_letter()
    assert letter.event == event
    shown = letter.to_dict()
    assert (shown["consumer"], shown["topic"], shown["key"]) == ("billing", "orders", "order-7")
    assert (shown["saga_id"], shown["correlation_id"], shown["reason"]) == ("saga-1", "request-1", "rejected")
    assert shown["error_type"].endswith("Refused")
    assert shown["untrusted"]["error"] == "out of stock"
    assert "in fail_if_told" in shown["untrusted"]["traceback"]
    assert "everkeel/messaging" not in shown["untrusted"]["traceback"]
    json.dumps(shown)


async def test_secrets_are_shown_nowhere_and_the_event_stays_whole(world, caplog):
    letters = DeadLetters(
        world.engine, redact=["card", "PASSWORD"], redact_text=lambda text: text.replace("ann@", "?@")
    )
    consumer = world.consumer(handle=False, dead_letters=letters)
    data = {
        "card": "4111-1111",
        "user": {"password": "hunter22", "pin": 1234},
        "items": [{"card": {"no": "5500-0000"}}],
    }

    @consumer.on("OrderCreated")
    async def handler(event):
        raise Refused(f"bank said no to {event.data['card']} of ann@example.org") from ValueError("hunter22 5500-0000")

    await world.publish(world.event(data=data))
    await world.live(consumer, 5)
    (letter,) = (await letters.list()).letters
    text = json.dumps(letter.to_dict()) + caplog.text
    for secret in ("4111-1111", "hunter22", "5500-0000", "ann@"):
        assert secret not in text
    assert "1234" in text
    assert letter.event.data == data


async def test_a_redaction_that_fails_shows_nothing(world):
    def broken(text):
        raise ZeroDivisionError

    letters = DeadLetters(world.engine, redact_text=broken)
    world.failing["e-1"] = Refused("4111-1111")
    await world.publish(world.event())
    await world.live(world.consumer(dead_letters=letters), 5)
    assert (await world.the_letter()).row.error == "***"


async def test_errors_of_megabytes_are_capped(world):
    try:
        raise ValueError("y" * 5_000_000)
    except ValueError as cause:
        error = Refused("x" * 5_000_000)
        error.__cause__ = cause
        error.add_note("z" * 5_000_000)
    world.failing["e-1"] = error
    await world.publish(world.event())
    await world.live(world.consumer(), 5)
    row = (await world.the_letter()).row
    assert len(row.error) <= 8192
    assert len(row.traceback) <= 8192


async def test_an_event_that_cannot_be_read_can_still_be_shown(world):
    letter = await world.letters.bury(
        Event("odd", b"\x00\xff", source="/s", id="1"), consumer="billing", topic="orders", reason="poison"
    )
    assert letter.to_dict()["untrusted"]["data"] == "(2 bytes that are not application/octet-stream)"


# ------------------------------------------------------------------ the end of them


async def test_when_a_letter_is_too_old_those_parked_behind_it_follow_and_are_not_given_up_with_it(world):
    await buried(world, "a-1", key="a", park_followers=True)
    consumer = world.consumer(park_followers=True)
    await world.publish(world.event("a-2", key="a"), world.event("a-3", key="a"))
    await world.live(consumer, 5)
    await asyncio.sleep(7 * 86_400)
    await world.letters.purge()
    await world.live(consumer, 10)
    assert world.order == ["a-2", "a-3"]
    assert await world.letters.count(LetterFilter(status=(Status.DISCARDED,))) == 1


async def test_a_letter_of_whose_replay_nothing_is_heard_ends_as_one_that_nobody_dealt_with(world):
    (id,) = await buried(world, "e-1")
    await world.letters.replay(id, actor="ann")
    await asyncio.sleep(7.5 * 86_400)
    await world.letters.purge()
    assert (await world.letters.get(id)).status is Status.REPLAYED
    await asyncio.sleep(7 * 86_400)
    await world.letters.purge()
    trail = [(line.after, line.reason) for line in await world.letters.audit(id)][2:]
    assert trail == [
        ("pending", "nothing was heard of its replay for 604800 s"),
        ("discarded", "nobody dealt with it for 604800 s"),
    ]


async def test_purging_by_age_leaves_alone_what_is_on_its_way(world):
    ids = await buried(world, "e-1", "e-2")
    await world.letters.replay(ids[0], actor="ann")
    await world.letters.purge(older_than=0)
    assert [(await world.letters.get(id)).status for id in ids[:1]] == [Status.REPLAYED]
    assert [line.after for line in await world.letters.audit(ids[1])] == ["pending", "discarded", None]


async def test_a_consumer_leaves_the_letters_of_others_to_them(world):
    await buried(world, "e-1")
    world.letters = DeadLetters(world.engine, retain=60)
    async with world.consumer("shipping"):
        await asyncio.sleep(600)
    assert (await world.the_letter()).status is Status.PENDING
    async with world.consumer("billing"):
        await asyncio.sleep(90)
    assert (await world.the_letter()).status is Status.DISCARDED


async def test_letters_in_another_database_than_the_effects_are_resolved_too(world):
    world.letters = DeadLetters(MemoryEngine())
    (id,) = await buried(world, "e-1")
    world.failing.clear()
    await world.letters.replay(id, actor="ann")
    (sent,) = await world.letters.engine.outbox.claim("relay", 10, 30)
    await world.publish(event_of(sent.row))
    consumer = world.consumer(handle=False)

    @consumer.on("OrderCreated")
    async def handler(event, tx):
        settled = tx.on_commit
        settled(lambda: world.order.append((world.letters.store._rows[id].status, event.id)))

    await world.live(consumer, 5)
    assert world.order == [("replayed", "e-1")]  # not before the effect was certain
    assert (await world.letters.get(id)).status is Status.RESOLVED


async def test_nothing_that_waits_is_purged_without_being_discarded_first(world, record_events):
    (id,) = await buried(world, "e-1")
    await asyncio.sleep(8 * 86_400)
    assert await world.letters.purge() == 0
    assert (await world.letters.get(id)).status is Status.DISCARDED
    assert record_events.of(Discarded)[0].reason == "nobody dealt with it for 604800 s"
    await asyncio.sleep(8 * 86_400)
    assert await world.letters.purge() == 1
    trail = await world.letters.audit(id)
    assert [line.after for line in trail] == ["pending", "discarded", None]


async def test_a_running_consumer_keeps_house(world):
    (id,) = await buried(world, "e-1")
    await world.letters.discard(id, actor="ann", reason="no")
    async with world.consumer():
        await asyncio.sleep(9 * 86_400)
    assert await world.letters.count() == 0
    assert (await world.engine.inbox.stats()).failed == 0


async def test_purging_by_age(world):
    old, new = (await buried(world, "old"))[0], None
    await world.letters.discard(old, actor="ann", reason="no")
    await asyncio.sleep(100)
    (new,) = await buried(world, "new")
    await world.letters.discard(new, actor="ann", reason="no")
    assert await world.letters.purge(older_than=50) == 1
    assert (await world.letters.get(new)).status is Status.DISCARDED


def test_wrong_settings_are_refused_by_name(world):
    for settings, says in (
        ({"retain": 0}, "dead letters: retain must be more than 0 seconds"),
        ({"max_replays": -1}, "max_replays must be a whole number of at least 0"),
        ({"redact": "card"}, "redact must be names of fields, as a list"),
    ):
        with pytest.raises(ConfigError, match=says):
            DeadLetters(world.engine, **settings)
    with pytest.raises(ConfigError, match="engine must be an engine that keeps dead letters"):
        DeadLetters(object())


# ------------------------------------------------------------------ those of the outbox


async def test_a_letter_that_never_left_the_outbox_is_replayed_and_discarded_there(world):
    from everkeel.engines.rows import ErrorInfo
    from everkeel.messaging.rows import row_of

    outbox = world.engine.outbox
    await outbox.append([row_of(world.event(f"a-{n}", key="a"), "orders") for n in (1, 2)])
    claimed = await outbox.claim("relay", 1, 30)
    await outbox.bury(claimed[0].lease, ErrorInfo("ValueError", "too large"), reason="fatal")
    letter = await world.the_letter()
    assert (letter.consumer, await world.relay()) == ("outbox", 0)
    await world.letters.replay(letter.id, actor="ann")
    assert [event.id for _ in range(2) if await world.relay() for event in world.transport.published["orders"]][
        -2:
    ] == [
        "a-1",
        "a-2",
    ]
    assert "replayfor" not in world.transport.published["orders"][0].attributes


async def test_discarding_a_letter_of_the_outbox_lets_its_followers_go(world):
    from everkeel.engines.rows import ErrorInfo
    from everkeel.messaging.rows import row_of

    outbox = world.engine.outbox
    await outbox.append([row_of(world.event(f"a-{n}", key="a"), "orders") for n in (1, 2)])
    (claimed,) = await outbox.claim("relay", 1, 30)
    await outbox.bury(claimed.lease, ErrorInfo("ValueError", "too large"), reason="fatal")
    await world.letters.discard((await world.the_letter()).id, actor="ann", reason="too large for good")
    await world.relay()
    assert [event.id for event in world.transport.published["orders"]] == ["a-2"]
