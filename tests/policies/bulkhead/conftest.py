"""The forms in which a bulkhead guards a call, and crowds that press for its places.

- plain: `policy.call(fn)` / `policy.acall(fn)`
- woven: a decorated function, one generated function with the policy's fragment in it
- unrolled: a decorated function with the default fragment, the permit protocol step by step
- seam: a decorated function whose generated code calls the plain driver
- block: `with policy:` / `async with policy:`

A crowd is threads, or tasks of one event loop, whose calls begin, wait and end exactly when a test says so.
"""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest

from everkeel import BulkheadFullError
from everkeel.policies.bulkhead.state import Places
from everkeel.runtime import workers
from everkeel.runtime.signature import kind_of
from everkeel.runtime.state import State
from everkeel.testing import VirtualClock, VirtualLoop, wait_until_idle


@dataclass(frozen=True)
class Form:
    """One way of calling: `form(policy, fn)` is `fn` guarded by the policy, of the same kind as before."""

    style: str

    def __call__(self, policy: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
        awaited = kind_of(fn) == "async"
        if self.style == "plain":
            return plain_async(policy, fn) if awaited else partial(policy.call, fn)
        if self.style == "block":
            return in_async_block(policy, fn) if awaited else in_block(policy, fn)
        return policy(fn)


def plain_async(policy: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        return await policy.acall(fn, *args, **kwargs)

    return call


def in_async_block(policy: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        async with policy:
            return await fn(*args, **kwargs)

    return call


def in_block(policy: Any, fn: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        with policy:
            return fn(*args, **kwargs)

    return call


STYLES = ("plain", "woven", "unrolled", "seam", "block")


def make_form(style: str, patch: pytest.MonkeyPatch) -> Form:
    if style == "unrolled":
        patch.setattr(Places, "fragment", State.fragment)
    if style == "seam":
        patch.setattr(Places, "fragment", lambda self, kind: None)
    return Form(style)


@pytest.fixture(params=STYLES)
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Form:
    """Every form in which a call is guarded, sync or async."""
    return make_form(request.param, monkeypatch)


@pytest.fixture
def forms(clock: VirtualClock) -> Callable[[Callable[[Form], Any]], dict[str, Any]]:
    """Does something in each form; answers what came out, by form."""

    def run(act: Callable[[Form], Any]) -> dict[str, Any]:
        came = {}
        for style in STYLES:
            with pytest.MonkeyPatch.context() as patch:
                came[style] = act(make_form(style, patch))
        return came

    return run


# ------------------------------------------------------------------ crowds


class Crowd(ABC):
    """Calls that begin, wait and end when they are told to. After each method everybody is where they can get."""

    def __init__(self, policy: Any, form: Form) -> None:
        self.policy = policy
        self.begun: list[Any] = []
        """Who got a place, in that order."""
        self.ended: dict[Any, Any] = {}
        """What became of those who are through: what their call returned or raised."""
        self._form = form

    @property
    def running(self) -> list[Any]:
        """Who has a place now."""
        return [name for name in self.begun if name not in self.ended]

    @abstractmethod
    def start(self, *names: Any) -> None:
        """Calls of these names begin, one after the other."""

    @abstractmethod
    def finish(self, *names: Any, error: BaseException | None = None) -> None:
        """The calls of these names return their name, or raise."""

    @abstractmethod
    def close(self) -> None:
        """Everybody goes home."""


class Tasks(Crowd):
    """Tasks of one event loop in virtual time."""

    def __init__(self, policy: Any, form: Form, clock: VirtualClock) -> None:
        super().__init__(policy, form)
        self._runner = asyncio.Runner(loop_factory=lambda: VirtualLoop(clock))
        self.tasks: dict[Any, asyncio.Task[None]] = {}
        self._gates: dict[Any, asyncio.Future[Any]] = {}
        self._call = form(policy, self._body)

    async def _body(self, name: Any) -> Any:
        self.begun.append(name)
        gate = self._gates[name] = asyncio.get_running_loop().create_future()
        return await gate

    async def _one(self, name: Any) -> None:
        try:
            self.ended[name] = await self._call(name)
        except BaseException as error:
            self.ended[name] = error

    def start(self, *names: Any) -> None:
        async def begin() -> None:
            for name in names:
                self.tasks[name] = asyncio.create_task(self._one(name))
                await wait_until_idle()

        self._runner.run(begin())

    def finish(self, *names: Any, error: BaseException | None = None) -> None:
        async def end() -> None:
            for name in names:
                if error is None:
                    self._gates[name].set_result(name)
                else:
                    self._gates[name].set_exception(error)
                await wait_until_idle()

        self._runner.run(end())

    def cancel(self, name: Any) -> None:
        async def end() -> None:
            self.tasks[name].cancel()
            await wait_until_idle()

        self._runner.run(end())

    def pass_time(self, seconds: float) -> None:
        self._runner.run(asyncio.sleep(seconds))

    def close(self) -> None:
        async def end() -> None:
            for task in self.tasks.values():
                task.cancel()
            if self.tasks:
                await asyncio.wait(self.tasks.values())

        self._runner.run(end())
        self._runner.close()


class Threads(Crowd):
    """One thread for each call. Whether everybody is where they can get is seen from who began, waits and ended."""

    def __init__(self, policy: Any, form: Form) -> None:
        super().__init__(policy, form)
        self._threads: dict[Any, threading.Thread] = {}
        self._gates: dict[Any, threading.Event] = {}
        self._errors: dict[Any, BaseException] = {}
        self._call = form(policy, self._body)

    def _body(self, name: Any) -> Any:
        self.begun.append(name)
        assert self._gates[name].wait(30)
        if name in self._errors:
            raise self._errors[name]
        return name

    def _one(self, name: Any) -> None:
        try:
            self.ended[name] = self._call(name)
        except BaseException as error:
            self.ended[name] = error

    def _settle(self) -> None:
        for _ in range(30_000):
            waiting = self.policy.snapshot()["waiting"]
            if len(self.running) + waiting + len(self.ended) == len(self._threads):
                return
            threading.Event().wait(0.001)
        raise AssertionError(f"begun {self.begun}, ended {self.ended}, {self.policy.snapshot()}")

    def start(self, *names: Any) -> None:
        for name in names:
            self._gates[name] = threading.Event()
            self._threads[name] = threading.Thread(target=self._one, args=(name,))
            self._threads[name].start()
            self._settle()

    def finish(self, *names: Any, error: BaseException | None = None) -> None:
        for name in names:
            if error is not None:
                self._errors[name] = error
            self._gates[name].set()
            self._threads[name].join(30)
            self._settle()

    def close(self) -> None:
        for gate in self._gates.values():
            gate.set()
        for thread in self._threads.values():
            thread.join(30)


@pytest.fixture
def task_crowd(form: Form, clock: VirtualClock) -> Iterator[Callable[[Any], Tasks]]:
    """`task_crowd(policy)`: tasks that press for its places."""
    with ExitStack() as stack:

        def make(policy: Any) -> Tasks:
            crowd = Tasks(policy, form, clock)
            stack.callback(crowd.close)
            return crowd

        yield make


@pytest.fixture(params=["tasks", "threads"])
def crowd(request: pytest.FixtureRequest, form: Form, clock: VirtualClock) -> Iterator[Callable[[Any], Crowd]]:
    """`crowd(policy)`: tasks or threads that press for its places, in every form."""
    with ExitStack() as stack:

        def make(policy: Any) -> Crowd:
            made = Tasks(policy, form, clock) if request.param == "tasks" else Threads(policy, form)
            stack.callback(made.close)
            return made

        yield make


@pytest.fixture
def make_tasks(clock: VirtualClock) -> Callable[[Any, Form], Tasks]:
    """For those who need many crowds in one test: they close them."""
    return lambda policy, form: Tasks(policy, form, clock)


@pytest.fixture
def make_threads(clock: VirtualClock) -> Callable[[Any, Form], Threads]:
    """The same with threads."""
    return Threads


@pytest.fixture
def capacity() -> Callable[..., int]:
    """`capacity(policy)`: how many can really get in now. Places must be neither lost nor won."""

    def count(policy: Any, **key: Any) -> int:
        policy.reconfigure(queue=0)
        with ExitStack() as stack:
            for number in range(1000):
                try:
                    stack.enter_context(policy.entry(**key))
                except BulkheadFullError:
                    return number
        raise AssertionError("there is no end to it")

    return count


@pytest.fixture
def quiet() -> Callable[[], None]:
    """`quiet()` waits until the worker threads that this test made busy have nothing to do any more."""
    before = busy_workers()

    def wait() -> None:
        for _ in range(30_000):
            if busy_workers() <= before:
                return
            threading.Event().wait(0.001)
        raise AssertionError("a worker does not come back")

    return wait


def busy_workers() -> int:
    return len([one for one in threading.enumerate() if one.name == "everkeel-worker"]) - len(workers._idle)
