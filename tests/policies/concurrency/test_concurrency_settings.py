"""What a concurrency limit may be set to."""

from __future__ import annotations

import pytest

from everkeel import ConfigError, concurrency_limit, guard, policies_of, priority

pytestmark = pytest.mark.usefixtures("clock")

_TABLE = "must be a table from priority, highest first, to its guaranteed share; the shares must not exceed 1"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"algorithm": "bbr"}, "algorithm must be 'aimd' or 'vegas' or 'gradient2' (got 'bbr')"),
        ({"initial": 0}, "initial must be at least 1 (got 0)"),
        ({"initial": 2, "floor": 5}, "initial must be from floor=5 to ceiling=1000 (got 2)"),
        ({"initial": 20, "ceiling": 10}, "initial must be from floor=1 to ceiling=10 (got 20)"),
        ({"floor": 0}, "floor must be at least 1 (got 0)"),
        ({"ceiling": "many"}, "ceiling must be a whole number of at least 1 (got 'many')"),
        ({"max_latency": 0}, "max_latency must be more than 0 seconds, or None (no guardrail) (got 0)"),
        ({"queue": -1}, "queue must be at least 0 (got -1)"),
        ({"max_wait": -1}, "max_wait must not be negative, or None (as long as it takes) (got -1)"),
        ({"order": "random"}, "order must be 'oldest' or 'newest' (got 'random')"),
        ({"priorities": {}}, f"priorities {_TABLE}, or None (all are alike) (got {{}})"),
        (
            {"priorities": {"a": 0.6, "b": 0.6}},
            f"priorities {_TABLE}, or None (all are alike) (got {{'a': 0.6, 'b': 0.6}})",
        ),
        ({"priorities": {"a": -0.1}}, f"priorities {_TABLE}, or None (all are alike) (got {{'a': -0.1}})"),
        (
            {"priority": 1},
            "priority must be the name of a priority, or a function of the call's arguments, or None (the highest) "
            "(got 1)",
        ),
        ({"priority": "vip"}, "priority must be one of priorities, or a function (got 'vip')"),
        ({"on": 5}, "on must be exception classes or predicates on an exception, not 5 (got 5)"),
        (
            {"ignore": 5},
            "ignore must be exception classes or predicates on an exception, not 5, or None (nothing) (got 5)",
        ),
        ({"causes": "no"}, "causes must be True or False (got 'no')"),
        ({"mode": "on"}, "mode must be 'enforce' or 'shadow' or 'off' (got 'on')"),
        ({"key": "host"}, "key must be a function of the call's arguments (got 'host')"),
        ({"key": len, "max_keys": 0}, "max_keys must be a whole number of at least 1 (got 0)"),
    ],
)
def test_a_wrong_setting_says_whose_it_is_what_it_got_and_what_it_allows(settings, message):
    with pytest.raises(ConfigError) as raised:
        concurrency_limit("orders", **settings)
    assert str(raised.value) == f"concurrency limit 'orders': {message}"


@pytest.mark.parametrize("name", ["", None, 5])
def test_a_priority_has_a_name(name):
    with pytest.raises(ConfigError) as raised, priority(name):
        pass
    assert str(raised.value) == f"priority: name must be a non-empty string (got {name!r})"


def test_guard_knows_it():
    policies = policies_of(guard(concurrency_limit=30, retry=2)(lambda: None))
    assert [policy.type for policy in policies] == ["retry", "concurrency_limit"]
    assert policies[1].config.initial == 30


def test_another_algorithm_may_be_chosen_while_it_works_and_what_was_learned_stays():
    policy = concurrency_limit("orders", initial=10)
    for _ in range(100):
        policy.call(lambda: None)
    limit = policy.snapshot()["limit"]
    policy.reconfigure(algorithm="vegas", ceiling=500)
    assert policy.snapshot()["limit"] == limit


def test_a_change_of_bounds_moves_the_limit_into_them():
    policy = concurrency_limit("orders", initial=10)
    policy.reconfigure(initial=4, ceiling=5)
    assert policy.snapshot()["limit"] == 5
    policy.reconfigure(initial=8, ceiling=1000, floor=7)
    assert policy.snapshot()["limit"] == 7


def test_start_over_begins_at_the_initial_limit():
    policy = concurrency_limit("orders", initial=10)
    with pytest.raises(TimeoutError):
        policy.call(_times_out)
    policy.start_over()
    assert policy.snapshot()["limit"] == 10


def _times_out() -> None:
    raise TimeoutError


def test_the_snapshot_has_all_there_is_to_know():
    assert concurrency_limit("orders").snapshot() == {
        "name": "orders",
        "type": "concurrency_limit",
        "mode": "enforce",
        "success": 0,
        "failure": 0,
        "ignored": 0,
        "rejected": 0,
        "would": {},
        "running": 0,
        "waiting": 0,
        "limit": 20,
        "queued": 0,
        "waited": 0.0,
        "baseline": None,
    }
