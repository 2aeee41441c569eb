"""Counts that lose nothing among threads."""

from __future__ import annotations

import sys
import threading

from everkeel.runtime.tally import Tallies, read, sum_of, tally


def in_threads(act, *, threads: int = 8) -> None:
    """Run `act` in several threads that begin together and are switched as often as can be."""
    together = threading.Barrier(threads)

    def run() -> None:
        together.wait()
        act()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        running = [threading.Thread(target=run) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    finally:
        sys.setswitchinterval(interval)


def test_a_new_tally_is_at_zero():
    assert read(tally()) == 0


def test_next_counts_one():
    count = tally()
    for _ in range(3):
        next(count)
    assert read(count) == 3


def test_reading_does_not_count():
    count = tally()
    next(count)
    assert [read(count), read(count)] == [1, 1]


def test_no_count_is_lost_among_threads():
    count = tally()

    def tick() -> None:
        for _ in range(20_000):
            next(count)

    in_threads(tick)
    assert read(count) == 8 * 20_000


def test_a_tally_can_be_read_while_it_counts():
    count, readings = tally(), []

    def tick() -> None:
        for _ in range(5_000):
            next(count)
        readings.append(read(count))

    in_threads(tick)
    assert all(5_000 <= reading <= 8 * 5_000 for reading in readings)
    assert read(count) == 8 * 5_000


def test_named_tallies_are_made_when_they_are_first_needed():
    counts = Tallies()
    assert counts["failure"] == 0
    assert counts.read() == {}
    counts.tick("failure")
    counts.tick("failure")
    counts.tick("ignored")
    assert counts.read() == {"failure": 2, "ignored": 1}


def test_threads_that_count_a_name_for_the_first_time_together_lose_nothing():
    counts = Tallies()

    def tick() -> None:
        for n in range(500):
            counts.tick(str(n))

    in_threads(tick)
    assert counts.read() == {str(n): 8 for n in range(500)}


def test_several_tallies_have_a_sum():
    one, two = tally(), tally()
    for count in (one, one, two):
        next(count)
    assert sum_of([one, two]) == 3
