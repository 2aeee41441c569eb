"""The decision core of adaptive clients: told responses and the time, it says how long to wait."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everkeel.http.client.pace import AdaptiveConfig, Pace, answer_in
from everkeel.http.hints import ServerHints

seconds = st.floats(0, 1e9)
hints = st.builds(
    ServerHints,
    retry_after=st.none() | seconds,
    remaining=st.none() | st.integers(0, 1000),
    reset_after=st.none() | seconds,
    backpressure=st.none() | st.floats(0, 1),
)


@given(said=st.lists(st.tuples(st.sampled_from([200, 404, 429, 500, 503]), hints, st.floats(0, 100)), max_size=20))
def test_nobody_is_ever_kept_for_longer_than_the_longest_wait(said):
    pace, now = Pace(AdaptiveConfig(max_wait=60)), 0.0
    for status, one, later in said:
        now += later
        pace.heard(status, one, now)
        assert 0 <= pace.retry_after(now) <= 60.0000001
        assert 0 <= pace.slow_down() <= 60
        pace.begin()
        assert pace.remaining is None or pace.remaining >= 0


@given(one=hints, status=st.sampled_from([200, 404, 429, 500, 503]))
def test_a_refusal_is_429_or_503_with_a_wait_and_says_when_to_come_back(one, status):
    refusal = Pace(AdaptiveConfig()).heard(status, one, 0.0)
    assert (refusal is not None) == (status == 429 or (status == 503 and one.retry_after is not None))
    if refusal is not None and one.retry_after is not None:
        assert refusal.retry_after == one.retry_after


@given(low=st.floats(0.8, 1), high=st.floats(0.8, 1))
def test_more_pressure_never_means_less_waiting(low, high):
    pace = Pace(AdaptiveConfig())
    low, high = sorted((low, high))
    pace.backpressure = low
    less = pace.slow_down()
    pace.backpressure = high
    assert 0 < less <= pace.slow_down() <= 1.0000001


def test_pressure_below_the_threshold_is_none():
    pace = Pace(AdaptiveConfig())
    pace.backpressure = 0.79
    assert pace.slow_down() == 0


def test_pressure_may_be_ignored():
    pace = Pace(AdaptiveConfig(respect_backpressure=False))
    pace.backpressure = 1.0
    assert pace.slow_down() == 0


@pytest.mark.parametrize(("threshold", "wait"), [(1.0, 1.0), (0.0, 1.0)])
def test_the_ends_of_the_threshold_are_thresholds_too(threshold, wait):
    pace = Pace(AdaptiveConfig(backpressure_threshold=threshold))
    pace.backpressure = 1.0
    assert pace.slow_down() == wait


def test_the_multiplier_is_how_many_times_as_long_as_asked():
    pace = Pace(AdaptiveConfig(backoff_multiplier=2.0))
    assert pace.heard(429, ServerHints(retry_after=3.0), 0.0).retry_after == 6.0
    assert pace.retry_after(0.0) == 6.0


def test_429_without_a_word_waits_for_the_default():
    assert Pace(AdaptiveConfig(default_wait=2)).heard(429, ServerHints(), 0.0).retry_after == 2.0


def test_a_good_response_does_not_open_what_a_refusal_closed():
    pace = Pace(AdaptiveConfig())
    pace.heard(429, ServerHints(retry_after=10.0), 0.0)
    pace.heard(200, ServerHints(remaining=5), 1.0)
    assert pace.retry_after(1.0) == 9.0


@pytest.mark.parametrize("thing", [None, 42, "text", ValueError("no"), object(), {"status": 429}])
def test_what_is_no_response_says_nothing(thing):
    assert answer_in(thing, 0.0) is None


def test_a_response_with_plain_headers_is_read_whatever_their_case():
    class Response:
        status_code = 429
        headers = {"retry-after": "3"}  # noqa: RUF012 - it is not changed

    status, said = answer_in(Response(), 0.0)
    assert (status, said.retry_after) == (429, 3.0)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("strategy", "wait"),
        ("attempts", 0),
        ("max_wait", -1),
        ("backpressure_threshold", 1.1),
        ("backoff_multiplier", -1),
    ],
)
def test_a_wrong_setting_is_named(setting, value):
    with pytest.raises(ValueError, match=f"adaptive client: {setting} must"):
        AdaptiveConfig(**{setting: value})
