"""The core with the lock and the clock it must not know, and the permits it gives.

The permit of a closed circuit is, as soon as a success can no longer open it, the tally of successes itself: one
attribute answers "may I?", and reporting a success is one tick. All other permits answer `next` in the same way, so
the hot path needs no second case. A late success ticks a tally that nobody reads any more.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from math import inf
from typing import TYPE_CHECKING, Any

from everkeel.errors import CircuitOpenError, NotRetryable, RejectedError
from everkeel.policies.circuit_breaker.core import Closed, HalfOpen, Open, Phase
from everkeel.runtime import events as hub
from everkeel.runtime.outcome import Verdict
from everkeel.runtime.state import CallKind, State
from everkeel.runtime.tally import Tally, read
from everkeel.runtime.trouble import report

if TYPE_CHECKING:
    from everkeel.policies.circuit_breaker.config import CircuitBreakerConfig
    from everkeel.policies.circuit_breaker.policy import CircuitBreaker

_REST = 30.0  # how long it stays open until a function as open_for has answered, or when it cannot

_GATE = """\
permit = circuit.quick
if permit is None:
    permit = circuit.enter()
try:
    INNER
except Exception as error:
    circuit.failed(permit, error)
    raise
except BaseException as error:
    circuit.dropped(permit, error)
    raise
tick(permit)"""


class Passage:
    """A permit that must be told how the call ended: of a closed circuit that is watched closely, or of a probe."""

    __slots__ = ("began", "circuit", "phase")

    def __init__(self, circuit: Circuit, phase: Phase, began: float) -> None:
        self.circuit, self.phase, self.began = circuit, phase, began

    def __next__(self) -> None:
        self.circuit.succeeded(self)

    def __iter__(self) -> Passage:
        return self


class Circuit(State):
    """One circuit: that of the policy, or that of a key."""

    __slots__ = ("_since", "key", "phase", "policy", "quick")  # few: there may be one circuit for each of many keys
    word = "circuit"
    policy: CircuitBreaker

    def __init__(self, policy: CircuitBreaker, key: Hashable = None) -> None:
        self.policy, self.key = policy, key
        rules = policy.config
        now = 0.0 if rules.window_duration is None else policy.clock.monotonic()
        self.phase: Phase = Closed(rules, now)
        self.quick: Tally | None = None  # the tally, while a success can be nothing but a tick of it
        self._since: float | None = None  # when the phase began; None: from the start
        self._look_again(self.phase)

    # ------------------------------------------------------------------ the permit protocol

    def enter(self) -> Any:
        permit = self.quick  # looked at once: it may be gone a moment later
        if permit is not None:
            return permit
        policy, phase = self.policy, self.phase
        rules = policy.config
        now = policy.clock.monotonic()
        if isinstance(phase, Closed):
            return Passage(self, phase, now)
        # The error is made in the `raise`: a frame that names it would be kept alive by it, and the other way round.
        if type(phase) is Open and now < phase.until:  # no lock to say no
            next(policy.rejections)
            if policy.subscriptions or hub.everywhere:
                raise self._told(self._rejection(phase, now))
            raise rules.open_error(
                policy.name, None if phase.until == inf else phase.until - now, phase.rate, phase.calls, phase.reason
            )
        passage, phase = self._admit(rules, now)
        if passage is None:
            next(policy.rejections)
            raise self._told(self._rejection(phase, now))
        return passage

    def try_enter(self) -> Any:
        permit = self.quick
        if permit is not None:
            return permit
        now = self.policy.clock.monotonic()
        passage, phase = self._admit(self.policy.config, now)
        if passage is None:
            raise self._rejection(phase, now)  # neither counted nor told: nobody is rejected
        return passage

    def _admit(self, rules: CircuitBreakerConfig, now: float) -> tuple[Passage | None, Phase]:
        """A permit if there is one to have, and the phase that says so."""
        changes: list[tuple[Phase, Phase]] = []
        permit: Passage | None = None
        with self.policy.lock:
            phase = self.phase
            if type(phase) is Open and now >= phase.until:
                phase = self._become(HalfOpen(rules, now, phase), now, changes)
            if type(phase) is HalfOpen:
                phase = self._become(phase.expire(rules, now), now, changes)
            if isinstance(phase, Closed):
                permit = Passage(self, phase, now)
            elif type(phase) is HalfOpen:
                probe = Passage(self, phase, now)
                permit = probe if phase.admit(rules, now, probe) else None
        self._tell(changes)
        return permit, phase

    def _rejection(self, phase: Phase, now: float) -> CircuitOpenError:
        policy = self.policy
        if isinstance(phase, HalfOpen):
            before = phase.before or Open(None, 0, None)
            return policy.config.open_error(
                policy.name, phase.wait(now), before.rate, before.calls, "half open, its probes are under way"
            )
        opened = phase if isinstance(phase, Open) else Open(None, 0, None)
        wait = None if opened.until == inf else max(0.0, opened.until - now)
        return policy.config.open_error(policy.name, wait, opened.rate, opened.calls, opened.reason)

    def done(self, permit: Any, result: Any) -> None:
        classifier = self.policy.config.classifier
        if classifier.on_result is not None and classifier.of_result(result) is Verdict.FAILURE:
            self._record_failure(permit)
        else:
            next(permit)

    def failed(self, permit: Any, error: Exception) -> None:
        rules = self.policy.config
        verdict = rules.classifier.of_error(error)
        if verdict is Verdict.FAILURE:
            self._record_failure(permit)
        elif verdict is Verdict.SUCCESS or (
            rules.ignored == "success"
            and (rules.rejections == "failure" or not isinstance(error, RejectedError | NotRetryable))
        ):
            next(permit)  # the dependency answered, and not in a way that counts as a failure: a sign of life
        else:
            self.policy.counts.tick("ignored")
            self.dropped(permit, error)

    def dropped(self, permit: Any, error: BaseException) -> None:
        if type(permit) is Passage and type(permit.phase) is HalfOpen:
            if self.policy.config.cancelled_probe == "failure" and not isinstance(error, Exception):
                self._record_failure(permit)
                return
            with self.policy.lock:
                permit.phase.drop(permit)

    def succeeded(self, passage: Passage) -> None:
        """A call that was watched closely succeeded."""
        policy = self.policy
        rules, now = policy.config, policy.clock.monotonic()
        slow = rules.slow_duration is not None and now - passage.began >= rules.slow_duration
        changes: list[tuple[Phase, Phase]] = []
        with policy.lock:
            phase = passage.phase
            if phase is not self.phase:
                return  # of an earlier state: no evidence about this one
            if isinstance(phase, Closed):
                self._become(phase.success(rules, now, slow=slow), now, changes)
            elif type(phase) is HalfOpen:
                policy.past_successes += 1
                end = phase.failure if slow else phase.success
                self._become(end(rules, now, passage), now, changes)
            self._look_again(self.phase)
        self._tell(changes)

    def _record_failure(self, permit: Any) -> None:
        policy = self.policy
        policy.counts.tick("failure")
        rules, now = policy.config, policy.clock.monotonic()
        changes: list[tuple[Phase, Phase]] = []
        with policy.lock:
            phase = self.phase
            if isinstance(phase, Closed):
                if permit is not phase.tally and getattr(permit, "phase", None) is not phase:
                    return  # of an earlier state: no evidence about this one
                slow = (
                    rules.slow_duration is not None
                    and type(permit) is Passage
                    and now - permit.began >= rules.slow_duration
                )
                self._become(phase.failure(rules, now, slow=slow), now, changes)
                self._look_again(self.phase)
            elif type(phase) is HalfOpen and getattr(permit, "phase", None) is phase:
                self._become(phase.failure(rules, now, permit), now, changes)
        self._tell(changes)

    # ------------------------------------------------------------------ changing state, under the lock

    def _become(self, phase: Phase | None, now: float, changes: list[tuple[Phase, Phase]]) -> Phase:
        """Change to a phase; None and the current one change nothing."""
        old = self.phase
        if phase is None or phase is old:
            return old
        if isinstance(phase, Open):
            phase.opened = old.opened + 1  # a manual transition advances a backoff like an automatic one
            if phase.until == inf and phase.reason not in ("forced", "isolated"):
                rest = self.policy.config.open_for.fixed
                phase.since = now if rest is None else None
                phase.until = now + (_REST if rest is None else rest)
        if isinstance(old, Closed):
            self.policy.past_successes += read(old.tally)
        self.policy.spent(old.name, phase.name, now - (self.policy.born if self._since is None else self._since))
        self._since = now
        self.quick = None
        self.phase = phase
        self._look_afresh(phase)
        changes.append((old, phase))
        return phase

    def _look_again(self, phase: Phase) -> None:
        if isinstance(phase, Closed):
            self.quick = phase.tally if phase.may_be_quick(self.policy.config) else None

    def _look_afresh(self, phase: Phase) -> None:
        """Look again where no result was just judged: old evidence may meet new rules, and then a success opens it.

        A success of a call that began before is still no more than a tick; the next one is judged.
        """
        if isinstance(phase, Closed) and phase.verdict(self.policy.config) is not None:
            self.quick = None
        else:
            self._look_again(phase)

    def change(self, decide: Callable[[Phase], Phase]) -> Phase:
        """Change by hand. `decide` is asked under the lock, so that nothing comes between its look and the change."""
        changes: list[tuple[Phase, Phase]] = []
        with self.policy.lock:
            phase = self._become(decide(self.phase), self.policy.clock.monotonic(), changes)
        self._tell(changes)
        return phase

    def adapt(self, old: CircuitBreakerConfig, new: CircuitBreakerConfig) -> None:
        with self.policy.lock:
            phase = self.phase
            if isinstance(phase, Closed):
                if old.window_duration != new.window_duration:
                    # Another kind of window: what the old one saw cannot be carried over.
                    self.policy.past_successes += read(phase.tally)
                    self.quick = None
                    self.phase = phase = type(phase)(new, self.policy.clock.monotonic())
                self._look_afresh(phase)

    # ------------------------------------------------------------------ telling, never under the lock

    def _tell(self, changes: list[tuple[Phase, Phase]]) -> None:
        for _, phase in changes:
            if isinstance(phase, Closed):
                self.policy.wake_waiters()
            elif isinstance(phase, Open) and phase.since is not None:
                self._ask_how_long(phase, phase.since)
            if self.policy.heard():
                self._announce(phase)

    def _ask_how_long(self, phase: Open, since: float) -> None:
        """How long it rests may be a function of the user's: it must neither run under the lock nor harm the call."""
        try:
            phase.until = since + self.policy.config.open_for.delay(phase.opened)
        except Exception as error:
            report(f"{self.policy.label}: open_for raised; it stays open for {_REST:g} s", error)

    def _announce(self, phase: Phase) -> None:
        from everkeel.events import CircuitClosed, CircuitHalfOpened, CircuitOpened

        policy = self.policy
        if isinstance(phase, Open):
            length = None if phase.until == inf else max(0.0, phase.until - policy.clock.monotonic())
            policy.emit(
                CircuitOpened(
                    policy=policy.name,
                    policy_type=policy.type,
                    failure_rate=phase.rate,
                    open_for=length,
                    reason=phase.reason,
                    key=self.key,
                )
            )
        else:
            kind = CircuitClosed if isinstance(phase, Closed) else CircuitHalfOpened
            policy.emit(kind(policy=policy.name, policy_type=policy.type, key=self.key))

    def _told(self, error: CircuitOpenError) -> CircuitOpenError:
        """The error, of which everybody who listens has been told."""
        policy = self.policy
        if policy.heard():
            from everkeel.events import CallRejected

            policy.emit(CallRejected(policy=policy.name, policy_type=policy.type, error=error, key=self.key))
        return error

    # ------------------------------------------------------------------ the woven path

    def fragment(self, kind: CallKind) -> str | None:
        # Without on_result the fast lines keep no result to judge: one that is set while a call is in flight is not
        # asked about it. To look would cost every call.
        return _GATE if self.policy.config.on_result is None else super().fragment(kind)

    def names(self, kind: CallKind) -> dict[str, object]:
        return {"tick": next}

    # ------------------------------------------------------------------ being watched

    def forgettable(self) -> bool:
        # What it saw go well is forgotten too: the key then opens as soon as a new one would.
        with self.policy.lock:
            phase = self.phase
            if not isinstance(phase, Closed) or phase.pinned:
                return False
            return phase.blameless(self.policy.config, self._now())

    def after_fork(self) -> None:
        phase = self.phase
        if type(phase) is HalfOpen:
            phase.leases.clear()  # the probes of the parent report to the parent

    def _now(self) -> float:
        return self.policy.clock.monotonic()

    def successes(self) -> int:
        phase = self.phase
        return read(phase.tally) if isinstance(phase, Closed) else 0

    def details(self) -> dict[str, Any]:
        policy = self.policy
        with policy.lock:
            phase, now = self.phase, self._now()
            failure_rate, slow_rate, calls = 0.0, 0.0, 0
            if isinstance(phase, Closed):
                failure_rate, slow_rate, calls = phase.rates(policy.config, now)
            elif isinstance(phase, Open):
                failure_rate, calls = phase.rate or 0.0, phase.calls
            times = {**policy.times}
            times[phase.name] = times.get(phase.name, 0.0) + now - (policy.born if self._since is None else self._since)
            return {
                "state": phase.name,
                "failure_rate": failure_rate,
                "slow_rate": slow_rate,
                "window_calls": calls,
                "retry_after": (
                    max(0.0, phase.until - now) if isinstance(phase, Open) and phase.until != inf else None
                ),
                "opened": phase.opened,
                "transitions": {**policy.transitions},
                "time_in_state": times,
            }
