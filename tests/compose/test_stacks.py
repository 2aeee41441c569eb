"""Whole stacks: retry, circuit breaker, timeout and bulkhead around one call, in every form, under every misfortune."""

from __future__ import annotations

import asyncio
import threading
import traceback
from collections.abc import Callable, Iterator
from contextvars import copy_context
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import pytest

import everkeel
from everkeel import (
    BulkheadFullError,
    CircuitOpenError,
    TimeoutExceededError,
    bulkhead,
    circuit_breaker,
    current_attempt,
    current_cancellation,
    current_deadline,
    deadline,
    events,
    explain,
    fallback,
    pipeline,
    retry,
    timeout,
)
from everkeel.policies.bulkhead.state import Places
from everkeel.policies.circuit_breaker.state import Circuit
from everkeel.policies.retry.state import Retrying
from everkeel.policies.timeout.state import Timing
from everkeel.runtime.signature import kind_of
from everkeel.runtime.state import State
from everkeel.testing import (
    Flaky,
    VirtualClock,
    cancel_at_every_await,
    fresh_everkeel,
    record_events,
    virtual_time,
    wait_until_idle,
)

STYLES = ("plain", "woven", "unrolled", "seams")
SEEDS = range(6)


@dataclass(frozen=True)
class Form:
    """One way of calling: plain, woven, woven with default fragments, or woven with nothing but seams."""

    style: str

    def __call__(self, policies: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
        if self.style != "plain":
            return policies(fn)
        if kind_of(fn) != "async":
            return partial(policies.call, fn)

        async def call(*args: Any, **kwargs: Any) -> Any:
            return await policies.acall(fn, *args, **kwargs)

        return call


def make_form(style: str, patch: pytest.MonkeyPatch) -> Form:
    if style == "unrolled":
        for state in (Circuit, Places):
            patch.setattr(state, "fragment", State.fragment)
    if style in ("unrolled", "seams"):
        for state in (Retrying, Timing) if style == "unrolled" else (Retrying, Circuit, Timing, Places):
            patch.setattr(state, "fragment", lambda self, kind: None)
    return Form(style)


@pytest.fixture(params=STYLES)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Form:
    return make_form(request.param, monkeypatch)


class Stack:
    """The four policies and the pipeline of them."""

    def __init__(self, runs: str = "worker", **changes: Any) -> None:
        again = {"attempts": 3, "backoff": 1, "jitter": None, **changes.pop("retry", {})}
        breaker = {"minimum_calls": 4, "window": 8, "open_for": 10, "probes": 2, **changes.pop("breaker", {})}
        limit = {"seconds": 5, "runs": runs, **changes.pop("timeout", {})}
        places = {"limit": 2, "queue": 1, **changes.pop("places", {})}
        # `replace`: some tests make many of them
        self.retry = retry("again", replace=True, **again)
        self.breaker = circuit_breaker("payments", replace=True, **breaker)
        self.timeout = timeout(name="limit", replace=True, **limit)
        self.places = bulkhead(name="places", replace=True, **places)
        self.pipeline = pipeline(self.retry, self.breaker, self.timeout, self.places)

    def snapshots(self) -> list[dict[str, Any]]:
        return [dict(policy.snapshot()) for policy in self.pipeline]

    def is_at_rest(self) -> bool:
        snapshot = self.places.snapshot()
        return (snapshot["running"], snapshot["waiting"], self.timeout.snapshot()["running"]) == (0, 0, 0)


def seen_context() -> dict[Any, Any]:
    """The context variables of this moment that anybody has set."""
    return {variable: value for variable, value in copy_context().items() if value is not None}


def free_probes(breaker: Any) -> int:
    """How many probes may pass now; none of them is evidence."""
    entries = []
    try:
        while True:
            entry = breaker.entry()
            entry.__enter__()
            entries.append(entry)
    except CircuitOpenError:
        pass
    for entry in entries:
        entry.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    return len(entries)


# ------------------------------------------------------------------ every form tells the same story


def story(form: Form, clock: VirtualClock, seed: int, *, awaited: bool) -> list[object]:
    """Sixty calls with random fates, and everything that can be seen after each of them."""
    chance, told = Random(seed), []
    stack = Stack(runs="inline", retry={"jitter": "full", "on": (ConnectionError, TimeoutError)}, places={"queue": 0})
    fates = ("answer", "answer", "answer", "answer", "refused", "refused", "slow", "wrong", "full", "interrupted")

    def happen(fate: str) -> str:
        if fate == "refused":
            raise ConnectionError("refused")
        if fate == "wrong":
            raise KeyError("wrong")
        if fate == "interrupted":
            raise GeneratorExit
        return fate

    def body() -> str:
        fate = chance.choice(fates)
        everkeel.sleep(60 if fate == "slow" else chance.choice([0.0, 0.5]))
        return stack.places.call(happen, fate) and happen("answer") if fate == "full" else happen(fate)

    async def abody() -> str:
        fate = chance.choice(fates)
        await asyncio.sleep(60 if fate == "slow" else chance.choice([0.0, 0.5]))
        return stack.places.call(happen, fate) and happen("answer") if fate == "full" else happen(fate)

    guarded = form(stack.pipeline, abody if awaited else body)

    async def caught() -> object:
        # GeneratorExit cannot leave a task; it can be raised in one.
        try:
            return await guarded()
        except BaseException as error:
            return error

    with record_events() as heard:
        for number in range(60):
            clock.sleep(chance.choice([0, 0, 1, 12]))
            if number % 15 == 14:
                stack.places.reconfigure(limit=chance.randint(1, 3))
                stack.timeout.mode = chance.choice(["enforce", "enforce", "shadow"])
                stack.breaker.mode = chance.choice(["enforce", "enforce", "shadow"])
            try:
                came = clock.run(caught()) if awaited else guarded()
            except BaseException as error:
                came = error
            text = f"{type(came).__name__}: {came}" if isinstance(came, BaseException) else came
            told.append((number, text, clock.monotonic(), stack.snapshots()))
        told.append([(type(event).__name__, event.policy) for event in heard])
    return told


def test_the_stories_are_about_everything():
    """Those below would prove little if nothing happened in them."""
    names: set[str] = set()
    for seed in SEEDS:
        with fresh_everkeel(), virtual_time(seed=seed) as clock:
            names |= {name for name, _ in story(Form("woven"), clock, seed, awaited=True)[-1]}
    assert names >= {
        "Retrying", "RetrySucceeded", "RetryGaveUp", "CircuitOpened", "CircuitHalfOpened", "CircuitClosed", "TimedOut",
        "CallRejected", "LimitChanged", "WouldHave", "Succeeded", "Failed", "Ignored",
    }  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_every_form_tells_the_same_story(seed):
    stories = {}
    for style in STYLES:
        for awaited in (False, True):
            with pytest.MonkeyPatch.context() as patch, fresh_everkeel(), virtual_time(seed=seed) as clock:
                told = story(make_form(style, patch), clock, seed, awaited=awaited)
                stories[f"{style}-{'async' if awaited else 'sync'}"] = told
    for name, told in stories.items():
        for one, other in zip(told[:-1], stories["plain-sync"][:-1], strict=True):
            assert one == other, f"{name} differs from plain-sync (seed {seed})"
        # What is cooperative in sync code, and so an error of the body, is a cancellation in async code.
        alike = stories["plain-async" if name.endswith("async") else "plain-sync"]
        assert told[-1] == alike[-1], f"the events of {name} differ (seed {seed})"


# ------------------------------------------------------------------ in this order


def test_each_attempt_has_a_time_limit_of_its_own(form, clock):
    stack = Stack(breaker={"minimum_calls": 8})
    with pytest.raises(TimeoutExceededError):
        clock.run(form(stack.pipeline, asyncio.sleep)(60))
    assert clock.monotonic() == 3 * 5 + 2 * 1
    assert stack.timeout.snapshot()["expired"] == 3


def test_a_timeout_is_a_failure_for_the_breaker_and_is_retried(form, clock):
    stack = Stack(breaker={"minimum_calls": 2})
    with pytest.raises(CircuitOpenError):
        clock.run(form(stack.pipeline, asyncio.sleep)(60))
    assert stack.breaker.snapshot()["state"] == "open"


def test_a_full_bulkhead_is_no_evidence_for_the_breaker_and_is_not_retried(form, clock):
    stack, fetch = Stack(runs="inline", places={"limit": 1, "queue": 0}, breaker={"minimum_calls": 1}), Flaky("never")
    with stack.places, pytest.raises(BulkheadFullError):
        form(stack.pipeline, fetch)()
    assert fetch.calls == 0
    assert stack.breaker.snapshot()["state"] == "closed"
    assert stack.retry.snapshot()["retries"] == 0


def test_a_call_that_times_out_in_the_queue_leaves_it_and_is_tried_again(form, clock):
    stack = Stack(places={"limit": 1})

    async def main() -> str:
        blocker = asyncio.create_task(stack.places.acall(asyncio.sleep, 7))
        await asyncio.sleep(0)
        answer = await form(stack.pipeline, asyncio.sleep)(1, "answer")
        await blocker
        return answer

    assert clock.run(main) == "answer"
    assert clock.monotonic() == 8.0  # 5 s in vain, 1 s of rest, 1 s in the queue, 1 s of work
    assert stack.timeout.snapshot()["expired"] == 1
    assert stack.is_at_rest()


def test_a_deadline_ends_the_whole_of_it(form, clock):
    stack = Stack(breaker={"minimum_calls": 8})

    async def main() -> None:
        with deadline(8):
            await form(stack.pipeline, asyncio.sleep)(60)

    with pytest.raises(TimeoutError):
        clock.run(main)
    assert clock.monotonic() == 8.0
    assert stack.is_at_rest()


def test_in_worker_threads_it_does_the_same(form, clock):
    stack, fetch = Stack(), Flaky(ConnectionError("one"), ConnectionError("two"), "answer")
    assert form(stack.pipeline, fetch)("arg", key="word") == "answer"
    assert fetch.arguments == [(("arg",), {"key": "word"})] * 3
    assert [snapshot["success"] for snapshot in stack.snapshots()] == [1, 1, 1, 1]
    assert stack.is_at_rest()


# ------------------------------------------------------------------ cancellation


@pytest.mark.usefixtures("fresh_everkeel")
def test_cancellation_at_every_await_leaves_everything_as_before(form):
    stacks: list[Stack] = []

    async def body() -> str:
        await asyncio.sleep(1)
        if everkeel.current_attempt() is None:
            raise ConnectionError
        await asyncio.sleep(0)
        return "answer"

    async def call() -> object:
        stack = Stack(places={"limit": 1}, breaker={"ignore": ConnectionError})
        stack.breaker.half_open()
        stacks.append(stack)
        blocker = asyncio.create_task(stack.places.acall(asyncio.sleep, 1))
        await asyncio.sleep(0)
        before = seen_context()
        try:
            return await form(stack.pipeline, body)()
        finally:
            assert seen_context() == before
            assert not blocker.cancelled()

    async def check(run: Any) -> None:
        await asyncio.sleep(60)
        stack = stacks[-1]
        assert stack.is_at_rest()
        assert stack.places.state.attention is False
        if run.cancelled:
            assert stack.breaker.snapshot()["state"] == "half_open"
            assert free_probes(stack.breaker) == 2
            assert (stack.retry.snapshot()["failure"], stack.timeout.snapshot()["expired"]) == (0, 0)
        with stack.places:
            pass
        assert (current_attempt(), current_cancellation(), current_deadline()) == (None, None, None)

    # to begin with; the queue; the first attempt; the wait after it; the second attempt, twice
    assert cancel_at_every_await(call, check) == 6


def test_cancellation_opens_no_breaker_is_no_success_and_is_not_retried(form, clock):
    # purgatory opens, circuitbreaker counts a success, tenacity tries again
    stack, begun = Stack(breaker={"minimum_calls": 1}), []

    async def body() -> None:
        begun.append(1)
        await asyncio.sleep(60)

    async def main() -> None:
        call = form(stack.pipeline, body)
        for _ in range(5):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(call(), 1)

    clock.run(main)
    assert len(begun) == 5
    assert stack.breaker.snapshot()["state"] == "closed"
    assert [(one["success"], one["failure"], one["ignored"]) for one in stack.snapshots()] == [(0, 0, 0)] * 4


def test_a_cancelled_probe_neither_closes_nor_wedges_the_circuit(form, clock):
    # Polly closes on it; resilience4j by default waits for ever for a probe that was lost
    stack = Stack(breaker={"probes": 1})
    stack.breaker.half_open()

    async def main() -> str:
        task = asyncio.create_task(form(stack.pipeline, asyncio.sleep)(60))
        await asyncio.sleep(1)
        task.cancel()
        await asyncio.wait([task])
        assert stack.breaker.snapshot()["state"] == "half_open"
        return await form(stack.pipeline, asyncio.sleep)(0, "answer")

    assert clock.run(main) == "answer"
    assert stack.breaker.snapshot()["state"] == "closed"


@pytest.mark.parametrize("steps", [1, 2])
def test_a_coroutine_that_is_closed_gives_everything_back(form, clock, steps):
    stack = Stack(places={"limit": 1})
    stack.breaker.half_open()

    async def main() -> None:
        before = seen_context()
        coroutine = form(stack.pipeline, asyncio.sleep)(1)
        if steps == 1:  # in its body
            coroutine.send(None)
        else:  # in the queue
            with stack.places:
                coroutine.send(None)
                assert stack.places.snapshot()["waiting"] == 1
                coroutine.close()
        coroutine.close()
        assert seen_context() == before
        assert stack.is_at_rest()
        assert free_probes(stack.breaker) == 2
        await asyncio.sleep(60)

    clock.run(main)


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interruption_passes_through_uncounted(form, clock, interruption):
    stack = Stack(runs="inline")
    with pytest.raises(interruption):
        form(stack.pipeline, Flaky(interruption))()
    assert [(one["success"], one["failure"], one["ignored"]) for one in stack.snapshots()] == [(0, 0, 0)] * 4
    assert stack.is_at_rest()


# ------------------------------------------------------------------ what an exception carries


@pytest.mark.parametrize("awaited", [False, True])
def test_an_attempt_is_not_chained_to_the_one_before(form, clock, awaited):
    stack = Stack(runs="inline", retry={"attempts": 2, "backoff": 1})
    fetch = Flaky(KeyError("first"), ConnectionError("second"))
    with pytest.raises(ConnectionError, match="second") as raised:
        clock.run(form(stack.pipeline, fetch.async_())()) if awaited else form(stack.pipeline, fetch)()
    assert (raised.value.__context__, raised.value.__cause__) == (None, None)


def test_a_timeout_after_a_failed_attempt_is_chained_to_its_cancellation_only(form, clock):
    stack = Stack(retry={"attempts": 2})
    outcomes: Iterator[float] = iter([0, 60])

    async def body() -> None:
        if not (pause := next(outcomes)):
            raise KeyError("first")
        await asyncio.sleep(pause)

    with pytest.raises(TimeoutExceededError) as raised:
        clock.run(form(stack.pipeline, body)())
    chain, error = [], raised.value
    while error is not None:
        chain.append(type(error))
        error = error.__cause__ or error.__context__
    assert chain[0] is TimeoutExceededError
    assert set(chain[1:]) == {asyncio.CancelledError}


def test_the_traceback_of_a_woven_stack_is_one_frame_and_the_body(clock):
    stack = Stack(runs="inline", retry={"attempts": 1}, timeout={"mode": "off"})

    @stack.pipeline
    def body() -> None:
        raise ConnectionError

    with pytest.raises(ConnectionError):
        body()  # weaves
    with pytest.raises(ConnectionError) as raised:
        body()
    files = [frame.filename for frame in traceback.extract_tb(raised.tb)]
    assert len(files) == 3
    assert files[1].startswith("<everkeel ")


def test_explain_tells_what_each_policy_decided(form, clock):
    stack = Stack(breaker={"minimum_calls": 2})
    with pytest.raises(CircuitOpenError) as raised:
        clock.run(form(stack.pipeline, asyncio.sleep)(60))
    told = str(explain(raised.value)).splitlines()
    assert told[0].startswith("circuit breaker 'payments' rejected: circuit 'payments' is open")
    assert told[1] == "retry 'again' gave up: the last error is not one to retry on"
    assert told[2:4] == [
        "  attempt 1: TimeoutExceededError: timeout 'limit': no answer within 5 s; waited 1 s",
        "  attempt 2: TimeoutExceededError: timeout 'limit': no answer within 5 s; waited 1 s",
    ]
    assert told[4].startswith("  attempt 3: CircuitOpenError")


def test_explain_tells_of_a_timeout_that_was_the_last_straw(form, clock):
    stack = Stack(retry={"attempts": 2}, breaker={"minimum_calls": 8})
    with pytest.raises(TimeoutExceededError) as raised:
        clock.run(form(stack.pipeline, asyncio.sleep)(60))
    decisions = [(one.policy, one.action) for one in explain(raised.value).decisions]
    assert decisions == [("limit", "timed_out"), ("again", "gave_up")]
    assert (explain(raised.value).attempts, explain(raised.value).delays) == (2, (1.0,))


def test_a_fallback_around_it_all_answers_for_rejections_too(form, clock):
    stack = Stack(runs="inline", places={"limit": 1, "queue": 0})
    call = form(pipeline(fallback("from the cache", name="cached"), stack.pipeline), Flaky("fresh"))
    with stack.places:
        assert call() == "from the cache"
    assert call() == "fresh"


# ------------------------------------------------------------------ streams


@pytest.mark.parametrize("end", ["exhausted", "closed"])
def test_a_stream_holds_its_place_until_it_ends(clock, end):
    stack = Stack(runs="inline", places={"limit": 1, "queue": 0})

    @stack.pipeline
    def rows():
        yield 1
        yield 2

    items = rows()
    assert next(items) == 1
    assert stack.places.snapshot()["running"] == 1
    assert list(items) == [2] if end == "exhausted" else items.close() is None
    assert stack.is_at_rest()


def test_a_stream_is_tried_again_before_its_first_item_only(clock):
    stack, begun = Stack(runs="inline"), []

    @stack.pipeline
    def rows():
        begun.append(1)
        if len(begun) == 1:
            raise ConnectionError
        yield 1
        raise ConnectionError("in the middle")

    items = rows()
    assert next(items) == 1
    with pytest.raises(ConnectionError, match="in the middle"):
        next(items)
    assert len(begun) == 2
    assert stack.is_at_rest()


def test_an_async_stream_that_stalls_is_ended_and_gives_its_place_back(clock):
    stack = Stack(places={"limit": 1, "queue": 0}, timeout={"gap": 1})

    @stack.pipeline
    async def rows():
        yield 1
        await asyncio.sleep(60)
        yield 2

    async def main() -> None:
        items = rows()
        assert await anext(items) == 1
        with pytest.raises(TimeoutExceededError):
            await anext(items)
        assert stack.is_at_rest()

    clock.run(main)
    assert clock.monotonic() == 1.0


# ------------------------------------------------------------------ many at once


@pytest.mark.usefixtures("fresh_everkeel")
def test_threads_and_event_loops_share_one_stack(form):
    stack = Stack(
        retry={"attempts": 4, "backoff": 0},
        breaker={"failure_rate": 1.0, "minimum_calls": 1000, "window": 1000},
        timeout={"seconds": 30},
        places={"limit": 3, "queue": 1000},
    )
    together, lock, inside, peak, failed, came = threading.Barrier(6), threading.Lock(), [0], [0], set(), []

    def step(number: int, change: int) -> None:
        with lock:
            inside[0] += change
            peak[0] = max(peak[0], inside[0])
            if change < 0 and number % 4 == 0 and number not in failed:
                failed.add(number)
                raise ConnectionError

    def work(number: int) -> int:
        step(number, +1)
        threading.Event().wait(0.0002)
        step(number, -1)
        return number

    async def awork(number: int) -> int:
        step(number, +1)
        await asyncio.sleep(0.0002)
        step(number, -1)
        return number

    def thread(base: int) -> None:
        call = form(stack.pipeline, work)
        together.wait(30)
        came.extend(call(base + i) for i in range(20))

    def loop(base: int) -> None:
        async def main() -> list[int]:
            call = form(stack.pipeline, awork)
            together.wait(30)
            return await asyncio.gather(*(call(base + i) for i in range(20)))

        came.extend(asyncio.run(main()))

    targets = enumerate([thread] * 3 + [loop] * 3)
    threads = [threading.Thread(target=target, args=(1000 * number,)) for number, target in targets]
    for one in threads:
        one.start()
    for one in threads:
        one.join(50)
    assert sorted(came) == sorted(1000 * n + i for n in range(6) for i in range(20))
    assert peak[0] <= 3
    snapshots = {snapshot["type"]: snapshot for snapshot in stack.snapshots()}
    assert snapshots["retry"]["success"] == 120
    assert snapshots["retry"]["retries"] == snapshots["retry"]["recovered"] == 30
    assert snapshots["circuit_breaker"]["failure"] == 30
    assert snapshots["bulkhead"]["success"] == 120
    assert stack.is_at_rest()


@pytest.mark.usefixtures("fresh_everkeel")
def test_live_changes_under_load_hurt_no_call(form):
    stack = Stack(runs="inline", timeout={"seconds": 30}, places={"limit": 8, "queue": 100})
    stop, wrong, chance = threading.Event(), [], Random(0)

    def thread() -> None:
        call, number = form(stack.pipeline, lambda number: number), 0
        while not stop.is_set():
            number += 1
            try:
                if call(number) != number:
                    wrong.append(number)
            except BaseException as error:
                wrong.append(error)

    threads = [threading.Thread(target=thread) for _ in range(3)]
    for one in threads:
        one.start()
    for round_ in range(60):
        policy = chance.choice(stack.pipeline.policies)
        policy.mode = chance.choice(["enforce", "shadow", "off"])
        if round_ % 5 == 0:
            stack.breaker.reconfigure(window_duration=chance.choice([None, 5.0]))
            stack.places.reconfigure(limit=chance.randint(5, 9))
            stack.timeout.reconfigure(seconds=chance.choice([30, 40]))
            policy.subscribe(lambda event: None, events.Succeeded).cancel()
    stop.set()
    for one in threads:
        one.join(30)
    assert wrong == []
    for policy in stack.pipeline:
        policy.mode = "enforce"
    assert stack.is_at_rest()
    assert len(stack.places.state.tokens) == stack.places.config.limit


def test_a_crowd_at_the_half_open_instant_sends_only_the_probes(form, clock):
    stack, reached = Stack(places={"limit": 50}, retry={"attempts": 1}), []
    stack.breaker.half_open()

    async def body() -> None:
        reached.append(1)
        await asyncio.sleep(1)

    async def main() -> list[object]:
        call = form(stack.pipeline, body)
        tasks = [asyncio.create_task(call()) for _ in range(50)]
        await wait_until_idle()
        return await asyncio.gather(*tasks, return_exceptions=True)

    came = clock.run(main)
    assert len(reached) == 2
    assert sum(isinstance(result, CircuitOpenError) for result in came) == 48
    assert stack.breaker.snapshot()["state"] == "closed"


# ------------------------------------------------------------------ switched off


@pytest.mark.parametrize("awaited", [False, True])
def test_a_disabled_everkeel_is_a_plain_call(form, clock, awaited):
    stack, fetch = Stack(places={"limit": 1, "queue": 0}), Flaky(ConnectionError("refused"), takes=60)
    stack.breaker.force_open()
    call = form(stack.pipeline, fetch.async_() if awaited else fetch)
    everkeel.disable()
    with pytest.raises(ConnectionError, match="refused"):
        clock.run(call()) if awaited else call()
    assert (fetch.calls, clock.monotonic()) == (1, 60.0)
    everkeel.enable()
    with pytest.raises(CircuitOpenError):
        clock.run(call()) if awaited else call()


def test_all_in_shadow_touches_nothing_and_counts_everything(form, clock):
    stack = Stack(places={"limit": 1, "queue": 0}, timeout={"seconds": 1}, breaker={"minimum_calls": 1})
    for policy in stack.pipeline:
        policy.mode = "shadow"
    fetch = Flaky(ConnectionError("refused"), takes=5)

    async def main() -> None:
        with stack.places:
            for _ in range(2):
                with pytest.raises(ConnectionError):
                    await form(stack.pipeline, fetch.async_())()

    clock.run(main)
    assert fetch.calls == 2
    would = {snapshot["type"]: snapshot["would"] for snapshot in stack.snapshots()}
    assert would == {
        "retry": {"retry": 2},
        "circuit_breaker": {"reject": 1},
        "timeout": {"expire": 2},
        "bulkhead": {"reject": 2},
    }
