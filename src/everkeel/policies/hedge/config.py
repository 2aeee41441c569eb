"""What may be set on a hedge."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from everkeel.policies.retry.budget import RetryBudget
from everkeel.runtime.classify import Classifier, ErrorMatch, Errors, as_errors
from everkeel.runtime.settings import (
    Converted,
    Count,
    Duration,
    Flag,
    Function,
    Instance,
    Settings,
    Share,
    seconds,
    setting,
)


def _delay(value: Any) -> Any:
    if callable(value) and not isinstance(value, type):
        return value
    try:
        length = seconds(value)
    except ValueError:
        length = -1.0
    if length < 0:
        raise ValueError("must be seconds that are not negative, or a function of the attempt to start")
    return length


@dataclass(frozen=True, kw_only=True, slots=True)
class HedgeConfig(Settings):
    """The settings of a hedge; `everkeel.hedge` says what each is for."""

    policy_type: ClassVar[str] = "hedge"

    attempts: int = setting(Count(at_least=2), default=2)
    delay: float | Callable[[int], Any] | None = setting(
        Converted(_delay, "delay"), default=None, none="learned from traffic"
    )
    quantile: float = setting(Share(), default=0.95)
    initial_delay: float = setting(Duration(zero=True), default=0.1)
    max_duration: float | None = setting(Duration(), default=None, none="no bound")
    budget: RetryBudget | None = setting(
        Instance(RetryBudget, "a RetryBudget", form="budget"), default=None, none="no budget"
    )
    on: Errors = setting(Converted(as_errors, "errors"), default=Exception)
    ignore: Errors | None = setting(Converted(as_errors, "errors"), default=None, none="nothing")
    causes: bool = setting(Flag(), default=False)
    dispose: Callable[[Any], Any] | None = setting(Function("of a result", awaited=True), default=None, none="dropped")
    max_abandoned: int = setting(Count(at_least=1), default=64)

    classifier: Classifier = field(init=False, repr=False, compare=False)

    def check_together(self) -> None:
        match = ErrorMatch(self.on, causes=self.causes)
        ignore = None if self.ignore is None else ErrorMatch(self.ignore, causes=self.causes)
        object.__setattr__(self, "classifier", Classifier(match, ignore))
