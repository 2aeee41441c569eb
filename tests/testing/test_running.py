"""Running coroutines in virtual time, and leaving nothing behind."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import AsyncIterator

import pytest

from everkeel.runtime.clock import DEFAULT
from everkeel.testing import VirtualClock, run


async def answer() -> int:
    await asyncio.sleep(1)
    return 42


def test_run_takes_a_coroutine_function() -> None:
    assert run(answer) == 42


def test_run_takes_a_coroutine() -> None:
    assert run(answer()) == 42


def test_policies_inside_use_the_clock_of_the_run() -> None:
    async def main() -> tuple[float, float]:
        await DEFAULT.asleep(5)
        return DEFAULT.monotonic(), asyncio.get_running_loop().time()

    assert run(main) == (5, 5)


def test_a_run_starts_at_zero_unless_given_a_clock() -> None:
    clock = VirtualClock(start=100)
    run(answer, clock=clock)
    assert clock.monotonic() == 101


def test_a_seed_makes_the_same_chance() -> None:
    async def draw() -> float:
        return DEFAULT.random()

    assert run(draw, seed=3) == run(draw, seed=3) != run(draw, seed=4)


def test_a_clock_has_a_seed_of_its_own() -> None:
    with pytest.raises(TypeError, match="give the seed to the clock"):
        run(answer, seed=1, clock=VirtualClock())


def test_an_exception_leaves_as_it_is() -> None:
    async def fail() -> None:
        raise LookupError("gone")

    with pytest.raises(LookupError, match="gone"):
        run(fail)


def test_tasks_that_are_left_are_cancelled_and_generators_closed() -> None:
    ended: list[str] = []

    async def forever() -> None:
        try:
            await asyncio.sleep(1e9)
        finally:
            ended.append("task")

    async def numbers() -> AsyncIterator[int]:
        try:
            yield 1
            yield 2
        finally:
            ended.append("generator")

    kept: list[object] = []

    async def main() -> None:
        generator = numbers()
        kept.extend([asyncio.create_task(forever()), generator])
        await anext(generator)

    run(main)
    assert sorted(ended) == ["generator", "task"]


def test_a_run_leaves_neither_loop_nor_warning_behind() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run(answer)
        run(lambda: asyncio.to_thread(int))
        gc.collect()
    assert [str(warning.message) for warning in caught] == []
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()


def test_a_run_inside_a_running_loop_is_refused_without_a_warning() -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match="running already"):
            run(answer())

    asyncio.run(main())
    gc.collect()


def test_a_run_inside_a_blocks_clock_uses_its_own_time() -> None:
    clock = VirtualClock()

    async def main() -> float:
        return DEFAULT.monotonic()

    clock.sleep(50)
    assert run(main) == 0
    assert clock.run(main) == 50
