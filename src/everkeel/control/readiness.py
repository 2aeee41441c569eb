"""Which policies make a service unready: for Kubernetes, and whoever else sends traffic only where it is welcome."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from everkeel.errors import ConfigError
from everkeel.runtime.policy import AnyPolicy
from everkeel.runtime.registry import Registry
from everkeel.runtime.trouble import report

Unready: TypeAlias = Callable[[AnyPolicy], "str | bool | None"]
"""Why this policy makes the service unready; None, False or an empty string where it does not."""


class Readiness:
    """Decides whether the service is ready.

    >>> from everkeel import circuit_breaker, registry
    >>> payments = circuit_breaker("docs.ready")
    >>> payments.force_open()
    >>> Readiness(["circuit_breaker/docs.*"]).reasons(registry)
    ["circuit breaker 'docs.ready' is open"]
    """

    def __init__(self, which: Iterable[str] | Unready = ()) -> None:
        self._unready: Unready | None = None
        self._patterns: list[str] = []
        if callable(which):
            self._unready = which
            return
        self._patterns = [which] if isinstance(which, str) else list(which)
        for pattern in self._patterns:
            if not isinstance(pattern, str) or "/" not in pattern:
                raise ConfigError("control plane", "readiness", "must be patterns of type/name", repr(pattern))

    def reasons(self, registry: Registry) -> list[str]:
        """Why the service is not ready; empty where it is. A judge that raises is reported, and keeps nobody out."""
        found = []
        for policy in registry:
            try:
                reason = self._reason(policy)
            except Exception as error:
                report(f"{policy.label}: could not tell whether it makes the service unready", error)
                continue
            if reason:
                found.append(reason if isinstance(reason, str) else f"{policy.label} is not ready")
        return found

    def _reason(self, policy: AnyPolicy) -> str | bool | None:
        if self._unready is not None:
            return self._unready(policy)
        identity = f"{policy.type}/{policy.name}"
        if policy.mode != "enforce" or not any(fnmatchcase(identity, pattern) for pattern in self._patterns):
            return None  # one that only watches rejects nobody
        snapshot: Any = policy.snapshot()
        if "states" in snapshot:  # of keys: unready only where nobody gets through
            states = snapshot["states"]
            shut = states.get("open", 0) > 0 and states["open"] == sum(states.values())
        else:
            shut = snapshot.get("state") == "open"
        return f"{policy.label} is open" if shut else None
