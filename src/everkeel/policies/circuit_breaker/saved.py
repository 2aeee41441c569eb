"""A circuit's state to and from JSON: a restarted process need not greet a sick dependency with full traffic."""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Any

from everkeel.errors import ConfigError
from everkeel.policies.circuit_breaker.core import Closed, HalfOpen, Open, Phase, Pinned
from everkeel.policies.circuit_breaker.windows import CountWindow
from everkeel.runtime.tally import read

if TYPE_CHECKING:
    from everkeel.policies.circuit_breaker.state import Circuit

_VERSION = 1


def save(circuit: Circuit) -> dict[str, Any]:
    """What is known about a circuit, as JSON has it. Moments are kept relative: another process has another clock."""
    policy = circuit.policy
    clock, rules = policy.clock, policy.config
    with policy.lock:
        phase = circuit.phase
        data: dict[str, Any] = {
            "version": _VERSION,
            "saved_at": clock.time(),
            "state": phase.name,
            "opened": phase.opened,
        }
        if isinstance(phase, Closed):
            successes = read(phase.tally)
            failures = [] if phase.window is None else phase.window.ages(rules.window, successes)
            data["successes"] = min(successes, max(0, rules.window - len(failures)))
            data["failures"] = failures
            data["pinned"] = phase.pinned
        elif isinstance(phase, Open):
            data |= {"failure_rate": phase.rate, "calls": phase.calls, "reason": phase.reason}
            data["remaining"] = None if phase.until == inf else max(0.0, phase.until - clock.monotonic())
        return data


def restore(circuit: Circuit, data: Any) -> None:
    """Put a circuit into a saved state. Time that passed in the meantime counts; probes under way are gone."""
    policy = circuit.policy
    try:
        if data["version"] != _VERSION:
            raise ValueError(f"must have version {_VERSION}")
        phase = _phase(circuit, data)
        opened = int(data["opened"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigError(
            policy.label, "saved state", f"must be what save_state() returned ({error})", repr(data)[:100]
        ) from None
    circuit.change(phase)
    if not isinstance(phase, Closed):
        phase.opened = opened


def _phase(circuit: Circuit, data: dict[str, Any]) -> Phase:
    policy = circuit.policy
    rules, clock = policy.config, policy.clock
    now = clock.monotonic()
    if data["state"] == "closed":
        closed = (Pinned if data["pinned"] else Closed)(rules, now)
        failures = [int(age) for age in data["failures"]]
        for _ in range(int(data["successes"])):
            next(closed.tally)
        if failures and rules.window_duration is None:
            closed.window = CountWindow.of_ages(int(data["successes"]), failures)
        return closed
    if data["state"] == "open":
        rate = None if data["failure_rate"] is None else float(data["failure_rate"])
        opened = Open(rate, int(data["calls"]), data["reason"])
        if data["remaining"] is None:
            opened.reason = opened.reason or "forced"
            return opened
        passed = max(0.0, clock.time() - float(data["saved_at"]))
        opened.until = now + max(0.0, float(data["remaining"]) - passed)
        return opened
    if data["state"] == "half_open":
        return HalfOpen(rules, now, None)
    raise ValueError(f"state {data['state']!r} is unknown")
