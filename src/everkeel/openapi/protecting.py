"""Putting a document's policies on a service that runs: by decorator, or on the routes an app has already."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from everkeel.compose.guards import guard
from everkeel.errors import ConfigError
from everkeel.openapi.document import Document, Operation
from everkeel.openapi.making import Wanted, checked
from everkeel.openapi.resilience import Placed, policies_by_operation
from everkeel.runtime.policy import AnyPolicy, policies_of

__all__ = ["operations_of", "protect", "protection"]

logger = logging.getLogger("everkeel.openapi")

F = TypeVar("F", bound=Callable[..., Any])


def protection(operation: str, policies: Mapping[str, Mapping[str, Any]]) -> Callable[[F], F]:
    """Guard a function by policies written as in `x-resilience`: what generated services have over each route.

    Each policy is called like the operation, unless its settings have a `name`; values are written as in a
    configuration file (`"500ms"`). The order is that of `guard`.

    >>> from everkeel import policies_of
    >>> @protection("getOrder", {"retry": {"attempts": 2}, "timeout": {"seconds": "500ms"}})
    ... async def get_order(order_id: str) -> str:
    ...     return order_id
    >>> [(policy.type, policy.name) for policy in policies_of(get_order)]
    [('retry', 'getOrder'), ('timeout', 'getOrder')]
    """
    placed = {
        kind: Placed(kind, {key: (value, f"{kind}.{key}") for key, value in settings.items()})
        for kind, settings in policies.items()
    }
    return _guard(checked(placed, operation, _at_decorator))


def _at_decorator(at: str, allowed: str, value: object) -> ConfigError:
    return ConfigError("x-resilience", at, allowed, repr(value))


def _guard(wanted: list[Wanted]) -> Callable[[F], F]:
    made: dict[str, Any] = {one.kind: one.make() for one in wanted}
    return guard(**made) if made else lambda fn: fn


def protect(
    app: Any, document: Document | Mapping[str, Any] | str | Path, *, strict: bool = True
) -> dict[str, list[AnyPolicy]]:
    """Put the policies of an OpenAPI document on a running FastAPI or Starlette app; answers what each operation got.

    Operations are found by `operationId`: FastAPI's `operation_id`, its generated id, or the route's name; else by
    method and path. Rejections are answered with problem documents: 429, 503, 504. An operation with policies that the
    app does not have is a `ConfigError`, or with `strict=False` a warning. Call it once the routes are there, before
    the app serves.

    >>> from fastapi import FastAPI
    >>> app = FastAPI()
    >>> @app.get("/orders/{order_id}", operation_id="getOrder")
    ... async def get_order(order_id: str) -> str:
    ...     return order_id
    >>> document = {
    ...     "openapi": "3.1.0",
    ...     "info": {"title": "Orders", "version": "1"},
    ...     "x-resilience": {"timeout": {"seconds": 2}},
    ...     "paths": {"/orders/{id}": {"get": {"operationId": "getOrder"}}},
    ... }
    >>> [policy.type for policy in protect(app, document)["getOrder"]]
    ['timeout']
    """
    described = Document.of(document)
    policies = policies_by_operation(described)
    routes = list(_routes(app))
    found: list[tuple[Operation, _Route, list[Wanted]]] = []
    for operation in described.operations():
        if not policies[operation.id]:
            continue
        route = _route_of(routes, operation)
        if route is None:
            missing = described.error(
                operation.at,
                "must be an operation of the app, by operationId or by path (class-based views: decorate the methods)",
                operation.id,
            )
            if strict:
                raise missing
            logger.warning("%s", missing)
            continue
        found.append((operation, route, checked(policies[operation.id], operation.id, described.error)))
    guards = [(operation.id, route, _guard(wanted)) for operation, route, wanted in found]  # a name may be taken
    # Everything is known to be right: now change the app.
    if guards:
        from everkeel.http.server.handlers import add_handlers

        add_handlers(app)
    return {name: route.wrap(guarded) for name, route, guarded in guards}


def operations_of(app: Any) -> dict[str, list[AnyPolicy]]:
    """The operations of a FastAPI or Starlette app, and the policies over each."""
    return {route.id: list(policies_of(route.endpoint)) for route in _routes(app)}


# ------------------------------------------------------------------ routes


class _Route:
    """One route of an app, whatever the version of the framework keeps about it."""

    def __init__(self, route: Any, prefix: str, contexts: list[Any]) -> None:
        self._route, self._contexts = route, contexts
        self.path = prefix + route.path
        self.methods = {method.lower() for method in route.methods or ()}
        generated = [getattr(context, "unique_id", None) for context in contexts] or [getattr(route, "unique_id", None)]
        self.ids = [getattr(route, "operation_id", None), *generated, route.name]

    @property
    def endpoint(self) -> Callable[..., Any]:
        endpoint: Callable[..., Any] = self._route.endpoint
        return endpoint

    @property
    def id(self) -> str:
        return next(str(one) for one in self.ids if one)

    def wrap(self, wrapper: Callable[[Any], Any]) -> list[AnyPolicy]:
        guarded = wrapper(self._route.endpoint)
        self._route.endpoint = guarded
        if hasattr(self._route, "dependant"):  # FastAPI calls what stands here when a request comes
            for holder in [self._route, *self._contexts]:
                holder.dependant.call = guarded
        else:
            from starlette.routing import request_response

            self._route.app = request_response(guarded)
        return list(policies_of(guarded))


def _routes(app: Any) -> Iterator[_Route]:
    yield from _below(app.routes, "", {})


def _below(routes: Iterable[Any], prefix: str, contexts: dict[int, list[Any]]) -> Iterator[_Route]:
    for route in routes:
        if hasattr(route, "effective_candidates"):  # FastAPI's router in a router, made flat when it is asked
            yield from _included(route)
        elif hasattr(route, "endpoint") and hasattr(route, "methods"):
            if isinstance(route.endpoint, type):
                continue  # a class-based view answers several operations: decorate its methods
            yield _Route(route, prefix, contexts.get(id(route), []))
        elif getattr(route, "routes", None) and hasattr(route, "path"):  # a mounted app
            yield from _below(route.routes, prefix + route.path, contexts)


def _included(router: Any) -> Iterator[_Route]:
    for candidate in router.effective_candidates():
        if hasattr(candidate, "effective_candidates"):
            yield from _included(candidate)
        elif getattr(candidate, "dependant", None) is not None and candidate.original_route is not None:
            route = _Route(candidate.original_route, "", [candidate])
            route.path = candidate.path
            yield route


def _route_of(routes: list[_Route], operation: Operation) -> _Route | None:
    for rank in range(3):
        for route in routes:
            if rank < len(route.ids) and route.ids[rank] == operation.id and operation.method in route.methods:
                return route
    written = _shape(operation.path)
    return next((r for r in routes if operation.method in r.methods and _shape(r.path) == written), None)


def _shape(path: str) -> list[str]:
    return ["{}" if part.startswith("{") else part for part in path.strip("/").split("/")]
