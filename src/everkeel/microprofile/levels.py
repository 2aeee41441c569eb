"""Where annotations stand, and which of them count for a method of an object: its own, or those of its class.

A decorated function is a `Method`. What guards it depends on the class of the object it is called on, so that is
decided at its first call for each class, once:

- the function that class has under the name is the one that counts; called through `super()`, another one is just
  itself, without policies;
- an annotation on that function counts; otherwise the one on the first class, from the object's own class upwards.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any, NamedTuple, TypeVar, cast
from weakref import WeakKeyDictionary, WeakSet

from everkeel.microprofile import additions, config, fallbacks, guards, kinds
from everkeel.microprofile.annotations import Annotation
from everkeel.microprofile.annotations import Asynchronous as SaidAsynchronous
from everkeel.microprofile.annotations import Fallback as SaidFallback
from everkeel.microprofile.assembly import Plan
from everkeel.microprofile.calls import name_of, where_of
from everkeel.microprofile.exceptions import FaultToleranceDefinitionException
from everkeel.microprofile.guarding import Guarded

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__microprofile__"
_ON_CLASS = "__microprofile_class__"
_resolving = threading.RLock()
methods: WeakSet[Method] = WeakSet()
"""Every decorated function there is."""
classes: WeakSet[type] = WeakSet()
"""Every class with annotations of its own."""


class Declared(NamedTuple):
    """An annotation and where it stands."""

    record: Annotation
    level: config.Level
    class_name: str


class Method:
    """One decorated function."""

    def __init__(self, fn: Callable[..., Any], *, origin: Callable[..., Any] | None = None) -> None:
        """`origin`: the function that `fn` only leads to, where a class guards what it has inherited."""
        self.fn, self.origin = fn, origin or fn
        self.name: str = getattr(fn, "__name__", type(fn).__name__)
        self.declared: dict[str, Annotation] = {}
        self._by_class: WeakKeyDictionary[type, Callable[..., Any]] = WeakKeyDictionary()
        self._alone: Callable[..., Any] | None = None
        self.wrapper = self._wrap()
        methods.add(self)

    def _wrap(self) -> Callable[..., Any]:
        target = self.target

        def guarded(*args: Any, **kwargs: Any) -> Any:
            return target(args)(*args, **kwargs)

        async def aguarded(*args: Any, **kwargs: Any) -> Any:
            return await target(args)(*args, **kwargs)

        made: Callable[..., Any] = aguarded if inspect.iscoroutinefunction(self.fn) else guarded
        functools.update_wrapper(made, self.fn)
        setattr(made, _MARK, self)
        return made

    @property
    def class_name(self) -> str:
        """The class it is written in, as far as its name tells; the module where that is none."""
        module = getattr(self.origin, "__module__", None) or "__main__"
        before, _, _ = str(getattr(self.origin, "__qualname__", self.name)).rpartition(".")
        return module if not before or before.endswith("<locals>") else f"{module}.{before}"

    # ------------------------------------------------------------------ a call

    def target(self, args: tuple[Any, ...]) -> Callable[..., Any]:
        """What a call with these arguments goes to."""
        if not args:
            return self._alone or self._on_its_own(None)
        first = args[0]
        cls = first if isinstance(first, type) else type(first)
        found = self._by_class.get(cls)
        if found is not None:
            return found
        is_method = self._owner_in(cls) is not None or self._is_attribute_of(cls)
        return self._resolved(cls) if is_method else self._on_its_own(cls)

    def _on_its_own(self, cls: type | None) -> Callable[..., Any]:
        """A function, though its first argument is an object of some class: that is remembered, and not asked again."""
        plan = self.plan(None) if self._alone is None else None
        with _resolving:
            if self._alone is None:
                self._alone = Guarded(plan or self.plan(None)).callable()
            if cls is not None:
                self._by_class[cls] = self._alone
            return self._alone

    def _resolved(self, cls: type) -> Callable[..., Any]:
        # Not under the lock: configuration may have a module imported, which may call what is guarded.
        plan = None if self.is_overridden_in(cls) else self.plan(cls)
        with _resolving:
            found = self._by_class.get(cls)
            if found is None:
                found = self.fn if plan is None else Guarded(plan).callable()
                self._by_class[cls] = found
        return found

    def forget(self) -> None:
        """As if it had never been called."""
        with _resolving:
            self._by_class.clear()
            self._alone = None

    def guards(self) -> list[Guarded]:
        """Everything that guards it so far, on objects of whatever class."""
        with _resolving:
            targets = [*self._by_class.values(), self._alone]
        holders = [getattr(one, "__self__", None) for one in targets]
        return list(dict.fromkeys(holder for holder in holders if isinstance(holder, Guarded)))

    def guarded_for(self, cls: type | None = None) -> Guarded | None:
        """What guards it on objects of a class; None where nothing does. For looking around."""
        found = self._alone if cls is None else self._by_class.get(cls)
        holder = getattr(found, "__self__", None)
        return holder if isinstance(holder, Guarded) else None

    # ------------------------------------------------------------------ whose method it is

    def _owner_in(self, cls: type) -> type | None:
        """The class among a class and its bases that declares it."""
        for one in cls.__mro__:
            if self.name in one.__dict__ and leads_to(one.__dict__[self.name], self.wrapper):
                return one
        return None

    def _is_attribute_of(self, cls: type) -> bool:
        """Is it a method though a decorator hides it, as far as its name tells?"""
        return any(name_of(one) == self.class_name and self.name in one.__dict__ for one in cls.__mro__)

    def is_overridden_in(self, cls: type) -> bool:
        """Does a class find another function under this name before this one? Then this is a call through `super()`."""
        owner = self._owner_in(cls)
        return owner is not None and next(one for one in cls.__mro__ if self.name in one.__dict__) is not owner

    # ------------------------------------------------------------------ what is in force

    def annotations(self, cls: type | None) -> dict[str, Declared]:
        """Its annotations on objects of a class, wherever they stand."""
        found: dict[str, Declared] = {}
        if cls is not None and self.name[:1] != "_" and not self._is_static_in(cls):
            for one in reversed(cls.__mro__):
                own: dict[str, Annotation] = one.__dict__.get(_ON_CLASS, {})
                found.update({name: Declared(record, "class", name_of(one)) for name, record in own.items()})
        owner = None if cls is None else self._owner_in(cls)
        declaring = self.class_name if owner is None else name_of(owner)
        found.update({name: Declared(record, "method", declaring) for name, record in self.declared.items()})
        return found

    def _is_static_in(self, cls: type) -> bool:
        owner = self._owner_in(cls)
        return owner is not None and isinstance(owner.__dict__[self.name], staticmethod | classmethod)

    def plan(self, cls: type | None, configuration: config.Configuration | None = None) -> Plan:
        """What is in force on objects of a class, after configuration has had its say, and checked."""
        configured = config.current() if configuration is None else configuration
        owner = None if cls is None else self._declaring_class(cls)
        bean = self.class_name if cls is None else name_of(cls)
        where = where_of(bean, self.name)
        records: dict[str, Annotation] = {}
        standing = self.annotations(cls)
        for name, declared in standing.items():
            speaking = list(
                dict.fromkeys((bean, self.class_name if owner is None else name_of(owner), declared.class_name))
            )
            if not configured.is_enabled(name, classes=speaking, method=self.name):
                continue
            record = declared.record.overridden(
                configured.overrides(name, level=declared.level, class_name=declared.class_name, method=self.name)
            )
            record.check(where)
            records[name] = record
        shared = guards.applied(records, configured)
        if shared is not None:
            standing = {name: declared for name, declared in standing.items() if name in guards.KEPT}
        if records and configured.believes_signatures and kinds.returns_awaitable(self.origin):
            records.setdefault("Asynchronous", SaidAsynchronous())
        kind = kinds.kind_of(self.origin, asynchronous="Asynchronous" in records, where=where)
        above = [] if cls is None else [name_of(one) for one in cls.__mro__]

        def rank(one: Declared) -> int:
            return 0 if one.level == "method" else 1 + above.index(one.class_name)

        additions.check(records, standing, rank, where, kind)
        target = fallbacks.Target(self.fn, owner, where, kind)
        if "Fallback" in records:
            fallbacks.check(target, cast("SaidFallback", records["Fallback"]))
        return Plan(target, where, records, cls is not None and not self._is_plainly_static(cls), shared)

    def _declaring_class(self, cls: type) -> type | None:
        if self.origin is not self.fn:
            return next((one for one in cls.__mro__ if one.__dict__.get(self.name) is self.origin), None)
        return self._owner_in(cls) or next((one for one in cls.__mro__ if name_of(one) == self.class_name), None)

    def _is_plainly_static(self, cls: type) -> bool:
        owner = self._owner_in(cls)
        return owner is not None and isinstance(owner.__dict__[self.name], staticmethod)

    # ------------------------------------------------------------------ being annotated

    def annotate(self, record: Annotation) -> None:
        """One more annotation on it, checked as far as it can be already."""
        where = where_of(self.class_name, self.name)
        if record.name in self.declared:
            raise FaultToleranceDefinitionException(where, record.name, "must not stand on one method twice", None)
        expected = config.expected()
        if expected.is_enabled(record.name, classes=[self.class_name], method=self.name):
            level: config.Level = "method"
            values = expected.overrides(record.name, level=level, class_name=self.class_name, method=self.name)
            record.overridden(values).check(where)
            kinds.kind_of(self.origin, asynchronous=record.name == "Asynchronous", where=where)
        self.declared[record.name] = record


# ------------------------------------------------------------------ functions


def leads_to(member: object, wrapper: object) -> bool:
    """Is a member of a class this decorated function, perhaps inside of other decorators?"""
    return any(one is wrapper for one in unwrapped(member))


def unwrapped(member: object) -> Iterator[object]:
    """A member of a class, and whatever its decorators wrap."""
    one: object | None = getattr(member, "__func__", member)
    seen: set[int] = set()
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = getattr(one, "__wrapped__", None)


def method_of(fn: object) -> Method | None:
    """What a decorated function is here; None for any other."""
    fn = getattr(fn, "__func__", fn)
    method = getattr(fn, _MARK, None)
    # functools.wraps copies attributes: only our own wrapper counts.
    return method if isinstance(method, Method) and method.wrapper is fn else None


def annotate(target: F, record: Annotation) -> F:
    """Put an annotation on a function, a method or a class."""
    if isinstance(target, type):
        annotate_class(target, record)
        return cast("F", target)
    if isinstance(target, staticmethod | classmethod):
        return cast("F", type(target)(annotate(target.__func__, record)))
    if isinstance(target, property) or not callable(target):
        raise FaultToleranceDefinitionException(
            record.name, None, f"must be placed on a function, a method or a class, not on {target!r}", None
        )
    method = method_of(target) or Method(target)
    method.annotate(record)
    return cast("F", method.wrapper)


# ------------------------------------------------------------------ classes


def annotate_class(cls: type, record: Annotation) -> None:
    """Put an annotation on a class: on every business method of it and of its subclasses."""
    where = name_of(cls)
    if record.name == "Fallback":
        raise fallbacks.wrong_place(where)
    own: dict[str, Annotation] = cls.__dict__.get(_ON_CLASS, {})
    if record.name in own:
        raise FaultToleranceDefinitionException(where, record.name, "must not stand on one class twice", None)
    if _ON_CLASS not in cls.__dict__:
        _cover_subclasses(cls)
    setattr(cls, _ON_CLASS, {**own, record.name: record})
    classes.add(cls)
    cover(cls)
    _check_covered(cls)


def _check_covered(cls: type) -> None:
    """Check what a class has at class level, as far as that can be done before it is used."""
    expected, bean = config.expected(), name_of(cls)
    for method in business_methods(cls):
        for name, (record, level, class_name) in method.annotations(cls).items():
            if level == "class" and expected.is_enabled(name, classes=[bean, class_name], method=method.name):
                where = where_of(bean, method.name)
                values = expected.overrides(name, level=level, class_name=class_name, method=method.name)
                record.overridden(values).check(where)
                kinds.kind_of(method.origin, asynchronous=name == "Asynchronous", where=where)


def business_methods(cls: type) -> Iterator[Method]:
    """The public methods of a class that are guarded."""
    for name in _public_names(cls):
        member = inspect.getattr_static(cls, name)
        if isinstance(member, staticmethod | classmethod):
            continue
        for one in unwrapped(member):
            method = method_of(one)
            if method is not None:
                yield method


def _public_names(cls: type) -> list[str]:
    names = (name for one in cls.__mro__[:-1] for name in one.__dict__)
    return [name for name in dict.fromkeys(names) if not name.startswith("_")]


def cover(cls: type) -> None:
    """Guard the public methods of a class that are not guarded yet, those it inherits from others included."""
    for name in _public_names(cls):
        member = inspect.getattr_static(cls, name)
        if not isinstance(member, FunctionType) or any(method_of(one) for one in unwrapped(member)):
            continue
        if name in cls.__dict__:
            setattr(cls, name, Method(member).wrapper)
        else:
            setattr(cls, name, Method(_forwarder(cls, name, member), origin=member).wrapper)


def _forwarder(cls: type, name: str, member: FunctionType) -> Callable[..., Any]:
    """A method of this class that is the inherited one, whichever that is for an object of a subclass."""

    def forward(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return getattr(super(cls, self), name)(*args, **kwargs)

    async def aforward(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return await getattr(super(cls, self), name)(*args, **kwargs)

    made: Callable[..., Any] = aforward if inspect.iscoroutinefunction(member) else forward
    return functools.update_wrapper(made, member)


def _cover_subclasses(cls: type) -> None:
    """Let every subclass be covered when it is made. Errors there leave as what they are."""
    own = cls.__dict__.get("__init_subclass__")

    def init_subclass(subclass: Any, /, **options: Any) -> None:
        if own is not None:
            own.__func__(subclass, **options)
        else:
            cast("Any", super(cls, subclass)).__init_subclass__(**options)
        cover(subclass)
        _check_covered(subclass)

    cls.__init_subclass__ = classmethod(init_subclass)  # type: ignore[assignment]  # what Python itself makes of it
