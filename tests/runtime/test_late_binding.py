"""Configuration that is loaded after functions were decorated still applies: to all policies, or to none."""

from __future__ import annotations

from types import MappingProxyType

import pytest

from everkeel import ConfigError, retry
from everkeel.runtime import settings
from everkeel.runtime.configured import override_with
from everkeel.testing import Flaky


def configured(**by_name):
    """A source of configuration: what it says about each policy, by name."""
    return lambda policy_type, name: by_name.get(name, {})


def test_it_applies_to_a_policy_made_before(gate):
    policy = gate("payments", limit=3)
    override_with(configured(payments={"limit": 5}))
    assert policy.config.limit == 5


def test_it_applies_to_a_policy_made_after(gate):
    override_with(configured(payments={"limit": 5}))
    assert gate("payments", limit=3).config.limit == 5


def test_it_applies_to_a_function_decorated_and_called_before(fresh_everkeel):
    fetch = Flaky(OSError)
    guarded = retry("fetch", attempts=2, backoff=0)(lambda: fetch())
    with pytest.raises(OSError):
        guarded()
    override_with(configured(fetch={"attempts": 5}))
    with pytest.raises(OSError):
        guarded()
    assert fetch.calls == 2 + 5


def test_it_applies_to_a_policy_that_takes_the_name_of_its_function(fresh_everkeel):
    override_with(lambda policy_type, name: {"attempts": 7} if name.endswith("fetch") else {})
    policy = retry()

    @policy
    def fetch() -> None: ...

    assert policy.config.attempts == 7
    assert callable(fetch)


def test_it_is_asked_by_type_and_name(gate):
    asked = []
    policies = gate("payments"), retry("payments")
    override_with(lambda policy_type, name: asked.append((policy_type, name)) or {})
    assert asked == [("gate", "payments"), ("retry", "payments")]
    assert len(policies) == 2


def test_a_policy_without_a_name_is_left_alone(gate):
    policy = gate(limit=3)
    override_with(lambda policy_type, name: {"limit": 5})
    assert policy.config.limit == 3


def test_settings_it_does_not_mention_stay_as_in_the_code(fresh_everkeel):
    policy = retry("fetch", attempts=5, backoff=0)
    override_with(configured(fetch={"max_duration": 2}))
    assert (policy.config.attempts, policy.config.max_duration) == (5, 2.0)


def test_what_was_changed_live_wins_over_it(gate):
    policy = gate("payments", limit=3)
    policy.reconfigure(limit=4)
    override_with(configured(payments={"limit": 5, "mode": "shadow"}))
    assert (policy.config.limit, policy.mode) == (4, "shadow")


def test_when_it_is_taken_away_the_code_holds_again(gate):
    policy = gate("payments", limit=3)
    override_with(configured(payments={"limit": 5}))
    override_with(None)
    assert policy.config.limit == 3


def test_a_newer_one_takes_the_place_of_the_older(gate):
    policy = gate("payments", limit=3)
    override_with(configured(payments={"limit": 5}))
    override_with(configured(payments={"mode": "off"}))
    assert (policy.config.limit, policy.mode) == (3, "off")


def test_any_mapping_will_do(gate):
    policy = gate("payments")
    override_with(lambda policy_type, name: MappingProxyType({"limit": 5}))
    assert policy.config.limit == 5


# ------------------------------------------------------------------ all or nothing


def test_a_value_that_is_not_allowed_changes_nobody(gate):
    first, second, third = gate("first", limit=1), gate("second", limit=2), gate("third", limit=3)
    override_with(configured(first={"limit": 10}))
    with pytest.raises(ConfigError) as raised:
        override_with(configured(first={"limit": 20}, second={"limit": 0}, third={"limit": 30}))
    assert str(raised.value) == "gate 'second': limit must be at least 1 (got 0)"
    assert [policy.config.limit for policy in (first, second, third)] == [10, 2, 3]


def test_a_setting_that_does_not_exist_changes_nobody(gate):
    first, second = gate("first", limit=1), gate("second", limit=2)
    with pytest.raises(ConfigError, match="gate 'second': has no setting 'limt'; did you mean 'limit'"):
        override_with(configured(first={"limit": 10}, second={"limt": 20}))
    assert [policy.config.limit for policy in (first, second)] == [1, 2]


def test_a_source_that_raises_changes_nobody(gate):
    def source(policy_type: str, name: str) -> dict[str, object]:
        return {"first": {"limit": 10}}[name]

    first, second = gate("first", limit=1), gate("second", limit=2)
    with pytest.raises(KeyError):
        override_with(source)
    assert [policy.config.limit for policy in (first, second)] == [1, 2]
    assert settings.overrides("gate", "second") == {}


def test_nobody_is_told_of_a_change_that_did_not_happen(gate, record_events):
    policies = gate("first", limit=1), gate("second", limit=2)
    record_events.clear()
    with pytest.raises(ConfigError):
        override_with(configured(first={"limit": 10}, second={"limit": 0}))
    assert record_events.names() == []
    assert len(policies) == 2


def test_a_policy_that_cannot_be_as_configured_is_not_made(gate, fresh_everkeel):
    override_with(configured(payments={"limit": 0}))
    with pytest.raises(ConfigError, match="gate 'payments': limit must be at least 1"):
        gate("payments")
    override_with(None)
    assert gate("payments").config.limit == 10
