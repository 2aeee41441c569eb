"""What comes again, when, at whose cost, in which order, and how many at once."""

from __future__ import annotations

import asyncio
import logging
import threading

import pytest

from everkeel import NotRetryable, TooEarlyError, circuit_breaker, pipeline, retry, timeout
from everkeel.errors import CircuitOpenError, ConfigError, EventError
from everkeel.events import DeadLettered
from everkeel.messaging import Consumer, Event, MemoryTransport, Message
from everkeel.messaging.consumer.core import Bury, Redeliver, Rules, after_failure
from everkeel.messaging.inbox import key_of
from everkeel.runtime.backoff import exponential
from everkeel.testing import wait_until_idle


class OutOfStock(NotRetryable):
    """A business rejection."""


RULES = Rules(attempts=3, backoff=exponential(1.0, max=60), patience=100, max_pause=30)


@pytest.mark.parametrize(
    ("error", "attempt", "age", "ending"),
    [
        (ConnectionError(), 1, 0, Redeliver(1.0)),
        (ConnectionError(), 2, 0, Redeliver(2.0)),
        (ConnectionError(), 3, 0, Bury("attempts")),
        (OutOfStock(), 1, 0, Bury("rejected")),
        (EventError("event", "bad"), 1, 0, Bury("poison")),
        (TooEarlyError("c", 5.0, "x"), 9, 99, Redeliver(5.0, charged=False)),
        (TooEarlyError("c", None, "x"), 2, 99, Redeliver(2.0, charged=False)),
        (TooEarlyError("c", 5.0, "x"), 1, 100, Bury("early")),
    ],
)
def test_what_becomes_of_a_failure(error, attempt, age, ending):
    assert after_failure(error, attempt, age, 1.0, RULES) == ending


def test_a_failure_during_an_outage_is_not_the_events():
    assert after_failure(ConnectionError(), 99, 0, 1.0, RULES, outage=True) == Redeliver(60.0, charged=False)
    assert after_failure(OutOfStock(), 1, 0, 1.0, RULES, outage=True) == Bury("rejected")


def test_who_says_no_without_saying_when_is_asked_less_and_less_often():
    from everkeel.errors import CircuitOpenError

    forced = CircuitOpenError("db", None, None, 0, "forced")
    waits = [after_failure(forced, 1, 0, 1.0, RULES, pauses=pauses).delay for pauses in range(6)]
    assert waits == [1, 2, 4, 8, 16, 30]


def test_while_a_breaker_probes_its_word_is_awaited_and_not_the_end_of_its_probes():
    probing = CircuitOpenError("c", 60.0, 0.5, 10, "half open, its probes are under way")
    rules = Rules(5, exponential(1.0, factor=2.0, max=60.0), 3600.0, 30.0)
    assert after_failure(probing, 1, 0.0, 1.0, rules) == Redeliver(1.0, charged=False, pause=True)
    assert after_failure(probing, 1, 0.0, 1.0, rules, pauses=9) == Redeliver(30.0, charged=False, pause=True)
    opened = CircuitOpenError("c", 20.0, 0.5, 10)
    assert after_failure(opened, 1, 0.0, 1.0, rules) == Redeliver(20.0, charged=False, pause=True)


async def test_after_an_outage_everything_goes_on_as_soon_as_the_breaker_has_closed(world):
    down, handled = True, []
    breaker = circuit_breaker(window=4, minimum_calls=2, open_for=10, probes=1)
    consumer = world.consumer(handle=False, policies=breaker, concurrency=4)

    @consumer.on("OrderCreated")
    async def handler(event):
        await asyncio.sleep(0.1)
        if down:
            raise ConnectionError
        handled.append(asyncio.get_running_loop().time())

    await world.publish(*(world.event(f"e-{number}", key=f"k{number}") for number in range(12)))
    async with consumer:
        await asyncio.sleep(5)
        down = False
        recovered = asyncio.get_running_loop().time() + 10
        await asyncio.sleep(60)
    assert len(handled) == 12
    assert max(handled) < recovered + 5  # and not 30 s after the others that found the breaker half open


def test_redeliveries_are_spread_between_half_and_the_whole_delay():
    delays = [after_failure(ConnectionError(), 2, 0, chance / 10, RULES).delay for chance in range(11)]
    assert min(delays) == 1.0
    assert max(delays) == 2.0


# ------------------------------------------------------------------ failures


async def test_it_comes_again_with_growing_delays_and_ends_as_a_dead_letter(world, record_events, caplog):
    world.failing["e-1"] = ConnectionError("db is down")
    consumer = world.consumer(attempts=4)
    await world.publish(world.event())
    await world.live(consumer)
    letter = await world.the_letter()
    assert (letter.row.attempts, letter.row.reason, letter.row.error) == (4, "attempts", "db is down")
    assert consumer.snapshot()["redelivered"] == 3
    assert [(event.reason, event.attempts) for event in record_events.of(DeadLettered)] == [("attempts", 4)]
    (line,) = [record for record in caplog.records if "dead-lettered" in record.getMessage()]
    assert line.levelno == logging.WARNING
    assert not world.effects


async def test_a_passing_failure_costs_nothing_but_time(world):
    world.failing["e-1"] = [ConnectionError(), ConnectionError()]
    await world.publish(world.event())
    await world.live(world.consumer())
    assert world.effects == {("billing", "e-1"): 1}
    assert await world.letters.count() == 0


async def test_attempts_are_counted_in_the_store_not_per_process(world):
    world.failing["e-1"] = ConnectionError("down")
    await world.publish(world.event())
    tries = 0
    while await world.letters.count() == 0:
        tries += 1
        consumer = world.consumer(attempts=3)  # another process each time
        async with consumer:
            await wait_until_idle()
        await asyncio.sleep(60)
    assert (tries, (await world.the_letter()).row.attempts) == (3, 3)


async def test_an_event_that_kills_its_handlers_is_dead_lettered_after_as_many_crashes(world):
    await world.publish(world.event())
    for _ in range(3):
        await world.crashes(world.consumer(attempts=3), "consumer.after_claim")
        await asyncio.sleep(61)
    await world.live(world.consumer(attempts=3))
    letter = await world.the_letter()
    assert letter.row.attempts == 3
    assert letter.row.error == "3 attempts were begun and none succeeded; its handler may have died in them"
    assert not world.effects


async def test_a_business_rejection_goes_straight_to_dead_letters_and_is_not_charged_to_the_breaker(world):
    breaker = circuit_breaker("stock", failure_rate=0.1, minimum_calls=1)
    world.failing = {f"e-{n}": OutOfStock("no more of it") for n in range(5)}
    consumer = world.consumer(policies=pipeline(retry(attempts=3), breaker))
    await world.publish(*(world.event(f"e-{n}") for n in range(5)), world.event("good"))
    await world.live(consumer, 5)
    assert await world.letters.count() == 5
    assert {letter.row.reason for letter in (await world.letters.list()).letters} == {"rejected"}
    assert {letter.row.attempts for letter in (await world.letters.list()).letters} == {1}
    assert breaker.snapshot()["state"] == "closed"
    assert world.effects == {("billing", "good"): 1}


@pytest.mark.parametrize("form", ["sync", "async"])
async def test_who_compensates_is_told_of_a_rejection_and_it_is_handled(world, form):
    told = []

    async def on_rejected_async(event, error):
        told.append((event.id, type(error).__name__))
        return True

    def on_rejected(event, error):
        told.append((event.id, type(error).__name__))
        return True

    world.failing["e-1"] = OutOfStock()
    consumer = world.consumer(on_rejected=on_rejected if form == "sync" else on_rejected_async)
    await world.publish(world.event(), world.event())
    await world.live(consumer)
    assert told == [("e-1", "OutOfStock")]  # once, although the event came twice
    assert await world.letters.count() == 0
    assert (consumer.snapshot()["rejected"], consumer.snapshot()["duplicates"]) == (1, 1)


@pytest.mark.parametrize("answer", [None, False, ZeroDivisionError])
async def test_a_rejection_that_nobody_deals_with_is_a_dead_letter(world, answer):
    def on_rejected(event, error):
        if isinstance(answer, type):
            raise answer
        return answer

    world.failing["e-1"] = OutOfStock()
    await world.publish(world.event())
    await world.live(world.consumer(on_rejected=on_rejected))
    assert (await world.the_letter()).row.reason == "rejected"


async def test_bytes_that_are_no_event_go_to_dead_letters_at_once_and_block_nobody(world):
    from everkeel.messaging.transports.protocol import Delivery

    acked = []

    class Garbage(Delivery):
        async def ack(self):
            acked.append(1)
            return True

    consumer = world.consumer()
    for body in (b"\xff not json", b'{"specversion": "1.0"}', b"[]"):
        await consumer.process(Garbage("orders", "billing", None, body, 1))
    await world.publish(world.event())
    await world.live(consumer, 5)
    letters = (await world.letters.list()).letters
    assert len(acked) == len(letters) == 3
    assert {letter.row.reason for letter in letters} == {"poison"}
    assert {letter.event.body for letter in letters} == {b"\xff not json", b'{"specversion": "1.0"}', b"[]"}
    assert world.effects == {("billing", "e-1"): 1}


@pytest.mark.parametrize(
    "odd", [b'"data": NaN', b'"data": {"x": "\\ud800"}', b'"replayepoch": -5', b'"replayepoch": 1e3']
)
async def test_whatever_another_producer_writes_is_handled_or_a_dead_letter_and_never_comes_for_ever(world, odd):
    class Foreign(MemoryTransport):
        def subscribe(self, *args, **named):
            subscription = super().subscribe(*args, **named)
            fetch = subscription.fetch

            async def fetched(limit):
                found = await fetch(limit)
                for delivery in found:
                    delivery._event, delivery._came = None, delivery.body[:-1] + b"," + odd + b"}"
                return found

            subscription.fetch = fetched
            return subscription

    world.transport = Foreign()
    consumer = world.consumer()
    await world.publish(Event("OrderCreated", source="/orders", id="e-1", key="k"), topic="orders")
    await world.live(consumer, 30)
    assert consumer.snapshot()["handled"] + consumer.snapshot()["dead_lettered"] == 1


async def test_data_that_does_not_fit_skips_the_retries(world):
    from dataclasses import dataclass

    @dataclass
    class Order:
        number: int

    consumer = world.consumer(handle=False)
    consumer.on("OrderCreated")(lambda event: event.data_as(Order))
    await world.publish(world.event(data={"number": "seven"}))
    await world.live(consumer, 5)
    assert (await world.the_letter()).row.reason == "poison"
    assert consumer.snapshot()["redelivered"] == 0


# ------------------------------------------------------------------ policies


async def test_an_open_breaker_pauses_and_redelivers_rather_than_burying(world, caplog):
    breaker = circuit_breaker("db", failure_rate=0.5, minimum_calls=4, open_for=60)
    outage = True
    consumer = world.consumer(handle=False, policies=breaker, attempts=5, concurrency=2)
    calls = []

    @consumer.on("OrderCreated")
    async def handler(event, tx):
        calls.append(event.id)
        if outage:
            raise ConnectionError
        tx.on_commit(lambda: world.did("billing", event))

    await world.publish(*(world.event(f"e-{n}") for n in range(50)))
    async with consumer:
        await asyncio.sleep(1800)
        assert await world.letters.count() == 0
        assert len(calls) < 150  # paused: not 50 events once a second for half an hour
        assert "pauses OrderCreated" in caplog.text
        outage = False
        await asyncio.sleep(300)
    assert len(world.effects) == 50
    assert set(world.effects.values()) == {1}


async def test_while_every_handler_pauses_no_more_is_taken_from_the_broker(world):
    world.failing["e-1"] = ConnectionError()
    breaker = circuit_breaker("db", failure_rate=0.1, minimum_calls=1, open_for=1000)
    consumer = world.consumer(policies=breaker, max_pause=500)
    taken = []
    real = consumer.subscribe

    def subscribe():
        subscription = real()
        fetch = subscription.fetch

        async def counted(limit):
            found = await fetch(limit)
            taken.extend(found)
            return found

        subscription.fetch = counted
        return subscription

    consumer.subscribe = subscribe
    await world.publish(world.event("e-1"))
    async with consumer:
        await asyncio.sleep(10)
        assert consumer.snapshot()["paused"] == ["OrderCreated"]
        before = len(taken)
        await world.publish(*(world.event(f"later-{n}") for n in range(200)))
        await asyncio.sleep(300)
        assert len(taken) - before <= consumer.prefetch  # what it was waiting for when the pause began, and no more
    assert await world.letters.count() == 0


async def test_a_paused_handler_does_not_pause_the_others(world):
    breaker = circuit_breaker("db", open_for=1000)
    breaker.force_open()
    consumer = world.consumer()
    consumer.on("OrderPaid", policies=breaker)(lambda event: None)
    await world.publish(world.event("paid", type="OrderPaid"), *(world.event(f"e-{n}") for n in range(5)))
    await world.live(consumer, 10)
    assert len(world.effects) == 5


async def test_each_attempt_of_a_retry_has_a_transaction_of_its_own(world):
    consumer = world.consumer(handle=False, policies=retry(attempts=3, backoff=0))
    seen = []

    @consumer.on("OrderCreated")
    async def handler(event, tx):
        seen.append(tx)
        tx.on_commit(lambda: world.did("billing", event))
        if len(seen) < 3:
            raise ConnectionError

    await world.publish(world.event())
    await world.live(consumer, 5)
    assert len({id(tx) for tx in seen}) == 3
    assert world.effects == {("billing", "e-1"): 1}  # what failed attempts wanted to do was rolled back
    assert consumer.snapshot()["redelivered"] == 0


async def test_a_time_limit_on_the_handler_counts_as_a_failure(world):
    consumer = world.consumer(handle=False, policies=timeout(5), attempts=2)

    @consumer.on("OrderCreated")
    async def hangs(event):
        await asyncio.sleep(10_000)

    await world.publish(world.event())
    await world.live(consumer, 60)
    assert (await world.the_letter()).row.error_type.endswith("TimeoutExceededError")


async def test_an_event_that_is_too_early_comes_again_at_no_cost_until_its_patience_is_over(world):
    world.failing["e-1"] = TooEarlyError("billing", 10.0, "order 7 is not known yet")
    consumer = world.consumer(attempts=2, patience=300)
    await world.publish(world.event())
    async with consumer:
        await asyncio.sleep(200)
        assert await world.letters.count() == 0
        assert consumer.snapshot()["redelivered"] > 10
        await asyncio.sleep(200)
    letter = await world.the_letter()
    assert letter.row.reason == "early"


async def test_an_event_that_was_too_early_is_handled_once_its_time_has_come(world):
    world.failing["e-1"] = [TooEarlyError("billing", 10.0, "order 7")] * 6
    await world.publish(world.event())
    await world.live(world.consumer(attempts=2))
    assert world.effects == {("billing", "e-1"): 1}


# ------------------------------------------------------------------ order, bounds, the end


async def test_a_failing_event_holds_up_its_own_key_in_order_and_no_other(world):
    world.failing["a-1"] = [ConnectionError()] * 3
    events = [world.event(f"{key}-{n}", key=key) for n in (1, 2, 3) for key in ("a", "b", "c")]
    await world.publish(*events)
    consumer = world.consumer()
    async with consumer:
        await wait_until_idle()
        assert sorted(world.order) == ["b-1", "b-2", "b-3", "c-1", "c-2", "c-3"]
        await asyncio.sleep(60)
    for key in "abc":
        assert [id for id in world.order if id.startswith(key)] == [f"{key}-{n}" for n in (1, 2, 3)]


class Unordered(MemoryTransport):
    """A broker that hands out everything at once, as most do: order is the consumer's business."""

    ordered = False

    async def publish(self, messages):
        self.keys = getattr(self, "keys", {})
        bare = []
        for message in messages:
            self.keys[message.event.id] = message.event.key
            bare.append(Message(message.topic, message.event.changed(partitionkey=None)))
        return await super().publish(bare)

    def subscribe(self, *args, **kwargs):
        subscription = super().subscribe(*args, **kwargs)
        fetch = subscription.fetch

        async def with_keys(limit):
            found = await fetch(limit)
            for delivery in found:
                delivery.key = self.keys[delivery.event.id]
            return found

        subscription.fetch = with_keys
        return subscription


async def test_on_a_broker_without_order_a_key_is_handled_in_order_and_a_failure_blocks_only_its_key(world):
    world.transport = Unordered()
    world.failing["a-1"] = [ConnectionError()] * 3
    await world.publish(*(world.event(f"{key}-{n}", key=key) for n in (1, 2, 3) for key in ("a", "b", "c")))
    consumer = world.consumer(prefetch=20, concurrency=5)
    async with consumer:
        await wait_until_idle()
        assert sorted(world.order) == ["b-1", "b-2", "b-3", "c-1", "c-2", "c-3"]
        await asyncio.sleep(60)
        assert len(consumer._intake.lanes) == 0
    for key in "abc":
        assert [id for id in world.order if id.startswith(key)] == [f"{key}-{n}" for n in (1, 2, 3)]


async def test_on_a_broker_without_order_an_inbox_that_is_away_changes_no_order(world):
    world.transport = Unordered()
    consumer = world.consumer(prefetch=20, concurrency=5)
    real, failures = consumer.inbox.store.begin, [ConnectionError("inbox is away")] * 2

    async def begin(*args, **kwargs):
        if failures:
            raise failures.pop()
        return await real(*args, **kwargs)

    consumer.inbox.store.begin = begin
    await world.publish(*(world.event(f"a-{n}", key="a") for n in (1, 2, 3)))
    await world.live(consumer, 60)
    assert world.order == ["a-1", "a-2", "a-3"]


async def test_no_more_handlers_run_at_once_than_allowed_and_no_more_is_taken_than_can_be_held(world):
    running, most = 0, 0
    consumer = world.consumer(handle=False, concurrency=3, prefetch=5)
    subscriptions = []
    real = consumer.subscribe
    consumer.subscribe = lambda: subscriptions.append(real()) or subscriptions[-1]

    @consumer.on("OrderCreated")
    async def handler(event):
        nonlocal running, most
        running += 1
        most = max(most, running)
        assert subscriptions[0].held <= 5
        await asyncio.sleep(10)
        running -= 1

    await world.publish(*(world.event(f"e-{n}") for n in range(20)))
    await world.live(consumer, 100)
    assert most == 3
    assert consumer.snapshot()["handled"] == 20


async def test_stopping_lets_handlers_end_and_gives_back_the_rest(world):
    done = []
    consumer = world.consumer(handle=False, concurrency=2, prefetch=4)

    @consumer.on("OrderCreated")
    async def handler(event):
        await asyncio.sleep(20 if event.id == "quick" else 10_000)
        done.append(event.id)

    await world.publish(world.event("quick"), world.event("stuck"), world.event("waiting"))
    await consumer.start()
    await asyncio.sleep(5)
    before = asyncio.get_running_loop().time()
    await consumer.stop(grace=60)
    assert asyncio.get_running_loop().time() - before == pytest.approx(60)
    assert done == ["quick"]
    record = await world.engine.inbox.get("billing", key_of(world.event("stuck")))
    assert (record.state.value, record.attempts) == ("failed", 0)  # given back, and not charged
    await world.live(world.consumer(), 5)
    assert world.effects == {("billing", "stuck"): 1, ("billing", "waiting"): 1}


async def test_cancelling_run_stops_it_as_stop_does(world):
    consumer = world.consumer()
    task = asyncio.create_task(consumer.run())
    await world.publish(world.event())
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert world.effects == {("billing", "e-1"): 1}
    await wait_until_idle()
    assert len(asyncio.all_tasks()) == 1


async def test_a_transport_that_fails_is_asked_again(world, caplog):
    consumer = world.consumer()
    real, failures = consumer.subscribe, [ConnectionError("broker is away")] * 3

    def subscribe():
        if failures:
            raise failures.pop()
        return real()

    consumer.subscribe = subscribe
    await world.publish(world.event())
    await world.live(consumer)
    assert world.effects == {("billing", "e-1"): 1}
    assert "the transport failed; asking again in" in caplog.text


async def test_without_a_dead_letter_store_it_stays_with_the_broker_and_the_log_says_so(world, caplog):
    consumer = world.consumer(engine=None, dead_letters=None, handle=False, attempts=2)
    consumer.on("OrderCreated")(lambda event: world.fail_if_told(event) or world.did("billing", event))
    world.failing["e-1"] = ConnectionError("down")
    await world.publish(world.event())
    async with consumer:
        await asyncio.sleep(600)
        assert "there is no dead-letter store: it stays with the broker" in caplog.text
        world.failing.clear()
        await asyncio.sleep(600)
    assert world.effects == {}  # its attempts are over: it waits with the broker, whole
    assert [event.id for event in world.transport.published["orders"]] == ["e-1"]
    (queue,) = world.transport.queues(["orders"], "billing")
    assert len(list(queue.pending())) == 1


# ------------------------------------------------------------------ handlers


async def test_a_plain_function_runs_in_a_thread_and_may_ask_for_everything(world):
    consumer = world.consumer(handle=False)
    seen = {}

    @consumer.on("OrderCreated")
    def handler(event, *, tx, context):
        seen.update(
            thread=threading.current_thread(), attempt=context.attempt, same=context.tx is tx, topic=context.topic
        )
        tx.on_commit(lambda: world.did("billing", event))

    await world.publish(world.event())
    await world.live(consumer, 5)
    assert world.effects == {("billing", "e-1"): 1}
    assert seen.pop("thread") is not threading.main_thread()
    assert seen == {"attempt": 1, "same": True, "topic": "orders"}


async def test_types_nobody_asked_for_are_acknowledged_and_a_star_takes_them_all(world):
    consumer = world.consumer()
    await world.publish(world.event("other", type="OrderPaid"), world.event())
    await world.live(consumer, 5)
    assert consumer.snapshot()["ignored"] == 1
    star = world.consumer("audit", handle=False)
    star.on("*")(lambda event: world.did("audit", event))
    await world.live(star, 5)
    assert {id for name, id in world.effects if name == "audit"} == {"other", "e-1"}


def no_arguments(): ...
def asks_for_more(event, session): ...
def keyword_only(*, event): ...
async def generator(event):
    yield event


@pytest.mark.parametrize(
    ("handler", "says"),
    [
        (no_arguments, r"must take the event as its first argument \(got no_arguments\(\)\)"),
        (keyword_only, "must take the event as its first argument"),
        (asks_for_more, "may ask for tx and context after the event, and nothing else without a default"),
        (generator, "no generator"),
        (7, "must be a function of an event"),
    ],
)
async def test_a_handler_with_the_wrong_signature_is_refused_when_it_is_registered_and_the_event_is_safe(
    world, handler, says
):
    consumer = world.consumer(handle=False)
    await world.publish(world.event())
    with pytest.raises(ConfigError, match=says):
        consumer.on("OrderCreated")(handler)
    with pytest.raises(ConfigError, match="has no handlers"):
        await consumer.start()
    await world.live(world.consumer(), 5)
    assert world.effects == {("billing", "e-1"): 1}


def test_wrong_settings_are_refused_by_name(world):
    for settings, says in (
        ({"attempts": 0}, "consumer 'billing': attempts must be at least 1"),
        ({"concurrency": True}, "concurrency must be"),
        ({"lease": 0}, "lease must be more than 0 seconds"),
        ({"topics": ()}, "topics must name at least one topic"),
        ({"topics": None}, "topics must name at least one topic"),
        ({"engine": "sqlite:///events.db"}, "engine must be an engine"),
        ({"inbox": "billing"}, "inbox must be an Inbox"),
        ({"dead_letters": True}, "dead_letters must be DeadLetters"),
        ({"dead_letter_topic": ""}, "dead_letter_topic must name a topic"),
        ({"on_rejected": "compensate"}, "on_rejected must be a function"),
        ({"policies": "retry"}, "policies must be a policy, a pipeline or a guard"),
        ({"backoff": "soon"}, "backoff"),
        ({"engine": None, "dead_letters": None, "park_followers": True}, "park_followers needs dead letters"),
        ({"engine": None, "dead_letters": None, "dead_letter_topic": "dead"}, "dead_letter_topic needs dead letters"),
    ):
        with pytest.raises(ConfigError, match=says):
            world.consumer(handle=False, **settings)
    with pytest.raises(ConfigError, match="name must be a non-empty string"):
        world.consumer("", handle=False)
    with pytest.raises(ConfigError, match="transport must be a transport"):
        Consumer("billing", None, topics="orders")


def test_a_second_handler_for_a_type_is_refused(world):
    consumer = world.consumer()
    with pytest.raises(ConfigError, match="type 'OrderCreated' has a handler already"):
        consumer.on("OrderCreated")(lambda event: None)


def test_a_transaction_cannot_be_had_where_there_is_none(world):
    consumer = Consumer("billing", world.transport, topics="orders")
    with pytest.raises(ConfigError, match="cannot have tx: that needs an engine with transactions"):
        consumer.on("OrderCreated")(lambda event, tx: None)


async def test_starting_twice_is_refused(world):
    async with (consumer := world.consumer()):
        with pytest.raises(RuntimeError, match="is running already"):
            await consumer.start()


def test_an_event_is_recognised_by_source_and_id_together():
    assert key_of(Event("t", source="a b", id="c")) != key_of(Event("t", source="a", id="b c"))
