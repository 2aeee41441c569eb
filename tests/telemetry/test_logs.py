"""Log records: their levels, their fields, and what is left of a flood."""

from __future__ import annotations

import asyncio
import json
import logging

import pytest
import structlog

from everkeel import (
    BulkheadFullError,
    CircuitOpenError,
    ConfigError,
    NotRetryable,
    bulkhead,
    circuit_breaker,
    events,
    fallback,
    retry,
    subscribe,
    timeout,
)
from everkeel.compose import source
from everkeel.engines import MemoryEngine
from everkeel.messaging import Consumer, Event, MemoryTransport, Message, Outbox
from everkeel.runtime import events as hub
from everkeel.sagas import NOTHING, Orchestrator, Saga, Step
from everkeel.telemetry import log_events
from everkeel.testing import Flaky, VirtualClock


@pytest.fixture
def log(clock: VirtualClock, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG, "everkeel")
    with log_events() as log:
        yield log


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    return [(record.levelname, record.name, record.getMessage()) for record in caplog.records]


def fields(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name.startswith("everkeel_")}


def fill(places, times: int) -> None:
    """So many calls that find no place."""
    with places.entry():
        for _ in range(times):
            with pytest.raises(BulkheadFullError):
                places.call(len, "")


# ------------------------------------------------------------------ levels


def test_calls_that_go_well_are_silent(log, caplog):
    for policy in (retry("r"), circuit_breaker("c"), bulkhead(1, "b"), timeout(1, "t", runs="inline"), fallback(1)):
        policy.call(len, "")
    assert lines(caplog) == []


def test_a_healthy_call_passes_through_no_other_layer_than_before(clock):
    guarded = retry("r")(lambda: 1)
    before = source(guarded)
    with log_events():
        assert source(guarded) == before


def test_a_retry_warns_and_tells_of_its_success(log, caplog):
    fetch = Flaky(ConnectionError("reset"), "answer")
    retry("fetch", backoff=0.5, jitter=None).call(fetch)
    assert lines(caplog) == [
        ("WARNING", "everkeel.retry", "retry 'fetch': attempt 1 failed, the next one in 0.5 s: ConnectionError: reset"),
        ("INFO", "everkeel.retry", "retry 'fetch': succeeded at attempt 2"),
    ]


def test_giving_up_is_an_error(log, caplog):
    with pytest.raises(ConnectionError):
        retry("fetch", attempts=2, backoff=0).call(Flaky(*[ConnectionError("reset")] * 2))
    assert lines(caplog)[-1] == (
        "ERROR",
        "everkeel.retry",
        "retry 'fetch': gave up at attempt 2 (attempts): ConnectionError: reset",
    )


def test_an_error_not_to_retry_on_is_informational(log, caplog):
    with pytest.raises(KeyError):
        retry("fetch", on=OSError).call(Flaky(KeyError("user")))
    assert [record.levelname for record in caplog.records] == ["INFO"]


def test_a_failed_result_is_told_without_the_result(log, caplog):
    retry("fetch", attempts=2, backoff=0, on_result=lambda value: value == "secret").call(Flaky("secret", "fine"))
    assert "a result that counts as a failure" in caplog.text
    assert "secret" not in caplog.text + repr([fields(record) for record in caplog.records])


def test_a_circuit_warns_when_it_opens_and_tells_when_it_closes(log, caplog, clock):
    breaker = circuit_breaker("bank", failure_rate=0.5, minimum_calls=2, open_for=10, probes=1)
    for _ in range(2):
        with pytest.raises(OSError, match="down"):
            breaker.call(Flaky(OSError("down")))
    clock.advance(10)
    breaker.call(len, "")
    assert lines(caplog) == [
        (
            "WARNING",
            "everkeel.circuit_breaker",
            "circuit breaker 'bank': opened for 10 s: failures, 100% of the calls",
        ),
        ("INFO", "everkeel.circuit_breaker", "circuit breaker 'bank': half open: a few probes may pass"),
        ("INFO", "everkeel.circuit_breaker", "circuit breaker 'bank': closed"),
    ]


def test_a_change_of_settings_is_told(log, caplog):
    retry("fetch", attempts=2).reconfigure(attempts=4)
    assert lines(caplog) == [("INFO", "everkeel.retry", "retry 'fetch': reconfigured: attempts from 2 to 4")]


# ------------------------------------------------------------------ events and sagas


EVENT = {"event_id": "e-1", "event_type": "OrderCreated"}
OUTBOX = {"policy": "shop", "policy_type": "outbox", **EVENT}
LETTERS = {"policy": "billing", "policy_type": "dead_letters", **EVENT, "letter": "l-1", "actor": "ann"}
SAGA = {"policy": "order", "policy_type": "saga", "saga_id": "s-1"}
TOLD = [
    ("DEBUG", "shop': OrderCreated e-1 written for orders", events.EventWritten(**OUTBOX, topic="orders")),
    (
        "DEBUG",
        "shop': OrderCreated e-1 delivered to orders after 1.5 s",
        events.EventDelivered(**OUTBOX, topic="orders", attempt=1, age=1.5),
    ),
    (
        "INFO",
        "shop': attempt 2 to deliver OrderCreated e-1 failed, the next one in 4 s: OSError: reset",
        events.DeliveryFailed(**OUTBOX, topic="orders", attempt=2, delay=4.0, error=OSError("reset")),
    ),
    ("INFO", "shop': OrderCreated e-1 was taken over by another relay", events.LeaseLost(**OUTBOX, topic="orders")),
    (
        "WARNING",
        "shop': OrderCreated e-1 dead-lettered (attempts) as l-1 after 5 attempts: no reason given",
        events.DeadLettered(**OUTBOX, letter="l-1", reason="attempts", attempts=5),
    ),
    ("INFO", "billing': l-1 (OrderCreated e-1) replayed by ann", events.Replayed(**LETTERS, epoch=1)),
    (
        "INFO",
        "billing': l-1 (OrderCreated e-1) reopened by ann: it got lost",
        events.Reopened(**LETTERS, reason="it got lost"),
    ),
    (
        "INFO",
        "billing': OrderCreated e-1 was handled after all, its dead letter was replayed",
        events.Resolved(
            policy="billing", policy_type="dead_letters", letters=1, event_id="e-1", event_type="OrderCreated"
        ),
    ),
    (
        "INFO",
        "billing': l-1 (OrderCreated e-1) discarded by ann: a test order",
        events.Discarded(**LETTERS, reason="a test order"),
    ),
    ("DEBUG", "order': s-1 started", events.SagaStarted(**SAGA)),
    ("DEBUG", "order': s-1: pay done at attempt 1", events.StepCompleted(**SAGA, step="pay", attempt=1)),
    ("INFO", "order': s-1: pay rejected: no money", events.StepRejected(**SAGA, step="pay", reason="no money")),
    ("INFO", "order': s-1 turns back (rejected)", events.Compensating(**SAGA, cause="rejected")),
    ("DEBUG", "order': s-1: reserve undone at attempt 2", events.StepUndone(**SAGA, step="reserve", attempt=2)),
    ("DEBUG", "order': s-1 completed after 3 s", events.SagaCompleted(**SAGA, duration=3.0)),
    (
        "INFO",
        "order': s-1 undone (rejected) after 3 s",
        events.SagaCompensated(**SAGA, cause="rejected", duration=3.0),
    ),
    ("WARNING", "order': s-1 timed out", events.SagaTimedOut(**SAGA, compensating=True)),
    (
        "ERROR",
        "order': s-1 cannot go on by itself and needs an operator (poison): no such step",
        events.SagaParked(**SAGA, cause="poison", reason="no such step"),
    ),
    (
        "WARNING",
        "order': s-1 was given up by ada: settled with the customer",
        events.SagaFailed(**SAGA, actor="ada", reason="settled with the customer"),
    ),
    (
        "ERROR",
        "order': s-1: pay cannot be undone, and an operator is needed: OSError: down",
        events.CompensationBlocked(**SAGA, step="pay", reason="OSError: down"),
    ),
]


@pytest.mark.parametrize(("level", "text", "event"), TOLD, ids=[type(event).__name__ for *_, event in TOLD])
def test_what_happens_to_events_and_sagas_is_told_at_a_level_that_fits(log, caplog, level, text, event):
    hub.tell(event, ())
    label = f"{event.policy_type.replace('_', ' ')} '{text}"
    assert lines(caplog) == [(level, f"everkeel.{event.policy_type}", label)]
    json.dumps(fields(caplog.records[0]))


def test_a_record_about_a_saga_has_its_id_in_a_field(log, caplog):
    hub.tell(events.CompensationBlocked(**SAGA, step="pay", reason="down"), ())
    assert fields(caplog.records[0]) == {
        "everkeel_event": "compensation_blocked",
        "everkeel_policy": "order",
        "everkeel_policy_type": "saga",
        "everkeel_saga_id": "s-1",
        "everkeel_step": "pay",
        "everkeel_reason": "down",
    }


def test_a_consumers_dead_letter_is_told_by_the_consumer_alone(log, caplog):
    hub.tell(
        events.DeadLettered(policy="billing", policy_type="consumer", **EVENT, letter="l", reason="x", attempts=1), ()
    )
    assert lines(caplog) == []


async def test_a_healthy_pipeline_of_events_is_silent(virtual_time, caplog):
    caplog.set_level(logging.INFO, "everkeel")
    engine, transport = MemoryEngine(), MemoryTransport()
    outbox = Outbox(engine, transport=transport, topic="orders")
    consumer = Consumer("billing", transport, topics="orders", engine=engine)
    handled = []
    consumer.on("OrderCreated")(lambda event: handled.append(event.id))

    async def pay(context):
        context.emit(Event("OrderCreated", source="/orders"), topic="orders")

    saga = Saga("order", Step("pay", pay, NOTHING))
    with log_events():
        async with outbox.relay(), consumer, Orchestrator(engine, saga) as orchestrator:
            await outbox.write(Event("OrderCreated", source="/orders", id="e-1"))
            await orchestrator.run(saga)
            await asyncio.sleep(10)
    assert len(handled) == 2
    assert lines(caplog) == []


async def test_a_dead_letter_of_a_consumer_is_one_warning(virtual_time, caplog):
    caplog.set_level(logging.INFO, "everkeel")
    engine, transport = MemoryEngine(), MemoryTransport()
    consumer = Consumer("billing", transport, topics="orders", engine=engine)

    @consumer.on("OrderCreated")
    async def refuse(event):
        raise NotRetryable("out of stock")

    with log_events():
        async with consumer:
            await transport.publish([Message("orders", Event("OrderCreated", source="/orders", id="e-1"))])
            await asyncio.sleep(5)
    ((level, logger, text),) = lines(caplog)
    assert (level, logger) == ("WARNING", "everkeel.consumer")
    assert "out of stock" in text


# ------------------------------------------------------------------ fields


def test_a_record_has_the_fields_of_its_event_as_plain_values(log, caplog):
    retry("fetch", backoff=0.5, jitter=None).call(Flaky(ConnectionError("reset"), "answer"))
    assert fields(caplog.records[0]) == {
        "everkeel_event": "retrying",
        "everkeel_policy": "fetch",
        "everkeel_policy_type": "retry",
        "everkeel_attempt": 1,
        "everkeel_delay": 0.5,
        "everkeel_error": "ConnectionError",
        "everkeel_error_message": "reset",
        "everkeel_outer": None,
    }


def test_every_field_is_something_that_json_takes(log, caplog):
    breaker = circuit_breaker("bank")
    breaker.force_open()
    with pytest.raises(CircuitOpenError):
        breaker.call(len, "")
    retry("fetch", backoff=0).reconfigure(on=(OSError, KeyError))
    fallback("other", name="spare").call(Flaky(OSError("down")))
    assert len(caplog.records) >= 3
    assert all(json.loads(json.dumps(fields(record))) == fields(record) for record in caplog.records)


def test_structlog_shows_the_fields_as_they_are(log, caplog):
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.ExtraAdder()],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.JSONRenderer(sort_keys=True),
        ],
    )
    retry("fetch", backoff=0.5, jitter=None).call(Flaky(ConnectionError("reset"), "answer"))
    shown = json.loads(formatter.format(caplog.records[0]))
    assert (shown["everkeel_policy"], shown["everkeel_attempt"], shown["everkeel_delay"]) == ("fetch", 1, 0.5)


# ------------------------------------------------------------------ floods


def test_a_flood_of_rejections_is_one_record_now_and_one_per_interval(log, caplog, clock):
    places = bulkhead(1, "db")
    fill(places, 500)
    assert lines(caplog) == [
        ("WARNING", "everkeel.bulkhead", "bulkhead 'db' rejected a call: "
         "BulkheadFullError: bulkhead 'db' is full (1 running, 0 waiting)"),
    ]  # fmt: skip
    clock.advance(9.9)
    fill(places, 500)
    assert len(caplog.records) == 1
    clock.advance(0.1)
    fill(places, 500)
    assert len(caplog.records) == 2
    assert caplog.records[1].getMessage().startswith("bulkhead 'db' rejected 1000 calls in 10 s: ")
    assert fields(caplog.records[1])["everkeel_count"] == 1000
    assert fields(caplog.records[1])["everkeel_seconds"] == 10


def test_every_rejection_is_in_exactly_one_record(log, caplog, clock):
    places = bulkhead(1, "db")
    for _ in range(50):
        fill(places, 7)
        clock.advance(1.7)
    log.cancel()
    assert sum(record.everkeel_count for record in caplog.records) == 350
    assert len(caplog.records) <= 50 * 1.7 / 10 + 2


def test_policies_are_summarised_each_on_its_own(log, caplog):
    for name in ("one", "other"):
        fill(bulkhead(1, name), 3)
    log.flush()
    assert [(record.everkeel_policy, record.everkeel_count) for record in caplog.records] == [
        ("one", 1), ("other", 1), ("one", 2), ("other", 2),
    ]  # fmt: skip


def test_a_summary_that_is_due_is_written_when_any_other_event_comes_by(log, caplog, clock):
    fill(bulkhead(1, "db"), 3)
    clock.advance(60)
    retry("fetch", backoff=0).call(Flaky(OSError("down"), "up"))
    assert [record.everkeel_event for record in caplog.records] == [
        "call_rejected", "call_rejected", "retrying", "retry_succeeded",
    ]  # fmt: skip


def test_after_a_silence_the_first_rejection_is_told_at_once_again(log, caplog, clock):
    places = bulkhead(1, "db")
    for _ in range(3):
        fill(places, 1)
        clock.advance(100)
    assert [record.everkeel_count for record in caplog.records] == [1, 1, 1]


def test_what_a_shadow_would_have_done_is_summarised_too(log, caplog):
    places = bulkhead(1, "db", mode="shadow")
    with places.entry():
        for _ in range(3):
            places.call(len, "")
    log.flush()
    assert [(record.levelname, record.everkeel_count) for record in caplog.records] == [("INFO", 1), ("INFO", 2)]


# ------------------------------------------------------------------ beginning and ending


def test_after_cancel_nothing_is_written(log, caplog):
    log.cancel()
    retry("fetch", backoff=0).call(Flaky(OSError("down"), "up"))
    assert lines(caplog) == []


def test_the_loggers_can_live_elsewhere(clock, caplog):
    with log_events(logger="shop.resilience"):
        retry("fetch", backoff=0).call(Flaky(OSError("down"), "up"))
    assert caplog.records[0].name == "shop.resilience.retry"


def test_a_listener_beside_it_hears_the_same(log, caplog, clock):
    heard: list[object] = []
    subscribe(heard.append)
    retry("fetch", backoff=0).call(Flaky(OSError("down"), "up"))
    assert len(heard) == 4  # added, retrying, recovered, succeeded
    assert len(caplog.records) == 2


@pytest.mark.parametrize("wrong", [{"summary_every": 0}, {"summary_every": True}, {"logger": ""}, {"logger": None}])
def test_wrong_settings_are_refused(clock, wrong):
    with pytest.raises(ConfigError, match=f"log_events: {next(iter(wrong))} must be"):
        log_events(**wrong)
