"""How a caller stands with its limits, as response headers. Pure, and quick: it is written on every response.

`everkeel.http.headers` says the same, for anybody to read; a test holds the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from everkeel.errors import ConfigError
from everkeel.http.server.asgi import Headers
from everkeel.http.structured import write_string
from everkeel.ratelimit.policy import RateLimit, Standing


def name_in_header(limit: RateLimit) -> bytes:
    """The limit's name as the standard's header fields have it: a quoted string."""
    name = limit.name or "default"
    try:
        return write_string(name).encode("ascii")
    except ValueError:
        raise ConfigError(limit.label, "name", "must be printable ASCII to stand in a header", repr(name)) from None


def standing_headers(standings: Sequence[tuple[bytes, Standing]], *, older: bool) -> Headers:
    """`RateLimit` and `RateLimit-Policy`, and the three fields that they had before as well, where those are wanted.

    >>> standing_headers([(b'"api"', Standing(permits=100, per=60.0, remaining=99, reset_after=0.6))], older=False)
    [(b'ratelimit', b'"api";r=99;t=1'), (b'ratelimit-policy', b'"api";q=100;w=60')]
    """
    if len(standings) == 1:  # nearly always
        name, (permits, per, left, reset) = standings[0]
        headers = [
            (b"ratelimit", b"%b;r=%d;t=%d" % (name, left, ceil(reset))),
            (b"ratelimit-policy", b"%b;q=%d;w=%d" % (name, permits, ceil(per))),
        ]
    else:
        limits = [b"%b;r=%d;t=%d" % (name, one.remaining, ceil(one.reset_after)) for name, one in standings]
        quotas = [b"%b;q=%d;w=%d" % (name, one.permits, ceil(one.per)) for name, one in standings]
        headers = [(b"ratelimit", b", ".join(limits)), (b"ratelimit-policy", b", ".join(quotas))]
    if older:
        tightest = min((one for _, one in standings), key=lambda one: (one.remaining, -one.reset_after))
        headers += [
            (b"ratelimit-limit", b"%d" % tightest.permits),
            (b"ratelimit-remaining", b"%d" % tightest.remaining),
            (b"ratelimit-reset", b"%d" % ceil(tightest.reset_after)),
        ]
    return headers
