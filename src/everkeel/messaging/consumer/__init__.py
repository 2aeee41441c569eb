"""Handling events once, in order, with everything that can go wrong thought of."""

from everkeel.messaging.consumer.consumer import Consumer
from everkeel.messaging.consumer.handlers import Context

__all__ = ["Consumer", "Context"]
