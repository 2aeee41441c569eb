"""When something is on, by the clock on the wall: between two moments, or every day between two times."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, time, timedelta, tzinfo
from math import inf
from typing import Any, TypeAlias

Window: TypeAlias = tuple[datetime | None, datetime | None] | tuple[time, time]
ScheduleLike: TypeAlias = "Window | list[Window] | Schedule"

_ALLOWED = "must be (from, until) as datetimes or as times of day, with a timezone, or a list of such pairs"


@dataclass(frozen=True, slots=True)
class Span:
    """From one moment up to, not including, another; in seconds since 1970."""

    start: float
    end: float

    def covers(self, now: float) -> bool:
        """Is it now?"""
        return self.start <= now < self.end

    def begins_after(self, now: float) -> float | None:
        """The next moment it begins; None when that is past."""
        return self.start if self.start > now else None


@dataclass(frozen=True, slots=True)
class Daily:
    """Every day from one time up to, not including, another; past midnight if that is the earlier one."""

    start: time
    end: time
    zone: tzinfo

    def covers(self, now: float) -> bool:
        """Is it now?"""
        here = datetime.fromtimestamp(now, self.zone).time()
        if self.start < self.end:
            return self.start <= here < self.end
        return here >= self.start or here < self.end

    def begins_after(self, now: float) -> float | None:
        """The next moment it begins."""
        today = datetime.fromtimestamp(now, self.zone).date()
        begins = (
            datetime.combine(today + timedelta(days=days), self.start, self.zone).timestamp() for days in (0, 1, 2)
        )
        return next((moment for moment in begins if moment > now), None)


@dataclass(frozen=True, slots=True)
class Schedule:
    """On while any of its parts is."""

    parts: tuple[Span | Daily, ...]

    def covers(self, now: float) -> bool:
        """Is it on now (seconds since 1970)?

        >>> from datetime import timezone
        >>> office_hours = as_schedule((time(9, tzinfo=timezone.utc), time(17, tzinfo=timezone.utc)))
        >>> office_hours.covers(datetime(2026, 1, 1, 16, 59, tzinfo=timezone.utc).timestamp())
        True
        """
        return any(part.covers(now) for part in self.parts)

    def opens_in(self, now: float) -> float | None:
        """Seconds until it is on again; None when it never is."""
        begins = [moment for part in self.parts if (moment := part.begins_after(now)) is not None]
        return min(begins) - now if begins else None


def as_schedule(value: Any) -> Schedule:
    """What `schedule=` accepts; ValueError for anything else."""
    if isinstance(value, Schedule):
        return value
    windows = value if isinstance(value, list) else [value]
    if not windows:
        raise ValueError(_ALLOWED)
    return Schedule(tuple(_part(window) for window in windows))


def _part(window: Any) -> Span | Daily:
    if not isinstance(window, tuple) or len(window) != 2:
        raise ValueError(_ALLOWED)
    start, end = window
    if isinstance(start, time) and isinstance(end, time):
        if start.tzinfo is None or start.tzinfo != end.tzinfo:
            raise ValueError("must have one timezone for both times of day, as in time(9, tzinfo=timezone.utc)")
        if start == end:
            raise ValueError("must have two different times of day")
        return Daily(start.replace(tzinfo=None), end.replace(tzinfo=None), start.tzinfo)
    begins, ends = _moment(start, -inf), _moment(end, inf)
    if begins >= ends:
        raise ValueError("must begin before it ends")
    return Span(begins, ends)


def _moment(value: Any, always: float) -> float:
    if value is None:
        return always
    if not isinstance(value, datetime):
        raise ValueError(_ALLOWED)
    if value.tzinfo is None:
        raise ValueError("must have a timezone, as in datetime(2026, 6, 1, tzinfo=timezone.utc)")
    return value.timestamp()
