"""Events between services: nothing lost, nothing done twice, failures kept and replayable.

`Event` is the envelope (CloudEvents 1.0). `Outbox` writes events in your own transaction, `Relay` delivers them over a
transport, consumers handle them once, and what cannot be handled becomes a dead letter that can be replayed.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from everkeel.messaging.event import Event
    from everkeel.messaging.outbox import Outbox
    from everkeel.messaging.relay.relay import Relay
    from everkeel.messaging.transports.functions import FunctionTransport
    from everkeel.messaging.transports.memory import MemoryTransport
    from everkeel.messaging.transports.protocol import Delivery, Message, Published, Result, Transport
    from everkeel.messaging.transports.redis import RedisTransport
    from everkeel.messaging.transports.sqlite import SQLiteTransport

__all__ = [
    "Delivery", "Event", "FunctionTransport", "MemoryTransport", "Message", "Outbox", "Published", "RedisTransport",
    "Relay", "Result", "SQLiteTransport", "Transport",
]  # fmt: skip

_HOMES = {
    "event": ("Event",),
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
