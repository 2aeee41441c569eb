"""Moments as people and other machines read them."""

from __future__ import annotations

from datetime import UTC, datetime


def iso(seconds: float) -> str:
    """Seconds since 1970 as RFC 3339, in UTC, with milliseconds.

    >>> iso(0.25)
    '1970-01-01T00:00:00.250Z'
    """
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
