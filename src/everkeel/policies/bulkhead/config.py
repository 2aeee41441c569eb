"""What may be set on a bulkhead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from everkeel.runtime.settings import Choice, Count, Duration, Settings, setting


@dataclass(frozen=True, kw_only=True, slots=True)
class BulkheadConfig(Settings):
    """The settings of a bulkhead; `everkeel.bulkhead` says what each is for."""

    policy_type: ClassVar[str] = "bulkhead"

    limit: int = setting(Count(at_least=1))
    queue: int = setting(Count(at_least=0), default=0)
    max_wait: float | None = setting(Duration(zero=True), default=None, none="as long as it takes")
    order: Literal["oldest", "newest"] = setting(Choice("oldest", "newest"), default="oldest")
