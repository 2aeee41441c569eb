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
from everkeel.runtime.deadline import AMBIENT
from everkeel.runtime.workers import Job, start

if TYPE_CHECKING:
    from everkeel.policies.hedge.state import Hedging


class ThreadRace:
    """One sync call and its attempts."""

    __slots__ = (
        "_again", "_arrived", "_cancellation", "_decided", "_hedge", "_lock", "_outcomes", "_running", "started",
    )  # fmt: skip

    def __init__(self, hedge: Hedging, again: Callable[[], Any]) -> None:
        self._hedge, self._again = hedge, again
        self._lock = threading.Lock()
        self._arrived = threading.Event()
        self._outcomes: deque[tuple[int, Any, BaseException | None]] = deque()
        self.started = self._running = 0
        self._decided = False
        clock, limit = hedge.policy.clock, AMBIENT.get()
        # To an attempt, the end of the call is the deadline that travels with it, or being told that it has lost.
        at, error = inf, TimeoutExceededError(hedge.policy.name, 0.0, "hedge")
        if limit is not None:
            at, error = limit.at, limit.error()
        self._cancellation = Cancellation(clock, at, error)

    def run(self, seconds: float | None) -> tuple[int, Any]:
        """The first attempt that has an answer within so many seconds, and its answer."""
        hedge, failures = self._hedge, dict[int, Exception]()
        clock = hedge.policy.clock
        until = inf if seconds is None else clock.monotonic() + seconds
        try:
            self._start()
            due = clock.monotonic() + hedge.delay(1)  # when another attempt should start
            while True:
                outcome = self._wait(min(due, until))
                if outcome is not None:
                    number, result, error = outcome
                    if error is None:
                        return number, result
                    if hedge.is_answer(error) or not isinstance(error, Exception):
                        if self.started > 1:
                            hedge.won(number, error)
                        raise error
                    if seconds is not None and clock.monotonic() >= until:
                        raise hedge.expired(seconds) from error  # it gave up in the moment in which we stop waiting
                    failures[number] = error
                    replaced = hedge.is_failure(error) and self._next()
                    if len(failures) == self.started and not replaced:
                        raise error if len(failures) == 1 else _group(failures)
                elif seconds is not None and clock.monotonic() >= until:
                    raise hedge.expired(seconds)
                else:
                    replaced = self._next()
                if replaced and self.started < hedge.policy.config.attempts:
                    due = clock.monotonic() + hedge.delay(self.started)
                elif replaced or outcome is None:
                    due = inf  # there are enough, or there may be no more
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

    def _next(self) -> bool:
        """Start another attempt if there may be one."""
        if self.started < self._hedge.policy.config.attempts and self._hedge.may_start():
            self._start()
            self._hedge.started(self.started)
            return True
        return False

    def _start(self) -> None:
        number = self.started + 1

        def attempt() -> None:
            CURRENT.set(self._cancellation)
            try:
                result, error = self._again(), None
            except BaseException as raised:
                result, error = None, raised
            self._report(number, result, error)

        with self._lock:
            self._running += 1
        try:
            start(Job(attempt, (), {}))
        except BaseException:  # no thread to be had
            with self._lock:
                self._running -= 1
            raise
        self.started = number

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


def _group(failures: dict[int, Exception]) -> Exception:
    return ExceptionGroup(f"all {len(failures)} attempts failed", [error for _, error in sorted(failures.items())])
