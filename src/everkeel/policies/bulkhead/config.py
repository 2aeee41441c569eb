"""What may be set on a bulkhead."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from everkeel.errors import BulkheadFullError
from everkeel.runtime.settings import Choice, Converted, Count, Duration, Settings, setting


def _full_error(value: Any) -> type[BulkheadFullError]:
    if not isinstance(value, type) or not issubclass(value, BulkheadFullError):
        raise ValueError("must be BulkheadFullError or a class derived from it")
    return value


@dataclass(frozen=True, kw_only=True, slots=True)
class BulkheadConfig(Settings):
    """The settings of a bulkhead; `everkeel.bulkhead` says what each is for."""

    policy_type: ClassVar[str] = "bulkhead"

    limit: int = setting(Count(at_least=1))
    queue: int = setting(Count(at_least=0), default=0)
    max_wait: float | None = setting(Duration(zero=True), default=None, none="as long as it takes")
    order: Literal["oldest", "newest"] = setting(Choice("oldest", "newest"), default="oldest")
    full_error: type[BulkheadFullError] = setting(Converted(_full_error, "error_class"), default=BulkheadFullError)
