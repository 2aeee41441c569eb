"""How long a relay leaves alone what failed, and when it is worth looking again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from everkeel.engines.rows import Claimed
from everkeel.messaging.relay.config import RelayConfig
from everkeel.messaging.relay.core import TopicHealth
from everkeel.runtime.backoff import jittered
from everkeel.runtime.clock import Clock

MOST_AWAY = 10_000
"""Events of which a relay remembers that they found their topic away."""


class Pacing:
    """The delays of one relay. `config` is asked each time: settings may change while it runs."""

    def __init__(self, config: Callable[[], RelayConfig], clock: Clock) -> None:
        self._config, self._clock = config, clock
        self._away: dict[int, int] = {}  # how often an event found its topic away, so far
        self._due: list[float] = []  # when retries of ours are due, so that they need not wait for the poll

    def delay_after(self, failures: int) -> float:
        """Seconds before the next try of an event that failed so often."""
        config = self._config()
        delay = config.backoff.delay(failures)
        return jittered(delay, config.backoff, config.jitter, delay, self._clock.random)

    def outage_delay(self, health: TopicHealth) -> float:
        """Seconds for which a topic that is away is left alone."""
        return self._config().outage_backoff.delay(health.outages + 1)

    def away_again(self, claimed: Claimed) -> float:
        """Seconds for which an event steps aside that found its topic away, perhaps not for the first time."""
        if len(self._away) >= MOST_AWAY:
            self._away.clear()
        times = self._away[claimed.lease.seq] = self._away.get(claimed.lease.seq, 0) + 1
        return self._config().outage_backoff.delay(times)

    def arrived(self, rows: Sequence[Claimed]) -> None:
        """These need not be remembered."""
        if self._away:
            for claimed in rows:
                self._away.pop(claimed.lease.seq, None)

    def due_in(self, delay: float) -> None:
        """A retry of ours is due then."""
        self._due.append(self._clock.monotonic() + delay)

    def look_in(self, topics: Iterable[TopicHealth]) -> float:
        """Seconds until it is worth looking again, if nobody signals before: a delay that is over, or the poll."""
        now = self._clock.monotonic()
        self._due = [moment for moment in self._due if moment > now]
        moments = [*self._due, *(health.until for health in topics if health.until > now)]
        # A hair later than due: the store's clock and ours are not the same.
        return min([self._config().poll, *(moment - now + 0.001 for moment in moments)])
