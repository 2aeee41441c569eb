"""Every behaviour of a limiter in every form of calling: a test is written once and runs over all of them.

- plain: `limiter.call(fn)` / `limiter.acall(fn)`
- woven: a decorated function with the limiter's own lines in it
- seam: a decorated function whose generated code calls the plain driver

each sync and async. Time is virtual; where nanoseconds matter, a clock that counts them is set by hand.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from everkeel import Clock, RateLimitedError
from everkeel.ratelimit.state import Limiting
from everkeel.testing import EventRecorder, VirtualClock, fresh_everkeel, record_events, virtual_time

STYLES = ("plain", "woven", "seam")
SECOND = 1_000_000_000


class HandClock(Clock):
    """A clock that stands still until a test moves it, to the nanosecond."""

    def __init__(self, now: int = 1_000 * SECOND) -> None:
        self.now = now

    def monotonic_ns(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.now / SECOND


@dataclass(frozen=True)
class Form:
    """One way of calling. `form(limiter, fn)` is `fn` limited, to be called like any sync function."""

    style: str
    awaited: bool
    run: Callable[[Any], Any]

    def __str__(self) -> str:
        return f"{self.style}-{'async' if self.awaited else 'sync'}"

    def __call__(self, limiter: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
        if not self.awaited:
            return self.guarded(limiter, fn)
        guarded = self.guarded(limiter, fn)
        return lambda *args, **kwargs: self.run(guarded(*args, **kwargs))

    def guarded(self, limiter: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Limited; a coroutine function where the form is async."""
        if self.awaited:

            async def work(*args: Any, **kwargs: Any) -> Any:
                return fn(*args, **kwargs)

            return limiter(work) if self.style != "plain" else lambda *a, **k: limiter.acall(work, *a, **k)

        def sync_work(*args: Any, **kwargs: Any) -> Any:
            return fn(*args, **kwargs)

        return limiter(sync_work) if self.style != "plain" else lambda *a, **k: limiter.call(sync_work, *a, **k)


def drive(coroutine: Any) -> Any:
    """Run a coroutine that waits for nothing: faster than an event loop, and without one."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    coroutine.close()
    raise AssertionError("it waited for something")


def _styled(style: str, patch: pytest.MonkeyPatch) -> None:
    if style == "seam":
        patch.setattr(Limiting, "fragment", lambda self, kind: None)


FORMS = [(style, awaited) for style in STYLES for awaited in (False, True)]
NAMES = [f"{style}-{'async' if awaited else 'sync'}" for style, awaited in FORMS]


@pytest.fixture
def clock() -> Iterator[VirtualClock]:
    """Virtual time for the whole test, and a process that has not seen any policy yet."""
    with fresh_everkeel(), virtual_time() as clock:
        yield clock


@pytest.fixture
def by_hand() -> Iterator[HandClock]:
    """A clock that stands still until a test moves it."""
    with fresh_everkeel():
        yield HandClock()


@pytest.fixture
def heard() -> Iterator[EventRecorder]:
    """The events of every policy."""
    with record_events() as recorded:
        yield recorded


@pytest.fixture(params=FORMS, ids=NAMES)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Form:
    """Every form, for calls that do not wait."""
    style, awaited = request.param
    _styled(style, monkeypatch)
    return Form(style, awaited, drive)


@pytest.fixture(params=FORMS, ids=NAMES)
def timed(request: pytest.FixtureRequest, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> Form:
    """Every form, for calls that may wait: async ones run on a loop of the test's virtual clock."""
    style, awaited = request.param
    _styled(style, monkeypatch)
    return Form(style, awaited, clock.run)


@pytest.fixture(params=STYLES)
def threaded(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Form:
    """The sync forms."""
    _styled(request.param, monkeypatch)
    return Form(request.param, False, drive)


@pytest.fixture(params=STYLES)
def awaited(request: pytest.FixtureRequest, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> Form:
    """The async forms."""
    _styled(request.param, monkeypatch)
    return Form(request.param, True, clock.run)


@pytest.fixture
def every_form() -> Callable[[Callable[[Form, HandClock], Any]], dict[str, Any]]:
    """Runs something in each form, each in a fresh process, so to say, with a clock; answers what came out, by form."""

    def run(act: Callable[[Form, HandClock], Any]) -> dict[str, Any]:
        came: dict[str, Any] = {}
        for style, is_async in FORMS:
            with pytest.MonkeyPatch.context() as patch, fresh_everkeel():
                _styled(style, patch)
                one = Form(style, is_async, drive)
                came[str(one)] = act(one, HandClock())
        return came

    return run


@pytest.fixture
def together() -> Callable[..., list[Any]]:
    """`together(8, act)`: eight threads call `act(number)` at once; answers what they returned, or raised."""

    def run(count: int, act: Callable[[int], Any]) -> list[Any]:
        barrier, answers = threading.Barrier(count), [None] * count

        def one(number: int) -> None:
            barrier.wait()
            try:
                answers[number] = act(number)
            except BaseException as error:
                answers[number] = error  # type: ignore[call-overload]

        threads = [threading.Thread(target=one, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return answers

    return run


@pytest.fixture
def admitted() -> Callable[[Callable[..., Any]], Callable[..., bool]]:
    """`admitted(fn)` answers whether a call was let in."""

    def asking(fn: Callable[..., Any]) -> Callable[..., bool]:
        def ask(*args: Any, **kwargs: Any) -> bool:
            try:
                fn(*args, **kwargs)
            except RateLimitedError:
                return False
            return True

        return ask

    return asking
