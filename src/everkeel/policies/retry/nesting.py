"""Is there a retry around this one? Asked when an attempt failed, never before: a success pays nothing for it.

Two layers of three attempts make nine calls on a dependency that is down. From its second attempt on, an outer retry
has marked the context, also for tasks and threads that copied it. During its first attempt there is nothing but the
stack to tell, and looking there costs a few microseconds: only `nested="outermost"` pays for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from types import CodeType, FrameType
from typing import TYPE_CHECKING

from everkeel.policies.retry.attempt import Mark
from everkeel.policies.retry.core import Run
from everkeel.runtime.state import State
from everkeel.runtime.weave import layers_of

if TYPE_CHECKING:
    from everkeel.policies.retry.state import Retrying

_DEEPEST = 200

BLOCK: ContextVar[str | None] = ContextVar("everkeel.retried_block", default=None)
"""The name of the retry whose block, `with attempt:`, this code is in: a block has no frame to be seen on the stack."""


def marked_outer(before: Mark | None) -> str | None:
    """The name of an outer retry that is past its first attempt (`before` is its mark), or a block."""
    return BLOCK.get() if before is None else before[0].name or "retry"


def mark_on_the_stack(frame: FrameType | None) -> Mark | None:
    """What the innermost retry past its first attempt, with a frame at or below `frame`, would have marked."""
    for _ in range(_DEEPEST):
        if frame is None:
            return None
        for run in reversed(frame.f_locals.values()):  # one woven function may hold several: the inner one comes later
            if type(run) is Run:
                return run.policy, run.attempts + 1, run.rules.attempts
        frame = frame.f_back
    return None


def outer_on_the_stack(own: Retrying, frame: FrameType | None, drivers: frozenset[CodeType]) -> str | None:
    """The name of an outer retry whose frame is at or below `frame`, the one in which `own` is at work."""
    inside: State | None = own
    for _ in range(_DEEPEST):
        if frame is None:
            return None
        retries = _retries_of(frame, drivers)
        if inside in retries:
            retries = retries[: retries.index(inside)]  # one woven function may hold several: those before are around
        else:
            inside = None  # its own frames (a woven one may have called the driver) end here: next time it is around
        if retries:
            return retries[-1].policy.name or "retry"
        frame = frame.f_back
    return None


def _retries_of(frame: FrameType, drivers: frozenset[CodeType]) -> Sequence[State]:
    """The retry states at work in a frame, outermost first."""
    if frame.f_code in drivers:
        return [frame.f_locals["self"]]
    return [layer for layer in layers_of(frame) if layer.word == "retry"]
