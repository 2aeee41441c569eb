"""Where entries are: in memory by default, or wherever you say."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from everkeel.policies.cache.core import Entry
from everkeel.runtime.trouble import report

if TYPE_CHECKING:
    from everkeel.policies.cache.policy import Cache

_LOOKS = 16  # how many of those that were queued first are looked at to find the one to drop


@runtime_checkable
class Store(Protocol):
    """What a cache asks of a store of your own. Calls come from every thread, and are not awaited: keep them short.

    The times in an `Entry` are those of the policy's clock, which is monotonic: they mean nothing to another process.
    A store that raises is reported and counted, and its call goes on as if nothing had been found.
    """

    def get(self, key: Hashable, /) -> Entry | None:
        """The entry of a key, fresh or not; None where there is none."""
        ...

    def set(self, key: Hashable, entry: Entry, /) -> None:
        """Keep an entry, in place of the key's last one. It is for the store to bound how many it keeps."""
        ...

    def delete(self, key: Hashable, /) -> bool:
        """Forget a key; answers whether it was there."""
        ...

    def clear(self) -> None:
        """Forget every key."""
        ...


class MemoryStore:
    """So many entries, of which the least recently used goes first.

    A hit takes no lock: it writes the number of the use into the entry, and the order is made up for when room is
    needed. The one that goes is then the least recently used of the sixteen that were queued first, and those of them
    that were used since they were queued are queued again. Up to sixteen entries this is exact.
    """

    __slots__ = ("_lock", "entries", "evicted", "max_size")

    def __init__(self, max_size: int) -> None:
        self.max_size = max_size
        self.entries: OrderedDict[Hashable, Entry] = OrderedDict()
        self.evicted = 0
        self._lock = threading.Lock()

    def get(self, key: Hashable, /) -> Entry | None:
        """The entry of a key."""
        return self.entries.get(key)

    def set(self, key: Hashable, entry: Entry, /) -> None:
        """Keep an entry, and drop another one where there is no room."""
        entry.queued = entry.used
        with self._lock:
            self.entries[key] = entry
            self.entries.move_to_end(key)
            self._make_room()

    def _make_room(self) -> None:
        while len(self.entries) > self.max_size:
            looked_at = list(islice(self._oldest(), _LOOKS))
            victim = min(looked_at, key=lambda pair: pair[1].used)[0]
            for key, entry in looked_at:
                if key is victim:
                    del self.entries[key]
                    self.evicted += 1
                elif entry.used != entry.queued:
                    entry.queued = entry.used
                    self.entries.move_to_end(key)

    def _oldest(self) -> Iterator[tuple[Hashable, Entry]]:
        return iter(self.entries.items())

    def delete(self, key: Hashable, /) -> bool:
        """Forget a key."""
        with self._lock:
            return self.entries.pop(key, None) is not None

    def clear(self) -> None:
        """Forget every key. The same dict: woven functions have it by name."""
        with self._lock:
            self.entries.clear()

    def resize(self, max_size: int) -> None:
        """From now on, so many."""
        with self._lock:
            self.max_size = max_size
            self._make_room()

    def after_fork(self) -> None:
        """The thread that held the lock in the parent does not exist here."""
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.entries)


class CarefulStore:
    """A store as a cache uses it: one that raises is reported and counted, and harms no call."""

    __slots__ = ("_policy", "store")

    def __init__(self, policy: Cache, store: Store) -> None:
        self._policy, self.store = policy, store

    def get(self, key: Hashable) -> Entry | None:
        """The entry of a key."""
        try:
            return self.store.get(key)
        except Exception as error:
            self._failed(error)
            return None

    def set(self, key: Hashable, entry: Entry) -> None:
        """Keep an entry."""
        try:
            self.store.set(key, entry)
        except Exception as error:
            self._failed(error)

    def delete(self, key: Hashable) -> bool:
        """Forget a key; answers whether it was there."""
        try:
            return self.store.delete(key)
        except Exception as error:
            self._failed(error)
            return False

    def clear(self) -> None:
        """Forget every key."""
        try:
            self.store.clear()
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._policy.counts.tick("store_errors")
        report(f"the store of {self._policy.label} raised", error)
