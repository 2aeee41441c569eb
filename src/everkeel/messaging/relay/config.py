"""What may be set on a relay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from everkeel.runtime.backoff import Backoff, Jitter, as_backoff, as_jitter, exponential
from everkeel.runtime.settings import Choice, Converted, Count, Duration, Flag, Mode, Settings, setting


@dataclass(frozen=True, kw_only=True, slots=True)
class RelayConfig(Settings):
    """The settings of a relay; `Relay` says what each is for."""

    policy_type: ClassVar[str] = "relay"

    mode: Mode = setting(Choice("enforce", "off"), default="enforce")  # an event is delivered, or it is not
    batch: int = setting(Count(at_least=1), default=100)
    poll: float = setting(Duration(), default=1.0)
    lease: float = setting(Duration(), default=30.0)
    attempts: int | None = setting(Count(at_least=1), default=5, none="never give up")
    backoff: Backoff = setting(Converted(as_backoff, "backoff"), default=exponential(1.0, factor=2, max=60))
    jitter: Jitter = setting(Converted(as_jitter, "jitter"), default="full", none="no randomness")
    outage_backoff: Backoff = setting(Converted(as_backoff, "backoff"), default=exponential(0.5, factor=2, max=30))
    concurrency: int = setting(Count(at_least=1), default=8)
    per_topic: int = setting(Count(at_least=1), default=2)
    publish_timeout: float = setting(Duration(), default=30.0)
    park: bool = setting(Flag(), default=True)
    maintenance: float = setting(Duration(), default=60.0)
