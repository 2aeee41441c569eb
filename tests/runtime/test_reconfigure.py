"""Changes while a policy works: settings, mode, starting over, and policies made from others."""

from __future__ import annotations

import pytest

from everkeel import ConfigError, RejectedError, events, retry
from everkeel.compose import source
from everkeel.testing import Flaky

# ------------------------------------------------------------------ reconfigure


def test_a_changed_setting_takes_effect_at_once(gate):
    policy = gate("payments", limit=1)
    with policy:
        with pytest.raises(RejectedError):
            policy.call(len, "")
        policy.reconfigure(limit=2)
        assert policy.call(len, "") == 0


def test_it_takes_effect_on_functions_that_were_decorated_and_called(fresh_everkeel):
    policy, fetch = retry(attempts=2, backoff=0), Flaky(OSError)
    guarded = policy(lambda: fetch())
    with pytest.raises(OSError):
        guarded()
    policy.reconfigure(attempts=4)
    with pytest.raises(OSError):
        guarded()
    assert fetch.calls == 2 + 4


def test_state_is_kept(gate):
    policy = gate("payments", limit=1)
    policy.call(len, "")
    with policy:
        policy.reconfigure(limit=2)
        assert policy.snapshot()["inside"] == 1
    assert policy.snapshot()["inside"] == 0
    assert policy.snapshot()["success"] == 2


def test_changes_add_up(gate):
    policy = gate("payments", limit=1)
    policy.reconfigure(limit=2)
    policy.reconfigure(mode="shadow")
    assert (policy.config.limit, policy.mode) == (2, "shadow")


def test_a_wrong_change_names_the_policy_and_changes_nothing(gate):
    policy = gate("payments", limit=1)
    before = policy.config
    with pytest.raises(ConfigError) as raised:
        policy.reconfigure(mode="shadow", limit=0)
    assert str(raised.value) == "gate 'payments': limit must be at least 1 (got 0)"
    assert policy.config is before


def test_a_wrong_change_is_not_remembered_for_the_next(gate):
    policy = gate("payments", limit=1)
    with pytest.raises(ConfigError):
        policy.reconfigure(limit=0)
    policy.reconfigure(mode="shadow")
    assert policy.config.limit == 1


def test_an_unknown_setting_is_told_the_right_one(gate):
    with pytest.raises(ConfigError, match=r"gate 'payments': has no setting 'limits'; did you mean 'limit'\?"):
        gate("payments").reconfigure(limits=3)


def test_listeners_hear_old_and_new(gate):
    policy, heard = gate("payments", limit=1), []
    policy.subscribe(heard.append)
    policy.reconfigure(limit=2, mode="shadow")
    assert [type(event) for event in heard] == [events.ModeChanged, events.Reconfigured]
    assert (heard[0].before, heard[0].mode) == ("enforce", "shadow")
    assert heard[1].changes == {"limit": (1, 2), "mode": ("enforce", "shadow")}


def test_a_change_to_the_same_is_no_change(gate):
    policy, heard = gate("payments", limit=1), []
    policy.subscribe(heard.append)
    policy.reconfigure(limit=1)
    assert heard == []


def test_a_listener_may_change_it_back(gate):
    policy = gate("payments", limit=1)
    policy.subscribe(lambda event: policy.reconfigure(limit=1), events.Reconfigured)
    policy.reconfigure(limit=2)
    assert policy.config.limit == 1


# ------------------------------------------------------------------ mode


def test_off_is_a_plain_call(gate):
    policy = gate("payments", limit=1)
    with policy:
        policy.mode = "off"
        assert policy.call(len, "abc") == 3
    assert policy.layers() == ()


def test_off_contributes_nothing_to_a_woven_function(gate):
    policy = gate("payments")
    guarded = policy(lambda: "answer")
    assert "gate" in source(guarded)
    policy.mode = "off"
    assert "gate" not in source(guarded)
    policy.mode = "enforce"
    assert "gate" in source(guarded)


def test_a_shadow_counts_what_it_would_have_done_and_lets_pass(gate, record_events):
    policy = gate("payments", limit=1, mode="shadow")
    with policy:
        assert policy.call(len, "abc") == 3
    assert policy.snapshot()["would"] == {"reject": 1}
    would = record_events.of(events.WouldHave)
    assert [(event.action, type(event.error)) for event in would] == [("reject", RejectedError)]


def test_a_shadow_learns_from_the_calls_it_would_have_let_in(gate):
    policy = gate("payments", mode="shadow")
    policy.call(len, "")
    with pytest.raises(TypeError):
        policy.call(len, 3)
    assert policy.state.endings == ["done", "failed"]
    assert policy.snapshot()["success"] == 1


def test_what_a_shadow_took_is_given_back_though_the_mode_changed_meanwhile(gate):
    policy = gate("payments", limit=1, mode="shadow")

    @policy
    def work():
        policy.mode = "enforce"
        assert policy.snapshot()["inside"] == 1

    work()
    assert policy.snapshot()["inside"] == 0


def test_a_place_that_was_taken_is_given_back_though_the_policy_was_switched_off_meanwhile(gate):
    policy = gate("payments", limit=1)

    @policy
    def work():
        policy.mode = "off"

    work()
    policy.mode = "enforce"
    assert policy.snapshot()["inside"] == 0


@pytest.mark.parametrize("wrong", ["on", None, True, "OFF"])
def test_there_is_no_other_mode(gate, wrong):
    policy = gate("payments")
    with pytest.raises(ConfigError, match="gate 'payments': mode must be 'enforce' or 'shadow' or 'off'"):
        policy.mode = wrong
    assert policy.mode == "enforce"


def test_a_policy_shows_its_mode_when_it_is_not_the_usual_one(gate):
    policy = gate("payments")
    assert repr(policy) == "<gate 'payments'>"
    policy.mode = "shadow"
    assert repr(policy) == "<gate 'payments', shadow>"


# ------------------------------------------------------------------ derive, start over


def test_a_derived_policy_has_the_settings_it_was_made_from(gate):
    policy = gate("payments", limit=3)
    policy.reconfigure(mode="shadow")
    derived = policy.derive("orders", limit=5)
    assert (derived.name, derived.config.limit, derived.mode) == ("orders", 5, "shadow")
    assert type(derived) is type(policy)


def test_a_derived_policy_has_a_state_of_its_own(gate):
    policy = gate("payments", limit=1)
    derived = policy.derive("orders")
    with policy:
        assert derived.call(len, "") == 0
    derived.reconfigure(limit=7)
    assert policy.config.limit == 1


def test_a_derived_policy_needs_a_name_of_its_own(gate):
    policy = gate("payments")
    with pytest.raises(ConfigError, match="gate 'payments': a policy of this type and name exists already"):
        policy.derive("payments")


def test_a_wrong_derivation_names_the_new_policy(gate):
    with pytest.raises(ConfigError, match=r"gate 'orders': limit must be at least 1 \(got 0\)"):
        gate("payments").derive("orders", limit=0)


def test_a_derived_policy_tells_keys_apart_like_the_first(gate):
    derived = gate("payments", key=lambda tenant: tenant, max_keys=1).derive("orders")
    derived.call(len, "one")
    derived.call(len, "two")
    assert derived.snapshot()["keys"] == 1


def test_starting_over_forgets_what_was_learned_and_counted(gate):
    policy = gate("payments", limit=1)
    guarded = policy(lambda: "answer")
    guarded()
    policy.start_over()
    assert policy.snapshot()["success"] == 0
    guarded()
    assert policy.snapshot()["success"] == 1


def test_starting_over_keeps_settings_and_listeners(gate):
    policy, heard = gate("payments", limit=1), []
    policy.subscribe(heard.append, events.Succeeded)
    policy.reconfigure(limit=2)
    policy.start_over()
    policy.call(len, "")
    assert policy.config.limit == 2
    assert len(heard) == 1


def test_the_snapshot_is_plain_values(gate):
    policy = gate("payments", limit=1)
    policy.call(len, "")
    assert policy.snapshot() == {
        "name": "payments",
        "type": "gate",
        "mode": "enforce",
        "success": 1,
        "failure": 0,
        "ignored": 0,
        "rejected": 0,
        "would": {},
        "inside": 0,
    }
