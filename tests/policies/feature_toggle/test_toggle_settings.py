"""What a feature toggle may be set to, its modes, blocks, and what everybody sees of it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from datetime import UTC, datetime, time
from typing import Any

import pytest

import everkeel
from everkeel import ConfigError, FeatureDisabledError, events, explain, feature_toggle, guard, policies_of, retry
from everkeel.compose import source
from everkeel.testing import Flaky

pytestmark = pytest.mark.usefixtures("clock")

SCHEDULE = "must be (from, until) as datetimes or as times of day, with a timezone, or a list of such pairs"
KEYS = "must be several keys, such as a set of strings"
NAIVE = datetime(2026, 1, 1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"enabled": 1}, "enabled must be True or False (got 1)"),
        ({"deny": "bob"}, f"deny {KEYS} (got 'bob')"),
        ({"allow": 7}, f"allow {KEYS} (got 7)"),
        (
            {"allow": [1.5]},
            "allow must be several keys, each of which must be a string, an int, bytes, a UUID, or a tuple of those "
            "(got [1.5])",
        ),
        ({"schedule": "always"}, f"schedule {SCHEDULE}, or None (at any time) (got 'always')"),
        ({"schedule": []}, f"schedule {SCHEDULE}, or None (at any time) (got [])"),
        ({"schedule": (1, 2)}, f"schedule {SCHEDULE}, or None (at any time) (got (1, 2))"),
        (
            {"schedule": (NAIVE, None)},
            "schedule must have a timezone, as in datetime(2026, 6, 1, tzinfo=timezone.utc), or None (at any time) "
            f"(got {(NAIVE, None)!r})",
        ),
        (
            {"schedule": (time(9), time(17))},
            "schedule must have one timezone for both times of day, as in time(9, tzinfo=timezone.utc), "
            f"or None (at any time) (got {(time(9), time(17))!r})",
        ),
        (
            {"schedule": (time(9, tzinfo=UTC), time(9, tzinfo=UTC))},
            "schedule must have two different times of day, or None (at any time) "
            f"(got {(time(9, tzinfo=UTC), time(9, tzinfo=UTC))!r})",
        ),
        (
            {"schedule": (datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC))},
            "schedule must begin before it ends, or None (at any time) "
            f"(got {(datetime(2026, 1, 2, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC))!r})",
        ),
        (
            {"predicate": True},
            "predicate must be a function of the call's arguments, or None (whatever the arguments) (got True)",
        ),
        ({"share": 1.5}, "share must be a share from 0 to 1 (got 1.5)"),
        ({"share": True}, "share must be a share from 0 to 1 (got True)"),
        ({"key": "user"}, "key must be a function of the call's arguments, or None (no key) (got 'user')"),
        ({"salt": 1}, "salt must be a string, or None (the policy's name) (got 1)"),
        ({"mode": "on"}, "mode must be 'enforce' or 'shadow' or 'off' (got 'on')"),
    ],
)
def test_a_wrong_setting_says_whose_it_is_what_it_got_and_what_it_allows(settings, message):
    with pytest.raises(ConfigError) as raised:
        feature_toggle("search", **settings)
    assert str(raised.value) == f"feature toggle 'search': {message}"


@pytest.mark.parametrize("rules", [{"share": 0.5}, {"allow": {"alice"}, "share": 0.0}, {"deny": {"bob"}}])
def test_rules_about_keys_need_a_key_where_a_function_is_guarded(rules):
    policy = feature_toggle("search", **rules)
    message = (
        "feature toggle 'search': key must be a function of the call's arguments, for allow, deny and share (got None)"
    )
    for act in (lambda: policy(Flaky("new")), lambda: policy.call(str)):
        with pytest.raises(ConfigError) as raised:
            act()
        assert str(raised.value) == message


# ------------------------------------------------------------------ modes


def test_a_shadow_lets_everybody_have_it_and_counts_who_would_not(guarded, heard):
    policy = feature_toggle("search", share=0.0, mode="shadow", alternative="old")
    search = Flaky("new")
    call = guarded(policy, search)
    assert [call(), call()] == ["new", "new"]
    snapshot = policy.snapshot()
    assert (snapshot["would"], snapshot["denied"], snapshot["rejected"], snapshot["success"]) == (
        {"reject": 2},
        {},
        0,
        2,
    )
    assert [event.action for event in heard.of(events.WouldHave)] == ["reject"] * 2
    assert not heard.of(events.FeatureDenied)


def test_off_and_a_disabled_everkeel_ask_no_rule(guarded):
    policy = feature_toggle("search", enabled=False, mode="off")
    call = guarded(policy, Flaky("new"))
    assert call() == "new"
    policy.mode = "enforce"
    with pytest.raises(FeatureDisabledError):
        call()
    everkeel.disable()
    assert call() == "new"
    assert policy.is_enabled()


# ------------------------------------------------------------------ asking, blocks


def test_one_may_ask_without_calling(heard):
    policy = feature_toggle("search", allow={"alice"}, share=0.0)
    assert (policy.is_enabled("alice"), policy.is_enabled("bob"), policy.is_enabled()) == (True, False, False)
    assert (policy.snapshot()["denied"], heard.of(events.FeatureDenied)) == ({}, [])


def test_a_shadow_answers_that_everybody_has_it():
    assert feature_toggle("search", enabled=False, mode="shadow").is_enabled()


def test_a_block_begins_or_does_not(clock):
    policy = feature_toggle("search")
    with policy:
        pass
    policy.disable()
    with pytest.raises(FeatureDisabledError), policy:
        pytest.fail("the block was entered")

    async def main() -> None:
        with pytest.raises(FeatureDisabledError):
            async with policy:
                pytest.fail("the block was entered")

    clock.run(main)
    snapshot = policy.snapshot()
    assert (snapshot["success"], snapshot["rejected"], snapshot["denied"]) == (1, 2, {"disabled": 2})


def test_an_entry_is_about_its_key():
    policy = feature_toggle("search", allow={"alice"}, share=0.0)
    with policy.entry(key="alice"):
        pass
    with pytest.raises(FeatureDisabledError), policy.entry(key="bob"):
        pytest.fail("the block was entered")


def test_a_shadow_s_block_begins_and_counts():
    policy = feature_toggle("search", enabled=False, mode="shadow")
    with policy:
        pass
    assert policy.snapshot()["would"] == {"reject": 1}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"alternative": 1},
            "cannot be a block: it has an alternative, and a block no value to replace; "
            "decorate a function, or use call() or acall()",
        ),
        (
            {"predicate": lambda: True},
            "has a predicate on the call's arguments, which a block has not; "
            "decorate a function, or use call() or acall()",
        ),
        ({"deny": {"bob"}}, "has rules about keys: use entry(key=...) instead of the policy as a block"),
    ],
)
def test_where_a_block_cannot_work_it_says_what_does(settings, message):
    policy = feature_toggle("search", **settings)
    with pytest.raises(TypeError) as raised, policy:
        pytest.fail("the block was entered")
    assert str(raised.value) == f"feature toggle 'search' {message}"


def test_a_predicate_cannot_be_asked_without_arguments():
    with pytest.raises(TypeError, match=r"has a predicate on the call's arguments, which is_enabled\(\) has not"):
        feature_toggle("search", predicate=lambda: True).is_enabled()


# ------------------------------------------------------------------ being seen


def test_its_snapshot_says_everything(guarded):
    policy = feature_toggle(
        "search", deny={"bob"}, share=0.0, allow={"alice"}, key=lambda user: user, alternative="old"
    )
    call = guarded(policy, Flaky("new"))
    for user in ("alice", "bob", "carol", "dave"):
        call(user)
    assert policy.snapshot() == {
        "name": "search",
        "type": "feature_toggle",
        "mode": "enforce",
        "success": 1,
        "failure": 0,
        "ignored": 0,
        "rejected": 0,
        "would": {},
        "enabled": True,
        "share": 0.0,
        "denied": {"denied": 1, "share": 2},
        "alternative": 3,
    }


def test_a_denied_call_is_told(guarded, heard):
    policy = feature_toggle("search", deny={"bob"}, key=lambda user: user)
    with pytest.raises(FeatureDisabledError):
        guarded(policy, Flaky("new"))("bob")
    assert heard.of(events.FeatureDenied) == [
        events.FeatureDenied(policy="search", policy_type="feature_toggle", reason="denied", key="bob")
    ]


def test_its_error_explains_itself_and_survives_pickling():
    policy = feature_toggle("search", enabled=False)
    with pytest.raises(FeatureDisabledError) as raised:
        policy.call(str)
    (decision,) = explain(raised.value).decisions
    assert (decision.policy_type, decision.action) == ("feature_toggle", "rejected")
    again = pickle.loads(pickle.dumps(raised.value))
    assert (str(again), again.reason) == (str(raised.value), "disabled")


def test_a_retry_does_not_try_what_is_switched_off(guarded):
    policy = feature_toggle("search", enabled=False)
    with pytest.raises(FeatureDisabledError):
        guarded(everkeel.pipeline(retry("r", backoff=0), policy), Flaky("new"))()
    assert policy.snapshot()["rejected"] == 1


def test_guard_puts_it_outermost():
    def everybody(user: str) -> bool:
        return True

    @guard(retry=3, fallback="x", feature_toggle=everybody)
    def search(user: str) -> None: ...

    assert [policy.type for policy in policies_of(search)] == ["feature_toggle", "fallback", "retry"]
    assert policies_of(search)[0].config.predicate is everybody

    @guard(feature_toggle=True)
    def find(user: str) -> None: ...

    assert policies_of(find)[0].config.plain


def test_on_for_everybody_it_costs_one_tick():
    @feature_toggle(allow={"alice"}, key=lambda user: user)
    def search(user: str) -> str:
        return user

    search("bob")
    assert source(search) == "def search(user):\n    result = fn(user)\n    tick(ok)\n    return result\n"


def test_the_share_is_the_same_in_a_process_with_another_hash_seed():
    program = (
        "from everkeel import feature_toggle\n"
        "t = feature_toggle('search', share=0.5)\n"
        "print([n for n in range(50) if t.is_enabled(f'user-{n}')])"
    )

    def run(seed: str) -> Any:
        return subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    toggle = feature_toggle("search", share=0.5)
    here = str([number for number in range(50) if toggle.is_enabled(f"user-{number}")]) + "\n"
    assert run("1") == run("2") == here
