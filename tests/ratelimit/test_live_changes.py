"""Limits that change while they work: more at once, less only when nothing that was told becomes a lie."""

from __future__ import annotations

from math import ceil
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from everkeel import ConfigError, RateLimitedError, rate_limit
from everkeel.events import ModeChanged, Reconfigured
from everkeel.testing import EventRecorder

SECOND = 1_000_000_000
ALGORITHMS = ("token_bucket", "leaky_bucket", "fixed_window", "sliding_window_log", "sliding_window_counter")
keyed_or_not = pytest.mark.parametrize("keyed", [False, True], ids=["one", "keyed"])


def who(user: Any = None, *rest: Any) -> Any:
    return user


def whose(keyed: bool) -> dict[str, Any]:
    return {"key": "ann"} if keyed else {}


def rejected(call: Any, *args: Any) -> float:
    """A call is turned away; answers what it was told."""
    with pytest.raises(RateLimitedError) as caught:
        call(*args)
    assert caught.value.retry_after is not None
    return caught.value.retry_after


# ------------------------------------------------------------------ more: at once


@keyed_or_not
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_higher_limit_is_in_force_at_once(form: Any, by_hand: Any, algorithm: str, keyed: bool) -> None:
    burst = {"burst": 2} if algorithm in ("token_bucket", "leaky_bucket") else {}
    limiter = rate_limit(2, per=10, algorithm=algorithm, key=who if keyed else None, clock=by_hand, **burst)
    call = form(limiter, who)
    call("ann")
    call("ann")
    rejected(call, "ann")
    limiter.reconfigure(permits=5, **({"burst": 5} if burst else {}))
    assert limiter.remaining(**whose(keyed)) == 3  # what is charged stays charged
    for _ in range(3):
        call("ann")
    rejected(call, "ann")


@keyed_or_not
def test_a_faster_rate_shortens_the_wait_at_once(form: Any, by_hand: Any, keyed: bool) -> None:
    limiter = rate_limit(1, per=10, key=who if keyed else None, clock=by_hand)
    call = form(limiter, who)
    call("ann")
    by_hand.now += 2 * SECOND
    assert rejected(call, "ann") == 8
    limiter.reconfigure(per=5)
    assert rejected(call, "ann") == 4  # eight tenths of a permit are charged, and each takes five seconds now


# ------------------------------------------------------------------ less: when nothing that was told becomes a lie


@keyed_or_not
@pytest.mark.parametrize("algorithm", ["token_bucket", "sliding_window_log", "sliding_window_counter"])
def test_a_lower_limit_is_in_force_at_once_if_nobody_was_turned_away(
    form: Any, by_hand: Any, algorithm: str, keyed: bool
) -> None:
    limiter = rate_limit(10, algorithm=algorithm, key=who if keyed else None, clock=by_hand)
    call = form(limiter, who)
    for _ in range(4):
        call("ann")
    limiter.reconfigure(permits=5)
    assert limiter.remaining(**whose(keyed)) == 1
    call("ann")
    rejected(call, "ann")


@keyed_or_not
def test_an_empty_bucket_that_told_nobody_does_not_hold_up_a_lower_limit(form: Any, by_hand: Any, keyed: bool) -> None:
    limiter = rate_limit(1, per=3600, key=who if keyed else None, clock=by_hand)
    form(limiter, who)("ann")
    limiter.reconfigure(per=7200)
    assert limiter.snapshot()["refill_rate"] == 1 / 7200


@keyed_or_not
@pytest.mark.parametrize("late", [0, SECOND // 20])
@pytest.mark.parametrize("algorithm", ["token_bucket", "leaky_bucket", "sliding_window_log", "sliding_window_counter"])
def test_a_lower_limit_waits_until_the_latest_retry_after_has_passed(
    form: Any, by_hand: Any, algorithm: str, keyed: bool, late: int
) -> None:
    limiter = rate_limit(4, per=4, algorithm=algorithm, key=who if keyed else None, clock=by_hand)
    call = form(limiter, who)
    for _ in range(1 if algorithm == "leaky_bucket" else 4):
        call("ann")
    told = rejected(call, "ann")
    limiter.reconfigure(permits=1, per=100)
    by_hand.now += round(told * SECOND) - 1
    rejected(call, "ann")
    assert limiter.snapshot()["refill_rate"] == 1
    by_hand.now += 1 + late
    call("ann")  # what it was told is true
    assert limiter.snapshot()["refill_rate"] == 0.01
    assert rejected(call, "ann") > 40


@keyed_or_not
def test_only_one_request_is_decided_by_the_limit_before(form: Any, by_hand: Any, keyed: bool) -> None:
    limiter = rate_limit(4, per=4, key=who if keyed else None, clock=by_hand)
    call = form(limiter, who)
    for _ in range(4):
        call("ann")
    rejected(call, "ann")
    limiter.reconfigure(permits=1, per=100)
    by_hand.now += 3 * SECOND  # three permits would be there
    call("ann")
    rejected(call, "ann")


def test_each_key_may_come_back_when_it_was_told(form: Any, by_hand: Any) -> None:
    limiter = rate_limit(4, per=4, key=who, clock=by_hand)
    call = form(limiter, who)
    for user in ("ann", "bob", "cem"):
        for _ in range(4):
            call(user)
        rejected(call, user)
    limiter.reconfigure(permits=1, per=100)
    by_hand.now += SECOND
    for user in ("ann", "bob", "cem"):
        call(user)
    for user in ("ann", "bob", "cem"):
        rejected(call, user)


def test_a_lower_limit_of_a_fixed_window_comes_with_the_next_window(form: Any, by_hand: Any) -> None:
    by_hand.now = 1000 * SECOND + 1
    limiter = rate_limit(5, per=10, algorithm="fixed_window", clock=by_hand)
    call = form(limiter, who)
    call()
    limiter.reconfigure(permits=2)
    assert limiter.remaining() == 4  # nobody was turned away, but this window was announced with five
    by_hand.now += 10 * SECOND - 2
    for _ in range(4):
        call()
    rejected(call)
    by_hand.now += 1
    call()
    assert limiter.remaining() == 1


@keyed_or_not
@pytest.mark.parametrize("strategy", ["utilization", "backpressure"])
def test_what_other_strategies_told_stays_true_as_well(by_hand: Any, keyed: bool, strategy: Any) -> None:
    limiter = rate_limit(
        5, per=5, key=who if keyed else None, retry_after_strategy=strategy, min_retry_delay=20, clock=by_hand
    )
    limiter.acquire(cost=5, **whose(keyed))
    told = rejected(lambda: limiter.acquire(**whose(keyed)))
    limiter.reconfigure(permits=1, per=3600, burst=1)
    by_hand.now += ceil(told * SECOND) - 1
    limiter.try_acquire(**whose(keyed))
    assert limiter.snapshot()["refill_rate"] == 1
    by_hand.now += 1
    limiter.try_acquire(**whose(keyed))
    assert limiter.snapshot()["refill_rate"] == 1 / 3600


@keyed_or_not
def test_who_is_turned_away_while_a_lower_limit_is_on_its_way_is_told_the_truth_too(by_hand: Any, keyed: bool) -> None:
    limiter = rate_limit(4, per=4, key=who if keyed else None, clock=by_hand)
    limiter.acquire(cost=4, **whose(keyed))
    rejected(lambda: limiter.acquire(**whose(keyed)))  # told: in a second; then comes the lower limit
    limiter.reconfigure(permits=2, per=50, burst=4)
    by_hand.now += SECOND // 2
    told = rejected(lambda: limiter.acquire(cost=3, **whose(keyed)))
    assert told == 50.5  # three are charged when it comes, and two must come back at 25 seconds each
    by_hand.now += SECOND
    rejected(lambda: limiter.acquire(cost=4, **whose(keyed)))  # somebody else, with whom it comes
    by_hand.now += round(told * SECOND) - SECOND
    limiter.acquire(cost=3, **whose(keyed))


def test_a_lower_limit_that_is_taken_back_never_comes(by_hand: Any) -> None:
    limiter = rate_limit(4, per=4, clock=by_hand)
    limiter.acquire(cost=4)
    rejected(limiter.acquire)
    limiter.reconfigure(permits=1)
    limiter.reconfigure(permits=4)
    by_hand.now += 100 * SECOND
    assert limiter.remaining() == 4


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=120)
@given(
    trace=st.lists(
        st.one_of(
            st.tuples(st.just("call"), st.integers(1, 4)),
            st.tuples(st.just("pass"), st.sampled_from([1, 100_000_000, 333_333_333, 1_000_000_000])),
            st.tuples(st.just("permits"), st.integers(4, 9)),
            st.tuples(st.just("per"), st.sampled_from([0.5, 1, 2, 3])),
        ),
        min_size=5,
        max_size=30,
    ),
    algorithm=st.sampled_from(["token_bucket", "fixed_window", "sliding_window_log", "sliding_window_counter"]),
    keyed=st.booleans(),
)
def test_every_retry_after_that_was_given_is_true_whatever_changes(
    by_hand: Any, trace: list[Any], algorithm: str, keyed: bool
) -> None:
    """A caller who is turned away, and comes back when it was told to, gets in: if nobody else took anything since and
    nobody lowered the limit for a second time."""
    limiter = rate_limit(6, algorithm=algorithm, key=who if keyed else None, clock=by_hand)
    for position, (deed, what) in enumerate(trace):
        if deed == "pass":
            by_hand.now += what
        elif deed in ("permits", "per"):
            limiter.reconfigure(**{deed: what})
        else:
            try:
                limiter.acquire(cost=what, **whose(keyed))
            except RateLimitedError as error:
                if position % 3 == 0:  # one change while it is away
                    limiter.reconfigure(permits=4 + position % 5)
                by_hand.now += round((error.retry_after or 0) * SECOND)
                limiter.acquire(cost=what, **whose(keyed))


# ------------------------------------------------------------------ keys


def test_what_is_charged_to_keys_stays_charged_whatever_changes(form: Any, by_hand: Any) -> None:
    limiter = rate_limit(6, per=6, key=who, clock=by_hand)
    call = form(limiter, who)
    for n in range(6):
        for _ in range(n):
            call(n)
    for changes in ({"permits": 7}, {"permits": 12, "algorithm": "sliding_window_log"}, {"algorithm": "token_bucket"}):
        limiter.reconfigure(**changes)
    for n in range(6):
        assert limiter.remaining(key=n) == 12 - n


def test_many_keys_are_not_walked_through_when_the_limit_changes(by_hand: Any) -> None:
    limiter = rate_limit(6, key=who, clock=by_hand)
    for n in range(2000):
        limiter.acquire(key=n)
    limiter.reconfigure(permits=7)
    ledger = limiter.limiter.door.books
    assert (len(ledger.states), len(ledger._older)) == (0, 2000)
    limiter.acquire(key=5)
    assert (len(ledger.states), len(ledger._older)) == (1, 1999)
    limiter.reconfigure(permits=9)  # and again, before all of them were seen
    assert limiter.remaining(key=5) == 7
    assert limiter.remaining(key=6) == 8
    assert limiter.snapshot()["keys"] == 2000


@keyed_or_not
def test_a_table_of_limits_can_change(form: Any, by_hand: Any, keyed: bool) -> None:
    limiter = rate_limit(3, key=who, clock=by_hand)
    call = form(limiter, who)
    call("ann")
    call("bob")
    limiter.reconfigure(limits={"ann": 10})
    assert (limiter.remaining(key="ann"), limiter.remaining(key="bob")) == (9, 2)
    call("ann")
    limiter.reconfigure(limits=None)
    assert (limiter.remaining(key="ann"), limiter.remaining(key="bob")) == (1, 2)


def test_a_smaller_table_waits_until_what_was_told_has_passed(by_hand: Any) -> None:
    limiter = rate_limit(1, key=who, limits={"ann": 10}, clock=by_hand)
    limiter.acquire(key="ann", cost=10)
    told = rejected(lambda: limiter.acquire(key="ann", cost=5))
    limiter.reconfigure(limits={"ann": 5})
    by_hand.now += round(told * SECOND)
    limiter.acquire(key="ann", cost=5)


# ------------------------------------------------------------------ the rest of the settings


def test_the_cost_can_change(form: Any, by_hand: Any) -> None:
    limiter = rate_limit(10, clock=by_hand)
    call = form(limiter, who)
    call()
    limiter.reconfigure(cost=4)
    call()
    assert limiter.remaining() == 5
    limiter.reconfigure(cost=lambda user: user)
    call(2)
    assert limiter.remaining() == 3


@pytest.mark.parametrize("change", [{"exclude": lambda user: user == "x"}, {"drain_on": lambda answer: False}])
def test_a_woven_function_notices_every_setting(form: Any, by_hand: Any, admitted: Any, change: Any) -> None:
    limiter = rate_limit(1, clock=by_hand)
    ask = admitted(form(limiter, who))
    ask("x")
    limiter.reconfigure(**change)
    assert ask("x") == ("exclude" in change)
    assert not ask("y")


def test_a_wrong_change_changes_nothing(by_hand: Any) -> None:
    limiter = rate_limit(5, "search", clock=by_hand)
    with pytest.raises(ConfigError, match=r"rate limit 'search': permits must be at least 1 \(got 0\)"):
        limiter.reconfigure(permits=0)
    assert limiter.remaining() == 5


def test_changes_are_told(by_hand: Any, heard: EventRecorder) -> None:
    limiter = rate_limit(5, "search", clock=by_hand)
    limiter.reconfigure(permits=7, mode="shadow")
    assert [event.changes for event in heard.of(Reconfigured)] == [{"permits": (5, 7), "mode": ("enforce", "shadow")}]
    assert [(event.before, event.mode) for event in heard.of(ModeChanged)] == [("enforce", "shadow")]


def test_a_derived_limiter_has_a_state_of_its_own(form: Any, by_hand: Any) -> None:
    limiter = rate_limit(2, "search", key=who, max_keys=7, clock=by_hand)
    call = form(limiter, who)
    call("ann")
    other = limiter.derive("other", permits=9)
    assert (other.name, other.max_keys, other.key_of, other.clock) == ("other", 7, who, by_hand)
    assert (limiter.remaining(key="ann"), other.remaining(key="ann")) == (1, 9)


@keyed_or_not
def test_starting_over_forgets_everything(form: Any, by_hand: Any, keyed: bool) -> None:
    limiter = rate_limit(1, key=who if keyed else None, clock=by_hand)
    call = form(limiter, who)
    call("ann")
    rejected(call, "ann")
    limiter.start_over()
    assert call("ann") == "ann"
    assert (limiter.snapshot()["success"], limiter.snapshot()["rejected"]) == (1, 0)
