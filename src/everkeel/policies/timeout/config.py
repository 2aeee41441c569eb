"""What may be set on a timeout."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from everkeel.runtime.settings import Choice, Count, Duration, Flag, Settings, setting


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeoutConfig(Settings):
    """The settings of a timeout; `everkeel.timeout` says what each is for."""

    policy_type: ClassVar[str] = "timeout"

    seconds: float = setting(Duration())
    gap: float | None = setting(Duration(), default=None, none="as long as for the first item")
    runs: Literal["worker", "inline"] = setting(Choice("worker", "inline"), default="worker")
    detached: bool = setting(Flag(), default=False)
    max_abandoned: int = setting(Count(at_least=1), default=64)
