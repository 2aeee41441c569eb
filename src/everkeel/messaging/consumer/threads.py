"""Threads for handlers that block."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from everkeel.errors import RejectedError
from everkeel.messaging.event import Event
from everkeel.runtime.workers import Job, start

T = TypeVar("T")


class StuckHandlersError(RejectedError):
    """So many handlers that were given up on still occupy their threads that no other is started."""

    policy_type = "consumer"

    def __str__(self) -> str:
        return (
            f"consumer {self.policy!r}: {self.args[2]} calls of handlers occupy their threads, those that were given "
            "up on included; refusing to start another"
        )


def blocking(fn: Callable[..., Any], event: Event, arguments: dict[str, Any]) -> Any:
    """A handler's call in its thread."""
    try:
        return fn(event, **arguments)
    except StopIteration as error:  # no future can carry it: whoever awaits it would wait for ever
        raise RuntimeError("the handler raised StopIteration") from error


class HandlerThreads(ThreadPoolExecutor):
    """An executor whose threads are not waited for when the process ends: a handler that hangs must not keep it alive.

    One that hangs and was given up on (by a timeout, at shutdown) keeps its thread, and others get threads of their
    own, up to a bound: a pool that hung calls can exhaust is one in which healthy ones wait for ever.
    """

    def __init__(self, consumer: str, concurrency: int) -> None:
        super().__init__(1)  # for its interface; it never has a thread of its own
        self._consumer, self._most = consumer, concurrency + max(32, 4 * concurrency)
        self._busy = 0
        self._counting = threading.Lock()

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Call it in a thread, in this context."""
        future: Future[T] = Future()
        with self._counting:
            if self._busy >= self._most:
                raise StuckHandlersError(self._consumer, None, self._busy)
            self._busy += 1

        def work() -> None:
            try:
                if future.set_running_or_notify_cancel():
                    try:
                        result = fn(*args, **kwargs)
                    except BaseException as error:
                        future.set_exception(error)
                    else:
                        future.set_result(result)
            finally:
                with self._counting:
                    self._busy -= 1

        try:
            start(Job(work, (), {}))
        except BaseException:  # no thread to be had
            with self._counting:
                self._busy -= 1
            raise
        return future
