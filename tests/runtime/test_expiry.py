"""Calls that end on time: sync ones in a worker or in place, async ones by cancelling their task."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections import deque
from contextlib import suppress

import pytest

from everkeel import (
    TimeoutExceededError,
    WorkersExhaustedError,
    current_cancellation,
    current_deadline,
    deadline,
    events,
    sleep,
)
from everkeel.runtime import expiry, workers
from everkeel.runtime.expiry import Alarm, SyncBounds, call_within
from everkeel.testing import VirtualClock


def expire() -> TimeoutExceededError:
    return TimeoutExceededError("report", 1.0)


class Bounded:
    """`bounded(fn, ...)`: `fn` in a second at most, and at most two that were given up on."""

    def __init__(self, policy, runs: str) -> None:
        self.policy, self.runs = policy, runs
        self.bounds = SyncBounds(policy)

    def __call__(self, fn, *args, **kwargs):
        return self.bounds.call(self.runs, 1.0, 2, expire, fn, args, kwargs)


class Idle(deque):
    """The idle workers; whoever wants to know can wait for each job to be over, its late ending told."""

    def __init__(self) -> None:
        super().__init__()
        self.over = threading.Semaphore(0)

    def append(self, worker: object) -> None:
        super().append(worker)
        self.over.release()


@pytest.fixture
def policy(gate, virtual_time, monkeypatch):
    """A policy that leaves nothing behind: a late ending must not be told in the time of another test."""
    idle, jobs = Idle(), []

    def start(job: workers.Job) -> None:
        jobs.append(job)
        workers.start(job)

    monkeypatch.setattr(workers, "_idle", idle)
    monkeypatch.setattr(expiry, "start", start)
    yield gate("report")
    for _ in jobs:
        idle.over.acquire()


@pytest.fixture
def worker(policy):
    return Bounded(policy, "worker")


@pytest.fixture
def inline(policy):
    return Bounded(policy, "inline")


@pytest.fixture(params=["worker", "inline"])
def bounded(request, policy):
    return Bounded(policy, request.param)


class Hung:
    """A function that does not return before it is let go, and a way to wait until it really has ended."""

    def __init__(self, policy, error: BaseException | None = None) -> None:
        self.release, self.error = threading.Event(), error
        self.ended = threading.Event()
        policy.subscribe(lambda event: self.ended.set(), events.LateCompletion)

    def __call__(self) -> str:
        self.release.wait()
        if self.error is not None:
            raise self.error
        return "late"

    def let_go(self) -> None:
        self.release.set()
        self.ended.wait()


@pytest.fixture
def hung(policy):
    function = Hung(policy)
    yield function
    function.release.set()


# ------------------------------------------------------------------ sync: both places


def test_arguments_and_result_go_through(bounded):
    assert bounded(lambda *args, **kwargs: (args, kwargs), 1, two=2) == ((1,), {"two": 2})


@pytest.mark.parametrize("error", [OSError("refused"), KeyboardInterrupt(), TimeoutExceededError("another", 5.0)])
def test_an_error_of_the_body_passes_as_it_is(bounded, error):
    def fetch() -> None:
        raise error

    with pytest.raises(type(error)) as raised:
        bounded(fetch)
    assert raised.value is error


class RefusedError(Exception):
    """An error that can be watched."""


def test_an_error_of_the_body_is_freed_without_the_collector(bounded):
    def fetch(errors: list[RefusedError]) -> None:
        raise errors.pop()

    errors = [RefusedError()]
    weakly = weakref.ref(errors[0])
    gc.collect()
    gc.disable()
    try:
        with suppress(RefusedError):
            bounded(fetch, errors)
        assert weakly() is None
    finally:
        gc.enable()


def test_the_body_can_ask_for_the_end_of_its_time(bounded):
    cancellation = bounded(current_cancellation)
    assert cancellation is not None
    assert cancellation.at == 1.0
    assert current_cancellation() is None


def test_the_body_is_under_a_deadline(bounded):
    limit = bounded(current_deadline)
    assert limit is not None
    assert (limit.at, limit.length) == (1.0, 1.0)
    assert current_deadline() is None


def test_an_earlier_deadline_stays_the_deadline(bounded):
    with deadline(0.5) as outer:
        assert bounded(current_deadline) is outer
    with deadline(5.0) as outer:
        assert bounded(current_deadline) is not outer
        assert current_deadline() is outer


def test_a_body_that_sleeps_through_everkeel_wakes_on_time(bounded, virtual_time):
    with pytest.raises(TimeoutExceededError) as raised:
        bounded(sleep, 60)
    assert raised.value.policy == "report"
    assert virtual_time.monotonic() == 1.0


def test_a_body_that_sleeps_less_is_left_alone(bounded, virtual_time):
    bounded(sleep, 0.5)
    assert virtual_time.monotonic() == 0.5


# ------------------------------------------------------------------ sync: in a worker


def test_a_hung_call_is_left_behind_on_time(worker, hung, virtual_time):
    with pytest.raises(TimeoutExceededError):
        worker(hung)
    assert virtual_time.monotonic() == 1.0
    assert worker.bounds.abandoned == 1
    hung.let_go()
    assert worker.bounds.abandoned == 0


def test_the_body_learns_that_its_caller_has_left(worker, policy):
    seen: list[bool] = []
    ended = threading.Event()
    policy.subscribe(lambda event: ended.set(), events.LateCompletion)
    left = threading.Event()

    def body() -> None:
        cancellation = current_cancellation()
        seen.append(cancellation.given_up)
        left.wait()
        seen.append(cancellation.given_up)

    with pytest.raises(TimeoutExceededError):
        worker(body)
    left.set()
    ended.wait()
    assert seen == [False, True]


@pytest.mark.parametrize("error", [None, OSError("refused")])
def test_its_late_end_is_counted_and_told(policy, worker, virtual_time, error):
    heard: list[events.LateCompletion] = []
    policy.subscribe(heard.append, events.LateCompletion)
    hung = Hung(policy, error)
    with pytest.raises(TimeoutExceededError):
        worker(hung)
    virtual_time.advance(4)
    hung.let_go()
    assert [(event.policy, event.late_by, event.error) for event in heard] == [("report", 4.0, error)]
    assert policy.counts["late"] == 1


def test_when_too_many_were_left_behind_another_is_refused(policy, worker, record_events):
    hung = [Hung(policy), Hung(policy)]
    for function in hung:
        with pytest.raises(TimeoutExceededError):
            worker(function)
    with pytest.raises(WorkersExhaustedError) as raised:
        worker(lambda: "never called")
    assert (raised.value.policy, raised.value.abandoned) == ("report", 2)
    assert policy.snapshot()["rejected"] == 1
    assert len(record_events.of(events.CallRejected)) == 1
    for function in hung:
        function.let_go()
    assert worker(lambda: "answer") == "answer"


def test_healthy_calls_go_on_next_to_hung_ones(worker, hung):
    with pytest.raises(TimeoutExceededError):
        worker(hung)
    assert [worker(lambda: "answer") for _ in range(10)] == ["answer"] * 10


def test_an_interrupt_while_waiting_leaves_the_call_behind(policy, monkeypatch):
    clock = VirtualClock()
    policy.clock = clock
    bounded, hung = Bounded(policy, "worker"), Hung(policy)

    def interrupted(event: threading.Event, seconds: float | None) -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(clock, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bounded(hung)
    assert bounded.bounds.abandoned == 1
    assert current_cancellation() is None
    hung.let_go()
    assert bounded.bounds.abandoned == 0


def test_a_call_that_ends_in_the_moment_it_would_be_left_is_an_answer(policy, monkeypatch):
    clock = VirtualClock()
    policy.clock = clock

    def too_late(event: threading.Event, seconds: float | None) -> bool:
        event.wait()
        return False

    monkeypatch.setattr(clock, "wait", too_late)
    bounded = Bounded(policy, "worker")
    assert bounded(lambda: "answer") == "answer"
    assert bounded.bounds.abandoned == 0


def test_contexts_are_given_back_in_the_caller_when_time_is_up(worker, hung):
    with pytest.raises(TimeoutExceededError):
        worker(hung)
    assert current_cancellation() is None
    assert current_deadline() is None


# ------------------------------------------------------------------ sync: in place


def test_in_place_the_body_runs_in_its_callers_thread(inline):
    assert inline(threading.current_thread) is threading.current_thread()


def test_in_place_an_answer_that_comes_late_is_none(inline, virtual_time):
    with pytest.raises(TimeoutExceededError) as raised:
        inline(virtual_time.sleep, 3)
    assert virtual_time.monotonic() == 3.0
    assert raised.value.policy == "report"


def test_in_place_an_error_of_its_own_passes_though_it_is_late(inline, virtual_time):
    def body() -> None:
        virtual_time.sleep(3)
        raise OSError("refused")

    with pytest.raises(OSError):
        inline(body)


def test_in_place_the_body_may_check_now_and_then(inline, virtual_time):
    steps: list[float] = []

    def body() -> None:
        cancellation = current_cancellation()
        while True:
            cancellation.check()
            steps.append(cancellation.remaining())
            virtual_time.sleep(0.25)

    with pytest.raises(TimeoutExceededError):
        inline(body)
    assert steps == [1.0, 0.75, 0.5, 0.25]


# ------------------------------------------------------------------ async


def within(clock, seconds, fn, *args):
    return call_within(clock, seconds, expire, fn, args, {})


async def test_an_answer_in_time_is_an_answer(virtual_time):
    assert await within(virtual_time, 1.0, asyncio.sleep, 0.5, "answer") == "answer"
    assert virtual_time.monotonic() == 0.5


async def test_time_that_is_up_ends_the_body(virtual_time):
    ended: list[float] = []

    async def body() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(virtual_time.monotonic())

    with pytest.raises(TimeoutExceededError) as raised:
        await within(virtual_time, 1.0, body)
    assert ended == [1.0]
    assert isinstance(raised.value.__cause__, asyncio.CancelledError)
    assert asyncio.current_task().cancelling() == 0


async def test_no_time_at_all_still_lets_the_body_run_to_its_first_wait(virtual_time):
    began: list[str] = []

    async def body() -> None:
        began.append("began")
        await asyncio.sleep(1)

    with pytest.raises(TimeoutExceededError):
        await within(virtual_time, -1.0, body)
    assert began == ["began"]


async def test_a_cancellation_by_the_caller_is_not_taken_for_ours(virtual_time):
    task = asyncio.create_task(within(virtual_time, 1.0, asyncio.sleep, 60))
    await asyncio.sleep(0.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_in_the_same_moment_wins(virtual_time):
    task = asyncio.create_task(within(virtual_time, 1.0, asyncio.sleep, 60))
    await asyncio.sleep(0.5)
    asyncio.get_running_loop().call_later(0.5, task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_body_that_swallows_our_cancellation_still_times_out(virtual_time):
    async def body() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "swallowed"
        return "in time"

    with pytest.raises(TimeoutExceededError):
        await within(virtual_time, 1.0, body)


async def test_a_body_that_makes_an_error_of_its_own_of_it_has_its_way(virtual_time):
    async def body() -> None:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise OSError("closed") from None

    with pytest.raises(OSError):
        await within(virtual_time, 1.0, body)
    assert asyncio.current_task().cancelling() == 0


async def test_of_two_limits_the_shorter_ends_the_call(virtual_time):
    with pytest.raises(TimeoutExceededError):
        await within(virtual_time, 5.0, lambda: within(virtual_time, 1.0, asyncio.sleep, 60))
    assert virtual_time.monotonic() == 1.0


async def test_an_alarm_that_was_turned_off_does_not_ring(virtual_time):
    alarm = Alarm(virtual_time, 1.0)
    assert not alarm.off(None)
    await asyncio.sleep(5)
    assert asyncio.current_task().cancelling() == 0


def test_an_alarm_needs_a_task_to_end(virtual_time):
    async def outside_of_a_task() -> None:
        loop = asyncio.get_running_loop()
        failed = loop.create_future()

        def callback() -> None:
            try:
                Alarm(virtual_time, 1.0)
            except RuntimeError as error:
                failed.set_result(str(error))

        loop.call_soon(callback)
        assert await failed == "a time limit needs a running task to cancel"

    virtual_time.run(outside_of_a_task)
