"""Who may move a virtual clock, and when: the rule by which several threads and event loops share one.

Whoever would wait is *parked* with a deadline. When nothing has happened for a moment of real time (the grace), the one
with the earliest deadline moves the clock there. Whoever's deadline the clock passes learns in that very moment whether
what it waited for had happened in time, so the verdict does not depend on which thread the system wakes first.
"""

from __future__ import annotations

import threading
from math import inf
from time import monotonic as real_monotonic


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

    __slots__ = ("grace", "home", "lock", "loops", "now", "parked", "patience", "stirred")

    def __init__(self, now: float, grace: float, patience: float) -> None:
        self.now, self.grace, self.patience = now, grace, patience
        self.home = threading.get_ident()
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
            if seconds <= 0 or (alone and here == self.home):
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
        """Is it my turn to move the clock to my deadline? Whoever is impatient no longer heeds busy loops."""
        if me.deadline == inf or me is not min(self.parked, key=_deadline):
            return False
        return impatient or not self.busy()

    def busy(self) -> bool:
        """Is a loop of this clock running callbacks, which may yet arm an earlier timer?"""
        return not self.loops <= self.waiting()

    def waiting(self) -> set[int]:
        """The threads that are parked."""
        return {parked.thread for parked in self.parked}


def _deadline(parked: Parked) -> float:
    return parked.deadline
