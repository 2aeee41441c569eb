"""Looks at a file every now and then, from a thread of its own, and says when it has changed.

It asks for what the name stands for at that moment: a file that was renamed into place and a symlink that was moved (as
Kubernetes does with mounted ConfigMaps) are seen like a file that was written. A change is told when two looks in a row
saw the same, so that a file which is being written is left alone.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TypeAlias

Sight: TypeAlias = tuple[int, int, int, int] | None


def look(path: str) -> Sight:
    """What tells one state of a file from another; None while there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev


class Settled:
    """The decision core: told what each look saw, answers whether to read the file now."""

    __slots__ = ("_last", "_taken")

    def __init__(self, taken: Sight) -> None:
        self._taken = self._last = taken

    def seen(self, sight: Sight) -> bool:
        """Has it changed, and come to rest? A yes is said once for each change."""
        settled = sight == self._last
        self._last = sight
        if not settled or sight == self._taken:
            return False
        self._taken = sight
        return True


class Watcher:
    """Calls `changed()` from a daemon thread each time the file has changed, until `close()`."""

    def __init__(self, path: str, changed: Callable[[], object], interval: float, *, since: Sight) -> None:
        """`since`: what the file looked like before it was read, so that no change between then and now is missed."""
        self.path, self.interval = path, interval
        self._changed = changed
        self._settled = Settled(since)
        self._start()

    def _start(self) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="everkeel-config", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more. Returns when the thread has ended, unless it is the one that asks."""
        self._ended.set()
        if self._thread is not threading.current_thread():
            self._thread.join()

    def after_fork(self) -> None:
        """In a forked child there is no thread any more: a worker of a pre-forking server watches for itself."""
        if not self._ended.is_set():
            self._start()

    def _watch(self) -> None:
        while not self._ended.wait(self.interval):
            if self._settled.seen(look(self.path)):
                self._changed()
