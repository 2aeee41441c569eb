"""What the user holds: `timeout(...)`."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal, Self, cast

from everkeel.errors import TimeoutExceededError
from everkeel.policies.timeout.config import TimeoutConfig
from everkeel.policies.timeout.state import Timing
from everkeel.runtime.clock import Clock
from everkeel.runtime.outcome import Verdict
from everkeel.runtime.policy import Policy, Snapshot
from everkeel.runtime.settings import Mode, Seconds


class TimeoutSnapshot(Snapshot):
    """What a timeout's snapshot adds."""

    expired: int
    late: int
    abandoned: int
    running: int


class Timeout(Policy[TimeoutConfig]):
    """A timeout policy; make one with `timeout(...)`."""

    __slots__ = ()
    type = "timeout"

    def make_state(self, key: Hashable = None) -> Timing:
        return Timing(self)

    def __enter__(self) -> Self:
        self.must_run_inline()
        return super().__enter__()

    def must_run_inline(self) -> None:
        """A sync block stays on its caller's thread, whatever happens: refuse where that is not what was asked for."""
        if self.config.runs == "worker":
            raise TypeError(
                f"{self.label} cannot be a sync block that runs in a worker: use `async with`, a decorated function, "
                'or timeout(..., runs="inline"), which must cooperate'
            )

    def _may_be_a_block(self, *, awaited: bool = False) -> None:
        if self.config.detached:
            raise TypeError(f"{self.label} cannot be a block: it is detached, and a block cannot be left behind")
        if self.config.strict:
            raise TypeError(f"{self.label} cannot be a block: it is strict, and a block cannot be left behind")

    def judge(self, error: BaseException) -> Verdict:
        ours = isinstance(error, TimeoutExceededError) and error.policy == self.name
        return Verdict.FAILURE if ours else Verdict.NO_EVIDENCE

    def snapshot(self) -> TimeoutSnapshot:
        return cast("TimeoutSnapshot", super().snapshot())


def timeout(
    seconds: Seconds,
    name: str | None = None,
    *,
    gap: Seconds | None = None,
    runs: Literal["worker", "inline"] = "worker",
    detached: bool = False,
    strict: bool = False,
    max_abandoned: int = 64,
    expired_error: type[TimeoutExceededError] = TimeoutExceededError,
    mode: Mode = "enforce",
    clock: Clock | None = None,
    replace: bool = False,
) -> Timeout:
    """End a call that takes too long with `TimeoutExceededError`, which is a `TimeoutError` too.

    An async call is cancelled; the error leaves when it has ended. Should it swallow the cancellation, the error is
    raised all the same, however late: a late answer is never passed off as one in time. A sync call cannot be
    interrupted in Python: by default it runs in a worker thread, and the caller returns on time while the call goes on,
    counted, until it ends by itself.

    It is never longer than the deadline that travels with the call.

    Args:
        seconds: How long a call may take. For generators: how long until the first item.
        name: Its identity in errors, events, metrics and configuration. Without one it takes the decorated function's.
        gap: For generators: how long between two items; as long as for the first one by default.
        runs: Where a sync call runs: in a "worker" thread, started on demand, with the caller's context variables;
            or "inline", in the caller's own, where it must cooperate (see `current_cancellation` and `everkeel.sleep`)
            and the error is raised late if it does not.
        detached: For async calls: return at once when time is up and leave the body behind, rather than cancelling it.
        strict: When time is up it is the timeout's error, at once, whatever the body makes of its end. An async body is
            cancelled and not waited for, in a task of its own; an error that an inline body raises late is replaced,
            as a late answer is.
        max_abandoned: How many calls may have been left behind before another is refused with
            `WorkersExhaustedError`: hung calls must not use up threads without end. 64 is a good many already.
        expired_error: The class of the error it raises.
        mode: "enforce", "shadow" (counts what would have expired) or "off".
        clock: Where its time comes from, in place of the default.
        replace: Take the name from a policy that has it.

    >>> import asyncio
    >>> from everkeel import TimeoutExceededError, timeout
    >>> @timeout(0.01)
    ... async def forecast() -> str:
    ...     await asyncio.sleep(60)
    ...     return "sunny"
    >>> try:
    ...     asyncio.run(forecast())
    ... except TimeoutExceededError as error:
    ...     error.seconds
    0.01
    """
    values = {
        "seconds": seconds,
        "gap": gap,
        "runs": runs,
        "detached": detached,
        "strict": strict,
        "max_abandoned": max_abandoned,
        "expired_error": expired_error,
        "mode": mode,
    }
    return Timeout(name, TimeoutConfig.make(name, values), clock=clock, replace=replace)
