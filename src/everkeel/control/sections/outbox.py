"""Events on their way out: what waits, and whether anybody publishes it. Added by `plane.add_section(...)`."""

from __future__ import annotations

from typing import Any

from everkeel.control.access import Role
from everkeel.control.section import Endpoint, Exchange, Handler, Section
from everkeel.messaging.outbox import Outbox
from everkeel.messaging.relay.relay import Relay

_PAUSED = {"type": "object", "required": ["paused"], "properties": {"paused": {"type": "boolean"}}}
_STATS = {
    "type": "object",
    "required": ["depth", "leased", "delayed", "parked", "oldest_age", "by_topic", "relay"],
    "properties": {
        "depth": {"type": "integer", "description": "Waiting, those being delivered included."},
        "leased": {"type": "integer", "description": "Being delivered now."},
        "delayed": {"type": "integer", "description": "Waiting for their time."},
        "parked": {"type": "integer", "description": "Waiting behind a dead letter of their key."},
        "oldest_age": {"type": "number", "description": "Seconds since the oldest that waits was written."},
        "by_topic": {"type": "object", "additionalProperties": {"type": "integer"}},
        "relay": {"type": ["object", "null"], "description": "The relay of this process; null: it has none."},
    },
}


def outbox_section(outbox: Outbox, relay: Relay | None = None) -> Section:
    """The part about events on their way out. With a relay of this process, it can be paused here."""

    async def stats(exchange: Exchange) -> Any:
        found = await outbox.stats()
        waiting = {name: getattr(found, name) for name in ("depth", "leased", "delayed", "parked", "oldest_age")}
        running = None if relay is None else {"paused": relay.paused}
        return {**waiting, "by_topic": dict(found.by_topic), "relay": running}

    endpoints = [Endpoint("GET", "/outbox/stats", stats, Role.VIEWER, "What waits in the outbox", answer=_STATS)]
    if relay is not None:
        endpoints += [
            Endpoint(
                "POST",
                f"/outbox/{word}",
                _switch(relay, word),
                Role.OPERATOR,
                summary,
                answer=_PAUSED,
                parts=("control",),
            )
            for word, summary in (("pause", "Publish nothing until it is resumed"), ("resume", "Publish again"))
        ]
    return Section("outbox", "Events on their way out.", endpoints)


def _switch(relay: Relay, word: str) -> Handler:
    async def handle(exchange: Exchange) -> Any:
        before = relay.paused
        if word == "pause":
            relay.pause()
        else:
            relay.resume()
        exchange.plane.note(exchange, word, "relay", None, {"paused": before}, {"paused": relay.paused})
        return {"paused": relay.paused}

    return handle
