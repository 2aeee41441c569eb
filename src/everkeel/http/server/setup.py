"""All of it in one line: `Everkeel(app, config="everkeel.yaml").with_telemetry().with_protection(rate_limit=100)`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from os import PathLike
from typing import TYPE_CHECKING, Any, Self

from everkeel.errors import ConfigError
from everkeel.http.server.asgi import ASGIApp, Receive, Scope, Send, path_of
from everkeel.http.server.concurrency import AnyPlaces, ConcurrencyLimitMiddleware
from everkeel.http.server.deadlines import DeadlineMiddleware
from everkeel.http.server.errors import ProblemMiddleware
from everkeel.http.server.handlers import add_handlers
from everkeel.http.server.idempotency import IdempotencyMiddleware
from everkeel.http.server.keys import Key, by_address, by_api_key
from everkeel.http.server.rate_limits import AnyLimit, RateLimitMiddleware
from everkeel.idempotency.store import IdempotencyStore
from everkeel.policies.concurrency.policy import concurrency_limit
from everkeel.ratelimit.policy import rate_limit as make_rate_limit
from everkeel.runtime.settings import Seconds

if TYPE_CHECKING:
    from everkeel.control import ControlPlane

Layer = Callable[[ASGIApp], ASGIApp]

# Outermost first, whatever order they are asked for in: operators reach the service while it sheds; waiting in line
# counts as time; what is over its limit takes no place; a shed request claims no key.
_ORDER = ("control plane", "metrics", "problems", "deadline", "rate limit", "concurrency", "idempotency")


class Everkeel:
    """Protection, telemetry and a control plane around an ASGI application.

    FastAPI and Starlette applications are protected in place: go on using `app`. Around anything else, this object is
    the application to serve.

    Args:
        app: The application.
        config: A configuration file, loaded before anything else is made, so that it applies to all of it.
        watch: Reload the file when it changes.

    >>> async def app(scope, receive, send): ...
    >>> service = Everkeel(app).with_protection(rate_limit=100, per=60)
    """

    def __init__(self, app: Any, *, config: str | PathLike[str] | None = None, watch: bool = False) -> None:
        self.app = app
        self._inner: ASGIApp = app  # what the layers go around
        self._whole: ASGIApp | None = None
        self._layers: dict[str, Layer] = {}
        self._closing = ExitStack()
        if config is not None:
            from everkeel.config import load

            load(config, watch=watch)
        add_middleware = getattr(app, "add_middleware", None)
        if add_middleware is not None:
            add_middleware(_Inside, everkeel=self)
        if hasattr(app, "add_exception_handler"):
            add_handlers(app)
        else:
            self._layers["problems"] = ProblemMiddleware

    # ------------------------------------------------------------------ what to put around it

    def with_protection(
        self,
        *,
        rate_limit: int | AnyLimit | None = None,
        per: Seconds = 60.0,
        key: Key | None = None,
        routes: Mapping[str, AnyLimit | None] | None = None,
        concurrency: bool | AnyPlaces = True,
        deadline: bool | Seconds = True,
        idempotency: bool | IdempotencyStore = False,
        trusted_proxies: Iterable[str] = (),
        exclude: Iterable[str] = (),
    ) -> Self:
        """Refuse what is too much or too late, and what was done before, each with the reason and when to come back.

        Args:
            rate_limit: How many requests each caller may make per `per`, or a limit of your own; None for no limit.
            per: In how many seconds. A minute.
            key: Whose limit it is: the client's address by default.
            routes: Limits of their own for some routes; see `RateLimitMiddleware`.
            concurrency: True for a limit that finds out by itself how many requests may run at once; or one of your
                own.
            deadline: True to respect what callers say (`X-Request-Timeout-Ms`); seconds, for those who say nothing.
            idempotency: True to answer a repeated `Idempotency-Key` from this process's memory; or a store, which more
                than one process can share.
            trusted_proxies: The proxies in front of the service, whose headers say whose request it is.
            exclude: Routes that are never refused: health checks.
        """
        excluded, whose = list(exclude), by_address(trusted=trusted_proxies)
        if isinstance(rate_limit, int):
            rate_limit = make_rate_limit(rate_limit, "http", per=per, key=key or whose, replace=True)
        elif key is not None:
            raise ConfigError("with_protection", "key", "must be set on the rate_limit itself", repr(key))
        if rate_limit is not None:
            limit = rate_limit
            self._layers["rate limit"] = lambda app: RateLimitMiddleware(app, limit, routes=routes, exclude=excluded)
        elif routes:
            raise ConfigError("with_protection", "routes", "must not be set without rate_limit", repr(routes))
        if concurrency is not False:
            places = concurrency_limit("http", replace=True) if concurrency is True else concurrency
            self._layers["concurrency"] = lambda app: ConcurrencyLimitMiddleware(app, places, exclude=excluded)
        if deadline is not False:
            default = None if deadline is True else deadline
            self._layers["deadline"] = lambda app: DeadlineMiddleware(app, default=default, exclude=excluded)
        if idempotency is not False:
            store = None if idempotency is True else idempotency
            caller = by_api_key("Authorization", otherwise=by_api_key(otherwise=whose))
            self._layers["idempotency"] = lambda app: IdempotencyMiddleware(app, store, caller=caller)
        return self._changed()

    def with_telemetry(self, *, logs: bool = True, opentelemetry: bool = False, prometheus: str | None = None) -> Self:
        """Let policies be seen.

        Args:
            logs: Write what they do to the standard library's logging.
            opentelemetry: Metrics and spans, to whatever providers the process has.
            prometheus: The path to serve metrics at, as "/metrics". Whoever can reach the service can read them there.
        """
        if logs:
            from everkeel.telemetry import log_events

            self._closing.enter_context(log_events())
        if opentelemetry:
            from everkeel.telemetry import EverkeelInstrumentor

            instrumentor = EverkeelInstrumentor()
            instrumentor.instrument()
            self._closing.callback(instrumentor.uninstrument)
        if prometheus is not None:
            if not prometheus.startswith("/"):
                raise ConfigError("with_telemetry", "prometheus", "must be a path such as '/metrics'", repr(prometheus))
            from everkeel.telemetry import metrics_app

            metrics, path = metrics_app(), prometheus
            self._layers["metrics"] = lambda app: _at(path, metrics, app)
        return self._changed()

    def with_control_plane(self, plane: ControlPlane | None = None, **options: Any) -> Self:
        """See the policies and change them over HTTP, below `/everkeel`, also while the service sheds.

        Args:
            plane: A control plane that is made already.
            options: What `everkeel.control.ControlPlane` takes, otherwise: tokens above all, since it lets nobody in
                without.
        """
        if plane is None:
            from everkeel.control import ControlPlane

            plane = ControlPlane(**options)
        elif options:
            raise ConfigError("with_control_plane", None, f"has a plane, and so takes no {', '.join(options)}", None)
        self._layers["control plane"] = plane.beside
        return self._changed()

    def close(self) -> None:
        """Stop writing logs and metrics. For tests, and processes that outlive their service."""
        self._closing.close()

    # ------------------------------------------------------------------ being the application

    def around(self, app: ASGIApp) -> None:
        """What the layers go around; a framework calls this when it builds its own."""
        self._inner = app
        self._changed()

    def _changed(self) -> Self:
        self._whole = None
        self.layered()  # now: a wrong setting is told where it was written, not with the first request
        return self

    def layered(self) -> ASGIApp:
        """The application in all its layers."""
        if self._whole is None:
            whole = self._inner
            for name in reversed(_ORDER):
                if name in self._layers:
                    whole = self._layers[name](whole)
            self._whole = whole
        return self._whole

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if hasattr(self.app, "add_middleware"):
            await self.app(scope, receive, send)  # the layers are inside of it
        else:
            await self.layered()(scope, receive, send)


class _Inside:
    """The layers, where the framework wants them: in its own stack of middlewares."""

    def __init__(self, app: ASGIApp, everkeel: Everkeel) -> None:
        everkeel.around(app)
        self._everkeel = everkeel

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._everkeel.layered()(scope, receive, send)


def _at(path: str, there: ASGIApp, otherwise: ASGIApp) -> ASGIApp:
    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        is_there = scope["type"] == "http" and path_of(scope) == path
        await (there if is_there else otherwise)(scope, receive, send)

    return route
