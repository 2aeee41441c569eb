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
    """A task in one line: its name, its coroutine, and where that waits."""
    coroutine = task.get_coro()
    return f"{task.get_name()}: {getattr(coroutine, '__qualname__', coroutine)}, {where(coroutine)}"


def where(coroutine: object) -> str:
    """File, line and function at which a coroutine waits: the innermost outside of asyncio and these tools."""
    place = "at an unknown place"
    inner: Any = coroutine
    while inner is not None:
        frame = _first(inner, "cr_frame", "gi_frame", "ag_frame")
        if frame is not None and not str(frame.f_globals.get("__name__")).startswith(("asyncio.", "everkeel.testing.")):
            code = frame.f_code
            place = f"at {os.path.basename(code.co_filename)}:{frame.f_lineno} in {code.co_qualname}"
        inner = _first(inner, "cr_await", "gi_yieldfrom", "ag_await")
    return place


def _first(owner: object, *names: str) -> Any:
    return next((value for name in names if (value := getattr(owner, name, None)) is not None), None)
