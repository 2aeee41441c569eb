"""What may be set on a retry."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from everkeel.policies.retry import attempt as marks
from everkeel.policies.retry.budget import RetryBudget
from everkeel.runtime.backoff import Backoff, Jitter, as_backoff, as_jitter, exponential
from everkeel.runtime.classify import Classifier, ErrorMatch, Errors, ResultPredicate, as_errors
from everkeel.runtime.settings import Choice, Converted, Count, Duration, Flag, Function, Instance, Settings, setting
from everkeel.runtime.signature import kind_of

_MOST_CLASSES = 100  # they may be made at run time, and are not kept alive without end


class AtOnce(set[type[BaseException]]):
    """Classes of errors, as far as seen, after which only the number of attempts decides whether another follows."""

    __slots__ = ("_classifier",)

    def __init__(self, classifier: Classifier | None) -> None:
        """None: the settings give a delay, a budget, a hook or a time limit a say, so there are no such classes."""
        super().__init__()
        self._classifier = classifier

    def learn(self, cls: type[BaseException]) -> None:
        """Errors of this class may be such: take it in unless they can say when to come back, or are too many."""
        if cls in self or self._classifier is None or len(self) >= _MOST_CLASSES:
            return
        if self._classifier.knows(cls) and not hasattr(cls, "retry_after") and not hasattr(cls, "__getattr__"):
            self.add(cls)


@dataclass(frozen=True, kw_only=True, slots=True)
class RetryConfig(Settings):
    """The settings of a retry; `everkeel.retry` says what each is for."""

    policy_type: ClassVar[str] = "retry"

    attempts: int | None = setting(Count(at_least=1), default=3, none="no bound but time")
    on: Errors = setting(Converted(as_errors, "errors"), default=Exception)
    ignore: Errors | None = setting(Converted(as_errors, "errors"), default=None, none="nothing")
    on_result: ResultPredicate | None = setting(Function("of the result"), default=None, none="every result is fine")
    causes: bool = setting(Flag(), default=False)
    backoff: Backoff = setting(Converted(as_backoff, "backoff"), default=exponential(0.2, factor=2, max=30))
    jitter: Jitter = setting(Converted(as_jitter, "jitter"), default="full", none="no randomness")
    max_retry_after: float = setting(Duration(zero=True), default=60.0)
    obey_retry_after: bool = setting(Flag(), default=True)
    max_duration: float | None = setting(Duration(), default=None, none="no bound")
    cut_short: bool = setting(Flag(), default=True)
    attempt_timeout: float | None = setting(Duration(), default=None, none="no bound")
    runs: Literal["worker", "inline"] = setting(Choice("worker", "inline"), default="worker")
    budget: RetryBudget | None = setting(
        Instance(RetryBudget, "a RetryBudget", form="budget"), default=None, none="no budget"
    )
    exhausted: Callable[[Any], Any] | None = setting(
        Function("of the last Outcome"), default=None, none="raise the original error"
    )
    before_retry: Callable[[Any], Any] | None = setting(
        Function("of the next Attempt", awaited=True), default=None, none="no hook"
    )
    rejections: Literal["no_evidence", "failure"] = setting(Choice("no_evidence", "failure"), default="no_evidence")
    nested: Literal["each", "outermost"] = setting(Choice("each", "outermost"), default="each")
    max_abandoned: int = setting(Count(at_least=1), default=64)

    classifier: Classifier = field(init=False, repr=False, compare=False)
    awaits_hook: bool = field(init=False, repr=False, compare=False)
    bounded: bool = field(init=False, repr=False, compare=False)
    """May an attempt in progress be cut short?"""
    timed: bool = field(init=False, repr=False, compare=False)
    """Does it need to know, before the first attempt, when the call must be over?"""
    fixed_delay: float | None = field(init=False, repr=False, compare=False)
    """The delay, where neither the outcome nor chance has a say in it."""
    at_once: AtOnce = field(init=False, repr=False, compare=False)

    def check_together(self) -> None:
        match = ErrorMatch(self.on, causes=self.causes)
        ignore = None if self.ignore is None else ErrorMatch(self.ignore, causes=self.causes)
        rejections = self.rejections == "failure"
        object.__setattr__(self, "classifier", Classifier(match, ignore, self.on_result, rejections=rejections))
        hook = self.before_retry
        object.__setattr__(self, "awaits_hook", hook is not None and kind_of(hook) == "async")
        cuts = self.max_duration is not None and self.cut_short
        object.__setattr__(self, "bounded", cuts or self.attempt_timeout is not None)
        object.__setattr__(self, "timed", self.bounded or self.attempts is None or self.max_duration is not None)
        # A share of no delay is no delay, so the words for jitter change nothing there; seconds are added to it.
        certain = self.jitter is None or (self.backoff.fixed == 0 and isinstance(self.jitter, str))
        object.__setattr__(self, "fixed_delay", self.backoff.fixed if certain else None)
        others = self.budget is not None or self.before_retry is not None or self.nested != "each" or self.bounded
        others = others or self.max_duration is not None
        simple = self.fixed_delay == 0 and self.attempts is not None and not others
        object.__setattr__(self, "at_once", AtOnce(self.classifier if simple else None))
        if self.nested == "outermost":
            marks.wanted = True
