"""The relay in virtual time: at least once, in order per key, and what fails holds up nobody else."""

from __future__ import annotations

import asyncio
import logging

import pytest

from everkeel import ConfigError, EventError, PublishError, events
from everkeel.engines import MemoryEngine
from everkeel.engines.letters import LetterFilter
from everkeel.messaging import Event, MemoryTransport, Outbox, Relay
from everkeel.messaging.transports.protocol import FATAL, OK, RETRYABLE, UNKNOWN, Published
from everkeel.telemetry import StoreMetrics
from everkeel.telemetry.measuring import measure_all
from everkeel.telemetry.names import METRICS, label
from everkeel.testing import Crashed, crash_at, record_events, wait_until_idle


class Scripted:
    """A transport that answers as a test says, and remembers what it took."""

    name, durable, ordered = "scripted", True, True

    def __init__(self, answer=lambda message: OK):
        self.answer = answer
        self.sent: list[Event] = []
        self.batches: list[int] = []

    async def publish(self, messages):
        self.batches.append(len(messages))
        answers, held = [], set()
        for message in messages:
            line = (message.topic, message.key)
            if message.key is not None and line in held:
                answers.append(Published(RETRYABLE, outage=True))
                continue
            answer = self.answer(message)
            if asyncio.iscoroutine(answer):
                answer = await answer
            if answer.result is not OK.result:
                held.add(line)
            else:
                self.sent.append(message.event)
            answers.append(answer)
        return answers

    @property
    def ids(self):
        return [event.id for event in self.sent]


def event(id, key=None, **more):
    return Event("tested", {"id": id}, source="/tests", id=id, key=key, **more)


REFUSED = Published(RETRYABLE, ValueError("refused"))
NEVER = Published(FATAL, ValueError("too large"))
AWAY = Published(UNKNOWN, ConnectionError("no route"), outage=True)


# ------------------------------------------------------------------ delivering


async def test_what_is_written_is_delivered_when_it_is_written_and_not_when_the_poll_comes(virtual_time):
    transport = Scripted()
    outbox = Outbox(MemoryEngine(), transport=transport)
    async with outbox.relay(poll=3600):
        await wait_until_idle()
        await outbox.write(event("1"))
        await wait_until_idle()
        assert transport.ids == ["1"]
        assert virtual_time.monotonic() < 1


async def test_a_lost_signal_costs_the_poll_interval_and_nothing_more(virtual_time):
    transport = Scripted()
    outbox = Outbox(MemoryEngine(), transport=transport)
    outbox.engine.wakeup.notify = lambda topic: None
    async with outbox.relay(poll=5):
        await asyncio.sleep(1)
        await outbox.write(event("1"))
        await asyncio.sleep(3)
        assert transport.ids == []
        await asyncio.sleep(2)
        assert transport.ids == ["1"]


async def test_events_go_to_the_topic_they_are_meant_for(virtual_time):
    transport = MemoryTransport()
    outbox = Outbox(MemoryEngine(), transport=transport, topic=lambda event: event.type)
    await outbox.write([event("1"), Event("other", source="/tests")])
    await outbox.write(event("2"), topic="special")
    assert await outbox.relay().flush() == 3
    assert {topic: len(sent) for topic, sent in transport.published.items()} == {"tested": 1, "other": 1, "special": 1}


async def test_an_event_can_be_delayed(virtual_time):
    transport = Scripted()
    outbox = Outbox(MemoryEngine(), transport=transport)
    async with outbox.relay():
        await outbox.write(event("1"), delay=60)
        await asyncio.sleep(59)
        assert transport.ids == []
        await asyncio.sleep(3)
        assert transport.ids == ["1"]


async def test_without_a_transport_events_are_kept_with_one_warning_and_delivered_once_there_is_one(
    virtual_time, caplog
):
    outbox = Outbox(MemoryEngine())
    transport = Scripted()
    with caplog.at_level(logging.WARNING, "everkeel"):
        async with outbox.relay() as relay:
            await outbox.write(event("1"))
            await asyncio.sleep(10)
            assert (await outbox.stats()).depth == 1
            relay.transport = transport
            await asyncio.sleep(2)
    assert transport.ids == ["1"]
    assert [record.getMessage() for record in caplog.records] == [
        "relay 'outbox' has no transport: events are kept in the outbox and delivered when there is one"
    ]


async def test_several_relays_share_the_work_and_keep_the_order_of_each_key(virtual_time):
    async def slow(message):
        await asyncio.sleep(0.01 if message.event.data["id"].endswith("3") else 0.001)
        return OK

    transport = Scripted(slow)
    outbox = Outbox(MemoryEngine(), transport=transport)
    await outbox.write([event(f"{n}", f"k{n % 50}") for n in range(300)])
    relays = [outbox.relay(batch=7) for _ in range(4)]
    await asyncio.gather(*(relay.flush() for relay in relays))
    assert sorted(map(int, transport.ids)) == list(range(300))
    for key in range(50):
        ours = [int(id) for id in transport.ids if int(id) % 50 == key]
        assert ours == sorted(ours)
    assert sum(relay.counters.delivered > 0 for relay in relays) > 1


# ------------------------------------------------------------------ what fails


async def test_a_refused_event_is_tried_again_later_and_holds_only_its_key(virtual_time):
    refusals = iter([REFUSED, REFUSED])
    transport = Scripted(lambda message: next(refusals, OK) if message.event.id == "1" else OK)
    outbox = Outbox(MemoryEngine(), transport=transport)
    await outbox.write([event("1", "a"), event("2", "a"), event("3", "b"), event("4")])
    async with outbox.relay(backoff=[2, 3], jitter=None):
        await asyncio.sleep(1)
        assert sorted(transport.ids) == ["3", "4"]
        await asyncio.sleep(10)
    assert transport.ids[2:] == ["1", "2"]


async def test_after_its_attempts_an_event_is_a_dead_letter_and_its_followers_are_parked(virtual_time):
    transport = Scripted(lambda message: REFUSED if message.event.id == "1" else OK)
    outbox = Outbox(MemoryEngine(), transport=transport)
    with record_events(events.DeadLettered, events.DeliveryFailed) as heard:
        await outbox.write([event("1", "a"), event("2", "a"), event("3")])
        async with outbox.relay(attempts=3, backoff=1, jitter=None) as relay:
            await asyncio.sleep(10)
    assert transport.ids == ["3"]
    assert [type(one).__name__ for one in heard] == ["DeliveryFailed", "DeliveryFailed", "DeadLettered"]
    page = await outbox.engine.dead_letters.query(LetterFilter(), limit=10)
    (letter,) = page.letters
    assert (letter.event_id, letter.reason, letter.attempts, letter.error) == ("1", "attempts", 3, "refused")
    assert (letter.consumer, letter.id) == ("outbox", heard[-1].letter)
    assert (await outbox.stats()).parked == 1
    assert relay.counters.dead_lettered == 1


async def test_a_replayed_dead_letter_is_delivered_first_and_its_followers_after_it(virtual_time):
    healed = False
    transport = Scripted(lambda message: OK if healed else REFUSED)
    outbox = Outbox(MemoryEngine(), transport=transport)
    await outbox.write([event("1", "a"), event("2", "a")])
    relay = outbox.relay(attempts=1)
    await relay.flush()
    assert transport.ids == []
    healed = True
    await outbox.write(event("1", "a").replayed())
    await relay.flush()
    assert transport.ids == ["1", "2"]
    assert transport.sent[0].replay_epoch == 1


async def test_without_parking_followers_go_on(virtual_time):
    transport = Scripted(lambda message: REFUSED if message.event.id == "1" else OK)
    outbox = Outbox(MemoryEngine(), transport=transport)
    await outbox.write([event("1", "a"), event("2", "a")])
    await outbox.relay(attempts=1, park=False).flush()
    assert transport.ids == ["2"]


async def test_what_will_never_be_taken_is_a_dead_letter_at_once(virtual_time):
    transport = Scripted(lambda message: NEVER if message.event.id == "1" else OK)
    outbox = Outbox(MemoryEngine(), transport=transport)
    await outbox.write([event("1"), event("2")])
    relay = outbox.relay()
    await relay.flush()
    assert transport.ids == ["2"]
    (letter,) = (await outbox.engine.dead_letters.query(LetterFilter(), limit=10)).letters
    assert (letter.reason, letter.attempts) == ("fatal", 1)


async def test_one_poisoned_row_among_a_hundred_is_a_dead_letter_and_harms_nobody(virtual_time):
    from everkeel.engines import OutboxRow

    transport = Scripted()
    outbox = Outbox(MemoryEngine(), transport=transport)
    await outbox.write([event(str(n)) for n in range(50)])
    await outbox.engine.outbox.append([OutboxRow("bad", "/tests", "t", "events", None, '{"Not-Ours":{}}', "x")])
    await outbox.write([event(str(n)) for n in range(50, 99)])
    await outbox.relay().flush()
    assert len(transport.sent) == 99
    (letter,) = (await outbox.engine.dead_letters.query(LetterFilter(), limit=10)).letters
    assert (letter.event_id, letter.reason, letter.attempts) == ("bad", "poison", 1)


# ------------------------------------------------------------------ a transport that is away


@pytest.mark.parametrize("how", ["answers", "raises", "hangs"])
async def test_a_broker_that_is_away_for_hours_costs_no_event_an_attempt(virtual_time, how, caplog):
    away = True

    async def answer(message):
        if not away:
            return OK
        if how == "raises":
            raise ConnectionError("no route")
        if how == "hangs":
            await asyncio.sleep(1e6)
        return AWAY

    transport = Scripted(answer)
    outbox = Outbox(MemoryEngine(), transport=transport)
    await outbox.write([event(str(n), "k" if n % 2 else None) for n in range(250)])
    async with outbox.relay(attempts=2, lease=20, poll=20) as relay:
        await asyncio.sleep(4 * 3600)
        assert len(transport.batches) < 4 * 3600 / 20  # capped backoff, not a storm
        assert await outbox.engine.dead_letters.count(LetterFilter()) == 0
        assert relay.counters.outages == 1
        away = False
        transport.batches.clear()
        await asyncio.sleep(120)
        assert transport.batches[:4] == [1, 2, 4, 8]  # a broker that has just come back is not flooded
    assert len(transport.sent) == 250
    assert (await outbox.stats()).depth == 0
    odd = [int(id) for id in transport.ids if int(id) % 2]
    assert odd == sorted(odd)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_a_topic_that_hangs_does_not_slow_the_others(virtual_time):
    async def answer(message):
        if message.topic == "slow":
            await asyncio.sleep(1e6)
        return OK

    transport = Scripted(answer)
    outbox = Outbox(MemoryEngine(), transport=transport)
    for n in range(20):
        await outbox.write([event(f"s{n}-{i}") for i in range(50)], topic="slow")
        await outbox.write([event(f"f{n}-{i}") for i in range(50)], topic="fast")
    async with outbox.relay(publish_timeout=600, lease=30) as relay:
        await asyncio.sleep(2)
        assert len(transport.sent) == 1000
        assert (await relay.stats()).outbox.by_topic == {"slow": 1000}
        await relay.stop(within=1)
    assert (await outbox.stats()).leased == 0  # what was under way was given back


async def test_while_a_slow_publish_lasts_its_leases_are_held(virtual_time):
    async def answer(message):
        await asyncio.sleep(100)
        return OK

    transport = Scripted(answer)
    outbox = Outbox(MemoryEngine(), transport=transport)
    await outbox.write(event("1"))
    async with outbox.relay(lease=10, publish_timeout=1000) as slow, outbox.relay(lease=10, publish_timeout=1000):
        await asyncio.sleep(150)
        assert transport.ids == ["1"]
    assert slow.counters.lease_lost == 0


# ------------------------------------------------------------------ crashes


async def test_a_crash_between_publishing_and_writing_it_down_sends_the_same_event_twice(virtual_time):
    transport = Scripted()
    outbox = Outbox(MemoryEngine(), transport=transport)
    await outbox.write(event("1", "k"))
    with crash_at("relay.after_publish"):
        relay = outbox.relay(lease=30)
        await relay._claim()
        (task,) = relay._batches
        with pytest.raises(Crashed):
            await task
    second = outbox.relay()
    assert await second.flush() == 0  # the lease of the dead one holds
    await asyncio.sleep(31)
    assert await second.flush() == 1
    assert transport.ids == ["1", "1"]


async def test_a_relay_that_died_with_a_claim_is_taken_over_whatever_it_was_called(virtual_time):
    transport = Scripted()
    outbox = Outbox(MemoryEngine(), transport=transport)
    await outbox.write(event("1"))
    dead, again = outbox.relay(lease=30), outbox.relay(lease=30)
    again.owner = dead.owner  # a restart with the same name is no reason to wait for ever, nor to take it early
    with crash_at("relay.after_claim"), pytest.raises(Crashed):
        await dead.flush()
    assert await again.flush() == 0
    await asyncio.sleep(31)
    with record_events(events.EventDelivered) as heard:
        assert await again.flush() == 1
    assert heard[0].attempt == 2


async def test_a_relay_that_comes_back_after_losing_its_lease_changes_nothing_and_is_counted(virtual_time):
    woken = asyncio.Event()

    async def answer(message):
        if not woken.is_set():
            await woken.wait()
        return OK

    zombie_transport, transport = Scripted(answer), Scripted()
    outbox = Outbox(MemoryEngine(), transport=transport)
    await outbox.write(event("1"))
    zombie = outbox.relay(transport=zombie_transport, lease=10)

    async def no_extension(leases, seconds):
        return frozenset()

    zombie.store = type("Deaf", (), {"__getattr__": lambda self, name: getattr(outbox.engine.outbox, name)})()
    zombie.store.extend = no_extension
    flushing = asyncio.ensure_future(zombie.flush())
    await asyncio.sleep(11)
    with record_events(events.LeaseLost) as heard:
        assert await outbox.relay().flush() == 1
        woken.set()
        assert await flushing == 0
    assert zombie.counters.lease_lost == 1
    assert [one.event_id for one in heard] == ["1"]
    assert zombie_transport.ids == transport.ids == ["1"]


@pytest.mark.parametrize("point", ["outbox.before_write", "outbox.after_write", "outbox.before_commit"])
async def test_a_crash_before_the_commit_leaves_no_event(virtual_time, point):
    outbox = Outbox(MemoryEngine())
    with crash_at(point), pytest.raises(Crashed):
        async with outbox.transaction() as tx:
            await outbox.write(event("1"), tx=tx)
    assert (await outbox.stats()).depth == 0


async def test_a_crash_after_the_commit_loses_only_the_signal(virtual_time):
    transport = Scripted()
    outbox = Outbox(MemoryEngine(), transport=transport)
    outbox.engine.wakeup.notify = lambda topic: None
    with crash_at("outbox.after_commit"), pytest.raises(Crashed):
        async with outbox.transaction() as tx:
            await outbox.write(event("1"), tx=tx)
    async with outbox.relay():
        await asyncio.sleep(1.5)
    assert transport.ids == ["1"]


async def test_a_store_that_is_away_is_asked_again_until_it_is_back(virtual_time, caplog):
    transport = Scripted()
    outbox = Outbox(MemoryEngine(), transport=transport)
    relay = outbox.relay()
    real, failures = relay.store, iter(range(5))

    class Away:
        def __getattr__(self, name):
            return getattr(real, name)

        async def claim(self, *args, **options):
            if next(failures, None) is not None:
                raise OSError("connection refused")
            return await real.claim(*args, **options)

    relay.store = Away()
    await outbox.write(event("1"))
    async with relay:
        await asyncio.sleep(120)
    assert transport.ids == ["1"]
    assert len(caplog.records) == 1  # said once


# ------------------------------------------------------------------ its life


async def test_a_paused_relay_claims_nothing_until_it_is_resumed(virtual_time):
    transport = Scripted()
    outbox = Outbox(MemoryEngine(), transport=transport)
    async with outbox.relay() as relay:
        relay.pause()
        await outbox.write(event("1"))
        await asyncio.sleep(10)
        assert transport.ids == []
        assert (await relay.stats()).paused
        relay.resume()
        await wait_until_idle()
        assert transport.ids == ["1"]


async def test_stopping_finishes_what_is_under_way(virtual_time):
    async def answer(message):
        await asyncio.sleep(2)
        return OK

    transport = Scripted(answer)
    outbox = Outbox(MemoryEngine(), transport=transport)
    async with outbox.relay():
        await outbox.write(event("1"))
        await asyncio.sleep(1)
    assert transport.ids == ["1"]
    assert (await outbox.stats()).depth == 0


async def test_stopping_with_a_wedged_transport_ends_in_time_and_loses_nothing(virtual_time):
    async def answer(message):
        await asyncio.sleep(1e6)

    outbox = Outbox(MemoryEngine(), transport=Scripted(answer))
    relay = outbox.relay(publish_timeout=1e5)
    running = asyncio.ensure_future(relay.run())
    await outbox.write(event("1"))
    await asyncio.sleep(1)
    began = virtual_time.monotonic()
    await relay.stop(within=5)
    await running
    assert virtual_time.monotonic() - began == 5
    (claimed,) = await outbox.engine.outbox.claim("next", 1, 30)
    assert claimed.lease.attempt == 1


async def test_stopping_while_the_store_is_asked_or_away_ends_in_time(virtual_time):
    outbox = Outbox(MemoryEngine(), transport=Scripted())
    relay = outbox.relay(outage_backoff=600)
    real = relay.store

    class Slow:
        def __getattr__(self, name):
            return getattr(real, name)

        async def claim(self, *args, **options):
            await asyncio.sleep(3)
            return await real.claim(*args, **options)

    relay.store = Slow()
    await outbox.write(event("1"))
    async with relay:
        await asyncio.sleep(1)
    assert (await outbox.stats()).leased == 0  # claimed when it was told to stop, and given back

    class Away(Slow):
        async def claim(self, *args, **options):
            raise OSError("connection refused")

    relay.store = Away()
    async with relay:
        await asyncio.sleep(1)
    assert virtual_time.monotonic() < 10
    with pytest.raises(OSError, match="connection refused"):
        await relay.flush()  # who asks for it once is told


async def test_stopping_while_the_store_has_gone_silent_ends_in_time(virtual_time):
    """As a driver does over a network that swallows everything: it never answers, and cleans up for ever."""
    outbox = Outbox(MemoryEngine(), transport=Scripted(lambda message: asyncio.sleep(1e6)))
    relay = outbox.relay(publish_timeout=1e5)
    real, asked, silent = relay.store, [], False

    class Store:
        def __getattr__(self, name):
            async def ask(*args, **options):
                if not silent:
                    return await getattr(real, name)(*args, **options)
                asked.append(name)
                try:
                    await asyncio.sleep(1e6)
                finally:
                    await asyncio.sleep(1e6)

            return ask

    relay.store = Store()
    await outbox.write(event("1"))
    async with relay:
        await asyncio.sleep(0.5)
        silent = True
        await asyncio.sleep(20)
        assert {"claim", "extend"} <= set(asked)
        began = virtual_time.monotonic()
        await relay.stop(within=5)
    assert virtual_time.monotonic() - began < 10
    assert asked[-1] == "release"
    assert (await real.stats()).leased == 1  # until its lease is over


async def test_a_relay_can_be_stopped_before_it_has_begun_and_started_again(virtual_time):
    transport = Scripted()
    outbox = Outbox(MemoryEngine(), transport=transport)
    relay = outbox.relay()
    async with relay:
        pass
    await relay.stop()
    await outbox.write(event("1"))
    async with relay:
        await asyncio.sleep(1)
    assert transport.ids == ["1"]


async def test_a_cancelled_relay_gives_back_what_it_held(virtual_time):
    async def answer(message):
        await asyncio.sleep(1e6)

    outbox = Outbox(MemoryEngine(), transport=Scripted(answer))
    running = asyncio.ensure_future(outbox.relay().run())
    await outbox.write(event("1"))
    await asyncio.sleep(1)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await outbox.stats()).leased == 0


async def test_delivered_events_are_purged_in_bounded_steps_after_their_time(virtual_time):
    transport = Scripted()
    outbox = Outbox(MemoryEngine(keep_delivered=3600), transport=transport)
    await outbox.write([event(str(n)) for n in range(2500)])
    async with outbox.relay(maintenance=60) as relay:
        await asyncio.sleep(1800)
        assert relay.counters.purged == 0
        await asyncio.sleep(2000)
        assert relay.counters.purged == 2500


async def test_stats_tell_what_waits_and_what_was_done(virtual_time):
    transport = Scripted(lambda message: REFUSED if message.event.id == "bad" else OK)
    outbox = Outbox(MemoryEngine(), transport=transport)
    await outbox.write([event("good"), event("bad")])
    relay = outbox.relay(backoff=60, jitter=None)
    await relay.flush()
    await asyncio.sleep(30)
    stats = await relay.stats()
    assert (stats.delivered, stats.failed, stats.lease_lost, stats.in_flight) == (1, 1, 0, 0)
    assert (stats.outbox.depth, stats.outbox.delayed, stats.outbox.oldest_age) == (1, 1, 30)


async def test_a_snapshot_has_the_numbers_that_exporters_show_by_the_same_names(virtual_time):
    transport = Scripted(lambda message: {"bad": REFUSED, "never": NEVER}.get(message.event.id, OK))
    engine = MemoryEngine()
    outbox = Outbox(engine, transport=transport)
    relay = outbox.relay(backoff=600, jitter=None)
    async with StoreMetrics(engine, every=10, relays=[relay]), relay:
        await outbox.write([event("good"), event("bad"), event("never", "k"), event("behind", "k")])
        await asyncio.sleep(25)
        numbers = relay.snapshot()
        shown = {label(one): one.value for one in measure_all()}
    assert numbers["everkeel.outbox.depth{state=delayed}"] == 1
    assert numbers["everkeel.outbox.depth{state=parked}"] == 1
    assert numbers["everkeel.outbox.oldest_age"] == 20
    for result in ("delivered", "failed", "dead_lettered"):
        assert numbers[f"everkeel.outbox.attempts{{result={result}}}"] == 1
    assert numbers["everkeel.relay.paused"] == numbers["everkeel.outbox.lease_lost"] == 0
    assert {name: shown.get(name, 0) for name in numbers} == numbers  # a count that is 0 may have nothing to show
    assert {name.partition("{")[0] for name in numbers} <= set(METRICS)


async def test_what_a_relay_knows_is_shown_with_its_name(virtual_time):
    engine = MemoryEngine(keep_delivered=60)
    down = [True]
    outbox = Outbox(engine, transport=Scripted(lambda message: AWAY if down else OK))
    relay = outbox.relay(name="first", maintenance=60)
    async with StoreMetrics(engine, name="orders", relays=[relay]), relay:
        await outbox.write([event("1"), event("2")])
        await asyncio.sleep(5)
        down.clear()
        await asyncio.sleep(300)
        relay.pause()
        rows = [one for one in measure_all() if one.name.startswith("everkeel.relay.")]
    assert {one.name.rpartition(".")[2]: one.value for one in rows} == {
        "in_flight": 0, "paused": 1, "outages": 1, "purged": 2,
    }  # fmt: skip
    assert {tuple(one.attributes.values()) for one in rows} == {("first", "relay", "orders")}


async def test_what_happens_can_be_heard(virtual_time):
    outbox = Outbox(MemoryEngine(), transport=Scripted(), name="orders")
    heard = []
    with outbox.subscribe(heard.append):
        await outbox.write(event("1"))
        await outbox.relay().flush()
    await outbox.write(event("2"))
    assert [(type(one).__name__, one.policy, getattr(one, "event_id", None)) for one in heard] == [
        ("EventWritten", "orders", "1"),
        ("BatchPublished", "orders", None),
        ("EventDelivered", "orders", "1"),
    ]
    assert (heard[1].topic, heard[1].size, heard[1].confirmed) == ("events", 1, 1)


async def test_an_event_takes_the_trace_along_in_which_it_was_written(virtual_time):
    from opentelemetry.sdk.trace import TracerProvider

    transport = Scripted()
    outbox = Outbox(MemoryEngine(), transport=transport)
    tracer = TracerProvider().get_tracer("tests")
    with tracer.start_as_current_span("checkout") as span:
        await outbox.write([event("1"), event("2", traceparent=f"00-{1:032x}-{2:016x}-01")])
    await outbox.write(event("3"))
    await outbox.relay().flush()
    context = span.get_span_context()
    assert [sent.traceparent for sent in transport.sent] == [
        f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}",
        f"00-{1:032x}-{2:016x}-01",
        None,
    ]


# ------------------------------------------------------------------ without an outbox, and wrong settings


async def test_an_outbox_that_is_off_publishes_at_once(virtual_time):
    transport = Scripted()
    outbox = Outbox(MemoryEngine(), transport=transport, mode="off")
    await outbox.write(event("1"))
    assert transport.ids == ["1"]
    assert (await outbox.stats()).depth == 0


def test_an_outbox_that_is_off_publishes_at_once_in_sync_code_too():
    transport = Scripted()
    Outbox(MemoryEngine(), transport=transport, mode="off").write_sync(event("1"))
    assert transport.ids == ["1"]


async def test_an_outbox_that_is_off_says_when_the_transport_did_not_confirm(virtual_time):
    outbox = Outbox(MemoryEngine(), transport=Scripted(lambda message: AWAY), mode="off", name="orders")
    with pytest.raises(PublishError, match=r"outbox 'orders': event 'tested' was not confirmed \(unknown: no route\)"):
        await outbox.write(event("1"))
    with pytest.raises(ConfigError, match="transport is needed where the outbox is off"):
        await Outbox(MemoryEngine(), mode="off").write(event("1"))


async def test_whatever_can_be_walked_through_once_is_written_whole(virtual_time):
    outbox = Outbox(MemoryEngine())
    await outbox.write(event(str(n)) for n in range(3))
    outbox.write_sync(map(event, ("a", "b")))
    await outbox.write([])
    assert (await outbox.stats()).depth == 5


@pytest.mark.parametrize("what", [None, 5, "order.placed", {"type": "order.placed"}, [None]])
async def test_what_is_no_event_is_refused_by_name(virtual_time, what):
    with pytest.raises(EventError, match=r"outbox 'outbox': writes events \(got "):
        await Outbox(MemoryEngine()).write(what)


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), 1e300, "soon", True])
async def test_a_delay_that_no_store_can_keep_is_refused_before_anything_is_written(virtual_time, delay):
    outbox = Outbox(MemoryEngine())
    with pytest.raises(ConfigError, match="outbox 'outbox': delay must"):
        await outbox.write(event("1"), delay=delay)
    with pytest.raises(ConfigError, match="outbox 'outbox': delay must"):
        outbox.write_sync(event("1"), delay=delay)
    assert (await outbox.stats()).depth == 0


@pytest.mark.parametrize("topic", ["", 5, "a\x00b", "\ud800", "t" * 513])
async def test_a_topic_that_no_store_can_keep_is_refused_before_anything_is_written(virtual_time, topic):
    engine = MemoryEngine()
    for outbox, own in ((Outbox(engine), {"topic": topic}), (Outbox(engine, topic=lambda event: topic), {})):
        with pytest.raises(EventError, match=r"event 'tested': (has no topic|topic m)"):
            await outbox.write(event("1"), **own)
    assert (await engine.outbox.stats()).depth == 0


async def test_an_outbox_that_is_off_cannot_publish_without_awaiting_where_others_await(virtual_time):
    with pytest.raises(ConfigError, match=r"mode is off, and within an event loop only `await outbox.write"):
        Outbox(MemoryEngine(), transport=Scripted(), mode="off").write_sync(event("1"))


async def test_an_event_that_is_too_large_is_refused_before_it_is_written(virtual_time):
    outbox = Outbox(MemoryEngine(), max_size=1000)
    with pytest.raises(EventError, match=r"event 'tested': has \d+ bytes, and outbox 'outbox' allows 1000"):
        await outbox.write(Event("tested", "x" * 1000, source="/tests"))
    with pytest.raises(EventError, match=r"outbox 'outbox': writes events \(got dict\)"):
        await outbox.write([{"type": "tested"}])
    assert (await outbox.stats()).depth == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch": 0}, "relay 'outbox': batch must be at least 1"),
        ({"poll": 0}, "relay 'outbox': poll must be more than 0 seconds"),
        ({"attempts": 0}, "relay 'outbox': attempts must be at least 1"),
        ({"mode": "shadow"}, "relay 'outbox': mode must be 'enforce' or 'off'"),
    ],
)
def test_wrong_settings_of_a_relay_fail_when_they_are_written(settings, message):
    with pytest.raises(ConfigError, match=message):
        Relay(Outbox(MemoryEngine()), **settings)


def test_wrong_settings_of_an_outbox_fail_when_they_are_written():
    with pytest.raises(ConfigError, match="outbox 'outbox': max_size must be at least 1"):
        Outbox(MemoryEngine(), max_size=0)
    with pytest.raises(ConfigError, match="outbox 'outbox': mode must be 'enforce' or 'off'"):
        Outbox(MemoryEngine(), mode="shadow")
