"""What may be set on an orchestrator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from everkeel.runtime.settings import Choice, Count, Duration, Mode, Settings, setting


@dataclass(frozen=True, kw_only=True, slots=True)
class OrchestratorConfig(Settings):
    """The settings of an orchestrator; `Orchestrator` says what each is for."""

    policy_type: ClassVar[str] = "orchestrator"

    mode: Mode = setting(Choice("enforce", "off"), default="enforce")  # a saga is carried on, or it is left to others
    lease: float = setting(Duration(), default=30.0)
    poll: float = setting(Duration(), default=5.0)
    batch: int = setting(Count(at_least=1), default=100)
    concurrency: int = setting(Count(at_least=1), default=1000)
    threads: int = setting(Count(at_least=1), default=32)
    park_after: float = setting(Duration(zero=True), default=60.0)
    retain: float | None = setting(Duration(), default=7 * 86_400.0, none="for ever")
