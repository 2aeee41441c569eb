"""The record of one request: what it may do, which attempt it is at, and which responses it has to give back.

Every response that any attempt gets is *held* here until it is known whose it is: the caller's, or nobody's. That is
the one place from which connections are released, whatever happened: a retry, a lost race, an attempt that was given
up on and answered after all.
"""

from __future__ import annotations

import sys
import threading
from contextvars import ContextVar
from typing import Any

from everkeel.errors import HTTPStatusError, TimeoutExceededError
from everkeel.http import headers
from everkeel.http.client.config import KEYED, SAFE, ClientConfig, RequestConfig
from everkeel.http.client.dialect import Dialect
from everkeel.http.hints import RequestHints, ServerHints, write_request
from everkeel.policies.concurrency.priorities import CURRENT as PRIORITY
from everkeel.runtime.cancellation import current_cancellation
from everkeel.runtime.deadline import remaining
from everkeel.runtime.trouble import report

_SLACK = 0.25

CURRENT: ContextVar[Call | None] = ContextVar("everkeel.http.call", default=None)
"""The request under way, for the predicates and hooks of the policies, which are told errors and no arguments."""


class Call:
    """One request of the application, and its attempts."""

    __slots__ = (
        "_declined", "_held", "_lock", "_over", "buffer", "config", "dialect", "key", "method", "options", "origin",
        "request", "sends",
    )  # fmt: skip

    def __init__(
        self, request: Any, config: ClientConfig, dialect: Dialect, options: RequestConfig, *, streamed: bool = False
    ) -> None:
        self.request, self.config, self.dialect, self.options = request, config, dialect, options
        self.method = dialect.method(request)
        self.origin = dialect.origin(request)
        self.key = self._make_key()
        self.buffer = config.buffer if options.buffer is None else options.buffer
        self.buffer = self.buffer and not streamed and not self.upgrades()
        self.sends = 0  # requests on the wire so far
        self._declined: list[HTTPStatusError] = []  # failures that `retry_if` said no to
        self._held: list[Any] = []
        self._over = False
        self._lock = threading.Lock()  # attempts may be in other threads

    def _make_key(self) -> str | None:
        """The idempotency key to add, the same for every attempt; None where there is one, or none is wanted."""
        if self.options.idempotency_key is not None:
            return self.options.idempotency_key
        wanted = self.config.idempotency_keys
        if not wanted or self.method not in KEYED or self.dialect.header(self.request, headers.IDEMPOTENCY_KEY):
            return None
        if callable(wanted):
            return wanted()
        from uuid import uuid4

        return str(uuid4())

    # ------------------------------------------------------------------ what it may do

    def repeatable(self) -> bool:
        """May it be made again: does that change nothing more, and is its body still there?"""
        harmless = (
            self.method in self.config.methods if self.options.idempotent is None else self.options.idempotent
        ) or (self.key is not None or bool(self.dialect.header(self.request, headers.IDEMPOTENCY_KEY)))
        return harmless and self.dialect.replayable(self.request)

    def hedgeable(self) -> bool:
        """May it be made twice at the same time?"""
        wanted = self.method in SAFE and self.options.hedge is not False and not self.upgrades()
        return wanted and self.dialect.in_memory(self.request)

    def upgrades(self) -> bool:
        """Is it the beginning of something else, such as a WebSocket?"""
        return bool(self.dialect.header(self.request, "Upgrade"))

    def may_retry(self, error: BaseException) -> bool:
        """Should another attempt follow this one?"""
        if not self.repeatable():
            return False
        if isinstance(error, HTTPStatusError):
            return not any(error is one for one in self._declined)
        verdict = self._verdict(self.request, error)
        return self.is_network_trouble(error) if verdict is None else verdict

    def _verdict(self, request: Any, outcome: Any) -> bool | None:
        """What `retry_if` says. When it raises, nothing: a bug in it must not repeat a request."""
        if self.config.retry_if is None:
            return None
        try:
            verdict = self.config.retry_if(request, outcome)
        except Exception as broken:
            report("http client: retry_if raised; deciding as without it", broken)
            return None
        return None if verdict is None else bool(verdict)

    def failure(self, request: Any, response: Any, hints: ServerHints, name: str | None) -> HTTPStatusError | None:
        """The error that a response is to the policies; None where it is a good one."""
        config, status = self.config, self.dialect.status(response)
        verdict = self._verdict(request, response)
        if not verdict and status not in config.statuses:
            return None
        wait = hints.retry_after
        if wait is None and status == 429 and hints.remaining == 0:
            wait = hints.reset_after
        error = HTTPStatusError(name, status, wait, self.method, self.dialect.url(request))
        error.response = response
        if verdict is False:
            self._declined.append(error)
        return error

    def is_network_trouble(self, error: BaseException) -> bool:
        """Did the connection fail, or no answer come in time?"""
        return isinstance(error, TimeoutExceededError) or self.dialect.transient(error)

    def is_overload(self, error: BaseException) -> bool:
        """Does this say that the server has too much to do?"""
        if isinstance(error, HTTPStatusError):
            return error.status in (429, 503)
        return isinstance(error, TimeoutExceededError) or self.dialect.timed_out(error)

    # ------------------------------------------------------------------ one attempt

    def prepare(self) -> Any:
        """The request to send now: a copy, with the headers of this attempt."""
        with self._lock:
            self.sends += 1
            number = self.sends
        left = self._left()
        # A sync attempt in a worker is ended by our own limit. The library's comes a moment later, for the thread that
        # is left behind; were it at the same moment, it would be chance whose error the caller gets.
        bound = left if left is None or current_cancellation() is None else left + _SLACK
        return self.dialect.again(self.request, self._headers(number, left), bound)

    def _left(self) -> float | None:
        bound = self.options.attempt_timeout or self.config.attempt_timeout
        left = remaining()
        if left is None or bound is None:
            return bound if left is None else max(0.0, left)
        return max(0.0, min(left, bound))

    def _headers(self, number: int, left: float | None) -> dict[str, str]:
        """What this attempt says about itself; what the application said itself stays, but for the attempt's number."""
        said: dict[str, str] = {}
        if self.key is not None:
            said[headers.IDEMPOTENCY_KEY] = headers.write_idempotency_key(self.key)
        if self.config.send_headers:
            priority = headers.read_priority(self.options.priority or PRIORITY.get() or self.config.priority)
            said |= write_request(RequestHints(timeout=left, attempt=number, priority=priority))
            said |= _trace()
        own = self.dialect.header
        return {name: value for name, value in said.items() if name == headers.ATTEMPT or not own(self.request, name)}

    def change(self, request: Any) -> None:
        """A hook made another request of it, for the attempts to come; None: it is the same, perhaps changed."""
        if request is not None:
            self.request = request

    def raises(self) -> bool:
        """Does a status that counts as a failure leave as an error?"""
        return (self.options.on_status or self.config.on_status) == "raise"

    # ------------------------------------------------------------------ what it holds

    def hold(self, response: Any) -> bool:
        """An attempt got a response. False: nobody waits for it any more, and whoever got it gives it back."""
        with self._lock:
            if self._over:
                return False
            self._held.append(response)
            return True

    def unwanted(self, *, but: Any = None, over: bool = False) -> list[Any]:
        """The responses to give back, all of them `but` one. `over`: what comes from now on is unwanted too."""
        with self._lock:
            self._over = self._over or over
            left = [response for response in self._held if response is not but]
            self._held = [but] if but is not None else []
            return left


def _trace() -> dict[str, str]:
    """The trace under way, where somebody traces: who does has loaded OpenTelemetry."""
    if "opentelemetry" not in sys.modules:
        return {}
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier
