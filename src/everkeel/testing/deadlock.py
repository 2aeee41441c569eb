"""What a virtual loop says when its tasks wait for something that can never happen."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from everkeel.errors import EverkeelError


class DeadlockError(EverkeelError, RuntimeError):
    """Every task waits for something that nothing can bring about any more: no timer, no thread, no I/O is left.

    >>> from everkeel.testing import run
    >>> async def forgotten():
    ...     await asyncio.get_running_loop().create_future()
    >>> run(forgotten)
    Traceback (most recent call last):
    everkeel.testing.deadlock.DeadlockError: deadlock in virtual time: 1 task waits for something that can never happen:
      Task-1: forgotten, ...
    """

    @property
    def policy(self) -> None:
        """None: no policy is to blame."""

    @property
    def waiting(self) -> tuple[str, ...]:
        """Each task, and where it waits."""
        return tuple(str(line) for line in self.args)

    def __str__(self) -> str:
        who = "1 task waits" if len(self.args) == 1 else f"{len(self.args)} tasks wait"
        return "\n  ".join([f"deadlock in virtual time: {who} for something that can never happen:", *self.waiting])


def describe(task: asyncio.Task[Any]) -> str:
    """A task in one line: its name, its coroutine, and the innermost line of it outside of asyncio."""
    what: Any = task.get_coro()
    text = f"{task.get_name()}: {getattr(what, '__qualname__', what)}"
    where = ""
    while what is not None:
        frame = getattr(what, "cr_frame", None) or getattr(what, "gi_frame", None) or getattr(what, "ag_frame", None)
        if frame is not None and not frame.f_globals.get("__name__", "").startswith("asyncio."):
            where = f", at {os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} in {frame.f_code.co_qualname}"
        what = getattr(what, "cr_await", None) or getattr(what, "gi_yieldfrom", None) or getattr(what, "ag_await", None)
    return text + where
