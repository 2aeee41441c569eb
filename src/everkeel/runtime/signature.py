"""What kind of callable something is, and how its parameters are written down again."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

from everkeel.runtime.state import CallKind


def kind_of(fn: Callable[..., Any]) -> CallKind:
    """Sync, async, or a generator of either; looks through partials and into callable objects."""
    while isinstance(fn, partial):
        fn = fn.func
    if not inspect.isroutine(fn) and not inspect.isclass(fn):
        fn = getattr(fn, "__call__", fn)  # noqa: B004 - an object whose __call__ is a coroutine function
    if inspect.iscoroutinefunction(fn):
        return "async"
    if inspect.isasyncgenfunction(fn):
        return "async generator"
    return "generator" if inspect.isgeneratorfunction(fn) else "sync"


class Signature(NamedTuple):
    """A function's parameters as text."""

    parameters: str
    """As written in a `def`; defaults are None there, and the real objects are set on the function afterwards."""
    arguments: str
    """The arguments that pass them all on."""
    names: frozenset[str]
    """Names that generated code must leave alone."""
    first: str
    """The first positional argument, as an expression: `self`, in a method; None where there is none."""
    plain: tuple[str, ...] = ()
    """The parameters that hold one argument each."""
    star: str | None = None
    """The one that holds further positional arguments."""
    stars: str | None = None
    """The one that holds further named arguments."""


ANYTHING = Signature(
    "*args, **kwargs", "*args, **kwargs", frozenset({"args", "kwargs"}), "args[0]", star="args", stars="kwargs"
)


def types_of(values: tuple[object, ...]) -> tuple[type, ...]:
    """The types of several values."""
    return tuple(map(type, values))


def named(arguments: dict[str, object]) -> tuple[tuple[str, object, type], ...]:
    """Named arguments and their types, whatever order they were given in."""
    return tuple((name, arguments[name], type(arguments[name])) for name in sorted(arguments))


def signature_of(fn: Callable[..., Any]) -> Signature:
    """The exact signature of a function; of anything else (a partial, a builtin, an object) one that takes anything."""
    if type(fn) is not FunctionType:
        return ANYTHING
    parameters: list[str] = []
    arguments: list[str] = []
    names: set[str] = set()
    plain: list[str] = []
    star = stars = None
    star_seen = False
    # follow_wrapped=False: what counts is what *this* function accepts, not what the one it wraps says it does.
    listed = list(inspect.signature(fn, follow_wrapped=False).parameters.values())
    for position, parameter in enumerate(listed):
        name, kind = parameter.name, parameter.kind
        if not name.isidentifier():
            return ANYTHING  # the `.0` of a comprehension, or a function that was put together by hand
        names.add(name)
        default = "" if parameter.default is parameter.empty else "=None"
        if kind is parameter.VAR_POSITIONAL:
            star, star_seen = name, True
            parameters.append(f"*{name}")
            arguments.append(f"*{name}")
        elif kind is parameter.VAR_KEYWORD:
            stars = name
            parameters.append(f"**{name}")
            arguments.append(f"**{name}")
        elif kind is parameter.KEYWORD_ONLY:
            if not star_seen:
                parameters.append("*")
                star_seen = True
            plain.append(name)
            parameters.append(name + default)
            arguments.append(f"{name}={name}")
        else:
            plain.append(name)
            parameters.append(name + default)
            arguments.append(name)
            followed_by = listed[position + 1].kind if position + 1 < len(listed) else None
            if kind is parameter.POSITIONAL_ONLY and followed_by is not parameter.POSITIONAL_ONLY:
                parameters.append("/")
    first = "None"
    if listed and listed[0].kind is inspect.Parameter.VAR_POSITIONAL:
        first = f"({star} or (None,))[0]"
    elif listed and listed[0].kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD):
        first = listed[0].name
    return Signature(", ".join(parameters), ", ".join(arguments), frozenset(names), first, tuple(plain), star, stars)
