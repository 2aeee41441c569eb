"""Open, and how it finds out that the trouble is over."""

from __future__ import annotations

import asyncio
import threading

import pytest

from everkeel import CircuitOpenError, circuit_breaker, exponential, linear
from everkeel.testing import assert_state


def opened(calls, clock, **settings):
    """A breaker that has just opened, and the calls through it."""
    breaker = circuit_breaker("payments", **{"consecutive": 1, "open_for": 30, "clock": clock, **settings})
    payments = calls(breaker)
    payments.feed("f")
    assert_state(breaker, "open")
    return breaker, payments


def half_opened(calls, clock, **settings):
    """A breaker at its half-open instant: the next call is a probe."""
    breaker, payments = opened(calls, clock, **settings)
    clock.advance(30)
    return breaker, payments


# ------------------------------------------------------------------ how long it stays open


def test_it_rejects_every_call_while_it_is_open(calls, clock):
    breaker, payments = opened(calls, clock)
    clock.advance(29.999)
    assert payments.feed("sfs") == "xxx"
    assert_state(breaker, "open", rejected=3)


def test_it_lets_a_probe_pass_when_its_rest_is_over(calls, clock):
    breaker, payments = opened(calls, clock)
    clock.advance(30)
    assert payments.feed("s") == "s"
    assert_state(breaker, "half_open")


def test_retry_after_counts_down(calls, clock):
    _, payments = opened(calls, clock)
    assert payments.rejected().retry_after == 30
    clock.advance(12.5)
    assert payments.rejected().retry_after == 17.5


@pytest.mark.parametrize("jump", [-7200, 7200])
def test_the_wall_clock_and_its_time_zone_have_no_say(calls, clock, monkeypatch, jump):
    _, payments = opened(calls, clock)
    monkeypatch.setattr(clock, "time", lambda: 1_000_000.0 + jump)
    assert payments.rejected().retry_after == 30
    clock.advance(30)
    assert payments.feed("s") == "s"


def test_a_rest_of_zero_seconds_probes_at_once(calls, clock):
    _, payments = opened(calls, clock, open_for=0)
    assert payments.feed("s") == "s"


def test_a_backoff_makes_it_stay_open_longer_each_time(calls, clock):
    breaker, payments = opened(calls, clock, open_for=exponential(1, max=None), probes=1)
    for rest in (1, 2, 4, 8):
        assert payments.rejected().retry_after == rest
        clock.advance(rest)
        payments.feed("f")
    assert_state(breaker, "open", opened=5)


def test_a_backoff_starts_over_after_the_circuit_was_closed(calls, clock):
    breaker, payments = opened(calls, clock, open_for=linear(1), probes=1)
    clock.advance(1)
    payments.feed("f")
    assert payments.rejected().retry_after == 2
    clock.advance(2)
    payments.feed("s f")
    assert payments.rejected().retry_after == 1
    assert_state(breaker, "open", opened=1)


def test_a_manual_opening_advances_a_backoff_like_an_automatic_one(calls, clock):
    breaker, payments = opened(calls, clock, open_for=[1, 2, 4, 8], probes=1)
    breaker.force_open()
    breaker.half_open()
    payments.feed("f")
    assert payments.rejected().retry_after == 4
    assert_state(breaker, "open", opened=3)


def test_isolating_advances_a_backoff_like_opening(calls, clock):
    breaker, payments = opened(calls, clock, open_for=[1, 2, 4, 8], probes=1)
    breaker.isolate().release()
    payments.feed("f")
    assert payments.rejected().retry_after == 4


def test_half_opening_twice_does_not_start_a_backoff_over(calls, clock):
    breaker, payments = opened(calls, clock, open_for=[1, 2, 4, 8], probes=1)
    breaker.half_open()
    breaker.half_open()
    payments.feed("f")
    assert payments.rejected().retry_after == 2


def test_a_function_says_how_long_it_stays_open(calls, clock):
    _, payments = opened(calls, clock, open_for=lambda times: 7 * times)
    assert payments.rejected().retry_after == 7


def test_a_function_that_says_how_long_may_look_at_the_breaker(calls, clock):
    seen = []

    def rest(times):
        seen.append(breaker.snapshot()["state"])  # would wait for ever, were it asked under the lock
        return 5

    breaker = circuit_breaker("payments", consecutive=1, open_for=rest)
    payments = calls(breaker)
    payments.feed("f")
    assert seen == ["open"]
    assert payments.rejected().retry_after == 5


def test_a_function_that_cannot_say_how_long_harms_nobody(calls, clock, caplog):
    breaker = circuit_breaker("payments", consecutive=1, open_for=lambda times: "soon")
    payments = calls(breaker)
    assert payments.feed("f") == "f"  # the caller gets the error of the call, not that of the function
    assert payments.rejected().retry_after == 30
    assert "circuit breaker 'payments': open_for raised; it stays open for 30 s" in caplog.text


# ------------------------------------------------------------------ what the probes decide


def test_it_closes_when_too_few_of_the_probes_can_still_fail(calls, clock):
    breaker, payments = half_opened(calls, clock, probes=3, failure_rate=0.5)
    payments.feed("s")
    assert_state(breaker, "half_open")
    payments.feed("s")
    assert_state(breaker, "closed", window_calls=0, failure_rate=0.0)


def test_it_opens_again_when_too_many_probes_failed(calls, clock):
    breaker, payments = half_opened(calls, clock, probes=3, failure_rate=0.5)
    payments.feed("sf")
    assert_state(breaker, "half_open")
    payments.feed("f")
    assert_state(breaker, "open", failure_rate=2 / 3, window_calls=3)


def test_one_failed_probe_of_three_still_closes_it(calls, clock):
    breaker, payments = half_opened(calls, clock, probes=3, failure_rate=0.5)
    payments.feed("fss")
    assert_state(breaker, "closed")


def test_a_higher_failure_rate_forgives_more_probes(calls, clock):
    breaker, payments = half_opened(calls, clock, probes=4, failure_rate=0.8)
    payments.feed("fff")
    assert_state(breaker, "half_open")
    payments.feed("s")
    assert_state(breaker, "closed")


@pytest.mark.parametrize(
    ("rate", "script", "state"),
    [
        (1.0, "sss", "closed"),
        (1.0, "ssf", "open"),
        (0.6, "ss", "closed"),
        (0.6, "ff", "open"),
        (0.3, "s", "closed"),
        (0.34, "s", "half_open"),
    ],
)
def test_probe_success_rate_is_the_share_that_must_succeed(calls, clock, rate, script, state):
    breaker, payments = half_opened(calls, clock, probes=3, probe_success_rate=rate)
    payments.feed(script)
    assert_state(breaker, state)


def test_seven_of_twentyfive_probes_are_a_success_rate_of_twentyeight_hundredths(calls, clock):
    breaker, payments = half_opened(calls, clock, probes=25, probe_success_rate=0.28)
    payments.feed("s" * 7)
    assert_state(breaker, "closed")


def test_without_a_failure_rate_half_of_the_probes_decide(calls, clock):
    breaker, payments = half_opened(calls, clock, failure_rate=None, probes=4)
    payments.feed("ff")
    assert_state(breaker, "open")


def test_a_slow_probe_counts_as_failed(calls, clock):
    breaker, payments = half_opened(calls, clock, probes=1, slow_duration=2)
    payments.feed("s", during=lambda: clock.advance(2))
    assert_state(breaker, "open", success=1, failure=1)


def test_a_probe_whose_result_is_a_failure_failed(calls, clock):
    breaker, payments = half_opened(calls, clock, probes=1, on_result=lambda answer: answer == 503)
    assert payments(503) == 503
    assert_state(breaker, "open")


def test_an_unnamed_error_of_a_probe_is_a_sign_of_life(calls, clock):
    breaker, payments = half_opened(calls, clock, probes=1, on=ConnectionError)
    assert payments.feed("u") == "u"
    assert_state(breaker, "closed")


def test_an_ignored_error_of_a_probe_neither_closes_nor_opens(calls, clock):
    breaker, payments = half_opened(calls, clock, probes=1, ignore=KeyError)
    assert payments.feed("iii") == "iii"
    assert_state(breaker, "half_open")
    payments.feed("s")
    assert_state(breaker, "closed")


def test_an_ignored_error_of_a_probe_may_count_as_success(calls, clock):
    breaker, payments = half_opened(calls, clock, probes=1, ignore=KeyError, ignored="success")
    payments.feed("i")
    assert_state(breaker, "closed")


def test_after_closing_old_failures_are_forgotten(calls, clock):
    breaker, payments = half_opened(calls, clock, probes=1)
    payments.feed("s")
    assert_state(breaker, "closed", window_calls=0, failure_rate=0.0)


# ------------------------------------------------------------------ how many probes


def test_while_the_probes_are_under_way_everybody_else_is_rejected(calls, clock):
    breaker, payments = half_opened(calls, clock, probes=2)
    came = []

    def second_probe():
        payments.feed("s", during=lambda: came.extend(payments.feed("sss")))

    payments.feed("s", during=second_probe)
    assert came == ["x", "x", "x"]
    assert_state(breaker, "closed", rejected=3)


def test_the_error_says_that_its_probes_are_under_way(calls, clock):
    _, payments = half_opened(calls, clock, probes=1, probe_lease=60)
    errors = []
    payments.feed("s", during=lambda: (clock.advance(20), errors.append(payments.rejected())))
    assert str(errors[0]) == ("circuit 'payments' is open (half open, its probes are under way); next probe in 40.0 s")
    assert errors[0].retry_after == 40


def test_at_the_half_open_instant_exactly_the_probes_pass_of_fifty_callers(threaded, clock, together):
    breaker = circuit_breaker("payments", probes=3, clock=clock)
    breaker.force_open()
    breaker.half_open()
    rejected, release, reached = threading.Semaphore(0), threading.Event(), []

    def backend():
        reached.append(1)
        assert release.wait(30)
        return "ok"

    guarded = threaded(breaker, backend)

    def caller():
        try:
            return guarded()
        except CircuitOpenError:
            rejected.release()
            return "rejected"

    def gatekeeper():  # the probes stay under way until everybody else has been turned away
        try:
            return all(rejected.acquire(timeout=20) for _ in range(47))
        finally:
            release.set()

    *answers, all_others_rejected = together(*[caller] * 50, gatekeeper)
    assert all_others_rejected
    assert len(reached) == 3
    assert (answers.count("ok"), answers.count("rejected")) == (3, 47)
    assert_state(breaker, "closed", rejected=47)


def test_at_the_instant_its_rest_is_over_exactly_the_probes_pass_of_fifty_callers(threaded, clock, together):
    breaker = circuit_breaker("payments", probes=3, consecutive=1, open_for=30, clock=clock)
    with pytest.raises(ConnectionError):
        breaker.call(raising, ConnectionError)
    clock.advance(30)
    rejected, release, reached = threading.Semaphore(0), threading.Event(), []

    def backend():
        reached.append(1)
        assert release.wait(30)

    guarded = threaded(breaker, backend)

    def caller():
        try:
            guarded()
        except CircuitOpenError:
            rejected.release()

    def gatekeeper():
        try:
            return all(rejected.acquire(timeout=20) for _ in range(47))
        finally:
            release.set()

    *_, all_others_rejected = together(*[caller] * 50, gatekeeper)
    assert all_others_rejected
    assert len(reached) == 3


def raising(error):
    raise error


def test_at_the_half_open_instant_exactly_the_probes_pass_of_fifty_tasks(awaited, clock):
    breaker = circuit_breaker("payments", probes=3, consecutive=1, open_for=30)
    reached = []

    async def backend(outcome="ok"):
        reached.append(outcome)
        await asyncio.sleep(1)
        if outcome != "ok":
            raise ConnectionError
        return outcome

    guarded = awaited(breaker, backend)

    async def main():
        with pytest.raises(ConnectionError):
            await guarded("bad")
        await asyncio.sleep(30)
        return await asyncio.gather(*[guarded() for _ in range(50)], return_exceptions=True)

    answers = clock.run(main, shuffle=True)
    assert reached.count("ok") == 3
    assert answers.count("ok") == 3
    assert sum(isinstance(answer, CircuitOpenError) for answer in answers) == 47
    assert_state(breaker, "closed")


def test_probes_that_come_one_after_the_other_are_no_more_than_allowed(calls, clock):
    breaker, payments = half_opened(calls, clock, probes=5, probe_success_rate=1.0)
    assert payments.feed("ssss") == "ssss"
    assert_state(breaker, "half_open")
    assert payments.feed("s") == "s"
    assert_state(breaker, "closed")


# ------------------------------------------------------------------ lost probes


def test_a_lost_probe_does_not_wedge_the_circuit(calls, clock):
    breaker, payments = half_opened(calls, clock, probes=1, probe_lease=60)

    def others():
        clock.advance(59)
        assert payments.feed("s") == "x"
        clock.advance(1)
        assert payments.feed("s") == "s"

    payments.feed("s", during=others)
    assert_state(breaker, "closed")


@pytest.mark.parametrize("late", ["s", "f"])
def test_the_late_report_of_a_lost_probe_is_ignored(calls, clock, late):
    breaker, payments = half_opened(calls, clock, probes=2, probe_lease=60, probe_success_rate=1.0)

    def others():
        clock.advance(60)
        assert payments.feed("s") == "s"  # takes the place of the lost one, and leaves one to be had

    payments.feed(late, during=others)
    assert_state(breaker, "half_open")
    payments.feed("s")
    assert_state(breaker, "closed")


def test_a_lost_probe_is_no_evidence(calls, clock):
    breaker, payments = half_opened(calls, clock, probes=1, probe_lease=60)

    def others():
        clock.advance(60)
        payments.feed("i")
        assert_state(breaker, "half_open")

    breaker.reconfigure(ignore=KeyError)
    payments.feed("s", during=others)


def test_a_lost_probe_may_count_as_a_failure(calls, clock):
    breaker, payments = half_opened(calls, clock, probes=1, probe_lease=60, lost_probe="failure")

    def others():
        clock.advance(60)
        assert payments.feed("s") == "x"
        assert_state(breaker, "open", failure_rate=1.0)

    payments.feed("s", during=others)
    assert_state(breaker, "open")


def test_after_max_half_open_it_opens_again(calls, clock):
    breaker, payments = half_opened(calls, clock, probes=2, probe_success_rate=1.0, max_half_open=100, open_for=[30, 7])
    payments.feed("s")
    clock.advance(99)
    assert_state(breaker, "half_open")
    clock.advance(1)
    assert payments.rejected().retry_after == 7
    assert_state(breaker, "open", opened=2)


def test_retry_after_looks_no_further_than_max_half_open(calls, clock):
    _, payments = half_opened(calls, clock, probes=1, probe_lease=60, max_half_open=10)
    errors = []
    payments.feed("s", during=lambda: (clock.advance(4), errors.append(payments.rejected())))
    assert errors[0].retry_after == 6


def test_a_probe_that_ends_after_its_circuit_opened_again_changes_nothing(calls, clock):
    breaker, payments = half_opened(calls, clock, probes=1, max_half_open=10)

    def meanwhile():
        clock.advance(10)
        payments.rejected()

    payments.feed("s", during=meanwhile)
    assert_state(breaker, "open", opened=2)
