"""Sync calls: attempts in worker threads. Losers are asked to stop and counted until they do."""

from __future__ import annotations

import contextvars
import threading

import pytest

from everkeel import ConfigError, TimeoutExceededError, current_cancellation, deadline, hedge, sleep
from everkeel.testing import assert_state

REQUEST = contextvars.ContextVar("REQUEST", default="none")


def until(condition, what: str) -> None:
    for _ in range(10_000):
        if condition():
            return
        threading.Event().wait(0.001)
    pytest.fail(what)


def test_a_losing_thread_is_asked_to_stop(clock, service):
    policy, backend = hedge("lookup", delay=1), service(60, 1)
    assert policy.call(backend.call) == 2
    until(lambda: backend.cancelled == [1], "the loser was not asked to stop")
    until(lambda: policy.snapshot()["abandoned"] == 0, "the loser is still counted")


def test_a_loser_that_does_not_cooperate_is_counted_until_it_ends(clock):
    release, calls = threading.Event(), []
    policy = hedge("lookup", delay=0.01, clock=None)

    def stubborn() -> str:
        calls.append(1)
        if len(calls) == 1:
            release.wait()
        return "answer"

    assert policy.call(stubborn) == "answer"
    assert policy.snapshot()["abandoned"] == 1
    release.set()
    until(lambda: policy.snapshot()["abandoned"] == 0, "the loser is still counted")
    assert_state(policy, disposed=1)


def test_with_too_many_left_behind_no_second_attempt_starts(clock):
    release, began = threading.Event(), []
    policy = hedge("lookup", delay=0.01, max_abandoned=1, budget=None)

    def first_hangs() -> int:
        began.append(1)
        if len(began) == 1:
            release.wait()
        return len(began)

    assert policy.call(first_hangs) == 2
    try:
        assert policy.call(lambda: sleep(1) or "alone") == "alone"
        assert policy.snapshot()["started"] == 1
    finally:
        release.set()


def test_the_result_of_a_loser_is_disposed_of_in_its_thread(clock):
    release, disposed, calls = threading.Event(), [], []

    def body() -> int:
        calls.append(1)
        number = len(calls)
        if number == 1:
            release.wait()
        return number

    policy = hedge("lookup", delay=0.01, dispose=disposed.append)
    assert policy.call(body) == 2
    release.set()
    until(lambda: disposed == [1], "the loser's result was not disposed of")


def test_a_losers_error_is_nobodys_business(clock):
    release, calls = threading.Event(), []

    def body() -> int:
        calls.append(1)
        if len(calls) == 1:
            release.wait()
            raise ValueError("too late")
        return 2

    policy = hedge("lookup", delay=0.01)
    assert policy.call(body) == 2
    release.set()
    until(lambda: policy.snapshot()["abandoned"] == 0, "the loser is still counted")
    assert_state(policy, disposed=0, failure=0, success=1)


def test_an_interrupt_while_waiting_leaves_nothing_uncounted(clock, monkeypatch):
    release = threading.Event()
    policy = hedge("lookup", delay=1)

    def interrupted(event, seconds):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(clock, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            policy.call(release.wait)
    assert policy.snapshot()["abandoned"] == 1
    release.set()
    until(lambda: policy.snapshot()["abandoned"] == 0, "the loser is still counted")


def test_every_attempt_has_the_context_of_the_caller(clock):
    seen = []

    def body() -> None:
        seen.append(REQUEST.get())
        REQUEST.set("dirty")
        if len(seen) == 1:
            sleep(60)

    REQUEST.set("mine")
    hedge("lookup", delay=1).call(body)
    assert seen == ["mine", "mine"]
    REQUEST.set("none")


def test_an_attempt_sees_the_deadline_of_its_caller(clock):
    def body() -> None:
        current_cancellation().check()
        sleep(60)

    with deadline(2), pytest.raises(TimeoutExceededError, match="no answer within 2 s"):
        hedge("lookup", delay=5).call(body)
    assert clock.monotonic() == 2.0


def test_a_failure_with_no_other_allowed_does_not_wait_for_ever(clock, service):
    from everkeel import RetryBudget

    policy = hedge("lookup", delay=1, budget=RetryBudget(ratio=0, floor=0))
    with pytest.raises(OSError):
        policy.call(service(5, outcomes={1: OSError()}).call)


def test_an_async_disposal_hook_is_refused_for_sync_functions(clock):
    async def give_back(result: object) -> None: ...

    policy = hedge("lookup", dispose=give_back)
    with pytest.raises(ConfigError) as raised:
        policy(lambda: None)
    assert str(raised.value).startswith("hedge 'lookup': dispose must be a plain function to guard a sync one (got <")
    with pytest.raises(ConfigError):
        policy.call(lambda: None)


def test_a_thread_that_cannot_be_started_is_not_counted(clock, monkeypatch):
    def refused(job):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("everkeel.policies.hedge.threads.start", refused)
    policy = hedge("lookup")
    with pytest.raises(RuntimeError, match="can't start"):
        policy.call(lambda: None)
    assert policy.snapshot()["abandoned"] == 0


def test_many_threads_share_one_hedge():
    policy, together = hedge(delay=30, budget=None), threading.Barrier(8)

    def work() -> None:
        together.wait()
        for i in range(50):
            assert policy.call(lambda i=i: i) == i

    threads = [threading.Thread(target=work) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert_state(policy, success=400, started=0, abandoned=0)
