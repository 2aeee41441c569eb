"""What a consumer tells: spans linked to their producer, log records with fields, numbers."""

from __future__ import annotations

import subprocess
import sys

import pytest

from everkeel import NotRetryable
from everkeel.telemetry import EverkeelInstrumentor

PRODUCER = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Refused(NotRetryable):
    """A business rejection."""


@pytest.fixture
def spans():
    """Every span that ends, in memory; the process's own provider stays as it is."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    EverkeelInstrumentor().instrument(tracer_provider=provider, read_metrics=False, histograms=False)
    yield exporter.get_finished_spans
    EverkeelInstrumentor().uninstrument()
    provider.shutdown()


async def test_a_handled_event_has_a_span_linked_to_the_one_that_produced_it(world, spans):
    await world.publish(world.event(traceparent=PRODUCER))
    await world.live(world.consumer(), 5)
    (span,) = spans()
    assert (span.name, span.kind.name, span.parent) == ("process orders", "CONSUMER", None)
    (link,) = span.links
    assert f"{link.context.trace_id:032x}-{link.context.span_id:016x}" == PRODUCER[3:-3]
    assert span.attributes["messaging.consumer.group.name"] == "billing"
    assert (span.attributes["messaging.message.id"], span.attributes["everkeel.attempt"]) == ("e-1", 1)
    assert span.status.is_ok or span.status.is_unset


async def test_a_failure_is_on_the_span_of_its_attempt(world, spans):
    world.failing["e-1"] = [ConnectionError("down")]
    await world.publish(world.event())
    await world.live(world.consumer(), 10)
    first, second = spans()
    assert [first.status.is_ok or first.status.is_unset, second.status.is_ok or second.status.is_unset] == [False, True]
    assert (first.links, second.attributes["everkeel.attempt"]) == ((), 2)


async def test_a_trace_header_that_is_none_links_to_nothing(world, spans):
    await world.publish(world.event(traceparent="nonsense"))
    await world.live(world.consumer(), 5)
    assert [span.links for span in spans()] == [()]


async def test_a_process_that_is_not_instrumented_has_no_spans(world, spans):
    EverkeelInstrumentor().uninstrument()
    await world.publish(world.event(traceparent=PRODUCER))
    await world.live(world.consumer(), 5)
    assert (spans(), world.effects) == ((), {("billing", "e-1"): 1})


def test_a_consumer_loads_no_library_but_the_standard_one():
    script = (
        "import sys\n"
        "for name in ('opentelemetry', 'asyncpg', 'psycopg', 'redis', 'sqlalchemy'): sys.modules[name] = None\n"
        "from everkeel.testing import run\n"
        "from everkeel.engines import MemoryEngine\n"
        "from everkeel.messaging import Consumer, Event, MemoryTransport, Message\n"
        "import asyncio\n"
        "seen = []\n"
        "async def main():\n"
        "    transport = MemoryTransport()\n"
        "    consumer = Consumer('billing', transport, topics='orders', engine=MemoryEngine())\n"
        "    consumer.on('t')(lambda event: seen.append(event.id))\n"
        "    async with consumer:\n"
        "        await transport.publish([Message('orders', Event('t', source='/s', id='1'))])\n"
        "        await asyncio.sleep(1)\n"
        "run(main)\n"
        "assert seen == ['1'], seen\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


async def test_a_dead_letter_is_told_with_fields_that_machines_read(world, caplog):
    world.failing["e-1"] = Refused("out of stock")
    await world.publish(world.event())
    await world.live(world.consumer(), 5)
    (record,) = [one for one in caplog.records if hasattr(one, "everkeel_letter")]
    assert (record.name, record.levelname) == ("everkeel.consumer", "WARNING")
    assert (record.everkeel_event, record.everkeel_policy, record.everkeel_reason) == (
        "dead_lettered",
        "billing",
        "rejected",
    )
    assert record.everkeel_letter == (await world.the_letter()).id
    assert "out of stock" in record.getMessage()


async def test_too_few_connections_for_the_transactions_of_handlers_are_told(world, caplog):
    world.engine.most_connections = 4
    async with world.consumer(concurrency=10):
        pass
    assert "up to 10 handlers hold a transaction at once, and its engine has 4 connections" in caplog.text
    caplog.clear()
    async with world.consumer(concurrency=3):
        pass
    assert caplog.text == ""


async def test_a_snapshot_counts_everything_a_consumer_did(world):
    world.failing["e-2"] = Refused()
    consumer = world.consumer()
    await world.publish(world.event("e-1"), world.event("e-1"), world.event("e-2"), world.event("x", type="Other"))
    await world.live(consumer, 5)
    snapshot = consumer.snapshot()
    assert {name: snapshot[name] for name in ("handled", "duplicates", "dead_lettered", "ignored", "running")} == {
        "handled": 1,
        "duplicates": 1,
        "dead_lettered": 1,
        "ignored": 1,
        "running": 0,
    }
    assert repr(consumer) == "<consumer 'billing' of orders>"
