"""Events of a key in the order of their numbers, however they arrive; what is missing holds them up, not for ever."""

from __future__ import annotations

import asyncio
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everkeel import CircuitOpenError, ConfigError, NotRetryable, circuit_breaker
from everkeel.engines import MemoryEngine, PostgresEngine, SQLiteEngine
from everkeel.engines.letters import LetterFilter, Status
from everkeel.engines.sequences import Reached
from everkeel.errors import EventError
from everkeel.messaging import Consumer, Event, MemoryTransport, Message, RedisTransport, SQLiteTransport
from everkeel.messaging.consumer.sequence import Turn, number_of, turn_of, wait_for

# ------------------------------------------------------------------ the decision


@settings(max_examples=200, deadline=None)
@given(
    arrivals=st.permutations(range(1, 9)).flatmap(
        lambda order: st.lists(st.sampled_from(order), max_size=8).map(lambda again: [*order, *again])
    ),
    first=st.sampled_from([1, None]),
)
def test_whatever_order_they_come_in_each_is_handled_in_order_or_known_as_late(arrivals, first):
    reached, waiting, handled, late = None, list(arrivals), [], []
    while waiting:
        number = waiting.pop(0)
        match turn_of(number, reached, first, 60.0):
            case Turn.NEXT:
                handled.append(number)
                reached = Reached(number)
            case Turn.EARLY:
                assert number > reached.number + 1 if reached else number > 1
                waiting.append(number)
            case Turn.LATE:
                late.append(number)
    begins = 1 if first == 1 else arrivals[0]
    assert handled == list(range(begins, 9))
    assert sorted(handled + late) == sorted(arrivals)


@settings(max_examples=200, deadline=None)
@given(
    number=st.integers(1, 20), reached=st.integers(0, 20), held=st.one_of(st.none(), st.integers(2, 20)),
    held_for=st.floats(0, 500), patience=st.floats(1, 100),
)  # fmt: skip
def test_only_what_is_early_gives_up_and_never_before_its_patience_is_over(number, reached, held, held_for, patience):
    turn = turn_of(number, Reached(reached, held, held_for), 1, patience)
    assert (turn is Turn.NEXT) == (number == reached + 1)
    assert (turn is Turn.LATE) == (number <= reached)
    if turn is Turn.OVERDUE:
        assert held_for >= patience
    if turn is Turn.EARLY:
        assert held_for < 2 * patience  # nothing waits for ever


def test_the_lowest_that_waits_gives_up_first_so_that_the_others_can_go_on():
    waited = Reached(1, held=3, held_for=60.0)
    assert turn_of(3, waited, 1, 60.0) is Turn.OVERDUE
    assert turn_of(4, waited, 1, 60.0) is Turn.EARLY
    assert turn_of(4, Reached(1, held=3, held_for=120.0), 1, 60.0) is Turn.OVERDUE  # the lowest never came back


@pytest.mark.parametrize(("text", "number"), [("7", 7), ("007", 7), ("0", 0), ("0" * 30 + "12", 12)])
def test_numbers_are_digits_padded_as_may_be(text, number):
    assert number_of(Event("x", source="/s", sequence=text)) == number


@pytest.mark.parametrize("text", [None, "a", "-1", "1.5", "٣", "9" * 30])
def test_what_is_no_number_is_no_sequence(text):
    with pytest.raises(EventError, match="sequence"):
        number_of(Event("x", source="/s", sequence=text))


def test_an_early_one_is_looked_at_soon_and_then_less_often():
    assert [wait_for(looks, 1.0) for looks in (1, 2, 3, 20)] == [0.1, 0.2, 0.4, 5.0]


# ------------------------------------------------------------------ in a small world


def numbered(world, number, *, key="order-7", **more):
    return world.event(f"e-{number}", key=key, sequence=f"{number:06}", **more)


async def test_events_that_arrive_in_any_order_are_handled_in_theirs(world):
    await world.publish(*(numbered(world, number) for number in (3, 1, 4, 2, 5)))
    await world.live(world.consumer(in_sequence_from=1), 30)
    assert world.order == ["e-1", "e-2", "e-3", "e-4", "e-5"]
    assert not (await world.letters.list()).letters


async def test_an_early_event_is_charged_no_attempt_and_keeps_no_other_key_waiting(world):
    attempts = []
    consumer = world.consumer(handle=False, in_sequence_from=1, attempts=1)

    @consumer.on("OrderCreated")
    async def handler(event, tx, context):
        attempts.append((event.id, context.attempt, context.number))

    await world.publish(numbered(world, 2), world.event("other", key="order-8", sequence="1"))
    await world.live(consumer, 60)
    assert attempts == [("other", 1, 1)]
    await world.publish(numbered(world, 1))
    await world.live(consumer, 10)
    assert attempts[1:] == [("e-1", 1, 1), ("e-2", 1, 2)]
    assert consumer.snapshot()["early"] > 1


async def test_when_patience_is_over_the_lowest_is_a_dead_letter_and_the_others_go_on(world):
    await world.publish(*(numbered(world, number) for number in (5, 4, 1, 3)))
    consumer = world.consumer(in_sequence_from=1, patience=60)
    async with consumer:
        await asyncio.sleep(50)
        assert world.order == ["e-1"]
        await asyncio.sleep(60)
    letter = await world.the_letter()
    assert (letter.row.event_id, letter.row.reason) == ("e-3", "early")
    assert "its number is 3, and 2 of '/orders', key 'order-7' is missing" in letter.row.error
    assert world.order == ["e-1", "e-4", "e-5"]


async def test_an_outage_longer_than_patience_buries_nothing_that_waits_for_what_is_tried_again(world):
    down, consumer = True, world.consumer(handle=False, in_sequence_from=1, patience=60, policies=circuit_breaker())

    @consumer.on("OrderCreated")
    async def handler(event, tx):
        if down:
            raise CircuitOpenError("provider", 5.0, 0.5, 10)
        tx.on_commit(lambda: world.did("billing", event))

    await world.publish(numbered(world, 2), numbered(world, 1))
    async with consumer:
        await asyncio.sleep(300)
        down = False
        await asyncio.sleep(60)
    assert world.order == ["e-1", "e-2"]
    assert not (await world.letters.list()).letters


async def test_the_time_in_which_nobody_was_there_to_see_it_come_does_not_count(world):
    await world.publish(numbered(world, 2))
    await world.live(world.consumer(in_sequence_from=1, patience=60), 10)
    await asyncio.sleep(3600)
    await world.publish(numbered(world, 1))
    await world.live(world.consumer(in_sequence_from=1, patience=60), 30)
    assert world.order == ["e-1", "e-2"]


async def test_what_comes_after_it_was_given_up_on_is_a_dead_letter_that_can_be_replayed(world):
    consumer = world.consumer(in_sequence_from=1, patience=60)
    await world.publish(*(numbered(world, number) for number in (1, 3, 4)))
    await world.live(consumer, 100)
    await world.publish(numbered(world, 2))
    await world.live(consumer, 20)
    assert world.order == ["e-1", "e-4"]
    letters = (await world.letters.list()).letters
    assert {(one.row.event_id, one.row.reason) for one in letters} == {("e-3", "early"), ("e-2", "late")}
    for one in sorted(letters, key=lambda one: one.row.event_id):
        await world.letters.replay(one.id, actor="ann")
    await world.live(consumer, 20)
    assert world.order == ["e-1", "e-4", "e-2", "e-3"]
    assert await world.letters.count(LetterFilter(status=(Status.RESOLVED,))) == 2
    await world.publish(numbered(world, 5))
    await world.live(consumer, 10)
    assert world.order[-1] == "e-5"  # the replays have not set the key back


async def test_a_dead_letter_lets_those_behind_it_go_on(world):
    world.failing["e-2"] = NotRetryable("no")
    await world.publish(*(numbered(world, number) for number in (1, 2, 3)))
    await world.live(world.consumer(in_sequence_from=1), 30)
    assert world.order == ["e-1", "e-3"]


async def test_with_parked_followers_those_behind_a_dead_letter_wait_until_it_is_discarded(world):
    world.failing["e-2"] = NotRetryable("no")
    consumer = world.consumer(in_sequence_from=1, park_followers=True)
    await world.publish(*(numbered(world, number) for number in (1, 4, 2, 3)))
    await world.live(consumer, 30)
    assert world.order == ["e-1"]
    (letter,) = (await world.letters.list(LetterFilter(status=(Status.PENDING,)))).letters
    await world.letters.discard(letter.id, actor="ann", reason="void")
    await world.live(consumer, 60)
    assert world.order == ["e-1", "e-3", "e-4"]


async def test_the_same_event_again_is_a_duplicate_and_another_with_its_number_is_late(world):
    consumer = world.consumer(in_sequence_from=1)
    await world.publish(numbered(world, 1), numbered(world, 2), numbered(world, 1))
    await world.publish(world.event("twin", key="order-7", sequence="2"))
    await world.live(consumer, 10)
    assert world.order == ["e-1", "e-2"]
    assert consumer.snapshot()["duplicates"] == 1
    letter = await world.the_letter()
    assert (letter.row.event_id, letter.row.reason) == ("twin", "late")


async def test_types_that_nobody_handles_have_their_numbers_all_the_same(world):
    await world.publish(numbered(world, 3), numbered(world, 2, type="OrderSeen"), numbered(world, 1))
    await world.publish(world.event("odd", key="order-7", type="OrderSeen"))  # nobody waits for that
    await world.live(world.consumer(in_sequence_from=1), 10)
    assert world.order == ["e-1", "e-3"]


async def test_an_event_without_a_number_is_a_dead_letter_at_once(world):
    await world.publish(world.event("e-1", key="order-7"))
    await world.live(world.consumer(in_sequence_from=1), 5)
    assert (await world.the_letter()).row.reason == "poison"


async def test_a_key_may_begin_anywhere_if_told_so_and_each_source_counts_for_itself(world):
    consumer = world.consumer(in_sequence_from="any")
    await world.publish(numbered(world, 57), numbered(world, 59), numbered(world, 58))
    elsewhere = Event("OrderCreated", {}, source="/returns", id="r-1", key="order-7", sequence="4")
    await world.publish(elsewhere, world.event("alone", sequence="9"))
    await world.live(consumer, 10)
    assert [one for one in world.order if one.startswith("e-")] == ["e-57", "e-58", "e-59"]
    assert {"r-1", "alone"} <= set(world.order)


@pytest.mark.parametrize(
    "point", ["consumer.after_claim", "consumer.after_effect", "consumer.before_commit", "consumer.after_commit"]
)
async def test_after_a_crash_the_number_is_as_far_as_the_effect(world, point):
    await world.publish(numbered(world, 1), numbered(world, 2))
    await world.crashes(world.consumer(in_sequence_from=1), point)
    await world.live(world.consumer(in_sequence_from=1), 300)
    assert world.order == ["e-1", "e-2"]


async def test_a_rejection_that_somebody_deals_with_lets_those_behind_it_go(world):
    world.failing["e-1"] = NotRetryable("no")
    consumer = world.consumer(in_sequence_from=1, on_rejected=lambda event, error: True)
    await world.publish(numbered(world, 1), numbered(world, 2))
    await world.live(consumer, 10)
    assert world.order == ["e-2"]
    assert not (await world.letters.list()).letters


@pytest.mark.parametrize("first", [-1, True, "first", 1.5, 2**70])
def test_wrong_beginnings_are_refused_by_name(world, first):
    with pytest.raises(ConfigError, match="in_sequence_from"):
        world.consumer(in_sequence_from=first)


def test_without_an_engine_there_is_nowhere_to_keep_how_far_a_key_is(world):
    with pytest.raises(ConfigError, match="engine"):
        Consumer("billing", world.transport, topics="orders", in_sequence_from=1)


# ------------------------------------------------------------------ on every engine and transport


@pytest.fixture(params=["memory", "sqlite", pytest.param("postgres", marks=pytest.mark.require_server("postgres"))])
def make_engine(request, tmp_path):
    if request.param == "memory":
        return MemoryEngine
    if request.param == "sqlite":
        return lambda: SQLiteEngine(tmp_path / "events.db")
    dsn = request.getfixturevalue("postgres_dsn")
    return lambda: PostgresEngine(dsn, connections=8)


@pytest.fixture(params=["memory", "sqlite", pytest.param("redis", marks=pytest.mark.require_server("redis"))])
def make_transport(request, tmp_path):
    if request.param == "memory":
        return MemoryTransport
    if request.param == "sqlite":
        return lambda: SQLiteTransport(tmp_path / "broker.db", poll=0.02)
    url = request.getfixturevalue("redis_url")
    return lambda: RedisTransport(url, prefix=uuid4().hex, poll=0.02)


def test_two_consumers_share_shuffled_events_and_each_key_is_in_order(make_engine, make_transport):
    in_transaction = make_transport is not MemoryTransport
    orders = {key: [4, 2, 1, 3, 5] for key in ("a", "b", "c")}

    async def main():
        handled: dict[str, list[int]] = {key: [] for key in orders}
        done = asyncio.Event()

        def note(event):
            handled[event.key].append(int(event.sequence))
            if sum(map(len, handled.values())) == 15:
                done.set()

        async with make_engine() as engine:
            transport = make_transport()
            consumers = []
            for _ in range(2):
                consumer = Consumer("billing", transport, topics="orders", engine=engine, in_sequence_from=1)
                if in_transaction:

                    @consumer.on("Moved")
                    async def moved(event, tx):
                        note(event)

                else:

                    @consumer.on("Moved")
                    async def told(event):
                        note(event)

                consumers.append(consumer)
            await transport.publish([
                Message("orders", Event("Moved", {}, source="/orders", key=key, id=f"{key}{n}", sequence=str(n)))
                for place in range(5) for key, numbers in orders.items() for n in [numbers[place]]
            ])  # fmt: skip
            async with consumers[0], consumers[1]:
                async with asyncio.timeout(20):
                    await done.wait()
            await transport.close()
        assert handled == {key: [1, 2, 3, 4, 5] for key in orders}

    asyncio.run(main())
