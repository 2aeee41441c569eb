"""Every behaviour of the breaker in every form of calling: a test is written once and runs over all of them.

- plain: `breaker.call(fn)` / `breaker.acall(fn)`
- unrolled: a decorated function with the permit protocol written out, as every policy has it by default
- woven: a decorated function with the breaker's own fast lines
- entry: `with breaker.entry() as entry: entry.result(fn())`
- block: `with breaker: fn()`

each sync and async. A breaker never awaits anything, so that an async call whose body does not either needs no event
loop: it is driven to its end by one step. Calls may then be nested, which is how a test has one in flight while others
come and go.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from everkeel import CircuitBreaker, CircuitOpenError
from everkeel.policies.circuit_breaker.state import Circuit
from everkeel.runtime.state import State
from everkeel.testing import VirtualClock


@pytest.fixture
def clock(clock: VirtualClock) -> Iterator[VirtualClock]:
    """The same as above; leaves no policies behind, which every later test would have to start over."""
    yield clock
    gc.collect(1)


class Interrupt(BaseException):
    """Stands for Ctrl-C and for cancellation: it is no `Exception`."""


def nothing() -> None:
    """What happens while a call is in flight, unless a test says otherwise."""


def dependency(outcome: Any = "ok", during: Callable[[], object] = nothing, *, key: str | None = None) -> Any:
    """What the breaker guards: it lets `during` happen, and then returns or raises what it is told."""
    during()
    if isinstance(outcome, BaseException) or (isinstance(outcome, type) and issubclass(outcome, BaseException)):
        raise outcome
    return outcome


async def adependency(outcome: Any = "ok", during: Callable[[], object] = nothing, *, key: str | None = None) -> Any:
    """The same as a coroutine function."""
    return dependency(outcome, during)


def drive(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that awaits nothing but coroutines."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    coroutine.close()
    raise AssertionError("it waited for something")


@dataclass(frozen=True)
class Form:
    """One way of calling."""

    style: str
    awaited: bool

    def __str__(self) -> str:
        return f"{self.style}-{'async' if self.awaited else 'sync'}"

    def guarded(self, breaker: CircuitBreaker, fn: Callable[..., Any]) -> Callable[..., Any]:
        """`fn` guarded, and of the same kind as before."""
        if self.style == "plain":
            driver: Any = breaker.acall if self.awaited else breaker.call
            return lambda *args, **kwargs: driver(fn, *args, **kwargs)
        if self.style == "entry":
            return in_an_async_entry(breaker, fn) if self.awaited else in_an_entry(breaker, fn)
        if self.style == "block":
            return in_an_async_block(breaker, fn) if self.awaited else in_a_block(breaker, fn)
        return breaker(fn)

    def calls(self, breaker: CircuitBreaker) -> Calls:
        """The dependency behind the breaker, to be called in this form."""
        if not self.awaited:
            return Calls(breaker, self.guarded(breaker, dependency))
        guarded = self.guarded(breaker, adependency)
        return Calls(breaker, lambda *args, **kwargs: drive(guarded(*args, **kwargs)))


def in_an_entry(breaker: CircuitBreaker, fn: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with breaker.entry(key=kwargs.get("key")) as entry:
            return entry.result(fn(*args, **kwargs))

    return call


def in_an_async_entry(breaker: CircuitBreaker, fn: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        async with breaker.entry(key=kwargs.get("key")) as entry:
            return entry.result(await fn(*args, **kwargs))

    return call


def in_a_block(breaker: CircuitBreaker, fn: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with breaker:
            return fn(*args, **kwargs)

    return call


def in_an_async_block(breaker: CircuitBreaker, fn: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        async with breaker:
            return await fn(*args, **kwargs)

    return call


class Calls:
    """Calls of a dependency through a breaker."""

    errors: dict[str, type[BaseException]] = {  # noqa: RUF012 - a table, never changed
        "f": ConnectionError,
        "i": KeyError,
        "u": ValueError,
        "c": Interrupt,
    }

    def __init__(self, breaker: CircuitBreaker, call: Callable[..., Any]) -> None:
        self.breaker, self.call = breaker, call

    def __call__(self, outcome: Any = "ok", during: Callable[[], object] = nothing, **kwargs: Any) -> Any:
        """One call, which returns or raises as it ends."""
        return self.call(outcome, during, **kwargs)

    def feed(self, script: str, *, during: Callable[[], object] = nothing, **kwargs: Any) -> str:
        """One call for each letter, answering how each ended: s(uccess), f(ailure), i(gnored), u(nnamed), c(ancelled).

        An `x` in the answer is a call that was rejected.
        """
        ended = ""
        for letter in script.replace(" ", ""):
            # A new error each time: one that is kept would keep alive all the frames it ever passed.
            outcome = "ok" if letter == "s" else self.errors[letter]()
            try:
                self.call(outcome, during, **kwargs)
            except CircuitOpenError:
                letter = "x"
            except (Exception, Interrupt) as error:
                if error is not outcome:
                    raise
            ended += letter
        return ended

    def rejected(self, **kwargs: Any) -> CircuitOpenError:
        """The error of a call that must be rejected before it is made."""
        made: list[str] = []
        with pytest.raises(CircuitOpenError) as raised:
            self.call("ok", lambda: made.append("called"), **kwargs)
        assert not made, "the dependency was called although the call was rejected"
        return raised.value


Start = Callable[[CircuitBreaker], Calls]


def _entered(form: Form, stack: ExitStack) -> Form:
    if form.style == "unrolled":
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(Circuit, "fragment", State.fragment)
    return form


def forms(*styles: str, awaited: tuple[bool, ...] = (False, True)) -> dict[str, Any]:
    """The arguments that make a fixture of these forms."""
    every = [Form(style, wait) for style in styles for wait in awaited]
    return {"params": every, "ids": [str(form) for form in every]}


@pytest.fixture(**forms("plain", "unrolled", "woven", "entry"))
def calls(request: pytest.FixtureRequest, clock: VirtualClock) -> Any:
    """`calls(breaker)` is the dependency behind the breaker, in every form that can report a result."""
    with ExitStack() as stack:
        yield _entered(request.param, stack).calls


@pytest.fixture(**forms("plain", "unrolled", "woven"))
def decorated(request: pytest.FixtureRequest, clock: VirtualClock) -> Any:
    """The same in the forms that see the arguments, which is what a key is made of."""
    with ExitStack() as stack:
        yield _entered(request.param, stack).calls


@pytest.fixture(**forms("block", "entry"))
def blocks(request: pytest.FixtureRequest, clock: VirtualClock) -> Start:
    """The same as blocks."""
    return request.param.calls  # type: ignore[no-any-return]


@pytest.fixture(**forms("block"))
def block(request: pytest.FixtureRequest, clock: VirtualClock) -> Start:
    """The same as a block that reports no result."""
    return request.param.calls  # type: ignore[no-any-return]


@pytest.fixture(**forms("plain", "unrolled", "woven", "block", awaited=(False,)))
def threaded(request: pytest.FixtureRequest, clock: VirtualClock) -> Any:
    """`threaded(breaker, fn)` guards a function, in every sync form. The breaker must be given the clock."""
    with ExitStack() as stack:
        yield _entered(request.param, stack).guarded


@pytest.fixture(**forms("plain", "unrolled", "woven", "block", awaited=(True,)))
def awaited(request: pytest.FixtureRequest, clock: VirtualClock) -> Any:
    """`awaited(breaker, fn)` guards a coroutine function, in every async form."""
    with ExitStack() as stack:
        yield _entered(request.param, stack).guarded


@pytest.fixture
def every_form() -> Callable[[Callable[[Start, VirtualClock], Any]], dict[str, Any]]:
    """Runs something in each form, with a clock to give to its breaker; answers what came out, by form."""

    def run(act: Callable[[Start, VirtualClock], Any]) -> dict[str, Any]:
        came: dict[str, Any] = {}
        for style in ("plain", "unrolled", "woven", "entry"):
            for wait in (False, True):
                with ExitStack() as stack:
                    form = _entered(Form(style, wait), stack)
                    came[str(form)] = act(form.calls, VirtualClock())
        return came

    return run


@pytest.fixture
def together() -> Callable[..., list[Any]]:
    """`together(act, act, ...)` runs each in a thread of its own, all from one instant on; answers what each answered.

    An exception is an answer too.
    """

    def run(*acts: Callable[[], Any]) -> list[Any]:
        barrier = threading.Barrier(len(acts))
        answers: list[Any] = [None] * len(acts)

        def one(place: int) -> None:
            barrier.wait(30)
            try:
                answers[place] = acts[place]()
            except BaseException as error:
                answers[place] = error

        threads = [threading.Thread(target=one, args=(place,)) for place in range(len(acts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in threads), "a thread hangs"
        return answers

    return run
