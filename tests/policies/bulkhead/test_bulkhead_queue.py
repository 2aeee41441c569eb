"""Those who wait for a place."""

from __future__ import annotations

import asyncio
import threading

import pytest

from everkeel import BulkheadFullError, bulkhead, deadline
from everkeel.testing import Flaky


def test_who_finds_no_place_waits_for_one(crowd):
    db = crowd(bulkhead(1, "db", queue=1))
    db.start("a", "b")
    assert (db.running, db.ended) == (["a"], {})
    db.finish("a")
    assert db.running == ["b"]


def test_the_oldest_waiter_is_first(crowd):
    db = crowd(bulkhead(1, "db", queue=3))
    db.start("a", "b", "c", "d")
    db.finish("a", "b", "c", "d")
    assert db.begun == ["a", "b", "c", "d"]


def test_or_the_newest_if_asked_for(crowd):
    db = crowd(bulkhead(1, "db", queue=3, order="newest"))
    db.start("a", "b", "c", "d")
    db.finish("a", "d", "c", "b")
    assert db.begun == ["a", "d", "c", "b"]


def test_the_order_may_change_while_they_wait(crowd):
    policy = bulkhead(1, "db", queue=3)
    db = crowd(policy)
    db.start("a", "b", "c", "d")
    db.finish("a")
    policy.reconfigure(order="newest")
    db.finish("b", "d", "c")
    assert db.begun == ["a", "b", "d", "c"]


def test_a_full_queue_turns_away(crowd):
    db = crowd(bulkhead(1, "db", queue=2))
    db.start("a", "b", "c", "d")
    assert isinstance(db.ended["d"], BulkheadFullError)
    db.finish("a")
    db.start("e")
    assert db.running == ["b"]
    assert "e" not in db.ended


def test_a_failed_call_lets_the_next_one_in_too(crowd):
    db = crowd(bulkhead(1, "db", queue=1))
    db.start("a", "b")
    db.finish("a", error=ValueError("no"))
    assert db.running == ["b"]


def test_whoever_comes_later_does_not_overtake(task_crowd):
    policy = bulkhead(1, "db", queue=2)
    db = task_crowd(policy)
    db.start("a", "b")

    async def end_and_come() -> None:
        db._gates["a"].set_result("a")
        for _ in range(10):
            await asyncio.sleep(0)
            db.tasks[len(db.tasks)] = asyncio.create_task(db._one(len(db.tasks)))

    db._runner.run(end_and_come())
    assert db.begun[:2] == ["a", "b"]


def test_no_queue_by_default(crowd):
    db = crowd(bulkhead(1, "db"))
    db.start("a", "b")
    assert isinstance(db.ended["b"], BulkheadFullError)


# ------------------------------------------------------------------ how long


def test_a_wait_that_is_too_long_ends_in_a_rejection_async(task_crowd, clock):
    policy = bulkhead(1, "db", queue=1, max_wait=2)
    db = task_crowd(policy)
    db.start("a", "b")
    db.pass_time(1.9)
    assert db.ended == {}
    db.pass_time(0.1)
    assert isinstance(db.ended["b"], BulkheadFullError)
    assert (policy.snapshot()["waiting"], policy.snapshot()["rejected"]) == (0, 1)


def test_a_wait_that_is_too_long_ends_in_a_rejection_sync(form, clock):
    policy = bulkhead(1, "db", queue=1, max_wait=2)
    with policy, pytest.raises(BulkheadFullError):
        form(policy, Flaky("never"))()
    assert clock.monotonic() == 2.0
    assert policy.snapshot()["waiting"] == 0


def test_a_place_in_time_is_taken_and_the_wait_is_counted(task_crowd, clock):
    policy = bulkhead(1, "db", queue=1, max_wait=2)
    db = task_crowd(policy)
    db.start("a", "b")
    db.pass_time(1.5)
    db.finish("a")
    db.pass_time(10)
    assert db.running == ["b"]
    assert policy.snapshot()["waited"] == 1.5


def test_a_wait_in_vain_is_counted_too(form, clock):
    policy = bulkhead(1, "db", queue=1, max_wait=2)
    with policy, pytest.raises(BulkheadFullError):
        form(policy, Flaky("never"))()
    assert policy.snapshot()["waited"] == 2.0


def test_no_patience_at_all_is_a_rejection_at_once(form, clock):
    policy = bulkhead(1, "db", queue=5, max_wait=0)
    with policy:
        with pytest.raises(BulkheadFullError):
            form(policy, Flaky("never"))()
        with pytest.raises(BulkheadFullError):
            clock.run(form(policy, asyncio.sleep)(0))
    assert clock.monotonic() == 0.0


def test_a_place_granted_in_the_very_moment_in_which_patience_ends_is_kept(task_crowd, clock, capacity):
    policy = bulkhead(1, "db", queue=1, max_wait=2)
    db = task_crowd(policy)

    async def both_at_once() -> None:
        asyncio.get_running_loop().call_later(2, lambda: db._gates["a"].set_result("a"))
        await asyncio.sleep(5)

    db.start("a")
    db._runner.run(asyncio.sleep(0))
    db.start("b")
    db._runner.run(both_at_once())
    if "b" not in db.ended:
        db.finish("b")
    assert capacity(policy) == 1


def test_a_deadline_bounds_the_wait_async(form, clock):
    policy = bulkhead(1, "db", queue=1, max_wait=60)

    async def main() -> None:
        with deadline(3):
            await form(policy, asyncio.sleep)(0)

    with policy, pytest.raises(BulkheadFullError):
        clock.run(main)
    assert clock.monotonic() == 3.0
    assert policy.snapshot()["waiting"] == 0


def test_a_deadline_bounds_the_wait_sync(form, clock):
    policy = bulkhead(1, "db", queue=1)
    with policy, deadline(3), pytest.raises(BulkheadFullError):
        form(policy, Flaky("never"))()
    assert clock.monotonic() == 3.0


def test_under_a_deadline_that_has_passed_nobody_waits(form, clock):
    policy = bulkhead(1, "db", queue=1)
    with policy, deadline(1):
        clock.sleep(2)
        with pytest.raises(BulkheadFullError):
            form(policy, Flaky("never"))()
    assert clock.monotonic() == 2.0


def test_a_free_place_is_taken_whatever_the_deadline(form, clock):
    with deadline(1):
        clock.sleep(2)
        assert form(bulkhead(1, "db"), Flaky("answer"))() == "answer"


# ------------------------------------------------------------------ threads and tasks in one queue


def wait_for(condition) -> None:
    for _ in range(30_000):
        if condition():
            return
        threading.Event().wait(0.001)
    raise AssertionError("it does not come to that")


@pytest.mark.parametrize("order", ["oldest", "newest"])
def test_threads_and_tasks_wait_in_one_queue(form, order, capacity):
    policy, begun = bulkhead(1, queue=6, order=order), []

    async def abody(name: str) -> None:
        begun.append(name)

    call, acall = form(policy, begun.append), form(policy, abody)
    threads = []
    with policy:
        for number in range(6):
            name = f"{'thread' if number % 2 else 'task'} {number}"
            target = (lambda name: call(name)) if number % 2 else (lambda name: asyncio.run(acall(name)))
            threads.append(threading.Thread(target=target, args=(name,)))
            threads[-1].start()
            wait_for(lambda expected=number + 1: policy.snapshot()["waiting"] == expected)
    for thread in threads:
        thread.join(30)
    numbers = [int(name[-1]) for name in begun]
    assert numbers == (list(range(6)) if order == "oldest" else list(range(5, -1, -1)))
    assert capacity(policy) == 1


def test_a_waiter_whose_loop_closes_in_the_moment_of_granting_harms_nobody(form, capacity):
    policy = bulkhead(1, queue=1)
    waits, go = threading.Event(), threading.Event()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.create_task(form(policy, asyncio.sleep)(0))
        await asyncio.sleep(0)

        def closed_by_now(*args: object) -> None:
            loop.is_closed = lambda: True  # type: ignore[method-assign]
            raise RuntimeError("Event loop is closed")

        loop.call_soon_threadsafe = closed_by_now  # type: ignore[assignment, method-assign]
        waits.set()
        while not go.is_set():  # noqa: ASYNC110 - the way back into this loop is the one that is broken
            await asyncio.sleep(0)
        del loop.call_soon_threadsafe, loop.is_closed
        task.cancel()
        await asyncio.wait([task])

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    try:
        with policy:
            thread.start()
            assert waits.wait(30)
    finally:
        go.set()
        thread.join(30)
    assert capacity(policy) == 1


def test_a_waiter_whose_loop_is_gone_gives_its_place_back_when_it_is_closed(form, clock, capacity):
    policy = bulkhead(1, "db", queue=1)
    coroutine = form(policy, asyncio.sleep)(0)

    async def main() -> None:
        coroutine.send(None)  # it waits, and its loop will end without it

    with policy:
        clock.run(main)
    assert policy.snapshot()["waiting"] == 0  # it was granted what nobody can tell it of
    coroutine.close()
    assert capacity(policy) == 1
