"""The function that fails as it is told to."""

from __future__ import annotations

import threading

import pytest

from everkeel import retry
from everkeel.testing import Flaky, VirtualClock


def test_outcomes_come_in_their_order_and_the_last_repeats() -> None:
    flaky = Flaky(ValueError, LookupError("gone"), "answer")
    with pytest.raises(ValueError):
        flaky()
    with pytest.raises(LookupError, match="gone"):
        flaky()
    assert [flaky(), flaky()] == ["answer", "answer"]


def test_calls_times_and_arguments_are_recorded(virtual_time: VirtualClock) -> None:
    flaky = Flaky("answer")
    flaky(1)
    virtual_time.sleep(5)
    flaky(2, key="value")
    assert flaky.calls == 2
    assert flaky.times == [0, 5]
    assert flaky.arguments == [((1,), {}), ((2,), {"key": "value"})]


def test_a_call_can_take_its_time_which_is_no_sleep_of_a_policy(virtual_time: VirtualClock) -> None:
    Flaky("answer", takes=3)()
    assert (virtual_time.monotonic(), virtual_time.sleeps) == (3, [])


async def test_the_coroutine_function_shares_the_script(virtual_time: VirtualClock) -> None:
    flaky = Flaky(OSError, "answer", takes=3)
    with pytest.raises(OSError):
        await flaky.async_()()
    assert await flaky.async_()("argument") == "answer"
    assert (flaky.calls, flaky.times, virtual_time.monotonic()) == (2, [0, 3], 6)


def test_it_can_be_decorated(virtual_time: VirtualClock) -> None:
    flaky = Flaky(OSError, "answer")
    assert retry()(flaky)("argument") == "answer"
    assert flaky.calls == 2


async def test_its_coroutine_function_can_be_decorated(virtual_time: VirtualClock) -> None:
    flaky = Flaky(OSError, "answer")
    assert await retry()(flaky.async_())("argument") == "answer"
    assert flaky.calls == 2


def test_threads_never_get_the_same_outcome_twice() -> None:
    flaky, got = Flaky(*range(100)), list[object]()
    threads = [threading.Thread(target=lambda: got.extend(flaky() for _ in range(25))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(map(int, map(str, got))) == list(range(100))


def test_a_script_without_outcomes_is_refused() -> None:
    with pytest.raises(TypeError, match="at least one outcome"):
        Flaky()
