"""What may be set on a fail fast."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from everkeel.runtime.classify import Classifier, ErrorMatch, Errors, ResultPredicate, as_errors
from everkeel.runtime.settings import Converted, Count, Duration, Flag, Function, Settings, setting
from everkeel.runtime.signature import kind_of


@dataclass(frozen=True, kw_only=True, slots=True)
class FailFastConfig(Settings):
    """The settings of a fail fast; `everkeel.fail_fast` says what each is for."""

    policy_type: ClassVar[str] = "fail_fast"

    failures: int | None = setting(Count(at_least=1), default=3, none="only the check opens it")
    check: Callable[..., Any] | None = setting(
        Function("that answers whether all is well", awaited=True), default=None, none="no check"
    )
    check_every: float = setting(Duration(), default=5.0)
    open_for: float | None = setting(Duration(), default=None, none="until it is reset, or the check passes")
    on: Errors = setting(Converted(as_errors, "errors"), default=Exception)
    ignore: Errors | None = setting(Converted(as_errors, "errors"), default=None, none="nothing")
    on_result: ResultPredicate | None = setting(Function("of the result"), default=None, none="every result is fine")
    causes: bool = setting(Flag(), default=False)

    classifier: Classifier = field(init=False, repr=False, compare=False)
    awaited: bool = field(init=False, repr=False, compare=False)  # is the check a coroutine function?

    def check_together(self) -> None:
        if self.failures is None and self.check is None:
            raise self.wrong("failures", None, "must be set, unless check says when to open")
        match = ErrorMatch(self.on, causes=self.causes)
        ignore = None if self.ignore is None else ErrorMatch(self.ignore, causes=self.causes)
        object.__setattr__(self, "classifier", Classifier(match, ignore, self.on_result))
        object.__setattr__(self, "awaited", self.check is not None and kind_of(self.check) == "async")
