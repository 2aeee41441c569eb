"""What the user holds: `feature_toggle(...)`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, cast

from everkeel.errors import ConfigError
from everkeel.policies.fallback import Alternative
from everkeel.policies.feature_toggle.config import NO_ALTERNATIVE, FeatureToggleConfig
from everkeel.policies.feature_toggle.state import Switch
from everkeel.runtime import block, switch
from everkeel.runtime.clock import Clock
from everkeel.runtime.policy import Policy, Snapshot
from everkeel.runtime.schedule import ScheduleLike
from everkeel.runtime.settings import Mode
from everkeel.runtime.state import CallKind


class FeatureToggleSnapshot(Snapshot):
    """What a feature toggle's snapshot adds. `denied` counts by the rule that said no."""

    enabled: bool
    share: float
    denied: dict[str, int]
    alternative: int


class FeatureToggle(Policy[FeatureToggleConfig]):
    """A feature toggle; make one with `feature_toggle(...)`."""

    __slots__ = ()
    type = "feature_toggle"

    def make_state(self, key: Hashable = None) -> Switch:
        return Switch(self)

    # ------------------------------------------------------------------ switching, asking

    def enable(self) -> None:
        """Switch the feature on, as far as the other rules allow."""
        self.reconfigure(enabled=True)

    def disable(self) -> None:
        """Switch the feature off for everybody, also for those on the allow list."""
        self.reconfigure(enabled=False)

    def is_enabled(self, key: Hashable = None) -> bool:
        """Would a call with this key get the feature? Counts nothing and tells nobody.

        Where the policy does not act (shadow, off, or Everkeel disabled), everybody gets it.
        """
        self._has_no_predicate("is_enabled()")
        if self.mode != "enforce" or not switch.on:
            return True
        return cast("Switch", self.state).refused(key) is None

    # ------------------------------------------------------------------ where it can work

    def may_guard(self, kind: CallKind) -> None:
        self.must_have_key()
        if kind in ("sync", "generator"):
            self.must_be_sync()

    def must_have_key(self) -> None:
        """Rules about keys need to know whose call it is: say so before it is needed."""
        rules = self.config
        if rules.by_key and rules.key is None:
            raise ConfigError(
                self.label, "key", "must be a function of the call's arguments, for allow, deny and share", "None"
            )

    def must_be_sync(self) -> None:
        """A sync call cannot await its alternative: say so before it is needed."""
        alternative = self.config.alternative
        if isinstance(alternative, Alternative) and alternative.awaited:
            raise ConfigError(
                self.label, "alternative", "must not be a coroutine function where the guarded call is sync", "one"
            )

    def entry(self, *, key: Hashable = None) -> block.Entry:
        """A block for one key: `with toggle.entry(key=user): ...`; it raises where the feature is off."""
        self._may_be_a_block()
        return block.Entry(tuple(one.of_key(key) if isinstance(one, Switch) else one for one in self.layers()))

    def _may_be_a_block(self, *, awaited: bool = False) -> None:
        self._has_no_predicate("a block")
        if isinstance(self.config.alternative, Alternative):
            raise TypeError(
                f"{self.label} cannot be a block: it has an alternative, and a block no value to replace; "
                "decorate a function, or use call() or acall()"
            )

    def _has_no_predicate(self, what: str) -> None:
        if self.config.predicate is not None:
            raise TypeError(
                f"{self.label} has a predicate on the call's arguments, which {what} has not; "
                "decorate a function, or use call() or acall()"
            )

    def _needs_no_key(self) -> None:
        if self.config.key is not None or self.config.by_key:
            raise TypeError(f"{self.label} has rules about keys: use entry(key=...) instead of the policy as a block")

    def snapshot(self) -> FeatureToggleSnapshot:
        return cast("FeatureToggleSnapshot", super().snapshot())


def feature_toggle(
    name: str | None = None,
    *,
    enabled: bool = True,
    deny: Iterable[Hashable] = frozenset(),
    allow: Iterable[Hashable] = frozenset(),
    schedule: ScheduleLike | None = None,
    predicate: Callable[..., Any] | None = None,
    share: float = 1.0,
    key: Callable[..., Hashable] | None = None,
    salt: str | None = None,
    alternative: Any = NO_ALTERNATIVE,
    mode: Mode = "enforce",
    clock: Clock | None = None,
    replace: bool = False,
) -> FeatureToggle:
    """Decide who gets a feature, and switch it while the service runs: on, off, for some, for a share, for a time.

    The rules are asked in this order, and the first that knows decides: switched off, no; on the deny list, no; on the
    allow list, yes; outside of the schedule, no; the predicate says no, no; in the share, yes. So `disable()` is a
    switch that nobody escapes, deny wins over allow, and testers on the allow list are in before the schedule begins.

    It belongs outermost: what nobody gets should neither be retried nor count as a failure. It needs no store and no
    network: for flags that a whole company edits use a flag service, and its client as `predicate`.

    Args:
        name: Its identity in errors, events, metrics and configuration. Without one it takes the decorated function's.
        enabled: On unless you say otherwise, so that adding the decorator changes nothing.
        deny: Keys that never get it. Keys are strings, ints (7 and "7" are one key), bytes, UUIDs, or tuples of those.
        allow: Keys that get it although it is not on for everybody.
        schedule: `(from, until)`: two datetimes, either of which may be None, or two times of day, past midnight if the
            second is earlier; or a list of such pairs. With timezones, since servers stand in several.
        predicate: A function of the call's arguments. One that raises says no: the old way is known to work.
        share: The share of keys that gets it. Which ones depends on the key and the salt and on nothing else: the same
            in every process, and a larger share only adds keys. Calls without a key are in no share but the whole.
        key: A function of the call's arguments: whose call it is.
        salt: What makes features choose different keys. The policy's name by default: give one if it might be renamed,
            or the same one to features that must go together.
        alternative: What answers where the feature is off: a value, or a function, sync or (for async calls) async, of
            the call's arguments. Without one the call raises `FeatureDisabledError`.
        mode: "enforce", "shadow" (everybody gets it; counts who would not have) or "off".
        clock: Where its time comes from, in place of the default.
        replace: Take the name from a policy that has it.

    >>> from everkeel import feature_toggle
    >>> new_search = feature_toggle("docs.search", allow={"alice"}, share=0.0, key=lambda user: user, alternative="old")
    >>> @new_search
    ... def search(user: str) -> str:
    ...     return "new"
    >>> search("alice"), search("bob")
    ('new', 'old')
    >>> new_search.reconfigure(share=1.0)
    >>> search("bob")
    'new'
    >>> new_search.disable()
    >>> search("alice")
    'old'
    """
    values = {
        "enabled": enabled,
        "deny": deny,
        "allow": allow,
        "schedule": schedule,
        "predicate": predicate,
        "share": share,
        "key": key,
        "salt": salt,
        "alternative": alternative,
        "mode": mode,
    }
    return FeatureToggle(name, FeatureToggleConfig.make(name, values), clock=clock, replace=replace)
