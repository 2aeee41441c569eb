"""What was injected at which call, as plain data: to keep, to look at, to edit, and to let happen again.

    {"version": 1, "seed": "0", "forgotten": 0,
     "faults": [{"call": 3, "key": "", "at": 1.5, "latency": 0.2, "error": 0, "raised": "ConnectionError"}]}

Every entry stands on its own, so that any selection of entries is a schedule too: that is what makes it shrinkable.
`at` and `raised` are for the reader.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from math import isfinite
from typing import Any, TypeAlias

from everkeel.errors import ConfigError
from everkeel.policies.chaos.config import NO_FAULT, ChaosConfig
from everkeel.policies.chaos.core import Fault

Recording: TypeAlias = dict[str, Any]
Script: TypeAlias = dict[tuple[str, int], Fault]

MOST = 10_000  # faults kept; older ones are forgotten, and counted


class Recorder:
    """Keeps the last faults."""

    __slots__ = ("_faults", "_seen")

    def __init__(self) -> None:
        self._faults: deque[dict[str, Any]] = deque(maxlen=MOST)
        self._seen = 0

    def add(self, fault: Fault, at: float, raised: str | None) -> None:
        """One more. Called under the policy's lock."""
        entry: dict[str, Any] = {"call": fault.call, "key": fault.key, "at": at}
        if fault.behavior:
            entry["behavior"] = True
        if fault.latency:
            entry["latency"] = fault.latency
        if fault.error is not None:
            entry |= {"error": fault.error, "raised": raised}
        if fault.result:
            entry["result"] = True
        self._faults.append(entry)
        self._seen += 1

    def data(self, seed: str) -> Recording:
        """Everything kept, by key and call: the order in which threads got there says nothing."""
        faults = sorted(self._faults, key=lambda entry: (entry["key"], entry["call"]))
        forgotten = self._seen - len(faults)
        return {"version": 1, "seed": seed, "forgotten": forgotten, "faults": [dict(entry) for entry in faults]}


def script_of(owner: str, rules: ChaosConfig, data: Any) -> Script:
    """The faults of a recording by key and call; a ConfigError says which entry cannot happen under these rules."""
    faults = data.get("faults") if isinstance(data, Mapping) else None
    if not isinstance(faults, list):
        raise ConfigError(owner, "replay", "must be what record() returned", repr(data)[:200])
    script: Script = {}
    for entry in faults:
        fault = _fault(owner, rules, entry)
        script[fault.key, fault.call] = fault
    return script


def _fault(owner: str, rules: ChaosConfig, entry: Any) -> Fault:
    def wrong(allowed: str) -> ConfigError:
        return ConfigError(owner, "replay", allowed, repr(entry)[:200])

    if not isinstance(entry, Mapping):
        raise wrong("must have a mapping for each fault")
    call, key = entry.get("call"), entry.get("key", "")
    if isinstance(call, bool) or not isinstance(call, int) or call < 1 or not isinstance(key, str):
        raise wrong("must say for each fault which call it is for: call, from 1, and key, a string")
    latency, error = entry.get("latency", 0.0), entry.get("error")
    if isinstance(latency, bool) or not isinstance(latency, int | float) or not isfinite(latency) or latency < 0:
        raise wrong("must have latency in seconds")
    errors = () if rules.error is None else rules.error
    if error is not None and (isinstance(error, bool) or not isinstance(error, int) or not 0 <= error < len(errors)):
        raise wrong(f"must have errors of this policy, which has {len(errors)}")
    result, behavior = entry.get("result", False) is True, entry.get("behavior", False) is True
    if result and rules.result is NO_FAULT:
        raise wrong("must not have results, since this policy has none")
    if behavior and rules.behavior is None:
        raise wrong("must not have behaviors, since this policy has none")
    return Fault(call, key, float(latency), error, result, behavior)
