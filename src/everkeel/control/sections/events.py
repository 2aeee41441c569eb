"""What happens, as it happens."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from everkeel.control.access import Role
from everkeel.control.feed import wanted
from everkeel.control.section import Endpoint, Exchange, Parameter, Section
from everkeel.control.stream import EventStream


async def events(exchange: Exchange) -> Any:
    """A stream of what happens from now on."""
    feed = exchange.plane.feed
    reader = feed.join(exchange.who, wanted(exchange.query))
    return EventStream(reader, _hello(), exchange.plane.stream_headers, feed.leave)


async def _hello() -> AsyncIterator[bytes]:
    yield b": listening\n\n"  # so that whoever waits for the first byte knows that nothing after it is missed


def section() -> Section:
    """The part that tells."""
    return Section(
        "events",
        "Live events: circuits that open, limits that reject, settings that change.",
        [
            Endpoint(
                "GET", "/events", events, Role.VIEWER, "What happens, live",
                description=(
                    "Server-sent events of the type `happened`: `event`, `type` and `name` of the policy, `time`, "
                    "`count` (frequent events are told once per quarter of a second, with their number), `key`, "
                    "`details`. Successful calls are not told. `dropped` ends the stream of a reader that is too slow."
                ),
                media="text/event-stream", problems=(503,),
                parameters=(
                    Parameter("type", {"type": "string"}, "Only of policies of this type."),
                    Parameter("name", {"type": "string"}, "Only of policies whose name fits this pattern."),
                    Parameter("event", {"type": "string"}, "Only these events, as `circuit_*`."),
                ),
            )
        ],
    )  # fmt: skip
