"""No place is lost, whenever a call is cancelled, closed or timed out."""

from __future__ import annotations

import asyncio
import gc
import threading

import pytest

from everkeel import BulkheadFullError, TimeoutExceededError, bulkhead, timeout
from everkeel.testing import cancel_at_every_await


def test_cancellation_at_every_await_loses_no_place(form, clock, capacity):
    policies = []

    async def body() -> str:
        await asyncio.sleep(1)
        await asyncio.sleep(0)
        return "answer"

    async def press() -> str:
        policy = bulkhead(1, queue=3)
        policies.append(policy)
        others = [asyncio.create_task(policy.acall(asyncio.sleep, 1)) for _ in range(2)]
        await asyncio.sleep(0)
        assert policy.snapshot()["waiting"] == len(others) - 1
        return await form(policy, body)()

    async def check(run: object) -> None:
        await asyncio.sleep(60)
        snapshot = policies[-1].snapshot()
        assert (snapshot["running"], snapshot["waiting"]) == (0, 0)
        assert policies[-1].state.attention is False
        assert capacity(policies[-1]) == 1

    # to begin with, to wait for a place, twice in the body
    assert cancel_at_every_await(press, check) == 4


def test_a_place_granted_to_somebody_who_is_cancelled_in_that_instant_goes_on_to_the_next(form, clock):
    policy, begun, tasks = bulkhead(1, "db", queue=2), [], {}

    async def body(name: str) -> None:
        begun.append(name)
        await asyncio.sleep(1)
        if name == "first":  # our place is granted on as we return; this comes before its new owner can run
            asyncio.get_running_loop().call_soon(tasks["unlucky"].cancel)

    async def main() -> None:
        call = form(policy, body)
        for name in ("first", "unlucky", "lucky"):
            tasks[name] = asyncio.create_task(call(name))
            await asyncio.sleep(0)
        await asyncio.wait(tasks.values())

    clock.run(main)
    assert tasks["unlucky"].cancelled()
    assert begun == ["first", "lucky"]


def test_a_cancelled_waiter_leaves_the_queue_at_once(task_crowd):
    policy = bulkhead(1, "db", queue=2)
    db = task_crowd(policy)
    db.start("a", "b", "c")
    db.cancel("b")
    assert policy.snapshot()["waiting"] == 1
    db.start("d")
    assert "d" not in db.ended, "the queue had room again"
    db.finish("a", "c")
    assert db.begun == ["a", "c", "d"]


def test_everybody_is_cancelled_at_once(task_crowd, capacity):
    policy = bulkhead(2, "db", queue=5)
    db = task_crowd(policy)
    db.start(*range(7))

    async def cancel_all() -> None:
        for task in db.tasks.values():
            task.cancel()
        await asyncio.wait(db.tasks.values())

    db._runner.run(cancel_all())
    assert all(isinstance(end, asyncio.CancelledError) for end in db.ended.values())
    assert policy.snapshot()["waiting"] == 0
    assert capacity(policy) == 2


def test_a_coroutine_closed_in_its_body_gives_its_place_back(form, clock, capacity):
    policy = bulkhead(1, "db")

    async def main() -> None:
        coroutine = form(policy, asyncio.sleep)(1)
        coroutine.send(None)
        assert policy.snapshot()["running"] == 1
        coroutine.close()

    clock.run(main)
    assert capacity(policy) == 1


def test_a_coroutine_closed_in_the_queue_leaves_it(form, clock, capacity):
    policy = bulkhead(1, "db", queue=1)

    async def main() -> None:
        with policy:
            coroutine = form(policy, asyncio.sleep)(1)
            coroutine.send(None)
            assert policy.snapshot()["waiting"] == 1
            coroutine.close()
            assert policy.snapshot()["waiting"] == 0

    clock.run(main)
    assert capacity(policy) == 1


def test_a_coroutine_that_was_never_begun_has_taken_nothing(form, clock, capacity):
    policy = bulkhead(1, "db")
    form(policy, asyncio.sleep)(1).close()
    assert capacity(policy) == 1


# ------------------------------------------------------------------ generators


def test_a_generator_holds_its_place_until_it_has_ended(clock, capacity):
    policy = bulkhead(1, "db")

    @policy
    def rows():
        yield 1
        yield 2

    items = rows()
    assert capacity(policy) == 1
    policy.reconfigure(queue=0)
    assert next(items) == 1
    assert capacity(policy) == 0
    assert list(items) == [2]
    assert capacity(policy) == 1
    assert policy.snapshot()["success"] >= 1


@pytest.mark.parametrize("end", ["close", "throw", "collect"])
def test_a_generator_that_is_left_gives_its_place_back(clock, capacity, end):
    policy = bulkhead(1, "db")

    @policy
    def rows():
        yield 1
        yield 2

    items = rows()
    next(items)
    if end == "close":
        items.close()
    elif end == "throw":
        with pytest.raises(ValueError):
            items.throw(ValueError)
    else:
        del items
        gc.collect()
    assert capacity(policy) == 1


def test_an_async_generator_holds_its_place_until_it_is_closed(clock, capacity):
    policy = bulkhead(1, "db")

    @policy
    async def rows():
        yield 1
        await asyncio.sleep(1)
        yield 2

    async def main() -> None:
        items = rows()
        assert await anext(items) == 1
        assert capacity(policy) == 0
        await items.aclose()
        assert capacity(policy) == 1
        assert [item async for item in rows()] == [1, 2]

    clock.run(main)
    assert capacity(policy) == 1


def test_a_generator_that_finds_no_place_says_so_at_its_first_item(clock):
    policy = bulkhead(1, "db")

    @policy
    def rows():
        yield 1  # pragma: no cover - never begun

    with policy:
        items = rows()
        with pytest.raises(BulkheadFullError):
            next(items)


def test_a_generator_that_fails_gives_its_place_back(clock, capacity):
    policy = bulkhead(1, "db")

    @policy
    def rows():
        yield 1
        raise ValueError("broken off")

    items = rows()
    next(items)
    with pytest.raises(ValueError, match="broken off"):
        next(items)
    assert capacity(policy) == 1


# ------------------------------------------------------------------ under a timeout


def test_a_queued_call_that_times_out_leaves_the_queue_at_once(form, clock, capacity):
    policy = bulkhead(1, "db", queue=1)

    async def main() -> None:
        call = timeout(1, "limit")(form(policy, asyncio.sleep))
        with policy:
            with pytest.raises(TimeoutExceededError):
                await call(0)
            assert clock.monotonic() == 1.0
            assert policy.snapshot()["waiting"] == 0

    clock.run(main)
    assert capacity(policy) == 1


def test_a_running_call_that_times_out_keeps_its_place_until_it_has_really_ended(form, clock, capacity):
    policy, seen = bulkhead(1, "db"), []

    async def tidy() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            seen.append(("cancelled", clock.monotonic(), policy.snapshot()["running"]))
            await asyncio.sleep(5)
            seen.append(("ended", clock.monotonic(), policy.snapshot()["running"]))

    with pytest.raises(TimeoutExceededError):
        clock.run(timeout(1, "limit")(form(policy, tidy))())
    assert seen == [("cancelled", 1.0, 1), ("ended", 6.0, 1)]
    assert capacity(policy) == 1


def test_a_body_left_behind_by_a_detached_timeout_keeps_its_place(form, clock, capacity):
    policy = bulkhead(1, "db")

    async def main() -> None:
        with pytest.raises(TimeoutExceededError):
            await timeout(1, "limit", detached=True)(form(policy, asyncio.sleep))(5)
        assert policy.snapshot()["running"] == 1
        await asyncio.sleep(10)
        assert policy.snapshot()["running"] == 0

    clock.run(main)
    assert capacity(policy) == 1


def test_a_running_call_in_a_worker_keeps_its_place_after_its_caller_has_left(form, clock, capacity, quiet):
    policy, release = bulkhead(1, "db"), threading.Event()
    with pytest.raises(TimeoutExceededError):
        timeout(1, "limit")(form(policy, release.wait))(30)
    assert policy.snapshot()["running"] == 1
    release.set()
    quiet()
    assert capacity(policy) == 1


def test_a_queued_call_in_a_worker_leaves_the_queue_when_its_caller_leaves(form, clock, capacity, quiet):
    policy = bulkhead(1, "db", queue=1)
    with policy:
        with pytest.raises(TimeoutExceededError):
            timeout(1, "limit")(form(policy, print))()
        assert clock.monotonic() == 1.0
        quiet()
        assert policy.snapshot()["waiting"] == 0
    assert capacity(policy) == 1
