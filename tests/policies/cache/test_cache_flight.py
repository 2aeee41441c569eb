"""One load for everybody who asks at the same time, and none of them harmed by another."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from everkeel import TimeoutExceededError, cache, deadline, pipeline, timeout
from everkeel.policies.cache.flight import LEADING
from everkeel.testing import Flaky, cancel_at_every_await


def until(condition: Callable[[], bool]) -> None:
    """Let other threads get somewhere."""
    while not condition():
        time.sleep(0.001)


async def auntil(condition: Callable[[], bool]) -> None:
    """Let other threads and tasks get somewhere."""
    while not condition():  # noqa: ASYNC110 - what is waited for happens in another thread
        await asyncio.sleep(0.001)


def waiting(policy) -> int:
    """How many wait for a load, the one whose call it is included in a coroutine."""
    return sum(len(flight.waiters) for flight in list(policy.shelf.flights.under_way.values()))


def nothing_left(policy) -> None:
    assert policy.shelf.flights.under_way == {}
    assert LEADING.get() == ()


# ------------------------------------------------------------------ threads


def test_fifty_threads_make_one_load(threaded):
    policy, loads = cache(60, "c"), []

    def load(x: int) -> object:
        until(lambda: waiting(policy) == 50)  # the leader's own waiter, and the others
        loads.append(x)
        return object()

    call = threaded.guarded(policy, load)
    with ThreadPoolExecutor(50) as pool:
        answers = set(pool.map(call, [1] * 50))
    assert (len(loads), len(answers)) == (1, 1)
    assert (policy.snapshot()["misses"], policy.snapshot()["coalesced"], policy.snapshot()["success"]) == (1, 49, 50)
    nothing_left(policy)


def test_threads_that_ask_for_other_things_do_not_wait_for_each_other(threaded):
    both = threading.Barrier(2)
    policy = cache(60, "c")

    def load(x: int) -> int:
        both.wait(10)
        return x

    call = threaded.guarded(policy, load)
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(call, [1, 2])) == [1, 2]


def test_when_a_threads_load_fails_the_next_one_tries(threaded):
    policy, loads = cache(60, "c"), []

    def load() -> str:
        loads.append(threading.get_ident())
        if len(loads) == 1:
            until(lambda: waiting(policy) == 5)
            raise ConnectionError("the first one")
        return "answer"

    call = threaded.guarded(policy, load)
    with ThreadPoolExecutor(5) as pool:
        futures = [pool.submit(call) for _ in range(5)]
    errors = [future.exception() for future in futures]
    assert [str(error) for error in errors if error] == ["the first one"]
    assert [future.result() for future in futures if not future.exception()] == ["answer"] * 4
    assert len(loads) == 2
    nothing_left(policy)


def test_an_interrupted_load_lets_the_next_one_try(threaded):
    policy, loads = cache(60, "c"), []

    def load() -> str:
        loads.append(1)
        if len(loads) == 1:
            until(lambda: waiting(policy) == 2)
            raise KeyboardInterrupt
        return "answer"

    call = threaded.guarded(policy, load)
    outcomes = []

    def run() -> None:
        try:
            outcomes.append(call())
        except KeyboardInterrupt:
            outcomes.append("interrupted")

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["answer", "interrupted"]
    nothing_left(policy)


def test_a_threads_deadline_ends_its_wait_and_not_the_work(threaded):
    policy, gone = cache(60, "c"), threading.Event()

    def load() -> str:
        gone.wait(10)
        return "answer"

    call = threaded.guarded(policy, load)
    with ThreadPoolExecutor(1) as pool:
        leader = pool.submit(call)
        until(lambda: waiting(policy) == 1)
        with deadline(0.5), pytest.raises(TimeoutExceededError, match=r"deadline: no answer within 0.5 s"):
            call()
        gone.set()
        assert leader.result() == "answer"
    assert call() == "answer"
    nothing_left(policy)


def test_a_load_that_asks_for_its_own_answer_does_not_wait_for_itself(threaded):
    policy, depth = cache(60, "c"), []

    def load() -> str:
        depth.append(1)
        return "answer" if len(depth) == 3 else call()

    call = threaded.guarded(policy, load)
    assert call() == "answer"
    nothing_left(policy)


def test_a_load_that_asks_from_another_thread_of_its_own_does_not_wait_for_itself(clock):
    policy, depth = cache(60, "c"), []

    @pipeline(policy, timeout(5))  # which runs it in a worker
    def load() -> str:
        depth.append(1)
        return "answer" if len(depth) == 3 else load()

    assert load() == "answer"


def test_without_single_flight_everybody_loads(threaded):
    policy, all_in = cache(60, "c", single_flight=False), threading.Barrier(3)

    def load() -> None:
        all_in.wait(10)

    call = threaded.guarded(policy, load)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: call(), range(3)))
    assert policy.snapshot()["misses"] == 3
    call()
    assert policy.snapshot()["hits"] == 1


# ------------------------------------------------------------------ tasks


def slow(policy, awaited, seconds: float = 1.0):
    """A guarded coroutine function that takes a while, and the list of its loads."""
    loads: list[str] = []

    async def load(x: object = None) -> object:
        loads.append("began")
        try:
            await asyncio.sleep(seconds)
        except asyncio.CancelledError:
            loads.append("cancelled")
            raise
        return ("answer", len(loads))

    return awaited.guarded(policy, load), loads


def test_fifty_tasks_make_one_load(awaited, clock):
    policy = cache(60, "c")
    call, loads = slow(policy, awaited)

    async def main() -> None:
        answers = await asyncio.gather(*(call(1) for _ in range(50)))
        assert set(answers) == {("answer", 1)}
        assert clock.monotonic() == 1.0
        assert len(asyncio.all_tasks()) == 1

    clock.run(main)
    assert loads == ["began"]
    assert (policy.snapshot()["misses"], policy.snapshot()["coalesced"]) == (1, 49)
    nothing_left(policy)


@pytest.mark.parametrize("which", range(5))
def test_one_cancelled_task_of_five_harms_no_other(awaited, clock, which):
    policy = cache(60, "c")
    call, loads = slow(policy, awaited)

    async def main() -> None:
        tasks = [asyncio.create_task(call(1)) for _ in range(5)]
        await asyncio.sleep(0.5)
        tasks[which].cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes].count(asyncio.CancelledError) == 1
        assert outcomes.count(("answer", 1)) == 4
        assert clock.monotonic() == 1.0, "the work goes on; nobody begins anew"

    clock.run(main)
    assert loads == ["began"]
    nothing_left(policy)


def test_when_all_are_cancelled_the_load_is_too_and_the_last_one_waits_for_its_end(awaited, clock):
    policy = cache(60, "c")
    loads = []

    async def load() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            await asyncio.sleep(1)
            loads.append("cleaned up")

    call = awaited.guarded(policy, load)

    async def main() -> None:
        tasks = [asyncio.create_task(call()) for _ in range(3)]
        await asyncio.sleep(0.5)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert loads == ["cleaned up"]
        assert len(asyncio.all_tasks()) == 1
        assert all(task.cancelled() for task in tasks)

    clock.run(main)
    assert policy.snapshot()["size"] == 0
    nothing_left(policy)


def test_whoever_asks_while_an_unwanted_load_is_ending_begins_anew(awaited, clock):
    policy, loads = cache(60, "c"), []

    async def load() -> str:
        loads.append(1)
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            await asyncio.sleep(1)
            raise
        return "answer"

    call = awaited.guarded(policy, load)

    async def main() -> None:
        task = asyncio.create_task(call())
        await asyncio.sleep(0.5)
        task.cancel()
        await asyncio.sleep(0.1)
        assert await call() == "answer"
        assert clock.monotonic() == 1.6

    clock.run(main)
    assert len(loads) == 2
    nothing_left(policy)


def test_when_a_tasks_load_fails_the_next_one_tries_and_nobody_else_gets_its_error(awaited, clock):
    policy, loads = cache(60, "c"), []

    async def load() -> str:
        loads.append(1)
        await asyncio.sleep(1)
        if len(loads) < 3:
            raise ConnectionError(f"load {len(loads)}")
        return "answer"

    call = awaited.guarded(policy, load)

    async def main() -> None:
        outcomes = await asyncio.gather(*(call() for _ in range(6)), return_exceptions=True)
        assert sorted(str(outcome) for outcome in outcomes) == ["answer"] * 4 + ["load 1", "load 2"]
        assert clock.monotonic() == 3.0

    clock.run(main)
    assert policy.snapshot()["failure"] == 2
    nothing_left(policy)


def test_the_error_of_a_load_whose_caller_is_gone_goes_to_nobody(awaited, clock):
    policy, loads = cache(60, "c"), []

    async def load() -> str:
        loads.append(1)
        await asyncio.sleep(1)
        if len(loads) == 1:
            raise ConnectionError
        return "answer"

    call = awaited.guarded(policy, load)

    async def main() -> None:
        leader, follower = asyncio.create_task(call()), asyncio.create_task(call())
        await asyncio.sleep(0.5)
        leader.cancel()
        assert await follower == "answer"
        assert len(asyncio.all_tasks()) <= 2

    clock.run(main)
    nothing_left(policy)


def test_a_tasks_deadline_ends_its_wait_and_not_the_work(awaited, clock):
    policy = cache(60, "c")
    call, _ = slow(policy, awaited)

    async def main() -> None:
        leader = asyncio.create_task(call(1))
        await asyncio.sleep(0)
        async with deadline(0.5):
            with pytest.raises(TimeoutExceededError, match=r"deadline: no answer within 0.5 s"):
                await call(1)
        assert clock.monotonic() == 0.5
        assert await leader == ("answer", 1)

    clock.run(main)
    nothing_left(policy)


def test_a_tasks_timeout_ends_its_wait_and_not_the_work(awaited, clock):
    policy = cache(60, "c")
    call, loads = slow(policy, awaited)

    async def main() -> None:
        leader = asyncio.create_task(call(1))
        await asyncio.sleep(0)
        with pytest.raises(TimeoutExceededError):
            await timeout(0.5).acall(call, 1)
        assert await leader == ("answer", 1)

    clock.run(main)
    assert loads == ["began"]


def test_a_coroutine_that_asks_for_its_own_answer_does_not_wait_for_itself(awaited, clock):
    policy, depth = cache(60, "c"), []

    async def load() -> str:
        depth.append(1)
        if len(depth) == 3:
            return "answer"
        return await asyncio.create_task(call()) if len(depth) == 2 else await call()

    call = awaited.guarded(policy, load)
    assert clock.run(call()) == "answer"
    nothing_left(policy)


def test_a_load_that_cancels_itself_cancels_its_own_caller_alone(awaited, clock):
    policy, loads = cache(60, "c"), []

    async def load() -> str:
        loads.append(1)
        await asyncio.sleep(1)
        if len(loads) == 1:
            raise asyncio.CancelledError
        return "answer"

    call = awaited.guarded(policy, load)

    async def main() -> None:
        outcomes = await asyncio.gather(*(asyncio.create_task(call()) for _ in range(3)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [asyncio.CancelledError, str, str]

    clock.run(main)
    nothing_left(policy)


def test_without_single_flight_every_task_loads(awaited, clock):
    policy = cache(60, "c", single_flight=False)
    call, loads = slow(policy, awaited)

    async def main() -> None:
        await asyncio.gather(*(call(1) for _ in range(3)))

    clock.run(main)
    assert loads == ["began"] * 3


@pytest.mark.parametrize("others", [0, 2])
def test_no_task_or_waiter_is_left_wherever_a_call_is_cancelled(awaited, others):
    made = []

    async def make() -> object:
        policy = cache(60, "c", replace=True, stale_for=10)
        call, loads = slow(policy, awaited)
        made.append((policy, call, loads, [asyncio.create_task(call(1)) for _ in range(others)]))
        await asyncio.sleep(0)
        return await call(1)

    async def check(outcome) -> None:
        policy, call, loads, tasks = made[-1]
        assert outcome.cancelled or outcome.number is None
        assert await asyncio.gather(*tasks) == [("answer", 1)] * others
        assert waiting(policy) == 0
        nothing_left(policy)
        assert await call(1) is not None
        assert len(asyncio.all_tasks()) == 1
        if others:
            assert loads == ["began"]

    assert cancel_at_every_await(make, check) == 2


# ------------------------------------------------------------------ threads and tasks of several event loops


def test_threads_and_tasks_of_several_loops_make_one_load(clock):
    loops, tasks, threads = 3, 5, 5
    policy, loads = cache(60, "c", key=lambda: "one"), []
    everybody = loops * tasks + threads

    def load() -> object:
        loads.append(1)
        until(lambda: waiting(policy) == everybody)
        return object()

    async def aload() -> object:
        loads.append(1)
        await auntil(lambda: waiting(policy) == everybody)
        return object()

    call, acall = policy(load), policy(aload)

    async def gather() -> list[object]:
        return await asyncio.gather(*(acall() for _ in range(tasks)))

    with ThreadPoolExecutor(loops + threads) as pool:
        futures = [pool.submit(lambda: asyncio.run(gather())) for _ in range(loops)]
        futures += [pool.submit(lambda: [call()]) for _ in range(threads)]
        answers = {answer for future in futures for answer in future.result()}
    assert (len(loads), len(answers)) == (1, 1)
    nothing_left(policy)


def test_the_last_one_to_leave_cancels_a_load_on_another_loop(clock):
    policy, ended, began, both_wait = cache(60, "c"), threading.Event(), threading.Event(), threading.Event()

    @policy
    async def load() -> None:
        began.set()
        try:
            await asyncio.sleep(30)
        finally:
            ended.set()

    async def lead() -> None:
        task = asyncio.create_task(load())
        await auntil(both_wait.is_set)
        task.cancel()
        await auntil(ended.is_set)

    async def follow() -> None:
        task = asyncio.create_task(load())
        await auntil(lambda: waiting(policy) == 2)
        both_wait.set()
        await auntil(lambda: waiting(policy) == 1)
        task.cancel()
        await asyncio.wait([task])

    with ThreadPoolExecutor(2) as pool:
        leader = pool.submit(asyncio.run, lead())
        began.wait(10)
        follower = pool.submit(asyncio.run, follow())
        leader.result(20)
        follower.result(20)
    nothing_left(policy)


def test_a_load_on_a_loop_that_was_closed_is_not_waited_for(clock):
    policy = cache(60, "c", key=lambda: "one")

    @policy
    async def load() -> str:
        await asyncio.sleep(3600)
        return "never"

    @policy
    def now() -> str:
        return "answer"

    loop = asyncio.new_event_loop()
    task = loop.create_task(load())
    loop.call_soon(loop.stop)
    loop.run_forever()
    loop.call_soon(loop.stop)
    loop.run_forever()
    (flight,) = policy.shelf.flights.under_way.values()
    loop._ready.clear()
    loop.close()
    assert now() == "answer"
    for left in (flight.task, task):
        left._log_destroy_pending = False
        left.get_coro().close()
    nothing_left(policy)


def test_a_sync_call_does_not_block_the_loop_that_it_would_wait_for(clock):
    policy = cache(60, "c", key=lambda: "one")

    @policy
    async def load() -> str:
        await asyncio.sleep(1)
        return "async"

    @policy
    def now() -> str:
        return "sync"

    async def main() -> None:
        task = asyncio.create_task(load())
        await asyncio.sleep(0.5)
        assert now() == "sync"
        assert await task == "async"

    clock.run(main)


@pytest.mark.parametrize("failed", [False, True])
def test_whoever_finds_that_another_was_just_faster_does_not_load_again(guarded, failed):
    class Late:
        """Answers a first look with nothing, as if another load had stored its answer right after it."""

        def __init__(self) -> None:
            self.inner, self.looks = {}, 0

        def get(self, key, /):
            self.looks += 1
            return None if self.looks == 3 else self.inner.get(key)

        def set(self, key, entry, /):
            self.inner[key] = entry

        def delete(self, key, /):
            return self.inner.pop(key, None) is not None

        def clear(self):
            self.inner.clear()

    policy = cache(60, "c", store=Late(), negative_ttl=60)
    load = Flaky(ConnectionError if failed else "answer", "another")
    call = guarded(policy, load)
    for _ in range(2):  # looks 1 and 2, of which the second is the one after boarding; then 3 and 4
        if failed:
            with pytest.raises(ConnectionError):
                call(1)
            policy.shelf.store.store.looks = 2
        else:
            assert call(1) == "answer"
    assert load.calls == 1
    nothing_left(policy)


def test_a_load_whose_last_caller_runs_out_of_time_is_cancelled(awaited, clock):
    policy = cache(60, "c")
    call, loads = slow(policy, awaited)

    async def main() -> None:
        leader = asyncio.create_task(call(1))
        await asyncio.sleep(0)

        async def follow() -> None:
            async with deadline(0.5):
                with pytest.raises(TimeoutExceededError):
                    await call(1)

        follower = asyncio.create_task(follow())
        await asyncio.sleep(0.1)
        leader.cancel()
        await follower
        assert clock.monotonic() == 0.5
        assert loads == ["began", "cancelled"]
        assert len(asyncio.all_tasks()) == 1

    clock.run(main)
    nothing_left(policy)


# ------------------------------------------------------------------ being forgotten meanwhile


def test_what_is_forgotten_while_it_loads_is_not_kept(awaited, clock):
    policy = cache(60, "c", key=lambda x: x)
    call, loads = slow(policy, awaited)

    async def main() -> None:
        old = asyncio.create_task(call(1))
        await asyncio.sleep(0.5)
        assert policy.invalidate_key(1)
        new = asyncio.create_task(call(1))
        await asyncio.sleep(0.1)
        assert await old == ("answer", 2), "whoever waits for it still gets it"
        await new
        assert loads == ["began"] * 2
        await call(1)
        assert loads == ["began"] * 2
        policy.clear()
        third = asyncio.create_task(call(1))
        await asyncio.sleep(0.5)
        policy.clear()
        await third
        assert policy.snapshot()["size"] == 0

    clock.run(main)
    nothing_left(policy)


def test_a_load_that_was_forgotten_leaves_the_answer_of_a_later_one_alone(awaited, clock):
    policy, lengths = cache(60, "c", key=lambda: "one"), iter([10, 1])

    async def load() -> float:
        length = next(lengths)
        await asyncio.sleep(length)
        return length

    call = awaited.guarded(policy, load)

    async def main() -> None:
        old = asyncio.create_task(call())
        await asyncio.sleep(0.5)
        policy.clear()
        assert await call() == 1
        assert await old == 10
        assert await call() == 1

    clock.run(main)
    nothing_left(policy)


def test_what_is_forgotten_at_the_moment_it_is_stored_is_not_kept(clock):
    policy = cache(60, "c", key=lambda x: x)
    keep = policy.shelf._memory.set

    class Store:
        get, delete, clear = policy.shelf._memory.get, policy.shelf._memory.delete, policy.shelf._memory.clear

        def set(self, key, entry, /):
            other.invalidate_key(key)
            keep(key, entry)

    other = cache(60, "d", key=lambda x: x, store=Store())
    assert other.call(str, 1) == "1"
    assert policy.snapshot()["size"] == 0


# ------------------------------------------------------------------ a forked child


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_has_the_answers_and_waits_for_nobody(clock):
    policy, go = cache(60, "c"), threading.Event()

    @policy
    def load(x: int) -> str:
        if x == 2 and os.getpid() == parent:
            go.wait(10)
        return "answer"

    parent = os.getpid()
    load(1)
    with ThreadPoolExecutor(1) as pool:
        under_way = pool.submit(load, 2)
        until(lambda: waiting(policy) == 1)
        child = os.fork()
        if child == 0:
            try:
                fine = load(1) == load(2) == "answer" and policy.snapshot()["hits"] == 1
            except BaseException:
                fine = False
            os._exit(0 if fine else 1)
        _, status = os.waitpid(child, 0)
        go.set()
        assert under_way.result() == "answer"
    assert os.waitstatus_to_exitcode(status) == 0
