"""What is shown of outboxes, dead letters and sagas: the store's own words, and what happened, counted once."""

from __future__ import annotations

import asyncio
import os
from datetime import timedelta

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from everkeel import ConfigError, NotRetryable, SagaCompensatedError, SagaStoppedError, events, retry
from everkeel.engines import MemoryEngine, PostgresEngine, SQLiteEngine
from everkeel.engines.sagas import NewSaga, SagaChange, SagaState
from everkeel.messaging import Consumer, DeadLetters, Event, FunctionTransport, MemoryTransport, Outbox, Relay
from everkeel.runtime import events as hub
from everkeel.sagas import Orchestrator, Saga, Step
from everkeel.telemetry import EverkeelInstrumentor, PolicyCollector, StoreMetrics, measuring
from everkeel.telemetry.happened import HEARD, counted
from everkeel.telemetry.measuring import measure_all
from everkeel.telemetry.names import METRICS, POLICY_NAME, POLICY_TYPE
from everkeel.testing import fresh_everkeel

pytestmark = pytest.mark.usefixtures("fresh_everkeel")  # exporters read the policies of the whole process


def event(number: int, **more) -> Event:
    return Event("OrderCreated", {"n": number}, source="/orders", id=f"e-{number}", **more)


def numbers(prefix: str = "everkeel.", *, zeros: bool = False) -> dict[str, float]:
    """What exporters read now, as `name{name of what it is about,own attributes}`."""
    found = {}
    for name, value, attributes in measure_all():
        own = [text for key, text in attributes.items() if key not in (POLICY_TYPE, "store")]
        if name.startswith(prefix) and (value or zeros):
            found[f"{name}{{{','.join(own)}}}"] = value
    return found


# ------------------------------------------------------------------ what the store says


async def test_the_outbox_is_shown_by_what_its_events_wait_for(virtual_time):
    engine = MemoryEngine()
    outbox = Outbox(engine)
    await outbox.write([event(1), event(2, key="a"), event(3, key="a")])
    await outbox.write(event(4), delay=600)
    (first,) = await engine.outbox.claim("relay", 1, 30)
    assert first.row.id == "e-1"
    await asyncio.sleep(12)
    async with StoreMetrics(engine):
        assert numbers("everkeel.outbox.", zeros=True) == {
            "everkeel.outbox.depth{outbox,due}": 2,
            "everkeel.outbox.depth{outbox,leased}": 1,
            "everkeel.outbox.depth{outbox,delayed}": 1,
            "everkeel.outbox.depth{outbox,parked}": 0,
            "everkeel.outbox.oldest_age{outbox}": 12,
        }


async def test_parked_events_are_no_part_of_those_that_are_due(virtual_time):
    engine = MemoryEngine()
    outbox = Outbox(engine, transport=FunctionTransport(refuse))
    await outbox.write([event(1, key="a"), event(2, key="a")])
    await Relay(outbox, attempts=1).flush()
    async with StoreMetrics(engine):
        assert numbers("everkeel.outbox.depth") == {"everkeel.outbox.depth{outbox,parked}": 1}
        assert numbers("everkeel.dlq.depth") == {"everkeel.dlq.depth{outbox,attempts,pending}": 1}


async def refuse(message) -> None:
    raise NotRetryable("no")


async def test_dead_letters_are_shown_by_consumer_reason_and_status_with_the_age_of_the_oldest(virtual_time):
    engine = MemoryEngine()
    letters = DeadLetters(engine)
    first = await letters.bury(event(1), consumer="billing", topic="orders", reason="attempts")
    await letters.bury(event(2), consumer="shipping", topic="orders", reason="poison")
    async with StoreMetrics(engine, every=1):
        await asyncio.sleep(10)
        assert numbers("everkeel.dlq.") == {
            "everkeel.dlq.depth{billing,attempts,pending}": 1,
            "everkeel.dlq.depth{shipping,poison,pending}": 1,
            "everkeel.dlq.oldest_age{billing}": pytest.approx(10, abs=1),
            "everkeel.dlq.oldest_age{shipping}": pytest.approx(10, abs=1),
        }
        await letters.discard(first.id, actor="ann", reason="a test order")
        await asyncio.sleep(1.5)
        assert numbers("everkeel.dlq.depth", zeros=True) == {
            "everkeel.dlq.depth{billing,attempts,discarded}": 1,
            "everkeel.dlq.depth{shipping,poison,pending}": 1,
            "everkeel.dlq.depth{billing,attempts,pending}": 0,  # it was there, and a graph falls to zero
        }
        assert numbers("everkeel.dlq.oldest_age", zeros=True)["everkeel.dlq.oldest_age{billing}"] == 0


async def test_sagas_are_shown_by_type_and_state_as_long_as_they_are_active(virtual_time):
    engine = MemoryEngine()
    for id, type in (("s-1", "order"), ("s-2", "order"), ("s-3", "refund")):
        saga = NewSaga(id=id, type=type, version=1, kind="orchestrated", state=SagaState.RUNNING, document="{}")
        await engine.sagas.create(saga)
    async with StoreMetrics(engine, every=1):
        await asyncio.sleep(20)
        row = await engine.sagas.load("s-1")
        done = SagaChange(id="s-1", expect=row.revision, state=SagaState.COMPLETED, document="{}", keep=False)
        assert await engine.sagas.save(done) is not None
        row = await engine.sagas.load("s-3")
        blocked = SagaChange(
            id="s-3", expect=row.revision, state=SagaState.COMPENSATION_BLOCKED, document="{}", keep=False
        )
        assert await engine.sagas.save(blocked) is not None
        await asyncio.sleep(1.5)
        assert numbers("everkeel.saga.") == {
            "everkeel.saga.active{order,running}": 1,
            "everkeel.saga.active{refund,compensation_blocked}": 1,
            "everkeel.saga.oldest_age{order}": pytest.approx(21.5, abs=1),
            "everkeel.saga.oldest_age{refund}": pytest.approx(21.5, abs=1),
        }
        row = await engine.sagas.load("s-2")
        late = SagaChange(
            id="s-2", expect=row.revision, state=SagaState.COMPENSATED, document="{}", step="pay", keep=False
        )
        assert await engine.sagas.save(late) is not None
        await asyncio.sleep(1.5)
        assert numbers("everkeel.saga.unsettled")["everkeel.saga.unsettled{order}"] == 1


def test_the_stores_of_sqlite_are_read_too(tmp_path):
    async def test() -> None:
        async with SQLiteEngine(tmp_path / "events.db") as engine:
            await Outbox(engine).write([event(1), event(2)])
            await DeadLetters(engine).bury(event(3), consumer="billing", topic="orders", reason="attempts")
            async with StoreMetrics(engine) as watched:
                assert await watched.sample()
                shown = numbers()
                assert shown["everkeel.outbox.depth{outbox,due}"] == 2
                assert shown["everkeel.dlq.depth{billing,attempts,pending}"] == 1

    asyncio.run(test())


@pytest.mark.require_server("postgres")
def test_the_stores_of_postgresql_are_read_too(postgres_dsn):
    async def test() -> None:
        async with PostgresEngine(postgres_dsn) as engine:
            saga = NewSaga(id="s", type="order", version=1, kind="orchestrated", state=SagaState.RUNNING, document="{}")
            await engine.sagas.create(saga)
            await Outbox(engine).write([event(1), event(2)])
            await DeadLetters(engine).bury(event(3), consumer="billing", topic="orders", reason="attempts")
            async with StoreMetrics(engine) as watched:
                assert await watched.sample()
                shown = numbers(zeros=True)
        assert shown["everkeel.outbox.depth{outbox,due}"] == 2
        assert shown["everkeel.outbox.oldest_age{outbox}"] >= 0
        assert shown["everkeel.dlq.depth{billing,attempts,pending}"] == 1
        assert shown["everkeel.dlq.oldest_age{billing}"] >= 0
        assert shown["everkeel.saga.active{order,running}"] == 1
        assert shown["everkeel.saga.oldest_age{order}"] >= 0

    asyncio.run(test())


async def test_depths_are_what_the_store_says_and_no_difference_of_counts(virtual_time):
    engine = MemoryEngine()
    outbox = Outbox(engine)
    await outbox.write([event(number) for number in range(5)])  # before anybody counted
    async with StoreMetrics(engine, every=1):
        await outbox.write(event(5))
        await asyncio.sleep(1.5)
        assert numbers("everkeel.outbox.depth") == {"everkeel.outbox.depth{outbox,due}": 6}
        assert numbers("everkeel.outbox.written") == {"everkeel.outbox.written{outbox}": 1}


# ------------------------------------------------------------------ a store that cannot be read


class Away:
    """An outbox whose database is away while `gone` is set."""

    def __init__(self, store) -> None:
        self.store, self.gone = store, False

    async def stats(self):
        if self.gone:
            raise ConnectionError("the database is away")
        return await self.store.stats()


async def test_a_sample_that_fails_keeps_the_last_numbers_and_is_reported_once(virtual_time, caplog):
    engine = MemoryEngine()
    await Outbox(engine).write(event(1))
    away = engine.__dict__["outbox"] = Away(engine.outbox)
    async with StoreMetrics(engine, every=5) as watched:
        away.gone = True
        await asyncio.sleep(60)
        assert numbers("everkeel.outbox.depth") == {"everkeel.outbox.depth{outbox,due}": 1}
        assert numbers("everkeel.store.") == {"everkeel.store.sample_age{memory}": 60}
        assert len([record for record in caplog.records if "cannot be read" in record.message]) == 1
        away.gone = False
        await asyncio.sleep(5.5)
        assert numbers("everkeel.store.")["everkeel.store.sample_age{memory}"] < 5
        away.gone = True
        assert not await watched.sample()
    assert len([record for record in caplog.records if "cannot be read" in record.message]) == 2  # another outage
    assert len([record for record in caplog.records if "can be read again" in record.message]) == 1


async def test_a_store_that_is_away_does_not_hide_the_others(virtual_time, caplog):
    engine = MemoryEngine()
    engine.__dict__["outbox"] = away = Away(engine.outbox)
    away.gone = True
    await DeadLetters(engine).bury(event(1), consumer="billing", topic="orders", reason="attempts")
    async with StoreMetrics(engine):
        assert numbers("everkeel.dlq.depth") == {"everkeel.dlq.depth{billing,attempts,pending}": 1}
        assert numbers("everkeel.outbox.") == {}
    assert "the stores cannot be read; their last numbers stay" in caplog.text


async def test_a_consumer_that_cannot_be_read_does_not_spoil_the_scrape(virtual_time, caplog):
    class Broken:
        name = "broken"

        def snapshot(self):
            raise RuntimeError("no snapshot today")

    fetch = retry("fetch")
    async with StoreMetrics(MemoryEngine(), consumers=[Broken()]):
        assert fetch.name in {row.attributes[POLICY_NAME] for row in measure_all()}
    assert "could not be read for telemetry" in caplog.text


async def test_an_engine_with_an_outbox_alone_will_do(virtual_time):
    inside = MemoryEngine()

    class Bare:
        name, clock, outbox = "bare", inside.clock, inside.outbox

    async with StoreMetrics(Bare()) as watched:
        assert await watched.sample()
        assert {row.name for row in measure_all()} == {
            "everkeel.outbox.depth",
            "everkeel.outbox.oldest_age",
            "everkeel.store.sample_age",
        }


async def test_how_much_room_there_is_for_dead_letters_is_shown(virtual_time):
    engine, transport = MemoryEngine(), MemoryTransport()
    letters = DeadLetters(engine, most=4)
    consumer = Consumer("billing", transport, topics="orders", engine=engine, dead_letters=letters)
    rows = [await letters.bury(event(n), consumer="billing", topic="orders", reason="rejected") for n in (1, 2)]
    await letters.discard(rows[0].id, actor="ann", reason="it makes way where room is needed")
    async with StoreMetrics(engine, consumers=[consumer]):
        assert numbers()["everkeel.dlq.filled{billing}"] == 0.25


# ------------------------------------------------------------------ what happened


async def test_what_happens_on_the_whole_way_of_events_is_counted(virtual_time):
    engine, transport = MemoryEngine(), MemoryTransport()
    outbox = Outbox(engine, transport=transport, topic="orders")
    consumer = Consumer("billing", transport, topics="orders", engine=engine)

    @consumer.on("OrderCreated")
    async def handle(event):
        if event.data["n"] == 2:
            raise NotRetryable("out of stock")

    async with StoreMetrics(engine, every=1, consumers=[consumer]), outbox.relay(), consumer:
        await outbox.write([event(1), event(2)])
        await asyncio.sleep(5)
        await transport.publish([_message(event(1))])  # a copy
        await asyncio.sleep(5)
        letters = DeadLetters(engine)
        (letter,) = (await letters.list()).letters
        await letters.replay(letter.id, actor="ann")
        await asyncio.sleep(5)
        (letter,) = [one for one in (await letters.list()).letters if one.status == "pending"]
        await letters.discard(letter.id, actor="bot", kind="agent", reason="never again")
        await asyncio.sleep(5)
        assert {name: value for name, value in numbers().items() if "_age" not in name} == {
            "everkeel.outbox.written{outbox}": 2,
            "everkeel.outbox.attempts{outbox,delivered}": 3,
            "everkeel.inbox.duplicates{billing}": 1,
            "everkeel.inbox.begin{billing,duplicate}": 1,
            "everkeel.inbox.begin{billing,fresh}": 3,
            "everkeel.dlq.transitions{billing,,pending,auto}": 2,
            "everkeel.dlq.transitions{billing,pending,replayed,human}": 1,
            "everkeel.dlq.transitions{billing,pending,discarded,agent}": 1,
            "everkeel.dlq.transitions{billing,replayed,superseded,auto}": 1,
            "everkeel.dlq.depth{billing,rejected,superseded}": 1,
            "everkeel.dlq.depth{billing,rejected,discarded}": 1,
            "everkeel.consumer.events{billing,handled}": 1,
            "everkeel.consumer.events{billing,duplicates}": 1,
            "everkeel.consumer.events{billing,dead_lettered}": 2,
        }


def _message(event: Event):
    from everkeel.messaging import Message

    return Message("orders", event)


SAGA = {"policy": "order", "policy_type": "saga", "saga_id": "s-1"}
ABOUT = {"event_id": "e-1", "event_type": "OrderCreated"}
OUTBOX = {"policy": "shop", "policy_type": "outbox", **ABOUT}
COUNTED = [
    (events.EventWritten(**OUTBOX, topic="t"), ["outbox.written{shop}"]),
    (events.EventDelivered(**OUTBOX, topic="t", attempt=1, age=1.0), ["outbox.attempts{shop,delivered}"]),
    (events.DeliveryFailed(**OUTBOX, topic="t", attempt=1, delay=1.0), ["outbox.attempts{shop,failed}"]),
    (events.LeaseLost(**OUTBOX, topic="t"), ["outbox.lease_lost{shop}"]),
    (
        events.DeadLettered(**OUTBOX, letter="l", reason="attempts", attempts=5),
        ["outbox.attempts{shop,dead_lettered}", "dlq.transitions{outbox,,pending,auto}"],
    ),
    (
        events.DeadLettered(policy="billing", policy_type="consumer", **ABOUT, letter="l", reason="parked", attempts=0),
        ["dlq.transitions{billing,,parked,auto}"],
    ),
    (
        events.DeadLettered(
            policy="billing", policy_type="consumer", **ABOUT, letter="l", reason="attempts", attempts=5, epoch=1
        ),
        ["dlq.transitions{billing,,pending,auto}", "dlq.transitions{billing,replayed,superseded,auto}"],
    ),
    (
        events.Resolved(policy="billing", policy_type="dead_letters", **ABOUT, letters=2, before="pending"),
        ["dlq.transitions{billing,pending,resolved,auto}"] * 2,
    ),
    (
        events.Reopened(policy="billing", policy_type="dead_letters", **ABOUT, letter="l", actor="ann", reason="lost"),
        ["dlq.transitions{billing,replayed,pending,human}"],
    ),
    (
        events.DuplicateSuppressed(policy="billing", policy_type="consumer", **ABOUT),
        ["inbox.duplicates{billing}"],
    ),
    (
        events.Replayed(policy="billing", policy_type="dead_letters", **ABOUT, letter="l", actor="ann", epoch=1),
        ["dlq.transitions{billing,pending,replayed,human}"],
    ),
    (
        events.Discarded(
            policy="billing",
            policy_type="dead_letters",
            **ABOUT,
            letter="l",
            actor="ann",
            reason="old",
            before="parked",
        ),
        ["dlq.transitions{billing,parked,discarded,human}"],
    ),
    (events.SagaStarted(**SAGA), ["saga.transitions{order,running,}"]),
    (events.SagaCompleted(**SAGA, duration=1.0), ["saga.transitions{order,completed,}"]),
    (events.Compensating(**SAGA, cause="rejected"), ["saga.transitions{order,compensating,rejected}"]),
    (
        events.SagaCompensated(**SAGA, cause="timed_out", duration=1.0),
        ["saga.transitions{order,compensated,timed_out}"],
    ),
    (events.SagaParked(**SAGA, cause="poison", reason="no step"), ["saga.transitions{order,parked,poison}"]),
    (events.SagaFailed(**SAGA, actor="ada", reason="over"), ["saga.transitions{order,failed,operator}"]),
    (events.SagaTimedOut(**SAGA, compensating=True), ["saga.timed_out{order}"]),
    (
        events.CompensationBlocked(**SAGA, step="pay", reason="down"),
        ["saga.transitions{order,compensation_blocked,}", "saga.steps{order,pay,undo_failed}"],
    ),
    (events.StepCompleted(**SAGA, step="pay", attempt=1), ["saga.steps{order,pay,completed}"]),
    (events.StepCompleted(**SAGA, step="pay", attempt=1, late=True), ["saga.steps{order,pay,late}"]),
    (events.StepRejected(**SAGA, step="pay", reason="no money"), ["saga.steps{order,pay,rejected}"]),
    (events.StepUndone(**SAGA, step="pay", attempt=1), ["saga.steps{order,pay,undone}"]),
]


@pytest.mark.parametrize(("event", "expected"), COUNTED, ids=[" ".join(expected) for _, expected in COUNTED])
def test_an_event_counts_as(event, expected):
    found = []
    for metric, name, _, own in counted(event):
        found.append(f"{metric.removeprefix('everkeel.')}{{{','.join([name, *(value for _, value in own)])}}}")
        assert {key for key, _ in own} == set(METRICS[metric].attributes)
        assert (METRICS[metric].kind, METRICS[metric].source) == ("counter", "store")
    assert found == expected


def test_every_event_that_is_heard_counts_as_something():
    assert {type(event) for event, _ in COUNTED} == set(HEARD)


async def test_what_happens_to_sagas_is_counted_and_timed(virtual_time):
    async def act(context):
        await asyncio.sleep(2)
        if context.input == context.step:
            raise NotRetryable("no")

    async def undo(context):
        await asyncio.sleep(1)

    async def undo_never(context):
        raise NotRetryable("the warehouse has gone")

    order = Saga("order", Step("reserve", act, undo), Step("pay", act, undo), deadline=60)
    stuck = Saga("refund", Step("fetch", act, undo_never), Step("pay", act, undo), deadline=60)
    engine, collecting = MemoryEngine(), CollectorRegistry()
    collector = PolicyCollector(histograms=True)
    collecting.register(collector)
    async with StoreMetrics(engine, every=1), Orchestrator(engine, order, stuck) as orchestrator:
        await orchestrator.run(order, "nothing")
        with pytest.raises(SagaCompensatedError):
            await orchestrator.run(order, "pay")
        with pytest.raises(SagaCompensatedError):
            await orchestrator.run(order, "nothing", deadline=3)
        with pytest.raises(SagaStoppedError):
            await orchestrator.run(stuck, "pay")
        await asyncio.sleep(2)
        counts = {name: value for name, value in numbers("everkeel.saga.").items() if "_age" not in name}
        text = generate_latest(collecting).decode()
    collector.close()
    assert counts == {
        "everkeel.saga.active{refund,compensation_blocked}": 1,
        "everkeel.saga.transitions{order,running,}": 3,
        "everkeel.saga.transitions{order,completed,}": 1,
        "everkeel.saga.transitions{order,compensating,rejected}": 1,
        "everkeel.saga.transitions{order,compensated,rejected}": 1,
        "everkeel.saga.transitions{order,compensating,timed_out}": 1,
        "everkeel.saga.transitions{order,compensated,timed_out}": 1,
        "everkeel.saga.timed_out{order}": 1,
        "everkeel.saga.steps{order,reserve,completed}": 3,
        "everkeel.saga.steps{order,pay,completed}": 1,
        "everkeel.saga.steps{order,pay,rejected}": 1,
        "everkeel.saga.steps{order,reserve,undone}": 2,
        "everkeel.saga.steps{order,pay,undone}": 1,  # timed out in the middle of it: nobody knows whether it was done
        "everkeel.saga.transitions{refund,running,}": 1,
        "everkeel.saga.transitions{refund,compensating,rejected}": 1,
        "everkeel.saga.transitions{refund,compensation_blocked,}": 1,
        "everkeel.saga.steps{refund,fetch,completed}": 1,
        "everkeel.saga.steps{refund,pay,rejected}": 1,
        "everkeel.saga.steps{refund,fetch,undo_failed}": 1,
    }
    order_labels = 'everkeel_policy_name="order",everkeel_policy_type="saga"'
    assert f'everkeel_saga_duration_seconds_sum{{{order_labels},state="completed"}} 4.0' in text
    assert f'everkeel_saga_duration_seconds_count{{{order_labels},state="compensated"}} 2.0' in text
    assert f'everkeel_saga_step_duration_seconds_sum{{{order_labels},step="reserve"}} 6.0' in text
    assert f'everkeel_saga_compensation_duration_seconds_sum{{{order_labels},step="reserve"}} 2.0' in text


# ------------------------------------------------------------------ several, and none


async def test_what_happens_is_counted_once_however_many_stores_are_watched(virtual_time):
    first, second = MemoryEngine(), MemoryEngine()
    heard = len(hub.everywhere)
    async with StoreMetrics(first, name="orders"), StoreMetrics(second, name="stock"):
        await Outbox(first).write(event(1))
        written = [row.value for row in measure_all() if row.name == "everkeel.outbox.written"]
        assert (written, len(hub.everywhere)) == ([1], heard + 1)
        stores = {row.attributes["store"] for row in measure_all() if row.name == "everkeel.outbox.depth"}
        assert stores == {"orders", "stock"}


async def test_two_of_one_name_would_not_be_told_apart(virtual_time):
    async with StoreMetrics(MemoryEngine()):
        with pytest.raises(ConfigError, match="store metrics 'memory': name must differ"):
            await StoreMetrics(MemoryEngine()).start()
    async with StoreMetrics(MemoryEngine()):
        pass  # the first is gone


async def test_nothing_is_left_of_it_when_it_ends(virtual_time):
    before = hub.everywhere
    watched = StoreMetrics(MemoryEngine())
    async with watched:
        assert len(hub.everywhere) == len(before) + 1
        with pytest.raises(RuntimeError, match="run already"):
            await watched.start()
    assert (hub.everywhere, measuring.sources) == (before, ())
    assert numbers() == {}
    await watched.stop()  # a second time does nothing
    async with watched:  # and it can begin again
        assert measuring.sources


def test_a_forked_child_shows_nothing_of_its_parent():
    def shown_in_a_child() -> int:
        child = os.fork()
        if child == 0:
            os._exit(len(list(measure_all())) + len(hub.everywhere))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    async def test() -> None:
        async with StoreMetrics(MemoryEngine()):
            assert shown_in_a_child() == 0
            assert list(measure_all())

    with fresh_everkeel():
        asyncio.run(test())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every": 0}, "every must be more than 0 seconds"),
        ({"every": "often"}, "every"),
        ({"name": ""}, "name must be a non-empty string"),
    ],
)
def test_wrong_settings_are_told_at_once(settings, message):
    with pytest.raises(ConfigError, match=message):
        StoreMetrics(MemoryEngine(), **settings)


def test_the_interval_may_be_a_timedelta():
    assert StoreMetrics(MemoryEngine(), every=timedelta(minutes=1)).every == 60


# ------------------------------------------------------------------ through the exporters


async def test_prometheus_shows_gauges_counters_and_histograms(virtual_time):
    engine, collecting = MemoryEngine(), CollectorRegistry()
    collector = PolicyCollector(histograms=True)
    collecting.register(collector)
    outbox = Outbox(engine, transport=MemoryTransport())
    async with StoreMetrics(engine, name="orders", every=1):
        await outbox.write([event(1), event(2)])
        await asyncio.sleep(3)
        await outbox.relay().flush()
        await outbox.write(event(3))
        await asyncio.sleep(2)
        found = {}
        for family in text_string_to_metric_families(generate_latest(collecting).decode()):
            for sample in family.samples:
                found[sample.name, sample.labels.get("state") or sample.labels.get("result")] = sample
    collector.close()
    depth = found["everkeel_outbox_depth", "due"]
    assert (depth.value, depth.labels["store"]) == (1, "orders")
    assert depth.labels["everkeel_policy_type"] == "outbox"
    assert found["everkeel_outbox_written_total", None].value == 3
    conflict = found["everkeel_store_conflicts_total", None]
    assert (conflict.value, conflict.labels["store"], conflict.labels["kind"]) == (0, "orders", "saga")
    assert found["everkeel_outbox_attempts_total", "delivered"].value == 2
    assert found["everkeel_outbox_delivery_age_seconds_sum", None].value == 6
    assert found["everkeel_outbox_publish_duration_seconds_count", "confirmed"].value == 1


async def test_opentelemetry_shows_the_same(virtual_time):
    reader = InMemoryMetricReader()
    provider = MeterProvider([reader], shutdown_on_exit=False)
    EverkeelInstrumentor().instrument(meter_provider=provider, spans=False)
    try:
        engine = MemoryEngine()
        outbox = Outbox(engine, transport=MemoryTransport())
        async with StoreMetrics(engine, every=1):
            await outbox.write(event(1))
            await outbox.relay().flush()
            await outbox.write(event(2))
            await asyncio.sleep(1.5)
            data = reader.get_metrics_data()
        points = {
            metric.name: metric.data.data_points
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }
    finally:
        EverkeelInstrumentor().uninstrument()
        provider.shutdown()
    assert {point.attributes["state"]: point.value for point in points["everkeel.outbox.depth"]} == {
        "due": 1,
        "leased": 0,
        "delayed": 0,
        "parked": 0,
    }
    assert [point.value for point in points["everkeel.outbox.written"]] == [2]
    kinds = [point.attributes["kind"] for point in points["everkeel.store.conflicts"]]
    assert kinds == ["outbox", "inbox", "dead_letter", "saga"]
    (age,) = points["everkeel.outbox.delivery_age"]
    assert (age.count, age.explicit_bounds[-1]) == (1, 86_400)
