"""What the user holds: `concurrency_limit(...)`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Literal, cast

from everkeel.errors import RejectedError
from everkeel.policies.concurrency.config import ConcurrencyLimitConfig
from everkeel.policies.concurrency.ranked import Ranked
from everkeel.policies.concurrency.state import Adaptive
from everkeel.runtime.classify import Errors
from everkeel.runtime.clock import Clock
from everkeel.runtime.keyed import Keyed
from everkeel.runtime.outcome import Verdict
from everkeel.runtime.policy import Policy, Snapshot
from everkeel.runtime.settings import Mode, Seconds


class ConcurrencyLimitSnapshot(Snapshot):
    """What a concurrency limit's snapshot adds. `baseline` is the latency it takes for normal, once it has one."""

    running: int
    waiting: int
    limit: int
    queued: int
    waited: float
    baseline: float | None


class ConcurrencyLimit(Policy[ConcurrencyLimitConfig]):
    """An adaptive concurrency limit; make one with `concurrency_limit(...)`."""

    __slots__ = ("over", "waited")
    type = "concurrency_limit"

    def __init__(self, name: str | None, config: ConcurrencyLimitConfig, **rest: Any) -> None:
        self.waited = 0.0
        self.over = 0  # in shadow mode: how many are running beyond the limit
        super().__init__(name, config, **rest)

    def make_state(self, key: Hashable = None) -> Adaptive:
        return Adaptive(self, key) if self.config.priorities is None else Ranked(self, key)

    def _take(self, new: ConcurrencyLimitConfig) -> None:
        ranked, old = new.priorities is not None, self.state
        changes = ranked != (self.config.priorities is not None)
        super()._take(new)
        if changes:  # places with classes are another kind of places; calls in flight stay in those they are in
            self.state = self._fresh_state()
            if isinstance(old, Adaptive) and isinstance(self.state, Adaptive):
                self.state.inherit(old)
            self.refresh()

    def would_not_enter(self) -> None:
        """In shadow mode: a call is let in that would have had to wait, or been shed."""
        with self.lock:
            self.over += 1
            queued = self.over <= self.config.queue
        self.would("queue" if queued else "reject")

    def left_after_all(self) -> None:
        """In shadow mode: one of those has left."""
        with self.lock:
            self.over -= 1

    def judge(self, error: BaseException) -> Verdict:
        return self.config.classifier.of_error(error)

    def over_keys(self, keyed: Keyed) -> dict[str, Any]:
        places = [cast("Adaptive", state) for state in keyed.everyone()]
        return {
            "running": sum(state.running() for state in places),
            "waiting": sum(state.details()["waiting"] for state in places),
            "limit": sum(state.limit() for state in places),
            "queued": self.counts["queued"],
            "waited": self.waited,
            "baseline": None,
        }

    def start_over(self) -> None:
        self.waited, self.over = 0.0, 0
        super().start_over()

    def snapshot(self) -> ConcurrencyLimitSnapshot:
        return cast("ConcurrencyLimitSnapshot", super().snapshot())


def concurrency_limit(
    name: str | None = None,
    *,
    algorithm: Literal["aimd", "vegas", "gradient2"] = "gradient2",
    initial: int = 20,
    floor: int = 1,
    ceiling: int = 1000,
    max_latency: Seconds | None = None,
    queue: int = 0,
    max_wait: Seconds | None = None,
    order: Literal["oldest", "newest"] = "oldest",
    priorities: Mapping[str, float] | None = None,
    priority: str | Callable[..., str] | None = None,
    on: Errors = (TimeoutError, RejectedError),
    ignore: Errors | None = None,
    causes: bool = False,
    key: Callable[..., Hashable] | None = None,
    max_keys: int = 10_000,
    mode: Mode = "enforce",
    clock: Clock | None = None,
    replace: bool = False,
) -> ConcurrencyLimit:
    """Let so many calls run at once as the service can take, found out from how long it takes to answer.

    A bulkhead whose size nobody has to guess: it grows while answers stay quick, and shrinks when they get slow, before
    anything times out. Cancelled calls teach it nothing.

    Args:
        name: Its identity in errors, events, metrics and configuration. Without one it takes the decorated function's.
        algorithm: "gradient2" follows the ratio of normal to present latency; "vegas" keeps a small queue in the
            service; "aimd" grows by one and shrinks by a tenth on overloads.
        initial: How many at first.
        floor: How many at least: with none there would be nothing to learn from.
        ceiling: How many at most.
        max_latency: A guardrail: above this, answers are too slow whatever was normal before.
        queue: How many more may wait for a place.
        max_wait: How long one may wait. A deadline that travels with the call bounds it too.
        order: Who gets a free place: the "oldest" waiter, or the "newest".
        priorities: A table from priority, highest first, to its guaranteed share of the places. When not all can be let
            in, a call of the lowest priority is shed first, out of the queue too.
        priority: The priority of calls whose context has none (see `everkeel.priority`), the highest by default; or a
            function of the call's arguments, whose answer wins over the context. Unknown names are of the lowest.
        on: What says "too much" besides latency: timeouts, and rejections by what is behind.
        ignore: Wins over `on`.
        causes: Let `on` and `ignore` look along the chain of causes too.
        key: A function of the call's arguments: a limit of its own for each answer (a host).
        max_keys: How many keys have limits of their own; further ones share.
        mode: "enforce", "shadow" (learns, and counts whom it would have shed) or "off".
        clock: Where its time comes from, in place of the default.
        replace: Take the name from a policy that has it.

    >>> from everkeel import concurrency_limit
    >>> @concurrency_limit(initial=50)
    ... def query(sql: str) -> str:
    ...     return "rows"
    >>> query("select 1")
    'rows'
    """
    values = {
        "algorithm": algorithm,
        "initial": initial,
        "floor": floor,
        "ceiling": ceiling,
        "max_latency": max_latency,
        "queue": queue,
        "max_wait": max_wait,
        "order": order,
        "priorities": priorities,
        "priority": priority,
        "on": on,
        "ignore": ignore,
        "causes": causes,
        "mode": mode,
    }
    config = ConcurrencyLimitConfig.make(name, values)
    return ConcurrencyLimit(name, config, clock=clock, replace=replace, key=key, max_keys=max_keys)
