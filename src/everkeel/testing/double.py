"""A test double that fails as it is told to."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from everkeel.runtime.clock import DEFAULT


class Flaky:
    """A function whose outcomes are written down: exceptions are raised, anything else is returned, the last repeats.

    `takes` says how many seconds each call takes. `calls` says how often it was called, `times` when, and `arguments`
    with what. It is for sync code as it is; `async_()` is the same script as a coroutine function.

    >>> fetch = Flaky(ConnectionError, TimeoutError("too slow"), "answer")
    >>> from everkeel import retry
    >>> retry(backoff=0).call(fetch, "/orders")
    'answer'
    >>> fetch.calls, fetch.arguments[0]
    (3, (('/orders',), {}))
    """

    def __init__(self, *outcomes: object, takes: float = 0.0) -> None:
        if not outcomes:
            raise TypeError("Flaky() needs at least one outcome: exceptions to raise, values to return")
        self.outcomes, self.takes = outcomes, takes
        self._lock = threading.Lock()
        self.times: list[float] = []
        """When each call began, on the clock of the caller's context."""
        self.arguments: list[tuple[tuple[object, ...], dict[str, object]]] = []
        """The arguments of each call, positional and by name."""
        self.__name__ = self.__qualname__ = "flaky"

    @property
    def calls(self) -> int:
        """How often it was called."""
        return len(self.times)

    def __call__(self, *args: object, **kwargs: object) -> object:
        """Sync: the next outcome."""
        outcome = self._next(args, kwargs)
        if self.takes:
            DEFAULT.wait(threading.Event(), self.takes)  # not a sleep, which would be recorded as a delay of a policy
        return _happen(outcome)

    def async_(self) -> Callable[..., Coroutine[Any, Any, object]]:
        """The same script as a coroutine function; both share their place in it and what they record."""

        async def flaky(*args: object, **kwargs: object) -> object:
            outcome = self._next(args, kwargs)
            if self.takes:
                await asyncio.sleep(self.takes)
            return _happen(outcome)

        return flaky

    def _next(self, args: tuple[object, ...], kwargs: dict[str, object]) -> object:
        with self._lock:
            self.arguments.append((args, kwargs))
            self.times.append(DEFAULT.monotonic())
            return self.outcomes[min(self.calls, len(self.outcomes)) - 1]

    def __repr__(self) -> str:
        return f"<Flaky {self.outcomes!r}, called {self.calls} times>"


def _happen(outcome: object) -> object:
    if isinstance(outcome, BaseException):
        # What is raised again and again would keep each frame it ever went through, and all that is in them.
        raise outcome.with_traceback(None)
    if isinstance(outcome, type) and issubclass(outcome, BaseException):
        raise outcome
    return outcome
