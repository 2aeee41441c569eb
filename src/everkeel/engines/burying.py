"""How a row of the outbox becomes a dead letter: both in one transaction, whatever the engine."""

from __future__ import annotations

import json
from typing import Any

from everkeel.engines.letters import NewLetter
from everkeel.engines.rows import ErrorInfo, OutboxRow


def new_letter(row: OutboxRow, error: ErrorInfo, *, reason: str, consumer: str, attempts: int) -> NewLetter:
    """The letter for a row that is given up on."""
    attributes: dict[str, Any] = json.loads(row.attributes)
    return NewLetter(
        consumer=consumer,
        topic=row.topic,
        key=row.key,
        source=row.source,
        event_id=row.id,
        event_type=row.type,
        epoch=row.epoch,
        attributes=row.attributes,
        payload=row.payload,
        encoding=row.encoding,
        reason=reason,
        error_type=error.type,
        error=error.text,
        attempts=attempts,
        saga_id=attributes.get("sagaid"),
        correlation_id=attributes.get("correlationid"),
    )
