"""Virtual time outside of pytest, or in one part of a test: as a function for coroutines, as a block for the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, TypeVar

from everkeel.runtime.clock import use_clock
from everkeel.testing.clock import NEW_YEAR_2026, VirtualClock
from everkeel.testing.loop import VirtualLoop

T = TypeVar("T")


def run(
    main: Callable[[], Coroutine[Any, Any, T]] | Coroutine[Any, Any, T],
    *,
    seed: int | None = None,
    clock: VirtualClock | None = None,
    shuffle: bool = False,
) -> T:
    """Run a coroutine, or a coroutine function without arguments, in virtual time: `asyncio.run` without the waiting.

    The loop is new, runs on `clock` (a new one with `seed`, 0 if not given), and is closed at the end with every task
    it has left. `shuffle` runs tasks that are ready together in an order that depends on the seed.

    >>> async def patient():
    ...     await asyncio.sleep(86_400)
    ...     return asyncio.get_running_loop().time()
    >>> run(patient)
    86400.0
    """
    if clock is not None and seed is not None:
        raise TypeError("run() got a clock and a seed; give the seed to the clock")
    chosen = clock or VirtualClock(seed=seed or 0)
    with use_clock(chosen):
        coroutine = main() if callable(main) else main
        try:
            _refuse_a_second_loop()
            with asyncio.Runner(loop_factory=lambda: VirtualLoop(chosen, shuffle=shuffle)) as runner:
                return runner.run(coroutine)
        finally:
            coroutine.close()  # it has ended, unless it was refused: then nobody will ever await it


def _refuse_a_second_loop() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError("run() cannot be called where an event loop is running already")


@contextmanager
def virtual_time(
    start: float = 0.0, *, wall: float | datetime = NEW_YEAR_2026, seed: int = 0
) -> Generator[VirtualClock]:
    """Everything in this block that has no clock of its own lives in virtual time; `clock.run(...)` runs coroutines.

    In pytest, the fixture of the same name does this for a whole test.

    >>> from everkeel import sleep
    >>> with virtual_time() as clock:
    ...     sleep(3600)
    >>> clock.monotonic()
    3600.0
    """
    clock = VirtualClock(start, wall=wall, seed=seed)
    with use_clock(clock):
        yield clock
