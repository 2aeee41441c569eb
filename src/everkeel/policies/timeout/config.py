"""What may be set on a timeout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from everkeel.errors import TimeoutExceededError
from everkeel.runtime.settings import Choice, Converted, Count, Duration, Flag, Settings, setting


def _expired_error(value: Any) -> type[TimeoutExceededError]:
    if not isinstance(value, type) or not issubclass(value, TimeoutExceededError):
        raise ValueError("must be TimeoutExceededError or a class derived from it")
    return value


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeoutConfig(Settings):
    """The settings of a timeout; `everkeel.timeout` says what each is for."""

    policy_type: ClassVar[str] = "timeout"

    seconds: float = setting(Duration())
    gap: float | None = setting(Duration(), default=None, none="as long as for the first item")
    runs: Literal["worker", "inline"] = setting(Choice("worker", "inline"), default="worker")
    detached: bool = setting(Flag(), default=False)
    strict: bool = setting(Flag(), default=False)
    max_abandoned: int = setting(Count(at_least=1), default=64)
    expired_error: type[TimeoutExceededError] = setting(
        Converted(_expired_error, "error_class"), default=TimeoutExceededError
    )

    def check_together(self) -> None:
        if self.strict and self.detached:
            raise self.wrong("strict", True, "must not be set together with detached: one cancels, the other does not")
