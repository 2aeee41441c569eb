"""What may be set on a collapse."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from everkeel.runtime.settings import Count, Duration, Settings, setting


@dataclass(frozen=True, kw_only=True, slots=True)
class CollapseConfig(Settings):
    """The settings of a collapse; `everkeel.collapse` says what each is for."""

    policy_type: ClassVar[str] = "collapse"

    window: float = setting(Duration(zero=True), default=0.005)
    max_size: int = setting(Count(at_least=1), default=100)
