"""Places: taken, queued for, given back, moved while calls are under way, and never lost."""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
from contextvars import copy_context

import pytest

from everkeel import ShedError, concurrency_limit, deadline, events, sleep
from everkeel.testing import assert_state, cancel_at_every_await, wait_until_idle


async def briefly(seconds: float = 1.0) -> str:
    await asyncio.sleep(seconds)
    return "answer"


def test_so_many_run_at_once_and_the_next_is_shed(limited, clock, heard):
    policy = limited.limit("orders", initial=2)
    call = limited(policy, briefly)

    async def main() -> list:
        return await asyncio.gather(*(call() for _ in range(3)), return_exceptions=True)

    *answers, error = clock.run(main)
    assert answers == ["answer", "answer"]
    assert isinstance(error, ShedError)
    assert (error.policy, error.limit) == ("orders", 2)
    assert_state(policy, success=2, rejected=1, running=0)
    assert len(heard.of(events.CallRejected)) == 1


def test_the_error_says_who_and_how_many():
    assert str(ShedError("orders", None, 2, None)) == "concurrency limit 'orders' of 2 reached; shed a call"


def test_sync_calls_take_places_too(limited, clock):
    policy = limited.limit("orders", initial=1)

    def inner() -> None:
        with pytest.raises(ShedError):
            limited(policy, lambda: None)()

    limited(policy, inner)()
    assert_state(policy, success=1, rejected=1, running=0)


def test_those_who_queue_get_places_in_their_order(limited, clock, heard):
    policy, order = limited.limit("orders", initial=1, queue=3), []

    async def body(i: int) -> None:
        order.append(i)
        await asyncio.sleep(1)

    call = limited(policy, body)

    async def main() -> None:
        await asyncio.gather(*(call(i) for i in range(4)))

    clock.run(main)
    assert order == [0, 1, 2, 3]
    assert_state(policy, queued=3, waited=6.0, waiting=0, running=0)
    assert [event.waiting for event in heard.of(events.CallQueued)] == [1, 2, 3]


def test_the_newest_may_come_first(limited, clock):
    policy, order = limited.limit("orders", initial=1, queue=3, order="newest"), []

    async def body(i: int) -> None:
        order.append(i)
        await asyncio.sleep(1)

    call = limited(policy, body)

    async def main() -> None:
        await asyncio.gather(*(call(i) for i in range(4)))

    clock.run(main)
    assert order == [0, 3, 2, 1]


def test_a_queue_that_is_full_sheds(limited, clock):
    policy = limited.limit("orders", initial=1, queue=1)
    call = limited(policy, briefly)

    async def main() -> list:
        return await asyncio.gather(*(call() for _ in range(3)), return_exceptions=True)

    assert [type(one).__name__ for one in clock.run(main)] == ["str", "str", "ShedError"]


@pytest.mark.parametrize("bound", ["max_wait", "deadline"])
def test_a_wait_is_bounded(limited, clock, bound):
    policy = limited.limit("orders", initial=1, queue=5, max_wait=0.5 if bound == "max_wait" else None)
    call = limited(policy, briefly)

    async def main() -> float:
        first = asyncio.create_task(call(10))
        await asyncio.sleep(0)
        with deadline(0.5), pytest.raises(ShedError):
            await call()
        waited = clock.monotonic()
        await first
        return waited

    assert clock.run(main) == 0.5
    assert_state(policy, waiting=0, running=0)


def test_a_thread_waits_for_its_place(limited, clock):
    policy = limited.limit("orders", initial=1, queue=1)
    entered, came = threading.Event(), []

    def first() -> None:
        entered.set()
        sleep(5)

    thread = threading.Thread(target=copy_context().run, args=(limited(policy, first),))  # in virtual time as well

    def second() -> None:
        came.append(policy.snapshot()["running"])

    thread.start()
    entered.wait()
    limited(policy, second)()
    thread.join()
    assert came == [1]
    assert_state(policy, success=2, running=0, waiting=0)


def test_a_thread_gives_up_after_max_wait(limited, clock):
    policy = limited.limit("orders", initial=1, queue=1, max_wait=0.5)

    def inner() -> None:
        with pytest.raises(ShedError):
            limited(policy, lambda: None)()

    limited(policy, inner)()
    assert_state(policy, waiting=0, running=0)


# ------------------------------------------------------------------ nothing is lost


def test_cancelled_at_every_await_no_place_is_lost(limited):
    policies = []

    async def main() -> None:
        policies.append(limited.limit(initial=1, queue=2))
        call = limited(policies[-1], briefly)
        async with asyncio.TaskGroup() as group:
            group.create_task(call())
            await asyncio.sleep(0)
            await call()

    async def check(outcome) -> None:
        await wait_until_idle()
        assert_state(policies[-1], running=0, waiting=0)
        assert await limited(policies[-1], briefly)() == "answer"

    assert cancel_at_every_await(main, check) > 1


def test_cancelled_calls_teach_nothing(limited, clock):
    policy = limited.limit("orders")
    call = limited(policy, briefly)

    async def main() -> None:
        for _ in range(100):
            task = asyncio.create_task(call(60))
            await asyncio.sleep(0.001)
            task.cancel()
            await asyncio.wait([task])

    clock.run(main)
    assert_state(policy, success=0, failure=0, ignored=0, baseline=None, limit=20)


def test_a_coroutine_that_is_closed_gives_its_place_back(limited, clock):
    policy = limited.limit("orders", initial=1)

    async def main() -> None:
        coroutine = limited(policy, briefly)()
        coroutine.send(None)
        coroutine.close()

    clock.run(main)
    assert_state(policy, running=0)


@pytest.mark.parametrize("style", ["plain", "woven", "ranked"])
def test_an_interrupt_at_the_start_of_any_function_loses_no_place(style):
    # An interrupt that comes with every trace event in turn stands for a Ctrl-C at that place.
    settings = {"priorities": {"only": 0.0}} if style == "ranked" else {}
    policy = concurrency_limit(initial=1, **settings)

    def body() -> None:
        return None

    call = (lambda: policy.call(body)) if style == "plain" else policy(body)
    call()  # woven
    raised = at = 0

    while True:
        at += 1
        left = at

        def handler(signum, frame):
            raise KeyboardInterrupt

        def trace(frame, event, argument):
            nonlocal left
            if event == "call" and "everkeel" in frame.f_code.co_filename:
                left -= 1
                if left == 0:
                    signal.raise_signal(signal.SIGINT)  # delivered at the first instruction of the function
            return None

        before = signal.signal(signal.SIGINT, handler)
        sys.settrace(trace)
        try:
            call()
        except KeyboardInterrupt:
            raised += 1
        finally:
            sys.settrace(None)
            signal.signal(signal.SIGINT, before)
        if left > 0:
            break
        assert policy.snapshot()["running"] == 0, f"lost at the {at}th function"
    assert raised > 0
    call()


# ------------------------------------------------------------------ the limit moves


def test_a_limit_that_comes_down_under_load_takes_places_as_they_are_given_back(limited, clock):
    policy = limited.limit("orders", initial=10)
    call = limited(policy, briefly)

    async def main() -> tuple:
        tasks = [asyncio.create_task(call()) for _ in range(10)]
        await asyncio.sleep(0)
        policy.reconfigure(initial=3, ceiling=3)
        during = policy.snapshot()["running"], policy.snapshot()["limit"]
        with pytest.raises(ShedError):
            await call()
        await asyncio.gather(*tasks)
        results = await asyncio.gather(*(call() for _ in range(4)), return_exceptions=True)
        return during, [type(one).__name__ for one in results]

    assert clock.run(main) == ((10, 3), ["str", "str", "str", "ShedError"])
    assert_state(policy, running=0, limit=3)


def test_a_limit_that_goes_up_lets_those_in_who_wait(limited, clock):
    policy = limited.limit("orders", initial=1, queue=5)
    call = limited(policy, briefly)

    async def main() -> float:
        tasks = [asyncio.create_task(call()) for _ in range(4)]
        await asyncio.sleep(0)
        policy.reconfigure(initial=4, floor=4)
        await asyncio.gather(*tasks)
        return clock.monotonic()

    assert clock.run(main) == 1.0


def test_the_limit_changes_are_told(limited, clock, heard):
    policy = limited.limit("orders", initial=10)
    with pytest.raises(TimeoutError):
        limited(policy, _times_out)()
    assert heard.of(events.LimitChanged) == [
        events.LimitChanged(policy="orders", policy_type="concurrency_limit", before=10, limit=9)
    ]
    assert_state(policy, failure=1, limit=9)


def _times_out() -> None:
    raise TimeoutError


def test_other_errors_teach_nothing(limited, clock):
    policy = limited.limit("orders", initial=10)

    def fails() -> None:
        raise KeyError("unknown")

    for _ in range(50):
        with pytest.raises(KeyError):
            limited(policy, fails)()
    assert_state(policy, failure=0, ignored=50, limit=10, baseline=None, running=0)


def test_what_is_ignored_is_no_overload(limited, clock):
    policy = limited.limit("orders", initial=10, ignore=TimeoutError)
    with pytest.raises(TimeoutError):
        limited(policy, _times_out)()
    assert_state(policy, failure=0, ignored=1, limit=10)


def test_its_own_rejections_are_not_overloads_of_its_own(limited, clock):
    policy = limited.limit("orders", initial=1, floor=1)
    call = limited(policy, briefly)

    async def main() -> None:
        await asyncio.gather(*(call() for _ in range(20)), return_exceptions=True)

    clock.run(main)
    assert_state(policy, failure=0, rejected=19, success=1)


# ------------------------------------------------------------------ keys, modes, many at once


def test_each_key_has_a_limit_of_its_own(limited, clock):
    policy = limited.limit("orders", initial=1, key=lambda host: host)

    async def body(host: str) -> str:
        await asyncio.sleep(1)
        return host

    async def in_entry(host: str) -> str:
        async with policy.entry(key=host):
            return await body(host)

    call = in_entry if limited.style == "block" else limited(policy, body)

    async def main() -> list:
        return await asyncio.gather(call("a"), call("b"), call("a"), return_exceptions=True)

    answers = clock.run(main)
    assert answers[:2] == ["a", "b"]
    assert isinstance(answers[2], ShedError)
    assert_state(policy, running=0, keys=2, limit=2)


def test_a_key_whose_limit_came_down_is_not_forgotten(clock):
    policy = concurrency_limit("orders", initial=10, key=lambda host: host, max_keys=1)
    with pytest.raises(TimeoutError):
        policy.call(lambda host: _times_out(), "a")
    policy.call(lambda host: None, "b")
    assert policy.state.at("a").limit() == 9


def test_a_shadow_lets_everybody_in_and_counts(limited, clock):
    policy = limited.limit("orders", initial=1, queue=1, mode="shadow")
    call = limited(policy, briefly)

    async def main() -> list:
        return await asyncio.gather(*(call() for _ in range(4)))

    assert clock.run(main) == ["answer"] * 4
    assert_state(policy, would={"queue": 1, "reject": 2}, rejected=0, running=0, success=4)


def test_a_shadow_learns_and_ends_with_nothing_left(limited, clock):
    policy = limited.limit("orders", initial=2, mode="shadow")

    def work() -> None:
        sleep(0.05)

    for _ in range(100):
        limited(policy, work)()
    with pytest.raises(TimeoutError):
        limited(policy, _times_out)()
    assert policy.snapshot()["baseline"] == pytest.approx(0.05)
    assert_state(policy, running=0, success=100, failure=1)


def test_off_and_back_again(limited, clock):
    policy = limited.limit("orders", initial=1, mode="off")
    call = limited(policy, briefly)

    async def main() -> list:
        return await asyncio.gather(*(call() for _ in range(3)))

    clock.run(main)
    policy.mode = "enforce"

    async def again() -> list:
        return await asyncio.gather(*(call() for _ in range(3)), return_exceptions=True)

    assert [type(one).__name__ for one in clock.run(again)] == ["str", "ShedError", "ShedError"]
    assert_state(policy, running=0)


def test_generators_hold_their_place_until_they_end(limited, clock):
    policy = limited.limit("orders", initial=1)

    def items():
        yield 1
        yield 2

    stream = policy(items)()
    next(stream)
    assert policy.snapshot()["running"] == 1
    with pytest.raises(ShedError):
        next(policy(items)())
    assert list(stream) == [2]
    assert_state(policy, running=0, success=1)


def test_async_generators_hold_their_place_until_they_are_closed(limited, clock):
    policy = limited.limit("orders", initial=1)

    async def items():
        yield 1
        yield 2

    async def main() -> tuple:
        stream = policy(items)()
        await anext(stream)
        during = policy.snapshot()["running"]
        await stream.aclose()
        return during, policy.snapshot()["running"]

    assert clock.run(main) == (1, 0)


def test_threads_and_loops_at_once_never_exceed_the_limit_and_lose_nothing(limited):
    policy = limited.limit(initial=4, ceiling=4, floor=4, queue=1000)
    lock, now, most, together = threading.Lock(), 0, 0, threading.Barrier(6)

    def up(change: int) -> None:
        nonlocal now, most
        with lock:
            now += change
            most = max(most, now)

    def work() -> None:
        up(1)
        up(-1)

    async def awork() -> None:
        up(1)
        await asyncio.sleep(0)
        up(-1)

    def in_thread() -> None:
        call = limited(policy, work)
        together.wait()
        for _ in range(200):
            call()

    def in_loop() -> None:
        call = limited(policy, awork)

        async def main() -> None:
            together.wait()
            for _ in range(20):
                await asyncio.gather(*(call() for _ in range(10)))

        asyncio.run(main())

    threads = [threading.Thread(target=target) for target in [in_thread] * 4 + [in_loop] * 2]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert most <= 4
    assert_state(policy, running=0, waiting=0, success=1200)


def test_a_forked_child_starts_with_nothing_in_flight(limited, clock):
    policy = limited.limit("orders", initial=2)

    def inner() -> int:
        policy.after_fork()
        return policy.snapshot()["running"]

    assert limited(policy, inner)() == 0
