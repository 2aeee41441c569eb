"""Every named policy, by type and name, held weakly: what the control plane lists and configuration binds to."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from everkeel.errors import ConfigError
from everkeel.runtime import events as hub
from everkeel.runtime.settings import label

if TYPE_CHECKING:
    from everkeel.runtime.policy import AnyPolicy


class Registry:
    """Named policies. `everkeel.registry` is the one that every policy joins.

    >>> from everkeel import registry, retry
    >>> fetch = retry("docs.fetch", attempts=5)
    >>> registry.get("retry", "docs.fetch") is fetch
    True
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._policies: dict[tuple[str, str], weakref.ref[AnyPolicy]] = {}

    def add(self, policy: AnyPolicy, name: str, *, replace: bool = False) -> None:
        """Register a policy; a second one of its type and name is a ConfigError unless it is to replace the first."""
        with self._lock:
            other = self.get(policy.type, name)
            if other is not None and other is not policy and not replace:
                del other
                gc.collect()  # it may be dead already: a policy and its state know each other
                other = self.get(policy.type, name)
            if other is not None and other is not policy and not replace:
                raise ConfigError(
                    label(policy.type, name),
                    None,
                    "a policy of this type and name exists already; choose another name, or pass replace=True",
                    None,
                )
            self._put(policy, name)
        _announce("PolicyReplaced" if other is not None else "PolicyAdded", policy.type, name)

    def adopt(self, policy: AnyPolicy, wish: str) -> str:
        """Register a policy that was given no name under `wish`, with a number behind it where that is taken."""
        with self._lock:
            name, n = wish, 1
            while self.get(policy.type, name) is not None:
                n += 1
                name = f"{wish}#{n}"
            self._put(policy, name)
        _announce("PolicyAdded", policy.type, name)
        return name

    def _put(self, policy: AnyPolicy, name: str) -> None:
        identity = (policy.type, name)

        def gone(reference: weakref.ref[AnyPolicy]) -> None:
            # Without the lock: this may run in the middle of anything, also of a method that holds it.
            if self._policies.get(identity) is reference:
                self._policies.pop(identity, None)

        self._policies[identity] = weakref.ref(policy, gone)

    def remove(self, policy_type: str, name: str) -> bool:
        """Forget a policy; it works on, unlisted. Answers whether it was there."""
        with self._lock:
            found = self._policies.pop((policy_type, name), None) is not None
        if found:
            _announce("PolicyRemoved", policy_type, name)
        return found

    def get(self, policy_type: str, name: str) -> AnyPolicy | None:
        """The policy of this type and name."""
        reference = self._policies.get((policy_type, name))
        return None if reference is None else reference()

    def __iter__(self) -> Iterator[AnyPolicy]:
        """All of them, in the order they came."""
        for reference in list(self._policies.values()):
            policy = reference()
            if policy is not None:
                yield policy

    def __len__(self) -> int:
        return sum(1 for _ in self)

    @contextmanager
    def fresh(self) -> Iterator[Registry]:
        """An empty registry, and every policy as on its first day, for the time of a test."""
        from everkeel.runtime.policy import living

        with self._lock:
            kept, self._policies = self._policies, {}
        for policy in list(living):
            policy.start_over()
        try:
            yield self
        finally:
            with self._lock:
                self._policies = kept
            for policy in list(living):
                policy.start_over()


registry = Registry()


def _announce(event: str, policy_type: str, name: str) -> None:
    if hub.everywhere:
        from everkeel import events

        hub.tell(getattr(events, event)(policy=name, policy_type=policy_type), ())
