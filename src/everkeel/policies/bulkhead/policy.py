"""What the user holds: `bulkhead(...)`."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Literal, cast

from everkeel.errors import BulkheadFullError
from everkeel.policies.bulkhead.config import BulkheadConfig
from everkeel.policies.bulkhead.state import Places
from everkeel.runtime.clock import Clock
from everkeel.runtime.keyed import Keyed
from everkeel.runtime.policy import Policy, Snapshot
from everkeel.runtime.settings import Mode, Seconds


class BulkheadSnapshot(Snapshot):
    """What a bulkhead's snapshot adds. `waited` is the sum of all waits, in seconds."""

    running: int
    waiting: int
    limit: int
    queued: int
    waited: float


class Bulkhead(Policy[BulkheadConfig]):
    """A bulkhead policy; make one with `bulkhead(...)`."""

    __slots__ = ("waited",)
    type = "bulkhead"

    def __init__(self, name: str | None, config: BulkheadConfig, **rest: Any) -> None:
        self.waited = 0.0
        super().__init__(name, config, **rest)

    def make_state(self, key: Hashable = None) -> Places:
        return Places(self, key)

    def _announce(self, old: BulkheadConfig, new: BulkheadConfig) -> None:
        super()._announce(old, new)
        if old.limit != new.limit:
            from everkeel.events import LimitChanged

            self.emit(LimitChanged(policy=self.name, policy_type=self.type, before=old.limit, limit=new.limit))

    def over_keys(self, keyed: Keyed) -> dict[str, Any]:
        places = [cast("Places", state) for state in keyed.everyone()]
        return {
            "running": sum(state.running() for state in places),
            "waiting": sum(len(state.waiters) for state in places),
            "limit": self.config.limit,
            "queued": self.counts["queued"],
            "waited": self.waited,
        }

    def start_over(self) -> None:
        self.waited = 0.0
        super().start_over()

    def snapshot(self) -> BulkheadSnapshot:
        return cast("BulkheadSnapshot", super().snapshot())


def bulkhead(
    limit: int,
    name: str | None = None,
    *,
    queue: int = 0,
    max_wait: Seconds | None = None,
    order: Literal["oldest", "newest"] = "oldest",
    full_error: type[BulkheadFullError] = BulkheadFullError,
    key: Callable[..., Hashable] | None = None,
    max_keys: int = 10_000,
    mode: Mode = "enforce",
    clock: Clock | None = None,
    replace: bool = False,
) -> Bulkhead:
    """Let so many calls run at once and no more: a slow dependency then holds so many threads or tasks, and not all.

    It counts threads and tasks of every event loop together. Inside a timeout, a call that times out in the queue
    leaves it at once, and one that times out while running keeps its place until it has really ended.

    Args:
        limit: How many may run at once.
        name: Its identity in errors, events, metrics and configuration. Without one it takes the decorated function's.
        queue: How many more may wait for a place. None by default: a queue in front of something slow makes it slower.
        max_wait: How long one may wait. A deadline that travels with the call bounds it too.
        order: Who gets a free place: the "oldest" waiter, or the "newest", whose caller is the most likely to be there.
        full_error: The class of the error it raises.
        key: A function of the call's arguments: places of its own for each answer (a host, a tenant).
        max_keys: How many keys have places of their own; further ones share.
        mode: "enforce", "shadow" (counts who would have waited or been rejected) or "off".
        clock: Where its time comes from, in place of the default.
        replace: Take the name from a policy that has it.

    >>> from everkeel import BulkheadFullError, bulkhead
    >>> reports = bulkhead(1)
    >>> with reports:
    ...     try:
    ...         reports.call(print, "a second one at the same time")
    ...     except BulkheadFullError as error:
    ...         print(error.running, "running")
    1 running
    """
    values = {
        "limit": limit,
        "queue": queue,
        "max_wait": max_wait,
        "order": order,
        "full_error": full_error,
        "mode": mode,
    }
    config = BulkheadConfig.make(name, values)
    return Bulkhead(name, config, clock=clock, replace=replace, key=key, max_keys=max_keys)
