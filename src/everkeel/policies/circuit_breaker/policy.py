"""What the user holds: `circuit_breaker(...)`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Literal, cast

from everkeel.errors import CircuitOpenError
from everkeel.policies.circuit_breaker import saved
from everkeel.policies.circuit_breaker.config import CircuitBreakerConfig
from everkeel.policies.circuit_breaker.core import Closed, HalfOpen, Open, Phase, Pinned, opening_before
from everkeel.policies.circuit_breaker.state import Circuit
from everkeel.runtime.backoff import Backoff
from everkeel.runtime.classify import Errors, ResultPredicate
from everkeel.runtime.clock import DEFAULT, Clock
from everkeel.runtime.keyed import Keyed
from everkeel.runtime.outcome import Verdict
from everkeel.runtime.policy import Policy, Snapshot
from everkeel.runtime.settings import Mode, Seconds

if TYPE_CHECKING:
    import asyncio


class CircuitBreakerSnapshot(Snapshot):
    """What a circuit breaker's snapshot adds. Calls in flight when a circuit opens are in no count of successes."""

    state: Literal["closed", "open", "half_open"]
    failure_rate: float
    slow_rate: float
    window_calls: int
    retry_after: float | None
    opened: int
    transitions: dict[str, int]
    time_in_state: dict[str, float]


class Isolation:
    """Holds a circuit open until it is released; several may hold one, and it stays open until the last lets go."""

    __slots__ = ("_policy", "circuit", "held")

    def __init__(self, policy: CircuitBreaker, circuit: Circuit) -> None:
        self._policy, self.circuit, self.held = policy, circuit, True

    def release(self) -> None:
        """Let go; a second time does nothing. After the last release a few probes find out whether all is well."""
        self._policy.released(self)

    def __enter__(self) -> Isolation:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


class CircuitBreaker(Policy[CircuitBreakerConfig]):
    """A circuit breaker; make one with `circuit_breaker(...)`."""

    __slots__ = ("_held", "_waiters", "born", "past_successes", "times", "transitions")
    type = "circuit_breaker"

    def __init__(self, name: str | None, config: CircuitBreakerConfig, *, clock: Clock | None = None, **rest: Any):
        self.times: dict[str, float] = {}
        self.past_successes = 0  # of closed periods that are over, and of probes
        self.transitions: Counter[str] = Counter()
        self._held: Counter[Circuit] = Counter()
        self._waiters: list[asyncio.Future[None]] = []
        self.born = (clock or DEFAULT).monotonic()
        super().__init__(name, config, clock=clock, **rest)  # whoever hears of it may look at it at once

    def make_state(self, key: Hashable = None) -> Circuit:
        return Circuit(self, key)

    def _circuit(self, key: Hashable) -> Circuit:
        return cast("Circuit", self.state.at(key) if isinstance(self.state, Keyed) else self.state)

    # ------------------------------------------------------------------ by hand

    def force_open(self, *, key: Hashable = None) -> None:
        """Reject every call until told otherwise: the dependency is known to be down, or must be spared."""
        self._force(key, lambda phase: Open(None, 0, "forced"))

    def force_closed(self, *, key: Hashable = None) -> None:
        """Let every call pass until told otherwise, whatever happens to it."""
        self._force(key, lambda phase: Pinned(self.config, self.clock.monotonic()))

    def half_open(self, *, key: Hashable = None) -> None:
        """Let the probes find out now."""
        self._force(key, lambda phase: HalfOpen(self.config, self.clock.monotonic(), opening_before(phase)))

    def reset(self, *, key: Hashable = None) -> None:
        """Close the circuit and forget what it saw."""
        self._change(key, lambda phase: Closed(self.config, self.clock.monotonic()))
        if self.heard():
            from everkeel.events import CircuitReset

            self.emit(CircuitReset(policy=self.name, policy_type=self.type, key=key))

    def isolate(self, *, key: Hashable = None) -> Isolation:
        """Hold the circuit open until the answer is released (or the `with` block ends); holders are counted.

        >>> from everkeel import circuit_breaker
        >>> payments = circuit_breaker()
        >>> with payments.isolate():
        ...     payments.snapshot()["state"]
        'open'
        """
        circuit = self._circuit(key)

        def hold(phase: Phase) -> Phase:
            self._held[circuit] += 1
            return Open(None, 0, "isolated") if self._held[circuit] == 1 else phase

        circuit.change(hold)
        return Isolation(self, circuit)

    def released(self, isolation: Isolation) -> None:
        """A holder of an isolated circuit let go."""
        circuit = isolation.circuit

        def let_go(phase: Phase) -> Phase:
            if not isolation.held:
                return phase
            isolation.held = False
            self._held[circuit] -= 1
            if self._held[circuit] > 0:
                return phase
            del self._held[circuit]
            return HalfOpen(self.config, self.clock.monotonic(), opening_before(phase))

        circuit.change(let_go)

    def _change(self, key: Hashable, make: Callable[[Phase], Phase]) -> Phase:
        circuit = self._circuit(key)

        def unless_held(phase: Phase) -> Phase:
            holders = self._held.get(circuit, 0)
            if holders:
                raise RuntimeError(f"{self.label} is isolated by {holders}; it changes when the last releases it")
            return make(phase)

        return circuit.change(unless_held)

    def _force(self, key: Hashable, make: Callable[[Phase], Phase]) -> None:
        phase = self._change(key, make)
        if self.heard():
            from everkeel.events import CircuitForced

            self.emit(CircuitForced(policy=self.name, policy_type=self.type, state=phase.name, key=key))

    async def wait_closed(self, *, key: Hashable = None) -> None:
        """Wait until the circuit is closed: for workers that would rather pause than be rejected."""
        from asyncio import get_running_loop

        while self._circuit(key).phase.name != "closed":
            waiter: asyncio.Future[None] = self.clock.future(get_running_loop())
            with self.lock:
                self._waiters.append(waiter)
            try:
                if self._circuit(key).phase.name != "closed":  # it may have closed before we were on the list
                    await waiter
            finally:
                with self.lock:
                    if waiter in self._waiters:
                        self._waiters.remove(waiter)

    def wake_waiters(self) -> None:
        """A circuit closed."""
        with self.lock:
            waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            try:
                waiter.get_loop().call_soon_threadsafe(_wake, waiter)
            except RuntimeError:  # its loop is closed, and it with it
                pass

    # ------------------------------------------------------------------ saved state

    def save_state(self, *, key: Hashable = None) -> dict[str, Any]:
        """The circuit's state as JSON has it, for `restore_state` in the next process.

        >>> import json
        >>> from everkeel import circuit_breaker
        >>> breaker = circuit_breaker()
        >>> breaker.force_open()
        >>> successor = circuit_breaker()
        >>> successor.restore_state(json.loads(json.dumps(breaker.save_state())))
        >>> successor.snapshot()["state"]
        'open'
        """
        return saved.save(self._circuit(key))

    def restore_state(self, data: dict[str, Any], *, key: Hashable = None) -> None:
        """Take over what `save_state` returned; the time that passed in between counts."""
        circuit = self._circuit(key)
        phase, opened = saved.read_phase(circuit, data)
        self._change(key, lambda _: phase)
        if not isinstance(phase, Closed):
            phase.opened = opened

    # ------------------------------------------------------------------ being watched

    def spent(self, before: str, after: str, seconds: float) -> None:
        """A circuit changed, after so long in its old state."""
        self.times[before] = self.times.get(before, 0.0) + seconds
        self.transitions[f"{before}_to_{after}"] += 1

    def start_over(self) -> None:
        self.times, self.past_successes, self.born = {}, 0, self.clock.monotonic()
        self.transitions.clear()
        self._held.clear()
        super().start_over()

    def after_fork(self) -> None:
        super().after_fork()
        self._waiters = []  # the tasks of the parent wait in the parent

    def judge(self, error: BaseException) -> Verdict:
        return self.config.classifier.of_error(error)

    def over_keys(self, keyed: Keyed) -> dict[str, Any]:
        phases = Counter(cast("Circuit", state).phase.name for state in keyed.everyone())
        return {
            "states": {name: phases.get(name, 0) for name in ("closed", "open", "half_open")},
            "transitions": {**self.transitions},
            "time_in_state": {**self.times},
        }

    def snapshot(self) -> CircuitBreakerSnapshot:
        snapshot = cast("CircuitBreakerSnapshot", super().snapshot())
        snapshot["success"] += self.past_successes
        return snapshot


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


def circuit_breaker(
    name: str | None = None,
    *,
    failure_rate: float | None = 0.5,
    window: int = 100,
    window_duration: Seconds | None = None,
    allow_zero_rate: bool = False,
    minimum_calls: int = 10,
    consecutive: int | None = None,
    slow_duration: Seconds | None = None,
    slow_rate: float = 1.0,
    on: Errors = Exception,
    ignore: Errors | None = None,
    on_result: ResultPredicate | None = None,
    causes: bool = False,
    open_for: Seconds | Backoff = 30.0,
    probes: int = 3,
    probe_success_rate: float | None = None,
    probe_lease: Seconds = 60.0,
    max_half_open: Seconds | None = None,
    cancelled_probe: Literal["no_evidence", "failure"] = "no_evidence",
    lost_probe: Literal["no_evidence", "failure"] = "no_evidence",
    ignored: Literal["no_evidence", "success"] = "no_evidence",
    rejections: Literal["no_evidence", "failure"] = "no_evidence",
    open_error: type[CircuitOpenError] = CircuitOpenError,
    key: Callable[..., Hashable] | None = None,
    max_keys: int = 10_000,
    mode: Mode = "enforce",
    clock: Clock | None = None,
    replace: bool = False,
) -> CircuitBreaker:
    """Stop calling a dependency that keeps failing, give it time, and find out with a few probes when it is well again.

    One breaker per dependency, shared by everything that calls it. Not for errors of the caller's own making: list
    those in `ignore`. Exceptions that `on` does not name count as an answer, so as a sign of life; ignored ones,
    rejections by other policies and cancelled calls are no evidence at all. The result of a call that began before the
    circuit changed its state is ignored.

    Args:
        name: Its identity in errors, events, metrics and configuration. Without one it takes the decorated function's.
        failure_rate: The share of failed calls that opens it, when reached. None: no rule by share.
        window: The share is taken over so many of the last calls. 100 is where a share of one half is hardly chance.
        window_duration: Over the last so many seconds in its place, in ten slices.
        allow_zero_rate: Let `failure_rate` be 0: it then opens as soon as `minimum_calls` results are there, whatever
            they are. Refused otherwise, since nobody means that.
        minimum_calls: Before so many calls are in the window no share is taken. 10 keeps services with little traffic
            protected; a window of 100 that must first be full would never open there.
        consecutive: So many failures in a row open it as well, or alone with `failure_rate=None`.
        slow_duration: A call that takes at least so many seconds is slow; None: no call is.
        slow_rate: The share of slow calls that opens it, when reached.
        on: What counts as a failure: exception classes, predicates on the exception, or a tuple of both.
        ignore: Wins over `on`; no evidence.
        on_result: A predicate: True for results that count as a failure.
        causes: Let `on` and `ignore` look along the chain of causes too.
        open_for: Seconds of rest before the first probe, or a `Backoff` that grows while it keeps opening. 30 s
            outlasts a restart.
        probes: How many calls may pass while it is half open, under any concurrency.
        probe_success_rate: The share of them that must succeed. By default it closes when the share of probes that
            failed stays below `failure_rate`.
        probe_lease: A probe that has not reported after so many seconds is taken for lost, and another may pass.
        max_half_open: After so many seconds without a decision it opens again.
        cancelled_probe: What a probe counts as whose call was cancelled.
        lost_probe: What a lost probe counts as.
        ignored: What an ignored exception counts as.
        rejections: What a rejection by another policy, and a `NotRetryable` error, counts as.
        open_error: The class of the error it raises.
        key: A function of the call's arguments: one circuit for each answer (a host, a tenant), in bounded memory.
        max_keys: How many keys have circuits of their own; further ones share one.
        mode: "enforce", "shadow" (counts what it would have rejected) or "off".
        clock: Where its time comes from, in place of the default.
        replace: Take the name from a policy that has it.

    >>> from everkeel import CircuitOpenError, circuit_breaker
    >>> payments = circuit_breaker(minimum_calls=2)
    >>> @payments
    ... def charge(amount: int) -> str:
    ...     raise ConnectionError("no route to the bank")
    >>> for _ in range(3):
    ...     try:
    ...         charge(100)
    ...     except (ConnectionError, CircuitOpenError) as error:
    ...         print(type(error).__name__)
    ConnectionError
    ConnectionError
    CircuitOpenError
    """
    values = {
        "failure_rate": failure_rate,
        "window": window,
        "window_duration": window_duration,
        "allow_zero_rate": allow_zero_rate,
        "minimum_calls": minimum_calls,
        "consecutive": consecutive,
        "slow_duration": slow_duration,
        "slow_rate": slow_rate,
        "on": on,
        "ignore": ignore,
        "on_result": on_result,
        "causes": causes,
        "open_for": open_for,
        "probes": probes,
        "probe_success_rate": probe_success_rate,
        "probe_lease": probe_lease,
        "max_half_open": max_half_open,
        "cancelled_probe": cancelled_probe,
        "lost_probe": lost_probe,
        "ignored": ignored,
        "rejections": rejections,
        "open_error": open_error,
        "mode": mode,
    }
    config = CircuitBreakerConfig.make(name, values)
    return CircuitBreaker(name, config, clock=clock, replace=replace, key=key, max_keys=max_keys)
