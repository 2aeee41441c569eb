"""What a consumer knows about an event: was it handled, is it being handled? Added by `plane.add_section(...)`."""

from __future__ import annotations

from typing import Any

from everkeel.control.access import Role
from everkeel.control.problems import ProblemError
from everkeel.control.section import Endpoint, Exchange, Parameter, Section
from everkeel.errors import EventError
from everkeel.idempotency.store import IdempotencyStore
from everkeel.messaging.event import Event
from everkeel.messaging.inbox import key_of

_RECORD = {
    "type": "object",
    "required": ["consumer", "key", "state", "attempts", "epoch", "claims"],
    "properties": {
        "consumer": {"type": "string"},
        "key": {"type": "string"},
        "state": {"enum": ["in_progress", "completed", "failed"], "description": "Only `completed` suppresses."},
        "attempts": {"type": "integer", "description": "Tries that were charged since its last replay."},
        "epoch": {"type": "integer", "description": "How often it was replayed."},
        "claims": {"type": "integer", "description": "How often somebody began to handle it."},
    },
}


def inbox_section(store: IdempotencyStore) -> Section:
    """The part about what was handled: `plane.add_section(inbox_section(engine.inbox))`."""

    async def record(exchange: Exchange) -> Any:
        consumer, id, source = exchange.path["consumer"], exchange.path["id"], exchange.query["source"]
        unseen = ProblemError(404, "not-seen", f"{consumer!r} has not seen event {id!r} of {source!r}, or long ago")
        try:
            key = key_of(Event("any", source=source, id=id, subject=consumer))
        except EventError:  # no event and no consumer can be called that, and databases take it for an attack
            raise unseen from None
        found = await store.get(consumer, key)
        if found is None:
            raise unseen
        return {
            "consumer": consumer,
            "key": key,
            "state": found.state.value,
            "attempts": found.attempts,
            "epoch": found.epoch,
            "claims": found.fence,
        }

    source = Parameter("source", {"type": "string", "minLength": 1, "maxLength": 500}, "The event's.", required=True)
    endpoint = Endpoint(
        "GET", "/inbox/{consumer}/{id}", record, Role.VIEWER, "What a consumer knows about an event", answer=_RECORD,
        parameters=(source,),
    )  # fmt: skip
    return Section("inbox", "What consumers have handled.", [endpoint])
