"""Outboxes, relays and consumers are configured as policies are, though they guard no call."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest

from everkeel import config, subscribe
from everkeel.config.types import PARTS, settings_class
from everkeel.engines import MemoryEngine
from everkeel.errors import ConfigError, InvalidConfigurationError
from everkeel.events import ModeChanged, Reconfigured
from everkeel.messaging import Consumer, Event, MemoryTransport, Message, Outbox
from everkeel.runtime.configured import Part, everything, parts
from everkeel.sagas import NOTHING, Orchestrator, Saga, Step

pytestmark = pytest.mark.usefixtures("fresh_everkeel")


def loaded(**sections: Any) -> config.Configuration:
    return config.load(sections, env={})


def consumer(name: str = "billing", **settings: Any) -> Consumer:
    made = Consumer(name, MemoryTransport(), topics="orders", **settings)
    made.on("*")(lambda event: None)
    return made


def event(number: int = 1) -> Event:
    return Event("tested", {"n": number}, source="/tests", id=str(number))


def test_the_list_of_parts_has_every_one_there_is() -> None:
    assert all(settings_class(kind).policy_type == kind for kind in PARTS)  # which imports them
    assert {cls.type for cls in Part.__subclasses__()} == set(PARTS)


def test_what_is_made_later_and_what_is_there_already_are_bound_alike() -> None:
    outbox = Outbox(MemoryEngine(), name="orders")
    before = outbox.relay()
    loaded(outbox={"orders": {"max_size": 10}}, relay={"default": {"batch": 7, "poll": "250ms"}})
    after = outbox.relay(batch=3)
    assert outbox.config.max_size == 10
    assert (before.config.batch, after.config.batch, before.config.poll) == (7, 7, 0.25)
    assert config.effective(after)["batch"].source == "config"
    loaded()
    assert (before.config.batch, after.config.batch, outbox.config.max_size) == (100, 3, 1_048_576)


def test_a_consumers_rules_follow_its_settings() -> None:
    billing = consumer(attempts=3, concurrency=4)
    loaded(consumer={"billing": {"attempts": 9, "backoff": {"constant": "2s"}, "concurrency": 6}})
    assert (billing.rules.attempts, billing.rules.backoff.delay(5)) == (9, 2.0)
    assert (billing.concurrency, billing.prefetch) == (6, 12)
    config.change("consumer", "billing", prefetch=50)
    assert billing.prefetch == 50
    billing.reconfigure(attempts=2)
    assert billing.rules.attempts == 2


def test_several_of_one_name_are_configured_together() -> None:
    outbox = Outbox(MemoryEngine(), name="orders")
    relays = [outbox.relay(), outbox.relay()]
    config.change("relay", "orders", batch=5)
    assert [relay.config.batch for relay in relays] == [5, 5]


def test_the_environment_reaches_them() -> None:
    outbox = Outbox(MemoryEngine(), name="orders")
    config.load({}, env={"EVERKEEL_OUTBOX__ORDERS__MAX_SIZE": "77"})
    assert outbox.config.max_size == 77


def test_what_is_wrong_is_refused_whole_and_where_it_stands(tmp_path: Path) -> None:
    outbox = Outbox(MemoryEngine(), name="orders")
    file = tmp_path / "everkeel.yaml"
    file.write_text("outbox:\n  orders: {max_size: 20}\nrelay:\n  default:\n    batch: 0\n    mode: shadow\n")
    with pytest.raises(InvalidConfigurationError) as caught:
        config.load(file, env={})
    said = [str(problem) for problem in caught.value.problems]
    assert [text.partition("everkeel.yaml:")[2] for text in said] == [
        "5: relay.default.batch must be at least 1 (got 0)",
        "6: relay.default.mode must be 'enforce' or 'off' (got 'shadow')",
    ]
    assert outbox.config.max_size == 1_048_576
    with pytest.raises(ConfigError, match="mode must be 'enforce' or 'off'"):
        Outbox(MemoryEngine(), mode="shadow")


def test_no_pipeline_is_made_of_them() -> None:
    with pytest.raises(InvalidConfigurationError, match=r"guards no call; its settings stand under relay"):
        loaded(pipelines={"one": [{"relay": {"batch": 5}}]})


def test_a_name_that_nobody_has_is_told() -> None:
    billing = consumer("billing")
    problems = loaded(consumer={"biling": {"attempts": 2}}).unused()
    assert billing.rules.attempts == 5
    assert [problem.message for problem in problems] == ["is the name of no consumer there is; did you mean 'billing'?"]


def test_live_changes_are_told_and_can_be_taken_back() -> None:
    outbox = Outbox(MemoryEngine(), name="orders")
    relay = outbox.relay()
    heard: list[Any] = []
    with subscribe(heard.append, ModeChanged, Reconfigured):
        loaded()
        config.change("relay", "orders", enabled=False)
    assert [type(one).__name__ for one in heard] == ["ModeChanged", "Reconfigured"]
    assert (heard[0].policy_type, heard[0].policy, relay.paused) == ("relay", "orders", True)
    config.current().rollback()
    assert (relay.config.mode, relay.paused) == ("enforce", False)


def test_a_pause_stays_one_when_something_else_is_changed() -> None:
    relay = Outbox(MemoryEngine(), name="orders").relay()
    relay.pause()
    config.change("relay", "orders", batch=5)
    assert relay.paused


async def test_an_outbox_that_is_switched_off_publishes_at_once(virtual_time: Any) -> None:
    transport = MemoryTransport()
    outbox = Outbox(MemoryEngine(), transport=transport, name="orders")
    loaded(outbox={"orders": {"enabled": False}})
    await outbox.write(event(1))
    assert [one.id for one in transport.published["events"]] == ["1"]
    assert (await outbox.stats()).depth == 0
    loaded()
    await outbox.write(event(2))
    assert len(transport.published["events"]) == 1
    assert (await outbox.stats()).depth == 1


async def test_a_consumer_that_is_switched_off_leaves_events_with_the_broker(virtual_time: Any) -> None:
    transport, seen = MemoryTransport(), []
    billing = Consumer("billing", transport, topics="orders", engine=MemoryEngine())
    billing.on("*")(lambda event: seen.append(event.id))
    loaded(consumer={"billing": {"enabled": False}})
    async with billing:
        await transport.publish([Message("orders", event(1))])
        await asyncio.sleep(60)
        assert seen == []
        config.change("consumer", "billing", enabled=True)
        await asyncio.sleep(1)
        assert seen == ["1"]


async def test_an_orchestrator_that_is_switched_off_leaves_its_sagas_to_others(virtual_time: Any) -> None:
    engine, done = MemoryEngine(), []

    async def pack(context: Any) -> None:
        done.append(context.saga_id)

    saga = Saga("order", Step("pack", pack, NOTHING))
    loaded(orchestrator={"front": {"enabled": False}, "default": {"poll": "1s", "lease": "9s"}})
    async with Orchestrator(engine, saga, name="front", poll=3) as front:
        assert (front.poll, front.lease) == (1.0, 9.0)
        await front.start(saga, id="order-1")
        await asyncio.sleep(20)
        assert done == []
        async with Orchestrator(engine, saga, name="back"):
            await asyncio.sleep(2)
            assert done == ["order-1"]


def test_what_is_gone_is_forgotten() -> None:
    outbox = Outbox(MemoryEngine(), name="orders")
    assert everything() == parts() == [outbox]
    del outbox
    gc.collect()
    assert parts() == []
