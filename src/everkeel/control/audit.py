"""Who changed what, from what to what: the last changes in memory, every one in the log.

The log record (logger `everkeel.control.audit`) is the durable copy: ship it where logs are kept. `on_audit=` hands
every entry to the application as well.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from everkeel.control.moments import iso
from everkeel.runtime.trouble import report

_log = logging.getLogger("everkeel.control.audit")
KEPT = 1_000


@dataclass(frozen=True, slots=True)
class Entry:
    """One change. `before` and `after` hold what it touched, as JSON has it."""

    id: int
    time: float
    who: str
    action: str
    type: str | None
    name: str | None
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    undo: Mapping[str, Any] | None = None
    """The settings that take it back, as the policy had them; None where there is no way back."""

    def plain(self) -> dict[str, Any]:
        """The entry as JSON has it."""
        return {
            "id": self.id,
            "time": iso(self.time),
            "who": self.who,
            "action": self.action,
            "type": self.type,
            "name": self.name,
            "before": dict(self.before),
            "after": dict(self.after),
            "can_roll_back": self.undo is not None,
        }


class AuditLog:
    """The last changes, newest last."""

    def __init__(self, on_audit: Callable[[dict[str, Any]], object] | None = None) -> None:
        self._entries: deque[Entry] = deque(maxlen=KEPT)
        self._ids = itertools.count(1)
        self._lock = threading.Lock()
        self._on_audit = on_audit

    def record(
        self,
        time: float,
        who: str,
        action: str,
        type: str | None,
        name: str | None,
        before: Mapping[str, Any],
        after: Mapping[str, Any],
        undo: Mapping[str, Any] | None = None,
    ) -> Entry:
        """Keep, log and hand on what was done."""
        with self._lock:
            entry = Entry(next(self._ids), time, who, action, type, name, before, after, undo)
            self._entries.append(entry)
        plain = entry.plain()
        target = f"{type} {name!r}" if name is not None else "the control plane"
        _log.info("%s: %s on %s: %s -> %s", who, action, target, dict(before), dict(after), extra={"everkeel": plain})
        if self._on_audit is not None:
            try:
                self._on_audit(plain)
            except Exception as error:
                report("on_audit raised; the change was made", error)
        return entry

    def entries(self) -> list[Entry]:
        """All that are kept, oldest first."""
        return list(self._entries)

    def find(self, number: int) -> Entry | None:
        """The entry of this id, while it is kept."""
        return next((entry for entry in self.entries() if entry.id == number), None)
