"""What a bulkhead may be set to."""

from __future__ import annotations

from datetime import timedelta

import pytest

from everkeel import ConfigError, bulkhead, bulkhead_pool, policies_of

pytestmark = pytest.mark.usefixtures("clock")

WRONG = [
    ({"limit": 0}, "bulkhead 'db': limit must be at least 1 (got 0)"),
    ({"limit": 1.5}, "bulkhead 'db': limit must be a whole number of at least 1 (got 1.5)"),
    ({"limit": True}, "bulkhead 'db': limit must be a whole number of at least 1 (got True)"),
    ({"limit": None}, "bulkhead 'db': limit must be a whole number of at least 1 (got None)"),
    ({"queue": -1}, "bulkhead 'db': queue must be at least 0 (got -1)"),
    ({"queue": "many"}, "bulkhead 'db': queue must be a whole number of at least 0 (got 'many')"),
    ({"max_wait": -1}, "bulkhead 'db': max_wait must not be negative, or None (as long as it takes) (got -1)"),
    (
        {"max_wait": "1s"},
        "bulkhead 'db': max_wait must be seconds as a number, or a timedelta, or None (as long as it takes) (got '1s')",
    ),
    ({"order": "fair"}, "bulkhead 'db': order must be 'oldest' or 'newest' (got 'fair')"),
    ({"mode": "on"}, "bulkhead 'db': mode must be 'enforce' or 'shadow' or 'off' (got 'on')"),
]


@pytest.mark.parametrize("make", [bulkhead, bulkhead_pool])
@pytest.mark.parametrize(("settings", "message"), WRONG)
def test_a_wrong_setting_says_whose_it_is_what_it_got_and_what_it_allows(make, settings, message):
    with pytest.raises(ConfigError) as raised:
        make(**{"limit": 1, "name": "db", **settings})
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"key": "name"}, "bulkhead 'db': key must be a function of the call's arguments (got 'name')"),
        ({"key": len, "max_keys": 0}, "bulkhead 'db': max_keys must be a whole number of at least 1 (got 0)"),
        ({"name": ""}, "bulkhead: name must be a non-empty string (got '')"),
    ],
)
def test_a_wrong_key_or_name_says_so(settings, message):
    with pytest.raises(ConfigError) as raised:
        bulkhead(**{"limit": 1, "name": "db", **settings})
    assert str(raised.value) == message


def test_a_key_that_is_not_hashable_says_so():
    policy = bulkhead(1, "db", key=lambda names: names)
    with pytest.raises(ConfigError) as raised:
        policy.call(len, ["a"])
    assert str(raised.value) == "bulkhead 'db': key must return something hashable, such as a string (got ['a'])"


def test_an_unknown_setting_is_named_with_what_was_meant():
    with pytest.raises(ConfigError) as raised:
        bulkhead(1, "db").reconfigure(limits=3)
    assert str(raised.value) == "bulkhead 'db': has no setting 'limits'; did you mean 'limit'?"


def test_a_wrong_change_changes_nothing(capacity):
    policy = bulkhead(2, "db")
    with pytest.raises(ConfigError):
        policy.reconfigure(limit=5, queue=-1)
    assert capacity(policy) == 2


def test_max_wait_may_be_a_timedelta():
    assert bulkhead(1, max_wait=timedelta(milliseconds=500)).config.max_wait == 0.5


def test_it_takes_the_name_of_the_function_it_decorates():
    @bulkhead(1)
    def query() -> None: ...

    name = policies_of(query)[0].name
    assert name == f"{__name__}.test_it_takes_the_name_of_the_function_it_decorates.<locals>.query"


def test_derive_makes_a_bulkhead_of_its_own(capacity):
    policy = bulkhead(1, "db", queue=3, key=lambda name: name, max_keys=7)
    other = policy.derive("other", limit=2)
    with policy.entry(key="a"):
        assert capacity(other, key="a") == 2
    assert (other.name, other.config.order, other.state.cap) == ("other", "oldest", 7)
