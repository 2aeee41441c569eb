"""What happened, as messages for live streams: listens while somebody reads, in bounded memory however much happens.

Rare events (a circuit opened, settings changed) are kept one by one. Those that an outage makes by the thousand (a
rejected call, a retry) are counted, and told once per round with the first of them as the example. Events of healthy
calls are not listened for at all: that would make every call slower.
"""

from __future__ import annotations

from collections import deque
from typing import Any, TypeAlias

from everkeel import events
from everkeel.config.rendering import render
from everkeel.control.board import plain
from everkeel.control.moments import iso
from everkeel.events import Event, SettingChange
from everkeel.runtime.clock import Clock
from everkeel.runtime.events import Subscription, subscribe
from everkeel.runtime.tally import Tally, read, tally
from everkeel.telemetry.fields import event_name, values_of
from everkeel.telemetry.fields import plain as plain_field

Happening: TypeAlias = dict[str, Any]

HEALTHY: frozenset[type[Event]] = frozenset(
    {events.Succeeded, events.Failed, events.Ignored, events.Granted, events.CacheHit, events.BatchSent}
)
"""Of every call, or nearly: not listened for."""
RARE: frozenset[str] = frozenset(
    {
        "Reconfigured", "ModeChanged", "PolicyAdded", "PolicyRemoved", "PolicyReplaced", "CircuitOpened",
        "CircuitHalfOpened", "CircuitClosed", "CircuitForced", "CircuitReset", "LimitChanged", "Drained",
        "ChaosStopped", "FailFastOpened", "FailFastClosed", "ConfigChanged", "ConfigRejected",
    }
)  # fmt: skip
"""Told one by one. Whatever is not named here, also by those who add events of their own, is counted and told once per
round: what is rare and taken for frequent loses details, what is frequent and taken for rare floods the streams."""
MOST_RARE = 5_000
"""Per round; more are dropped, and their number is told."""


def heard_types() -> list[type[Event]]:
    """Every type of event there is now but those of healthy calls."""
    return [kind for kind in Event.__subclasses__() if kind not in HEALTHY]


class Ear:
    """Hears from any thread; `take` hands over what came since the last time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rare: deque[Happening] = deque(maxlen=MOST_RARE)
        self._heard = tally()
        self._taken = 0
        self._frequent: dict[tuple[type[Event], str, str | None], tuple[Happening, Tally]] = {}
        self._subscription: Subscription | None = None

    def open(self) -> None:
        """Begin to listen."""
        first, *rest = heard_types()
        self._subscription = subscribe(self._hear, first, *rest)

    def close(self) -> None:
        """Listen no more."""
        if self._subscription is not None:
            self._subscription.cancel()
            self._subscription = None

    def _hear(self, event: Event) -> None:
        kind = type(event)
        if kind.__name__ in RARE:
            next(self._heard)
            self._rare.append(self._tell(event))
            return
        table, key = self._frequent, (kind, event.policy_type, event.policy)
        known = table.get(key)
        if known is None:
            known = table.setdefault(key, (self._tell(event), tally()))  # atomic: two firsts share one
        next(known[1])

    def _tell(self, event: Event) -> Happening:
        details: dict[str, Any] = {}
        for name, value in values_of(event).items():
            if isinstance(value, tuple) and value and all(isinstance(one, SettingChange) for one in value):
                details[name] = [render(one._asdict()) for one in value]
            else:
                details.update(plain_field(name, value))
        key = getattr(event, "key", None)
        return {
            "event": event_name(type(event)),
            "type": event.policy_type,
            "name": event.policy,
            "time": iso(self._clock.time()),
            "count": 1,
            "key": None if key is None else str(key)[:200],
            "details": plain(details),
        }

    def take(self) -> list[Happening]:
        """What happened since the last time, in the order it was heard; frequent things once each, with their count."""
        taken: list[Happening] = []
        while self._rare:
            try:
                taken.append(self._rare.popleft())
            except IndexError:  # pragma: no cover - only another taker could have been faster
                break
        heard = read(self._heard)
        lost, self._taken = heard - self._taken - len(taken), heard
        frequent, self._frequent = self._frequent, {}
        taken += [{**example, "count": read(count)} for example, count in frequent.values()]
        if lost > 0:
            taken.append(
                {
                    "event": "events_lost",
                    "type": None,
                    "name": None,
                    "time": iso(self._clock.time()),
                    "count": lost,
                    "key": None,
                    "details": {},
                }
            )
        return taken
