"""From a storm of faults to the few that matter: what is left of a recording of chaos when nothing more can go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def shrink_faults(recording: dict[str, Any], fails: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """The smallest part of a recording for which `fails` is still true: leave out any one fault, and it no longer is.

    `fails` gets a part of the recording, replays it (`policy.replay(part)`) and answers whether what should not happen
    happens. Halves are tried first, so that a thousand faults of which two matter take fewer than a hundred replays.

    >>> storm = {"faults": [{"call": call, "error": 0} for call in range(1, 100)]}
    >>> def two_in_a_row(part):
    ...     calls = {fault["call"] for fault in part["faults"]}
    ...     return any(call + 1 in calls for call in calls)
    >>> len(shrink_faults(storm, two_in_a_row)["faults"])
    2
    """
    faults: list[Any] = list(recording["faults"])
    if not fails({**recording, "faults": faults}):
        raise ValueError("it does not fail with the whole recording: there is nothing to shrink")
    size = max(1, len(faults) // 2)
    while True:
        at, smaller = 0, False
        while at < len(faults):
            rest = faults[:at] + faults[at + size :]
            if fails({**recording, "faults": rest}):
                faults, smaller = rest, True  # what was behind the gap is at `at` now
            else:
                at += size
        if size == 1 and not smaller:
            return {**recording, "faults": faults}
        size = max(1, size // 2)
