"""A wake-up signal within one process, safe to give from any thread, heard on any event loop."""

from __future__ import annotations

import asyncio
import threading

from everkeel.runtime.clock import Clock


class LocalWakeup:
    """Wakes who waits in this process. What is signalled while nobody waits is heard by the next who does."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._waiting: dict[str, list[tuple[asyncio.AbstractEventLoop, asyncio.Future[bool]]]] = {}
        self._pending: set[str] = set()
        self._known: set[str] = set()  # what anybody ever waited for

    def notify(self, topic: str) -> None:
        """Wake who waits for `topic`."""
        with self._lock:
            waiting = self._waiting.pop(topic, None)
            if waiting is None:
                self._pending.add(topic)  # a signal between two waits must not be lost: it would cost a poll interval
                return
        for loop, future in waiting:
            try:
                loop.call_soon_threadsafe(_resolve, future, True)
            except RuntimeError:
                pass  # that loop is closed, and nobody waits there any more

    def notify_all(self) -> None:
        """Wake who waits for anything: signals may have been missed, and nobody knows which."""
        with self._lock:
            known = list(self._known)
        for topic in known:
            self.notify(topic)

    async def wait(self, topic: str, timeout: float | None) -> bool:
        """Wait for a signal, at most `timeout` seconds; None: as long as it takes."""
        loop = asyncio.get_running_loop()
        with self._lock:
            self._known.add(topic)
            if topic in self._pending:
                self._pending.discard(topic)
                return True
            future: asyncio.Future[bool] = self._clock.future(loop)
            entry = (loop, future)
            self._waiting.setdefault(topic, []).append(entry)
        timer = None
        if timeout is not None:
            timer = self._clock.later(loop, timeout, lambda: _resolve(future, False))
        try:
            return await future
        finally:
            if timer is not None:
                timer.cancel()
            with self._lock:
                others = self._waiting.get(topic)
                if others is not None and entry in others:
                    others.remove(entry)
                    if not others:
                        del self._waiting[topic]


def _resolve(future: asyncio.Future[bool], signalled: bool) -> None:
    if not future.done():
        future.set_result(signalled)
