"""A clock that jumps: nobody waits for time to pass, and yet everything happens in the order of its time."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import datetime
from math import inf
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

from everkeel.runtime.clock import Clock
from everkeel.testing._turns import Parked, Turns

if TYPE_CHECKING:
    import asyncio
    import threading

T = TypeVar("T")

NEW_YEAR_2026 = 1_767_225_600.0  # midnight UTC


class VirtualClock(Clock):
    """Time that passes only when somebody sleeps, and then at once.

    It starts at 0 (`start`); the wall clock, at New Year 2026 (`wall`), moves along. Chance is seeded, so that a test
    with jitter does the same on every run. Every sleep through this clock is kept in `sleeps`.

    Threads may share it, and then take turns in the order of their time. A thread other than the one that made the
    clock gives the rest `grace` seconds of real time to do something before it moves the clock, and up to `patience`
    while one of them is really at work. What computes or does real I/O for longer than that can be overtaken.

    >>> clock = VirtualClock()
    >>> clock.sleep(3600)
    >>> clock.monotonic(), clock.sleeps
    (3600.0, [3600])
    """

    def __init__(
        self,
        start: float = 0.0,
        *,
        wall: float | datetime = NEW_YEAR_2026,
        seed: int = 0,
        grace: float = 0.01,
        patience: float = 1.0,
    ) -> None:
        self._wall = (wall.timestamp() if isinstance(wall, datetime) else wall) - start
        self.seed = seed
        """What chance began with; the same seed, the same test."""
        self.random = Random(seed).random
        self.sleeps: list[float] = []
        """The length of every sleep, sync and async, in the order they began."""
        self.turns = Turns(float(start), grace, patience)
        """How threads and event loops share this clock; of no use to a test."""

    def __repr__(self) -> str:
        return f"<VirtualClock at {self.monotonic():g} s, seed {self.seed}>"

    # ------------------------------------------------------------------ what a Clock does

    def monotonic(self) -> float:
        """Seconds since the start."""
        return self.turns.now

    def time(self) -> float:
        """Seconds since 1970, moving along with `monotonic`."""
        return self.turns.now + self._wall

    def sleep(self, seconds: float) -> None:
        """Let so many seconds pass: at once, or with other threads on this clock, when it is this one's turn."""
        if seconds < 0:
            raise ValueError("sleep length must be non-negative")
        self.sleeps.append(seconds)
        self.turns.pass_time(seconds)

    async def asleep(self, seconds: float) -> None:
        """Suspend this task for so many seconds. On a loop that has another clock, just move this one on."""
        import asyncio

        self.sleeps.append(seconds)
        if not self._drives(asyncio.get_running_loop()):
            self.turns.pass_time(seconds)
            seconds = 0
        await asyncio.sleep(seconds)

    def later(self, loop: asyncio.AbstractEventLoop, seconds: float, act: Callable[[], object]) -> asyncio.TimerHandle:
        """Call `act` on `loop`, which must run on this clock, after so many seconds."""
        if not self._drives(loop):
            raise RuntimeError(
                f"a timer of {self!r} needs an event loop that runs on it, and {loop!r} does not: "
                "run the coroutine with everkeel.testing.run, or under the fixture virtual_time"
            )
        return loop.call_later(seconds, act)

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """An event loop of this clock for another thread: while there are others, it never gives up on them."""
        from everkeel.testing.loop import VirtualLoop

        return VirtualLoop(self, among_others=True)

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        """Wait until another thread sets `event`; False once so many seconds have passed without it."""
        if event.is_set() or (seconds is not None and seconds <= 0):
            return event.is_set()
        # Without a bound it parks too: when its event is set, the others must see that it is only slow to wake up.
        return self.turns.park(Parked(inf if seconds is None else self.monotonic() + seconds, event))

    def _drives(self, loop: asyncio.AbstractEventLoop) -> bool:
        return getattr(loop, "clock", None) is self

    # ------------------------------------------------------------------ what a test does

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass for everybody else.

        Timers of a loop that are due by then run when it gets to them, all at the new time. To live through them one
        after the other, sleep.

        >>> clock = VirtualClock()
        >>> clock.advance(30)
        >>> clock.monotonic(), clock.sleeps
        (30.0, [])
        """
        if seconds < 0:
            raise ValueError("time does not run backwards: seconds must not be negative")
        with self.turns.lock:
            self.turns.move(self.monotonic() + seconds)

    def run(self, main: Callable[[], Coroutine[Any, Any, T]] | Coroutine[Any, Any, T], *, shuffle: bool = False) -> T:
        """Run a coroutine, or a coroutine function without arguments, on an event loop of this clock.

        >>> import asyncio
        >>> clock = VirtualClock()
        >>> clock.run(asyncio.sleep(60, "done")), clock.monotonic()
        ('done', 60.0)
        """
        from everkeel.testing.running import run

        return run(main, clock=self, shuffle=shuffle)
