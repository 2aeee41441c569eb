"""What may be set on a circuit breaker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from everkeel.errors import CircuitOpenError
from everkeel.runtime.backoff import Backoff, as_backoff, constant
from everkeel.runtime.classify import Classifier, ErrorMatch, Errors, ResultPredicate, as_errors
from everkeel.runtime.settings import Choice, Converted, Count, Duration, Flag, Function, Settings, Share, setting


def _open_error(value: Any) -> type[CircuitOpenError]:
    if not isinstance(value, type) or not issubclass(value, CircuitOpenError):
        raise ValueError("must be CircuitOpenError or a class derived from it")
    return value


class _Rate(Share):
    """A share; whether 0 may be one is for the config as a whole to say."""

    def check(self, value: Any) -> float:
        return value if type(value) in (int, float) and value == 0 else super().check(value)

    def schema(self) -> dict[str, Any]:
        return Share(zero=True).schema()


@dataclass(frozen=True, kw_only=True, slots=True)
class CircuitBreakerConfig(Settings):
    """The settings of a circuit breaker; `everkeel.circuit_breaker` says what each is for."""

    policy_type: ClassVar[str] = "circuit_breaker"

    failure_rate: float | None = setting(_Rate(), default=0.5, none="no rule by share")
    window: int = setting(Count(at_least=1), default=100)
    window_duration: float | None = setting(Duration(), default=None, none="the last calls count, however old")
    allow_zero_rate: bool = setting(Flag(), default=False)
    minimum_calls: int = setting(Count(at_least=1), default=10)
    consecutive: int | None = setting(Count(at_least=1), default=None, none="no rule by failures in a row")
    slow_duration: float | None = setting(Duration(), default=None, none="no call is slow")
    slow_rate: float = setting(Share(), default=1.0)
    on: Errors = setting(Converted(as_errors, "errors"), default=Exception)
    ignore: Errors | None = setting(Converted(as_errors, "errors"), default=None, none="nothing")
    on_result: ResultPredicate | None = setting(Function("of the result"), default=None, none="every result is fine")
    causes: bool = setting(Flag(), default=False)
    open_for: Backoff = setting(Converted(as_backoff, "backoff"), default=constant(30.0))
    probes: int = setting(Count(at_least=1), default=3)
    probe_success_rate: float | None = setting(
        Share(), default=None, none="close when the probes' failures stay below failure_rate"
    )
    probe_lease: float = setting(Duration(), default=60.0)
    max_half_open: float | None = setting(Duration(), default=None, none="as long as it takes")
    cancelled_probe: Literal["no_evidence", "failure"] = setting(
        Choice("no_evidence", "failure"), default="no_evidence"
    )
    lost_probe: Literal["no_evidence", "failure"] = setting(Choice("no_evidence", "failure"), default="no_evidence")
    ignored: Literal["no_evidence", "success"] = setting(Choice("no_evidence", "success"), default="no_evidence")
    rejections: Literal["no_evidence", "failure"] = setting(Choice("no_evidence", "failure"), default="no_evidence")
    open_error: type[CircuitOpenError] = setting(Converted(_open_error, "error_class"), default=CircuitOpenError)

    classifier: Classifier = field(init=False, repr=False, compare=False)
    needed: int = field(init=False, repr=False, compare=False)  # probes that must succeed before the circuit closes
    quick: bool = field(init=False, repr=False, compare=False)  # may a success be nothing but a tick of the tally?

    def check_together(self) -> None:
        if self.failure_rate == 0 and not self.allow_zero_rate:
            allowed = "must be a share above 0 and up to 1, or None (no rule by share)"
            raise self.wrong("failure_rate", self.failure_rate, allowed)
        if self.failure_rate is None and self.consecutive is None and self.slow_duration is None:
            raise self.wrong("failure_rate", None, "must be set, unless consecutive or slow_duration says when to open")
        if self.window_duration is None and self.minimum_calls > self.window:
            raise self.wrong(
                "minimum_calls", self.minimum_calls, f"must not be more than window={self.window}: it would never open"
            )
        match = ErrorMatch(self.on, causes=self.causes)
        ignore = None if self.ignore is None else ErrorMatch(self.ignore, causes=self.causes)
        rejections = self.rejections == "failure"
        object.__setattr__(self, "classifier", Classifier(match, ignore, self.on_result, rejections=rejections))
        object.__setattr__(self, "needed", self._needed())
        by_count = self.window_duration is None and self.slow_duration is None
        object.__setattr__(self, "quick", by_count and self.failure_rate != 0)

    def _needed(self) -> int:
        """Successes among the probes that close the circuit. Shares are compared as quotients: 7 / 25 is 0.28."""
        probes = range(1, self.probes + 1)
        if self.probe_success_rate is not None:
            rate = self.probe_success_rate
            return next(passed for passed in probes if passed / self.probes >= rate)
        rate = 0.5 if self.failure_rate is None else self.failure_rate
        return next((passed for passed in probes if (self.probes - passed) / self.probes < rate), self.probes)
