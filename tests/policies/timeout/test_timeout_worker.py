"""A sync call under a timeout runs in a worker thread: its caller returns on time, whatever the call does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import traceback
from contextvars import ContextVar

import pytest

import everkeel
from everkeel import (
    Clock,
    TimeoutExceededError,
    WorkersExhaustedError,
    current_cancellation,
    current_deadline,
    deadline,
    events,
    timeout,
)
from everkeel.runtime import workers
from everkeel.testing import Flaky, VirtualClock


class Hung:
    """A body that hangs until it is let go, and what it noticed."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.threads: list[str] = []

    def __call__(self) -> str:
        self.threads.append(threading.current_thread().name)
        assert self.release.wait(30)
        return "late"


@pytest.fixture
def hung(late):
    """Let go at the end, and waited for: no thread of this test is left when the next one begins."""
    body = Hung()
    yield body
    body.release.set()


@pytest.fixture
def late(clock):
    """`late(n)` waits until so many calls have completed late; answers their events."""
    told: list[events.LateCompletion] = []
    changed = threading.Condition()

    def hear(event: events.LateCompletion) -> None:
        with changed:
            told.append(event)
            changed.notify_all()

    everkeel.subscribe(hear, events.LateCompletion)

    def wait_for(number: int) -> list[events.LateCompletion]:
        with changed:
            assert changed.wait_for(lambda: len(told) >= number, 30)
        return told

    return wait_for


def test_a_call_in_time_gives_its_answer(called, clock):
    policy = timeout(2, "report")
    assert called(policy, Flaky("answer", takes=1))("arg", key="word") == "answer"
    assert policy.snapshot()["success"] == 1


def test_a_hung_call_is_left_and_its_caller_returns_on_time(called, clock, hung, late):
    policy = timeout(2, "report")
    with pytest.raises(TimeoutExceededError) as raised:
        called(policy, hung)()
    assert clock.monotonic() == 2.0
    assert (raised.value.policy, raised.value.seconds) == ("report", 2.0)
    assert policy.snapshot()["abandoned"] == 1
    hung.release.set()
    late(1)


def test_a_late_completion_is_told_and_counted(called, clock, hung, late):
    policy = timeout(2, "report")
    with pytest.raises(TimeoutExceededError):
        called(policy, hung)()
    clock.advance(3)
    hung.release.set()
    assert late(1) == [events.LateCompletion(policy="report", policy_type="timeout", late_by=3.0, error=None)]
    snapshot = policy.snapshot()
    assert (snapshot["late"], snapshot["abandoned"], snapshot["expired"], snapshot["failure"]) == (1, 0, 1, 1)


def test_a_late_failure_is_told_with_its_error(called, clock, late):
    release = threading.Event()

    def fail() -> None:
        release.wait(30)
        raise ValueError("too late to matter")

    with pytest.raises(TimeoutExceededError):
        called(timeout(2, "report"), fail)()
    release.set()
    assert str(late(1)[0].error) == "too late to matter"


def test_the_events_tell_that_it_timed_out_and_failed(called, clock, heard, hung, late):
    with pytest.raises(TimeoutExceededError) as raised:
        called(timeout(2, "report"), hung)()
    assert heard.names() == ["PolicyAdded", "TimedOut", "Failed"]
    assert heard.of(events.Failed)[0].error is raised.value
    hung.release.set()
    late(1)


def test_context_variables_are_lost_in_a_thread_pool_but_not_here(called, clock):
    # pyresilience loses them
    tenant: ContextVar[str] = ContextVar("tenant", default="nobody")
    token = tenant.set("acme")

    def body() -> str:
        seen = tenant.get()
        tenant.set("changed inside")
        return seen

    try:
        assert called(timeout(2, "report"), body)() == "acme"
        assert tenant.get() == "acme"
    finally:
        tenant.reset(token)


def test_a_pool_exhausted_by_hung_calls_does_not_time_out_healthy_ones(called, clock, hung, late):
    # pyresilience: a small pool, and after that many hung calls nothing works any more
    policy = timeout(2, "report")
    for _ in range(20):
        with pytest.raises(TimeoutExceededError):
            called(policy, hung)()
    assert policy.snapshot()["abandoned"] == 20
    assert [called(policy, Flaky("answer"))() for _ in range(20)] == ["answer"] * 20
    hung.release.set()
    late(20)
    assert policy.snapshot()["abandoned"] == 0


def test_too_many_abandoned_calls_refuse_another_instead_of_using_up_threads(called, clock, heard, hung, late):
    policy = timeout(2, "report", max_abandoned=2)
    for _ in range(2):
        with pytest.raises(TimeoutExceededError):
            called(policy, hung)()
    healthy = Flaky("answer")
    with pytest.raises(WorkersExhaustedError) as raised:
        called(policy, healthy)()
    assert (raised.value.policy, raised.value.abandoned, raised.value.retry_after) == ("report", 2, None)
    assert str(raised.value) == (
        "timeout 'report': 2 abandoned calls still occupy their threads; refusing to start another"
    )
    assert healthy.calls == 0
    assert [event.error for event in heard.of(events.CallRejected)] == [raised.value]
    snapshot = policy.snapshot()
    assert (snapshot["rejected"], snapshot["ignored"]) == (1, 0)
    hung.release.set()
    late(2)
    assert called(policy, healthy)() == "answer"


def test_an_exception_passes_as_the_very_object_with_its_traceback(called, clock):
    policy, error = timeout(2, "report"), ValueError("no such report")

    def deep() -> None:
        raise error

    with pytest.raises(ValueError) as raised:
        called(policy, deep)()
    assert raised.value is error
    assert "deep" in [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    assert error.__context__ is None
    snapshot = policy.snapshot()
    assert (snapshot["ignored"], snapshot["failure"], snapshot["success"]) == (1, 0, 0)


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interruption_of_the_body_passes_uncounted(called, clock, interruption):
    policy = timeout(2, "report")
    with pytest.raises(interruption):
        called(policy, Flaky(interruption))()
    snapshot = policy.snapshot()
    assert (snapshot["ignored"], snapshot["failure"], snapshot["success"]) == (0, 0, 0)


def test_a_stop_iteration_passes_like_any_other_error(called, clock):
    with pytest.raises(StopIteration):
        called(timeout(2, "report"), Flaky(StopIteration))()


def test_an_idle_worker_is_used_again(called, clock):
    call = called(timeout(2, "report"), threading.get_ident)
    call()
    for _ in range(30_000):  # until the worker has put itself among the idle
        if workers._idle:
            break
        threading.Event().wait(0.001)
    there = {one.ident for one in threading.enumerate() if one.name == "everkeel-worker"}
    assert call() in there, "no thread was started for the second call"


def test_a_worker_that_was_idle_too_long_ends(called, clock, monkeypatch):
    monkeypatch.setattr(workers, "_IDLE_SECONDS", 0.001)
    monkeypatch.setattr(workers, "_idle", type(workers._idle)())
    thread = called(timeout(2, "report"), threading.current_thread)()
    thread.join(30)
    assert not thread.is_alive()


def test_an_interrupt_while_waiting_leaves_the_call_behind(called, hung, late):
    class Interrupted(VirtualClock):
        def wait(self, event, seconds):
            raise KeyboardInterrupt

    policy = timeout(2, clock=Interrupted())
    with pytest.raises(KeyboardInterrupt):
        called(policy, hung)()
    assert policy.snapshot()["abandoned"] == 1
    hung.release.set()
    late(1)
    assert (current_cancellation(), current_deadline()) == (None, None)


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs signals to threads")
def test_ctrl_c_while_waiting_is_not_put_off_until_the_time_is_up(called):
    if threading.current_thread() is not threading.main_thread():
        pytest.skip("signals arrive in the main thread")
    caller, waits, interrupted, ended = threading.get_ident(), *(threading.Event() for _ in range(3))

    class Noticing(Clock):
        def wait(self, event, seconds):
            waits.set()
            return super().wait(event, seconds)

    def body() -> None:
        waits.wait(30)
        while not interrupted.wait(0.01):  # CPython misses a signal that comes just before it blocks
            signal.pthread_kill(caller, signal.SIGINT)
        ended.set()

    def once(*_: object) -> None:
        if not interrupted.is_set():
            interrupted.set()
            raise KeyboardInterrupt

    policy = timeout(600, clock=Noticing())
    before = signal.signal(signal.SIGINT, once)
    try:
        with pytest.raises(KeyboardInterrupt):
            called(policy, body)()
        assert policy.snapshot()["failure"] == 0
    finally:
        interrupted.set()
        ended.wait(30)
        signal.signal(signal.SIGINT, before)


def test_the_body_can_see_its_time_and_the_deadline(called, clock):
    def body() -> tuple[float, float]:
        return current_cancellation().remaining(), current_deadline().remaining()

    assert called(timeout(2, "report"), body)() == (2.0, 2.0)
    assert (current_cancellation(), current_deadline()) == (None, None)


def test_a_cooperative_body_stops_when_its_caller_has_left(called, clock, late):
    noticed = []

    def body() -> None:
        try:
            everkeel.sleep(60)
        except TimeoutExceededError as error:
            noticed.append(error.policy)
            raise

    policy = timeout(2, "report")
    with pytest.raises(TimeoutExceededError):
        called(policy, body)()
    assert clock.monotonic() == 2.0
    # Whether it ended in the very moment or a little later, it is one expiry.
    assert policy.snapshot()["expired"] == 1
    for _ in range(3000):
        if noticed:
            break
        threading.Event().wait(0.001)
    assert noticed == ["report"]


def test_a_deadline_shortens_it(called, clock, hung, late):
    with deadline(0.5), pytest.raises(TimeoutExceededError) as raised:
        called(timeout(2, "report"), hung)()
    assert raised.value.seconds == 0.5
    assert clock.monotonic() == 0.5
    hung.release.set()
    late(1)


def test_the_earlier_deadline_stays_the_one_that_travels_on(called, clock):
    with deadline(0.5) as outer:
        assert called(timeout(2, "report"), current_deadline)() is outer


@pytest.mark.parametrize(("outer", "inner", "reports"), [(1, 2, "outer"), (2, 1, "inner")])
def test_of_two_the_first_reports(called, clock, hung, outer, inner, reports):
    call = called(timeout(outer, "outer"), called(timeout(inner, "inner"), hung))
    with pytest.raises(TimeoutExceededError) as raised:
        call()
    assert raised.value.policy == reports
    assert clock.monotonic() == 1.0


@pytest.mark.parametrize("inner", ["with policy", "with policy.entry()"])
def test_a_sync_block_that_runs_in_a_worker_is_a_type_error_that_names_the_form(clock, inner):
    policy = timeout(2, "report")
    with pytest.raises(TypeError) as raised:
        with policy if inner == "with policy" else policy.entry():
            pass  # pragma: no cover - never entered
    assert str(raised.value) == (
        "timeout 'report' cannot be a sync block that runs in a worker: use `async with`, a decorated function, "
        'or timeout(..., runs="inline"), which must cooperate'
    )


def test_many_threads_call_at_once(called, clock):
    policy, came, together = timeout(30), [], threading.Barrier(8)
    call = called(policy, lambda number: number * 2)

    def thread(number: int) -> None:
        together.wait()
        came.extend(call(number) for _ in range(20))

    threads = [threading.Thread(target=thread, args=(number,)) for number in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(came) == sorted([number * 2 for number in range(8)] * 20)
    assert policy.snapshot()["success"] == 160


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_nothing_abandoned_and_starts_threads_of_its_own():
    script = textwrap.dedent(
        """
        import os, threading
        from everkeel import TimeoutExceededError, timeout

        policy, go = timeout(0.01, max_abandoned=1), threading.Event()
        timeout(30).call(int)  # leaves an idle worker, which does not survive a fork
        try:
            policy.call(go.wait)
        except TimeoutExceededError:
            pass
        child = os.fork()
        if child == 0:
            try:
                assert policy.snapshot()["abandoned"] == 0
                assert timeout(30).call(str, "answer") == "answer"
                policy.reconfigure(seconds=30)
                assert policy.call(str, "answer") == "answer"
                os._exit(0)
            except BaseException as error:
                print(repr(error), flush=True)
                os._exit(3)
        _, status = os.waitpid(child, 0)
        assert policy.snapshot()["abandoned"] == 1
        go.set()
        raise SystemExit(os.waitstatus_to_exitcode(status))
        """
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", script], capture_output=True, text=True, timeout=50
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
