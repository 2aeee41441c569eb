"""A delivery while it is in our hands, and why it may have to come again."""

from __future__ import annotations

from everkeel.errors import EventError, RejectedError
from everkeel.idempotency.records import Token
from everkeel.messaging.transports.protocol import Delivery


class Again(Exception):  # noqa: N818 - never leaves the package
    """The delivery must be handled again after a while; `delay` says when. `aside`: others of its key may pass."""

    def __init__(self, delay: float, *, aside: bool = False) -> None:
        super().__init__(delay)
        self.delay, self.aside = delay, aside


class StoreAwayError(RejectedError):
    """No transaction was to be had: whatever is wrong, it is not the event."""

    policy_type = "consumer"

    def __str__(self) -> str:
        return f"consumer {self.policy!r}: no transaction to be had: {self.__cause__}"


class Held:
    """A delivery in our hands, and the claim under which it is handled, once there is one."""

    __slots__ = ("delivery", "late", "number", "token")

    def __init__(self, delivery: Delivery) -> None:
        self.delivery = delivery
        self.token: Token | None = None
        self.number: int | None = None
        """Its number, where the consumer takes events in sequence."""
        self.late: EventError | None = None
        """Why it is too late for it, where it is."""
