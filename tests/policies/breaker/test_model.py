"""The breaker against the plainest possible account of what one is: a list of results and a few ifs."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from everkeel import CircuitOpenError, circuit_breaker
from everkeel.testing import VirtualClock

LENGTHS = [4.0, 8.0, 16.0]  # how long it stays open, the first, second and every further time in a row


@dataclass
class Rules:
    """What the model needs to know."""

    failure_rate: float | None = 0.5
    window: int = 6
    window_duration: float | None = None
    minimum_calls: int = 3
    consecutive: int | None = None
    slow_duration: float | None = None
    slow_rate: float = 0.5
    probes: int = 2
    probe_success_rate: float | None = None
    probe_lease: float = 6.0
    max_half_open: float | None = None
    lost_probe: str = "no_evidence"


@dataclass(eq=False)
class Call:
    """A call that was let in."""

    generation: int
    began: float


@dataclass
class Model:
    """Times are multiples of a quarter, and a slice of the time window is one second: its arithmetic is exact."""

    rules: Rules
    now: float = 0.0
    state: str = "closed"
    generation: int = 0
    since: float = 0.0
    opened: int = 0
    pinned: bool = False
    until: float = inf
    results: list[tuple[float, bool, bool]] = field(default_factory=list)  # when, failed, slow
    leases: dict[Call, float] = field(default_factory=dict)
    passed: int = 0
    missed: int = 0

    def become(self, state: str, *, pinned: bool = False, length: float | None = None) -> None:
        self.generation += 1
        self.state, self.since, self.pinned = state, self.now, pinned
        self.results, self.leases, self.passed, self.missed = [], {}, 0, 0
        self.until = inf
        if state == "closed":
            self.opened = 0
        elif state == "open":
            self.opened += 1
            rest = LENGTHS[min(self.opened, len(LENGTHS)) - 1] if length is None else length
            self.until = self.now + rest
        elif self.rules.max_half_open is not None:
            self.until = self.now + self.rules.max_half_open

    # --- calls

    def enter(self) -> Call | None:
        if self.state == "open" and self.now >= self.until:
            self.become("half_open")
        if self.state == "half_open":
            lost = [call for call, ends in self.leases.items() if ends <= self.now]
            for call in lost:
                del self.leases[call]
                self.missed += self.rules.lost_probe == "failure"
            if self.now >= self.until:
                self.become("open")
            else:
                self.decide()
        call = Call(self.generation, self.now)
        if self.state == "closed":
            return call
        if self.state == "half_open" and len(self.leases) + self.passed + self.missed < self.rules.probes:
            self.leases[call] = self.now + self.rules.probe_lease
            return call
        return None

    def end(self, call: Call, failed: bool) -> None:
        if call.generation != self.generation:
            return
        slow = self.rules.slow_duration is not None and self.now - call.began >= self.rules.slow_duration
        if self.state == "closed":
            self.results.append((self.now, failed, slow))
            self.judge()
        elif self.leases.pop(call, None) is not None:
            if failed or slow:
                self.missed += 1
            else:
                self.passed += 1
            self.decide()

    def drop(self, call: Call) -> None:
        if call.generation == self.generation:
            self.leases.pop(call, None)

    # --- decisions

    def recent(self) -> list[tuple[float, bool, bool]]:
        if self.rules.window_duration is None:
            return self.results[-self.rules.window :]
        newest = int(self.now - self.since)
        return [one for one in self.results if int(one[0] - self.since) > newest - 10]

    def judge(self) -> None:
        rules, recent = self.rules, self.recent()
        streak = 0
        for _, failed, _ in reversed(self.results):
            if not failed:
                break
            streak += 1
        enough = len(recent) >= rules.minimum_calls
        failures, slow_calls = sum(one[1] for one in recent), sum(one[2] for one in recent)
        if self.pinned:
            return
        if (
            (rules.consecutive is not None and streak >= rules.consecutive)
            or (enough and rules.failure_rate is not None and failures / len(recent) >= rules.failure_rate)
            or (enough and rules.slow_duration is not None and slow_calls / len(recent) >= rules.slow_rate)
        ):
            self.become("open")

    def decide(self) -> None:
        rules = self.rules

        def enough(passed: int) -> bool:
            if rules.probe_success_rate is not None:
                return passed / rules.probes >= rules.probe_success_rate
            rate = 0.5 if rules.failure_rate is None else rules.failure_rate
            return (rules.probes - passed) / rules.probes < rate or passed == rules.probes

        if enough(self.passed):
            self.become("closed")
        elif not enough(rules.probes - self.missed):
            self.become("open")


class BreakerMachine(RuleBasedStateMachine):
    """Calls begin, end in any order, are cancelled or forgotten, while time passes and operators interfere."""

    rules_given: dict[str, Any] = {}  # noqa: RUF012 - each subclass has its own, and none changes it
    calls = Bundle("calls")

    @initialize()
    def begin(self) -> None:
        self.model = Model(Rules(**self.rules_given))
        self.clock = VirtualClock()
        rules = vars(self.model.rules)
        self.breaker = circuit_breaker(clock=self.clock, open_for=LENGTHS, **rules)
        self.circuit = self.breaker.state
        self.in_flight = 0

    @rule(target=calls)
    def call(self) -> Any:
        expected = self.model.enter()
        try:
            permit = self.circuit.enter()
        except CircuitOpenError:
            assert expected is None, "rejected a call that should have passed"
            return None
        assert expected is not None, "let a call pass that should have been rejected"
        self.in_flight += 1
        return expected, permit

    def _ended(self, call: Any) -> bool:
        self.in_flight -= call is not None
        return call is not None

    @rule(call=consumes(calls))
    def succeed(self, call: Any) -> None:
        if self._ended(call):
            self.model.end(call[0], failed=False)
            self.circuit.done(call[1], "ok")

    @rule(call=consumes(calls))
    def fail(self, call: Any) -> None:
        if self._ended(call):
            self.model.end(call[0], failed=True)
            self.circuit.failed(call[1], ConnectionError())

    @rule(call=consumes(calls))
    def cancel(self, call: Any) -> None:
        if self._ended(call):
            self.model.drop(call[0])
            self.circuit.dropped(call[1], KeyboardInterrupt())

    @rule(call=consumes(calls))
    def forget(self, call: Any) -> None:
        """Its thread died."""
        self._ended(call)

    @rule(outcomes=st.lists(st.booleans(), min_size=1, max_size=12))
    def several_calls_one_after_the_other(self, outcomes: list[bool]) -> None:
        for failed in outcomes:
            call = self.call()
            (self.fail if failed else self.succeed)(call)

    @rule(quarters=st.integers(1, 40))
    def wait(self, quarters: int) -> None:
        self.model.now += quarters / 4
        self.clock.advance(quarters / 4)

    @rule()
    def reset(self) -> None:
        self.model.become("closed")
        self.breaker.reset()

    @rule()
    def force_open(self) -> None:
        self.model.become("open", length=inf)
        self.breaker.force_open()

    @rule()
    def force_closed(self) -> None:
        self.model.become("closed", pinned=True)
        self.breaker.force_closed()

    @rule()
    def half_open(self) -> None:
        self.model.become("half_open")
        self.breaker.half_open()

    # Only between calls: one that began as a mere tick of the tally ends as one, whatever the rules are by then.
    @precondition(lambda self: self.in_flight == 0)
    @rule(rate=st.sampled_from([0.25, 0.5, 0.75, 1.0]), minimum=st.integers(1, 6))
    def reconfigure(self, rate: float, minimum: int) -> None:
        self.model.rules.failure_rate, self.model.rules.minimum_calls = rate, minimum
        self.breaker.reconfigure(failure_rate=rate, minimum_calls=minimum)

    @invariant()
    def they_agree(self) -> None:
        model, shown = self.model, self.breaker.snapshot()
        assert (shown["state"], shown["opened"]) == (model.state, model.opened)
        if model.state == "open":
            assert shown["retry_after"] == (None if model.until == inf else max(0.0, model.until - model.now))
        if model.state == "closed":
            recent = model.recent()
            share = [sum(one[i] for one in recent) / len(recent) if recent else 0.0 for i in (1, 2)]
            assert (shown["window_calls"], shown["failure_rate"], shown["slow_rate"]) == (len(recent), *share)


KINDS: dict[str, dict[str, Any]] = {
    "by count": {},
    "by time": {"window_duration": 10.0},
    "in a row": {"failure_rate": None, "consecutive": 3},
    "both": {"consecutive": 3, "minimum_calls": 5},
    "slow": {"slow_duration": 2.0},
    "slow by time": {"slow_duration": 2.0, "window_duration": 10.0, "failure_rate": None},
    "strict probes": {"probes": 3, "probe_success_rate": 1.0, "lost_probe": "failure"},
    "bounded stay": {"probes": 3, "max_half_open": 5.0, "probe_lease": 2.0},
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_breaker_does_what_the_model_does(kind):
    machine = type("Machine", (BreakerMachine,), {"rules_given": KINDS[kind]})
    examples = min(settings.default.max_examples // 2, 250)  # of 40 steps each, for each of eight kinds
    run_state_machine_as_test(machine, settings=settings(max_examples=examples, stateful_step_count=40))
