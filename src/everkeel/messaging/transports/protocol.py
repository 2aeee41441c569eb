"""What a transport does, for the relay that publishes and for the consumer that receives."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol, Self, runtime_checkable

from everkeel.messaging.event import Event


class Result(Enum):
    """What is known about one published message."""

    CONFIRMED = "confirmed"
    """The transport has it, as durably as it can."""
    RETRYABLE = "retryable"
    """It does not have it; later it may take it."""
    FATAL = "fatal"
    """It does not have it and never will: too large, no such topic, not allowed."""
    UNKNOWN = "unknown"
    """No answer. It may have it: send it again, and let the consumer recognise the duplicate."""


CONFIRMED, RETRYABLE, FATAL, UNKNOWN = Result


@dataclass(frozen=True, slots=True)
class Published:
    """The answer for one message."""

    result: Result
    error: BaseException | None = None
    outage: bool = False
    """Not about this message: the transport as a whole is away or full. Such a failure counts against no event."""


OK = Published(CONFIRMED)


def unknown(error: BaseException) -> Published:
    """No answer: the transport is away, and nobody knows what it got before."""
    return Published(UNKNOWN, error, outage=True)


@dataclass(frozen=True, slots=True)
class Message:
    """An event on its way to a topic."""

    topic: str
    event: Event

    @property
    def key(self) -> str | None:
        """Messages of a topic with the same key keep their order."""
        return self.event.key


class Delivery:
    """One message handed to one consumer, for a time: `ack` it, `nack` it, or `extend` the time.

    Each answers False when the time ran out and the message is somebody else's by now: then nothing was changed.
    """

    __slots__ = ("_came", "_event", "attempt", "group", "key", "topic")

    def __init__(self, topic: str, group: str, key: str | None, body: bytes | Event, attempt: int) -> None:
        self.topic, self.group, self.key = topic, group, key
        self.attempt = attempt
        """Which try of this group this is, from 1, as far as the transport knows."""
        self._came = body
        self._event: Event | None = body if isinstance(body, Event) else None

    @property
    def body(self) -> bytes:
        """The message as it came: CloudEvents' structured JSON, unless somebody published something else."""
        return self._came.to_json() if isinstance(self._came, Event) else self._came

    @property
    def event(self) -> Event:
        """The event in it; an `EventError` if what came is none."""
        if self._event is None:
            self._event = Event.from_json(self.body)
        return self._event

    async def ack(self) -> bool:
        """It is done: never deliver it to this group again."""
        raise NotImplementedError

    async def nack(self, delay: float = 0.0) -> bool:
        """It is not done: deliver it again, not before `delay` seconds."""
        raise NotImplementedError

    async def set_aside(self, delay: float) -> bool:
        """It is not its turn: deliver it again, not before `delay` seconds, and let others of its key pass meanwhile.

        A transport that cannot tell the two apart lets its key wait, as after `nack`.
        """
        return await self.nack(delay)

    async def extend(self, seconds: float) -> bool:
        """Still at it: keep it for `seconds` from now."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"<Delivery of {self.topic!r} to {self.group!r}, attempt {self.attempt}>"


class Subscription(Protocol):
    """Deliveries as they come, without end: `async for delivery in subscription`. Close it to give back the rest."""

    def __aiter__(self) -> AsyncIterator[Delivery]: ...

    async def __anext__(self) -> Delivery: ...

    async def aclose(self) -> None:
        """Give back what was fetched and not handed out, and end."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *error: object) -> None: ...


@runtime_checkable
class Transport(Protocol):
    """How events travel. `everkeel.testing.contracts` has the tests that a transport must pass, also one of yours."""

    name: str
    durable: bool
    """What is confirmed survives a restart of the transport."""
    ordered: bool
    """Of one key, a group has one delivery at a time, in the order of publishing, whatever fails meanwhile."""

    async def publish(self, messages: Sequence[Message]) -> Sequence[Published]:
        """Publish, and answer for each message, in their order.

        Messages of one topic and key are published in order, and none whose predecessor in the list was not confirmed.
        An exception means that nothing is known about any of them.
        """
        ...

    def subscribe(
        self,
        topics: str | Sequence[str],
        group: str,
        *,
        consumer: str | None = None,
        prefetch: int = 100,
        lease: float = 60.0,
    ) -> Subscription:
        """Receive what is published to `topics`. Every group gets everything, and shares it among its consumers.

        At most `prefetch` deliveries are held and not settled. One that is neither settled nor extended within
        `lease` seconds is delivered again, to whoever asks. A new group begins with what the transport still has.
        """
        ...

    async def close(self) -> None:
        """Let go of connections."""
        ...
