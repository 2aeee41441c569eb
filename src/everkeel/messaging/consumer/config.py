"""What may be set on a consumer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from everkeel.messaging.consumer.core import Rules
from everkeel.runtime.backoff import Backoff, as_backoff, exponential
from everkeel.runtime.settings import Choice, Converted, Count, Duration, Flag, Mode, Settings, setting


@dataclass(frozen=True, kw_only=True, slots=True)
class ConsumerConfig(Settings):
    """The settings of a consumer; `Consumer` says what each is for."""

    policy_type: ClassVar[str] = "consumer"

    mode: Mode = setting(Choice("enforce", "off"), default="enforce")  # an event is handled, or it is not
    attempts: int = setting(Count(at_least=1), default=5)
    backoff: Backoff = setting(Converted(as_backoff, "backoff"), default=exponential(1.0, factor=2.0, max=60.0))
    concurrency: int = setting(Count(at_least=1), default=10)
    prefetch: int | None = setting(Count(at_least=1), default=None, none="twice the concurrency")
    lease: float = setting(Duration(), default=60.0)
    patience: float = setting(Duration(), default=3600.0)
    max_pause: float = setting(Duration(), default=30.0)
    park_followers: bool = setting(Flag(), default=False)

    @property
    def rules(self) -> Rules:
        """What decides over events that failed."""
        return Rules(self.attempts, self.backoff, self.patience, self.max_pause)
