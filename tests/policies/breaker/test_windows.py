"""What share of the recent calls failed: each window against the plainest possible account of the same calls."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from everkeel import circuit_breaker
from everkeel.policies.circuit_breaker.windows import SLICES, CountWindow, TimeWindow
from everkeel.testing import VirtualClock, assert_state

# each call: did it fail, was it slow
traces = st.lists(st.tuples(st.booleans(), st.booleans()), max_size=60)


class Counted:
    """A window, and the tally of successes that a breaker keeps beside it."""

    def __init__(self, window: CountWindow | TimeWindow) -> None:
        self.window, self.successes = window, 0

    def call(self, failed: bool, slow: bool) -> None:
        if failed:
            self.window.failure(self.successes)
        else:
            self.successes += 1
        if slow:
            self.window.slow(self.successes)

    def numbers(self, size: int) -> tuple[int, int, int]:
        window, successes = self.window, self.successes
        return window.calls(size, successes), window.failed(size, successes), window.slow_calls(size, successes)


@given(trace=traces, size=st.integers(1, 20))
def test_a_count_window_is_the_last_n_calls(trace, size):
    counted = Counted(CountWindow())
    for n, (failed, slow) in enumerate(trace, 1):
        counted.call(failed, slow)
        last = trace[max(0, n - size) : n]
        assert counted.numbers(size) == (len(last), sum(f for f, _ in last), sum(s for _, s in last))


@given(trace=traces, size=st.integers(1, 20))
def test_a_count_window_that_is_rarely_asked_answers_the_same(trace, size):
    asked, unasked = Counted(CountWindow()), Counted(CountWindow())
    for failed, slow in trace:
        asked.call(failed, slow)
        asked.numbers(size)
        unasked.call(failed, slow)
    assert asked.numbers(size) == unasked.numbers(size)


@given(trace=traces, before=st.integers(1, 20), after=st.integers(1, 20))
def test_a_count_window_that_changes_its_size_claims_nothing_about_calls_it_has_forgotten(trace, before, after):
    counted = Counted(CountWindow())
    for failed, slow in trace:
        counted.call(failed, slow)
        counted.numbers(before)
    calls, failures, slow_calls = counted.numbers(after)
    assert min(len(trace), before, after) <= calls <= min(len(trace), after)
    last = trace[len(trace) - calls :]
    assert (failures, slow_calls) == (sum(f for f, _ in last), sum(s for _, s in last))


@given(trace=st.lists(st.booleans(), max_size=40))
def test_the_streak_is_the_failures_since_the_last_success(trace):
    counted = Counted(CountWindow())
    for n, failed in enumerate(trace, 1):
        counted.call(failed, slow=False)
        streak = next((i for i, earlier in enumerate(reversed(trace[:n])) if not earlier), n)
        assert counted.window.streak(counted.successes) == streak


@given(trace=st.lists(st.booleans(), max_size=40))
def test_the_streak_of_a_time_window_is_the_same(trace):
    counted, timed = Counted(CountWindow()), Counted(TimeWindow(10.0, 0.0))
    for now, failed in enumerate(trace):
        timed.window.roll(timed.successes, float(now * 3))
        counted.call(failed, slow=False)
        timed.call(failed, slow=False)
        assert timed.window.streak(timed.successes) == counted.window.streak(counted.successes)


# Times are quarters and a slice is one second, so that the model's arithmetic is exact.
timed_traces = st.lists(st.tuples(st.integers(0, 60), st.booleans(), st.booleans()), max_size=60)


@given(trace=timed_traces)
def test_a_time_window_is_the_calls_of_its_ten_slices(trace):
    timed = Counted(TimeWindow(float(SLICES), 0.0))
    now, seen = 0.0, []
    for quarters, failed, slow in trace:
        now += quarters / 4
        timed.window.roll(timed.successes, now)
        timed.call(failed, slow)
        seen.append((int(now), failed, slow))
        last = [(f, s) for second, f, s in seen if second > int(now) - SLICES]
        assert timed.numbers(0) == (len(last), sum(f for f, _ in last), sum(s for _, s in last))


@given(trace=timed_traces, silence=st.integers(0, 100))
def test_a_time_window_forgets_in_silence_too(trace, silence):
    timed = Counted(TimeWindow(float(SLICES), 0.0))
    now, seen = 0.0, []
    for quarters, failed, slow in trace:
        now += quarters / 4
        timed.window.roll(timed.successes, now)
        timed.call(failed, slow)
        seen.append((int(now), failed, slow))
    now += silence / 4
    timed.window.roll(timed.successes, now)
    last = [(f, s) for second, f, s in seen if second > int(now) - SLICES]
    assert timed.numbers(0) == (len(last), sum(f for f, _ in last), sum(s for _, s in last))


def _one_by_one(window: CountWindow | TimeWindow, runs: list[tuple[int, int]], now: Callable[[], float]) -> Counted:
    counted = Counted(window)
    for successes, failures in runs:
        counted.window.roll(counted.successes, now())
        for _ in range(successes):
            counted.call(failed=False, slow=False)
        for _ in range(failures):
            counted.call(failed=True, slow=False)
    return counted


def _in_bulk(window: CountWindow | TimeWindow, runs: list[tuple[int, int]], now: Callable[[], float]) -> Counted:
    counted = Counted(window)
    for successes, failures in runs:
        counted.window.roll(counted.successes, now())
        counted.successes += successes
        for _ in range(failures):
            counted.call(failed=True, slow=False)
    return counted


@given(runs=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), max_size=10), size=st.integers(1, 30))
def test_feeding_successes_singly_or_in_bulk_is_the_same(runs, size):
    for make in (CountWindow, lambda: TimeWindow(10.0, 0.0)):
        times = [iter(range(100)), iter(range(100))]
        single = _one_by_one(make(), runs, lambda times=times: float(next(times[0])))
        bulk = _in_bulk(make(), runs, lambda times=times: float(next(times[1])))
        assert single.numbers(size) == bulk.numbers(size)
        assert single.window.streak(single.successes) == bulk.window.streak(bulk.successes)


@given(script=st.text("sf", max_size=40), window=st.integers(1, 12))
def test_the_snapshot_shows_the_share_over_the_last_calls(script, window):
    breaker = circuit_breaker(failure_rate=1.0, window=window, minimum_calls=window, clock=VirtualClock())
    breaker.force_closed()  # it would open otherwise, and the window be gone
    for letter in script:
        entry = breaker.entry()
        entry.__enter__()
        entry.__exit__(None, ConnectionError() if letter == "f" else None, None)
    last = script[-window:]
    share = last.count("f") / len(last) if last else 0.0
    assert_state(breaker, "closed", failure_rate=share, window_calls=len(last))


def test_the_calls_before_the_window_do_not_count(calls):
    breaker = circuit_breaker("payments", window=4, minimum_calls=4)
    calls(breaker).feed("s" * 50 + "f")
    assert_state(breaker, "closed", failure_rate=0.25, window_calls=4)


def test_an_old_failure_leaves_the_window(calls):
    breaker = circuit_breaker("payments", window=4, minimum_calls=4)
    calls(breaker).feed("f ssss")
    assert_state(breaker, "closed", failure_rate=0.0, window_calls=4)


def test_a_failure_older_than_the_window_duration_does_not_count(calls, clock):
    breaker = circuit_breaker("payments", window_duration=10, minimum_calls=3)
    payments = calls(breaker)
    payments.feed("ff")
    clock.advance(10)
    payments.feed("s s f")
    assert_state(breaker, "closed", window_calls=3, failure_rate=1 / 3)


def test_failures_within_the_window_duration_open_it(calls, clock):
    breaker = circuit_breaker("payments", window_duration=10, minimum_calls=2)
    payments = calls(breaker)
    payments.feed("f")
    clock.advance(9)
    payments.feed("f")
    assert_state(breaker, "open", failure_rate=1.0)


def test_a_time_window_that_nobody_calls_becomes_empty(calls, clock):
    breaker = circuit_breaker("payments", window_duration=10)
    calls(breaker).feed("sfs")
    clock.advance(3600)
    assert_state(breaker, "closed", failure_rate=0.0, window_calls=0)


def test_a_time_window_may_be_wider_than_window_and_its_minimum_too(calls):
    breaker = circuit_breaker("payments", window=5, window_duration=60, minimum_calls=50, failure_rate=1.0)
    payments = calls(breaker)
    payments.feed("f" * 49)
    assert_state(breaker, "closed", window_calls=49)
    payments.feed("f")
    assert_state(breaker, "open")
