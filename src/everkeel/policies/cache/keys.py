"""Which calls are the same: those of one function with equal arguments of equal types, or what a key function says.

A key is made by the weaver, from the function's own signature: `load(1)`, `load(1, "eu")` and `load(1, region="eu")`
are one key where "eu" is the default, on the plain path as in a woven function.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from types import FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

from everkeel.errors import ConfigError
from everkeel.runtime.innermost import innermost
from everkeel.runtime.signature import named, signature_of, types_of
from everkeel.runtime.state import CallKind, State
from everkeel.runtime.weave import compiled

if TYPE_CHECKING:
    from everkeel.runtime.policy import AnyPolicy

_ARGUMENTS = "(FN, KEY)"
_CHOSEN = "key(ARGS)"
_MOST_FUNCTIONS = 256


def expression(key: Callable[..., Hashable] | None) -> str:
    """The key of a call, in the words of a fragment."""
    return _ARGUMENTS if key is None else _CHOSEN


class _Ask(State):
    """Answers with the key of a call in place of making it."""

    __slots__ = ("_key", "policy")
    word = "ask"

    def __init__(self, key: Callable[..., Hashable] | None) -> None:
        self._key = key

    def fragment(self, kind: CallKind) -> str | None:
        return f"RESULT = {expression(self._key)}"

    def names(self, kind: CallKind) -> dict[str, object]:
        return {} if self._key is None else {"key": self._key}


class Keys:
    """Makes the keys of calls on the plain path."""

    __slots__ = ("_key", "_makers")

    def __init__(self, key: Callable[..., Hashable] | None) -> None:
        self._key = key
        self._makers: dict[Callable[..., Any], Callable[..., Hashable]] = {}

    def of(self, policy: AnyPolicy, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Hashable:
        """The key of a call; an error that names the culprit where it has none."""
        fn = innermost(fn)
        if type(fn) is FunctionType:
            key = self._maker(fn)(*args, **kwargs)
        elif self._key is None:  # nothing is known of its parameters: what the weaver makes of `*args, **kwargs`
            key = (fn, args, named(kwargs) if kwargs else (), *types_of(args))
        else:
            key = self._key(*args, **kwargs)
        try:
            hash(key)
        except TypeError:
            self._explain(policy.label, fn, key)
        return key

    def _maker(self, fn: Callable[..., Any]) -> Callable[..., Hashable]:
        maker = self._makers.get(fn)
        if maker is None:
            maker = compiled(fn, (_Ask(self._key),), "sync")
            if len(self._makers) >= _MOST_FUNCTIONS:
                self._makers.clear()  # somebody calls with a new function each time; those never hit anyway
            self._makers[fn] = maker
        return maker

    def _explain(self, label: str, fn: Callable[..., Any], key: Any) -> NoReturn:
        if self._key is not None:
            raise ConfigError(label, "key", "must return something hashable, such as a string", repr(key)) from None
        written, values = signature_of(fn), iter(key[1:])
        culprits = [(f"argument {name!r}", next(values)) for name in written.plain]
        if written.star is not None:
            culprits += [(f"an argument in *{written.star}", one) for one in next(values)]
        if written.stars is not None:
            culprits += [(f"argument {name!r}", value) for name, value, _ in next(values)]
        for what, value in culprits:
            try:
                hash(value)
            except TypeError:
                kind = type(value).__name__
                raise TypeError(
                    f"{label}: {what} is a {kind}, which is not hashable and cannot be part of a key; "
                    "give the cache a key function, such as key=lambda ids: tuple(ids)"
                ) from None
        raise TypeError(f"{label}: {fn!r} is not hashable, so it cannot be told apart from other functions") from None
