"""The core with the lock, the clock and the health check it must not know.

The permit is the tally of the closed phase: while no check has to be asked, one attribute answers "may I?" and
reporting a success is one tick. A late success ticks a tally that nobody reads any more.

The check is asked by a call that comes when it is due. Claiming it moves the time at which it is due again, so that one
caller asks, those beside it go by what is known, and a check that never answers is asked again after `check_every`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable
from math import inf
from typing import TYPE_CHECKING, Any

from everkeel.errors import FailFastError
from everkeel.policies.fail_fast.core import Closed, Open, Phase
from everkeel.runtime.explain import describe
from everkeel.runtime.outcome import Verdict
from everkeel.runtime.state import CallKind, Shadow, State
from everkeel.runtime.tally import Tally, read

if TYPE_CHECKING:
    from everkeel.policies.fail_fast.config import FailFastConfig
    from everkeel.policies.fail_fast.policy import FailFast

_GATE = """\
permit = gate.quick
if permit is None:
    permit = AWAIT gate.ENTER()
try:
    INNER
except Exception as error:
    gate.failed(permit, error)
    raise
tick(permit)"""

_CHECKED_GATE = """\
permit = gate.passing
if permit is None or now() >= gate.due:
    permit = AWAIT gate.ENTER()
""" + _GATE.partition("ENTER()\n")[2]

_BAD_RESULT = "a result that counts as a failure"


class Gate(State):
    """What calls share: one gate for the policy, or one for each key."""

    __slots__ = ("due", "key", "passing", "phase", "policy", "quick")
    word = "gate"
    policy: FailFast

    def __init__(self, policy: FailFast, key: Hashable = None) -> None:
        self.policy, self.key = policy, key
        self.phase: Phase = Closed()
        self.passing: Tally | None = None  # the tally, while it is closed
        self.quick: Tally | None = None  # the same, while a call need not look at anything else
        self.due = -inf  # when the check is to be asked again
        self._look_again(policy.config)

    # ------------------------------------------------------------------ the permit protocol

    def enter(self) -> Any:
        permit = self.quick  # looked at once: it may be gone a moment later
        if permit is not None:
            return permit
        self.policy.must_be_sync()
        self.ask()
        return self._admit()

    async def aenter(self) -> Any:
        permit = self.quick
        if permit is not None:
            return permit
        await self.aask()
        return self._admit()

    def _admit(self) -> Tally:
        now = self.policy.clock.monotonic()
        phase = self.look(now)
        if isinstance(phase, Closed):
            return phase.tally
        raise self._rejected(self.rejection(phase, now))

    def look(self, now: float) -> Phase:
        """The phase at this time: an opening may be over."""
        phase = self.phase
        if isinstance(phase, Open) and now >= phase.until(self.policy.config):
            self.become(phase, Closed(), "time")
            return self.phase
        return phase

    def rejection(self, phase: Open, now: float) -> FailFastError:
        """The error for a call that may not pass."""
        rules = self.policy.config
        after = phase.until(rules)
        if rules.check is not None and phase.cause != "hand":
            after = min(after, self.due)
        return FailFastError(self.policy.name, None if after == inf else max(0.0, after - now), phase.reason)

    def _rejected(self, error: FailFastError) -> FailFastError:
        policy = self.policy
        next(policy.rejections)
        if policy.heard():
            from everkeel.events import CallRejected

            policy.emit(CallRejected(policy=policy.name, policy_type=policy.type, error=error, key=self.key))
        return error

    def done(self, permit: Tally, result: Any) -> None:
        if self.policy.config.classifier.of_result(result) is Verdict.FAILURE:
            self._record_failure(permit, None)
        else:
            next(permit)

    def failed(self, permit: Tally, error: Exception) -> None:
        verdict = self.policy.config.classifier.of_error(error)
        if verdict is Verdict.FAILURE:
            self._record_failure(permit, error)
        elif verdict is Verdict.SUCCESS:
            next(permit)  # an answer, and not one that counts as a failure: a sign of life
        else:
            self.policy.counts.tick("ignored")

    def _record_failure(self, permit: Tally, error: Exception | None) -> None:
        policy = self.policy
        policy.counts.tick("failure")
        last = _BAD_RESULT if error is None else describe(type(error), error.args)
        now = policy.clock.monotonic()
        opened: Open | None = None
        with policy.lock:
            phase = self.phase
            if isinstance(phase, Closed) and permit is phase.tally:  # else of an earlier phase: no evidence about this
                opened = phase.failure(policy.config, now, last)
                if opened is not None:
                    self._change(phase, opened)
        if opened is not None:
            self._tell(opened, "failures", error)

    # ------------------------------------------------------------------ the health check

    def ask(self) -> None:
        """Ask the check, if it is due and nobody else is asking."""
        check = self._claim()
        if check is None:
            return
        try:
            trouble = _trouble(check(*self._whose()))
        except Exception as error:
            trouble = _raised(error)
        except BaseException:
            self._give_back()
            raise
        self._learn(trouble)

    async def aask(self) -> None:
        """The same for a coroutine."""
        check = self._claim()
        if check is None:
            return
        try:
            answer = check(*self._whose())
            trouble = _trouble(await answer if inspect.isawaitable(answer) else answer)
        except Exception as error:
            trouble = _raised(error)
        except BaseException:  # cancelled: no evidence, and the next caller may ask at once
            self._give_back()
            raise
        self._learn(trouble)

    def _whose(self) -> tuple[Hashable, ...]:
        return (self.key,) if self.policy.keyed else ()

    def _claim(self) -> Callable[..., Any] | None:
        policy = self.policy
        rules, now = policy.config, policy.clock.monotonic()
        if rules.check is None or now < self.due:
            return None
        with policy.lock:
            if now < self.due:
                return None  # another one was first
            self.due = now + rules.check_every
        policy.counts.tick("checks")
        return rules.check

    def _give_back(self) -> None:
        with self.policy.lock:
            self.due = -inf

    def _learn(self, trouble: str | None) -> None:
        if trouble is not None:
            self.policy.counts.tick("check_failed")
        phase = self.phase
        after = phase.checked(trouble, self.policy.clock.monotonic())
        if after is not None:
            self.become(phase, after, "check")

    # ------------------------------------------------------------------ changing phase

    def become(self, before: Phase, after: Phase, why: str) -> None:
        """Change from one phase to another, unless somebody else has changed it in the meantime."""
        with self.policy.lock:
            if self.phase is not before:
                return
            self._change(before, after)
        self._tell(after, why, None)

    def force(self, after: Phase, why: str) -> None:
        """Change by hand, whatever the phase is."""
        with self.policy.lock:
            before = self.phase
            self._change(before, after)
        if not (isinstance(before, Closed) and isinstance(after, Closed)):
            self._tell(after, why, None)

    def _change(self, before: Phase, after: Phase) -> None:
        policy = self.policy
        if isinstance(before, Closed):
            policy.past_successes += read(before.tally)
            policy.opened += isinstance(after, Open)
        self.quick = self.passing = None
        self.phase = after
        self._look_again(policy.config)

    def _look_again(self, rules: FailFastConfig) -> None:
        phase = self.phase
        self.passing = phase.tally if isinstance(phase, Closed) else None
        self.quick = self.passing if rules.check is None else None

    def _tell(self, phase: Phase, why: str, error: Exception | None) -> None:
        """Never under the lock: listeners do what they like."""
        policy = self.policy
        if not policy.heard():
            return
        from everkeel.events import FailFastClosed, FailFastOpened

        if isinstance(phase, Open):
            until = phase.until(policy.config)
            length = None if until == inf else until - phase.since
            policy.emit(
                FailFastOpened(
                    policy=policy.name,
                    policy_type=policy.type,
                    reason=phase.reason,
                    open_for=length,
                    error=error,
                    key=self.key,
                )
            )
        else:
            policy.emit(FailFastClosed(policy=policy.name, policy_type=policy.type, reason=why, key=self.key))

    def adapt(self, old: FailFastConfig, new: FailFastConfig) -> None:
        with self.policy.lock:
            if new.check is not old.check:
                self.due = -inf  # another check has not been asked yet
            else:
                self.due = min(self.due, self.policy.clock.monotonic() + new.check_every)
            self._look_again(new)

    # ------------------------------------------------------------------ the woven path

    def fragment(self, kind: CallKind) -> str | None:
        rules = self.policy.config
        if rules.on_result is not None:
            return super().fragment(kind)
        return _GATE if rules.check is None else _CHECKED_GATE

    def names(self, kind: CallKind) -> dict[str, object]:
        return {"tick": next, "now": self.policy.clock.monotonic}

    # ------------------------------------------------------------------ being watched

    def shadow(self) -> State:
        return WouldReject(self)

    def forgettable(self) -> bool:
        # Nor while the check is not due: a new state of this key would ask it sooner than `check_every` allows.
        phase = self.phase
        return isinstance(phase, Closed) and not phase.streak() and self.policy.clock.monotonic() >= self.due

    def successes(self) -> int:
        phase = self.phase
        return read(phase.tally) if isinstance(phase, Closed) else 0

    def details(self) -> dict[str, Any]:
        phase, totals = self.phase, self.policy.totals()
        if isinstance(phase, Closed):
            return {"state": "closed", "reason": None, "in_a_row": phase.streak(), "retry_after": None, **totals}
        after = self.rejection(phase, self.policy.clock.monotonic()).retry_after
        return {"state": "open", "reason": phase.reason, "in_a_row": 0, "retry_after": after, **totals}


class WouldReject(Shadow):
    """Asks the check, learns and changes like the gate itself, and lets everybody pass."""

    __slots__ = ()
    state: Gate

    def enter(self) -> Any:
        self.state.policy.must_be_sync()
        self.state.ask()
        return self._look()

    async def aenter(self) -> Any:
        await self.state.aask()
        return self._look()

    def _look(self) -> tuple[Tally] | None:
        state, now = self.state, self.policy.clock.monotonic()
        phase = state.look(now)
        if isinstance(phase, Closed):
            return (phase.tally,)
        self.policy.would("reject", state.rejection(phase, now))
        return None


def _trouble(answer: object) -> str | None:
    return None if answer else "its check failed"


def _raised(error: Exception) -> str:
    return f"its check raised {describe(type(error), error.args)}"
