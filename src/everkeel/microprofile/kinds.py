"""Which of four kinds a guarded method is; that decides what its policies wrap, and what a call returns.

- `sync`: a plain `def`. What it returns is a value, whatever it is.
- `coroutine`: an `async def`. Policies act on how the coroutine ends.
- `future`: a plain `def` marked `Asynchronous` that returns a `concurrent.futures.Future`. Policies wrap the running of
  the body alone: a future that it returns is a success, whatever becomes of it.
- `stage`: a plain `def` marked `Asynchronous` that returns an awaitable. Policies wrap it to the very end.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any, Literal, TypeAlias

from everkeel.microprofile.exceptions import FaultToleranceDefinitionException

Kind: TypeAlias = Literal["sync", "coroutine", "future", "stage"]

UNKNOWN: Any = object()
"""In place of a type that was not written, or cannot be found."""


def kind_of(fn: Callable[..., Any], *, asynchronous: bool, where: str) -> Kind:
    """The kind of a function; a definition error where `Asynchronous` stands on something that cannot be it."""
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        allowed = "cannot guard a generator: nothing of it runs before its first item is asked for"
        raise FaultToleranceDefinitionException(where, None, allowed, None)
    if inspect.iscoroutinefunction(fn):
        return "coroutine"
    if not asynchronous:
        return "sync"
    written = return_type(fn)
    if written in (UNKNOWN, Any) and "return" not in getattr(fn, "__annotations__", {}):
        return "future"
    if written is Any:
        return "future"
    origin: Any = typing.get_origin(written) or written
    if isinstance(origin, type):
        if issubclass(origin, Future):
            return "future"
        if issubclass(origin, Awaitable):
            return "stage"
    shown = fn.__annotations__["return"] if written is UNKNOWN else written
    allowed = "must be declared to return a concurrent.futures.Future or an awaitable, or be an async def"
    raise FaultToleranceDefinitionException(where, "Asynchronous", allowed, _text(shown))


def returns_awaitable(fn: Callable[..., Any]) -> bool:
    """Is a function declared to return an awaitable?"""
    written = return_type(fn)
    origin: Any = typing.get_origin(written) or written
    return isinstance(origin, type) and issubclass(origin, Awaitable)


def return_type(fn: Callable[..., Any]) -> Any:
    """The declared return type; `UNKNOWN` where there is none or it cannot be found."""
    return hint_of(fn, "return")


def hint_of(fn: Callable[..., Any], name: str) -> Any:
    """One annotation of a function as a type, whether or not the others can be found."""
    written = getattr(fn, "__annotations__", {})
    if name not in written:
        return UNKNOWN
    space = getattr(inspect.unwrap(fn), "__globals__", {})
    holder = type("holder", (), {"__annotations__": {name: written[name]}})
    try:
        return typing.get_type_hints(holder, globalns=space, localns=_around(fn))[name]
    except Exception:  # a name that exists only while types are checked, or inside of a function
        text = written[name]
        return _outermost(text, space) if isinstance(text, str) else UNKNOWN


def _around(fn: Callable[..., Any]) -> dict[str, Any]:
    """What a function defined in another one has from there: types of a test or a factory are there at times."""
    inner = inspect.unwrap(fn)
    try:
        return dict(inspect.getclosurevars(inner).nonlocals)
    except (TypeError, ValueError):
        return {}


def _outermost(text: str, space: dict[str, Any]) -> Any:
    """`Future[Local]` is a future, though nobody here knows `Local`."""
    found: Any = None
    for position, part in enumerate(text.split("[", 1)[0].strip().split(".")):
        found = space.get(part, UNKNOWN) if position == 0 else getattr(found, part, UNKNOWN)
        if found is UNKNOWN:
            return UNKNOWN
    return found if "[" in text or isinstance(found, type) else UNKNOWN


def _text(written: Any) -> str:
    return written if isinstance(written, str) else getattr(written, "__name__", repr(written))
