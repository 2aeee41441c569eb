"""The layers a call passes through: the permit protocol, the plain path over it, and the fragment lent to the weaver.

A *state* is what calls share: one per policy, or one per key. `enter` gives a permit or raises; a permit ends in
exactly one of `done`, `failed` and `dropped` (no evidence). Endings never await: they also run while a coroutine is
being closed.

There are two ways through a state, and both decide with the same methods:

- the *plain path*, `call` / `acall` / `stream` / `astream`: ordinary functions, used by `.call()`, blocks, generators;
- the *woven path*: `fragment`, a few lines of ordinary Python with a hole (`INNER`) where the guarded call goes, which
  the weaver nests into one function. A fragment is the inlined beginning of the methods: it looks at one attribute
  and otherwise calls them. The default fragment is the permit protocol unrolled, so a policy need not write one.

Words in a fragment: `INNER` the guarded call, `ARGS` the arguments it gets, `FIRST` the first of them, `RESULT` what
it returned, `REST` a function that runs everything inside, `FN` the function itself, `KEY` its arguments and their
types as elements of a tuple, `AWAIT` (`await` or nothing); a method in capitals, `.ENTER()`, is `.aenter()` in a
coroutine function and `.enter()` elsewhere. Names are the state's `word`, its `parts`, what `names` gives, and locals
of your own.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from everkeel.errors import RejectedError
from everkeel.runtime.outcome import NO_RESULT

if TYPE_CHECKING:
    pass

CallKind: TypeAlias = Literal["sync", "async", "generator", "async generator"]
DRIVERS: dict[str, str] = {"sync": "call", "async": "acall", "generator": "stream", "async generator": "astream"}

UNROLLED = """\
permit = AWAIT state.ENTER()
try:
    INNER
except Exception as error:
    state.failed(permit, error)
    raise
except BaseException as error:
    state.dropped(permit, error)
    raise
state.done(permit, RESULT)"""


class State:
    """What calls share. Subclasses override what they decide; all forms of calling follow from it."""

    __slots__ = ()
    word: ClassVar[str] = "state"
    """What it is called in its fragment."""
    parts: ClassVar[tuple[str, ...]] = ()
    """Attributes its fragment mentions by bare name; they never change during the state's life."""
    policy: Any
    """Whose state this is; every subclass has a slot of this name."""

    # ------------------------------------------------------------------ the permit protocol

    def enter(self) -> Any:
        """A permit, or an error that says why not."""

    async def aenter(self) -> Any:
        """The same for a coroutine, which may have to wait."""
        return self.enter()

    def try_enter(self) -> Any:
        """The same without ever waiting: what shadow mode asks."""
        return self.enter()

    def done(self, permit: Any, result: Any) -> None:
        """The call returned."""

    def failed(self, permit: Any, error: Exception) -> None:
        """The call raised; whether that is a failure is for this method to judge."""

    def dropped(self, permit: Any, error: BaseException) -> None:
        """The call was cancelled or interrupted: give back what was taken and learn nothing."""

    def ended(self, permit: Any, error: BaseException | None, result: Any = None) -> None:
        """Whichever of the three endings this is."""
        if error is None:
            self.done(permit, result)
        elif isinstance(error, Exception):
            self.failed(permit, error)
        else:
            self.dropped(permit, error)

    # ------------------------------------------------------------------ the plain path

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call `fn` under this state."""
        permit = self.enter()
        try:
            result = fn(*args, **kwargs)
        except Exception as error:
            self.failed(permit, error)
            raise
        except BaseException as error:
            self.dropped(permit, error)
            raise
        self.done(permit, result)
        return result

    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Await `fn` under this state."""
        permit = await self.aenter()
        try:
            result = await fn(*args, **kwargs)
        except Exception as error:
            self.failed(permit, error)
            raise
        except BaseException as error:
            self.dropped(permit, error)
            raise
        self.done(permit, result)
        return result

    def stream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        """Run the generator function `fn` under this state: the permit is held until it ends or is closed."""
        permit = self.enter()
        try:
            result = yield from fn(*args, **kwargs)
        except Exception as error:
            self.failed(permit, error)
            raise
        except BaseException as error:
            self.dropped(permit, error)
            raise
        self.done(permit, NO_RESULT)
        return result

    async def astream(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        """Run the async generator function `fn` under this state."""
        permit = await self.aenter()
        try:
            items = fn(*args, **kwargs)
            try:
                async for item in items:
                    yield item
            finally:
                await items.aclose()  # before the permit ends: the work inside is not over until it is closed
        except Exception as error:
            self.failed(permit, error)
            raise
        except BaseException as error:
            self.dropped(permit, error)
            raise
        self.done(permit, NO_RESULT)

    # ------------------------------------------------------------------ the woven path

    def fragment(self, kind: CallKind) -> str | None:
        """The lines this state contributes; None makes it a seam: what is inside becomes a function it calls."""
        return UNROLLED.replace("state", self.word)

    def names(self, kind: CallKind) -> dict[str, object]:
        """What the other words in the fragment stand for."""
        return {}

    # ------------------------------------------------------------------ live changes

    def shadow(self) -> State:
        """The state that only watches."""
        return Shadow(self)

    def adapt(self, old: Any, new: Any) -> None:
        """The policy's config went from `old` to `new`; keep what was learned."""

    def forgettable(self) -> bool:
        """May this key's state be dropped without changing any decision?"""
        return False

    def after_fork(self) -> None:
        """In a forked child: nothing that was in flight in the parent is in flight here."""

    def successes(self) -> int:
        """How many calls ended well."""
        return 0

    def details(self) -> dict[str, Any]:
        """What a snapshot shows of this state."""
        return {}


class Shadow(State):
    """Decides, counts and reports through the state's own methods, and never touches the call."""

    __slots__ = ("policy", "state")

    def __init__(self, state: State) -> None:
        self.state, self.policy = state, state.policy

    def enter(self) -> Any:
        try:
            return (self.state.try_enter(),)
        except RejectedError as rejection:
            self.policy.would("reject", rejection)
            return None

    def done(self, permit: Any, result: Any) -> None:
        if permit is not None:
            self.state.done(permit[0], result)

    def failed(self, permit: Any, error: Exception) -> None:
        if permit is not None:
            self.state.failed(permit[0], error)

    def dropped(self, permit: Any, error: BaseException) -> None:
        if permit is not None:
            self.state.dropped(permit[0], error)


def fold(layers: Iterable[State], kind: CallKind, fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn` inside `layers`, outermost first, on the plain path."""
    driver = DRIVERS[kind]
    for layer in reversed(tuple(layers)):
        fn = partial(getattr(layer, driver), fn)
    return fn
