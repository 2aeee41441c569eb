"""What answers in place of a method that failed: a handler class, or another method, checked before it is needed."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from everkeel.microprofile.annotations import Fallback
from everkeel.microprofile.exceptions import FaultToleranceDefinitionException
from everkeel.microprofile.kinds import UNKNOWN, Kind, hint_of, return_type

T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class ExecutionContext:
    """What a fallback handler is told about the call that failed."""

    method: Callable[..., Any]
    """The guarded method itself, without its policies; `method.__name__` is its name."""
    parameters: tuple[Any, ...]
    """The positional arguments of the call, without `self`."""
    failure: BaseException
    """What the call would have raised."""
    keywords: dict[str, Any] = field(default_factory=dict)
    """The keyword arguments of the call."""
    receiver: Any = None
    """The object whose method it is; None for a function."""


class FallbackHandler(Protocol[T_co]):
    """What `Fallback(value=...)` names: a class with this method. Deriving from this one is not necessary.

    Its result must be of the type the guarded method returns; for an `async def`, `handle` may be one too.

    >>> class Unavailable(FallbackHandler[str]):
    ...     def handle(self, context: ExecutionContext) -> str:
    ...         return f"{context.method.__name__} is unavailable"
    """

    def handle(self, context: ExecutionContext) -> T_co:
        """The answer in place of the method's."""
        ...


def _construct(cls: type) -> Any:
    return cls()


make_handler: Callable[[type], Any] = _construct


def create_handlers_with(factory: Callable[[type], Any] | None) -> None:
    """Let `factory(cls)` make the handler for each fallback: the place to inject what it needs. None: `cls()`.

    A handler serves one call; what should live longer belongs to whoever makes it.
    """
    global make_handler
    make_handler = factory or _construct


# ------------------------------------------------------------------ finding it


@dataclass(frozen=True, slots=True)
class Target:
    """The guarded method a fallback is for."""

    fn: Callable[..., Any]
    owner: type | None
    """The class that declares it; None for a function."""
    where: str
    kind: Kind


def attribute_of(target: Target, name: str) -> str:
    """The name that Python gives a method: one that begins with two underscores belongs to its class alone."""
    if target.owner is not None and name.startswith("__") and not name.endswith("__"):
        return f"_{target.owner.__name__.lstrip('_')}{name}"
    return name


def alternative(
    target: Target, record: Fallback, *, bound: bool
) -> Callable[[BaseException, tuple[Any, ...], Any], Any]:
    """A function of the failure and the call's arguments that gives the answer. `bound`: the first is the object."""
    if record.value is not None:
        handler = record.value

        def handle(failure: BaseException, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            receiver, rest = (args[0], args[1:]) if bound else (None, args)
            context = ExecutionContext(target.fn, rest, failure, dict(kwargs), receiver)
            return make_handler(handler).handle(context)

        return handle
    name = attribute_of(target, record.fallback_method or "")
    told = _is_told(target.fn, found(target, record.fallback_method or ""))

    def more(failure: BaseException, kwargs: dict[str, Any]) -> dict[str, Any]:
        return {**kwargs, ERROR: failure} if told else kwargs

    if bound:
        # Looked up on the object at each call: an override in a subclass is the one to use.
        return lambda failure, args, kwargs: getattr(args[0], name)(*args[1:], **more(failure, kwargs))
    if target.owner is not None:
        owner = target.owner
        return lambda failure, args, kwargs: getattr(owner, name)(*args, **more(failure, kwargs))
    space = target.fn.__globals__
    return lambda failure, args, kwargs: space[name](*args, **more(failure, kwargs))


ERROR = "error"
"""A fallback method that has a parameter of this name, where the guarded one has none, is told what failed."""


def _is_told(fn: Callable[..., Any], other: Callable[..., Any] | None) -> bool:
    if other is None:
        return False
    mine, theirs = (inspect.signature(inspect.unwrap(one)).parameters for one in (fn, other))
    taken = theirs.get(ERROR)
    return taken is not None and ERROR not in mine and taken.kind in (taken.POSITIONAL_OR_KEYWORD, taken.KEYWORD_ONLY)


def found(target: Target, name: str) -> Callable[..., Any] | None:
    """The function that a fallback method's name stands for, where the guarded method is declared."""
    attribute = attribute_of(target, name)
    if target.owner is None:
        function = getattr(inspect.unwrap(target.fn), "__globals__", {}).get(attribute)
        return function if callable(function) else None
    for cls in target.owner.__mro__:
        if attribute in cls.__dict__:
            member = cls.__dict__[attribute]
            return getattr(member, "__func__", member) if callable(getattr(member, "__func__", member)) else None
    return None


# ------------------------------------------------------------------ checking it


def check(target: Target, record: Fallback) -> None:
    """A definition error where the fallback could not answer in place of the method."""
    returned = _awaited(return_type(target.fn), target.fn)
    if record.value is not None:
        declared = _handled(record.value)
        if not _assignable(_awaited(declared, getattr(record.value, "handle", None)), returned):
            raise record.wrong(
                target.where, "value", f"must be a handler of {_text(returned)}, as the method returns", record.value
            )
        return
    name = record.fallback_method or ""
    other = found(target, name)
    if other is None:
        place = "the module of the function" if target.owner is None else f"{target.owner.__qualname__} or its bases"
        raise record.wrong(target.where, "fallback_method", f"must be the name of a method in {place}", name)
    _check_parameters(target, record, inspect.unwrap(target.fn), inspect.unwrap(other))
    types = _type_variables(target.owner)
    theirs = _substituted(_awaited(return_type(other), other), types)
    if not _assignable(theirs, _substituted(returned, types)):
        raise record.wrong(
            target.where,
            "fallback_method",
            f"must return {_text(returned)}, as the method does",
            f"{name}: {_text(theirs)}",
        )


def _check_parameters(target: Target, record: Fallback, fn: Callable[..., Any], other: Callable[..., Any]) -> None:
    mine, theirs = (list(inspect.signature(one).parameters.values()) for one in (fn, other))
    if _is_told(fn, other):
        theirs = [one for one in theirs if one.name != ERROR]
    if [_shape(one) for one in mine] != [_shape(one) for one in theirs]:
        raise record.wrong(
            target.where,
            "fallback_method",
            f"must take the same parameters as the method, {_signature(fn)}",
            f"{other.__name__}{_signature(other)}",
        )
    types = _type_variables(target.owner)
    for one, another in zip(mine, theirs, strict=True):
        wanted = _substituted(hint_of(fn, one.name), types)
        taken = _substituted(hint_of(other, another.name), types)
        if UNKNOWN not in (wanted, taken) and not _same(wanted, taken):
            raise record.wrong(
                target.where,
                "fallback_method",
                f"must take {_text(wanted)} as {another.name}, as the method does",
                f"{other.__name__}: {_text(taken)}",
            )


def _shape(one: inspect.Parameter) -> tuple[object, bool, str | None]:
    by_name = one.name if one.kind is one.KEYWORD_ONLY else None
    return one.kind, one.default is not one.empty, by_name


def _signature(fn: Callable[..., Any]) -> str:
    return str(inspect.signature(fn).replace(return_annotation=inspect.Signature.empty))


def _handled(handler: type) -> Any:
    """What a handler class says its handlers return: as the argument of `FallbackHandler`, or on `handle`."""
    written = return_type(getattr(handler, "handle", None) or handler)
    if written is not UNKNOWN and not isinstance(written, TypeVar):
        return written
    for cls in handler.__mro__:
        for base in cls.__dict__.get("__orig_bases__", ()):
            if typing.get_origin(base) is FallbackHandler:
                return typing.get_args(base)[0]
    return UNKNOWN


def _awaited(written: Any, fn: Any) -> Any:
    """What comes out in the end: an `async def` and a function that returns an awaitable of the same are alike."""
    if fn is not None and inspect.iscoroutinefunction(fn):
        return written
    origin = typing.get_origin(written)
    if isinstance(origin, type) and issubclass(origin, Awaitable) and not _is_future(origin):
        arguments = typing.get_args(written)
        return arguments[-1] if arguments else UNKNOWN
    return written


def _is_future(origin: type) -> bool:
    from concurrent.futures import Future

    return issubclass(origin, Future)


# ------------------------------------------------------------------ comparing types


def _type_variables(owner: type | None) -> dict[Any, Any]:
    """What the type variables of a class's generic bases stand for in it."""
    known: dict[Any, Any] = {}
    if owner is None:
        return known
    for cls in owner.__mro__:
        for base in cls.__dict__.get("__orig_bases__", ()):
            origin = typing.get_origin(base)
            if origin is None or origin is Generic:
                continue
            variables = getattr(origin, "__parameters__", ())
            for variable, argument in zip(variables, typing.get_args(base), strict=False):
                known.setdefault(variable, _substituted(argument, known))
    return known


def _substituted(hint: Any, types: dict[Any, Any]) -> Any:
    if isinstance(hint, TypeVar):
        return types.get(hint, UNKNOWN)
    variables = getattr(hint, "__parameters__", ())
    if variables and typing.get_origin(hint) is not None:
        return hint[tuple(types.get(one, Any) for one in variables)]
    return hint


def _same(one: Any, other: Any) -> bool:
    if Any in (one, other) or UNKNOWN in (one, other) or one == other:
        return True
    arguments, others = typing.get_args(one), typing.get_args(other)
    if typing.get_origin(one) is not typing.get_origin(other) or len(arguments) != len(others) or not arguments:
        return False
    return all(_same(mine, theirs) for mine, theirs in zip(arguments, others, strict=True))


def _assignable(given: Any, wanted: Any) -> bool:
    """May a value of type `given` stand where `wanted` is expected? Only a plain no is a no."""
    if given is None:
        given = type(None)
    if wanted is None:
        wanted = type(None)
    if _same(given, wanted):
        return True
    origin, wished = typing.get_origin(given) or given, typing.get_origin(wanted) or wanted
    if not isinstance(origin, type) or not isinstance(wished, type):
        return True  # unions, literals, protocols: more than we judge
    if (origin, wished) == (int, float):
        return True
    try:
        if not issubclass(origin, wished):
            return False
    except TypeError:
        return True
    mine, theirs = typing.get_args(given), typing.get_args(wanted)
    if not mine or not theirs or len(mine) != len(theirs):
        return True
    return all(_assignable(one, other) for one, other in zip(mine, theirs, strict=True))


def _text(hint: Any) -> str:
    return hint.__qualname__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint)


def wrong_place(where: str) -> FaultToleranceDefinitionException:
    """A fallback cannot stand on a class."""
    return FaultToleranceDefinitionException(where, "Fallback", "must be placed on a method, not on a class", None)
