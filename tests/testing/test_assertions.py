"""Assertions about attempts, delays, states and decision records: they pass, and they fail with a reason."""

from __future__ import annotations

import pytest

from everkeel import Retry, fallback, pipeline, retry
from everkeel.testing import (
    EventRecorder,
    Flaky,
    VirtualClock,
    assert_attempts,
    assert_delays,
    assert_explained,
    assert_state,
)


def steady(attempts: int = 3) -> Retry:
    return retry(attempts=attempts, backoff=[0.2, 0.4], jitter=None)


def failure(policy: Retry) -> ConnectionError:
    with pytest.raises(ConnectionError) as caught:
        policy.call(Flaky(ConnectionError("refused")))
    return caught.value


def test_attempts_of_an_exception(virtual_time: VirtualClock) -> None:
    error = failure(steady())
    assert_attempts(error, 3)
    with pytest.raises(
        AssertionError, match=r"expected 2 attempts, but there were 3: (.|\n)*attempt 3: Conn"
    ) as caught:
        assert_attempts(error, 2)
    assert "gave up" in str(caught.value)


def test_attempts_of_a_policy_over_all_its_calls(virtual_time: VirtualClock) -> None:
    policy = steady()
    failure(policy)
    policy.call(Flaky("answer"))
    assert_attempts(policy, 4)
    with pytest.raises(AssertionError, match="expected 1 attempt, but there were 4: retry, "):
        assert_attempts(policy, 1)


def test_attempts_of_a_decorated_function(virtual_time: VirtualClock) -> None:
    flaky = Flaky(OSError, "answer")

    @pipeline(fallback("none"), steady())
    def fetch() -> object:
        return flaky()

    fetch()
    assert_attempts(fetch, 2)
    assert_attempts(flaky, 2)


def test_attempts_of_recorded_events(virtual_time: VirtualClock, record_events: EventRecorder) -> None:
    failure(steady())
    steady().call(Flaky("answer"))
    steady().call(Flaky(OSError, "answer"))
    assert_attempts(record_events, 6)
    with pytest.raises(AssertionError, match=r"expected 5 attempts, but there were 6: \n  Retrying"):
        assert_attempts(record_events, 5)


def test_attempts_of_one_policy_among_recorded_events(
    virtual_time: VirtualClock, fresh_everkeel: object, record_events: EventRecorder
) -> None:
    retry("one").call(Flaky(OSError, "answer"))
    retry("two").call(Flaky("answer"))
    assert_attempts(record_events, 2, policy="one")
    assert_attempts(record_events, 1, policy="two")


def test_attempts_of_what_makes_none_is_a_mistake_of_the_test() -> None:
    with pytest.raises(TypeError, match="makes no attempts of its own"):
        assert_attempts(fallback("none"), 1)
    with pytest.raises(TypeError, match="is not decorated with a retry"):
        assert_attempts(print, 1)
    with pytest.raises(TypeError, match="cannot read attempts"):
        assert_attempts(3, 1)  # type: ignore[arg-type]


def test_delays_of_everything_that_knows_them(virtual_time: VirtualClock, record_events: EventRecorder) -> None:
    flaky = Flaky(ConnectionError)
    with pytest.raises(ConnectionError) as caught:
        steady().call(flaky)
    for witness in (virtual_time, record_events, caught.value, flaky):
        assert_delays(witness, [0.2, 0.4])


def test_delays_may_be_ranges_where_there_is_jitter(virtual_time: VirtualClock) -> None:
    retry(backoff=[1, 2]).call(Flaky(OSError, OSError, "answer"))
    assert_delays(virtual_time, [(0, 1), (0, 2)])


def test_wrong_delays_are_shown(virtual_time: VirtualClock) -> None:
    failure(steady())
    with pytest.raises(AssertionError, match=r"expected delays \[0.2\], but they were \[0.2, 0.4\]: <VirtualClock at"):
        assert_delays(virtual_time, [0.2])
    with pytest.raises(AssertionError, match=r"expected delays \[0.2, 0.5\]"):
        assert_delays(virtual_time, [0.2, 0.5])
    assert_delays(virtual_time, [0.2, 0.5], tolerance=0.11)


def test_numbers_of_a_snapshot(virtual_time: VirtualClock) -> None:
    policy = steady()
    failure(policy)
    assert_state(policy, failure=1, retries=2)
    with pytest.raises(AssertionError, match=r"retry: failure is 1, not 2; retries is 2, not 0\n  snapshot: "):
        assert_state(policy, failure=2, retries=0)


def test_a_policy_without_a_state_says_so() -> None:
    with pytest.raises(AssertionError, match="retry shows no 'state'; it has name, type"):
        assert_state(retry(), "open")


def test_a_decision_record_has_the_decision_asked_for(virtual_time: VirtualClock) -> None:
    error = failure(steady())
    decision = assert_explained(
        error, policy_type="retry", action="gave_up", reason="all 3", attempts=3, delays=[0.2, 0.4]
    )
    assert decision.reason == "all 3 attempts failed"


def test_a_decision_that_is_not_there_shows_those_that_are(virtual_time: VirtualClock) -> None:
    with pytest.raises(AssertionError, match=r"no decision with action='rejected' about (.|\n)*retry gave up: all 3"):
        assert_explained(failure(steady()), action="rejected")
    with pytest.raises(AssertionError, match=r"no decision with anything at all about ValueError"):
        assert_explained(ValueError())
    with pytest.raises(AssertionError, match="expected 2 attempts"):
        assert_explained(failure(steady()), attempts=2)
