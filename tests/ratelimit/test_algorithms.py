"""Every algorithm against a model that is slow and obvious, on random traces; and what each promises.

| algorithm | promise that is proven here |
|---|---|
| token bucket | over any stretch of time t, at most `burst + permits * t / per` |
| leaky bucket | two permits are never closer together than `per / permits` |
| fixed window | at most `permits` in every aligned window; at most twice that in any stretch of `per` |
| sliding log | at most `permits` in any half-open stretch of `per` |
| sliding counter | at most `permits` in every aligned window; less than twice that in any stretch of `per` |
| warming bucket | what the token bucket promises; a third of the rate when cold, never more than warm |

All of them: what must pass passes; `retry_after` is exact to the nanosecond; `remaining` is what could be taken now;
`reset_after` is when nothing is charged any more; all numbers are whole.
"""

from __future__ import annotations

import copy
from collections import Counter
from fractions import Fraction
from itertools import pairwise
from math import ceil, floor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everkeel.ratelimit import (
    Algorithm,
    Decision,
    FixedWindow,
    LeakyBucket,
    Rate,
    SlidingCounter,
    SlidingLog,
    TokenBucket,
    WarmingBucket,
)
from everkeel.ratelimit import pause as pausing

FACTOR = 3

# Small numbers meet each other's edges; large ones are what a service has.
small = st.builds(Rate, st.integers(1, 8), st.integers(1, 40), st.integers(1, 10))
large = st.builds(
    Rate,
    st.sampled_from([1, 3, 7, 60, 1000]),
    st.sampled_from([1_000_000_000, 60_000_000_000, 333_333_333]),
    st.sampled_from([1, 3, 10, 1000]),
)
rates = small | large


def as_window(rate: Rate) -> Rate:
    """Windows have no burst but their permits."""
    return rate._replace(burst=rate.permits)


def warming(rate: Rate) -> WarmingBucket:
    """Long enough to be half warm in the middle of a trace."""
    return WarmingBucket(rate._replace(burst=max(FACTOR, rate.burst)), 3 * rate.per, FACTOR)


MAKERS = {
    "token_bucket": TokenBucket,
    "leaky_bucket": lambda rate: LeakyBucket(rate._replace(burst=1)),
    "fixed_window": lambda rate: FixedWindow(as_window(rate)),
    "sliding_log": lambda rate: SlidingLog(as_window(rate)),
    "sliding_counter": lambda rate: SlidingCounter(as_window(rate)),
    "warming_bucket": warming,
}
every_algorithm = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


steps = st.lists(st.tuples(st.integers(0, 8), st.integers(0, 2), st.integers(0, 1000)), min_size=1, max_size=25)


@st.composite
def traces(draw: st.DrawFn, algorithm: Algorithm) -> list[tuple[int, int]]:
    """Moments and costs: bursts, pauses of about the length that matters, and the moments right beside edges."""
    per, step = algorithm.rate.per, algorithm.rate.per // algorithm.rate.permits
    lengths = [0, 0, 1, step, step + 1, max(0, step - 1), per, per - 1, per // 2]
    now, trace = draw(st.integers(0, 3 * per)), []
    for which, more, cost in draw(steps):
        now += lengths[which] + more
        trace.append((now, cost % (algorithm.capacity + 1)))
    return trace


# ------------------------------------------------------------------ the models: slow and obvious


class Tokens:
    """A bucket of fractions, refilled before every look."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.rate, self.tokens, self.at = algorithm.rate, Fraction(algorithm.rate.burst), 0

    def ask(self, now: int, cost: int) -> tuple[bool, int, int]:
        rate = self.rate
        self.tokens = min(Fraction(rate.burst), self.tokens + Fraction((now - self.at) * rate.permits, rate.per))
        self.at = now
        if self.tokens < cost:
            return False, ceil((cost - self.tokens) * rate.per / rate.permits), floor(self.tokens)
        self.tokens -= cost
        return True, 0, floor(self.tokens)


class Spacing:
    """One at a time, and the next not before its time."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.interval, self.next = Fraction(algorithm.rate.per, algorithm.rate.permits), Fraction(0)

    def ask(self, now: int, cost: int) -> tuple[bool, int, int]:
        if cost and now < self.next:
            return False, ceil(self.next - now), 0
        if cost:
            self.next = now + self.interval
        return True, 0, int(now >= self.next)


class Aligned:
    """A count per window."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.rate, self.counts = algorithm.rate, Counter[int]()

    def ask(self, now: int, cost: int) -> tuple[bool, int, int]:
        window, most = now // self.rate.per, self.rate.permits
        if self.counts[window] + cost > most:
            return False, (window + 1) * self.rate.per - now, most - self.counts[window]
        self.counts[window] += cost
        return True, 0, most - self.counts[window]


class Remembered:
    """Every grant there ever was."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.rate, self.grants = algorithm.rate, list[tuple[int, int]]()

    def used(self, now: int) -> int:
        return sum(cost for at, cost in self.grants if now - self.rate.per < at <= now)

    def ask(self, now: int, cost: int) -> tuple[bool, int, int]:
        most = self.rate.permits
        if self.used(now) + cost <= most:
            self.grants.append((now, cost))
            return True, 0, most - self.used(now)
        moments = sorted(at + self.rate.per for at, _ in self.grants if at + self.rate.per > now)
        first = next(moment for moment in moments if self.used(moment) + cost <= most)
        return False, first - now, most - self.used(now)


class Estimated:
    """This window, and the share of the last one that is still in sight."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.rate, self.counts = algorithm.rate, Counter[int]()

    def estimate(self, now: int) -> Fraction:
        window, passed = divmod(now, self.rate.per)
        return self.counts[window] + Fraction(self.counts[window - 1] * (self.rate.per - passed), self.rate.per)

    def ask(self, now: int, cost: int) -> tuple[bool, int, int]:
        most = self.rate.permits
        if self.estimate(now) + cost <= most:
            self.counts[now // self.rate.per] += cost
            return True, 0, floor(most - self.estimate(now))
        retry = None if self.rate.per > 100 else self._walk(now, cost)
        return False, retry, floor(most - self.estimate(now))  # type: ignore[return-value]

    def _walk(self, now: int, cost: int) -> int:
        then = now
        while self.estimate(then) + cost > self.rate.permits:
            then += 1
        return then - now


class Warm:
    """A bucket of fractions whose price falls while it is in use."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.rate, self.warm_up = algorithm.rate, algorithm.warm_up  # type: ignore[attr-defined]
        self.tokens, self.at = Fraction(self.rate.burst), 0
        self.began: int | None = None
        self.last = 0

    def price(self, now: int) -> Fraction:
        if self.began is None or now - self.last >= self.warm_up:
            return Fraction(FACTOR)
        cold = max(0, self.warm_up - (now - self.began))
        return 1 + Fraction((FACTOR - 1) * cold, self.warm_up)

    def full(self, now: int) -> Fraction:
        return min(
            Fraction(self.rate.burst), self.tokens + Fraction((now - self.at) * self.rate.permits, self.rate.per)
        )

    def ask(self, now: int, cost: int) -> tuple[bool, int, int]:
        price = self.price(now)
        if self.full(now) < cost * price:
            retry = None if self.rate.per > 100 else self._walk(now, cost)
            return False, retry, floor(self.full(now) / price)  # type: ignore[return-value]
        left = self.full(now) - cost * price
        # The bucket counts in parts of a nanosecond, and rounds what is charged up to them.
        part = Fraction(self.rate.per * self.rate.scale, self.rate.permits)
        left = self.rate.burst - ceil((self.rate.burst - left) * part) / part
        if cost:
            if self.began is None or now - self.last >= self.warm_up:
                self.began = now
            self.tokens, self.at, self.last = left, now, now
        return True, 0, floor(left / price)

    def _walk(self, now: int, cost: int) -> int:
        then = now
        while self.full(then) < cost * self.price(then):
            then += 1
        return then - now


MODELS: dict[str, Any] = {
    "token_bucket": Tokens,
    "leaky_bucket": Spacing,
    "fixed_window": Aligned,
    "sliding_log": Remembered,
    "sliding_counter": Estimated,
    "warming_bucket": Warm,
}


@pytest.mark.parametrize("name", MODELS)
@given(data=st.data(), rate=rates)
def test_it_decides_as_its_model_does(name: str, data: st.DataObject, rate: Rate) -> None:
    algorithm = MAKERS[name](rate)  # type: ignore[operator]
    model, state = MODELS[name](algorithm), None
    for now, cost in data.draw(traces(algorithm)):
        state, decision = algorithm.acquire(state, now, cost)
        allowed, retry_after, remaining = model.ask(now, cost)
        assert decision.allowed == allowed
        assert retry_after is None or decision.retry_after == retry_after
        assert decision.remaining == remaining


# ------------------------------------------------------------------ what all of them promise


def run(algorithm: Algorithm, trace: list[tuple[int, int]]) -> tuple[Any, list[tuple[int, int]]]:
    """The state at the end, and what was granted when."""
    state, granted = None, []
    for now, cost in trace:
        state, decision = algorithm.acquire(state, now, cost)
        if decision.allowed:
            granted.append((now, cost))
    return state, granted


@every_algorithm
@given(data=st.data(), rate=rates)
def test_retry_after_is_exact_to_the_nanosecond(make: Any, data: st.DataObject, rate: Rate) -> None:
    algorithm = make(rate)
    trace = data.draw(traces(algorithm))
    state, _ = run(algorithm, trace)
    now, cost = trace[-1][0] + data.draw(st.integers(0, rate.per)), data.draw(st.integers(1, algorithm.capacity))
    _, decision = algorithm.acquire(state, now, cost)
    then = now + decision.retry_after
    assert algorithm.acquire(state, then, cost)[1].allowed
    if decision.allowed:
        assert decision.retry_after == 0
    else:
        assert decision.retry_after > 0
        assert not algorithm.acquire(state, then - 1, cost)[1].allowed


@every_algorithm
@given(data=st.data(), rate=rates)
def test_remaining_is_what_could_be_taken_now(make: Any, data: st.DataObject, rate: Rate) -> None:
    algorithm = make(rate)
    trace = data.draw(traces(algorithm))
    state, _ = run(algorithm, trace)
    now = trace[-1][0] + data.draw(st.integers(0, rate.per))
    _, decision = algorithm.acquire(state, now, data.draw(st.integers(0, algorithm.capacity)))
    left = algorithm.acquire(state, now, 0)[1].remaining
    assert decision.remaining <= left
    for cost in {left, left + 1, 1, algorithm.capacity}:
        if cost <= algorithm.capacity:
            assert algorithm.acquire(state, now, cost)[1].allowed == (cost <= left)


@every_algorithm
@given(data=st.data(), rate=rates)
def test_reset_after_is_when_nothing_is_charged_any_more(make: Any, data: st.DataObject, rate: Rate) -> None:
    algorithm = make(rate)
    trace = data.draw(traces(algorithm))
    state, _ = run(algorithm, trace[:-1])
    now, cost = trace[-1]
    state, decision = algorithm.acquire(state, now, cost)
    assert algorithm.used(state, now + decision.reset_after) == 0
    if decision.reset_after:
        assert algorithm.used(state, now + decision.reset_after - 1) > 0


@every_algorithm
@given(data=st.data(), rate=rates)
def test_an_idle_state_is_as_good_as_none(make: Any, data: st.DataObject, rate: Rate) -> None:
    algorithm = make(rate)
    trace = data.draw(traces(algorithm))
    state, _ = run(algorithm, trace)
    end = trace[-1][0]
    later = [(end + at - trace[0][0] + data.draw(st.integers(0, 4 * rate.per)), cost) for at, cost in trace]
    later.sort()
    if algorithm.idle(state, later[0][0]):
        fresh: Any = None
        for now, cost in later:
            state, decision = algorithm.acquire(state, now, cost)
            fresh, like = algorithm.acquire(fresh, now, cost)
            assert decision == like
    assert algorithm.idle(None, end)
    assert algorithm.idle(state, end + 10 * (rate.per + rate.per * rate.burst) + 4 * rate.per * len(trace))


@every_algorithm
@given(data=st.data(), rate=rates)
def test_what_is_charged_can_be_told_and_given_back(make: Any, data: st.DataObject, rate: Rate) -> None:
    algorithm = make(rate)
    trace = data.draw(traces(algorithm))
    state, _ = run(algorithm, trace)
    now, n = trace[-1][0], data.draw(st.integers(0, 20))
    used = algorithm.used(state, now)
    assert algorithm.used(algorithm.charged(now, n), now) == n
    more = algorithm.adjust(state, now, n)
    assert algorithm.used(more, now) == used + n
    assert algorithm.used(algorithm.adjust(more, now, -n), now) == used
    assert algorithm.used(algorithm.adjust(state, now, -(10**6)), now) == 0
    assert algorithm.used(algorithm.adjust(None, now, -n), now) == 0


@every_algorithm
@given(data=st.data(), rate=rates)
def test_what_was_granted_and_given_back_can_be_granted_again(make: Any, data: st.DataObject, rate: Rate) -> None:
    algorithm = make(rate)
    trace = data.draw(traces(algorithm))
    state, _ = run(algorithm, trace)
    now, cost = trace[-1][0], data.draw(st.integers(1, algorithm.capacity))
    after, decision = algorithm.acquire(state, now, cost)
    if decision.allowed and not isinstance(algorithm, WarmingBucket):  # that one gives back at the price of a warm one
        given_back = algorithm.adjust(after, now, -cost)
        assert algorithm.acquire(given_back, now, cost)[1] == decision


@every_algorithm
@given(data=st.data(), rate=rates)
def test_a_state_is_a_value(make: Any, data: st.DataObject, rate: Rate) -> None:
    algorithm = make(rate)
    trace = data.draw(traces(algorithm))
    half = len(trace) // 2
    state, _ = run(algorithm, trace[:half])
    kept = copy.deepcopy(state)
    now = trace[half - 1][0] if half else 0

    def answers(begin: Any) -> list[Decision]:
        out = []
        for at, cost in trace[half:]:
            begin, decision = algorithm.acquire(begin, at, cost)
            out.append(decision)
        return out

    first = answers(state)
    algorithm.adjust(state, now, 1)
    algorithm.adjust(state, now, -1)
    assert answers(state) == first == answers(kept)


@every_algorithm
@given(data=st.data(), rate=rates)
def test_every_number_is_whole(make: Any, data: st.DataObject, rate: Rate) -> None:
    algorithm = make(rate)
    state = None
    for now, cost in data.draw(traces(algorithm)):
        state, decision = algorithm.acquire(state, now, cost)
        assert [type(field) for field in decision] == [bool, int, int, int]
        assert type(algorithm.used(state, now)) is int


# ------------------------------------------------------------------ what each promises


def granted_by(algorithm: Algorithm, data: st.DataObject) -> list[tuple[int, int]]:
    return run(algorithm, data.draw(traces(algorithm)))[1]


def stretches(granted: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """From every grant to every later one: how long, and how many permits."""
    out = []
    for first, (began, _) in enumerate(granted):
        total = 0
        for at, cost in granted[first:]:
            total += cost
            out.append((at - began, total))
    return out


@given(data=st.data(), rate=rates)
def test_a_token_bucket_grants_at_most_its_burst_and_its_rate_over_any_stretch(data: st.DataObject, rate: Rate) -> None:
    for length, total in stretches(granted_by(TokenBucket(rate), data)):
        assert total <= rate.burst + Fraction(rate.permits * length, rate.per)


@given(data=st.data(), rate=rates)
def test_a_leaky_bucket_never_grants_two_closer_together_than_its_interval(data: st.DataObject, rate: Rate) -> None:
    moments = [at for at, cost in granted_by(LeakyBucket(rate._replace(burst=1)), data) if cost]
    for one, next_one in pairwise(moments):
        assert (next_one - one) * rate.permits >= rate.per


def most_per_window(granted: list[tuple[int, int]], per: int) -> int:
    counts = Counter[int]()
    for at, cost in granted:
        counts[at // per] += cost
    return max(counts.values(), default=0)


@given(data=st.data(), rate=rates)
def test_a_fixed_window_grants_its_permits_per_aligned_window_and_twice_across_an_edge(
    data: st.DataObject, rate: Rate
) -> None:
    granted = granted_by(FixedWindow(as_window(rate)), data)
    assert most_per_window(granted, rate.per) <= rate.permits
    for length, total in stretches(granted):
        assert total <= 2 * rate.permits or length >= rate.per


def test_a_fixed_window_does_let_twice_its_permits_through_across_an_edge() -> None:
    granted = run(FixedWindow(Rate(5, 100, 5)), [(99, 5), (100, 5)])[1]
    assert granted == [(99, 5), (100, 5)]


@given(data=st.data(), rate=rates)
def test_a_sliding_log_grants_at_most_its_permits_in_any_half_open_stretch(data: st.DataObject, rate: Rate) -> None:
    for length, total in stretches(granted_by(SlidingLog(as_window(rate)), data)):
        assert total <= rate.permits or length >= rate.per


@given(data=st.data(), rate=rates)
def test_a_sliding_counter_grants_its_permits_per_aligned_window_and_less_than_twice_anywhere(
    data: st.DataObject, rate: Rate
) -> None:
    granted = granted_by(SlidingCounter(as_window(rate)), data)
    assert most_per_window(granted, rate.per) <= rate.permits
    for length, total in stretches(granted):
        assert total < 2 * rate.permits or length >= rate.per or rate.permits > rate.per


def test_a_sliding_counter_does_let_almost_twice_its_permits_through_at_the_worst() -> None:
    worst = [(99, 5), *((100 + 20 * n, 1) for n in range(1, 5))]  # five at the end of a window, four in the next
    granted = run(SlidingCounter(Rate(5, 100, 5)), worst)[1]
    assert granted == worst
    assert granted[-1][0] - granted[0][0] < 100


@given(data=st.data(), rate=rates)
def test_a_warming_bucket_never_grants_more_than_a_warm_one(data: st.DataObject, rate: Rate) -> None:
    algorithm = warming(rate)
    rate = algorithm.rate
    for length, total in stretches(granted_by(algorithm, data)):
        assert total <= rate.burst + Fraction(rate.permits * length, rate.per)


def test_a_cold_bucket_gives_a_third_and_warms_up_to_the_full_rate() -> None:
    second = 1_000_000_000
    algorithm = WarmingBucket(Rate(30, second, 3), 10 * second, FACTOR)
    state, granted = None, []
    for now in range(100 * second, 120 * second, second // 100):  # somebody asks all the time
        state, decision = algorithm.acquire(state, now, 1)
        if decision.allowed:
            granted.append((now - 100 * second) // second)
    per_second = Counter(granted)
    assert 10 <= per_second[0] <= 12
    assert all(per_second[n] <= per_second[n + 1] + 1 for n in range(10))
    assert all(29 <= per_second[n] <= 31 for n in range(10, 20))


def test_a_bucket_that_was_idle_for_its_warm_up_is_cold_again() -> None:
    second = 1_000_000_000
    algorithm = WarmingBucket(Rate(30, second, 30), 10 * second, FACTOR)
    state = None
    for now in range(0, 20 * second, second):
        state, _ = algorithm.acquire(state, now, 1)
    assert algorithm.acquire(state, 25 * second, 0)[1].remaining == 30
    assert algorithm.acquire(state, 29 * second, 0)[1].remaining == 10


# ------------------------------------------------------------------ a limit that changes


@st.composite
def easier(draw: st.DrawFn, rate: Rate) -> Rate:
    """A rate that is in no way lower."""
    permits = rate.permits + draw(st.integers(0, 5))
    per = max(1, rate.per - draw(st.sampled_from([0, 0, 1, rate.per // 3])))
    return Rate(permits, per, rate.burst + draw(st.integers(0, 5)))


@every_algorithm
@given(data=st.data(), rate=rates)
def test_a_retry_after_given_before_a_limit_is_raised_stays_true(make: Any, data: st.DataObject, rate: Rate) -> None:
    before, after = make(rate), make(data.draw(easier(rate)))
    trace = data.draw(traces(before))
    state, _ = run(before, trace)
    now, cost = trace[-1][0], data.draw(st.integers(1, before.capacity))
    if data.draw(st.booleans()):
        state = before.adjust(state, now, data.draw(st.integers(0, 10)))  # charged beyond what it can grant
    told = now + before.acquire(state, now, cost)[1].retry_after
    changed = data.draw(st.integers(now, told))
    if after.eases(before):
        assert after.acquire(after.adopt(before, state, changed), told, cost)[1].allowed


@every_algorithm
@given(data=st.data(), rate=rates)
def test_what_is_charged_stays_charged_when_a_limit_changes(make: Any, data: st.DataObject, rate: Rate) -> None:
    before = make(rate)
    after = data.draw(st.sampled_from(sorted(MAKERS.items())))[1](data.draw(rates))  # type: ignore[operator]
    trace = data.draw(traces(before))
    state, _ = run(before, trace)
    now = trace[-1][0] + data.draw(st.integers(0, rate.per))
    used = before.used(state, now)
    if isinstance(before, SlidingLog) and isinstance(after, SlidingLog):  # it knows what a shorter one still sees
        used = min(used, after.used(state, now))
    assert after.used(after.adopt(before, state, now), now) == used
    assert before.acquire(before.adopt(before, state, now), now, 1)[1] == before.acquire(state, now, 1)[1]


def test_a_higher_limit_eases_a_lower_one_and_not_the_other_way_round() -> None:
    for make in MAKERS.values():
        low, high = make(Rate(5, 100, 5)), make(Rate(9, 100, 9))  # type: ignore[operator]
        assert high.eases(low)
        assert low.eases(low)
        assert not low.eases(high)
        assert not high.eases(FixedWindow(Rate(1, 77, 1)))


def test_a_lower_limit_of_a_fixed_window_comes_with_the_next_one() -> None:
    assert FixedWindow(Rate(5, 100, 5)).replenished(250) == 300
    assert TokenBucket(Rate(5, 100, 5)).replenished(250) == 250


# ------------------------------------------------------------------ a pause


@every_algorithm
@given(data=st.data(), rate=rates)
def test_a_paused_state_grants_nothing_before_its_time(make: Any, data: st.DataObject, rate: Rate) -> None:
    algorithm = make(rate)
    trace = data.draw(traces(algorithm))
    state, _ = run(algorithm, trace)
    now = trace[-1][0]
    until = now + data.draw(st.integers(1, 3 * rate.per))
    paused = pausing.pause(algorithm, state, now, until)
    moment = data.draw(st.integers(now, until - 1))
    kept, decision = pausing.acquire(algorithm, paused, moment, 1)
    assert not decision.allowed
    assert not pausing.idle(algorithm, paused, moment)
    then = moment + decision.retry_after
    assert then >= until
    assert pausing.acquire(algorithm, kept, then, 1)[1].allowed
    assert not pausing.acquire(algorithm, kept, then - 1, 1)[1].allowed
    assert pausing.used(algorithm, kept, moment + decision.reset_after) == 0


@every_algorithm
@given(data=st.data(), rate=rates)
def test_a_pause_outlives_adjustments_and_other_limits(make: Any, data: st.DataObject, rate: Rate) -> None:
    algorithm = make(rate)
    now = data.draw(st.integers(0, rate.per))
    until = now + data.draw(st.integers(1, 3 * rate.per))
    paused = pausing.pause(algorithm, None, now, until)
    if not isinstance(algorithm, TokenBucket):  # a bucket is emptied instead: giving back what was not taken refills it
        given_back = pausing.adjust(algorithm, paused, now, -5)
        assert not pausing.acquire(algorithm, given_back, until - 1, 1)[1].allowed
        other = data.draw(st.sampled_from(sorted(MAKERS.items())))[1](data.draw(rates))  # type: ignore[operator]
        adopted = pausing.adopt(other, algorithm, paused, now)
        assert not pausing.acquire(other, adopted, until - 1, 1)[1].allowed
    longer = pausing.pause(algorithm, pausing.pause(algorithm, None, now, until), now, until - 1)
    assert not pausing.acquire(algorithm, longer, until - 1, 1)[1].allowed


# ------------------------------------------------------------------ one of your own


def test_an_algorithm_must_say_how_it_decides() -> None:
    bare = Algorithm(Rate(1, 1, 1))
    with pytest.raises(TypeError, match="Algorithm does not say how it decides"):
        bare.acquire(None, 0, 1)
    with pytest.raises(TypeError, match="Algorithm does not say what is used"):
        bare.used(None, 0)
    with pytest.raises(TypeError, match="Algorithm does not say how to charge"):
        bare.charged(0, 1)


def test_a_log_forgets_what_is_out_of_sight() -> None:
    algorithm, state = SlidingLog(Rate(10, 100, 10)), None
    for now in range(0, 100_000, 10):
        state, decision = algorithm.acquire(state, now, 1)
        assert decision.allowed
    assert state is not None
    assert len(state.grants) <= 64
