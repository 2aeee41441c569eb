"""What a rejected caller is told: a problem document (RFC 9457) and the headers that go with it. Pure.

Messages are written for people outside: no numbers of ours, no API keys, and of a caller's identity only a digest.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace

from everkeel.errors import (
    BulkheadFullError,
    CircuitOpenError,
    EverkeelError,
    FailFastError,
    FeatureDisabledError,
    RateLimitedError,
    RejectedError,
    RetryExhaustedError,
    ShedError,
    ThrottledError,
    TimeoutExceededError,
    WorkersExhaustedError,
)
from everkeel.http.headers import (
    MOST_SECONDS,
    Limit,
    Quota,
    write_rate_limit,
    write_rate_limit_policy,
    write_retry_after,
    write_retry_after_ms,
)
from everkeel.http.server.asgi import Headers
from everkeel.http.server.keys import client_id

_REGISTERED = "https://iana.org/assignments/http-problem-types#"  # by the draft of the RateLimit fields
QUOTA_EXCEEDED = _REGISTERED + "quota-exceeded"
REDUCED_CAPACITY = _REGISTERED + "temporary-reduced-capacity"
BLANK = "about:blank"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One refusal. `error` is its word for programs, `message` its sentence for people, `reason` the rule it broke.

    >>> problem = Problem(status=429, title="Too Many", error="rate_limited", message="Later.", retry_after=1.2)
    >>> problem.headers()[-2:]
    [(b'retry-after', b'2'), (b'x-ratelimit-retry-after-ms', b'1200')]
    """

    status: int
    title: str
    error: str
    message: str
    type: str = BLANK
    reason: str | None = None
    retry_after: float | None = None
    client_id: str | None = None
    policies: tuple[str, ...] = ()
    more: Headers = field(default_factory=list)

    def document(self) -> dict[str, object]:
        """The members of the document; those that are not known are left out."""
        seconds = milliseconds = None
        if self.retry_after is not None:
            seconds, milliseconds = int(write_retry_after(self._wait)), int(write_retry_after_ms(self._wait))
        members: dict[str, object] = {
            "type": self.type,
            "title": self.title,
            "status": self.status,
            "detail": self.message,
            "error": self.error,
            "message": self.message,
            "reason": self.reason,
            "retry_after_seconds": seconds,
            "retry_after_ms": milliseconds,
            "client_id": self.client_id,
            "violated-policies": list(self.policies) or None,
        }
        return {name: value for name, value in members.items() if value is not None}

    @property
    def _wait(self) -> float:
        return min(MOST_SECONDS, max(0.0, self.retry_after or 0.0))

    def body(self) -> bytes:
        """The document as it is sent."""
        return json.dumps(self.document(), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")

    def headers(self) -> Headers:
        """The headers to send with it, but for the length."""
        headers: Headers = [(b"content-type", b"application/problem+json"), (b"cache-control", b"no-store"), *self.more]
        if self.retry_after is not None:
            headers.append((b"retry-after", write_retry_after(self._wait).encode()))
            headers.append((b"x-ratelimit-retry-after-ms", write_retry_after_ms(self._wait).encode()))
        return headers

    def but(self, **changes: object) -> Problem:
        """The same with something else."""
        return replace(self, **changes)  # type: ignore[arg-type]  # the names are those of the fields


_WORDS: tuple[tuple[type[EverkeelError], str, str], ...] = (
    (CircuitOpenError, "circuit_open", "Something this service depends on is failing."),
    (BulkheadFullError, "bulkhead_full", "As many requests as this service can take are running."),
    (ShedError, "shed", "The service has more to do than it can; this request was not started."),
    (ThrottledError, "throttled", "Something this service depends on rejects requests."),
    (FailFastError, "fail_fast", "Something this service depends on is known not to work."),
    (FeatureDisabledError, "feature_disabled", "This is switched off at the moment."),
    (WorkersExhaustedError, "workers_exhausted", "As many requests as this service can take are running."),
    (RejectedError, "rejected", "This request was not started."),
    (RetryExhaustedError, "retry_exhausted", "It was tried several times, without success."),
)


def problem_of(error: BaseException) -> Problem | None:
    """What a caller is told about one of our errors; None for all others, which are the application's own.

    Too many requests of the caller's own are 429. Everything that stands for a dependency in trouble, or a service with
    too much to do, is 503; out of time is 504. A limit that a server *behind* this one has told us about is no fault of
    the caller's either: 503.

    >>> problem_of(CircuitOpenError("payments", 3.2, 0.52, 100)).status
    503
    >>> problem_of(KeyError("order")) is None
    True
    """
    if isinstance(error, RateLimitedError) and error.origin == "local":
        return _rate_limited(error)
    policies = _named(error)
    if isinstance(error, RateLimitedError):
        return _unavailable("upstream_rate_limited", "Something this service depends on is busy.", error, policies)
    if isinstance(error, TimeoutExceededError):
        return Problem(
            status=504,
            title="Gateway Timeout",
            error="timeout",
            message="There was no answer in time.",
            reason="deadline" if error.limit == "deadline" else None,
            policies=policies,
        )
    for kind, word, message in _WORDS:
        if isinstance(error, kind):
            return _unavailable(word, message, error, policies)
    return None


def _named(error: BaseException) -> tuple[str, ...]:
    name = error.policy if isinstance(error, EverkeelError) else None
    return () if name is None else (name,)


def _rate_limited(error: RateLimitedError) -> Problem:
    denied = error.retry_after is None
    return Problem(
        type=QUOTA_EXCEEDED,
        status=429,
        title="Too Many Requests",
        error="rate_limited",
        message="This caller is not let in." if denied else "There were too many requests in too short a time.",
        reason="denied" if denied else None,
        retry_after=error.retry_after,
        client_id=client_id(error.key),
        policies=_named(error) or ("default",),
        more=_standing(error),
    )


def _standing(error: RateLimitedError) -> Headers:
    """How a caller stands with the limit, as far as the error knows."""
    name, limit, remaining = error.policy or "default", error.limit, error.remaining
    if error.retry_after is None or limit is None or remaining is None or not name.isprintable() or not name.isascii():
        return []
    left = write_rate_limit(Limit(name, remaining, min(MOST_SECONDS, error.retry_after)))
    return [(b"ratelimit", left.encode()), (b"ratelimit-policy", write_rate_limit_policy(Quota(name, limit)).encode())]


def _unavailable(word: str, message: str, error: EverkeelError | BaseException, policies: tuple[str, ...]) -> Problem:
    return Problem(
        type=REDUCED_CAPACITY,
        status=503,
        title="Service Unavailable",
        error=word,
        message=message,
        reason=f"priority {error.priority}" if isinstance(error, ShedError) and error.priority else None,
        retry_after=getattr(error, "retry_after", None),
        policies=policies,
    )
