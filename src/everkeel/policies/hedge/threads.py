"""Attempts beside each other in worker threads.

A thread cannot be cancelled. Losers are asked to stop (see `current_cancellation`); until they do they are counted, and
with too many of them left behind no second attempt is started.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any

from everkeel.errors import TimeoutExceededError
from everkeel.runtime.cancellation import CURRENT, Cancellation
from everkeel.runtime.workers import Job, start

if TYPE_CHECKING:
    from everkeel.policies.hedge.state import Hedging


class ThreadRace:
    """One sync call and its attempts."""

    __slots__ = (
        "_again",
        "_arrived",
        "_cancellation",
        "_decided",
        "_hedge",
        "_lock",
        "_outcomes",
        "_running",
        "started",
    )

    def __init__(self, hedge: Hedging, again: Callable[[], Any]) -> None:
        self._hedge, self._again = hedge, again
        self._lock = threading.Lock()
        self._arrived = threading.Event()
        self._outcomes: deque[tuple[int, Any, BaseException | None]] = deque()
        self.started = self._running = 0
        self._decided = False
        clock = hedge.policy.clock
        self._cancellation = Cancellation(clock, inf, TimeoutExceededError(hedge.policy.name, 0.0, "hedge"))

    def run(self, until: float | None) -> Any:
        """The answer of the first attempt that has one, unless `until` comes first."""
        hedge, failures = self._hedge, list[Exception]()
        clock = hedge.policy.clock
        self._start()
        due = clock.monotonic() + hedge.delay(1)  # when another attempt should start
        try:
            while True:
                outcome = self._wait(min(due, inf if until is None else until))
                if outcome is not None:
                    number, result, error = outcome
                    if error is None:
                        hedge.won(number)
                        return result
                    if not isinstance(error, Exception) or not hedge.is_failure(error):
                        raise error  # an error that is not one to hedge on is an answer too
                    failures.append(error)
                    if len(failures) == self.started and not self._may_start():
                        raise failures[0] if len(failures) == 1 else _group(failures)
                elif until is not None and clock.monotonic() >= until:
                    raise hedge.expired()
                # It takes longer than usual, or an attempt failed and there is nothing to wait for.
                due = clock.monotonic() + hedge.delay(self.started) if self._next() else inf
        finally:
            self._end()

    def _wait(self, until: float) -> tuple[int, Any, BaseException | None] | None:
        """The next outcome to arrive; None when there was none by then."""
        clock = self._hedge.policy.clock
        clock.wait(self._arrived, None if until == inf else max(0.0, until - clock.monotonic()))
        with self._lock:
            outcome = self._outcomes.popleft() if self._outcomes else None
            if not self._outcomes:
                self._arrived.clear()
            return outcome

    def _may_start(self) -> bool:
        return self.started < self._hedge.policy.config.attempts

    def _next(self) -> bool:
        if self._may_start() and self._hedge.may_start(self.started):
            self._start()
            self._hedge.started(self.started)
            return True
        return False

    def _start(self) -> None:
        self.started += 1
        with self._lock:
            self._running += 1
        number = self.started

        def attempt() -> None:
            CURRENT.set(self._cancellation)
            try:
                result, error = self._again(), None
            except BaseException as raised:
                result, error = None, raised
            self._report(number, result, error)

        start(Job(attempt, (), {}))

    def _report(self, number: int, result: Any, error: BaseException | None) -> None:
        """In the worker: an attempt ended."""
        with self._lock:
            self._running -= 1
            if not self._decided:
                self._outcomes.append((number, result, error))
                self._arrived.set()
                return
        self._hedge.left_behind(-1)
        if error is None:
            self._hedge.dispose(result)

    def _end(self) -> None:
        """In the caller: whoever is still running is a loser."""
        with self._lock:
            self._decided = True
            late, running = list(self._outcomes), self._running
            self._outcomes.clear()
            if running:
                self._hedge.left_behind(running)
        self._cancellation.cancel()
        for _, result, error in late:
            if error is None:
                self._hedge.dispose(result)


def _group(failures: list[Exception]) -> BaseException:
    return ExceptionGroup(f"all {len(failures)} attempts failed", failures)
