"""What a relay counts."""

from __future__ import annotations

from dataclasses import dataclass

from everkeel.engines.rows import OutboxStats


@dataclass(slots=True)
class Counters:
    """What this relay did since it began."""

    delivered: int = 0
    failed: int = 0
    """Attempts that failed for reasons of the event."""
    dead_lettered: int = 0
    lease_lost: int = 0
    """Somebody else had taken over when we wanted to write down the end."""
    outages: int = 0
    purged: int = 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RelayStats:
    """A relay's numbers, and the store's."""

    outbox: OutboxStats
    delivered: int
    failed: int
    dead_lettered: int
    lease_lost: int
    outages: int
    purged: int
    in_flight: int
    paused: bool
