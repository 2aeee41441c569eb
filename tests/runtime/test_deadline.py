"""The deadline that travels with a call."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from datetime import timedelta

import pytest

from everkeel import ConfigError, Deadline, TimeoutExceededError, current_deadline, deadline, retry, sleep
from everkeel.compose import source
from everkeel.runtime.deadline import in_use, remaining
from everkeel.testing import Flaky, VirtualClock


def test_there_is_none_by_default():
    assert current_deadline() is None
    assert remaining() is None


def test_a_block_has_one_and_its_time_runs(virtual_time):
    with deadline(2.0) as limit:
        assert current_deadline() is limit
        virtual_time.sleep(0.5)
        assert limit.remaining() == 1.5
        assert remaining() == 1.5
    assert current_deadline() is None


def test_it_expires_when_its_time_is_up(virtual_time):
    with deadline(2.0) as limit:
        virtual_time.sleep(1.999)
        assert not limit.expired
        virtual_time.sleep(0.001)
        assert limit.expired
        virtual_time.sleep(1)
        assert limit.remaining() == -1


def test_it_takes_a_timedelta(virtual_time):
    with deadline(timedelta(minutes=1)) as limit:
        assert limit.remaining() == 60


def test_no_time_at_all_is_a_deadline_too(virtual_time):
    with deadline(0) as limit:
        assert limit.expired


@pytest.mark.parametrize("wrong", [-1, "2s", None, float("nan")])
def test_anything_but_a_length_of_time_is_refused(wrong):
    with pytest.raises(ConfigError, match=r"^deadline: seconds must .*\(got "):
        deadline(wrong)


def test_an_inner_one_can_only_be_earlier(virtual_time):
    with deadline(2.0) as outer:
        with deadline(5.0) as inner:
            assert inner is outer
        with deadline(1.0) as inner:
            assert inner.remaining() == 1.0
        assert current_deadline() is outer


def test_it_is_given_back_when_the_block_fails(virtual_time):
    with pytest.raises(ZeroDivisionError), deadline(2.0):
        raise ZeroDivisionError
    assert current_deadline() is None


def test_one_block_is_used_once_at_a_time(virtual_time):
    block = deadline(2.0)
    with block:
        with pytest.raises(RuntimeError, match="already in use"):
            block.__enter__()
        assert current_deadline() is not None
    with block as again:
        assert again.remaining() == 2.0


async def test_it_is_an_async_block_too(virtual_time):
    async with deadline(2.0) as limit:
        await asyncio.sleep(0.5)
        assert limit.remaining() == 1.5
    assert current_deadline() is None


async def test_tasks_started_inside_have_it_and_others_do_not(virtual_time):
    async def read() -> Deadline | None:
        return current_deadline()

    with deadline(2.0) as limit:
        inside = asyncio.create_task(read())
    outside = asyncio.create_task(read())
    assert await inside is limit
    assert await outside is None


def test_a_thread_has_it_only_with_a_copy_of_the_context(virtual_time):
    seen = []
    with deadline(2.0) as limit:
        context = contextvars.copy_context()
        for target in (lambda: seen.append(current_deadline()), lambda: context.run(seen.append, current_deadline())):
            thread = threading.Thread(target=target)
            thread.start()
            thread.join()
        context.run(lambda: seen.append(current_deadline()))
    assert seen == [None, None, limit]


def test_it_may_have_a_clock_of_its_own(virtual_time):
    own = VirtualClock()
    with deadline(2.0, clock=own) as limit:
        virtual_time.sleep(10)
        assert limit.remaining() == 2.0
        own.sleep(1)
        assert limit.remaining() == 1.0


def test_its_error_says_how_long_there_was(virtual_time):
    with deadline(2.0) as limit:
        virtual_time.sleep(1)
        error = limit.error()
    assert isinstance(error, TimeoutExceededError)
    assert str(error) == "deadline: no answer within 2 s"


def test_a_deadline_made_of_a_moment_knows_its_length_from_then(virtual_time):
    virtual_time.sleep(5)
    assert Deadline(8.0).length == 3.0
    assert repr(Deadline(8.0)) == "<Deadline of 3 s, 3.000 s left>"


def test_sleep_does_not_go_past_it(virtual_time):
    with deadline(2.0), pytest.raises(TimeoutExceededError, match="deadline: no answer within 2 s"):
        sleep(3)
    assert virtual_time.monotonic() == 2.0


def test_a_sleep_that_fits_is_left_alone(virtual_time):
    with deadline(2.0):
        sleep(1.5)
        sleep(0)
    assert virtual_time.sleeps == [1.5]


def test_sleep_after_it_does_not_wait_at_all(virtual_time):
    with deadline(0), pytest.raises(TimeoutExceededError):
        sleep(1)
    assert virtual_time.sleeps == []


def test_functions_look_for_a_deadline_from_the_first_one_on(monkeypatch, virtual_time):
    monkeypatch.setattr(in_use, "yes", False)
    calls = Flaky(OSError("busy"))
    fetch = retry(attempts=5, backoff=10, jitter=None)(lambda: calls())
    assert "ambient" not in source(fetch)
    with deadline(15), pytest.raises(OSError, match="busy"):
        fetch()
    assert "ambient" in source(fetch)
    assert calls.calls == 2  # a third attempt would not have fitted


async def test_a_call_in_flight_when_the_first_deadline_comes_goes_on_as_it_began(monkeypatch, virtual_time):
    monkeypatch.setattr(in_use, "yes", False)

    @retry(backoff=0)
    async def inner() -> str:
        return "inner"

    @retry(backoff=0)
    async def outer() -> str:
        with deadline(1):
            return f"outer and {await inner()}"

    assert await outer() == "outer and inner"
