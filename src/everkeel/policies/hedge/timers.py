"""Which calls on one event loop are due for a second attempt, oldest first, behind a single timer.

As with timeouts: nearly every call answers before its second attempt is due, so arming a timer for each would be the
most expensive thing about it. All wait equally long, so the order in which they began is the order in which they are
due; where a learned delay has just become shorter, a call may be served a moment late.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from everkeel.policies.hedge.race import Ticket
    from everkeel.runtime.clock import Clock


class Due:
    """Who is due when."""

    __slots__ = ("_clock", "_delay", "armed", "delay", "live", "loop")

    def __init__(self, delay: Callable[[], float], clock: Clock, loop: asyncio.AbstractEventLoop | None) -> None:
        self._delay, self._clock, self.loop = delay, clock, loop
        self.delay = delay()
        self.armed = False
        self.live: dict[Ticket, float] = {}

    def arm(self, after: float | None = None) -> None:
        """Set the timer."""
        if self.loop is not None:
            self._clock.later(self.loop, self.delay if after is None else after, self._sweep)
            self.armed = True  # after it is: a clock that refuses must not leave later calls without a timer

    def _sweep(self) -> None:
        self.armed = False
        self.delay = self._delay()  # as good a moment as any to learn from the traffic since
        now = self._clock.monotonic()
        due: list[Ticket] = []
        for ticket, at in self.live.items():
            if at > now:
                self.arm(at - now)
                break
            due.append(ticket)
        for ticket in due:
            del self.live[ticket]
            ticket.context.run(ticket.is_due)  # this timer was armed in the context of some other call
