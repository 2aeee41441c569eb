"""What becomes of an event whose handler failed, decided purely: told the error and how often, it answers what to do.

- A business rejection, bytes that are no event, data that does not fit: dead letters, at once.
- One of our own policies said no: again later, as often as it takes; nothing is wrong with the event.
- It came too early: again later, until its patience is over.
- Anything else: again later, with growing delays; after the last attempt, dead letters. But while a breaker around
  the handler is not closed, it is the outage that fails and not the event: no charge.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from everkeel.errors import CircuitOpenError, EventError, NotRetryable, RejectedError, TooEarlyError
from everkeel.runtime.backoff import Backoff


@dataclass(frozen=True, slots=True)
class Redeliver:
    """Try it again after `delay` seconds."""

    delay: float
    charged: bool = True
    """Does this try count?"""
    pause: bool = False
    """Would others of its kind fare the same until then?"""


@dataclass(frozen=True, slots=True)
class Bury:
    """Give up on it."""

    reason: str


Ending: TypeAlias = Redeliver | Bury


@dataclass(frozen=True, slots=True)
class Rules:
    """How often, how long between, and how long at most for an event that came too early."""

    attempts: int
    backoff: Backoff
    patience: float
    max_pause: float


def spent(attempt: int, rules: Rules) -> bool:
    """Were all attempts made already, and none of them lived to say so? Then the event kills its handlers."""
    return attempt > rules.attempts


def after_failure(
    error: Exception, attempt: int, age: float, chance: float, rules: Rules, *, pauses: int = 0, outage: bool = False
) -> Ending:
    """What becomes of an event whose `attempt`-th try ended in `error`; `age` is the time since it happened.

    `chance` (0 to 1) spreads redeliveries, so that what failed together does not come back together. `pauses` is how
    often in a row the handler has paused already; `outage`: a breaker around it is not closed.
    """
    spread = 0.5 + chance / 2
    if isinstance(error, TooEarlyError):
        if age >= rules.patience:
            return Bury("early")
        wait = error.retry_after if error.retry_after is not None else rules.backoff.delay(attempt) * spread
        return Redeliver(wait, charged=False)
    if isinstance(error, RejectedError):
        soon = rules.backoff.delay(pauses + 1) * spread
        wait = soon if error.retry_after is None else error.retry_after
        if isinstance(error, CircuitOpenError) and error.half_open:
            wait = min(wait, soon)  # they may end it in this moment; its word is when they count as lost
        return Redeliver(min(max(wait, 0.0), rules.max_pause), charged=False, pause=True)
    if isinstance(error, EventError):
        return Bury("poison")
    if isinstance(error, NotRetryable):
        return Bury("rejected")
    if outage:
        return Redeliver(rules.backoff.delay(attempt) * spread, charged=False)
    if attempt >= rules.attempts:
        return Bury("attempts")
    return Redeliver(rules.backoff.delay(attempt) * spread)
