"""Every behaviour in every form of calling: a test is written once and runs over all of them.

- plain: `policy.call(fn)` / `policy.acall(fn)`
- woven: a decorated function, which is one generated function with the policies' fragments in it
- seam: a decorated function whose generated code calls the plain driver (what bounded retries do by themselves)
- block: `for attempt in policy.attempts(): with attempt: ...` (retry only)

each sync and async. Async forms run in virtual time, on the same clock as the test itself.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any

import pytest

from everkeel.policies.chaos.state import Faults
from everkeel.policies.fail_fast.state import Gate
from everkeel.policies.fallback import Rescue
from everkeel.policies.feature_toggle.state import Switch
from everkeel.policies.retry import attempt as marks
from everkeel.policies.retry.nesting import BLOCK
from everkeel.policies.retry.state import Retrying
from everkeel.runtime import workers
from everkeel.runtime.deadline import AMBIENT
from everkeel.testing import EventRecorder, Flaky, VirtualClock, fresh_everkeel, record_events, virtual_time


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[VirtualClock]:
    """Virtual time for the whole test, and a process that has not seen any policy yet."""
    monkeypatch.setattr(marks, "wanted", False)  # nor asked for the current attempt
    before = _busy_workers()
    with fresh_everkeel(), virtual_time() as clock:
        yield clock
        # Calls that were given up on end now, and not in the next test, which would hear of it.
        for _ in range(400):
            if _busy_workers() <= before:
                break
            threading.Event().wait(0.005)
    assert (marks.CURRENT.get(), BLOCK.get(), AMBIENT.get()) == (None, None, None), (
        "the test's context is not as it was"
    )


def _busy_workers() -> int:
    return len([one for one in threading.enumerate() if one.name == "everkeel-worker"]) - len(workers._idle)


@pytest.fixture
def heard(clock: VirtualClock) -> Iterator[EventRecorder]:
    """The events of every policy."""
    with record_events() as recorded:
        yield recorded


@dataclass(frozen=True)
class Form:
    """One way of calling. `form(policy, fn)` is `fn` guarded by the policy, to be called like any sync function."""

    style: str
    awaited: bool
    clock: VirtualClock

    def __call__(self, policy: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
        if not self.awaited:
            return self.guarded(policy, fn)
        guarded = self.guarded(policy, as_coroutine_function(fn))
        return lambda *args, **kwargs: self.clock.run(guarded(*args, **kwargs))

    def guarded(self, policy: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
        """Guarded, and of the same kind as before: for tests that run event loops and threads of their own."""
        if self.style == "block":
            return in_async_blocks(policy, fn) if self.awaited else in_blocks(policy, fn)
        if self.style == "plain":
            driver = policy.acall if self.awaited else policy.call
            return lambda *args, **kwargs: driver(fn, *args, **kwargs)
        return policy(fn)


def as_coroutine_function(fn: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    """The same as a coroutine function; what a sync function hands out to be awaited is awaited."""
    if isinstance(fn, Flaky):
        return fn.async_()  # type: ignore[return-value]

    async def attempt(*args: Any, **kwargs: Any) -> Any:
        result = fn(*args, **kwargs)
        return await result if isawaitable(result) else result

    return attempt


def in_blocks(policy: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        for attempt in policy.attempts():
            with attempt:
                result = attempt.result(fn(*args, **kwargs))
        return result

    return call


def in_async_blocks(policy: Any, fn: Callable[..., Awaitable[Any]]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        async for attempt in policy.attempts():
            async with attempt:
                result = attempt.result(await fn(*args, **kwargs))
        return result

    return call


def _form(style: str, awaited: bool, clock: VirtualClock, patch: pytest.MonkeyPatch) -> Form:
    if style == "seam":
        for state in (Retrying, Rescue, Gate, Switch, Faults):
            patch.setattr(state, "fragment", lambda self, kind: None)
    return Form(style, awaited, clock)


STYLES = ("plain", "woven", "seam")


def _named(styles: tuple[str, ...]) -> dict[str, Any]:
    pairs = [(style, awaited) for style in styles for awaited in (False, True)]
    return {"params": pairs, "ids": [f"{style}-{'async' if awaited else 'sync'}" for style, awaited in pairs]}


@pytest.fixture(**_named(STYLES))
def guarded(request: pytest.FixtureRequest, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> Form:
    """Every form that every policy has."""
    return _form(*request.param, clock, monkeypatch)


@pytest.fixture(**_named((*STYLES, "block")))
def retried(request: pytest.FixtureRequest, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> Form:
    """Every form that a retry has."""
    return _form(*request.param, clock, monkeypatch)


@pytest.fixture(params=STYLES)
def awaited(request: pytest.FixtureRequest, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> Form:
    """The async forms."""
    return _form(request.param, True, clock, monkeypatch)


@pytest.fixture(params=STYLES)
def threaded(request: pytest.FixtureRequest, clock: VirtualClock, monkeypatch: pytest.MonkeyPatch) -> Form:
    """The sync forms."""
    return _form(request.param, False, clock, monkeypatch)


@pytest.fixture
def anew() -> Callable[[str, bool, Callable[[Form], Any]], Any]:
    """Runs something in one form, on a clock of its own."""

    def run(style: str, awaited: bool, act: Callable[[Form], Any]) -> Any:
        with pytest.MonkeyPatch.context() as patch, fresh_everkeel(), virtual_time() as own:
            return act(_form(style, awaited, own, patch))

    return run


@pytest.fixture
def every_form(
    clock: VirtualClock, anew: Callable[[str, bool, Callable[[Form], Any]], Any]
) -> Callable[[Callable[[Form], Any]], dict[str, Any]]:
    """Runs something in each form, each on a clock of its own with the same seed; answers what came out, by form."""
    return lambda act: {
        f"{style}-{'async' if awaited else 'sync'}": anew(style, awaited, act)
        for style in STYLES
        for awaited in (False, True)
    }


@pytest.fixture(params=["sync", "async"])
def streamed(request: pytest.FixtureRequest, clock: VirtualClock) -> Callable[[Any, Callable[..., Any]], Any]:
    """`streamed(policy, generator_function)(...)`: decorated, called, and consumed; answers the list of its items."""

    def decorate(policy: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
        if request.param == "sync":
            guarded = policy(fn)
            return lambda *args, into: into.extend(guarded(*args))

        async def items(*args: Any) -> Any:
            for item in fn(*args):
                yield item

        aguarded = policy(items)

        async def collect(*args: Any, into: list[Any]) -> None:
            async for item in aguarded(*args):
                into.append(item)  # noqa: PERF401 - one by one: what came before an error counts

        return lambda *args, into: clock.run(collect(*args, into=into))

    def returning(policy: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
        consume = decorate(policy, fn)

        def call(*args: Any, into: list[Any] | None = None) -> list[Any]:
            items: list[Any] = [] if into is None else into
            consume(*args, into=items)
            return items

        return call

    return returning
