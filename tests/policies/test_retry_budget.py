"""How many retries the traffic as a whole may afford."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everkeel import ConfigError, RetryBudget, events, explain, retry
from everkeel.policies.retry.budget import BudgetWindow
from everkeel.testing import Flaky


def calls_under(policy, outcomes: list[object], times: int = 1) -> Flaky:
    """So many calls of one script; what they raised is of no interest here."""
    script = Flaky(*outcomes)
    for _ in range(times):
        try:
            policy.call(script)
        except ConnectionError:
            pass
    return script


def test_a_budget_that_is_spent_ends_the_retries(retried, heard):
    policy = retry("fetch", backoff=0, attempts=99, budget=RetryBudget(ratio=0, floor=0.3))
    fetch = Flaky(ConnectionError("refused"))
    with pytest.raises(ConnectionError) as raised:
        retried(policy, fetch)()
    assert fetch.calls == 1 + 3
    assert heard.of(events.RetryGaveUp)[0].reason == "budget"
    assert explain(raised.value).decisions[0].reason == "its retry budget is spent"
    assert policy.snapshot()["gave_up"] == {"budget": 1}


def test_a_budget_without_ratio_and_floor_allows_no_retry(retried):
    fetch = Flaky(ConnectionError)
    with pytest.raises(ConnectionError):
        retried(retry("fetch", backoff=0, budget=RetryBudget(ratio=0, floor=0)), fetch)()
    assert fetch.calls == 1


def test_a_success_costs_no_budget(retried):
    budget = RetryBudget()
    retried(retry("fetch", budget=budget), Flaky("answer"))()
    assert budget.snapshot() == {"ratio": 0.2, "floor": 3.0, "allowed": 0, "refused": 0}


def test_retries_are_a_share_of_the_traffic(clock):
    policy = retry("fetch", backoff=0, attempts=99, budget=RetryBudget(ratio=0.1, floor=0))
    calls_under(policy, ["answer"], 99)
    assert calls_under(policy, [ConnectionError]).calls == 1 + 10  # a tenth of 99 and the call itself


def test_the_floor_lets_a_quiet_service_retry(clock):
    policy = retry("fetch", backoff=0, attempts=99, budget=RetryBudget(ratio=0.1, floor=0.5))
    assert calls_under(policy, [ConnectionError]).calls == 1 + 5


def test_traffic_of_a_while_ago_does_not_count(clock):
    policy = retry("fetch", backoff=0, attempts=99, budget=RetryBudget(ratio=1, floor=0))
    calls_under(policy, ["answer"], 100)
    calls_under(policy, [ConnectionError])
    clock.advance(60)
    assert calls_under(policy, [ConnectionError], 1).calls < 5


def test_a_day_of_traffic_before_the_first_failure_is_not_a_days_worth_of_retries(clock):
    policy = retry("fetch", backoff=0, attempts=9999, budget=RetryBudget(ratio=0.1, floor=0))
    calls_under(policy, ["answer"], 3600)
    clock.advance(3600)
    assert calls_under(policy, [ConnectionError]).calls <= 1 + 2  # one call a second, for ten seconds


def test_a_policy_brings_no_traffic_from_before_it_had_the_budget(clock):
    budget = RetryBudget(ratio=0.5, floor=0)
    policy = retry("fetch", backoff=0, attempts=99)
    calls_under(policy, ["answer"], 100)
    policy.reconfigure(budget=budget)
    assert calls_under(policy, [ConnectionError]).calls == 1  # half a retry for the one call


def test_policies_that_share_a_budget_share_its_traffic(clock):
    budget = RetryBudget(ratio=0.1, floor=0)
    stock, prices = (retry(name, backoff=0, attempts=99, budget=budget) for name in ("stock", "prices"))
    calls_under(stock, ["answer"], 60)
    calls_under(prices, ["answer"], 39)
    assert calls_under(stock, [ConnectionError]).calls + calls_under(prices, [ConnectionError]).calls == 2 + 10


def test_a_budget_is_replenished_as_time_passes(clock):
    policy = retry("fetch", backoff=0, attempts=99, budget=RetryBudget(ratio=0, floor=1))
    assert calls_under(policy, [ConnectionError]).calls == 1 + 10
    clock.advance(5)
    assert calls_under(policy, [ConnectionError]).calls == 1
    clock.advance(5)
    assert calls_under(policy, [ConnectionError]).calls == 1 + 10


def test_a_policy_made_before_virtual_time_began_is_replenished_too(clock):
    policy = retry("fetch", backoff=0, attempts=99, budget=RetryBudget(ratio=0, floor=1))
    policy.config.budget._window._last = 1e6  # as if it had been made in real time
    calls_under(policy, [ConnectionError])
    clock.advance(20)
    assert calls_under(policy, [ConnectionError]).calls == 1 + 10


def test_an_error_not_to_retry_on_costs_no_budget(retried):
    budget = RetryBudget()
    with pytest.raises(ValueError):
        retried(retry("fetch", on=OSError, budget=budget), Flaky(ValueError))()
    assert (budget.snapshot()["allowed"], budget.snapshot()["refused"]) == (0, 0)


def test_the_last_attempt_costs_no_budget(retried):
    budget = RetryBudget()
    with pytest.raises(ConnectionError):
        retried(retry("fetch", backoff=0, attempts=3, budget=budget), Flaky(ConnectionError))()
    assert budget.snapshot()["allowed"] == 2


def test_a_budget_shows_what_it_is():
    assert repr(RetryBudget(ratio=0.1)) == "RetryBudget(ratio=0.1, floor=3)"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ratio": 1.5}, "retry budget: ratio must be a share from 0 to 1 (got 1.5)"),
        ({"ratio": "20%"}, "retry budget: ratio must be a share from 0 to 1 (got '20%')"),
        ({"floor": -1}, "retry budget: floor must be at least 0 (got -1)"),
        ({"floor": None}, "retry budget: floor must be a number of at least 0 (got None)"),
    ],
    ids=str,
)
def test_a_budget_that_cannot_be_says_so_when_it_is_made(settings, message):
    with pytest.raises(ConfigError) as raised:
        RetryBudget(**settings)
    assert str(raised.value) == message


# ------------------------------------------------------------------ against a model


class Ledger:
    """The same promise, counted by brute force: every second there ever was, with its calls and retries."""

    def __init__(self, ratio: Fraction, floor: Fraction) -> None:
        self.ratio, self.floor = ratio, floor
        self.calls: dict[int, Fraction] = {}
        self.retries: dict[int, int] = {}
        self.seen = self.second = 0

    def may_retry(self, second: int, calls: int) -> bool:
        share = Fraction(calls - self.seen, second - self.second + 1)
        for one in range(self.second, second + 1):
            self.calls[one] = self.calls.get(one, Fraction(0)) + share
        self.second, self.seen = second, calls
        window = range(second - 9, second + 1)
        allowed = self.ratio * sum(self.calls.get(one, Fraction(0)) for one in window) + 10 * self.floor
        if sum(self.retries.get(one, 0) for one in window) + 1 > allowed:
            return False
        self.retries[second] = self.retries.get(second, 0) + 1
        return True


steps = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 40), st.integers(1, 8)), max_size=40)


@given(st.sampled_from(["0", "1/10", "1/5", "1/2", "1"]), st.sampled_from(["0", "1/10", "1/2", "3"]), steps)
def test_a_budget_decides_as_the_model_does(ratio, floor, steps):
    ratio, floor = Fraction(ratio), Fraction(floor)
    window, ledger, second, calls = BudgetWindow(), Ledger(ratio, floor), 0, 0
    window.watch(0.0, 0)
    for passed, new, asked in steps:
        second, calls = second + passed, calls + new
        for _ in range(asked):
            decided = window.may_retry(second + 0.5, calls, float(ratio), float(floor))
            assert decided == ledger.may_retry(second, calls)


@given(steps, st.floats(0, 1), st.floats(0, 5))
def test_a_budget_never_allows_more_than_its_share_and_its_floor(steps, ratio, floor):
    window, second, calls, allowed = BudgetWindow(), 0, 0, 0
    window.watch(0.0, 0)
    for passed, new, asked in steps:
        second, calls = second + passed, calls + new
        allowed += sum(window.may_retry(float(second), calls, ratio, floor) for _ in range(asked))
    assert allowed <= ratio * calls + floor * (second + 10) + 1e-6
