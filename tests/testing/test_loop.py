"""The event loop whose time jumps, and what it does about things that really take time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context

import pytest

from everkeel.runtime.clock import DEFAULT
from everkeel.testing import DeadlockError, VirtualClock, VirtualLoop, run, wait_until_idle


@contextmanager
def hardly_any_real_time(limit: float = 5.0) -> Iterator[None]:
    began = time.monotonic()
    yield
    assert time.monotonic() - began < limit


def now() -> float:
    return asyncio.get_running_loop().time()


# ------------------------------------------------------------------ time


def test_an_async_sleep_takes_no_real_time() -> None:
    async def main() -> float:
        await asyncio.sleep(365 * 86_400)
        return now()

    with hardly_any_real_time():
        assert run(main) == 365 * 86_400


def test_sleepers_wake_in_the_order_of_their_time() -> None:
    async def main() -> list[tuple[float, float]]:
        woken: list[tuple[float, float]] = []

        async def sleeper(seconds: float) -> None:
            await asyncio.sleep(seconds)
            woken.append((seconds, now()))

        await asyncio.gather(sleeper(3), sleeper(1), sleeper(2))
        return woken

    assert run(main) == [(1, 1), (2, 2), (3, 3)]


def test_a_timer_is_hit_exactly() -> None:
    async def main() -> list[float]:
        seen = [now()]
        for delay in (0.1, 0.2, 0.7):
            await asyncio.sleep(delay)
            seen.append(now())
        return seen

    assert run(main) == [0, 0.1, 0.1 + 0.2, 0.1 + 0.2 + 0.7]


@pytest.mark.parametrize("start", [0.0, 1e6, 1e9, 1e12])
def test_a_timer_far_from_zero_still_goes_off(start: float) -> None:
    clock = VirtualClock(start)
    clock.run(asyncio.sleep(0.5))
    assert clock.monotonic() == start + 0.5


def test_a_timeout_ends_what_takes_longer_virtually() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.sleep(10)
        return now()

    assert run(main) == 5


def test_a_cancelled_timer_does_not_hold_time_up() -> None:
    async def main() -> float:
        asyncio.get_running_loop().call_later(1, print).cancel()
        await asyncio.sleep(3)
        return now()

    assert run(main) == 3


def test_a_blocking_sleep_on_the_clock_makes_timers_due() -> None:
    async def main() -> float:
        timer = asyncio.ensure_future(asyncio.sleep(5))
        await asyncio.sleep(0)
        DEFAULT.sleep(7)
        await timer
        return now()

    assert run(main) == 7


def test_a_closed_loop_takes_no_timers() -> None:
    loop = VirtualLoop()
    loop.close()
    with pytest.raises(RuntimeError, match="closed"):
        loop.call_later(1, print)


# ------------------------------------------------------------------ waiting until idle


def test_wait_until_idle_lets_the_others_go_as_far_as_they_can() -> None:
    async def main() -> list[str]:
        steps: list[str] = []

        async def worker() -> None:
            for step in ("one", "two", "three"):
                steps.append(step)
                await asyncio.sleep(0)
            await asyncio.sleep(1)
            steps.append("late")

        task = asyncio.create_task(worker())
        await wait_until_idle()
        assert now() == 0
        seen = list(steps)
        await task
        return seen

    assert run(main) == ["one", "two", "three"]


def test_several_may_wait_until_idle() -> None:
    async def main() -> float:
        await asyncio.gather(wait_until_idle(), wait_until_idle())
        await wait_until_idle()
        return now()

    assert run(main) == 0


def test_a_cancelled_wait_until_idle_is_forgotten() -> None:
    async def main() -> float:
        waiting = asyncio.create_task(wait_until_idle())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(1)
        assert waiting.cancelled()
        return now()

    assert run(main) == 1


def test_wait_until_idle_waits_for_a_thread_at_work() -> None:
    async def main() -> bool:
        finished = threading.Event()

        def work() -> None:
            time.sleep(0.05)
            finished.set()

        task = asyncio.ensure_future(asyncio.to_thread(work))
        await wait_until_idle()
        seen = finished.is_set()
        await task
        return seen

    assert run(main) is True


def test_wait_until_idle_on_a_real_loop_says_what_it_needs() -> None:
    with pytest.raises(RuntimeError, match="needs virtual time"):
        asyncio.run(wait_until_idle())


# ------------------------------------------------------------------ deadlock


def test_a_deadlock_is_an_error_that_says_who_waits_where() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with hardly_any_real_time(), pytest.raises(DeadlockError) as caught:
        VirtualClock(patience=0.05).run(main)
    assert "1 task waits for something that can never happen" in str(caught.value)
    (line,) = caught.value.waiting
    assert "test_a_deadlock_is_an_error_that_says_who_waits_where.<locals>.main, at test_loop.py:" in line


def test_a_deadlock_of_several_tasks_lists_them_all() -> None:
    async def main() -> None:
        lock = asyncio.Lock()
        await lock.acquire()
        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(lock.acquire(), name=f"acquirer {number}")

    with pytest.raises(DeadlockError, match="4 tasks wait") as caught:
        VirtualClock(patience=0.05).run(main)
    assert [line.split(":")[0] for line in caught.value.waiting][1:] == ["acquirer 0", "acquirer 1", "acquirer 2"]


def test_tasks_in_a_deadlock_are_cancelled_so_that_nothing_is_left_behind() -> None:
    cleaned: list[str] = []

    async def main() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append("main")

    with pytest.raises(DeadlockError):
        VirtualClock(patience=0.05).run(main)
    assert cleaned == ["main"]


# ------------------------------------------------------------------ real threads


def test_a_job_in_a_thread_is_waited_for_and_takes_no_virtual_time() -> None:
    def work() -> str:
        time.sleep(0.05)
        return "worked"

    async def main() -> tuple[str, float]:
        async with asyncio.timeout(0.001):  # virtual: the thread takes longer, really
            result = await asyncio.to_thread(work)
        return result, now()

    assert run(main) == ("worked", 0)


def test_a_job_in_an_executor_of_ones_own_is_waited_for() -> None:
    async def main() -> int:
        with ThreadPoolExecutor(1) as executor:
            return await asyncio.get_running_loop().run_in_executor(executor, pow, 2, 10)

    assert run(main) == 1024


def test_a_job_that_an_executor_refuses_is_not_waited_for() -> None:
    async def main() -> float:
        executor = ThreadPoolExecutor(1)
        executor.shutdown()
        with pytest.raises(RuntimeError, match="shutdown"):
            await asyncio.get_running_loop().run_in_executor(executor, int)
        await asyncio.sleep(5)
        return now()

    with hardly_any_real_time():
        assert VirtualClock(patience=60).run(main) == 5


def test_a_job_in_another_process_is_waited_for() -> None:
    async def main() -> tuple[int, float]:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as executor:
            async with asyncio.timeout(0.001):
                result = await asyncio.get_running_loop().run_in_executor(executor, pow, 2, 10)
            return result, now()

    assert VirtualClock(patience=60).run(main) == (1024, 0)


def test_a_job_that_sleeps_on_the_clock_takes_its_virtual_time() -> None:
    async def main() -> tuple[float, float]:
        ticked: list[float] = []
        asyncio.get_running_loop().call_later(3, lambda: ticked.append(now()))
        await asyncio.to_thread(DEFAULT.sleep, 5)
        return ticked[0], now()

    assert run(main) == (3, 5)


def test_a_timeout_ends_the_wait_for_a_job_that_sleeps_longer_on_the_clock() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await asyncio.to_thread(DEFAULT.sleep, 5)
        return now()

    clock = VirtualClock()
    assert clock.run(main) == 2
    assert clock.monotonic() == 5  # closing the loop waits for the thread


def test_more_jobs_than_threads_do_not_wait_for_real_time() -> None:
    async def main() -> float:
        with ThreadPoolExecutor(2) as executor:
            loop = asyncio.get_running_loop()
            await asyncio.gather(*(loop.run_in_executor(executor, clock.sleep, 10) for _ in range(6)))
        return now()

    clock = VirtualClock(patience=60)
    with hardly_any_real_time():
        assert clock.run(main) == 30


def test_a_job_that_waits_for_what_a_timer_does_is_not_waited_for() -> None:
    async def main() -> float:
        event = threading.Event()
        asyncio.get_running_loop().call_later(10, event.set)
        await asyncio.to_thread(event.wait)
        return now()

    with hardly_any_real_time():
        assert VirtualClock(patience=60).run(main) == 10


def test_a_job_that_waits_in_a_way_nobody_can_see_is_overtaken_when_patience_ends() -> None:
    async def main() -> float:
        lock = threading.Lock()
        lock.acquire()
        asyncio.get_running_loop().call_later(10, lock.release)
        await asyncio.to_thread(lock.acquire)
        return now()

    assert VirtualClock(patience=0.05).run(main) == 10


def test_a_job_that_waits_for_ever_is_a_deadlock_too() -> None:
    event = threading.Event()

    async def main() -> None:
        try:
            await asyncio.to_thread(event.wait)
        finally:
            event.set()  # else the loop, which waits for its threads, could not be closed

    with pytest.raises(DeadlockError):
        VirtualClock(patience=0.05).run(main)


def test_a_thread_of_ones_own_can_call_back() -> None:
    async def main() -> str:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[str] = loop.create_future()

        def work() -> None:
            time.sleep(0.05)
            loop.call_soon_threadsafe(answer.set_result, "called back")

        thread = threading.Thread(target=work)
        thread.start()
        try:
            return await answer
        finally:
            thread.join()

    assert run(main) == "called back"


def test_a_thread_that_was_there_before_the_loop_can_call_back() -> None:
    loops: list[asyncio.AbstractEventLoop] = []
    answers: list[asyncio.Future[str]] = []
    ready = threading.Event()

    def outsider() -> None:
        ready.wait()
        time.sleep(0.05)
        loops[0].call_soon_threadsafe(answers[0].set_result, "called back")

    async def main() -> str:
        loops.append(asyncio.get_running_loop())
        answers.append(loops[0].create_future())
        ready.set()
        return await answers[0]

    thread = threading.Thread(target=outsider)
    thread.start()
    assert run(main) == "called back"
    thread.join()


def test_a_loop_without_tasks_waits_for_other_threads_to_give_it_some() -> None:
    loop = VirtualLoop(VirtualClock(patience=0.01))
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    time.sleep(0.05)
    future = asyncio.run_coroutine_threadsafe(asyncio.sleep(60, "slept"), loop)
    assert future.result() == "slept"
    assert loop.time() == 60
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_two_loops_on_one_clock_take_turns() -> None:
    clock, together = VirtualClock(), threading.Barrier(2)
    woken: list[tuple[str, float]] = []

    async def sleeper(name: str, *delays: float) -> None:
        together.wait()
        for delay in delays:
            await asyncio.sleep(delay)
            woken.append((name, now()))

    threads = [
        threading.Thread(target=clock.run, args=(sleeper(name, *delays),))
        for name, delays in (("one", (1, 4)), ("two", (2, 1)))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert woken == [("one", 1), ("two", 2), ("two", 3), ("one", 5)]


def test_a_local_socket_works() -> None:
    async def main() -> tuple[bytes, float]:
        async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write((await reader.readline()).upper())
            await asyncio.sleep(1)
            writer.close()

        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"hello\n")
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
        return answer, now()

    assert run(main) == (b"HELLO\n", 1)


# ------------------------------------------------------------------ order


async def order_of_five() -> list[int]:
    order: list[int] = []

    async def act(number: int) -> None:
        await asyncio.sleep(1)
        order.append(number)

    await asyncio.gather(*map(act, range(5)))
    return order


def test_tasks_run_first_come_first_served() -> None:
    assert run(order_of_five) == [0, 1, 2, 3, 4]


def test_a_shuffled_order_depends_on_the_seed_and_on_nothing_else() -> None:
    orders = {seed: run(order_of_five, seed=seed, shuffle=True) for seed in range(5)}
    assert orders == {seed: run(order_of_five, seed=seed, shuffle=True) for seed in range(5)}
    assert len({tuple(order) for order in orders.values()}) > 1


def test_sockets_work_in_a_shuffled_order() -> None:
    for seed in range(5):
        VirtualClock(seed=seed).run(echo_once, shuffle=True)


async def echo_once() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"hello\n")
        assert await reader.read() == b"hello\n"
        writer.close()
        await writer.wait_closed()
