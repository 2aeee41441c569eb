"""A rate limit for each origin that follows what the servers say about theirs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from everkeel.http.client.dialect import Origin
from everkeel.http.hints import ServerHints
from everkeel.ratelimit.policy import RateLimit, rate_limit
from everkeel.runtime.clock import Clock
from everkeel.runtime.settings import Mode

_UNKNOWN = 1_000_000  # permits a second for a server that has said nothing: no limit


class LearnedLimit:
    """Told what responses say; the `policy` lets pass so many requests as the servers do."""

    __slots__ = ("_longest", "_most", "_said", "policy")

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
        self._said: dict[Origin, tuple[int, float]] = {}
        self._most, self._longest = most, longest
        values: dict[str, Any] = {
            "permits": _UNKNOWN,
            "queue": 1000,
            "max_wait": longest,
            "max_keys": most,
            "mode": mode,
            **settings,
        }
        if "permits" not in settings:
            values["limits"] = self._said.get
        self.policy: RateLimit = rate_limit(
            name=name, key=lambda call, *rest: call.origin, clock=clock, replace=replace, **values
        )

    def heard(self, origin: Origin, hints: ServerHints) -> None:
        """A response said something. A wait is believed up to the longest one that is obeyed: servers may lie."""
        if hints.remaining is None:
            return
        reset = None if hints.reset_after is None else min(self._longest, hints.reset_after)
        self._learn(origin, hints, hints.remaining, reset)
        self.policy.correct(remaining=hints.remaining, reset_after=reset, key=origin)

    def rival(self, origin: Origin) -> None:
        """One more request than was asked for is on its way."""
        self.policy.adjust(1, key=origin)

    def _learn(self, origin: Origin, hints: ServerHints, remaining: int, reset: float | None) -> None:
        before = self._said.get(origin)
        # Earlier drafts name no window; the longest time to a reset that was seen is the best guess at it.
        window = hints.window or max(reset or 0.0, 0.0 if before is None else before[1])
        if not hints.limit or not window or hints.limit < remaining or (hints.limit, window) == before:
            return
        if before is None and len(self._said) >= self._most:
            self._said.pop(next(iter(self._said)), None)
        self._said[origin] = (min(hints.limit, _UNKNOWN), window)
