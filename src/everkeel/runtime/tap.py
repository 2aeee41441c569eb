"""The layer that reports how each call ended. It exists only while somebody listens for that."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from everkeel.errors import RejectedError
from everkeel.runtime.outcome import Verdict
from everkeel.runtime.state import State

if TYPE_CHECKING:
    from everkeel.runtime.policy import AnyPolicy


class Tap(State):
    """Emits `Succeeded`, `Failed` or `Ignored` for the call as a whole, outside everything its policy does."""

    __slots__ = ("policy",)
    word = "tap"
    policy: AnyPolicy

    def __init__(self, policy: AnyPolicy) -> None:
        self.policy = policy

    def enter(self) -> float:
        return self.policy.clock.monotonic()

    def done(self, permit: float, result: Any) -> None:
        from everkeel.events import Succeeded

        policy = self.policy
        policy.emit(Succeeded(policy=policy.name, policy_type=policy.type, duration=policy.clock.monotonic() - permit))

    def failed(self, permit: float, error: Exception) -> None:
        from everkeel.events import Failed, Ignored

        policy = self.policy
        if isinstance(error, RejectedError) and error.policy == policy.name:
            return  # a rejection of its own has been reported as one
        kind = Failed if policy.judge(error) is Verdict.FAILURE else Ignored
        policy.emit(
            kind(policy=policy.name, policy_type=policy.type, duration=policy.clock.monotonic() - permit, error=error)
        )
