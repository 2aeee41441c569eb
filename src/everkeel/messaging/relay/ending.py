"""Ending tasks in a time that is known beforehand, also where a database or a transport has gone silent.

A driver that is cancelled cleans up: it rolls back, gives its connection back, asks the server to cancel. Over a
network that swallows everything each of these waits for ever, and so would whoever waits for the task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any

PATIENCE = (1.0, 0.1, 0.1)
"""Seconds for which a task may clean up, before it is cancelled again; and again."""


async def ended(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait for their end, but not for ever: who is left then cleans up behind our back."""
    pending = {task for task in tasks if not task.done()}
    for seconds in PATIENCE:
        if not pending:
            return
        for task in pending:
            task.cancel()
        done, pending = await asyncio.wait(pending, timeout=seconds)
        for task in done:
            if not task.cancelled():
                task.exception()  # looked at: it ends because we end it
    for task in pending:
        task.add_done_callback(lambda one: one.cancelled() or one.exception())


async def within(seconds: float, work: Coroutine[Any, Any, object]) -> None:
    """Do it, if it can be done in that time; whatever goes wrong, we have tried."""
    task = asyncio.ensure_future(work)
    await asyncio.wait({task}, timeout=seconds)
    await ended([task])
    if task.done() and not task.cancelled():
        task.exception()
