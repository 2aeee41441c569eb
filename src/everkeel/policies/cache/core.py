"""What is kept and for how long, and what a lookup decides: told the time, and nothing but that."""

from __future__ import annotations

from copy import copy
from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Any

from everkeel.errors import RejectedError

if TYPE_CHECKING:
    from everkeel.policies.cache.config import CacheConfig

_LONGEST_PAUSE = 1.0  # seconds after a failed load in which a stale answer is served without another one


class Entry:
    """One answer that is kept. All times are those of the policy's clock."""

    __slots__ = ("error", "fresh_until", "negative", "queued", "quiet_until", "soon", "stored_at", "used", "value")

    def __init__(
        self,
        value: Any,
        error: Exception | None = None,
        *,
        stored_at: float,
        fresh_until: float,
        soon: float,
        negative: bool = False,
    ) -> None:
        self.value = value
        """What the call returned."""
        self.error = error
        """What it raised, where failures are kept; a copy without a traceback."""
        self.stored_at = stored_at
        self.fresh_until = fresh_until
        self.soon = soon
        """Until then a lookup need not think: it is fresh, it is no error, and nobody need refresh it yet."""
        self.negative = negative
        """A failure, kept for `negative_ttl`: never served when it is stale."""
        self.quiet_until = -inf
        """After a failed load: until then, no further one as long as this can be served."""
        self.used = 0
        """When it was used last, as a serial number of all uses."""
        self.queued = 0
        """`used` at the time it was put where it is in the order of the store."""

    def answer(self) -> Any:
        """The value; or the error, raised as a copy: one object raised again and again would grow with each raise."""
        if self.error is not None:
            raise copy(self.error)
        return self.value


class Step(Enum):
    """What to do with a call."""

    HIT = "hit"
    """Serve it."""
    AHEAD = "ahead"
    """Serve it, and refresh it in the background: it will expire soon."""
    STALE = "stale"
    """Serve it although it has expired, and refresh it in the background."""
    QUIET = "quiet"
    """Serve it although it has expired, and leave it at that: a load has just failed."""
    MISS = "miss"
    """Load."""


HIT, AHEAD, STALE, QUIET, MISS = Step


def look(rules: CacheConfig, entry: Entry | None, now: float) -> Step:
    """What a lookup that found `entry` does now."""
    if entry is None:
        return MISS
    if now < entry.soon:
        return HIT
    quiet = now < entry.quiet_until
    if now < entry.fresh_until:
        return HIT if entry.negative or quiet or rules.refresh_ahead is None else AHEAD
    if entry.negative:
        return MISS
    if rules.stale_for is not None and now < entry.fresh_until + rules.stale_for:
        return QUIET if quiet else STALE
    return QUIET if quiet and serves_after_error(rules, entry, now) else MISS


def serves_after_error(rules: CacheConfig, entry: Entry | None, now: float) -> bool:
    """May `entry` answer in place of a load that failed?"""
    if entry is None or entry.negative:
        return False
    return now < entry.fresh_until + max(rules.stale_if_error or 0.0, rules.stale_for or 0.0)


def pause_after_error(rules: CacheConfig) -> float:
    """How long a stale answer is served after a failed load before another: a second, or a tenth of a short ttl."""
    return min(_LONGEST_PAUSE, rules.ttl / 10)


def kept(rules: CacheConfig, value: Any, now: float, chance: float) -> Entry:
    """What is kept of a good answer. `chance`, from 0 to 1, decides how much of `jitter` its life is shortened by."""
    life = rules.ttl - (rules.jitter or 0.0) * chance
    soon = now + life * (rules.refresh_ahead or 1.0)
    return Entry(value, stored_at=now, fresh_until=now + life, soon=soon)


def kept_failure(rules: CacheConfig, value: Any, error: Exception | None, now: float) -> Entry | None:
    """What is kept of a failure; None where failures are not kept, or this one cannot be.

    A rejection is never kept: whoever said no decides how long, and says so quickly.
    """
    if rules.negative_ttl is None or isinstance(error, RejectedError):
        return None
    until = now + rules.negative_ttl
    if error is None:
        return Entry(value, stored_at=now, fresh_until=until, soon=until, negative=True)
    try:
        twin = copy(copy(error))
    except Exception:
        return None  # its constructor wants other arguments than it kept
    if type(twin) is not type(error):
        return None
    return Entry(None, twin.with_traceback(None), stored_at=now, fresh_until=until, soon=-inf, negative=True)
