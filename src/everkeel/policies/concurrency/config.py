"""What may be set on a concurrency limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from everkeel.errors import RejectedError
from everkeel.policies.concurrency.control import CONTROLS, Control
from everkeel.runtime.classify import Classifier, ErrorMatch, Errors, as_errors
from everkeel.runtime.settings import Choice, Converted, Count, Duration, Flag, Settings, setting


def _priorities(value: Any) -> Any:
    allowed = "must be a table from priority, highest first, to its guaranteed share; the shares must not exceed 1"
    if not isinstance(value, Mapping) or not value:
        raise ValueError(allowed)
    for name, share in value.items():
        if not isinstance(name, str) or isinstance(share, bool) or not isinstance(share, int | float) or not share >= 0:
            raise ValueError(allowed)
    if sum(value.values()) > 1 + 1e-9:
        raise ValueError(allowed)
    return MappingProxyType(dict(value))


def _priority(value: Any) -> Any:
    if isinstance(value, str) or callable(value):
        return value
    raise ValueError("must be the name of a priority, or a function of the call's arguments")


@dataclass(frozen=True, kw_only=True, slots=True)
class ConcurrencyLimitConfig(Settings):
    """The settings of a concurrency limit; `everkeel.concurrency_limit` says what each is for."""

    policy_type: ClassVar[str] = "concurrency_limit"

    algorithm: Literal["aimd", "vegas", "gradient2"] = setting(Choice(*CONTROLS), default="gradient2")
    initial: int = setting(Count(at_least=1), default=20)
    floor: int = setting(Count(at_least=1), default=1)
    ceiling: int = setting(Count(at_least=1), default=1000)
    max_latency: float | None = setting(Duration(), default=None, none="no guardrail")
    queue: int = setting(Count(at_least=0), default=0)
    max_wait: float | None = setting(Duration(zero=True), default=None, none="as long as it takes")
    order: Literal["oldest", "newest"] = setting(Choice("oldest", "newest"), default="oldest")
    priorities: Mapping[str, float] | None = setting(
        Converted(_priorities, "priorities"), default=None, none="all are alike"
    )
    priority: str | Callable[..., str] | None = setting(
        Converted(_priority, "priority"), default=None, none="the highest"
    )
    on: Errors = setting(Converted(as_errors, "errors"), default=(TimeoutError, RejectedError))
    ignore: Errors | None = setting(Converted(as_errors, "errors"), default=None, none="nothing")
    causes: bool = setting(Flag(), default=False)

    classifier: Classifier = field(init=False, repr=False, compare=False)

    def check_together(self) -> None:
        if not self.floor <= self.initial <= self.ceiling:
            raise self.wrong("initial", self.initial, f"must be from floor={self.floor} to ceiling={self.ceiling}")
        if isinstance(self.priority, str) and (self.priorities is None or self.priority not in self.priorities):
            raise self.wrong("priority", self.priority, "must be one of priorities, or a function")
        match = ErrorMatch(self.on, causes=self.causes)
        ignore = None if self.ignore is None else ErrorMatch(self.ignore, causes=self.causes)
        object.__setattr__(self, "classifier", Classifier(match, ignore))

    def control(self) -> Control:
        """The algorithm, at its beginning."""
        return CONTROLS[self.algorithm](self.initial, self.floor, self.ceiling, self.max_latency)
