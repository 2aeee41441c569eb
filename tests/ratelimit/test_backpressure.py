"""How hard-pressed the protected service is, by the formula; and what rejected callers are asked to wait."""

from __future__ import annotations

import statistics
from math import ceil
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everkeel import RateLimitedError, RejectedError, rate_limit
from everkeel.ratelimit import Backpressure
from everkeel.ratelimit.pressure import backpressure_delay, utilization_delay

SECOND = 1_000_000_000


def who(user: Any = None, *rest: Any) -> Any:
    return user


class Naive:
    """The formula, as it is written down."""

    def __init__(self, baseline: float, least: float, sensitivity: float, window: int) -> None:
        self.baseline, self.least, self.sensitivity, self.window = baseline, least, sensitivity, window
        self.all: list[float] = []

    def record(self, latency: float) -> float:
        self.all.append(latency)
        seen = self.all[-self.window :]
        slower = len([one for one in seen if one > self.baseline]) / len(seen)
        gradient = (statistics.fmean(seen) - self.least) / (self.least * self.sensitivity)
        score = min(1.0, max(0.0, slower, gradient))
        if score < 0.5:
            p95 = sorted(seen)[ceil(0.95 * len(seen)) - 1]
            self.baseline = 0.95 * self.baseline + 0.05 * p95
        return score


@given(
    latencies=st.lists(st.floats(0, 2) | st.sampled_from([0.01, 0.05, 0.2, 0.2, 1.0]), min_size=1, max_size=60),
    baseline=st.floats(0.05, 0.5),
    least=st.floats(0.01, 0.2),
    sensitivity=st.floats(0.5, 4),
    window=st.integers(1, 20),
)
def test_the_score_is_that_of_the_formula(
    latencies: list[float], baseline: float, least: float, sensitivity: float, window: int
) -> None:
    pressure = Backpressure(p95_baseline=baseline, min_latency=least, sensitivity=sensitivity, window=window)
    naive = Naive(baseline, least, sensitivity, window)
    for latency in latencies:
        naive.baseline = pressure.baseline  # rounding must not decide on which side of it a latency is
        expected = naive.record(latency)
        assert pressure.record(latency) == pytest.approx(expected, abs=1e-9)
        assert 0 <= pressure.score <= 1
        if abs(expected - 0.5) > 1e-9:
            assert pressure.baseline == pytest.approx(naive.baseline)


def usual() -> Backpressure:
    return Backpressure(p95_baseline=0.2, min_latency=0.05, sensitivity=2.0, window=100)


def test_a_quick_service_is_not_pressed_and_the_baseline_drifts_to_what_is_usual() -> None:
    pressure = usual()
    for _ in range(500):
        pressure.record(0.04)
    assert pressure.score == 0
    assert pressure.baseline == pytest.approx(0.04, abs=1e-6)


def test_the_score_grows_with_the_mean() -> None:
    pressure = usual()
    scores = [pressure.record(0.1) for _ in range(100)]
    assert scores[-1] == pytest.approx(0.5)  # (0.1 - 0.05) / (0.05 * 2)


def test_during_an_incident_slowness_does_not_become_the_normal() -> None:
    pressure = usual()
    for _ in range(200):
        pressure.record(0.04)
    before = pressure.baseline
    while pressure.record(1.0) < 0.5:
        pass
    frozen = pressure.baseline
    for _ in range(1000):
        assert pressure.record(1.0) >= 0.5
    assert pressure.score == 1.0
    assert pressure.baseline == frozen
    assert frozen >= before
    for _ in range(200):
        pressure.record(0.04)
    assert pressure.score == 0


def test_rounding_does_not_add_up() -> None:
    pressure = Backpressure(p95_baseline=0.2, min_latency=0.05, sensitivity=2.0, window=10)
    for n in range(100_000):
        pressure.record(1e9 if n % 17 == 0 else 0.01)
    for _ in range(1010):
        pressure.record(0.01)
    assert pressure._sum == pytest.approx(0.1, abs=1e-12)


@given(score=st.floats(0, 1), chance=st.floats(0, 0.999))
def test_the_delay_is_spread_from_eight_to_twelve_tenths(score: float, chance: float) -> None:
    delay = backpressure_delay(score, 1.0, 15.0, lambda: chance)
    wish = 1.0 + 15.0 * score
    assert 0.8 * wish <= delay <= 1.2 * wish
    assert delay == pytest.approx(wish * (0.8 + 0.4 * chance))


def test_utilization_asks_for_more_the_emptier_the_bucket_is() -> None:
    assert [utilization_delay(share, 10.0) for share in (0, 0.25, 1)] == [0, 2.5, 10]


# ------------------------------------------------------------------ in a limiter


def told(call: Any, *args: Any) -> float:
    with pytest.raises(RateLimitedError) as caught:
        call(*args)
    assert caught.value.retry_after is not None
    return caught.value.retry_after


def slow(clock: Any, seconds: float) -> Any:
    """A call that takes so long."""

    def call(*args: Any) -> None:
        clock.now += round(seconds * SECOND)

    return call


def failing(clock: Any) -> None:
    """A call that takes a second and then fails."""
    clock.now += SECOND
    raise OSError("slow")


def test_fixed_tells_exactly_what_is_needed(form: Any, by_hand: Any) -> None:
    call = form(rate_limit(4, backpressure=True, clock=by_hand), who)
    for _ in range(4):
        call()
    assert told(call) == 0.25


def test_utilization_tells_when_the_bucket_is_full_again_if_it_is_empty(form: Any, by_hand: Any) -> None:
    limiter = rate_limit(4, cost=lambda n: n, retry_after_strategy="utilization", clock=by_hand)
    call = form(limiter, who)
    call(4)
    assert told(call, 1) == 1.0  # nothing is left: come back when it is full
    by_hand.now += SECOND // 2
    assert (
        told(call, 3) == 0.25
    )  # two of four are left: half of the half second until it is full; which is what is needed


@pytest.mark.parametrize("strategy", ["fixed", "utilization", "backpressure"])
def test_no_strategy_ever_tells_less_than_what_is_needed(form: Any, by_hand: Any, strategy: Any) -> None:
    limiter = rate_limit(
        1, per=60, retry_after_strategy=strategy, min_retry_delay=0, max_retry_penalty=0, clock=by_hand
    )
    call = form(limiter, who)
    call()
    wait = told(call)
    assert wait >= 60
    by_hand.now += round(wait * SECOND)
    call()


def test_backpressure_asks_for_more_the_slower_the_service_is(form: Any, by_hand: Any) -> None:
    by_hand.random = lambda: 0.5
    limiter = rate_limit(2, retry_after_strategy="backpressure", clock=by_hand)
    for seconds, asked in [(0.05, 1.0), (0.1, 1.0 + 15 * 0.5), (0.15, 16.0), (5, 16.0)]:
        limiter.start_over()
        call = form(limiter, slow(by_hand, seconds))
        call()
        limiter.drain()
        assert told(call) == pytest.approx(asked)


def test_the_wait_is_spread_so_that_not_all_come_at_once(form: Any, by_hand: Any) -> None:
    limiter = rate_limit(1, per=0.1, retry_after_strategy="backpressure", clock=by_hand)
    call = form(limiter, who)
    call()
    waits = [told(call) for _ in range(200)]
    assert 0.8 <= min(waits) < 0.85
    assert 1.15 < max(waits) <= 1.2


def test_the_score_is_on_the_error_and_in_the_snapshot(form: Any, by_hand: Any) -> None:
    limiter = rate_limit(2, backpressure=True, clock=by_hand)
    call = form(limiter, slow(by_hand, 0.1))
    call()
    limiter.drain()
    with pytest.raises(RateLimitedError) as caught:
        call()
    assert caught.value.backpressure == pytest.approx(0.5)
    assert limiter.snapshot()["backpressure"] == caught.value.backpressure
    assert rate_limit(2, clock=by_hand).snapshot()["backpressure"] is None


def test_slow_failures_count_and_rejections_do_not(form: Any, by_hand: Any) -> None:
    limiter = rate_limit(100, backpressure=True, clock=by_hand)

    def fails(error: Any) -> None:
        by_hand.now += SECOND
        raise error

    call = form(limiter, fails)
    with pytest.raises(RejectedError):
        call(RejectedError("inner", None))
    assert limiter.snapshot()["backpressure"] == 0
    with pytest.raises(OSError, match="slow"):
        call(OSError("slow"))
    assert limiter.snapshot()["backpressure"] == 1


def test_a_call_that_is_interrupted_says_nothing_about_the_service(form: Any, by_hand: Any) -> None:
    limiter = rate_limit(100, backpressure=True, clock=by_hand)

    def interrupted() -> None:
        by_hand.now += SECOND
        raise KeyboardInterrupt

    call = form(limiter, interrupted)
    with pytest.raises(KeyboardInterrupt):
        call()
    assert limiter.snapshot()["backpressure"] == 0


def test_blocks_are_measured(by_hand: Any) -> None:
    limiter = rate_limit(100, backpressure=True, clock=by_hand)
    with limiter:
        by_hand.now += SECOND
    assert limiter.snapshot()["backpressure"] == 1
    other = rate_limit(100, backpressure=True, clock=by_hand)
    with pytest.raises(OSError, match="slow"), other:
        failing(by_hand)
    assert other.snapshot()["backpressure"] == 1


def test_a_clock_at_zero_is_measured_as_any_other(by_hand: Any) -> None:
    by_hand.now = 0
    limiter = rate_limit(100, backpressure=True, clock=by_hand)
    limiter.call(slow(by_hand, 1))
    assert limiter.snapshot()["backpressure"] == 1


def test_measuring_can_be_switched_on_and_off_and_tuned_while_it_works(form: Any, by_hand: Any) -> None:
    limiter = rate_limit(100, clock=by_hand)
    call = form(limiter, slow(by_hand, 0.1))
    call()
    assert limiter.snapshot()["backpressure"] is None
    limiter.reconfigure(backpressure=True)
    call()
    assert limiter.snapshot()["backpressure"] == pytest.approx(0.5)
    limiter.reconfigure(gradient_sensitivity=4)
    assert limiter.snapshot()["backpressure"] == pytest.approx(0.25)  # what was measured is kept
    measured = limiter.limiter.door.refusals.pressure
    limiter.reconfigure(permits=50)
    assert limiter.limiter.door.refusals.pressure is measured  # nothing about it has changed
    limiter.reconfigure(backpressure=False)
    assert limiter.snapshot()["backpressure"] is None
