"""An inline timeout stays on its caller's thread, asks the body to stop, and raises late if it does not."""

from __future__ import annotations

import threading

import pytest

import everkeel
from everkeel import (
    BulkheadFullError,
    TimeoutExceededError,
    bulkhead,
    current_cancellation,
    current_deadline,
    deadline,
    events,
    timeout,
)
from everkeel.testing import Flaky


def inline_timeout(seconds: float, name: str = "report"):
    return timeout(seconds, name, runs="inline")


def test_a_call_in_time_gives_its_answer(inline, clock):
    policy = inline_timeout(2)
    assert inline(policy, Flaky("answer", takes=1))("arg", key="word") == "answer"
    assert policy.snapshot()["success"] == 1


def test_it_stays_on_its_callers_thread(inline, clock):
    assert inline(inline_timeout(2), threading.get_ident)() == threading.get_ident()


def test_a_body_that_ignores_its_time_raises_late(inline, clock, heard):
    policy = inline_timeout(2)
    with pytest.raises(TimeoutExceededError) as raised:
        inline(policy, Flaky("an answer nobody gets", takes=5))()
    assert clock.monotonic() == 5.0
    assert (raised.value.policy, raised.value.seconds) == ("report", 2.0)
    snapshot = policy.snapshot()
    assert (snapshot["success"], snapshot["failure"], snapshot["expired"]) == (0, 1, 1)
    assert heard.names() == ["PolicyAdded", "TimedOut", "Failed"]


def test_a_late_error_of_the_body_passes(inline, clock):
    policy = inline_timeout(2)
    with pytest.raises(ValueError):
        inline(policy, Flaky(ValueError, takes=5))()
    snapshot = policy.snapshot()
    assert (snapshot["ignored"], snapshot["expired"]) == (1, 0)


def test_a_sleep_wakes_and_raises_on_time(inline, clock):
    policy = inline_timeout(2)
    with pytest.raises(TimeoutExceededError) as raised:
        inline(policy, everkeel.sleep)(60)
    assert clock.monotonic() == 2.0
    assert raised.value.policy == "report"
    assert policy.snapshot()["expired"] == 1


def test_a_sleep_that_fits_is_just_a_sleep(inline, clock):
    inline(inline_timeout(2), everkeel.sleep)(1.5)
    assert clock.monotonic() == 1.5


def test_a_body_may_ask_whether_it_is_time_to_stop(inline, clock):
    seen = []

    def body() -> None:
        cancellation = current_cancellation()
        for _ in range(3):
            seen.append((cancellation.requested, cancellation.remaining()))
            clock.sleep(1)
        cancellation.check()

    with pytest.raises(TimeoutExceededError):
        inline(inline_timeout(2), body)()
    assert seen == [(False, 2.0), (False, 1.0), (True, 0.0)]
    assert current_cancellation() is None


def test_a_body_that_turns_the_check_into_its_own_error_raises_that(inline, clock):
    def body() -> None:
        try:
            everkeel.sleep(60)
        except TimeoutExceededError:
            raise ConnectionError("gave up") from None

    with pytest.raises(ConnectionError, match="gave up"):
        inline(inline_timeout(2), body)()


def test_a_body_that_swallows_the_check_still_times_out(inline, clock):
    def body() -> str:
        try:
            everkeel.sleep(60)
        except TimeoutExceededError:
            pass
        return "late"

    with pytest.raises(TimeoutExceededError):
        inline(inline_timeout(2), body)()


def test_the_deadline_that_travels_on_is_its_own(inline, clock):
    assert inline(inline_timeout(2), lambda: current_deadline().remaining())() == 2.0
    assert current_deadline() is None


def test_a_deadline_shortens_it(inline, clock):
    with deadline(0.5), pytest.raises(TimeoutExceededError) as raised:
        inline(inline_timeout(2), everkeel.sleep)(60)
    assert raised.value.seconds == 0.5
    assert clock.monotonic() == 0.5


def test_everything_is_as_before_after_an_error(inline, clock):
    with deadline(9) as outer:
        with pytest.raises(ValueError):
            inline(inline_timeout(2), Flaky(ValueError))()
        assert current_deadline() is outer
    assert current_cancellation() is None


@pytest.mark.parametrize(("outer", "inner"), [(1, 2), (2, 1), (1, 1)])
def test_a_sleep_inside_of_two_wakes_at_the_first(inline, clock, outer, inner):
    call = inline(inline_timeout(outer, "outer"), inline(inline_timeout(inner, "inner"), everkeel.sleep))
    with pytest.raises(TimeoutExceededError) as raised:
        call(60)
    assert clock.monotonic() == 1.0
    assert raised.value.policy == ("inner" if inner < outer else "outer")


def test_a_queue_inside_is_left_on_time_and_it_is_a_timeout(inline, clock):
    places = bulkhead(1, "places", queue=1)
    with places:
        with pytest.raises(TimeoutExceededError) as raised:
            inline(inline_timeout(2), lambda: places.call(Flaky("never")))()
    assert clock.monotonic() == 2.0
    assert isinstance(raised.value.__cause__, BulkheadFullError)
    assert places.snapshot()["waiting"] == 0


def test_a_rejection_in_time_is_not_a_timeout(inline, clock):
    places = bulkhead(1, "places")
    with places, pytest.raises(BulkheadFullError):
        inline(inline_timeout(2), lambda: places.call(Flaky("never")))()


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interruption_passes_uncounted_even_when_late(inline, clock, interruption):
    policy = inline_timeout(2)
    with pytest.raises(interruption):
        inline(policy, Flaky(interruption, takes=5))()
    snapshot = policy.snapshot()
    assert (snapshot["ignored"], snapshot["failure"], snapshot["success"]) == (0, 0, 0)


def test_an_error_of_the_body_is_told_as_ignored(inline, clock, heard):
    with pytest.raises(ValueError):
        inline(inline_timeout(2), Flaky(ValueError))()
    assert len(heard.of(events.Ignored)) == 1


def test_a_block_that_reports_its_result_is_timed_too(clock):
    policy = inline_timeout(2)
    with pytest.raises(TimeoutExceededError), policy.entry() as entry:
        entry.result(clock.sleep(3))
    assert policy.snapshot()["expired"] == 1


def test_sleep_outside_of_a_timed_call_respects_a_deadline(clock):
    with deadline(1), pytest.raises(TimeoutExceededError) as raised:
        everkeel.sleep(5)
    assert str(raised.value) == "deadline: no answer within 1 s"
    assert clock.monotonic() == 1.0
