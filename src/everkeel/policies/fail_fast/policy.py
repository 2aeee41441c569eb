"""What the user holds: `fail_fast(...)`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import Any, Literal, cast

from everkeel.errors import ConfigError
from everkeel.policies.fail_fast.config import FailFastConfig
from everkeel.policies.fail_fast.core import Closed, Open
from everkeel.policies.fail_fast.state import Gate
from everkeel.runtime.classify import Errors, ResultPredicate
from everkeel.runtime.clock import Clock
from everkeel.runtime.keyed import Keyed
from everkeel.runtime.outcome import Verdict
from everkeel.runtime.policy import Policy, Snapshot
from everkeel.runtime.settings import Mode, Seconds
from everkeel.runtime.state import CallKind


class FailFastSnapshot(Snapshot):
    """What a fail fast's snapshot adds. Calls in flight when it opens are in no count of successes."""

    state: Literal["closed", "open"]
    reason: str | None
    in_a_row: int
    retry_after: float | None
    opened: int
    checks: int
    check_failed: int


class FailFast(Policy[FailFastConfig]):
    """A fail fast policy; make one with `fail_fast(...)`."""

    __slots__ = ("opened", "past_successes")
    type = "fail_fast"

    def __init__(self, name: str | None, config: FailFastConfig, **rest: Any) -> None:
        self.opened = 0
        self.past_successes = 0  # of closed phases that are over
        super().__init__(name, config, **rest)

    def make_state(self, key: Hashable = None) -> Gate:
        return Gate(self, key)

    @property
    def keyed(self) -> bool:
        """Has each key a gate of its own?"""
        return self._key is not None

    def _gate(self, key: Hashable) -> Gate:
        return cast("Gate", self.state.at(key) if isinstance(self.state, Keyed) else self.state)

    # ------------------------------------------------------------------ by hand

    def reset(self, *, key: Hashable = None) -> None:
        """Let calls pass again, and forget the failures seen so far."""
        self._gate(key).force(Closed(), "reset")

    def force_open(self, reason: str = "opened by hand", *, key: Hashable = None) -> None:
        """Reject every call until `reset`: the bad state is known before any call has failed."""
        self._gate(key).force(Open("hand", reason, self.clock.monotonic()), "hand")

    # ------------------------------------------------------------------ sync and async

    def may_guard(self, kind: CallKind) -> None:
        if kind in ("sync", "generator"):
            self.must_be_sync()

    def must_be_sync(self) -> None:
        """A sync call cannot await a check: say so before it is needed."""
        if self.config.awaited:
            raise ConfigError(
                self.label, "check", "must not be a coroutine function where the guarded call is sync", "one"
            )

    # ------------------------------------------------------------------ being watched

    def judge(self, error: BaseException) -> Verdict:
        return self.config.classifier.of_error(error)

    def start_over(self) -> None:
        self.opened, self.past_successes = 0, 0
        super().start_over()

    def totals(self) -> dict[str, int]:
        """What is counted over all keys."""
        counts = self.counts
        return {"opened": self.opened, "checks": counts["checks"], "check_failed": counts["check_failed"]}

    def over_keys(self, keyed: Keyed) -> dict[str, Any]:
        phases = Counter(cast("Gate", state).phase.name for state in keyed.everyone())
        return {"states": {"closed": phases["closed"], "open": phases["open"]}, **self.totals()}

    def snapshot(self) -> FailFastSnapshot:
        snapshot = cast("FailFastSnapshot", super().snapshot())
        snapshot["success"] += self.past_successes
        return snapshot


def fail_fast(
    name: str | None = None,
    *,
    failures: int | None = 3,
    check: Callable[..., Any] | None = None,
    check_every: Seconds = 5.0,
    open_for: Seconds | None = None,
    on: Errors = Exception,
    ignore: Errors | None = None,
    on_result: ResultPredicate | None = None,
    causes: bool = False,
    key: Callable[..., Hashable] | None = None,
    max_keys: int = 10_000,
    mode: Mode = "enforce",
    clock: Clock | None = None,
    replace: bool = False,
) -> FailFast:
    """Once a few calls in a row have failed, or your health check says so, fail at once until it is known to be well.

    For what does not get well by being tried: a revoked credential, a full disk, a schema that does not match. It never
    lets a call through to find out; for trouble that passes by itself use `circuit_breaker`, which does.

    Exceptions that `on` does not name count as an answer, so as a sign of life; ignored ones, rejections by other
    policies and cancelled calls are no evidence. The result of a call that began before it opened is ignored.

    Args:
        name: Its identity in errors, events, metrics and configuration. Without one it takes the decorated function's.
        failures: So many failures in a row open it. 3: one may be chance and two bad luck, and nothing recovers here
            by itself, so it must not open lightly. None: only the check opens it.
        check: A function, sync or (for async calls) async, that answers whether all is well; False, and any exception,
            opens it, and True closes what failures or the check itself have opened. It is asked by a call, before it is
            made, so it must be quick. With `key` it gets the key.
        check_every: It is asked at most once in so many seconds, by one caller. 5 s bounds what it costs, and how long
            bad news and good news take. Without calls it is not asked.
        open_for: After so many seconds what failures have opened closes by itself. By default it stays open until
            `reset()`, or until the check passes: what is bad for good should not be tried again by the clock.
        on: What counts as a failure: exception classes, predicates on the exception, or a tuple of both.
        ignore: Wins over `on`; no evidence.
        on_result: A predicate: True for results that count as a failure.
        causes: Let `on` and `ignore` look along the chain of causes too.
        key: A function of the call's arguments: one for each answer (a tenant, a credential), in bounded memory.
        max_keys: How many keys are treated on their own; further ones share one state, whose check gets None.
        mode: "enforce", "shadow" (counts what it would have rejected) or "off".
        clock: Where its time comes from, in place of the default.
        replace: Take the name from a policy that has it.

    >>> from everkeel import FailFastError, fail_fast
    >>> ledger = fail_fast("docs.ledger", failures=2)
    >>> @ledger
    ... def book(amount: int) -> str:
    ...     raise PermissionError("token revoked")
    >>> for _ in range(3):
    ...     try:
    ...         book(100)
    ...     except (PermissionError, FailFastError) as error:
    ...         print(error)
    token revoked
    token revoked
    fail fast 'docs.ledger' is open (2 failures in a row: PermissionError: token revoked) until it is reset
    >>> ledger.reset()
    >>> ledger.snapshot()["state"]
    'closed'
    """
    values = {
        "failures": failures,
        "check": check,
        "check_every": check_every,
        "open_for": open_for,
        "on": on,
        "ignore": ignore,
        "on_result": on_result,
        "causes": causes,
        "mode": mode,
    }
    config = FailFastConfig.make(name, values)
    return FailFast(name, config, clock=clock, replace=replace, key=key, max_keys=max_keys)
