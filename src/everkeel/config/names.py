"""What names in configuration stand for. A file never imports code: what it may name is what the process already has.

Exception classes are found among those that were registered, Python's own, Everkeel's, and modules already imported.
Functions and objects must have been registered: nothing in a file can reach a function the application did not offer.
"""

from __future__ import annotations

import builtins
import re
import sys
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from types import MappingProxyType, ModuleType
from typing import Any, TypeVar, overload

from everkeel import errors
from everkeel.errors import ConfigError
from everkeel.runtime.settings import NAME

T = TypeVar("T")

_things: dict[str, Any] = {}
registered: Mapping[str, Any] = MappingProxyType(_things)
"""What the application registered, by name."""


@overload
def register(name: str, /) -> Callable[[T], T]: ...
@overload
def register(thing: T, /) -> T: ...
@overload
def register(name: str, thing: T, /) -> T: ...
def register(name: Any, thing: Any = None, /) -> Any:
    """Let configuration name something: `@register`, `@register("name")`, or `register("name", thing)`.

    A class or function without a name of its own is known by its bare name and by its dotted one. A name that stands
    for something else already is a `ConfigError`; the same thing again changes nothing.

    >>> from everkeel import config
    >>> @config.register
    ... def cached_quote() -> str:
    ...     return "yesterday's"
    >>> config.registered["cached_quote"] is cached_quote
    True
    """
    if isinstance(name, str):
        if thing is None:
            return lambda given: register(name, given)
        _put(name, thing)
        return thing
    bare = getattr(name, "__name__", None)
    if not isinstance(bare, str) or not re.fullmatch(NAME[1:-1], bare):
        raise ConfigError("config", "register", "must be given a name: register('name', thing)", repr(name))
    _put(bare, name)
    where = f"{name.__module__}.{name.__qualname__}"
    if re.fullmatch(NAME[1:-1], where):
        _put(where, name)
    return name


def unregister(name: str) -> bool:
    """Forget a name; what was configured with it keeps it. Answers whether it was there."""
    return _things.pop(name, None) is not None


def _put(name: str, thing: Any) -> None:
    if not re.fullmatch(NAME[1:-1], name):
        raise ConfigError("config", "register", "must have a name of letters, digits, '_', '-' and dots", repr(name))
    there = _things.get(name)
    if there is not None and there is not thing and not _made_again(there, thing):
        raise ConfigError("config", "register", f"has {name!r} already, for {there!r}", repr(thing))
    _things[name] = thing


def _made_again(one: Any, other: Any) -> bool:
    """The same definition, run again: a module that was reloaded."""
    where = getattr(one, "__module__", None), getattr(one, "__qualname__", None)
    return None not in where and where == (getattr(other, "__module__", None), getattr(other, "__qualname__", None))


def name_of(thing: Any) -> str | None:
    """The name that something was registered under; the first, where there are several."""
    return next((name for name, one in _things.items() if one is thing), None)


class NotYetError(ValueError):
    """The name may stand for something when more of the application is imported: to be asked again."""


class ProcessNames:
    """Names as this process knows them now. `hopeful`: what nobody registered may still be, by an application that is
    not imported here."""

    def __init__(self, *, hopeful: bool = False) -> None:
        self.hopeful = hopeful

    def error(self, name: str) -> Any:
        """An exception class, or a registered predicate on exceptions."""
        found = _things.get(name) or _known(name) or self._imported(name)
        if isinstance(found, type) and not issubclass(found, BaseException):
            raise ValueError(f"must name exception classes; {name} is a class, but none of those")
        if not isinstance(found, type) and not (callable(found) and name in _things):
            raise ValueError(f"must name exception classes; {name} is none")
        return found

    def function(self, name: str) -> Callable[..., Any]:
        """A registered function."""
        found = self._registered(name, "function")
        if not callable(found):
            raise ValueError(f"must be a function; {name!r} is registered for {found!r}")
        return found  # type: ignore[no-any-return]  # callable() narrows to an unknown signature

    def instance(self, name: str, cls: type) -> Any:
        """A registered object of a class."""
        found = self._registered(name, cls.__name__)
        if not isinstance(found, cls):
            raise ValueError(f"must be a {cls.__name__}; {name!r} is registered for {found!r}")
        return found

    def _registered(self, name: str, what: str) -> Any:
        if name in _things:
            return _things[name]
        module, _, _ = name.rpartition(".")
        hint = _hint(name, list(_things))
        message = f"must be a registered {what}; nothing is registered as {name!r}{hint}"
        if self.hopeful or (module and module not in sys.modules):
            raise NotYetError(message)
        raise ValueError(message)

    def _imported(self, name: str) -> Any:
        """Walks attributes as they lie there: no property, no module's `__getattr__`, nothing that could run code."""
        parts = name.split(".")
        if len(parts) == 1:
            known = [one for one, cls in vars(builtins).items() if isinstance(cls, type)]
            hint = _hint(name, [*known, *vars(errors), *_things])
            raise ValueError(
                f"must name exception classes; there is no {name}{hint}: write module.{name}, or register it"
            )
        for cut in range(len(parts) - 1, 0, -1):
            module = sys.modules.get(".".join(parts[:cut]))
            if isinstance(module, ModuleType):
                return _within(module, parts[:cut], parts[cut:])
        raise NotYetError(f"must name exception classes; no module of {name} is imported")


def _known(name: str) -> Any:
    """Python's own exceptions, and Everkeel's."""
    bare = name.removeprefix("everkeel.").removeprefix("errors.") if name.startswith("everkeel.") else name
    for place in (builtins, errors):
        found = vars(place).get(bare)
        if isinstance(found, type) and issubclass(found, BaseException):
            return found
    return None


def _within(module: ModuleType, path: list[str], rest: list[str]) -> Any:
    here: Any = module
    for position, part in enumerate(rest):
        inside = vars(here) if isinstance(here, ModuleType | type) else {}
        if part not in inside:
            whole = ".".join([*path, *rest])
            if isinstance(here, ModuleType) and position + 1 < len(rest):
                raise NotYetError(f"must name exception classes; the module of {whole} is not imported")
            owner = ".".join([*path, *rest[:position]])
            classes = [one for one, cls in inside.items() if isinstance(cls, type)]
            raise ValueError(f"must name exception classes; {owner} has no {part}{_hint(part, classes)}")
        here = inside[part]
    return here


def _hint(name: str, known: list[str]) -> str:
    close = get_close_matches(name, known, 1)
    return f" (did you mean {close[0]}?)" if close else ""
