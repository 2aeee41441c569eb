"""Events between services: nothing lost, nothing done twice, failures kept and replayable.

`Event` is the envelope (CloudEvents 1.0). `Outbox` writes events in your own transaction, `Relay` delivers them over a
transport, consumers handle them once, and what cannot be handled becomes a dead letter that can be replayed.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from everkeel.engines.letters import LetterFilter, Status
    from everkeel.messaging.consumer.consumer import Consumer
    from everkeel.messaging.consumer.handlers import Context
    from everkeel.messaging.dead_letters.letter import DeadLetter, ReplayPlan, ReplayReport
    from everkeel.messaging.dead_letters.service import DeadLetters
    from everkeel.messaging.event import Event
    from everkeel.messaging.inbox import Inbox
    from everkeel.messaging.outbox import Outbox
    from everkeel.messaging.relay.relay import Relay
    from everkeel.messaging.transports.functions import FunctionTransport
    from everkeel.messaging.transports.memory import MemoryTransport
    from everkeel.messaging.transports.protocol import Delivery, Message, Published, Result, Transport
    from everkeel.messaging.transports.redis import RedisTransport
    from everkeel.messaging.transports.sqlite import SQLiteTransport

__all__ = [
    "Consumer", "Context", "DeadLetter", "DeadLetters", "Delivery", "Event", "FunctionTransport", "Inbox",
    "LetterFilter", "MemoryTransport", "Message", "Outbox", "Published", "RedisTransport", "Relay", "ReplayPlan",
    "ReplayReport", "Result", "SQLiteTransport", "Status", "Transport",
]  # fmt: skip

_HOMES = {
    "consumer.consumer": ("Consumer",),
    "consumer.handlers": ("Context",),
    "dead_letters": ("LetterFilter", "Status"),
    "dead_letters.letter": ("DeadLetter", "ReplayPlan", "ReplayReport"),
    "dead_letters.service": ("DeadLetters",),
    "event": ("Event",),
    "inbox": ("Inbox",),
    "outbox": ("Outbox",),
    "relay.relay": ("Relay",),
    "transports.functions": ("FunctionTransport",),
    "transports.memory": ("MemoryTransport",),
    "transports.protocol": ("Delivery", "Message", "Published", "Result", "Transport"),
    "transports.redis": ("RedisTransport",),
    "transports.sqlite": ("SQLiteTransport",),
}


def __getattr__(name: str) -> object:
    """Imported when first used."""
    for module, names in _HOMES.items():
        if name in names:
            found: object = getattr(_import_module(f"{__name__}.{module}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
