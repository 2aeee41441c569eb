"""Adaptive throttle: stop asking in proportion as a backend stops answering, before it has to say no itself.

The client counts what it asked and what was accepted over a window. While accepted calls are at least `1 / multiplier`
of all, everything passes; below that, so many are rejected here that the backend gets about `multiplier` times what it
can take. A trickle of probes always passes, so that its recovery is seen.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, ClassVar, cast

from everkeel.errors import ThrottledError
from everkeel.policies.circuit_breaker.windows import SLICES, TimeWindow
from everkeel.runtime.classify import Classifier, ErrorMatch, Errors, ResultPredicate, as_errors
from everkeel.runtime.clock import Clock
from everkeel.runtime.keyed import Keyed
from everkeel.runtime.outcome import Verdict
from everkeel.runtime.policy import Policy, Snapshot
from everkeel.runtime.settings import (
    Converted,
    Count,
    Duration,
    Flag,
    Function,
    Mode,
    Number,
    Seconds,
    Settings,
    setting,
)
from everkeel.runtime.state import CallKind, State
from everkeel.runtime.tally import read, tally


@dataclass(frozen=True, kw_only=True, slots=True)
class ThrottleConfig(Settings):
    """The settings of an adaptive throttle; `everkeel.adaptive_throttle` says what each is for."""

    policy_type: ClassVar[str] = "adaptive_throttle"

    multiplier: float = setting(Number(at_least=1.0), default=2.0)
    window: float = setting(Duration(), default=30.0)
    minimum_calls: int = setting(Count(at_least=1), default=10)
    floor: float = setting(Number(at_least=0.0), default=1.0)
    on: Errors = setting(Converted(as_errors, "errors"), default=Exception)
    ignore: Errors | None = setting(Converted(as_errors, "errors"), default=None, none="nothing")
    on_result: ResultPredicate | None = setting(Function("of the result"), default=None, none="every result is fine")
    causes: bool = setting(Flag(), default=False)

    classifier: Classifier = field(init=False, repr=False, compare=False)

    def check_together(self) -> None:
        match = ErrorMatch(self.on, causes=self.causes)
        ignore = None if self.ignore is None else ErrorMatch(self.ignore, causes=self.causes)
        object.__setattr__(self, "classifier", Classifier(match, ignore, self.on_result))


class Acceptance:
    """The decision core: how much was asked and accepted lately, and so what share to reject. Told the time.

    Calls that were rejected here count as asked: the worse it is, the less gets through. It is made when the first call
    fails: the successes since `since`, which nobody took the time of, count as spread evenly over the time since.
    """

    __slots__ = ("_probed_at", "_window")

    def __init__(self, rules: ThrottleConfig, now: float, accepted: int, since: tuple[float, int]) -> None:
        began, before = since
        length = now - began
        lately = accepted - before
        if length > rules.window:
            lately = round(lately * rules.window / length)
        step, start = rules.window / SLICES, now - rules.window
        self._window = TimeWindow(rules.window, start, accepted - lately)
        for n in range(1, SLICES):
            self._window.roll(accepted - lately + lately * n // SLICES, start + (n + 0.5) * step)
        self._probed_at = now

    def refused(self, now: float, accepted: int, calls: int = 1) -> None:
        """So many calls were asked and not accepted, there or here."""
        self._window.roll(accepted, now)
        for _ in range(calls):
            self._window.failure(accepted)

    def asked(self, accepted: int) -> int:
        """How many calls there were within the window."""
        return self._window.calls(0, accepted)

    def failed(self, accepted: int) -> int:
        """How many of them were refused, there or here."""
        return self._window.failed(0, accepted)

    def share(self, rules: ThrottleConfig, now: float, accepted: int) -> float:
        """The share of calls to reject, from 0 to 1."""
        self._window.roll(accepted, now)
        asked = self.asked(accepted)
        if asked < rules.minimum_calls:
            return 0.0
        good = asked - self.failed(accepted)
        return max(0.0, (asked - rules.multiplier * good) / (asked + 1))

    def may_probe(self, rules: ThrottleConfig, now: float) -> bool:
        """Is a probe due? A yes is counted."""
        if rules.floor and now - self._probed_at >= 1 / rules.floor:
            self._probed_at = now
            return True
        return False


_GATE = """\
if throttle.alert:
    throttle.enter()
try:
    INNER
except Exception as error:
    throttle.failed(None, error)
    raise
tick(ok)"""


class Throttling(State):
    """What the calls of one throttle share."""

    __slots__ = ("_acceptance", "_since", "alert", "key", "ok", "policy")
    word = "throttle"
    parts = ("ok",)
    policy: AdaptiveThrottle

    def __init__(self, policy: AdaptiveThrottle, key: Hashable = None) -> None:
        self.policy, self.key, self.ok = policy, key, tally()
        self.alert = False  # is there something to decide? While nothing fails, a call costs no look at the clock
        self._acceptance: Acceptance | None = None
        self._since = (policy.clock.monotonic(), 0)  # from when on, and from which of them, successes count

    def enter(self) -> None:
        share = self._rejects()
        if share:
            raise self._rejected(share)

    def try_enter(self) -> None:
        share = self._rejects()
        if share:
            raise ThrottledError(self.policy.name, None, share)

    def _rejects(self) -> float:
        """The share that is rejected, if this call is among them; 0 if it passes."""
        acceptance = self._acceptance
        if acceptance is None:
            return 0.0
        policy = self.policy
        rules, now = policy.config, policy.clock.monotonic()
        with policy.lock:
            accepted = read(self.ok)
            share = acceptance.share(rules, now, accepted)
            if not acceptance.failed(accepted):  # nothing was refused within the window: calm again
                self._since = (now - rules.window, accepted - acceptance.asked(accepted))
                self._acceptance, self.alert = None, False
                return 0.0
            if share == 0 or policy.clock.random() >= share or acceptance.may_probe(rules, now):
                return 0.0
            acceptance.refused(now, accepted)
            return share

    def _rejected(self, share: float) -> ThrottledError:
        policy = self.policy
        next(policy.rejections)
        error = ThrottledError(policy.name, None, share)
        if policy.heard():
            from everkeel.events import CallRejected

            policy.emit(CallRejected(policy=policy.name, policy_type=policy.type, error=error, key=self.key))
        return error

    def done(self, permit: None, result: Any) -> None:
        classifier = self.policy.config.classifier
        if classifier.on_result is not None and classifier.of_result(result) is Verdict.FAILURE:
            self._refused()
        else:
            next(self.ok)

    def failed(self, permit: None, error: Exception) -> None:
        verdict = self.policy.config.classifier.of_error(error)
        if verdict is Verdict.FAILURE:
            self._refused()
        elif verdict is Verdict.SUCCESS:
            next(self.ok)  # an answer, and not one that counts as a failure: it was accepted
        else:
            self.policy.counts.tick("ignored")

    def _refused(self) -> None:
        policy = self.policy
        policy.counts.tick("failure")
        now = policy.clock.monotonic()
        with policy.lock:
            accepted = read(self.ok)
            if self._acceptance is None:
                self._acceptance = Acceptance(policy.config, now, accepted, self._since)
            self._acceptance.refused(now, accepted)
            self.alert = True

    def fragment(self, kind: CallKind) -> str | None:
        return _GATE if self.policy.config.on_result is None else super().fragment(kind)

    def names(self, kind: CallKind) -> dict[str, object]:
        return {"tick": next}

    def adapt(self, old: ThrottleConfig, new: ThrottleConfig) -> None:
        with self.policy.lock:
            before = self._acceptance
            if old.window != new.window and before is not None:
                now, accepted = self.policy.clock.monotonic(), read(self.ok)
                failed = before.failed(accepted)
                since = (now - old.window, accepted - (before.asked(accepted) - failed))
                self._acceptance = Acceptance(new, now, accepted, since)
                self._acceptance.refused(now, accepted, failed)

    def forgettable(self) -> bool:
        return self._acceptance is None

    def successes(self) -> int:
        return read(self.ok)

    def details(self) -> dict[str, Any]:
        policy = self.policy
        with policy.lock:
            now = policy.clock.monotonic()
            acceptance = self._acceptance
            share = 0.0 if acceptance is None else acceptance.share(policy.config, now, read(self.ok))
        return {"share": share}


class ThrottleSnapshot(Snapshot):
    """What an adaptive throttle's snapshot adds: the share of calls it rejects at the moment (of keys: the highest)."""

    share: float


class AdaptiveThrottle(Policy[ThrottleConfig]):
    """An adaptive throttle; make one with `adaptive_throttle(...)`."""

    __slots__ = ()
    type = "adaptive_throttle"

    def make_state(self, key: Hashable = None) -> Throttling:
        return Throttling(self, key)

    def judge(self, error: BaseException) -> Verdict:
        return self.config.classifier.of_error(error)

    def over_keys(self, keyed: Keyed) -> dict[str, Any]:
        return {"share": max((state.details()["share"] for state in keyed.everyone()), default=0.0)}

    def snapshot(self) -> ThrottleSnapshot:
        return cast("ThrottleSnapshot", super().snapshot())


def adaptive_throttle(
    name: str | None = None,
    *,
    multiplier: float = 2.0,
    window: Seconds = 30.0,
    minimum_calls: int = 10,
    floor: float = 1.0,
    on: Errors = Exception,
    ignore: Errors | None = None,
    on_result: ResultPredicate | None = None,
    causes: bool = False,
    key: Callable[..., Hashable] | None = None,
    max_keys: int = 10_000,
    mode: Mode = "enforce",
    clock: Clock | None = None,
    replace: bool = False,
) -> AdaptiveThrottle:
    """Reject calls here in proportion as the backend fails them, so that it has room to recover.

    Softer than a circuit breaker: there is no moment at which everything stops. Where it may be all or nothing, a
    breaker is easier to understand.

    Args:
        name: Its identity in errors, events, metrics and configuration. Without one it takes the decorated function's.
        multiplier: The backend gets about so many times the calls it accepts. 2 wastes as much as it uses, and sees a
            recovery soon; nearer to 1 spares the backend more.
        window: Over how many seconds calls are counted.
        minimum_calls: With fewer calls than that in the window, everything passes.
        floor: So many calls a second pass in any case, as probes.
        on: What counts as a failure: exception classes, predicates on the exception, or a tuple of both.
        ignore: Wins over `on`; no evidence.
        on_result: A predicate: True for results that count as a failure.
        causes: Let `on` and `ignore` look along the chain of causes too.
        key: A function of the call's arguments: counted apart for each answer (a host).
        max_keys: How many keys are counted apart; further ones share.
        mode: "enforce", "shadow" (counts what it would have rejected) or "off".
        clock: Where its time and chance come from, in place of the default.
        replace: Take the name from a policy that has it.

    >>> from everkeel import adaptive_throttle
    >>> @adaptive_throttle()
    ... def search(query: str) -> str:
    ...     return "found"
    >>> search("tea")
    'found'
    """
    values = {
        "multiplier": multiplier,
        "window": window,
        "minimum_calls": minimum_calls,
        "floor": floor,
        "on": on,
        "ignore": ignore,
        "on_result": on_result,
        "causes": causes,
        "mode": mode,
    }
    config = ThrottleConfig.make(name, values)
    return AdaptiveThrottle(name, config, clock=clock, replace=replace, key=key, max_keys=max_keys)
