"""One state per key, in bounded memory: how a policy treats each tenant, host or user on its own."""

from __future__ import annotations

import threading
from collections.abc import AsyncGenerator, Callable, Generator, Hashable
from itertools import islice
from typing import TYPE_CHECKING, Any

from everkeel.errors import ConfigError
from everkeel.runtime.state import CallKind, State
from everkeel.runtime.trouble import warn

if TYPE_CHECKING:
    from everkeel.runtime.policy import AnyPolicy

_LOOKS = 8  # how many of the oldest keys are looked at when the cap is reached and a new one comes

_LOOKUP = """\
which = key(ARGS)
try:
    {word} = found(which)
except TypeError:
    {word} = None
if {word} is None:
    {word} = keyed.at(which)
"""


class Keyed(State):
    """Finds the state of a call's key, and lets it do the rest.

    A key is forgotten only when that changes no decision. At the cap, new keys share one overflow state: sharing
    a limit is safe, while dropping somebody's state would let them start over.
    """

    __slots__ = ("_like", "_making", "_retired", "_warned", "cap", "key", "make", "overflow", "policy", "states")
    word = "keyed"

    def __init__(self, policy: AnyPolicy, make: Callable[[Any], State], key: Callable[..., Hashable], cap: int) -> None:
        self.policy, self.make, self.key, self.cap = policy, make, key, cap
        self.states: dict[Hashable, State] = {}
        self.overflow: State | None = None
        self._like: State | None = None
        self._retired = 0  # successes of states that were forgotten
        self._warned = False
        self._making = threading.Lock()

    def of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> State:
        """The state for a call with these arguments."""
        return self.at(self.key(*args, **kwargs))

    def at(self, key: Hashable) -> State:
        """The state of a key, made when it is first seen."""
        try:
            state = self.states.get(key)
        except TypeError:
            raise ConfigError(
                self.policy.label, "key", "must return something hashable, such as a string", repr(key)
            ) from None
        return self._make(key) if state is None else state

    def _make(self, key: Hashable) -> State:
        # One at a time: a key that is moved to the end of the queue is missing for a moment, and whoever misses it
        # then must not get a new state in its place.
        with self._making:
            state = self.states.get(key)
            if state is not None:
                return state
            if len(self.states) < self.cap or self._make_room():
                state = self.states[key] = self.make(key)
                return state
            if self.overflow is None:
                self.overflow = self.make(None)
        return self._overflowed(self.overflow)

    def _make_room(self) -> bool:
        """Look at a few of the oldest keys, drop what may be dropped, and let the others queue up again."""
        room = False
        for key in list(islice(self.states, _LOOKS)):
            state = self.states.pop(key)
            if state.forgettable():
                self._retired += state.successes()
                room = True
            else:
                self.states[key] = state
        return room

    def _overflowed(self, state: State) -> State:
        self.policy.counts.tick("overflow")
        if not self._warned:
            self._warned = True
            warn("%s: %d keys are in use; further keys share one state", self.policy.label, self.cap)
        return state

    def everyone(self) -> list[State]:
        """Every state there is."""
        return [*self.states.copy().values(), *([self.overflow] if self.overflow is not None else [])]

    # ------------------------------------------------------------------ the plain path

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return self.of(args, kwargs).call(fn, *args, **kwargs)

    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return await self.of(args, kwargs).acall(fn, *args, **kwargs)

    def stream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        return (yield from self.of(args, kwargs).stream(fn, *args, **kwargs))

    async def astream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        items = self.of(args, kwargs).astream(fn, *args, **kwargs)
        try:
            async for item in items:
                yield item
        finally:
            await items.aclose()  # now, and not when somebody collects it: it holds a permit

    # ------------------------------------------------------------------ the woven path

    def fragment(self, kind: CallKind) -> str | None:
        """The fragment of one state, behind the few lines that find it."""
        like = self._like = self._like or self.make(None)
        fragment = like.fragment(kind)
        if fragment is None:
            return None
        lookup = _LOOKUP.format(word=like.word) + "".join(f"{part} = {like.word}.{part}\n" for part in like.parts)
        return lookup + fragment

    def names(self, kind: CallKind) -> dict[str, object]:
        given = {} if self._like is None else self._like.names(kind)
        return {"key": self.key, "found": self.states.get, **given}

    # ------------------------------------------------------------------ live changes

    def shadow(self) -> State:
        return KeyedShadow(self)

    def adapt(self, old: Any, new: Any) -> None:
        self._like = None
        for state in self.everyone():
            state.adapt(old, new)

    def after_fork(self) -> None:
        self._making = threading.Lock()
        for state in self.everyone():
            state.after_fork()

    def successes(self) -> int:
        return self._retired + sum(state.successes() for state in self.everyone())

    def details(self) -> dict[str, Any]:
        return {"keys": len(self.states), "overflow": self.policy.counts["overflow"], **self.policy.over_keys(self)}


class KeyedShadow(Keyed):
    """Finds the state of a call's key, and only watches."""

    __slots__ = ("_keyed",)

    def __init__(self, keyed: Keyed) -> None:
        super().__init__(keyed.policy, keyed.make, keyed.key, keyed.cap)
        self._keyed = keyed

    def at(self, key: Hashable) -> State:
        return self._keyed.at(key).shadow()

    def fragment(self, kind: CallKind) -> str | None:
        return None
