"""A state that is closed for a while: the protected service asked for a pause. Any algorithm can be paused.

A bucket needs no wrapper: it is emptied so far that its next permit comes when the pause is over, and stays the one
number that the woven function decides by. (Whoever keeps it must pause it again when it comes to have another rate.)
The functions here are those of `Algorithm`, for states paused or not.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from everkeel.ratelimit.algorithm import Algorithm, Decision
from everkeel.ratelimit.buckets import TokenBucket


class Paused(NamedTuple):
    """Nothing is granted before `until`."""

    until: int
    state: Any


def pause(algorithm: Algorithm, state: Any, now: int, until: int) -> Any:
    """The state, closed until then."""
    if isinstance(algorithm, TokenBucket):
        return algorithm.empty_until(state, now, until)
    if type(state) is Paused:
        state, until = state.state, max(until, state.until)
    return Paused(until, state)


def acquire(algorithm: Algorithm, state: Any, now: int, permits: int) -> tuple[Any, Decision]:
    """Take `permits`, if they are there and the state is not paused."""
    if type(state) is not Paused:
        return algorithm.acquire(state, now, permits)
    until, inside = state
    if now >= until:
        return algorithm.acquire(inside, now, permits)
    _, later = algorithm.acquire(inside, until, permits)
    _, untouched = algorithm.acquire(inside, until, 0)
    wait = until - now
    return state, Decision(False, wait + later.retry_after, 0, wait + untouched.reset_after)


def adjust(algorithm: Algorithm, state: Any, now: int, permits: int) -> Any:
    """Take more without asking, or (negative) give back."""
    if type(state) is Paused:
        return Paused(state.until, algorithm.adjust(state.state, now, permits))
    return algorithm.adjust(state, now, permits)


def used(algorithm: Algorithm, state: Any, now: int) -> int:
    """How many permits are charged."""
    return algorithm.used(state.state if type(state) is Paused else state, now)


def idle(algorithm: Algorithm, state: Any, now: int) -> bool:
    """Is this state as good as none?"""
    if type(state) is Paused:
        return now >= state.until and algorithm.idle(state.state, now)
    return algorithm.idle(state, now)


def adopt(algorithm: Algorithm, earlier: Algorithm, state: Any, now: int) -> Any:
    """The state of a key that was limited by `earlier` until now."""
    if algorithm is earlier:
        return state
    if type(state) is not Paused:
        return algorithm.adopt(earlier, state, now)
    kept = algorithm.adopt(earlier, state.state, now)
    return kept if now >= state.until else pause(algorithm, kept, now, state.until)
