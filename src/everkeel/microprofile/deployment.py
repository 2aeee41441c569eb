"""The beginning and the end of a deployment: checking everything that was annotated, and forgetting all of it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from everkeel.microprofile import config, guards, maintenance, metrics
from everkeel.microprofile.levels import Method, classes, method_of, methods, unwrapped


def validate(*targets: Any) -> None:
    """Check annotations now, with configuration as it is, rather than at the first call of each method.

    Args:
        targets: Classes and functions; without any, everything annotated so far that can be found by its name.

    What is wrong raises a `FaultToleranceDefinitionException` that names class, method, annotation and parameter. Call
    it at startup, after `configure`: values are checked where they are written, but what an annotation refers to
    (a fallback method, say) can only be checked when its class is complete.

    >>> from everkeel.microprofile import Retry, validate
    >>> class Orders:
    ...     @Retry
    ...     def pay(self) -> None: ...
    >>> validate(Orders)
    """
    for target in targets or _everything():
        if isinstance(target, type):
            _validate_class(target)
        else:
            method = target if isinstance(target, Method) else method_of(target)
            if method is not None:
                method.plan(None)


def _validate_class(cls: type) -> None:
    for one in cls.__mro__[:-1]:
        for member in list(one.__dict__.values()):
            for found in unwrapped(member):
                method = method_of(found)
                if method is not None and not method.is_overridden_in(cls):
                    method.plan(cls)


def _everything() -> list[Any]:
    """What is annotated and can be found by its name: a class or function made in passing may be gone already."""
    functions: list[Any] = []
    found: dict[type, None] = dict.fromkeys(classes)
    for method in list(methods):
        holder, member = _by_name(method.origin)
        if isinstance(holder, type):
            found[holder] = None
        elif any(one is method.wrapper for one in unwrapped(member)):
            functions.append(method)
    everyone = dict.fromkeys(sub for cls in found for sub in _with_subclasses(cls))
    return [*functions, *(cls for cls in everyone if _by_name(cls)[1] is cls)]


def _by_name(thing: Any) -> tuple[Any, Any]:
    """What has the name of a class or function, and what that belongs to."""
    holder: Any = None
    member: Any = sys.modules.get(getattr(thing, "__module__", None) or "")
    for part in str(getattr(thing, "__qualname__", "")).split("."):
        holder, member = member, inspect.getattr_static(member, part, None)
    return holder, member


def _with_subclasses(cls: type) -> list[type]:
    below: list[type] = type.__subclasses__(cls)
    return [cls, *(one for sub in below for one in _with_subclasses(sub))]


def redeploy() -> None:
    """As if the application had just started: circuit breakers closed, bulkheads empty, metrics and configuration gone.

    For tests, each of which is then a deployment of its own. Calls in flight end in the state they began in.
    """
    config.forget()
    metrics.registry.clear()
    maintenance.forget()
    guards.forget()
    for method in list(methods):
        method.forget()


@contextmanager
def fresh_deployment() -> Generator[None]:
    """A deployment for the time of a block.

    >>> from everkeel.microprofile import fresh_deployment
    >>> with fresh_deployment():
    ...     pass
    """
    redeploy()
    try:
        yield
    finally:
        redeploy()
