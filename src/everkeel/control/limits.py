"""How much may be asked of the plane: rate limits of our own making, and bodies of a bounded size."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from everkeel.control.problems import ProblemError
from everkeel.errors import RateLimitedError
from everkeel.ratelimit.policy import rate_limit

if TYPE_CHECKING:
    from starlette.requests import Request

    from everkeel.runtime.clock import Clock

_MOST_CALLERS = 10_000
ABSENT: Any = object()
_DEEPEST = "the body is nested too deeply"


class Doors:
    """One limit for those who said who they are, one for each address of those who did not (yet)."""

    def __init__(self, per_second: int, strangers_per_second: int, clock: Clock | None) -> None:
        self._known = rate_limit(per_second, burst=2 * per_second, key=str, max_keys=_MOST_CALLERS, clock=clock)
        self._strangers = rate_limit(
            strangers_per_second, burst=4 * strangers_per_second, key=str, max_keys=_MOST_CALLERS, clock=clock
        )

    def pass_known(self, name: str) -> None:
        """Count a request of somebody whose credentials are right."""
        _take(self._known, name)

    def pass_stranger(self, address: str) -> None:
        """Count a request without credentials, or with wrong ones."""
        _take(self._strangers, address)


def _take(limit: Any, key: str) -> None:
    # The state itself is asked: `everkeel.disable()` turns policies off, and this limit is not there for resilience.
    answer = limit.limiter.look(key, 1)
    if isinstance(answer, RateLimitedError):
        wait = max(1, math.ceil(answer.retry_after or 1.0))
        raise ProblemError(
            429, "too-many-requests", f"too many requests; come back in {wait} s", headers={"Retry-After": str(wait)}
        )


async def read_json(request: Request, most: int) -> Any:
    """The body as JSON; `ABSENT` where there is none, which is not null.

    Reads no more than `most` bytes, whatever the headers promise.
    """
    length = request.headers.get("content-length", "0")
    too_large = ProblemError(413, "body-too-large", f"a body may have {most} bytes")
    if length.isdecimal() and int(length[:18]) > most:
        raise too_large
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise too_large
    if not body:
        return ABSENT
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise ProblemError(415, "not-json", f"the body must be application/json (got {kind or 'no content type'!r})")
    try:
        return json.loads(bytes(body), parse_constant=_refuse)
    except RecursionError:
        raise ProblemError(400, "invalid-json", _DEEPEST) from None
    except ValueError as error:
        raise ProblemError(400, "invalid-json", f"the body is not JSON: {error}") from None


def _refuse(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON number")
