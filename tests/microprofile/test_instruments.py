"""Counts, levels, histograms and times in states."""

from __future__ import annotations

import os
import signal
from bisect import bisect_left
from threading import Thread

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everkeel.microprofile.instruments import BOUNDS, RECENT, Count, Histogram, Level, StateTimes


def test_counts_of_many_threads_are_all_there() -> None:
    count, level = Count(), Level()

    def work() -> None:
        for _ in range(1000):
            count.add()
            level.up()
            level.down()

    threads = [Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (count.read(), level.read()) == (8000, 0)


def test_a_level_is_how_many_are_inside() -> None:
    level = Level()
    level.up()
    level.up()
    level.down()
    assert level.read() == 1


@given(st.lists(st.floats(0, 20)))
def test_a_value_is_in_the_bucket_whose_end_it_does_not_exceed(values: list[float]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    spread = histogram.read()
    expected = [0] * (len(BOUNDS) + 1)
    for value in values:
        expected[next((i for i, end in enumerate(BOUNDS) if value <= end), len(BOUNDS))] += 1
    assert spread.buckets == tuple(expected)
    assert spread.count == len(values)
    assert spread.sum == pytest.approx(sum(values))
    assert spread.recent == tuple(sorted(values))


def test_a_bound_belongs_to_its_bucket() -> None:
    assert [bisect_left(BOUNDS, bound) for bound in BOUNDS] == list(range(len(BOUNDS)))


def test_quantiles_are_of_the_last_values_and_counts_of_all() -> None:
    histogram = Histogram()
    for value in range(RECENT + 100):
        histogram.record(float(value))
    spread = histogram.read()
    assert spread.count == RECENT + 100
    assert (spread.quantile(0.0), spread.quantile(1.0)) == (100.0, RECENT + 99.0)
    assert spread.quantile(0.5) == 100.0 + RECENT / 2 - 1


def test_an_empty_histogram_has_zeros() -> None:
    spread = Histogram().read()
    assert (spread.quantile(0.5), spread.mean, spread.deviation) == (0.0, 0.0, 0.0)


def test_mean_and_deviation() -> None:
    histogram = Histogram()
    for value in (2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0):
        histogram.record(value)
    assert (histogram.read().mean, histogram.read().deviation) == (5.0, 2.0)


def test_a_clock_that_stands_gives_no_negative_duration() -> None:
    histogram = Histogram()
    histogram.record(-1e-9)
    assert histogram.read().sum == 0.0


SECOND = 1_000_000_000


def test_the_present_state_grows_as_one_looks() -> None:
    now = 5 * SECOND
    times = StateTimes(lambda: now)
    now += 2 * SECOND
    assert times.read() == {"open": 0, "closed": 2 * SECOND, "halfOpen": 0}
    assert times.read() == {"open": 0, "closed": 2 * SECOND, "halfOpen": 0}


def test_an_open_circuit_is_half_open_when_its_time_is_over_though_nobody_called() -> None:
    now = 0
    times = StateTimes(lambda: now)
    times.enter("open", lasting=3.0)
    now = 2 * SECOND
    assert times.state() == "open"
    now = 10 * SECOND
    assert times.state() == "halfOpen"
    assert times.read() == {"open": 3 * SECOND, "closed": 0, "halfOpen": 7 * SECOND}


STATES = st.sampled_from(["open", "closed", "halfOpen"])


@given(st.lists(st.tuples(STATES, st.integers(0, 10**10), st.none() | st.floats(0, 5))))
def test_the_times_of_all_states_add_up_to_the_time_there_was(steps: list[tuple[str, int, float | None]]) -> None:
    now = 0
    times = StateTimes(lambda: now)
    for state, passed, lasting in steps:
        times.enter(state, lasting=lasting if state == "open" else None)
        now += passed
    assert sum(times.read().values()) == now


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_in_a_forked_child_no_lock_is_held_and_nobody_is_inside() -> None:
    histogram, times, level = Histogram(), StateTimes(), Level()
    level.up()
    with histogram._lock, times._lock:
        child = os.fork()
        if child == 0:  # pragma: no cover - in the child
            signal.alarm(10)  # a deadlock kills it
            histogram.record(1.0)
            well = histogram.read().count == 1 and "closed" in times.read() and level.read() == 0
            os._exit(0 if well else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert level.read() == 1
