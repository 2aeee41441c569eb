"""Whatever is switched, in whatever order: the toggle answers what a plain reading of its rules does."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from everkeel import FeatureDisabledError, FeatureToggle, feature_toggle
from everkeel.policies.feature_toggle.core import in_share
from everkeel.runtime.stable import digest, fraction
from everkeel.testing import fresh_everkeel, virtual_time

USERS = [f"user-{number}" for number in range(12)]
users = st.sampled_from(USERS)
shares = st.floats(0, 1)


class Toggling(RuleBasedStateMachine):
    """One toggle in four forms (woven and plain, sync and async), switched at random, against a model of its rules."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.stack.enter_context(fresh_everkeel())
        self.clock = self.stack.enter_context(virtual_time())
        self.enabled, self.deny, self.allow, self.share = True, frozenset(), frozenset(), 1.0
        self.only: frozenset[str] | None = None
        self.passed, self.turned_away = 0, 0
        self.mode = "enforce"

    @initialize()
    def make(self) -> None:
        self.toggle: FeatureToggle = feature_toggle("search", key=lambda user: user)

        @self.toggle
        def woven(user: str) -> str:
            return "new"

        @self.toggle
        async def awoven(user: str) -> str:
            return "new"

        async def new(user: str) -> str:
            return "new"

        self.forms: list[Any] = [
            woven,
            lambda user: self.clock.run(awoven(user)),
            lambda user: self.toggle.call(lambda user: "new", user),
            lambda user: self.clock.run(self.toggle.acall(new, user)),
        ]

    def expected(self, user: str) -> bool:
        """The rules as a sentence."""
        if not self.enabled or user in self.deny:
            return False
        if user in self.allow:
            return True
        if self.only is not None and user not in self.only:
            return False
        return self.share == 1 or fraction(digest("search", user)) < self.share

    @rule(form=st.integers(0, 3), user=users)
    def call(self, form: int, user: str) -> None:
        try:
            answer = self.forms[form](user)
        except FeatureDisabledError:
            answer = "off"
        if self.mode != "enforce":
            assert answer == "new"
            self.passed += self.mode == "shadow"
            return
        assert answer == ("new" if self.expected(user) else "off")
        self.passed += answer == "new"
        self.turned_away += answer == "off"

    @rule()
    def enable(self) -> None:
        self.toggle.enable()
        self.enabled = True

    @rule()
    def disable(self) -> None:
        self.toggle.disable()
        self.enabled = False

    @rule(share=shares)
    def change_share(self, share: float) -> None:
        self.toggle.reconfigure(share=share)
        self.share = share

    @rule(deny=st.frozensets(users, max_size=3), allow=st.frozensets(users, max_size=3))
    def change_lists(self, deny: frozenset[str], allow: frozenset[str]) -> None:
        self.toggle.reconfigure(deny=deny, allow=allow)
        self.deny, self.allow = deny, allow

    @rule(only=st.none() | st.frozensets(users, min_size=1, max_size=6))
    def change_predicate(self, only: frozenset[str] | None) -> None:
        self.toggle.reconfigure(predicate=None if only is None else lambda user: user in only)
        self.only = only

    @rule(mode=st.sampled_from(["enforce", "shadow", "off"]))
    def change_mode(self, mode: Any) -> None:
        self.toggle.mode = mode
        self.mode = mode

    @invariant()
    def counts_what_it_did(self) -> None:
        if hasattr(self, "toggle"):
            snapshot = self.toggle.snapshot()
            assert (snapshot["success"], snapshot["rejected"]) == (self.passed, self.turned_away)
            assert sum(snapshot["denied"].values()) == self.turned_away

    def teardown(self) -> None:
        self.stack.close()


TestToggling = Toggling.TestCase


@given(st.text(), st.text(), shares, shares)
def test_a_larger_share_never_switches_a_key_off(salt, key, one, other):
    smaller, larger = sorted((one, other))
    assert in_share(larger, salt, key) or not in_share(smaller, salt, key)


@given(st.text(), st.text())
def test_everybody_is_in_the_whole_and_nobody_in_nothing(salt, key):
    assert in_share(1, salt, key)
    assert not in_share(0, salt, key)
