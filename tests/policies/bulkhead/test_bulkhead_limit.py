"""So many at once and no more."""

from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import threading

import pytest

from everkeel import BulkheadFullError, RejectedError, bulkhead, events
from everkeel.testing import Flaky


def test_a_call_that_finds_a_place_is_made(form, clock):
    policy = bulkhead(1, "db")
    assert form(policy, Flaky("answer"))("arg", key="word") == "answer"
    assert clock.run(form(policy, Flaky("answer").async_())("arg")) == "answer"
    assert policy.snapshot()["success"] == 2


def test_as_many_run_at_once_as_there_are_places(crowd):
    db = crowd(bulkhead(3, "db"))
    db.start("a", "b", "c", "d")
    assert db.running == ["a", "b", "c"]
    assert isinstance(db.ended["d"], BulkheadFullError)


def test_a_rejected_call_is_never_made(crowd):
    db = crowd(bulkhead(1, "db"))
    db.start("a", "b")
    db.finish("a")
    assert db.begun == ["a"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_a_place_is_free_again_however_the_call_ends(form, clock, capacity, error):
    policy = bulkhead(1, "db")
    with pytest.raises(error):
        form(policy, Flaky(error))()
    assert capacity(policy) == 1


def test_a_cancelled_call_gives_its_place_back(task_crowd, capacity):
    policy = bulkhead(1, "db")
    db = task_crowd(policy)
    db.start("a")
    db.cancel("a")
    assert isinstance(db.ended["a"], asyncio.CancelledError)
    assert capacity(policy) == 1


def test_an_exception_passes_as_the_very_object_without_a_context(form, clock):
    error = ValueError("no such row")
    with pytest.raises(ValueError) as raised:
        form(bulkhead(1, "db"), Flaky(error))()
    assert raised.value is error
    assert error.__context__ is None


def test_the_rejection_says_who_and_how_many(crowd):
    db = crowd(bulkhead(2, "db", queue=1))
    db.start("a", "b", "c", "d")
    error = db.ended["d"]
    assert isinstance(error, RejectedError)
    assert (error.policy, error.running, error.waiting, error.retry_after) == ("db", 2, 1, None)
    assert str(error) == "bulkhead 'db' is full (2 running, 1 waiting)"


@pytest.mark.parametrize("duplicate", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_the_rejection_survives_copying_and_pickling(duplicate):
    again = duplicate(BulkheadFullError("db", None, 2, 1))
    assert (again.policy, again.running, again.waiting) == ("db", 2, 1)


def test_the_snapshot_tells_what_happened_and_what_is_going_on(crowd):
    policy = bulkhead(1, "db", queue=1)
    db = crowd(policy)
    db.start("a")
    db.finish("a")
    db.start("b", "c", "d")
    assert policy.snapshot() == {
        "name": "db",
        "type": "bulkhead",
        "mode": "enforce",
        "success": 1,
        "failure": 0,
        "ignored": 0,
        "rejected": 1,
        "would": {},
        "running": 1,
        "waiting": 1,
        "limit": 1,
        "queued": 1,
        "waited": 0.0,
    }


def test_the_events_tell_of_waiting_and_rejection(crowd, heard):
    db = crowd(bulkhead(1, "db", queue=1))
    db.start("a", "b", "c")
    assert heard.of(events.CallQueued, events.CallRejected) == [
        events.CallQueued(policy="db", policy_type="bulkhead", waiting=1, key=None),
        events.CallRejected(policy="db", policy_type="bulkhead", error=db.ended["c"], key=None),
    ]


def test_a_rejection_is_told_once_and_not_as_a_failure(crowd, heard):
    db = crowd(bulkhead(1, "db"))
    db.start("a", "b")
    assert heard.names() == ["PolicyAdded", "CallRejected"]


def test_a_call_inside_a_call_needs_a_place_of_its_own(form, clock):
    policy = bulkhead(1, "db")
    inner = form(policy, Flaky("answer"))
    with pytest.raises(BulkheadFullError):
        form(policy, lambda: inner())()


def test_blocks_may_be_nested_while_there_are_places(clock, capacity):
    policy = bulkhead(2, "db")
    with policy:
        with policy:
            assert capacity(policy) == 0
        assert capacity(policy) == 1
    assert capacity(policy) == 2


def test_a_block_reports_its_result(clock):
    policy = bulkhead(1, "db")
    with policy.entry() as entry:
        assert entry.result("answer") == "answer"
    assert policy.snapshot()["success"] == 1


def test_a_lock_held_during_the_call_would_serialise_all_threads(form):
    # pybreaker holds one: these four would never meet.
    together = threading.Barrier(4)
    call = form(bulkhead(4), lambda: together.wait(30))
    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not together.broken


def test_an_async_def_is_not_silently_unprotected(form, clock):
    # pybreaker: the call ends when the coroutine has been made, and nothing is guarded.
    policy = bulkhead(1, "db")

    async def main() -> list[object]:
        call = form(policy, asyncio.sleep)
        return await asyncio.gather(call(1), call(1), return_exceptions=True)

    assert [type(result) for result in clock.run(main)] == [type(None), BulkheadFullError]


def test_a_coroutine_function_under_call_is_refused(clock, capacity):
    policy = bulkhead(1, "db")
    with pytest.raises(TypeError, match="bulkhead 'db': call\\(\\) got a coroutine function"):
        policy.call(asyncio.sleep, 1)
    assert capacity(policy) == 1


def test_threads_and_event_loops_share_one_limit(form, capacity):
    policy = bulkhead(3, queue=1000)
    lock, together, now, peak, done = threading.Lock(), threading.Barrier(7), [0], [0], [0]

    def come(number: int) -> None:
        with lock:
            now[0] += number
            peak[0] = max(peak[0], now[0])
            done[0] += number < 0

    def work() -> None:
        come(+1)
        threading.Event().wait(0.0002)
        come(-1)

    async def awork() -> None:
        come(+1)
        await asyncio.sleep(0.0002)
        come(-1)

    def thread() -> None:
        call = form(policy, work)
        together.wait(30)
        for _ in range(15):
            call()

    def loop() -> None:
        async def main() -> None:
            call = form(policy, awork)
            together.wait(30)
            await asyncio.gather(*(call() for _ in range(30)))

        asyncio.run(main())

    threads = [threading.Thread(target=target) for target in [thread] * 4 + [loop] * 3]
    for one in threads:
        one.start()
    for one in threads:
        one.join(30)
    assert done == [4 * 15 + 3 * 30]
    assert peak[0] <= 3
    snapshot = policy.snapshot()
    assert (snapshot["running"], snapshot["waiting"], snapshot["success"]) == (0, 0, 150)
    assert capacity(policy) == 3


@pytest.mark.parametrize(("queue", "number"), [(0, 2_000), (1, 2_000), pytest.param(0, 10**6, marks=pytest.mark.slow)])
def test_rejections_leave_nothing_behind(clock, queue, number):
    policy = bulkhead(1, "db", queue=queue, max_wait=0)
    call = policy(Flaky("never"))

    def reject(times: int) -> None:
        for _ in range(times):
            try:
                call()
            except BulkheadFullError:
                pass

    with policy:
        reject(100)  # what is made once is made now
        gc.collect()
        before = len(gc.get_objects())
        reject(number)
        gc.collect()
        assert len(gc.get_objects()) - before < 50
    assert policy.snapshot()["rejected"] == number + 100
    assert call() == "never"
