"""Who may move a virtual clock, and when: the rule by which several threads and event loops share one.

Whoever would wait is *parked* with a deadline. When nothing has happened for a moment of real time (the grace) and no
thread is at work, the one with the earliest deadline moves the clock there. Whoever's deadline the clock passes learns
in that very moment whether what it waited for had happened in time, so the verdict does not depend on which thread the
system wakes first.
"""

from __future__ import annotations

import selectors
import sys
import threading
from concurrent.futures import thread as pool
from math import inf
from time import monotonic as real_monotonic
from types import CodeType, FrameType

from everkeel.runtime import workers


class Parked:
    """A thread that waits for the clock to reach `deadline`, or for `event` to be set before."""

    __slots__ = ("deadline", "event", "in_time", "thread")

    def __init__(self, deadline: float, event: threading.Event | None = None) -> None:
        self.deadline, self.event = deadline, event
        self.thread = threading.get_ident()
        self.in_time: bool | None = None
        """Was the event set when the clock came by the deadline? None until then."""


class Turns:
    """The time of a virtual clock, and those who wait for it."""

    __slots__ = ("_before", "_bystanders", "_home", "grace", "lock", "loops", "now", "parked", "patience", "stirred")

    def __init__(self, now: float, grace: float, patience: float) -> None:
        self.now, self.grace, self.patience = now, grace, patience
        self._home = threading.current_thread()
        self._before = set(threading.enumerate()) - {self._home}
        frames = sys._current_frames()
        # Those that wait at first may be given work later: idle workers are kept from one test to the next.
        self._bystanders = {one for one in self._before if not _waits(frames.get(one.ident or 0))}
        self.lock = threading.Lock()
        self.parked: list[Parked] = []
        self.loops: set[int] = set()
        """The threads in which an event loop runs on this clock."""
        self.stirred = 0
        """Grows whenever somebody parks, leaves, starts work or moves the clock: while it does, nobody jumps."""

    def pass_time(self, seconds: float) -> None:
        """Let so many seconds pass: at once when nobody else is there, otherwise when it is this thread's turn."""
        here = threading.get_ident()
        with self.lock:
            until = self.now + seconds
            alone = not self.parked and self.loops <= {here}
            if seconds <= 0 or (alone and here == self._home.ident):
                self.move(until)
                return
        # Not alone; or in a thread that somebody started, who may be about to wait for it with an earlier deadline.
        self.park(Parked(until))

    def park(self, me: Parked) -> bool:
        """Wait for the event or the deadline; answers whether the event was set in time."""
        signal = me.event or threading.Event()
        began = real_monotonic()
        self.enter(me)
        try:
            while True:
                stirred = self.stirred
                signal.wait(self.grace)
                with self.lock:
                    if me.in_time is None and signal.is_set():
                        return True
                    if me.in_time is None and stirred == self.stirred:
                        impatient = real_monotonic() - began >= self.patience
                        if self.may_jump(me, impatient=impatient):
                            self.move(me.deadline)
                    if me.in_time is not None:
                        return me.in_time
        finally:
            self.leave(me)

    def enter(self, me: Parked) -> None:
        """Park."""
        with self.lock:
            self.parked.append(me)
            self.stirred += 1

    def leave(self, me: Parked) -> None:
        """Go on."""
        with self.lock:
            self.parked.remove(me)
            self.stirred += 1

    def stir(self) -> None:
        """Something happened: let whoever is about to jump think again."""
        with self.lock:
            self.stirred += 1

    # ------------------------------------------------------------------ under the lock

    def move(self, to: float) -> None:
        """Set the clock, and tell those whose deadline it passes whether they were in time."""
        self.now = max(self.now, to)
        self.stirred += 1
        for parked in self.parked:
            if parked.in_time is None and parked.deadline <= self.now:
                # Decided here and not when its thread wakes up: by then the event may be set, too late.
                parked.in_time = parked.event is not None and parked.event.is_set()

    def may_jump(self, me: Parked, *, impatient: bool) -> bool:
        """Is it my turn to move the clock to my deadline? Whoever is impatient no longer heeds those at work."""
        if me.deadline == inf or me is not min(self.parked, key=_deadline):
            return False
        return impatient or not self.at_work()

    def at_work(self) -> bool:
        """Does another thread do something, which may yet lead to an earlier deadline, rather than wait?

        Those that were at work before the clock was made have nothing to do with it, unless they run a loop on it.
        """
        parked = {one.thread for one in self.parked}
        if not self.loops <= parked or workers.handed_over:
            return True
        if any(one.event is not None and one.event.is_set() for one in self.parked):
            return True  # what it waited for has happened: it is only slow to wake up
        frames = sys._current_frames()
        others = set(threading.enumerate()) - self._bystanders
        return any(one.ident not in parked and not _waits(frames.get(one.ident or 0)) for one in others)

    def newcomers(self) -> set[threading.Thread]:
        """The threads that were started since the clock was made, and the one that made it."""
        return set(threading.enumerate()) - self._before


def _deadline(parked: Parked) -> float:
    return parked.deadline


def _codes(*functions: object) -> frozenset[CodeType]:
    codes = (getattr(function, "__code__", None) for function in functions)
    return frozenset(code for code in codes if isinstance(code, CodeType))


# Where a thread is that waits for another one. One that waits in another way (a bare lock, a socket) counts as working,
# which costs those who wait for it their patience.
_WAITING = _codes(
    threading.Condition.wait,  # also that of events, barriers, semaphores, queues and futures
    threading.Thread.join,
    getattr(threading.Thread, "_wait_for_tstate_lock", None),  # inside of join, up to Python 3.12
    getattr(pool, "_worker", None),  # an idle thread of a pool
    selectors.DefaultSelector.select,  # an event loop
)


_STARTING = _codes(threading.Thread.start)


def _waits(frame: FrameType | None) -> bool:
    if frame is None or frame.f_code not in _WAITING:
        return False
    for _ in range(2):  # Event.wait, and what called it
        frame = None if frame is None else frame.f_back
    # Who starts a thread waits for it to begin, and goes on at once: that is work, which may lead to a deadline.
    return frame is None or frame.f_code not in _STARTING
