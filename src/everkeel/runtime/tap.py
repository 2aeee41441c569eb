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

    __slots__ = ("owner",)
    word = "tap"

    def __init__(self, owner: AnyPolicy) -> None:
        self.owner = owner

    @property
    def policy(self) -> AnyPolicy:
        return self.owner

    def enter(self) -> float:
        return self.owner.clock.monotonic()

    def done(self, permit: float, result: Any) -> None:
        from everkeel.events import Succeeded

        owner = self.owner
        owner.emit(Succeeded(policy=owner.name, policy_type=owner.type, duration=owner.clock.monotonic() - permit))

    def failed(self, permit: float, error: Exception) -> None:
        from everkeel.events import Failed, Ignored

        owner = self.owner
        if isinstance(error, RejectedError) and error.policy == owner.name:
            return  # a rejection of its own has been reported as one
        kind = Failed if owner.judge(error) is Verdict.FAILURE else Ignored
        owner.emit(
            kind(policy=owner.name, policy_type=owner.type, duration=owner.clock.monotonic() - permit, error=error)
        )
