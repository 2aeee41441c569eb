"""The headers that services tell each other about time, limits and repetition with: each read and written here, once.

Pure text to values and back. Readers never raise and answer None for what is missing, malformed or absurd: a header is
somebody else's word, and a bad one must be worth no more than none. Writers raise ValueError, because what *we* send
is our own doing.

All that a request says together is a `RequestHints`, all that a response says a `ServerHints`: see `hints`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import format_datetime, parsedate_to_datetime
from typing import TypeAlias

from everkeel.http.structured import parse_list, parse_string, write_string

RETRY_AFTER = "Retry-After"
RETRY_AFTER_MS = "X-RateLimit-Retry-After-Ms"
RATE_LIMIT = "RateLimit"
RATE_LIMIT_POLICY = "RateLimit-Policy"
OLD_LIMIT = "RateLimit-Limit"
OLD_REMAINING = "RateLimit-Remaining"
OLD_RESET = "RateLimit-Reset"
BACKPRESSURE = "X-Backpressure"
TIMEOUT_MS = "X-Request-Timeout-Ms"
ATTEMPT = "X-Request-Attempt"
PRIORITY = "X-Request-Priority"
IDEMPOTENCY_KEY = "Idempotency-Key"
TRACEPARENT = "traceparent"

MOST_SECONDS = 1e9
"""Thirty years. A longer wait, however many digits it has, is read as this one: never, for whoever asked."""

MOST_ATTEMPTS = 1_000_000
LONGEST_KEY = 255

Lookup: TypeAlias = Callable[[str], str | None]
"""Gives a header's value by its name, whatever its case; None where there is none. `response.headers.get` is one."""

_DECIMAL = re.compile(r"[0-9]+(?:\.[0-9]+)?", re.ASCII)
_WHOLE = re.compile(r"[0-9]+", re.ASCII)
_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}", re.ASCII)
_BARE_KEY = re.compile(r"[!#-+\--~]+", re.ASCII)
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(?:-[!-~]*)?", re.ASCII)


def lookup_in(headers: Mapping[str, str]) -> Lookup:
    """A `Lookup` for a plain dict, whose keys have a case. Mappings of HTTP libraries have their own `get`.

    >>> lookup_in({"retry-after": "3"})("Retry-After")
    '3'
    """
    lower = {name.lower(): value for name, value in headers.items()}
    return lambda name: lower.get(name.lower())


# ---------------------------------------------------------------------- Retry-After


def read_retry_after(value: str | None, *, now: float, date: str | None = None) -> float | None:
    """Seconds to wait by a `Retry-After` in seconds or as a date; 0 for a date that has passed.

    A date is measured against the response's own `Date`, where it has one, because the server's clock made both.
    `now` (seconds since 1970) is what it is measured against otherwise.

    >>> read_retry_after("120", now=0)
    120.0
    >>> read_retry_after("Wed, 21 Oct 2015 07:28:10 GMT", now=0, date="Wed, 21 Oct 2015 07:28:00 GMT")
    10.0
    >>> read_retry_after("soon", now=0) is None
    True
    """
    if value is None:
        return None
    text = value.strip()
    if _DECIMAL.fullmatch(text):
        return _bounded(text)
    moment = read_date(text)
    if moment is None:
        return None
    served = None if date is None else read_date(date)
    return min(MOST_SECONDS, max(0.0, moment - (now if served is None else served)))


def write_retry_after(seconds: float) -> str:
    """Whole seconds, rounded up: who comes back a moment too early is rejected again.

    >>> write_retry_after(0.2)
    '1'
    """
    return str(math.ceil(length(seconds)))


def read_retry_after_ms(value: str | None) -> float | None:
    """Seconds, from the milliseconds of `X-RateLimit-Retry-After-Ms`.

    >>> read_retry_after_ms("250")
    0.25
    """
    if value is None or not _DECIMAL.fullmatch(text := value.strip()):
        return None
    return min(MOST_SECONDS, float(text) / 1000)


def write_retry_after_ms(seconds: float) -> str:
    """Whole milliseconds, rounded up.

    >>> write_retry_after_ms(0.2501)
    '251'
    """
    return str(math.ceil(round(length(seconds) * 1000, 6)))  # 0.251 * 1000 is 251.00000000000003, and means 251


def read_date(value: str) -> float | None:
    """Seconds since 1970 of an HTTP date, in any of its three forms.

    >>> read_date("Thu, 01 Jan 1970 00:01:00 GMT")
    60.0
    """
    text = value.strip()
    if len(text) > 64:
        return None
    try:
        moment = parsedate_to_datetime(text)
        return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def write_date(moment: float) -> str:
    """An HTTP date.

    >>> write_date(60)
    'Thu, 01 Jan 1970 00:01:00 GMT'
    """
    return format_datetime(datetime.fromtimestamp(moment, UTC), usegmt=True)


# ---------------------------------------------------------------------- RateLimit and RateLimit-Policy


@dataclass(frozen=True, slots=True)
class Limit:
    """What is left of a limit: `"name";r=50;t=30`."""

    name: str
    remaining: int
    reset_after: float | None = None


@dataclass(frozen=True, slots=True)
class Quota:
    """What a limit is: `"name";q=100;w=60`."""

    name: str
    permits: int
    per: float | None = None


def read_rate_limit(value: str | None) -> tuple[Limit, ...]:
    """The limits of a `RateLimit` field; those that make no sense are left out, and all where it is malformed.

    >>> read_rate_limit('"default";r=50;t=30')
    (Limit(name='default', remaining=50, reset_after=30.0),)
    >>> read_rate_limit('"default";r=50;t=') == ()
    True
    """
    limits = []
    for item in parse_list(value or "") or ():
        remaining, reset = whole(item.parameters.get("r")), number(item.parameters.get("t"))
        if isinstance(item.value, str) and remaining is not None:
            limits.append(Limit(item.value, remaining, reset))
    return tuple(limits)


def write_rate_limit(*limits: Limit) -> str:
    """A `RateLimit` field; the time is rounded up to whole seconds.

    >>> write_rate_limit(Limit("default", 50, 29.3))
    '"default";r=50;t=30'
    """
    return ", ".join(
        f"{write_string(one.name)};r={permits_in(one.remaining)}"
        + ("" if one.reset_after is None else f";t={math.ceil(length(one.reset_after))}")
        for one in limits
    )


def read_rate_limit_policy(value: str | None) -> tuple[Quota, ...]:
    """The quotas of a `RateLimit-Policy` field.

    >>> read_rate_limit_policy('"burst";q=100;w=60, "daily";q=1000;w=86400')[1]
    Quota(name='daily', permits=1000, per=86400.0)
    """
    quotas = []
    for item in parse_list(value or "") or ():
        permits, window = whole(item.parameters.get("q")), number(item.parameters.get("w"))
        if isinstance(item.value, str) and permits is not None:
            quotas.append(Quota(item.value, permits, window or None))
    return tuple(quotas)


def write_rate_limit_policy(*quotas: Quota) -> str:
    """A `RateLimit-Policy` field; the window is rounded up to whole seconds.

    >>> write_rate_limit_policy(Quota("burst", 100, 60.0))
    '"burst";q=100;w=60'
    """
    return ", ".join(
        f"{write_string(one.name)};q={permits_in(one.permits)}"
        + ("" if one.per is None else f";w={math.ceil(length(one.per))}")
        for one in quotas
    )


# ---------------------------------------------------------------------- single values


def read_backpressure(value: str | None) -> float | None:
    """How hard-pressed a server is, from 0 to 1.

    >>> read_backpressure("0.85"), read_backpressure("7")
    (0.85, None)
    """
    if value is None or not _DECIMAL.fullmatch(text := value.strip()):
        return None
    share = float(text)
    return share if share <= 1 else None


def write_backpressure(share: float) -> str:
    """Three digits are as many as anybody acts on.

    >>> write_backpressure(0.85)
    '0.85'
    """
    if not 0 <= share <= 1:
        raise ValueError(f"backpressure must be from 0 to 1 (got {share!r})")
    return f"{share:.3f}".rstrip("0").rstrip(".")


def read_timeout_ms(value: str | None) -> float | None:
    """Seconds that the caller still waits, from the milliseconds of `X-Request-Timeout-Ms`.

    >>> read_timeout_ms("1500")
    1.5
    """
    return read_retry_after_ms(value)


def write_timeout_ms(seconds: float) -> str:
    """Whole milliseconds, rounded down: the other side must not believe that it has more time than there is.

    >>> write_timeout_ms(1.5), write_timeout_ms(-1)
    ('1500', '0')
    """
    return str(math.floor(round(length(max(0.0, seconds)) * 1000, 6)))


def read_attempt(value: str | None) -> int | None:
    """Which attempt of a call this is; the first is 1.

    >>> read_attempt("2"), read_attempt("0")
    (2, None)
    """
    if value is None or not _WHOLE.fullmatch(text := value.strip()) or len(text) > 10:
        return None
    number = int(text)
    return min(number, MOST_ATTEMPTS) if number >= 1 else None


def write_attempt(number: int) -> str:
    """The number of an attempt, the first being 1."""
    if number < 1:
        raise ValueError(f"the first attempt is 1 (got {number!r})")
    return str(number)


def read_priority(value: str | None) -> str | None:
    """The name of a priority: up to 64 letters, digits, dots, dashes, colons and underscores.

    >>> read_priority(" low ")
    'low'
    """
    if value is None or not _WORD.fullmatch(text := value.strip()):
        return None
    return text


def write_priority(name: str) -> str:
    """The name of a priority."""
    if not _WORD.fullmatch(name):
        raise ValueError(f"a priority must be up to 64 letters, digits, '.', '_', ':' or '-' (got {name!r})")
    return name


def read_idempotency_key(value: str | None) -> str | None:
    """The key of an `Idempotency-Key`: a quoted string, or the bare text that most clients send.

    >>> read_idempotency_key('"8e03978e"'), read_idempotency_key("8e03978e")
    ('8e03978e', '8e03978e')
    """
    if value is None:
        return None
    text = value.strip()
    key = parse_string(text) if text.startswith('"') else text if _BARE_KEY.fullmatch(text) else None
    return key if key and len(key) <= LONGEST_KEY else None


def write_idempotency_key(key: str) -> str:
    """The key as a quoted string, which is what the standard asks for.

    >>> write_idempotency_key("8e03978e")
    '"8e03978e"'
    """
    if not 0 < len(key) <= LONGEST_KEY:
        raise ValueError(f"an idempotency key must have 1 to {LONGEST_KEY} characters (got {len(key)})")
    return write_string(key)


def read_traceparent(value: str | None) -> str | None:
    """A W3C `traceparent` that has the right form, as it is."""
    return value.strip() if value is not None and _TRACEPARENT.fullmatch(value.strip()) else None


def whole(value: object) -> int | None:
    """A parsed value, if it is a whole number of at least 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def number(value: object) -> float | None:
    """A parsed value, if it is a number of at least 0."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        return None
    return float(value)


def _bounded(text: str) -> float:
    return min(MOST_SECONDS, float(text))  # four hundred digits make infinity, which is more than the bound as well


def length(seconds: float) -> float:
    """A length of time that can be written; ValueError where it cannot."""
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"a length of time must be a finite number of at least 0 seconds (got {seconds!r})")
    return min(MOST_SECONDS, float(seconds))


def permits_in(number: int) -> int:
    """A number of permits that can be written; ValueError where it cannot."""
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 10**15:
        raise ValueError(f"permits must be a whole number from 0 up to 10**15 (got {number!r})")
    return number
