"""Leases on ordered work, decided purely: told the time, it answers who may have what.

The outbox and the transport in memory stand on it, and the SQL of the other engines is checked against it.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Sequence
from typing import Generic, TypeVar

from everkeel.engines.rows import Lease

T = TypeVar("T")

PENDING, DELIVERED, BURIED, PARKED = range(4)


class Entry(Generic[T]):
    """One piece of work and what became of it."""

    __slots__ = (
        "attempts", "available_at", "created_at", "delivered_at", "failures", "item", "key", "last_error",
        "lease_until", "seq", "state", "token", "topic",
    )  # fmt: skip

    def __init__(self, seq: int, item: T, topic: str, key: str | None, created_at: float, available_at: float) -> None:
        self.seq, self.item, self.topic, self.key = seq, item, topic, key
        self.created_at, self.available_at = created_at, available_at
        self.state = PENDING
        self.token: str | None = None
        self.lease_until: float | None = None
        self.delivered_at = 0.0
        self.attempts = self.failures = 0
        self.last_error = ""

    def free(self, now: float) -> bool:
        """May it be claimed, as far as it alone decides?"""
        return self.state == PENDING and self.available_at <= now and not self.leased(now)

    def leased(self, now: float) -> bool:
        """Does somebody hold it?"""
        return self.token is not None and self.lease_until is not None and self.lease_until >= now

    def let_go(self) -> None:
        """Nobody holds it any more."""
        self.token = self.lease_until = None


class LeaseQueue(Generic[T]):
    """Entries in order, of which claims take what is due: one lane per key, and a lane of its own for each without."""

    def __init__(self) -> None:
        self._entries: dict[int, Entry[T]] = {}  # in the order of their seq; delivered ones too, until purged
        self._lanes: dict[tuple[str, str], dict[int, Entry[T]]] = {}  # what is not delivered, per key
        self._open: dict[int, Entry[T]] = {}  # pending
        self._next = 1

    # ------------------------------------------------------------------ what is in it

    def append(self, item: T, topic: str, key: str | None, now: float, delay: float = 0.0) -> Entry[T]:
        """Put an entry at the end."""
        entry = Entry(self._next, item, topic, key, now, now + delay)
        self._next += 1
        self._entries[entry.seq] = self._open[entry.seq] = entry
        if key is not None:
            self._lanes.setdefault((topic, key), {})[entry.seq] = entry
        return entry

    def revive(self, entry: Entry[T], item: T, now: float, delay: float = 0.0) -> None:
        """Let an entry begin anew, in its old place."""
        entry.item, entry.state, entry.available_at = item, PENDING, now + delay
        entry.attempts = entry.failures = 0
        entry.let_go()
        self._open[entry.seq] = entry
        if entry.key is not None:
            lane = self._lanes.setdefault((entry.topic, entry.key), {})
            lane[entry.seq] = entry
            self._lanes[entry.topic, entry.key] = dict(sorted(lane.items()))
            self.unpark(entry.topic, entry.key)

    def remove(self, entry: Entry[T]) -> None:
        """Forget an entry."""
        del self._entries[entry.seq]
        self._close(entry)

    def entries(self) -> Iterable[Entry[T]]:
        """All of them, in order."""
        return self._entries.values()

    def pending(self) -> Iterable[Entry[T]]:
        """Those that wait or are leased."""
        return self._open.values()

    def _close(self, entry: Entry[T]) -> None:
        self._open.pop(entry.seq, None)
        if entry.key is not None:
            lane = self._lanes.get((entry.topic, entry.key))
            if lane is not None and lane.pop(entry.seq, None) is not None and not lane:
                del self._lanes[entry.topic, entry.key]

    # ------------------------------------------------------------------ claims

    def claim(
        self,
        now: float,
        limit: int,
        lease: float,
        token: str,
        without: Collection[str] = (),
        *,
        behind: bool = True,
    ) -> list[tuple[Entry[T], Lease]]:
        """Take what is due: the front of every key, then, with `behind`, what stands right behind the fronts."""
        fronts = heapq.nsmallest(limit, self._fronts(now, without), key=lambda entry: (entry.available_at, entry.seq))
        chosen = [(0, place, entry) for place, entry in enumerate(fronts)]
        if behind and len(fronts) < limit:
            for place, front in enumerate(fronts):
                chosen.extend((rank, place, entry) for rank, entry in self._behind(front, now, limit))
        taken = [entry for _, _, entry in heapq.nsmallest(limit, chosen, key=lambda choice: choice[:2])]
        for entry in taken:
            entry.token, entry.lease_until = token, now + lease
            entry.attempts += 1
        return [(entry, Lease(entry.seq, token, entry.attempts)) for entry in taken]

    def _fronts(self, now: float, without: Collection[str]) -> Iterable[Entry[T]]:
        for entry in self._open.values():
            if entry.topic in without or not entry.free(now):
                continue
            if entry.key is None or next(iter(self._lanes[entry.topic, entry.key])) == entry.seq:
                yield entry

    def _behind(self, front: Entry[T], now: float, limit: int) -> Iterable[tuple[int, Entry[T]]]:
        if front.key is None:
            return
        for rank, entry in enumerate(self._lanes[front.topic, front.key].values()):
            if rank >= limit or not entry.free(now):
                return  # whoever stands behind one that cannot go waits with it
            if rank:
                yield rank, entry

    def next_due(self, now: float) -> float | None:
        """When something will be due that is not now, as far as can be known: a delay ends, or a lease."""
        moments = [
            entry.lease_until if entry.leased(now) and entry.lease_until is not None else entry.available_at
            for entry in self._open.values()
            if entry.leased(now) or entry.available_at > now
        ]
        return min(moments, default=None)

    def held(self, lease: Lease, now: float | None = None) -> Entry[T] | None:
        """The entry, if this lease still is the one on it. A lease that ran out but that nobody took still is."""
        entry = self._entries.get(lease.seq)
        return entry if entry is not None and entry.state == PENDING and entry.token == lease.token else None

    def extend(self, leases: Sequence[Lease], now: float, seconds: float) -> frozenset[int]:
        """Hold on for `seconds` from now."""
        kept = [entry for lease in leases if (entry := self.held(lease))]
        for entry in kept:
            entry.lease_until = now + seconds
        return frozenset(entry.seq for entry in kept)

    def deliver(self, lease: Lease, now: float) -> Entry[T] | None:
        """It arrived. Kept, as delivered, until it is removed."""
        entry = self.held(lease)
        if entry is not None:
            entry.state, entry.delivered_at = DELIVERED, now
            entry.let_go()
            self._close(entry)
        return entry

    def give_back(self, lease: Lease, available_at: float | None, *, counted: bool, error: str = "") -> bool:
        """Not now: at `available_at` (None: when it was due anyway). Not counted, it is as if it was never claimed."""
        entry = self.held(lease)
        if entry is None:
            return False
        entry.let_go()
        if available_at is not None:
            entry.available_at = available_at
        if error:
            entry.last_error = error
        if counted:
            entry.failures += 1
        else:
            entry.attempts -= 1
        return True

    def set_aside(self, lease: Lease) -> bool:
        """Take an entry out of the lane of its key, for good: the others need not wait for it, nor it for them."""
        entry = self.held(lease)
        if entry is None:
            return False
        self._close(entry)
        entry.key = None
        self._open[entry.seq] = entry
        self._open = dict(sorted(self._open.items()))
        return True

    def bury(self, entry: Entry[T], *, park: bool) -> None:
        """Never, as far as we can tell. With `park` it keeps its place, and those behind it wait."""
        entry.let_go()
        if entry.key is None or not park:
            self.remove(entry)
            return
        entry.state = BURIED
        self._open.pop(entry.seq, None)
        self.park(1_000_000)

    def park(self, limit: int) -> int:
        """Set aside what stands behind a buried entry."""
        parked = 0
        for lane in self._lanes.values():
            buried = False
            for entry in lane.values():
                buried = buried or entry.state == BURIED
                if buried and entry.state == PENDING and entry.token is None and parked < limit:
                    entry.state = PARKED
                    self._open.pop(entry.seq, None)
                    parked += 1
        return parked

    def unpark(self, topic: str, key: str) -> None:
        """Let those that waited behind a buried entry stand in line again."""
        for entry in self._lanes.get((topic, key), {}).values():
            if entry.state == PARKED:
                entry.state = PENDING
                self._open[entry.seq] = entry
        self._open = dict(sorted(self._open.items()))
