"""Threads for calls that must be given up on in time. Started on demand, reused while idle, never waited for at exit.

There is no fixed number of them: a pool that hung calls can exhaust is a pool in which healthy calls then time out too.
What bounds them is that a policy refuses to start a call when too many of its own were abandoned and have not ended.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

_IDLE_SECONDS = 10.0
_idle: deque[_Worker] = deque()
handed_over: set[Job] = set()
"""Jobs that no thread has begun with yet. A virtual clock stands still meanwhile: a thread that wakes up takes time."""


class Job:
    """One call on its way through a worker thread."""

    __slots__ = ("_args", "_context", "_fn", "_kwargs", "_lock", "abandoned", "error", "finished", "on_late", "result")

    def __init__(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._fn, self._args, self._kwargs, self._context = fn, args, kwargs, copy_context()
        self._lock = threading.Lock()
        self.finished = threading.Event()
        self.abandoned = False
        self.on_late: Callable[[BaseException | None], object] | None = None
        self.result: Any = None
        self.error: BaseException | None = None

    def run(self) -> None:
        """In the worker: make the call, and tell whoever still wants to know."""
        handed_over.discard(self)
        try:
            self.result = self._context.run(self._fn, *self._args, **self._kwargs)
        except BaseException as error:
            self.error = error
        del self._fn, self._args, self._kwargs
        with self._lock:
            self.finished.set()
            late = self.on_late if self.abandoned else None
        if late is not None:
            self._context.run(late, self.error)
            self.error = None

    def abandon(self, on_late: Callable[[BaseException | None], object]) -> bool:
        """In the caller: give up on it. False when it has just ended after all."""
        with self._lock:
            if self.finished.is_set():
                return False
            self.abandoned, self.on_late = True, on_late
            return True


class _Worker:
    def __init__(self, job: Job) -> None:
        self.job: Job | None = job
        self.wake = threading.Event()
        threading.Thread(target=self._work, name="everkeel-worker", daemon=True).start()

    def give(self, job: Job) -> None:
        self.job = job
        self.wake.set()

    def _work(self) -> None:
        while True:
            job, self.job = self.job, None
            if job is not None:
                job.run()
                del job
                self.wake.clear()
                _idle.append(self)
            if not self.wake.wait(_IDLE_SECONDS):
                try:
                    _idle.remove(self)
                except ValueError:
                    self.wake.wait()  # taken from the idle in this very moment: a job is on its way
                else:
                    return


def start(job: Job) -> None:
    """Run a job in an idle worker, or in a new one."""
    handed_over.add(job)
    try:
        try:
            worker = _idle.pop()
        except IndexError:
            _Worker(job)
        else:
            worker.give(job)
    except BaseException:
        handed_over.discard(job)
        raise


def _forget() -> None:
    _idle.clear()  # threads do not survive a fork
    handed_over.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
