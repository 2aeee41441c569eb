"""Spans on the whole way of an event: written in one, sent in one, handled in one, each linked to where it began."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from everkeel import NotRetryable, PublishError, SagaCompensatedError, events, subscribe
from everkeel.engines import MemoryEngine, SQLiteEngine
from everkeel.messaging import Consumer, DeadLetters, Event, FunctionTransport, MemoryTransport, Outbox, SQLiteTransport
from everkeel.runtime import tracing
from everkeel.sagas import Orchestrator, Saga, Step
from everkeel.telemetry import EverkeelInstrumentor, linked


class Spans:
    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    def names(self) -> list[str]:
        return [span.name for span in self.exporter.get_finished_spans()]


@pytest.fixture
def spans() -> Iterator[Spans]:
    spans = Spans()
    EverkeelInstrumentor().instrument(tracer_provider=spans.provider, read_metrics=False, histograms=False)
    yield spans
    EverkeelInstrumentor().uninstrument()
    spans.provider.shutdown()
    assert not trace.get_current_span().get_span_context().is_valid


def event(number: int = 1, **more) -> Event:
    return Event("OrderCreated", {"n": number}, source="/orders", id=f"e-{number}", **more)


def linked_to(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


# ------------------------------------------------------------------ the whole way


async def whole_way(spans: Spans, engine, transport, wait: float) -> None:
    outbox = Outbox(engine, transport=transport, topic="orders")
    consumer = Consumer("billing", transport, topics="orders", engine=engine)
    handled = asyncio.Event()

    @consumer.on("OrderCreated")
    async def bill(event):
        with spans.tracer.start_as_current_span("charge the card"):
            await outbox.write(event.caused("OrderBilled", id="e-2", traceparent=None))
        handled.set()

    async with consumer, outbox.relay():
        with spans.tracer.start_as_current_span("POST /orders") as request:
            await outbox.write(event(1))
        await asyncio.wait_for(handled.wait(), 30)
        await asyncio.sleep(wait)

    first, second = spans.named("send orders")
    processed = spans.one("process orders")
    began = request.get_span_context()
    for span, kind in ((first, SpanKind.CLIENT), (processed, SpanKind.CONSUMER)):
        assert (span.kind, span.parent, linked_to(span)) == (kind, None, [began.span_id])
        assert span.links[0].context.trace_id == began.trace_id
        assert span.attributes["messaging.message.id"] == "e-1"
        assert span.attributes["messaging.destination.name"] == "orders"
        assert span.attributes["messaging.system"] == transport.name
    assert first.attributes["messaging.operation.type"] == "send"
    assert processed.attributes["messaging.consumer.group.name"] == "billing"
    # what the handler does is inside of its span, and what it writes begins there
    charge = spans.one("charge the card")
    assert charge.parent.span_id == processed.context.span_id
    assert linked_to(second) == [charge.context.span_id]


async def test_an_event_is_sent_and_handled_in_spans_linked_to_where_it_was_written(virtual_time, spans):
    await whole_way(spans, MemoryEngine(), MemoryTransport(), 5)


def test_the_chain_holds_over_a_database_too(tmp_path, spans):
    async def test() -> None:
        path = tmp_path / "events.db"
        async with SQLiteEngine(path) as engine:
            transport = SQLiteTransport(engine)
            await whole_way(spans, engine, transport, 1)

    asyncio.run(test())


async def test_a_batch_is_one_span_with_a_link_for_each_beginning(virtual_time, spans):
    outbox = Outbox(MemoryEngine(), transport=MemoryTransport(), topic="orders")
    begun = []
    for number in (1, 2):
        with spans.tracer.start_as_current_span("request") as request:
            await outbox.write([event(number), event(number + 10)])
        begun.append(request.get_span_context().span_id)
    await outbox.write(event(3))  # nobody knows where it began
    await outbox.relay().flush()
    sent = spans.one("send orders")
    assert linked_to(sent) == begun
    assert sent.attributes["messaging.batch.message_count"] == 5
    assert "messaging.message.id" not in sent.attributes


async def test_what_was_not_confirmed_is_on_the_span_and_the_next_try_has_its_own(virtual_time, spans):
    answers = iter([NotRetryable("no such topic"), None])

    async def publish(message):
        if error := next(answers):
            raise error

    outbox = Outbox(MemoryEngine(), transport=FunctionTransport(publish), topic="orders")
    async with outbox.relay(backoff=1, jitter=None):
        await outbox.write(event())
        await asyncio.sleep(10)
    first, second = spans.named("send orders")
    assert first.status.status_code is StatusCode.ERROR
    assert first.attributes["error.type"] == "NotRetryable"
    assert second.status.is_unset


async def test_the_span_is_current_while_the_transport_works(virtual_time, spans):
    seen = []

    async def publish(message):
        seen.append(trace.get_current_span().get_span_context().span_id)

    outbox = Outbox(MemoryEngine(), transport=FunctionTransport(publish), topic="orders")
    await outbox.write(event())
    await outbox.relay().flush()
    assert seen == [spans.one("send orders").context.span_id]


async def test_an_outbox_that_is_off_sends_in_a_span_too(virtual_time, spans):
    outbox = Outbox(MemoryEngine(), transport=FunctionTransport(refused), topic="orders", mode="off")
    with spans.tracer.start_as_current_span("POST /orders") as request, pytest.raises(PublishError):
        await outbox.write(event())
    sent = spans.one("send orders")
    assert linked_to(sent) == [request.get_span_context().span_id]
    assert (sent.status.status_code, sent.attributes["error.type"]) == (StatusCode.ERROR, "PublishError")
    await outbox.write([])  # nothing to send
    assert len(spans.named("send orders")) == 1


async def refused(message) -> None:
    raise NotRetryable("no such topic")


async def test_a_relay_that_was_started_in_a_span_does_not_stay_in_it(virtual_time, spans):
    outbox = Outbox(MemoryEngine(), transport=MemoryTransport(), topic="orders")
    with spans.tracer.start_as_current_span("startup"):
        relay = outbox.relay()
        await relay.__aenter__()
    await outbox.write(event())
    await asyncio.sleep(5)
    await relay.stop()
    assert spans.one("send orders").parent is None


async def test_a_replay_is_linked_to_where_the_event_began(virtual_time, spans):
    engine, transport = MemoryEngine(), MemoryTransport()
    outbox = Outbox(engine, transport=transport, topic="orders")
    consumer = Consumer("billing", transport, topics="orders", engine=engine)
    broken = True

    @consumer.on("OrderCreated")
    async def bill(event):
        if broken:
            raise NotRetryable("no")

    async with consumer, outbox.relay():
        with spans.tracer.start_as_current_span("POST /orders") as request:
            await outbox.write(event())
        await asyncio.sleep(5)
        broken = False
        letters = DeadLetters(engine)
        (letter,) = (await letters.list()).letters
        with spans.tracer.start_as_current_span("POST /replay"):
            await letters.replay(letter.id, actor="ann")
        await asyncio.sleep(5)
    failed, again = spans.named("process orders")
    assert (failed.status.status_code, again.status.is_unset) == (StatusCode.ERROR, True)
    assert failed.attributes["error.type"] == "NotRetryable"
    assert linked_to(failed) == linked_to(again) == [request.get_span_context().span_id]


# ------------------------------------------------------------------ sagas


def order_saga(*, refused: bool = False) -> Saga:
    async def reserve(context):
        context.emit(event(7), topic="orders")

    async def pay(context):
        await asyncio.sleep(2)
        if refused:
            raise NotRetryable("no money")

    async def undo(context):
        await asyncio.sleep(1)

    return Saga("order", Step("reserve", reserve, undo), Step("pay", pay, undo))


async def test_steps_of_a_saga_are_inside_the_request_that_waits_for_it_and_linked_together(virtual_time, spans):
    saga = order_saga()
    async with Orchestrator(MemoryEngine(), saga) as orchestrator:
        with spans.tracer.start_as_current_span("POST /orders") as request:
            await orchestrator.run(saga, id="s-1")
    reserve, pay = spans.one("order reserve"), spans.one("order pay")
    assert {reserve.parent.span_id, pay.parent.span_id} == {request.get_span_context().span_id}
    assert (linked_to(reserve), linked_to(pay)) == ([], [reserve.context.span_id])
    assert pay.attributes["everkeel.saga.id"] == "s-1"
    assert (pay.attributes["everkeel.saga.type"], pay.attributes["everkeel.saga.step"]) == ("order", "pay")
    assert (pay.attributes["everkeel.saga.undo"], pay.attributes["everkeel.attempt"]) == (False, 1)


async def test_steps_after_the_request_has_ended_are_traces_of_their_own_linked_to_it(virtual_time, spans):
    saga = order_saga()
    async with Orchestrator(MemoryEngine(), saga) as orchestrator:
        with spans.tracer.start_as_current_span("POST /orders") as request:
            handle = await orchestrator.start(saga, id="s-1")
        await handle.result()
    reserve, pay = spans.one("order reserve"), spans.one("order pay")
    assert (reserve.parent, pay.parent) == (None, None)
    assert linked_to(reserve) == [request.get_span_context().span_id]
    assert linked_to(pay) == [request.get_span_context().span_id, reserve.context.span_id]


async def test_a_saga_that_turns_back_shows_why_and_what_was_undone(virtual_time, spans):
    saga = order_saga(refused=True)
    async with Orchestrator(MemoryEngine(), saga) as orchestrator:
        handle = await orchestrator.start(saga, id="s-1")
        with pytest.raises(SagaCompensatedError):
            await handle.result()
    assert spans.names() == ["order reserve", "order pay", "order undo reserve"]
    pay, undo = spans.one("order pay"), spans.one("order undo reserve")
    assert (pay.status.status_code, pay.attributes["error.type"]) == (StatusCode.ERROR, "NotRetryable")
    assert linked_to(undo) == [pay.context.span_id]
    assert undo.attributes["everkeel.saga.undo"] is True


async def test_what_a_step_emits_begins_in_its_span(virtual_time, spans):
    engine, saga = MemoryEngine(), order_saga()
    async with Orchestrator(engine, saga) as orchestrator:
        await orchestrator.run(saga, id="s-1")
    await Outbox(engine, transport=MemoryTransport()).relay().flush()
    assert linked_to(spans.one("send orders")) == [spans.one("order reserve").context.span_id]


async def test_the_durations_of_steps_and_compensations_are_told(virtual_time):
    saga, told = order_saga(refused=True), []
    with subscribe(told.append, events.StepCompleted, events.StepUndone):
        async with Orchestrator(MemoryEngine(), saga) as orchestrator:
            handle = await orchestrator.start(saga, id="s-1")
            with pytest.raises(SagaCompensatedError):
                await handle.result()
    assert [(type(one).__name__, one.step, pytest.approx(one.duration)) for one in told] == [
        ("StepCompleted", "reserve", 0.0),
        ("StepUndone", "reserve", 1.0),
    ]


def test_only_the_last_step_of_so_many_sagas_is_remembered(monkeypatch, spans):
    monkeypatch.setattr(linked, "_REMEMBERED", 2)
    for saga in ("a", "b", "c", "a"):
        with tracing.span("step", "step", {"everkeel.saga.id": saga}, chain=saga):
            pass
    assert [span.links for span in spans.named("step")] == [(), (), (), ()]
    with tracing.span("step", "last", {}, chain="c"):
        pass
    assert len(spans.one("last").links) == 1


# ------------------------------------------------------------------ without


async def test_nothing_is_traced_where_nobody_asked_for_it(virtual_time):
    assert tracing.opener is None
    assert tracing.span("step", "x", {}) is tracing.UNTRACED
    with tracing.span("send", "x", {}) as told:
        told.failed("nobody hears this")


async def test_ending_the_instrumentation_ends_the_spans(virtual_time, spans):
    assert tracing.opener is not None
    EverkeelInstrumentor().uninstrument()
    assert tracing.opener is None
    outbox = Outbox(MemoryEngine(), transport=MemoryTransport(), topic="orders")
    await outbox.write(event())
    await outbox.relay().flush()
    assert spans.names() == []


async def test_a_cancelled_span_ends_and_says_so(virtual_time, spans):
    async def wait() -> None:
        with tracing.span("process", "process orders", {}):
            await asyncio.sleep(100)

    task = asyncio.create_task(wait())
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.wait({task})
    cancelled = spans.one("process orders")
    assert (cancelled.attributes["error.type"], cancelled.status.is_unset) == ("CancelledError", True)


@pytest.mark.parametrize("origin", [(None, None), ("nonsense", None), ("", "x=1"), (None, "x=1"), ("00-0-0-01", None)])
def test_an_origin_that_is_none_is_linked_to_nothing(origin):
    assert linked.origin_of(origin) is None


def test_an_origin_keeps_the_state_of_vendors():
    origin = linked.origin_of((f"00-{1:032x}-{2:016x}-01", "vendor=7"))
    assert (origin.trace_id, origin.span_id, origin.trace_state.to_header()) == (1, 2, "vendor=7")
