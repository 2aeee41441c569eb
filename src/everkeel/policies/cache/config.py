"""What may be set on a cache."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import ClassVar

from everkeel.runtime.classify import Classifier, ErrorMatch, Errors, ResultPredicate, as_errors
from everkeel.runtime.settings import Converted, Count, Duration, Flag, Function, Settings, Share, setting


@dataclass(frozen=True, kw_only=True, slots=True)
class CacheConfig(Settings):
    """The settings of a cache; `everkeel.cache` says what each is for."""

    policy_type: ClassVar[str] = "cache"

    ttl: float = setting(Duration())
    max_size: int = setting(Count(at_least=1), default=1024)
    key: Callable[..., Hashable] | None = setting(
        Function("of the call's arguments"), default=None, none="the function and all its arguments"
    )
    single_flight: bool = setting(Flag(), default=True)
    stale_for: float | None = setting(Duration(), default=None, none="nothing stale is served")
    stale_if_error: float | None = setting(Duration(), default=None, none="errors leave")
    refresh_ahead: float | None = setting(Share(), default=None, none="not before it expires")
    jitter: float | None = setting(Duration(), default=None, none="every answer lives as long as ttl says")
    negative_ttl: float | None = setting(Duration(), default=None, none="failures are not kept")
    on: Errors = setting(Converted(as_errors, "errors"), default=Exception)
    ignore: Errors | None = setting(Converted(as_errors, "errors"), default=None, none="nothing")
    on_result: ResultPredicate | None = setting(Function("of the result"), default=None, none="every result is fine")
    causes: bool = setting(Flag(), default=False)

    classifier: Classifier = field(init=False, repr=False, compare=False)

    def check_together(self) -> None:
        if self.jitter is not None and self.jitter >= self.ttl:
            raise self.wrong("jitter", self.jitter, f"must be less than ttl, which is {self.ttl:g} seconds")
        match = ErrorMatch(self.on, causes=self.causes)
        ignore = None if self.ignore is None else ErrorMatch(self.ignore, causes=self.causes)
        # An open circuit is a failure here, as it is to a fallback: that is when a stale answer is wanted most.
        object.__setattr__(self, "classifier", Classifier(match, ignore, self.on_result, rejections=True))
