"""All that a request says about itself, and all that a response says about its server, as one value each.

What stands in which header is the business of `headers`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from everkeel.http.headers import (
    ATTEMPT,
    BACKPRESSURE,
    IDEMPOTENCY_KEY,
    OLD_LIMIT,
    OLD_REMAINING,
    OLD_RESET,
    PRIORITY,
    RATE_LIMIT,
    RATE_LIMIT_POLICY,
    RETRY_AFTER,
    RETRY_AFTER_MS,
    TIMEOUT_MS,
    TRACEPARENT,
    Limit,
    Lookup,
    Quota,
    length,
    number,
    permits_in,
    read_attempt,
    read_backpressure,
    read_date,
    read_idempotency_key,
    read_priority,
    read_rate_limit,
    read_rate_limit_policy,
    read_retry_after,
    read_retry_after_ms,
    read_timeout_ms,
    read_traceparent,
    whole,
    write_attempt,
    write_backpressure,
    write_idempotency_key,
    write_priority,
    write_rate_limit,
    write_rate_limit_policy,
    write_retry_after,
    write_retry_after_ms,
    write_timeout_ms,
)
from everkeel.http.structured import parse_dictionary, parse_list

_EPOCH = 1e8  # a "reset" beyond three years is no length of time, but a moment since 1970


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestHints:
    """What a request says about itself. `timeout`: the seconds that its caller still waits."""

    timeout: float | None = None
    attempt: int | None = None
    priority: str | None = None
    idempotency_key: str | None = None
    traceparent: str | None = None


def read_request(get: Lookup) -> RequestHints:
    """What the headers of a request say.

    >>> from everkeel.http.headers import lookup_in
    >>> read_request(lookup_in({"X-Request-Timeout-Ms": "1500", "X-Request-Attempt": "two"}))
    RequestHints(timeout=1.5, attempt=None, priority=None, idempotency_key=None, traceparent=None)
    """
    return RequestHints(
        timeout=read_timeout_ms(get(TIMEOUT_MS)),
        attempt=read_attempt(get(ATTEMPT)),
        priority=read_priority(get(PRIORITY)),
        idempotency_key=read_idempotency_key(get(IDEMPOTENCY_KEY)),
        traceparent=read_traceparent(get(TRACEPARENT)),
    )


def write_request(hints: RequestHints) -> dict[str, str]:
    """The headers that say so.

    >>> write_request(RequestHints(timeout=1.5, attempt=2))
    {'X-Request-Timeout-Ms': '1500', 'X-Request-Attempt': '2'}
    """
    headers: dict[str, str] = {}
    if hints.timeout is not None:
        headers[TIMEOUT_MS] = write_timeout_ms(hints.timeout)
    if hints.attempt is not None:
        headers[ATTEMPT] = write_attempt(hints.attempt)
    if hints.priority is not None:
        headers[PRIORITY] = write_priority(hints.priority)
    if hints.idempotency_key is not None:
        headers[IDEMPOTENCY_KEY] = write_idempotency_key(hints.idempotency_key)
    if hints.traceparent is not None:
        headers[TRACEPARENT] = hints.traceparent
    return headers


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerHints:
    """What a response says about the server: when to come back, what is left, how hard-pressed it is.

    `retry_after`: the seconds that the server asks for. `remaining`, `reset_after`, `limit` and `window` are those
    of the tightest limit. `backpressure` is from 0 to 1.
    """

    retry_after: float | None = None
    remaining: int | None = None
    reset_after: float | None = None
    limit: int | None = None
    window: float | None = None
    backpressure: float | None = None
    name: str | None = None


NOTHING = ServerHints()

SPOKEN = frozenset(
    name.lower()
    for name in (
        RETRY_AFTER,
        RETRY_AFTER_MS,
        RATE_LIMIT,
        RATE_LIMIT_POLICY,
        OLD_REMAINING,
        f"X-{OLD_REMAINING}",
        BACKPRESSURE,
    )
)
"""Without any of these a response says nothing: most do not, and need not be looked through."""


def read_response(get: Lookup, *, now: float) -> ServerHints:
    """What the headers of a response say. `now`: seconds since 1970, for dates of servers that send no `Date`.

    The milliseconds win over `Retry-After`, which is the same rounded up. Of several limits the one with the least
    left counts.

    >>> from everkeel.http.headers import lookup_in
    >>> read_response(lookup_in({"Retry-After": "2", "RateLimit": '"default";r=0;t=9'}), now=0).retry_after
    2.0
    """
    wait = read_retry_after_ms(get(RETRY_AFTER_MS))
    if wait is None:
        wait = read_retry_after(get(RETRY_AFTER), now=now, date=get("Date"))
    tightest, quota = _limits(get, now)
    pressure = read_backpressure(get(BACKPRESSURE))
    if wait is None and tightest is None and quota is None and pressure is None:
        return NOTHING
    return ServerHints(
        retry_after=wait,
        remaining=None if tightest is None else tightest.remaining,
        reset_after=None if tightest is None else tightest.reset_after,
        limit=None if quota is None else quota.permits,
        window=None if quota is None else quota.per,
        backpressure=pressure,
        name=(tightest.name if tightest is not None else quota.name if quota is not None else None) or None,
    )


def write_response(hints: ServerHints, *, older: bool = False) -> dict[str, str]:
    """The headers that say so. `older`: the `RateLimit-Limit`, `-Remaining` and `-Reset` of earlier drafts as well.

    >>> write_response(ServerHints(retry_after=0.2, remaining=0, reset_after=0.2))
    {'Retry-After': '1', 'X-RateLimit-Retry-After-Ms': '200', 'RateLimit': '"default";r=0;t=1'}
    """
    headers: dict[str, str] = {}
    name = hints.name or "default"
    if hints.retry_after is not None:
        headers[RETRY_AFTER] = write_retry_after(hints.retry_after)
        headers[RETRY_AFTER_MS] = write_retry_after_ms(hints.retry_after)
    if hints.remaining is not None:
        headers[RATE_LIMIT] = write_rate_limit(Limit(name, hints.remaining, hints.reset_after))
    if hints.limit is not None:
        headers[RATE_LIMIT_POLICY] = write_rate_limit_policy(Quota(name, hints.limit, hints.window))
    if older:
        if hints.limit is not None:
            headers[OLD_LIMIT] = str(permits_in(hints.limit))
        if hints.remaining is not None:
            headers[OLD_REMAINING] = str(permits_in(hints.remaining))
        if hints.reset_after is not None:
            headers[OLD_RESET] = str(math.ceil(length(hints.reset_after)))
    if hints.backpressure is not None:
        headers[BACKPRESSURE] = write_backpressure(hints.backpressure)
    return headers


def _limits(get: Lookup, now: float) -> tuple[Limit | None, Quota | None]:
    """The tightest limit and its quota, by the newest of the headers that are there."""
    limits, quotas = read_rate_limit(get(RATE_LIMIT)), read_rate_limit_policy(get(RATE_LIMIT_POLICY))
    if limits:
        tightest = min(limits, key=lambda one: (one.remaining, -(one.reset_after or 0.0)))
        return tightest, next((one for one in quotas if one.name == tightest.name), None)
    remaining, reset, permits = _older(get, now)
    quota = quotas[0] if quotas else None if permits is None else Quota("", permits)
    return (None if remaining is None else Limit("", remaining, reset)), quota


def _older(get: Lookup, now: float) -> tuple[int | None, float | None, int | None]:
    """Remaining, reset and limit as earlier drafts had them: one dictionary, or three fields, with an X- or without."""
    fields = parse_dictionary(get(RATE_LIMIT) or "") or {}
    if "remaining" in fields:
        return whole(fields["remaining"]), number(fields.get("reset")), whole(fields.get("limit"))
    for prefix in ("", "X-"):
        remaining = _first(get(prefix + OLD_REMAINING))
        if remaining is not None and remaining >= 0:
            reset = number(_first(get(prefix + OLD_RESET)))
            if reset is not None and reset > _EPOCH:
                served = read_date(get("Date") or "")
                reset = max(0.0, reset - (now if served is None else served))
            return int(remaining), reset, whole(_first(get(prefix + OLD_LIMIT)))
    return None, None, None


def _first(value: str | None) -> int | float | None:
    """The first number of a list: `RateLimit-Limit: 100, 100;w=60` says 100."""
    items = parse_list(value or "")
    if not items or isinstance(items[0].value, str | bool):
        return None
    return items[0].value
