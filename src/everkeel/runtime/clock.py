"""The one place where time, waiting and chance come from.

Policies read the clock, sleep, arm timers, wait for threads and draw random numbers only through a `Clock`. A policy
may be given its own (`retry(clock=...)`); all others use `DEFAULT`, which is real time unless `use_clock` chose
another one for the current context. So a test can run in virtual time while a thread beside it keeps real time.
"""

from __future__ import annotations

import threading
import time as _time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    import random

_chance: random.Random | None = None


def _draw() -> float:
    global _chance
    if _chance is None:
        import random  # 5 ms of import that a service without jitter need not pay

        _chance = random.Random()
    return _chance.random()


def _from_monotonic(clock: Clock) -> int:
    return round(clock.monotonic() * 1e9)


class Clock:
    """Real time, and the seam by which it is replaced: subclass it and override what should differ.

    `everkeel.testing.VirtualClock` is such a subclass.

    >>> Clock().monotonic() > 0
    True
    """

    monotonic: Callable[[], float] = staticmethod(_time.monotonic)
    """Seconds from an arbitrary start, never running backwards."""

    monotonic_ns: Callable[[], int] = staticmethod(_time.monotonic_ns)
    """The same in whole nanoseconds. A subclass that overrides `monotonic` alone gets this from it."""

    time: Callable[[], float] = staticmethod(_time.time)
    """Seconds since 1970, for showing to people and other machines. No decision but a schedule depends on it."""

    random: Callable[[], float] = staticmethod(_draw)
    """A number from 0 up to, not including, 1."""

    sleep: Callable[[float], None] = staticmethod(_time.sleep)
    """Block this thread for so many seconds."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "monotonic" in cls.__dict__ and "monotonic_ns" not in cls.__dict__:
            cls.monotonic_ns = _from_monotonic  # type: ignore[assignment]  # a method, in place of a function

    async def asleep(self, seconds: float) -> None:
        """Suspend this task for so many seconds."""
        import asyncio

        await asyncio.sleep(seconds)

    def later(self, loop: asyncio.AbstractEventLoop, seconds: float, act: Callable[[], object]) -> asyncio.TimerHandle:
        """Call `act` on `loop` after so many seconds. Never `call_at`: a loop's own clock need not be this one."""
        return loop.call_later(seconds, act)

    def future(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[Any]:
        """Something a task can wait for."""
        return loop.create_future()

    def new_loop(self) -> asyncio.AbstractEventLoop:
        """An event loop on this clock, for a thread of one's own."""
        import asyncio

        return asyncio.new_event_loop()

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        """Block this thread until `event` is set, at most so many seconds; answers whether it was set in time."""
        return event.wait(seconds)


REAL = Clock()
_CHOSEN: ContextVar[Clock | None] = ContextVar("everkeel.clock", default=None)


class _ContextClock(Clock):
    """Real time at no extra cost while nobody has chosen otherwise anywhere; after that, each context's own choice."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self.on_change: list[Callable[[], object]] = []  # who has bound our functions and must look again

    def _here(self) -> Clock:
        return _CHOSEN.get() or REAL

    def here(self) -> Clock:
        """The clock that this context has chosen: what another thread must be told, which has another context."""
        return self._here()

    def _follow(self, users: int) -> None:
        """Count who uses a clock of their own, and take the detour through the context only while somebody does."""
        with self._lock:
            before, self._users = self._users, self._users + users
            if bool(before) == bool(self._users):
                return
            if self._users:
                self.monotonic = lambda: self._here().monotonic()
                self.monotonic_ns = lambda: self._here().monotonic_ns()
                self.time = lambda: self._here().time()
                self.random = lambda: self._here().random()
                self.sleep = lambda seconds: self._here().sleep(seconds)
            else:
                for name in ("monotonic", "monotonic_ns", "time", "random", "sleep"):
                    delattr(self, name)
        for act in self.on_change:
            act()

    async def asleep(self, seconds: float) -> None:
        await self._here().asleep(seconds)

    def later(self, loop: asyncio.AbstractEventLoop, seconds: float, act: Callable[[], object]) -> asyncio.TimerHandle:
        return self._here().later(loop, seconds, act)

    def future(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[Any]:
        return self._here().future(loop)

    def new_loop(self) -> asyncio.AbstractEventLoop:
        return self._here().new_loop()

    def wait(self, event: threading.Event, seconds: float | None) -> bool:
        return self._here().wait(event, seconds)


DEFAULT = _ContextClock()


@contextmanager
def use_clock(clock: Clock) -> Iterator[Clock]:
    """Everything in this context that was not given a clock of its own uses `clock`: this thread, the tasks it starts.

    >>> class Noon(Clock):
    ...     time = staticmethod(lambda: 43_200.0)
    >>> with use_clock(Noon()):
    ...     DEFAULT.time()
    43200.0
    """
    token = _CHOSEN.set(clock)
    DEFAULT._follow(+1)
    try:
        yield clock
    finally:
        DEFAULT._follow(-1)
        _CHOSEN.reset(token)
