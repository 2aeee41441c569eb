"""Makes one function of a function and its policies, with the function's exact signature.

Each policy lends a fragment: a few lines of ordinary Python with `INNER` where the guarded call goes (see
`runtime/state.py` for the words). The weaver nests the fragments, gives every name that would collide another one and
compiles the result. It knows no policy. It is the only place in Everkeel that compiles code: identifiers come from the
signature and from fragments, and values are bound by reference, never printed into the source.

Decorating installs a tiny stub; its first call weaves. A later change (mode, configuration, listeners) puts the stub
back: one store to `__code__`, so nobody waits and the hot path has no branch for it. Names in the namespace of a
woven function are only ever added, so a call in flight keeps the objects it began with.
"""

from __future__ import annotations

import builtins
import keyword
import linecache
import os
import re
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import update_wrapper
from itertools import count
from textwrap import indent
from types import BuiltinMethodType, CodeType, FrameType, FunctionType, MethodType
from typing import Any, Protocol, TypeVar, cast

from everkeel.errors import ConfigError
from everkeel.runtime.clock import DEFAULT
from everkeel.runtime.deadline import in_use
from everkeel.runtime.signature import ANYTHING, kind_of, named, signature_of
from everkeel.runtime.state import CallKind, State, fold

F = TypeVar("F", bound=Callable[..., Any])

_WORD = re.compile(r"(?<![\w.])[A-Za-z_]\w*")  # an identifier that is not an attribute
_METHOD = re.compile(r"\.([A-Z]+)\(")  # a method that has an async twin
_CALL = "RESULT = AWAIT fn(ARGS)"
# Passing on `**kwargs` makes another dict of it, a third of what such a wrapper costs: not where it is empty.
_STARRED = "if STARS:\n    RESULT = AWAIT fn(ARGS)\nelse:\n    RESULT = AWAIT fn(OTHERS)"
_SEAM = "RESULT = AWAIT {word}.CALL(REST, ARGS)"
_serial = count(1)
_lock = threading.RLock()  # one store of code at a time: a stale weaving must not overwrite a newer stub


class Woven(Protocol):
    """What the weaver asks of a policy."""

    def layers(self) -> Sequence[State]:
        """The states a call passes through now, outermost first."""
        ...

    def woven_into(self, weaving: Weaving) -> None:
        """Remember (weakly) a function to refresh when the layers change."""
        ...


class Rest:
    """What is inside a layer, as a function of its own, woven when it is first called."""

    __slots__ = ("_layers", "_made", "fn")

    def __init__(self, fn: Callable[..., Any], layers: Sequence[State]) -> None:
        self.fn, self._layers = fn, layers
        self._made: Callable[..., Any] | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        made = self._made
        if made is None:
            made = self._made = compiled(self.fn, self._layers) if self._layers else self.fn
        return made(*args, **kwargs)

    def weave_again(self) -> None:
        """Something changed: what was made of the layers before is out of date, though they are the same ones."""
        self._made = None

    def inside(self) -> Sequence[State]:
        """The layers it has yet to pass through."""
        return self._layers

    def is_like(self, other: object) -> bool:
        """Does the other one stand for the same function in the same layers?"""
        if not isinstance(other, Rest) or self.fn is not other.fn or len(self._layers) != len(other._layers):
            return False
        return all(mine is theirs for mine, theirs in zip(self._layers, other._layers, strict=True))


def _interchangeable(one: object, other: object) -> bool:
    """May a name that stands for `one` be used for `other`? Spares the namespace a new name at every weaving."""
    if one is other:
        return True
    if isinstance(one, MethodType | BuiltinMethodType):
        return one == other  # bound methods of one object are made anew each time they are looked up
    if isinstance(one, Rest) and one.is_like(other):
        one.weave_again()
        return True
    return False


class Source:
    """The text of one woven function, and the namespace its names stand for."""

    def __init__(
        self, fn: Callable[..., Any], layers: Sequence[State], space: dict[str, object], kind: CallKind | None = None
    ) -> None:
        self.fn, self.space = fn, space
        self.kind: CallKind = kind or kind_of(fn)
        self.signature = signature_of(fn)
        self.local: set[str] = set()  # names the generated code assigns
        self.layers: list[State] = []  # whose fragments are in it: what is inside a seam is in a function of its own
        self.result = self._name("result", {}, {})
        self.name = _identifier(getattr(fn, "__name__", type(fn).__name__))
        lines = [*self._nest(layers), f"return {self.result}"]
        head = "async def" if self.kind == "async" else "def"
        self.text = f"{head} {self.name}({self.signature.parameters}):\n" + indent("\n".join(lines), "    ") + "\n"

    def compile(self) -> CodeType:
        """The code object, with its source reachable for tracebacks and debuggers."""
        qualname = getattr(self.fn, "__qualname__", self.name)
        file = f"<everkeel {qualname} #{next(_serial)}>"
        module = compile(self.text, file, "exec", dont_inherit=True)
        code = next(constant for constant in module.co_consts if isinstance(constant, CodeType))
        # A misspelt name in a fragment would be a NameError in the one call that gets there; it is found here instead.
        unknown = self.local - {self.result} - set(code.co_varnames)
        if unknown:
            raise NameError(f"fragment of {qualname}: {', '.join(sorted(unknown))} is neither given nor assigned")
        linecache.cache[file] = (len(self.text), None, self.text.splitlines(True), file)  # no mtime: never rechecked
        code = code.replace(co_name=getattr(self.fn, "__name__", self.name), co_qualname=qualname)
        weakref.finalize(code, linecache.cache.pop, file, None).atexit = False
        return code

    def _nest(self, layers: Sequence[State]) -> list[str]:
        if not layers:
            return self._place(_STARRED if self.signature.stars else _CALL, {"fn": self.fn}, [])
        layer, inside = layers[0], layers[1:]
        self.layers.append(layer)
        text = layer.fragment(self.kind)
        if text is None:
            text = _SEAM.format(word=layer.word)
        names = {layer.word: layer, **{part: getattr(layer, part) for part in layer.parts}, **layer.names(self.kind)}
        if "REST" in text:
            names["REST"] = Rest(self.fn, inside)
        if "FN" in text:
            names["FN"] = self.fn
        return self._place(text, names, self._nest(inside) if "INNER" in text else [])

    def _place(self, fragment: str, names: dict[str, object], inner: list[str]) -> list[str]:
        prefix = "a" if self.kind == "async" else ""
        fragment = _METHOD.sub(lambda found: f".{prefix}{found[1].lower()}(", fragment)
        fragment = fragment.replace("AWAIT ", "await " if prefix else "")
        chosen = {"ARGS": self.signature.arguments, "RESULT": self.result, "FIRST": self.signature.first}
        if stars := self.signature.stars:
            chosen |= {"STARS": stars, "OTHERS": self.signature.arguments.removesuffix(f"**{stars}").removesuffix(", ")}
        if "KEY" in fragment:
            chosen["KEY"] = self._key()
        lines: list[str] = []
        for line in fragment.splitlines():
            bare = line.lstrip()
            pad = line[: len(line) - len(bare)]
            if bare == "INNER":
                lines += [pad + text for text in inner]
            elif bare:
                lines.append(pad + _WORD.sub(lambda found: self._name(found[0], names, chosen), bare))
        return lines

    def _key(self) -> str:
        """All arguments and their types, as the elements of a tuple: 1, 1.0 and True are equal, and yet three keys."""
        written = self.signature
        of = self._name("type", {}, {})
        values, types = [*written.plain], [f"{of}({name})" for name in written.plain]
        if written.star is not None:
            values.append(written.star)
            types.append(f"*{self._name('map', {}, {})}({of}, {written.star})")
        if written.stars is not None:
            values.append(f"{self._name('named', {'named': named}, {})}({written.stars}) if {written.stars} else ()")
        return ", ".join([*values, *types])

    def _name(self, word: str, names: dict[str, object], chosen: dict[str, str]) -> str:
        """The name `word` goes by here: itself, unless a parameter, another layer or an older weaving has it."""
        if word in chosen:
            return chosen[word]
        taken = self.signature.names
        if keyword.iskeyword(word):
            return word
        is_builtin = word not in names and hasattr(builtins, word)
        if is_builtin and word not in taken:
            return word
        given = word in names or is_builtin
        value = names.get(word, getattr(builtins, word, None))
        name, n = word, 1
        while (
            name in taken
            or name in self.local
            or (given and not _interchangeable(self.space.setdefault(name, value), value))
            or (not given and name in self.space)
        ):
            n += 1
            name = f"{word}_{n}"
        if not given:
            self.local.add(name)
        chosen[word] = name
        return name


def compiled(fn: Callable[..., Any], layers: Sequence[State], kind: CallKind | None = None) -> FunctionType:
    """`fn` inside `layers` as one new function; of another kind than `fn` where the layers never call it."""
    space = _namespace(fn)
    source = Source(fn, layers, space, kind)
    space["__layers__"] = lambda: source.layers
    return _shaped(FunctionType(source.compile(), space, source.name), fn)


class Weaving:
    """One decorated function: what it wraps, by which policies, and the function made of them."""

    def __init__(self, fn: Callable[..., Any], policies: Sequence[Woven]) -> None:
        self.fn, self.policies = fn, tuple(policies)
        self.kind: CallKind = kind_of(fn)
        self.space = _namespace(fn)
        weakly = weakref.ref(self)  # the function owns its weaving, nothing points back
        self.space["__weaving__"] = weakly
        self.space["__layers__"] = lambda: [] if (me := weakly()) is None else me._woven
        self._woven: list[State] = []
        self._source: Source | None = None
        self._unweavable = False
        self._function: weakref.ref[FunctionType] | None = None

    def layers(self) -> list[State]:
        """Everything a call passes through now."""
        return [layer for policy in self.policies for layer in policy.layers()]

    def function(self) -> FunctionType | None:
        """The decorated function, while it is alive."""
        return None if self._function is None else self._function()

    def build(self) -> FunctionType:
        """The decorated function, with a stub inside that weaves when it is first called."""
        made = _shaped(FunctionType(_STUBS[self.kind], self.space, _identifier(self.fn_name)), self.fn)
        made.__dict__["__weaving__"] = self
        self._function = weakref.ref(made)
        for policy in self.policies:
            policy.woven_into(self)
        with _lock:
            _all.add(self)
        return made

    @property
    def fn_name(self) -> str:
        """The name of what is wrapped."""
        return str(getattr(self.fn, "__name__", type(self.fn).__name__))

    def weave(self) -> Callable[..., Any]:
        """Compile the function as its policies want it now."""
        with _lock:
            function = self.function()
            if function is None:  # pragma: no cover - its last reference went away between call and weaving
                return fold(self.layers(), self.kind, self.fn)
            if function.__code__ is not _STUBS[self.kind]:
                return function  # another thread or task was first
            if self._unweavable:
                return fold(self.layers(), self.kind, self.fn)
            try:
                source = Source(self.fn, self.layers(), self.space)
                function.__code__ = source.compile()
                self._source, self._woven = source, source.layers
            except (SyntaxError, NameError, ValueError) as error:
                self._unweavable = True  # until something changes
                _say_plain(self, error)
                return fold(self.layers(), self.kind, self.fn)
            return function

    def first(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What the stub does."""
        return self.weave()(*args, **kwargs)

    def refresh(self) -> None:
        """Policies changed: back to the stub. Callers, references and bound methods notice nothing."""
        with _lock:
            function = self.function()
            if function is not None:
                function.__code__ = _STUBS[self.kind]
                self._source, self._unweavable = None, False

    def source(self) -> str:
        """The text of the woven function; weaves it if it has not been called yet."""
        if self.kind not in ("sync", "async"):
            return ""
        if self._source is None:
            self.weave()
        return "" if self._source is None else self._source.text

    def plain(self) -> Callable[..., Any]:
        """The plain path through the same layers."""
        return fold(self.layers(), self.kind, self.fn)


_all: weakref.WeakSet[Weaving] = weakref.WeakSet()


def refresh_all() -> None:
    """Every decorated function looks again at its policies."""
    with _lock:
        for weaving in list(_all):
            weaving.refresh()


DEFAULT.on_change.append(refresh_all)
in_use.on_begin.append(refresh_all)


def _new_lock() -> None:
    global _lock
    _lock = threading.RLock()  # the thread that held it in the parent does not exist here


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)


def woven(fn: F, policies: Iterable[Woven]) -> F:
    """`fn` guarded by `policies`, outermost first; a function already woven is taken apart and woven anew as one."""
    if isinstance(fn, staticmethod | classmethod):
        return cast("F", type(fn)(woven(fn.__func__, policies)))
    _guardable(fn)
    all_policies = tuple(policies)
    inner = weaving_of(fn)
    if inner is not None and inner.function() is fn:  # and not a method of it, bound to an object
        return cast("F", Weaving(inner.fn, (*all_policies, *inner.policies)).build())
    return cast("F", Weaving(fn, all_policies).build())


def layers_of(frame: FrameType) -> Sequence[State]:
    """The layers at work in the frame of a woven function, outermost first; none for any other frame."""
    if not frame.f_code.co_filename.startswith("<everkeel "):
        return ()
    layers = frame.f_globals.get("__layers__")
    return () if layers is None else layers()


def weaving_of(fn: object) -> Weaving | None:
    """The weaving of a decorated function; None for anything else."""
    fn = getattr(fn, "__func__", fn)  # a bound method, or a static or class method object
    weaving = getattr(fn, "__weaving__", None)
    # functools.wraps copies attributes: only the function that was woven counts as such.
    return weaving if isinstance(weaving, Weaving) and weaving.function() is fn else None


def _guardable(fn: object) -> None:
    if isinstance(fn, type):
        raise ConfigError(
            None, None, f"cannot guard the class {fn.__qualname__}: decorate its methods, or use guard", None
        )
    if isinstance(fn, property):
        raise ConfigError(None, None, "cannot guard a property: decorate the function inside it", None)
    if not callable(fn):
        raise ConfigError(None, None, f"cannot guard {fn!r}: it is not callable", None)


def _namespace(fn: Callable[..., Any]) -> dict[str, object]:
    return {"__name__": getattr(fn, "__module__", None) or __name__, "__builtins__": builtins}


def _shaped(made: FunctionType, fn: Callable[..., Any]) -> FunctionType:
    update_wrapper(made, fn)
    made.__dict__.pop("__weaving__", None)
    if signature_of(fn) is not ANYTHING:
        made.__defaults__, made.__kwdefaults__ = fn.__defaults__, fn.__kwdefaults__
    return made


def _identifier(name: str) -> str:
    return name if name.isidentifier() and not keyword.iskeyword(name) else "call"  # `<lambda>`


def _say_plain(weaving: Weaving, error: Exception) -> None:
    import logging

    logging.getLogger("everkeel").debug("%s takes the plain path: %s", weaving.fn_name, error)


# ------------------------------------------------------------------ what a decorated function is before its first call

# Generators are never woven: nothing is gained by it. Their stub stays, and folds the layers anew for every call.


def _sync_stub(*args: Any, **kwargs: Any) -> Any:
    return __weaving__().first(args, kwargs)  # type: ignore[name-defined]  # noqa: F821


async def _async_stub(*args: Any, **kwargs: Any) -> Any:
    return await __weaving__().first(args, kwargs)  # type: ignore[name-defined]  # noqa: F821


def _generator_stub(*args: Any, **kwargs: Any) -> Any:
    return (yield from __weaving__().plain()(*args, **kwargs))  # type: ignore[name-defined]  # noqa: F821


async def _async_generator_stub(*args: Any, **kwargs: Any) -> Any:
    items = __weaving__().plain()(*args, **kwargs)  # type: ignore[name-defined]  # noqa: F821
    try:
        async for item in items:
            yield item
    finally:
        await items.aclose()


_STUBS: dict[str, CodeType] = {
    "sync": _sync_stub.__code__,
    "async": _async_stub.__code__,
    "generator": _generator_stub.__code__,
    "async generator": _async_generator_stub.__code__,
}
