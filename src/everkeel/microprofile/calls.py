"""What is known about one call on its way through the policies, and how errors travel there.

Policies know two families: `Exception`, which they judge, and everything else, which they let pass. The standard has a
third, its `Error`: a `BaseException` that is not an `Exception` and yet may be retried, counted and replaced. Such an
error travels in a `Carried`, which is an `Exception`, and comes out of it again as the very object it was.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Callable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everkeel.microprofile.backoffs import Delays

UNTOUCHED = (KeyboardInterrupt, SystemExit, GeneratorExit, CancelledError)
"""Never retried, counted or replaced, whatever a list of exceptions says."""


class Carried(Exception):  # noqa: N818 - never seen by anybody outside
    """An error that is no `Exception`, on its way through the policies."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class CarriedOut(BaseException):
    """One of the `UNTOUCHED` that a body raised in another thread: it passes every policy, and no event loop stops."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


def carried(error: BaseException, *, elsewhere: bool = False) -> BaseException:
    """The error as it travels. `elsewhere`: it comes from another thread, and is about to enter a coroutine."""
    if isinstance(error, CarriedOut):
        return error
    if isinstance(error, UNTOUCHED):
        return CarriedOut(error) if elsewhere else error
    if not isinstance(error, Exception) or (elsewhere and isinstance(error, StopIteration | StopAsyncIteration)):
        return Carried(error)
    return error


def real(error: BaseException) -> BaseException:
    """The error as it was raised."""
    return error.error if isinstance(error, Carried | CarriedOut) else error


class Named:
    """A list of exception classes as a question that policies ask: is it one of these?"""

    __slots__ = ("classes",)

    def __init__(self, classes: tuple[type[BaseException], ...]) -> None:
        self.classes = classes

    def __call__(self, error: BaseException) -> bool:
        return isinstance(real(error), self.classes)

    def __repr__(self) -> str:
        return ", ".join(cls.__qualname__ for cls in self.classes) or "nothing"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named) and self.classes == other.classes

    def __hash__(self) -> int:
        return hash(self.classes)


def judged(
    on: tuple[type[BaseException], ...], ignore: tuple[type[BaseException], ...], *, causes: bool
) -> tuple[Callable[[BaseException], bool], Callable[[BaseException], bool] | None]:
    """Two lists of exception classes as policies ask them: what counts, and what does not whatever the first says.

    `causes`: an exception that neither list knows is judged by what it was raised from, as far up as need be.
    """
    if not causes:
        return Named(on), Named(ignore) if ignore else None

    def verdict(error: BaseException) -> bool | None:
        one: BaseException | None = real(error)
        seen: set[int] = set()
        while one is not None and id(one) not in seen:  # a chain may be a ring
            seen.add(id(one))
            if isinstance(one, ignore):
                return False
            if isinstance(one, on):
                return True
            one = one.__cause__ or one.__context__
        return None

    return lambda error: verdict(error) is True, lambda error: verdict(error) is False


class Call:
    """One call of a guarded method, with all its attempts."""

    __slots__ = ("applied", "attempts", "delays", "failure", "interrupts", "launched", "on_settled", "reason")

    def __init__(self, *, launched: bool = False) -> None:
        self.launched = launched
        """Was it made by whoever launched the call, who wants to hear of it, and not yet taken up?"""
        self.attempts = 0
        self.reason: str | None = None
        """Why the last attempt was not retried."""
        self.applied = False
        """Did the fallback run?"""
        self.delays: Delays | None = None
        """How long it waits before each retry, where that is not always the same."""
        self.failure: BaseException | None = None
        """What the last attempt raised, where somebody wants to know."""
        self.interrupts = True
        """Is the body told when the call is cancelled?"""
        self.on_settled: Callable[[], object] | None = None

    def settled(self) -> None:
        """The first attempt has been let in, or sent away and something else follows: its caller need not wait."""
        act, self.on_settled = self.on_settled, None
        if act is not None:
            act()


class Attempt:
    """One pass through circuit breaker, timeout and bulkhead. It may outlive its call by far."""

    __slots__ = ("admitted", "arrived", "bulkhead", "call", "queued", "started", "timed_out")

    def __init__(self, call: Call | None) -> None:
        self.call = call
        self.admitted = False
        """Did the circuit breaker let it pass?"""
        self.timed_out = False
        self.bulkhead: object = None
        """Who watches the bulkhead it came to: one that is shared is watched by several."""
        self.arrived = 0.0
        """When it came to the bulkhead."""
        self.queued = self.started = False


CALL: ContextVar[Call | None] = ContextVar("everkeel.microprofile.call", default=None)
ATTEMPT: ContextVar[Attempt | None] = ContextVar("everkeel.microprofile.attempt", default=None)


def the_call() -> Call:
    """The call in progress here."""
    call = CALL.get()
    return Call() if call is None else call


def the_attempt() -> Attempt:
    """The attempt in progress here."""
    attempt = ATTEMPT.get()
    return Attempt(None) if attempt is None else attempt


def where_of(class_name: str, method: str) -> str:
    """How messages and metrics call a method."""
    return f"{class_name}.{method}"


def name_of(cls: type) -> str:
    """How configuration and metrics call a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


Body = Callable[..., Any]
