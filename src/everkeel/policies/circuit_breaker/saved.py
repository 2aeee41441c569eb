"""A circuit's state to and from JSON: a restarted process need not greet a sick dependency with full traffic."""

from __future__ import annotations

from itertools import pairwise
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

from everkeel.errors import ConfigError
from everkeel.policies.circuit_breaker.core import Closed, HalfOpen, Open, Phase, Pinned
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
            _, _, calls = phase.rates(rules, clock.monotonic())
            failed, slow = ([], []) if phase.window is None else phase.window.ages(rules.window, read(phase.tally))
            # Without the times of its failures a time window is not saved, so neither are its successes.
            data["successes"] = calls - len(failed) if rules.window_duration is None else 0
            data |= {"failed": failed, "slow": slow, "streak": phase.streak(), "pinned": phase.pinned}
        elif isinstance(phase, Open):
            data |= {"failure_rate": phase.rate, "calls": phase.calls, "reason": phase.reason}
            data["remaining"] = None if phase.until == inf else max(0.0, phase.until - clock.monotonic())
        return data


def read_phase(circuit: Circuit, data: Any) -> tuple[Phase, int]:
    """The phase that was saved, and how often in a row it had opened.

    Time that passed in the meantime counts; probes that were under way are gone.
    """
    try:
        if not isinstance(data, dict):
            raise ValueError("it is no dict")
        if data["version"] != _VERSION:
            raise ValueError(f"version must be {_VERSION}")
        return _phase(circuit, data), _count(data, "opened")
    except (KeyError, ValueError, OverflowError) as error:
        problem = f"{error} is missing" if isinstance(error, KeyError) else str(error)
        raise ConfigError(
            circuit.policy.label, "saved state", f"must be what save_state() returned: {problem}", repr(data)[:100]
        ) from None


def _phase(circuit: Circuit, data: dict[str, Any]) -> Phase:
    policy = circuit.policy
    rules, clock = policy.config, policy.clock
    now = clock.monotonic()
    if data["state"] == "closed":
        return _closed(circuit, data)
    if data["state"] == "open":
        rate = None if data["failure_rate"] is None else _number(data, "failure_rate")
        reason = data["reason"]
        if reason is not None and not isinstance(reason, str):
            raise ValueError("reason must be a string or None")
        opened = Open(rate, _count(data, "calls"), reason)
        if data["remaining"] is None:
            opened.reason = opened.reason or "forced"
            return opened
        passed = max(0.0, clock.time() - _number(data, "saved_at"))
        opened.until = now + max(0.0, _number(data, "remaining") - passed)
        return opened
    if data["state"] == "half_open":
        return HalfOpen(rules, now, None)
    raise ValueError(f"state {data['state']!r} is unknown")


def _closed(circuit: Circuit, data: dict[str, Any]) -> Closed:
    rules = circuit.policy.config
    if not isinstance(data["pinned"], bool):
        raise ValueError("pinned must be True or False")
    closed = (Pinned if data["pinned"] else Closed)(rules, circuit.policy.clock.monotonic())
    successes, failed = _count(data, "successes"), _ages(data, "failed")
    slow, streak = _ages(data, "slow"), _count(data, "streak")
    if max([0, *failed, *slow]) >= max(1, successes + len(failed)):
        raise ValueError("failed and slow must not be older than the calls there are")
    if rules.window_duration is None:
        closed.recall(min(successes, rules.window), failed, slow, streak)
    else:
        closed.recall(0, [], [], streak)
    return closed


def _count(data: dict[str, Any], name: str) -> int:
    value = data[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} must be a whole number of at least 0")
    return value


def _number(data: dict[str, Any], name: str) -> float:
    value = data[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
        raise ValueError(f"{name} must be a number of at least 0")
    return float(value)


def _ages(data: dict[str, Any], name: str) -> list[int]:
    """How many calls ago something was, the oldest first."""
    ages = data[name]
    whole = isinstance(ages, list) and all(type(age) is int and age >= 0 for age in ages)
    if not whole or any(younger >= older for older, younger in pairwise(ages)):
        raise ValueError(f"{name} must be a list of whole numbers, the largest first")
    return list(ages)
