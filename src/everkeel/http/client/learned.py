"""A rate limit for each origin that follows what the servers say about theirs.

Only what a server says is left counts, and only until its reset: its window may begin anew at any time, so a rate of
our own making would hold back what it would gladly take. `Countdown` decides, the policy closes and
queues.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from everkeel.http.client.dialect import Origin
from everkeel.http.hints import ServerHints
from everkeel.ratelimit.policy import RateLimit, rate_limit
from everkeel.runtime.clock import DEFAULT, Clock
from everkeel.runtime.settings import Mode

_UNLIMITED = 1_000_000  # permits a second: more than any client makes requests
_SAME_RESET = 1.5  # servers round to seconds, and answers take time: resets so close are one and the same


class Countdown:
    """How many requests are left before a server's limit. Pure: told the time, what is sent, and what comes back."""

    __slots__ = ("left", "reset_at")

    def __init__(self, left: int, reset_at: float) -> None:
        self.left, self.reset_at = left, reset_at

    def heard(self, left: int, reset_at: float, now: float) -> None:
        """The server says so. Within one window it can only lower our count, which knows what is still under way."""
        again = now >= self.reset_at or reset_at > self.reset_at + _SAME_RESET
        self.left = left if again else min(self.left, left)
        self.reset_at = reset_at

    def sent(self, now: float) -> float | None:
        """A request goes out. Seconds to send no other, if it was the last one."""
        if now >= self.reset_at:
            return None
        self.left -= 1
        return self.reset_at - now if self.left <= 0 else None


class LearnedLimit:
    """Told what responses say; the `policy` lets pass so many requests as the servers do."""

    __slots__ = ("_clock", "_lock", "_longest", "_most", "_said", "policy")

    def __init__(
        self,
        name: str | None,
        settings: Mapping[str, Any],
        *,
        longest: float,
        most: int,
        mode: Mode,
        clock: Clock | None,
        replace: bool = False,
    ) -> None:
        self._said: dict[Origin, Countdown] = {}
        self._lock = threading.Lock()
        self._most, self._longest, self._clock = most, longest, clock or DEFAULT
        values: dict[str, Any] = {
            "permits": _UNLIMITED,
            "queue": 1000,
            "max_wait": longest,
            "max_keys": most,
            "mode": mode,
            **settings,
        }
        self.policy: RateLimit = rate_limit(
            name=name, key=lambda call, *rest: call.origin, clock=clock, replace=replace, **values
        )

    def heard(self, origin: Origin, hints: ServerHints) -> None:
        """A response said something. A wait is believed up to the longest one that is obeyed: servers may lie."""
        if hints.remaining is None or hints.reset_after is None:
            return
        reset = min(self._longest, hints.reset_after)
        now = self._clock.monotonic()
        with self._lock:
            known = self._said.get(origin)
            if known is None:
                if len(self._said) >= self._most:
                    del self._said[next(iter(self._said))]
                known = self._said[origin] = Countdown(hints.remaining, now + reset)
            known.heard(hints.remaining, now + reset, now)
        if hints.remaining == 0:
            self.policy.correct(remaining=0, reset_after=reset, key=origin)

    def sent(self, origin: Origin) -> None:
        """A request is on its way."""
        if origin not in self._said:
            return
        with self._lock:
            known = self._said.get(origin)
            pause = None if known is None else known.sent(self._clock.monotonic())
        if pause is not None:
            self.policy.correct(remaining=0, reset_after=pause, key=origin)
