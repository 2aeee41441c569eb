"""How fast a client may go, by what its server says: told the time and the responses, answers how long to wait.

Pure: no clock, no sleep, no lock. The adaptive client and the decorator drive it, sync and async.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from everkeel.http.headers import Lookup, lookup_in
from everkeel.http.hints import NOTHING, ServerHints, read_response
from everkeel.runtime.settings import Choice, Count, Duration, Flag, Number, Settings, Share, setting

FULL_PRESSURE = 1.0
"""Seconds between calls when the server is as hard-pressed as can be. Less pressure, less waiting, down to a tenth."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AdaptiveConfig(Settings):
    """The settings of an adaptive client; `AdaptiveClient` says what each is for."""

    policy_type: ClassVar[str] = "adaptive client"

    strategy: Literal["queue", "reject"] = setting(Choice("queue", "reject"), default="queue")
    attempts: int = setting(Count(at_least=1), default=4)
    backoff_multiplier: float = setting(Number(at_least=0), default=1.0)
    max_wait: float = setting(Duration(zero=True), default=60.0)
    default_wait: float = setting(Duration(zero=True), default=1.0)
    respect_backpressure: bool = setting(Flag(), default=True)
    backpressure_threshold: float = setting(Share(zero=True), default=0.8)


@dataclass(frozen=True, slots=True)
class Refusal:
    """The server did not do what it was asked: it says when to come back, and how it is."""

    retry_after: float
    hints: ServerHints


class Pace:
    """What is known about one server."""

    __slots__ = ("backpressure", "blocked_until", "remaining", "rules")

    def __init__(self, rules: AdaptiveConfig) -> None:
        self.rules = rules
        self.blocked_until: float | None = None
        self.backpressure: float | None = None
        self.remaining: int | None = None

    def retry_after(self, now: float) -> float:
        """Seconds until the server wants to hear from us again; 0 when it is open to us."""
        return 0.0 if self.blocked_until is None else max(0.0, self.blocked_until - now)

    def slow_down(self) -> float:
        """Seconds to leave before a call because the server is hard-pressed, though it has not said no yet."""
        rules, pressure = self.rules, self.backpressure
        if not rules.respect_backpressure or pressure is None or pressure < rules.backpressure_threshold:
            return 0.0
        room = 1 - rules.backpressure_threshold
        over = 1.0 if room <= 0 else (pressure - rules.backpressure_threshold) / room
        return min(rules.max_wait, FULL_PRESSURE * (0.1 + 0.9 * over) * rules.backoff_multiplier)

    def begin(self) -> None:
        """A call begins: one less is left, until the server says how many."""
        if self.remaining:
            self.remaining -= 1

    def heard(self, status: int, hints: ServerHints, now: float) -> Refusal | None:
        """A response came. The refusal, where it is one."""
        if hints.backpressure is not None:
            self.backpressure = hints.backpressure
        if hints.remaining is not None:
            self.remaining = hints.remaining
        refused = status == 429 or (status == 503 and hints.retry_after is not None)
        if refused:
            wait = self._asked(hints) * self.rules.backoff_multiplier
            self._block(now, wait)
            return Refusal(wait, hints)
        if hints.remaining == 0 and hints.reset_after is not None:
            self._block(now, hints.reset_after)
        return None

    def _asked(self, hints: ServerHints) -> float:
        if hints.retry_after is not None:
            return hints.retry_after
        if hints.remaining == 0 and hints.reset_after is not None:
            return hints.reset_after
        return self.rules.default_wait

    def _block(self, now: float, wait: float) -> None:
        # No longer than the longest wait: a server that says "in thirty years" by mistake is asked again after it.
        until = now + min(wait, self.rules.max_wait)
        if self.blocked_until is None or until > self.blocked_until:
            self.blocked_until = until


def answer_in(outcome: Any, now: float) -> tuple[int, ServerHints] | None:
    """Status and hints of a response, or of the error that `raise_for_status` made of one; None where it is neither.

    Knows httpx2, httpx, requests and aiohttp by what their responses have in common.
    """
    response = outcome
    if isinstance(outcome, BaseException):
        response = getattr(outcome, "response", None)  # requests' responses are false when they are errors
        if response is None:
            response = outcome  # aiohttp's errors have a status and headers themselves
    status = getattr(response, "status_code", None)
    if status is None:
        status = getattr(response, "status", None)
    if isinstance(status, bool) or not isinstance(status, int):
        return None
    get = _lookup(getattr(response, "headers", None))
    return status, NOTHING if get is None else read_response(get, now=now)


def _lookup(headers: Any) -> Lookup | None:
    if headers is None or not callable(getattr(headers, "get", None)):
        return None
    return lookup_in(headers) if type(headers) is dict else headers.get
