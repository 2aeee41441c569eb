"""A fresh Everkeel for a while, and everything as it was afterwards."""

from __future__ import annotations

from everkeel import disable, registry, retry, subscribe
from everkeel.runtime import events, settings, switch
from everkeel.runtime.configured import override_with
from everkeel.testing import fresh_everkeel


def test_names_are_free_inside_and_taken_as_before_outside() -> None:
    mine = retry("test_isolation.mine")
    with fresh_everkeel() as fresh:
        assert list(fresh) == []
        retry("test_isolation.mine")
    assert registry.get("retry", "test_isolation.mine") is mine


def test_what_a_policy_learned_is_forgotten() -> None:
    policy = retry()
    policy.call(int)
    with fresh_everkeel():
        assert policy.snapshot()["success"] == 0
        policy.call(int)
    assert policy.snapshot()["success"] == 0


def test_what_is_left_behind_is_undone() -> None:
    with fresh_everkeel():
        subscribe(print)
        override_with(lambda policy_type, name: {"attempts": 7})
        disable()
    assert events.everywhere == ()
    assert settings.overrides("retry", "any") == {}
    assert switch.on
