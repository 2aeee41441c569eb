"""What a relay counts, and the names under which it and what waits are measured: the same for whoever shows them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from everkeel.engines.rows import OutboxStats
from everkeel.telemetry.names import Measurement


@dataclass(slots=True)
class Counters:
    """What this relay did since it began."""

    delivered: int = 0
    failed: int = 0
    """Attempts that failed for reasons of the event, and are made again."""
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


def waiting(stats: OutboxStats) -> Iterator[Measurement]:
    """What the store says is waiting, by what for."""
    due = max(0, stats.depth - stats.leased - stats.delayed)
    states = {"due": due, "leased": stats.leased, "delayed": stats.delayed, "parked": stats.parked}
    for state, count in states.items():
        yield Measurement("everkeel.outbox.depth", count, {"state": state})
    yield Measurement("everkeel.outbox.oldest_age", stats.oldest_age, {})


def attempted(counters: Counters) -> Iterator[Measurement]:
    """What became of a relay's attempts. Exporters have the same from events, of all relays of the process."""
    results = {
        "delivered": counters.delivered, "failed": counters.failed, "dead_lettered": counters.dead_lettered,
    }  # fmt: skip
    for result, count in results.items():
        yield Measurement("everkeel.outbox.attempts", count, {"result": result})
    yield Measurement("everkeel.outbox.lease_lost", counters.lease_lost, {})


def working(counters: Counters, in_flight: int, paused: bool) -> Iterator[Measurement]:
    """What only the relay itself knows."""
    yield Measurement("everkeel.relay.in_flight", in_flight, {})
    yield Measurement("everkeel.relay.paused", int(paused), {})
    yield Measurement("everkeel.relay.outages", counters.outages, {})
    yield Measurement("everkeel.relay.purged", counters.purged, {})
