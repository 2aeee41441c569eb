"""What a hedge may be set to, what it refuses to guard, and its live changes."""

from __future__ import annotations

import copy
import pickle
from datetime import timedelta
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everkeel import ConfigError, HedgeTimeoutError, guard, hedge, operation, pipeline, policies_of, retry
from everkeel.policies.hedge.latency import Latencies

pytestmark = pytest.mark.usefixtures("clock")
_UNKNOWN = "or None (nothing)"


async def lookup() -> str:
    return "answer"


@operation(idempotent=False)
async def charge() -> None: ...


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"attempts": 1}, "attempts must be at least 2 (got 1)"),
        ({"attempts": 2.5}, "attempts must be a whole number of at least 2 (got 2.5)"),
        (
            {"delay": -1},
            "delay must be seconds that are not negative, or a function of the attempt to start, "
            "or None (learned from traffic) (got -1)",
        ),
        (
            {"delay": "1s"},
            "delay must be seconds that are not negative, or a function of the attempt to start, "
            "or None (learned from traffic) (got '1s')",
        ),
        ({"quantile": 0}, "quantile must be a share above 0 and up to 1 (got 0)"),
        ({"quantile": 95}, "quantile must be a share above 0 and up to 1 (got 95)"),
        ({"initial_delay": -0.1}, "initial_delay must not be negative (got -0.1)"),
        ({"max_duration": 0}, "max_duration must be more than 0 seconds, or None (no bound) (got 0)"),
        ({"budget": 0.1}, "budget must be a RetryBudget, or None (no budget) (got 0.1)"),
        (
            {"on": 5},
            "on must be exception classes or predicates on an exception, not 5 (got 5)",
        ),
        (
            {"ignore": "OSError"},
            f"ignore must be exception classes or predicates on an exception, not 'OSError', {_UNKNOWN} "
            "(got 'OSError')",
        ),
        ({"causes": 1}, "causes must be True or False (got 1)"),
        ({"dispose": 7}, "dispose must be a function of a result, or None (dropped) (got 7)"),
        ({"idempotent": False}, "idempotent must be True: a hedge makes calls twice (got False)"),
        ({"max_abandoned": 0}, "max_abandoned must be at least 1 (got 0)"),
        ({"mode": "on"}, "mode must be 'enforce' or 'shadow' or 'off' (got 'on')"),
    ],
)
def test_a_wrong_setting_says_whose_it_is_what_it_got_and_what_it_allows(settings, message):
    with pytest.raises(ConfigError) as raised:
        hedge("lookup", **settings)
    assert str(raised.value) == f"hedge 'lookup': {message}"


def test_a_delay_may_be_a_timedelta():
    assert hedge(delay=timedelta(milliseconds=50)).config.delay == 0.05


def test_its_budget_is_its_own_by_default_and_may_be_none():
    budget = hedge().config.budget
    assert (budget.ratio, budget.floor) == (0.1, 1.0)
    assert hedge(budget=None).config.budget is None


def test_it_cannot_be_a_block():
    with pytest.raises(TypeError, match="a block cannot run twice beside itself"):
        with hedge("lookup"):
            pass


# ------------------------------------------------------------------ operations that must not be repeated


def test_it_refuses_a_function_that_is_declared_not_idempotent():
    with pytest.raises(ConfigError) as raised:
        hedge("pay")(charge)
    assert str(raised.value) == (
        "hedge 'pay': cannot guard charge: it is declared idempotent=False, and a hedge makes calls twice"
    )


@pytest.mark.parametrize(
    "call",
    [
        lambda fn: hedge().acall(fn),
        lambda fn: hedge().acall(partial(fn)),
        lambda fn: pipeline(hedge(), retry()).acall(fn),
        lambda fn: guard(hedge=1.0, retry=2).acall(fn),
        lambda fn: hedge().acall(retry()(fn)),
    ],
    ids=["acall", "partial", "pipeline", "guard", "decorated"],
)
def test_it_refuses_it_in_every_form_of_calling(call, clock):
    with pytest.raises(ConfigError, match="declared idempotent=False"):
        clock.run(call(charge))


def test_it_refuses_a_sync_function_too():
    with pytest.raises(ConfigError, match="declared idempotent=False"):
        hedge().call(operation(idempotent=False)(lambda: None))


def test_a_function_that_is_declared_after_it_was_hedged_is_refused_then():
    with pytest.raises(ConfigError, match="declared idempotent=False"):
        operation(idempotent=False)(hedge()(lookup))


def test_an_operation_that_is_idempotent_may_be_hedged(clock):
    assert clock.run(hedge()(operation(idempotent=True)(lookup))()) == "answer"


# ------------------------------------------------------------------ live changes, the rest


def test_guard_knows_it():
    assert [policy.type for policy in policies_of(guard(hedge=True, timeout=1)(lookup))] == ["hedge", "timeout"]


def test_a_new_budget_counts_the_traffic_from_then_on(clock, service):
    from everkeel import RetryBudget

    policy = hedge("lookup", delay=0)
    policy.reconfigure(budget=RetryBudget(ratio=0, floor=0))
    assert clock.run(policy(service(1).acall)()) == 1
    assert policy.snapshot()["refused"] == 1


def test_max_duration_may_be_set_and_taken_away_while_it_works(clock, service):
    policy = hedge("lookup", delay=1)
    call = policy(service(5).acall)
    clock.run(call())
    policy.reconfigure(max_duration=2)
    with pytest.raises(HedgeTimeoutError):
        clock.run(call())
    policy.reconfigure(max_duration=None)
    assert clock.run(call()) == 5


def test_start_over_forgets_what_was_learned(clock, service):
    policy = hedge("lookup")
    for _ in range(30):
        clock.run(policy(service(0.5).acall)())
    policy.start_over()
    assert (policy.snapshot()["delay"], policy.snapshot()["success"]) == (0.1, 0)


@pytest.mark.parametrize("duplicate", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])
def test_the_error_survives_copying_and_pickling(duplicate):
    again = duplicate(HedgeTimeoutError("lookup", 2.0, "hedge"))
    assert (again.policy, again.seconds, again.limit) == ("lookup", 2.0, "hedge")


# ------------------------------------------------------------------ how long calls usually take


@given(st.lists(st.floats(0, 1e6), min_size=20, max_size=700), st.floats(0.01, 1))
def test_so_long_does_that_share_of_the_latest_calls_take_at_most(latencies, share):
    latest = Latencies()
    for one in latencies:
        latest.record(one)
    usual, seen = latest.quantile(share, unknown=-1.0), latencies[-500:]
    assert usual in seen
    assert sum(one <= usual for one in seen) >= share * len(seen)
    assert sum(one < usual for one in seen) <= share * len(seen)


@given(st.lists(st.floats(0, 1e6), max_size=19))
def test_too_few_calls_say_nothing(latencies):
    latest = Latencies()
    for one in latencies:
        latest.record(one)
    assert latest.quantile(0.95, unknown=0.1) == 0.1
