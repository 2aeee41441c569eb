"""Between an event and the columns it is kept in."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Literal

from everkeel.engines.rows import OutboxRow
from everkeel.messaging.event import Event


def row_of(event: Event, topic: str) -> OutboxRow:
    """The event as a row on its way to a topic."""
    payload, encoding = payload_of(event)
    attributes = attributes_of(event)
    epoch = event.replay_epoch
    return OutboxRow(event.id, event.source, event.type, topic, event.key, attributes, payload, encoding, epoch)


def event_of(row: OutboxRow) -> Event:
    """The event that a row holds."""
    return event_from(row.id, row.source, row.type, row.attributes, row.payload, row.encoding)


def event_from(
    id: str, source: str, type: str, attributes: str, payload: str | None, encoding: Literal["base64"] | None
) -> Event:
    """The event that columns hold, an outbox's or a dead letter's."""
    body = None if payload is None else b64decode(payload) if encoding == "base64" else payload.encode()
    return Event._made(id, source, type, json.loads(attributes), body)


def attributes_of(event: Event) -> str:
    """Its other attributes as a JSON object."""
    return json.dumps(dict(event.attributes), ensure_ascii=False, separators=(",", ":"))


def payload_of(event: Event) -> tuple[str | None, Literal["base64"] | None]:
    """Its data as text, and how it became text."""
    if event.body is None:
        return None, None
    if event.is_json:
        try:
            return event.body.decode(), None
        except UnicodeDecodeError:
            pass  # it says it is JSON; the reader will find out, and we lose nothing of it
    return b64encode(event.body).decode(), "base64"
