"""The tool that cancels at every await finds what is lost there, and says where."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from everkeel import Retry, retry
from everkeel.testing import CancelledRun, Flaky, cancel_at_every_await


def test_every_await_is_cancelled_in_both_moments_and_the_last_run_in_none() -> None:
    async def work() -> str:
        await asyncio.sleep(0)
        await asyncio.sleep(1)
        return "done"

    runs: list[CancelledRun] = []
    assert cancel_at_every_await(work, runs.append) == 2
    assert [(one.number, one.moment) for one in runs] == [
        (1, "suspended"), (1, "resuming"), (2, "suspended"), (2, "resuming"), (None, None),
    ]  # fmt: skip
    assert [one.cancelled for one in runs] == [True, True, True, True, False]
    assert runs[-1].value == "done"


def test_a_place_that_is_granted_and_then_lost_is_found_when_resuming() -> None:
    free: list[str] = []

    async def work() -> None:
        granted = asyncio.get_running_loop().create_future()
        free[:] = ["place"]
        asyncio.get_running_loop().call_later(1, lambda: granted.set_result(free.pop()))
        place = await granted
        free.append(place)

    def check(outcome: CancelledRun) -> None:
        assert free, "a place was lost"

    with pytest.raises(AssertionError, match="a place was lost") as caught:
        cancel_at_every_await(work, check)
    (note,) = caught.value.__notes__
    assert note.startswith("(cancelled at await 1, resuming, at test_cancelling.py:")


def test_a_coroutine_may_answer_a_cancellation() -> None:
    async def stubborn() -> str:
        try:
            await asyncio.sleep(1)
        except asyncio.CancelledError:
            return "not now"
        return "done"

    values: list[object] = []
    cancel_at_every_await(stubborn, lambda outcome: values.append(outcome.value))
    assert values == ["not now", "not now", "done"]


def test_its_own_error_is_the_outcome() -> None:
    async def failing() -> None:
        await asyncio.sleep(1)
        raise LookupError("gone")

    errors: list[BaseException | None] = []
    cancel_at_every_await(failing, lambda outcome: errors.append(outcome.error))
    assert [type(error) for error in errors] == [asyncio.CancelledError, asyncio.CancelledError, LookupError]


def test_the_check_may_be_a_coroutine_function_on_the_same_loop() -> None:
    loops: set[asyncio.AbstractEventLoop] = set()

    async def work() -> None:
        loops.add(asyncio.get_running_loop())
        await asyncio.sleep(0)

    async def check(outcome: CancelledRun) -> None:
        assert asyncio.get_running_loop() in loops
        assert asyncio.all_tasks() == {asyncio.current_task()}

    assert cancel_at_every_await(work, check) == 1


def test_a_coroutine_that_never_awaits_runs_once() -> None:
    async def work() -> str:
        return "done"

    runs: list[CancelledRun] = []
    assert cancel_at_every_await(work, runs.append) == 0
    assert [one.value for one in runs] == ["done"]


def test_a_coroutine_without_end_is_given_up_on() -> None:
    async def forever() -> None:
        for _ in itertools.count():
            await asyncio.sleep(1)

    with pytest.raises(AssertionError, match="within 5 awaits"):
        cancel_at_every_await(forever, lambda outcome: None, limit=5)


def test_a_retry_is_cancelled_in_its_backoff_and_counts_nothing() -> None:
    policies: list[Retry] = []

    async def work() -> object:
        policies.append(retry(attempts=3, backoff=1, jitter=None))
        return await policies[-1].acall(Flaky(OSError, OSError, "answer").async_())

    def check(outcome: CancelledRun) -> None:
        counts = policies[-1].snapshot()
        assert counts["success"] + counts["failure"] == (0 if outcome.cancelled else 1)

    assert cancel_at_every_await(work, check) == 2
