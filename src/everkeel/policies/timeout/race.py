"""A strict timeout's way: the body in a task of its own, against the clock, and no waiting for a body that lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from everkeel.errors import TimeoutExceededError
from everkeel.runtime.cancellation import CURRENT, Cancellation

if TYPE_CHECKING:
    import asyncio

    from everkeel.runtime.clock import Clock


class Race:
    """A body against the clock. `over` says who was first: True for the clock."""

    __slots__ = ("_body", "_clock", "_loop", "cancellation", "over", "timer")

    def __init__(
        self, clock: Clock, loop: asyncio.AbstractEventLoop, seconds: float, error: TimeoutExceededError
    ) -> None:
        self._clock, self._loop = clock, loop
        self.cancellation = Cancellation(clock, clock.monotonic() + seconds, error)
        self.over: asyncio.Future[bool] = clock.future(loop)
        self.timer = clock.later(loop, max(0.0, seconds), self._ring)

    def run(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> asyncio.Task[Any]:
        """Begin."""

        async def body() -> Any:
            CURRENT.set(self.cancellation)  # in this task: a thread the body starts can hear of the end
            return await fn(*args, **kwargs)

        self._body = self._loop.create_task(body())
        self._body.add_done_callback(self._done)
        return self._body

    def _ring(self) -> None:
        early = self.cancellation.at - self._clock.monotonic()
        if early > 0:  # an event loop may be a hair early, a timeout may not
            self.timer = self._clock.later(self._loop, early, self._ring)
        elif not self._body.done():
            self.cancellation.cancel()
            # The body first: when the caller goes on, what waited in a queue has left it.
            self._body.cancel()
            if not self.over.done():
                self.over.set_result(True)

    def _done(self, body: asyncio.Task[Any]) -> None:
        if not self.over.done():
            self.over.set_result(False)


def outcome(body: asyncio.Task[Any]) -> BaseException | None:
    """What a task that is over raised, if anything. Also tells asyncio that somebody has looked."""
    return None if body.cancelled() else body.exception()


async def until_over(body: asyncio.Task[Any]) -> None:
    """Wait for the end of a task that was told to stop, however often we are told the same meanwhile."""
    from asyncio import CancelledError, wait

    while not body.done():
        try:
            await wait((body,))
        except CancelledError:
            body.cancel()
    outcome(body)
