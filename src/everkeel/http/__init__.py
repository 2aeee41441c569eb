"""HTTP: clients that retry, wait and give up as they should, and servers that say when to come back.

- `headers`, `hints`, `structured`: what services tell each other, read and written once
- `client`: what the clients have in common; `httpx2`, `httpx`, `requests`, `aiohttp`: one for each library
- `server`: ASGI middlewares, for any framework; `fastapi`: dependencies for FastAPI

Nothing here is loaded before it is used.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

if _TYPE_CHECKING:
    from everkeel.http.server.concurrency import ConcurrencyLimitMiddleware as ConcurrencyLimitMiddleware
    from everkeel.http.server.deadlines import DeadlineMiddleware as DeadlineMiddleware
    from everkeel.http.server.errors import ProblemMiddleware as ProblemMiddleware
    from everkeel.http.server.handlers import add_handlers as add_handlers
    from everkeel.http.server.idempotency import IdempotencyMiddleware as IdempotencyMiddleware
    from everkeel.http.server.keys import by_address as by_address
    from everkeel.http.server.keys import by_api_key as by_api_key
    from everkeel.http.server.keys import by_route as by_route
    from everkeel.http.server.keys import by_user as by_user
    from everkeel.http.server.problems import Problem as Problem
    from everkeel.http.server.problems import problem_of as problem_of
    from everkeel.http.server.rate_limits import Admission as Admission
    from everkeel.http.server.rate_limits import RateLimitMiddleware as RateLimitMiddleware
    from everkeel.http.server.setup import Everkeel as Everkeel

# `Everkeel` is a name of the package itself; it is found here too.
__all__ = [
    "Admission",
    "ConcurrencyLimitMiddleware",
    "DeadlineMiddleware",
    "IdempotencyMiddleware",
    "Problem",
    "ProblemMiddleware",
    "RateLimitMiddleware",
    "add_handlers",
    "by_address",
    "by_api_key",
    "by_route",
    "by_user",
    "problem_of",
]

_HOMES = {
    "server.concurrency": "ConcurrencyLimitMiddleware",
    "server.deadlines": "DeadlineMiddleware",
    "server.errors": "ProblemMiddleware",
    "server.handlers": "add_handlers",
    "server.idempotency": "IdempotencyMiddleware",
    "server.keys": "by_address by_api_key by_route by_user",
    "server.problems": "Problem problem_of",
    "server.rate_limits": "Admission RateLimitMiddleware",
    "server.setup": "Everkeel",
}


def __getattr__(name: str) -> object:
    for module, names in _HOMES.items():
        if name in names.split():
            found: object = getattr(_import_module(f"{__name__}.{module}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
