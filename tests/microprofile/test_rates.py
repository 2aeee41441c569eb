"""The three kinds of rate limit, against models."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everkeel.microprofile.rates import KINDS, FixedRate, RollingRate, SmoothRate

STEPS = st.lists(st.integers(0, 8), max_size=40)  # halves of a second: exact in floats


def _moments(steps: list[int]) -> list[float]:
    moments, now = [], 0.0
    for step in steps:
        now += step / 2
        moments.append(now)
    return moments


@given(st.integers(1, 4), st.integers(1, 6), STEPS)
def test_fixed_lets_the_first_calls_of_each_window_in(permits: int, window: int, steps: list[int]) -> None:
    rate, moments = FixedRate(permits, window), _moments(steps)
    for place, now in enumerate(moments):
        waits = rate.wait_for(now)
        mine = (now - moments[0]) // window
        before = [other for other in moments[:place] if (other - moments[0]) // window == mine]
        assert (waits == 0) == (len(before) < permits)
        if waits:
            assert (now + waits - moments[0]) % window == 0


@given(st.integers(1, 4), st.integers(1, 6), STEPS)
def test_rolling_counts_every_call_of_the_last_window_refused_ones_too(
    permits: int, window: int, steps: list[int]
) -> None:
    rate, moments = RollingRate(permits, window), _moments(steps)
    for place, now in enumerate(moments):
        waits = rate.wait_for(now)
        before = [other for other in moments[:place] if now - other < window]
        assert (waits == 0) == (len(before) < permits)


@given(st.integers(1, 4), st.integers(1, 6), STEPS)
def test_smooth_is_a_bucket_that_begins_with_one_and_does_not_count_refusals(
    permits: int, window: int, steps: list[int]
) -> None:
    rate, moments = SmoothRate(permits, window), _moments(steps)
    left, before = Fraction(1), Fraction(moments[0] if moments else 0)
    for now in moments:
        left = min(Fraction(permits), left + (Fraction(now) - before) * permits / window)
        before = Fraction(now)
        allowed = left >= 1
        waits = rate.wait_for(now)
        assert (waits == 0) == allowed
        if allowed:
            left -= 1
        else:
            assert waits == pytest.approx(float((1 - left) * window / permits))


@pytest.mark.parametrize("kind", KINDS)
def test_who_comes_when_told_gets_in(kind: str) -> None:
    rate = KINDS[kind](2, 10.0)
    now = 0.0
    for _ in range(20):
        waits = rate.wait_for(now)
        if waits:
            now += waits
            assert rate.wait_for(now) == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_calls_that_follow_too_closely_are_refused(kind: str) -> None:
    rate = KINDS[kind](100, 1.0, 0.5)
    assert rate.wait_for(0.0) == 0.0
    assert rate.wait_for(0.25) == 0.5
    assert rate.wait_for(0.75) == 0.0
