"""Any function as a transport to publish with: an HTTP webhook, a broker's client, a line in a log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from everkeel.errors import ConfigError
from everkeel.messaging.transports.protocol import FATAL, OK, RETRYABLE, Message, Published, Subscription, unknown
from everkeel.runtime.classify import ErrorMatch, Errors, as_errors


class FunctionTransport:
    """Publishes with `await publish(message)`, which raises when it did not work.

    Messages of one key are published one after the other, different keys beside each other.

    Args:
        publish: Takes a `Message`; returning is the confirmation.
        concurrency: How many are published at once.
        outage: Errors that are about the way there and not about the message: counted against no event.
        fatal: Errors that will be the same next time: the event becomes a dead letter at once.
        name: What it is called in messages and metrics.

    >>> async def post(message: Message) -> None:
    ...     print(message.topic, message.event.type)
    >>> FunctionTransport(post).name
    'post'
    """

    durable = True
    ordered = True

    def __init__(
        self,
        publish: Callable[[Message], Awaitable[object]],
        *,
        concurrency: int = 16,
        outage: Errors = (OSError,),
        fatal: Errors = (),
        name: str | None = None,
    ) -> None:
        self.name = name or str(getattr(publish, "__name__", "function"))
        self._publish = publish
        if concurrency < 1:
            raise ConfigError(f"transport {self.name!r}", "concurrency", "must be at least 1", repr(concurrency))
        self._concurrency = concurrency
        self._outage = ErrorMatch(as_errors(outage))
        self._fatal = None if fatal == () else ErrorMatch(as_errors(fatal))

    async def publish(self, messages: Sequence[Message]) -> Sequence[Published]:
        results: list[Published | None] = [None] * len(messages)
        lines: dict[object, list[int]] = {}
        for place, message in enumerate(messages):
            line = object() if message.key is None else (message.topic, message.key)
            lines.setdefault(line, []).append(place)
        waiting = iter(lines.values())  # shared: whoever is free takes the next line

        async def work() -> None:
            for line in waiting:
                held: Published | None = None
                for place in line:
                    # Behind one that is not there, none of its key may be.
                    result = await self._one(messages[place]) if held is None else held
                    if held is None and result is not OK:
                        held = Published(RETRYABLE, result.error, outage=True)
                    results[place] = result

        async with asyncio.TaskGroup() as group:
            for _ in range(min(self._concurrency, len(lines))):
                group.create_task(work())
        return [result for result in results if result is not None]

    async def _one(self, message: Message) -> Published:
        try:
            await self._publish(message)
        except Exception as error:
            if self._fatal is not None and self._fatal.matches(error):
                return Published(FATAL, error)
            return unknown(error) if self._outage.matches(error) else Published(RETRYABLE, error)
        return OK

    def subscribe(
        self,
        topics: str | Sequence[str],
        group: str,
        *,
        consumer: str | None = None,
        prefetch: int = 100,
        lease: float = 60.0,
    ) -> Subscription:
        """Not possible: a function only publishes."""
        raise ConfigError(f"transport {self.name!r}", None, "only publishes; consumers need another transport", None)

    async def close(self) -> None:
        """Nothing to do."""
