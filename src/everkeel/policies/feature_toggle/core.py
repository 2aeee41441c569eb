"""Which rule says no, if any: told the time and the key. No clock, no I/O.

The order of the rules is part of the contract:

1. switched off: nobody has it, also not those on the allow list
2. on the deny list: no
3. on the allow list: yes, whatever comes below
4. outside of the schedule: no
5. the predicate says no: no
6. the share: yes for the keys in it, no for the others
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Literal, TypeAlias

from everkeel.policies.feature_toggle.config import FeatureToggleConfig
from everkeel.runtime.stable import digest, fraction

Reason: TypeAlias = Literal["disabled", "denied", "schedule", "predicate", "share"]


def why_not(
    rules: FeatureToggleConfig,
    salt: str,
    key: str | None,
    now: Callable[[], float],
    fits: Callable[..., bool],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Reason | None:
    """The rule that says no; None when the feature is on. `now` and `fits` (the predicate) are asked only if needed."""
    if not rules.enabled:
        return "disabled"
    if key is not None:
        if key in rules.deny:
            return "denied"
        if key in rules.allow:
            return None
    if rules.schedule is not None and not rules.schedule.covers(now()):
        return "schedule"
    if rules.predicate is not None and not fits(args, kwargs):
        return "predicate"
    return None if in_share(rules.share, salt, key) else "share"


def in_share(share: float, salt: str, key: str | None) -> bool:
    """Is this key in the share? Its place never changes, so that a larger share only ever adds keys.

    Nobody (no key) is in no share but the whole.
    """
    if share == 1 or share == 0 or key is None:
        return share == 1
    return place_of(salt, key) < share


@lru_cache(maxsize=4096)  # it never changes, and who comes once mostly comes again: spares half the cost of a call
def place_of(salt: str, key: str) -> float:
    """Where between 0 and 1 a key has its place."""
    return fraction(digest(salt, key))
