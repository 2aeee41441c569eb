"""Span trees after scripted sequences, in every form of calling, from OpenTelemetry's in-memory exporter."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from everkeel import (
    BulkheadFullError,
    CircuitOpenError,
    bulkhead,
    circuit_breaker,
    fallback,
    guard,
    hedge,
    pipeline,
    rate_limit,
    retry,
    timeout,
)
from everkeel.compose import source
from everkeel.telemetry import EverkeelInstrumentor
from everkeel.telemetry.spans import FRAME
from everkeel.testing import Flaky


class Spans:
    """What was exported, as trees."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("test")

    def all(self) -> list[ReadableSpan]:
        return sorted(self.exporter.get_finished_spans(), key=lambda span: (span.start_time or 0, span.context.span_id))

    def tree(self) -> list[object]:
        """Each span as its name, or as its name and its children."""
        spans = self.all()

        def node(span: ReadableSpan) -> object:
            inside = [node(one) for one in spans if one.parent and one.parent.span_id == span.context.span_id]
            return (span.name, inside) if inside else span.name

        known = {span.context.span_id for span in spans}
        return [node(span) for span in spans if span.parent is None or span.parent.span_id not in known]

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all() if span.name == name]


@pytest.fixture
def spans(clock) -> Iterator[Spans]:
    spans = Spans()
    EverkeelInstrumentor().instrument(tracer_provider=spans.provider, read_metrics=False, histograms=False)
    yield spans
    EverkeelInstrumentor().uninstrument()
    assert FRAME.get() is None, "the test's context is not as it was"
    assert not trace.get_current_span().get_span_context().is_valid


def named(fn, name: str = "fetch"):
    """Something callable that is called `fetch`."""

    def fetch(*args, **kwargs):
        return fn(*args, **kwargs)

    fetch.__qualname__ = fetch.__name__ = name
    return fetch


def events_of(span: ReadableSpan) -> list[str]:
    return [event.name for event in span.events if event.name != "exception"]


def call(policy, fn):
    return policy.call(fn)


def decorate(policy, fn):
    return policy(fn)()


@pytest.fixture(params=[call, decorate], ids=["plain", "woven"])
def form(request):
    return request.param


# ------------------------------------------------------------------ trees


def test_a_call_that_goes_well_is_a_span_with_one_attempt(spans, form):
    assert form(retry("r"), named(Flaky("fine"))) == "fine"
    assert spans.tree() == [("fetch", ["fetch attempt"])]
    (whole,) = spans.named("fetch")
    assert whole.attributes == {
        "everkeel.policy.name": "r",
        "everkeel.policy.type": "retry",
        "everkeel.outcome": "success",
    }
    assert whole.status.status_code is StatusCode.UNSET


def test_every_attempt_is_a_span_linked_to_the_one_before(spans, form):
    form(retry("r", attempts=3, backoff=(0.5, 2.0), jitter=None), named(Flaky(OSError("one"), OSError("two"), "fine")))
    assert spans.tree() == [("fetch", ["fetch attempt"] * 3)]
    attempts = spans.named("fetch attempt")
    assert [
        tuple(span.attributes.get(key) for key in ("retry.attempt", "retry.last", "retry.delay", "everkeel.outcome"))
        for span in attempts
    ] == [(1, False, None, "failure"), (2, False, 0.5, "failure"), (3, True, 2.0, "success")]
    links = [[link.context.span_id for link in span.links] for span in attempts]
    assert links == [[], [attempts[0].context.span_id], [attempts[1].context.span_id]]
    assert [span.status.status_code for span in attempts] == [StatusCode.ERROR, StatusCode.ERROR, StatusCode.UNSET]
    assert attempts[0].status.description == "OSError: one"


def test_decisions_are_events_of_the_span_they_were_made_in(spans, form):
    with pytest.raises(OSError, match="down"):
        form(retry("r", attempts=2, backoff=0.5, jitter=None), named(Flaky(*[OSError("down")] * 2)))
    (whole,) = spans.named("fetch")
    assert events_of(whole) == ["everkeel.retrying", "everkeel.retry_gave_up"]
    assert whole.events[0].attributes == {
        "everkeel.policy.name": "r",
        "everkeel.policy.type": "retry",
        "everkeel.attempt": 1,
        "everkeel.delay": 0.5,
        "everkeel.error": "OSError",
        "everkeel.error_message": "down",
    }
    assert whole.attributes["everkeel.outcome"] == "failure"
    assert whole.status.status_code is StatusCode.ERROR


def test_several_policies_around_one_function_are_one_call(spans, form):
    stack = pipeline(fallback("other"), retry("r", attempts=2, backoff=0), circuit_breaker("c"), bulkhead(3, "b"))
    assert form(stack, named(Flaky(*[OSError("down")] * 2))) == "other"
    assert spans.tree() == [("fetch", ["fetch attempt", "fetch attempt"])]
    (whole,) = spans.named("fetch")
    assert events_of(whole) == ["everkeel.retrying", "everkeel.retry_gave_up", "everkeel.fell_back"]
    assert whole.attributes["everkeel.outcome"] == "success"


def test_a_guarded_function_inside_another_is_a_call_of_its_own(spans, form):
    bank = circuit_breaker("bank")
    inner = bank(named(Flaky("fine", "fine"), "charge"))
    form(pipeline(retry("r"), bank), named(lambda: inner(), "checkout"))
    assert spans.tree() == [("checkout", [("checkout attempt", ["charge"])])]


def test_a_retry_inside_another_counts_its_own_attempts(spans):
    inner = retry("inner", attempts=2, backoff=0)(named(Flaky(OSError(), OSError(), OSError(), "fine"), "inner"))
    retry("outer", attempts=2, backoff=0)(named(lambda: inner(), "outer"))()
    assert spans.tree() == [
        ("outer", [("outer attempt", [("inner", ["inner attempt"] * 2)])] * 2),
    ]
    assert [span.attributes["retry.attempt"] for span in spans.named("inner attempt")] == [1, 2, 1, 2]


def test_a_function_that_calls_itself_is_a_call_in_a_call(spans):
    @retry("r")
    def count(n):
        return n and count(n - 1)

    count(1)
    name = count.__qualname__
    assert spans.tree() == [(name, [(f"{name} attempt", [(name, [f"{name} attempt"])])])]


def test_spans_of_the_application_are_around_and_inside(spans, form):
    def fetch():
        with spans.tracer.start_as_current_span("query"):
            return 1

    with spans.tracer.start_as_current_span("request"):
        form(retry("r"), named(fetch))
    assert spans.tree() == [("request", [("fetch", [("fetch attempt", ["query"])])])]


def test_a_rejection_is_an_event_and_an_outcome(spans, form):
    bank = circuit_breaker("bank")
    bank.force_open()
    with pytest.raises(CircuitOpenError):
        form(bank, named(Flaky("fine")))
    (whole,) = spans.all()
    assert (events_of(whole), whole.attributes["everkeel.outcome"]) == (["everkeel.call_rejected"], "rejected")


def test_an_error_that_does_not_count_is_ignored(spans, form):
    with pytest.raises(KeyError):
        form(retry("r", on=OSError), named(Flaky(KeyError("user"))))
    assert [span.attributes["everkeel.outcome"] for span in spans.all()] == ["ignored", "ignored"]
    assert {span.status.status_code for span in spans.all()} == {StatusCode.UNSET}


def test_an_attempt_with_a_bad_result_failed(spans):
    retry("r", backoff=0, on_result=lambda value: value is None).call(named(Flaky(None, "fine")))
    assert [span.attributes["everkeel.outcome"] for span in spans.named("fetch attempt")] == ["failure", "success"]


def test_an_interrupted_call_is_cancelled(spans, form):
    with pytest.raises(KeyboardInterrupt):
        form(retry("r"), named(Flaky(KeyboardInterrupt())))
    assert {span.attributes["everkeel.outcome"] for span in spans.all()} == {"cancelled"}


# ------------------------------------------------------------------ async, threads, streams, blocks


def test_coroutines_have_the_same_tree(spans, clock):
    async def query():
        with spans.tracer.start_as_current_span("query"):
            await asyncio.sleep(1)
        raise OSError("down")

    query.__qualname__ = "fetch"
    stack = pipeline(
        fallback("other"), retry("r", attempts=2, backoff=1, jitter=None), timeout(5, "t"), bulkhead(2, "b")
    )
    assert clock.run(stack(query)()) == "other"
    assert spans.tree() == [("fetch", [("fetch attempt", ["query"])] * 2)]


def test_tasks_beside_each_other_do_not_mix_their_spans(spans, clock):
    @retry("r", backoff=1, jitter=None)
    async def fetch(fails):
        await asyncio.sleep(0.1)
        if fails:
            fails.pop()
            raise OSError

    async def main():
        await asyncio.gather(fetch([1]), fetch([1, 1]), fetch([]))

    clock.run(main())
    name = fetch.__qualname__
    assert sorted(len(children) for _, children in spans.tree()) == [1, 2, 3]
    for whole in spans.named(name):
        numbers = [
            span.attributes["retry.attempt"]
            for span in spans.named(f"{name} attempt")
            if span.parent.span_id == whole.context.span_id
        ]
        assert numbers == list(range(1, len(numbers) + 1))


def test_the_span_is_current_in_the_worker_thread_of_a_timeout(spans, form):
    threads = []

    def fetch():
        threads.append(threading.get_ident())
        with spans.tracer.start_as_current_span("query"):
            return 1

    form(pipeline(retry("r"), timeout(5, "t")), named(fetch))
    assert threads != [threading.get_ident()]
    assert spans.tree() == [("fetch", [("fetch attempt", ["query"])])]


def test_the_attempts_of_a_bounded_retry_are_spans_in_their_worker_threads(spans, form):
    form(retry("r", attempt_timeout=5, backoff=0), named(Flaky(OSError(), "fine")))
    assert spans.tree() == [("fetch", ["fetch attempt", "fetch attempt"])]
    assert [span.attributes["retry.attempt"] for span in spans.named("fetch attempt")] == [1, 2]


def test_a_timeout_tells_the_span_it_happened_in(spans, clock):
    async def slow():
        await asyncio.sleep(9)

    slow.__qualname__ = "fetch"
    with pytest.raises(TimeoutError):
        clock.run(timeout(1, "t")(slow)())
    (whole,) = spans.all()
    assert (events_of(whole), whole.attributes["everkeel.outcome"]) == (["everkeel.timed_out"], "failure")


def test_a_hedge_is_one_call_and_its_attempts_are_inside(spans, clock):
    waits = iter([1.0, 0.0])

    async def ask():
        with spans.tracer.start_as_current_span("query"):
            await asyncio.sleep(next(waits))

    ask.__qualname__ = "ask"
    clock.run(hedge("h", delay=0.1)(ask)())
    assert spans.tree() == [("ask", ["query", "query"])]
    assert events_of(spans.named("ask")[0]) == ["everkeel.hedge_started", "everkeel.hedge_won"]


def test_a_generator_is_a_span_until_it_ends_and_leaves_its_consumer_alone(spans):
    tries = iter([OSError("down"), None])

    @pipeline(retry("r", backoff=0), circuit_breaker("c"))
    def items():
        if error := next(tries):
            raise error
        yield 1
        yield 2

    for _ in items():
        assert not trace.get_current_span().get_span_context().is_valid
        assert FRAME.get() is None
    name = items.__qualname__
    assert spans.tree() == [(name, [f"{name} attempt"] * 2)]
    assert spans.named(name)[0].attributes["everkeel.outcome"] == "success"


def test_an_async_generator_is_a_span_until_it_ends(spans, clock):
    @pipeline(retry("r", backoff=0), bulkhead(2, "b"))
    async def items():
        yield 1
        yield 2

    async def main():
        return [(item, FRAME.get()) async for item in items()]

    assert clock.run(main()) == [(1, None), (2, None)]
    assert spans.tree() == [(items.__qualname__, [f"{items.__qualname__} attempt"])]


def test_a_block_is_a_span_named_after_its_policy(spans):
    with bulkhead(1, "db"):
        with spans.tracer.start_as_current_span("query"):
            pass
    assert spans.tree() == [("bulkhead 'db'", ["query"])]


def test_a_block_that_is_turned_away_ends_its_span(spans):
    places = bulkhead(1, "db")
    with places, pytest.raises(BulkheadFullError), places:
        pass
    inner, outer = sorted(spans.all(), key=lambda span: span.end_time)
    assert (inner.attributes["everkeel.outcome"], outer.attributes["everkeel.outcome"]) == ("rejected", "success")


def test_the_attempts_of_a_retried_block_are_spans(spans):
    steps = Flaky(OSError("down"), "fine")
    for attempt in retry("r", backoff=0.5, jitter=None).attempts():
        with attempt:
            steps()
    assert spans.tree() == [("retry 'r'", ["retry 'r' attempt"] * 2)]
    assert spans.named("retry 'r' attempt")[1].attributes["retry.delay"] == 0.5


def test_a_limiter_as_a_block_is_a_span(spans):
    with rate_limit(3, "api").entry():
        pass
    assert spans.tree() == ["rate limit 'api'"]


def test_guard_on_a_class_traces_its_methods(spans):
    @guard(retry=2)
    class Client:
        def fetch(self):
            return 1

    assert Client().fetch() == 1
    name = Client.fetch.__qualname__
    assert spans.tree() == [(name, [f"{name} attempt"])]


# ------------------------------------------------------------------ on and off


def test_a_policy_that_is_off_has_no_span(spans, form):
    form(retry("r", mode="off"), named(Flaky("fine")))
    assert spans.all() == []


def test_a_shadow_has_a_call_and_no_attempts(spans, form):
    form(retry("r", mode="shadow"), named(Flaky("fine")))
    assert spans.tree() == ["fetch"]


def test_functions_decorated_before_are_traced_and_are_as_before_afterwards(clock):
    spans, instrumentor = Spans(), EverkeelInstrumentor()
    guarded = pipeline(retry("r"), circuit_breaker("c"))(named(lambda: 1))
    before = source(guarded)
    guarded()
    for _ in range(3):
        instrumentor.instrument(tracer_provider=spans.provider, read_metrics=False, histograms=False)
        guarded()
        assert "span" in source(guarded)
        instrumentor.uninstrument()
        guarded()
        assert source(guarded) == before
    assert spans.tree() == [("fetch", ["fetch attempt"])] * 3


def test_events_outside_of_a_call_are_on_no_span(spans):
    with spans.tracer.start_as_current_span("request"):
        circuit_breaker("bank").force_open()
    assert events_of(spans.all()[0]) == []
