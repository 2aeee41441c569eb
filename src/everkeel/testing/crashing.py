"""Ending a process at a named point, to prove that what comes after recovers from it.

Code passes named points (`everkeel.runtime.crash.crash_point`): `relay.after_publish`, `outbox.before_commit`, ...
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from everkeel.runtime import crash

VARIABLE = "EVERKEEL_CRASH_AT"


class Crashed(BaseException):
    """What is raised at a crash point in place of the end of the process."""


@contextmanager
def crash_at(
    name: str, *, times: int = 1, skip: int = 0, act: Callable[[], object] | None = None
) -> Iterator[list[str]]:
    """Raise `Crashed` at a named point, or do something else there; yields the names of all points that were passed.

    Args:
        name: Where.
        times: How often.
        skip: How many passes to let through before.
        act: What to do there, in place of raising.

    >>> from everkeel.runtime.crash import crash_point
    >>> with crash_at("relay.after_publish") as passed:
    ...     crash_point("relay.before_publish")
    ...     try:
    ...         crash_point("relay.after_publish")
    ...     except Crashed:
    ...         print(passed)
    ['relay.before_publish', 'relay.after_publish']
    """
    passed: list[str] = []
    before = crash.hook

    def hook(point: str) -> None:
        passed.append(point)
        if point == name and skip < passed.count(name) <= skip + times:
            if act is None:
                raise Crashed(name)
            act()

    crash.hook = hook
    try:
        yield passed
    finally:
        crash.hook = before


def crash_as_told() -> None:
    """Kill this process, as `kill -9` does, at the point that the variable EVERKEEL_CRASH_AT names (`point` or
    `point:3` for its third pass). For the main function of a process under test."""
    told = os.environ.get(VARIABLE)
    if told:
        name, _, number = told.partition(":")
        left = [int(number or 1)]

        def hook(point: str) -> None:
            if point == name:
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        crash.hook = hook
