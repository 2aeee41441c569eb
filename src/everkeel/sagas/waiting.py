"""Waiting for a saga's end, whoever carries it on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from everkeel.engines.sagas import STOPPED, TERMINAL
from everkeel.errors import SagaNotFoundError
from everkeel.sagas.record import Record, decoded

if TYPE_CHECKING:
    from everkeel.sagas.orchestrator import Orchestrator


async def until_over(host: Orchestrator, id: str, timeout: float | None) -> Record:
    """The record, once the saga has ended or cannot go on without an operator."""
    if timeout is None:
        return await _over(host, id)
    task = asyncio.ensure_future(_over(host, id))
    timer = host.clock.later(asyncio.get_running_loop(), timeout, task.cancel)
    try:
        return await task
    except asyncio.CancelledError:
        current = asyncio.current_task()
        if current is not None and current.cancelling():
            task.cancel()
            raise
        raise TimeoutError(f"saga {id!r} was not over within {timeout:g} s; it goes on") from None
    finally:
        timer.cancel()


async def _over(host: Orchestrator, id: str) -> Record:
    pause = 0.02
    while True:
        if (driver := host.drivers.get(id)) is not None:
            both: set[asyncio.Future[Any]] = {driver.finished, driver.gone}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if driver.finished.done():
                return driver.finished.result()
        row = await host.store.load(id)
        if row is None:
            raise SagaNotFoundError(None, id)
        if row.state in TERMINAL or row.state in STOPPED:
            return decoded(row)
        if id not in host.drivers:
            await host.clock.asleep(pause)
            pause = min(1.0, pause * 1.5)
