"""What may be set on a feature toggle."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from everkeel.policies.fallback import Alternative
from everkeel.runtime.schedule import Schedule, as_schedule
from everkeel.runtime.settings import Converted, Flag, Function, Instance, Settings, Share, setting
from everkeel.runtime.stable import text_of

NO_ALTERNATIVE: Any = object()
"""In place of an alternative: None is one."""


def _as_keys(value: Any) -> frozenset[str]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise ValueError("must be several keys, such as a set of strings")
    try:
        return frozenset(text_of(key) for key in value)
    except ValueError as error:
        raise ValueError(f"must be several keys, each of which {error}") from None


def _as_alternative(value: Any) -> Any:
    return value if value is NO_ALTERNATIVE or isinstance(value, Alternative) else Alternative(value)


@dataclass(frozen=True, kw_only=True, slots=True)
class FeatureToggleConfig(Settings):
    """The settings of a feature toggle; `everkeel.feature_toggle` says what each is for."""

    policy_type: ClassVar[str] = "feature_toggle"

    enabled: bool = setting(Flag(), default=True)
    deny: frozenset[str] = setting(Converted(_as_keys, "words"), default=frozenset())
    allow: frozenset[str] = setting(Converted(_as_keys, "words"), default=frozenset())
    schedule: Schedule | None = setting(Converted(as_schedule, "schedule"), default=None, none="at any time")
    predicate: Callable[..., Any] | None = setting(
        Function("of the call's arguments"), default=None, none="whatever the arguments"
    )
    share: float = setting(Share(zero=True), default=1.0)
    key: Callable[..., Hashable] | None = setting(Function("of the call's arguments"), default=None, none="no key")
    salt: str | None = setting(Instance(str, "a string"), default=None, none="the policy's name")
    alternative: Any = setting(Converted(_as_alternative, "alternative"), default=NO_ALTERNATIVE)

    plain: bool = field(init=False, repr=False, compare=False)  # on for everybody: nothing to decide
    by_key: bool = field(init=False, repr=False, compare=False)  # does it matter whose call it is?

    def check_together(self) -> None:
        by_key = bool(self.deny or self.allow or 0 < self.share < 1)
        anybody = self.schedule is None and self.predicate is None and self.share == 1
        object.__setattr__(self, "by_key", by_key)
        object.__setattr__(self, "plain", self.enabled and anybody and not self.deny)
